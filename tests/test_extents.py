"""Batches of extents: read, checked and decoded by the engine's threads."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_batches import decode_batch, job_of
from jpegs import encode, picture

from fastdata import _native
from fastdata._native import crc32c
from fastdata.decode import DecodeError, seek_points
from fastdata.errors import CorruptionError
from fastdata.storage.index import Index
from fastdata.storage.learnt import Learnt
from fastdata.storage.records import Row as IndexRow
from fastdata.storage.records import rows_to_batch, write_index
from fastdata.storage.source import ExtentTable, Stamped

SIZE = (40, 32)
IMAGES = [
    encode(picture(90 + 9 * i, 80 + 5 * i, i), sampling)
    for i, sampling in enumerate(["4:2:0", "4:4:4", "grey", "4:2:2", "4:2:0"])
]
EXPECTED = decode_batch(IMAGES, SIZE)


def write(folder: Path, blobs: list[bytes] = IMAGES) -> list[str]:
    paths = []
    for i, blob in enumerate(blobs):
        (folder / f"{i}.jpg").write_bytes(blob)
        paths.append(str(folder / f"{i}.jpg"))
    return paths


def blank(count: int) -> Any:
    return np.full((count, SIZE[1], SIZE[0], 3), 77, np.uint8)


def run(extents: _native.Extents, **options: Any) -> tuple[Any, dict[int, tuple[str, str]]]:
    out = blank(len(extents))
    job = job_of(extents, out, **options)
    pool = _native.ThreadPool(2)
    pool.submit(job)
    failures = job.collect()[0]
    return out, {index: (code, detail) for index, code, detail, _ in failures}


def row(number: int, blob: bytes, **changes: Any) -> IndexRow:
    fields: dict[str, Any] = {
        "key": f"c/{number}", "label": number % 7, "file": 0, "path": None, "offset": 0,
        "length": len(blob), "width": 3, "height": 2, "channels": 3, "encoding": "jpeg",
        "crc32c": crc32c(blob),
    }  # fmt: skip
    return IndexRow(**{**fields, **changes})


def table_of(
    folder: Path, rows: list[IndexRow], files: list[Path], root: Path | None = None
) -> ExtentTable:
    write_index(folder / "_index.rows", [rows_to_batch(rows)], len(rows))
    index = Index(folder / "_index.rows", len(rows))
    return index.locate(_native.Files(files, [file.stat().st_size for file in files]), root)


def packed(folder: Path, blobs: list[bytes] = IMAGES, **changes: Any) -> ExtentTable:
    file = folder / "blobs"
    file.write_bytes(b"head" + b"".join(blobs))
    rows, at = [], 4
    for i, blob in enumerate(blobs):
        rows.append(row(i, blob, offset=at, **changes))
        at += len(blob)
    return table_of(folder, rows, [file])


def everything(table: ExtentTable, count: int = len(IMAGES)) -> _native.Extents:
    return table.gather(np.arange(count))


@pytest.mark.parametrize("shared", [False, True])
def test_files_decode_as_their_bytes(simd: str, tmp_path: Path, shared: bool) -> None:
    extents = everything(packed(tmp_path)) if shared else _native.Extents(write(tmp_path))
    for options in ({}, {"check": False}):
        out, failures = run(extents, **options)
        assert failures == {} and np.array_equal(out, EXPECTED)
    assert np.array_equal(decode_batch(extents, SIZE), EXPECTED)
    assert [extents.read(i) for i in range(5)] == IMAGES
    assert extents.labels.tolist() == ([0, 1, 2, 3, 4] if shared else [0] * 5)


def test_changed_bytes(tmp_path: Path) -> None:
    table = packed(tmp_path)
    data = bytearray((tmp_path / "blobs").read_bytes())
    at = 4 + len(IMAGES[0]) + len(IMAGES[1]) - 2  # the end marker: decoding does not mind
    data[at] ^= 1
    (tmp_path / "blobs").write_bytes(data)
    extents = everything(table)
    _, failures = run(extents)
    assert {i: code for i, (code, _) in failures.items()} == {1: "changed"}
    with pytest.raises(ValueError, match=r"blobs: .*changed"):
        extents.read(1)
    assert extents.read(1, check=False)[-2:-1] == bytes([data[at]])
    out, failures = run(extents, check=False)
    assert failures == {} and np.array_equal(out, EXPECTED)
    with pytest.raises(DecodeError, match="changed"):
        decode_batch(extents, SIZE)


def test_cut_short_while_open(tmp_path: Path) -> None:
    extents = everything(packed(tmp_path))
    assert run(extents)[1] == {}  # opens the file
    os.truncate(tmp_path / "blobs", 4 + len(IMAGES[0]) + 10)
    out, failures = run(extents)
    assert {i: code for i, (code, _) in failures.items()} == dict.fromkeys(range(1, 5), "cut_short")
    assert np.array_equal(out[0], EXPECTED[0])


@pytest.mark.slow
def test_cut_short_while_it_is_read(tmp_path: Path) -> None:
    size = 48 << 20
    file = tmp_path / "blobs"
    file.write_bytes(b"\x01" * size)
    table = table_of(tmp_path, [row(0, bytes(size), file=0)], [file])
    child = os.fork()
    if child == 0:
        found = Counter[str]()
        try:
            for turn in range(40):
                os.truncate(file, size)
                file.read_bytes()  # into memory
                cutting = threading.Timer(turn % 10 / 1000, os.truncate, (file, 4096))
                cutting.start()
                try:
                    blob = table.gather(np.array([0])).read(0, check=False)
                    found["whole"] += len(blob) == size
                except ValueError as error:
                    found["cut short"] += "cut_short" in str(error)
                cutting.join()
        finally:
            os._exit(0 if found.total() == 40 and found["cut short"] else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize(("change", "code"), [(-1, "cut_short"), (1, "changed")])
def test_a_file_of_another_size_is_not_read(tmp_path: Path, change: int, code: str) -> None:
    table = packed(tmp_path)
    os.truncate(tmp_path / "blobs", (tmp_path / "blobs").stat().st_size + change)
    _, failures = run(everything(table))
    assert {i: c for i, (c, _) in failures.items()} == dict.fromkeys(range(5), code)


def stamp(path: str) -> tuple[int, int]:
    """Return the size and the time by which a file is recognised."""
    about = os.stat(path)
    return about.st_size, about.st_mtime_ns


@pytest.mark.parametrize("changed", ["size", "time"])
def test_seek_points_of_a_changed_file_are_not_used(tmp_path: Path, changed: str) -> None:
    paths = write(tmp_path, IMAGES[:2])
    stamps = np.array([stamp(path) for path in paths])
    stamps[1, 0 if changed == "size" else 1] += 1
    learnt = Learnt(tmp_path / "points", "0" * 16, 2, os.geteuid())
    # Tables that lie, so that their use shows.
    learnt.put([(row, Stamped(b"no seek points", *stamps[row].tolist())) for row in range(2)])
    learnt.flush()
    extents = _native.Extents(paths)
    learnt.find(extents, np.arange(2))
    out = blank(2)
    job = job_of(extents, out, stride=64)
    job.run()
    failures, built, *_ = job.collect()
    assert [(i, code) for i, code, _, _ in failures] == [(0, "bad_seek_points")]
    assert np.array_equal(out[1], EXPECTED[1])
    assert built == [(1, seek_points(IMAGES[1], 64), *stamp(paths[1]))]


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"file": 1}, "a file that does not exist"),
        ({"file": -1}, "a file that does not exist"),
        ({"file": -(2**31)}, "a file that does not exist"),
        ({"offset": -1}, "offset or length"),
        ({"length": -1}, "offset or length"),
        ({"offset": 2**63 - 1, "length": 2**63 - 1}, "offset or length"),
        ({"offset": 1}, "beyond its file's end"),
        ({"length": 2**40}, "beyond its file's end"),
        ({"width": -1}, "width or height"),
        ({"height": 2**31 - 1}, "width or height"),
        ({"file": -1, "path": "/etc/passwd"}, "leaves the dataset's root"),
        ({"file": -1, "path": "a/../../b"}, "leaves the dataset's root"),
        ({"file": -1, "path": ".."}, "leaves the dataset's root"),
        ({"file": -1, "path": "a\0b"}, "leaves the dataset's root"),
    ],
)
def test_a_row_that_makes_no_sense(tmp_path: Path, change: dict[str, Any], detail: str) -> None:
    (tmp_path / "file").write_bytes(IMAGES[0])
    rows = [row(0, IMAGES[0]), row(1, IMAGES[0], **change)]
    extents = table_of(tmp_path, rows, [tmp_path / "file"], tmp_path).gather(np.array([1, 0]))
    _, failures = run(extents)
    assert failures.keys() == {0} and failures[0][0] == "corrupt_index"
    assert detail in failures[0][1]
    with pytest.raises(ValueError, match="corrupt_index"):
        extents.read(0)
    assert 0 <= extents.widths[0] <= 2**27 and 0 <= extents.heights[0] <= 2**27


def with_tables(folder: Path) -> tuple[ExtentTable, Path]:
    (folder / "file").write_bytes(b"".join(IMAGES))
    starts = np.cumsum([0, *map(len, IMAGES)]).tolist()
    rows = [
        row(i, blob, offset=starts[i], seek_points=seek_points(blob, 16))
        for i, blob in enumerate(IMAGES)
    ]
    return table_of(folder, rows, [folder / "file"]), folder / "_index.rows"


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Overwrite a file in place, and keep its time of change: open readers see the new bytes."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_every_flipped_bit_of_a_row_is_told_where_it_is_used(tmp_path: Path) -> None:
    table, path = with_tables(tmp_path)
    right = decode_batch(table.gather(np.arange(5)), SIZE)
    data = path.read_bytes()
    records = 64 + 64 * 5
    used = np.cumsum([0, *(len(r.key) + len(r.seek_points) + 4 for r in Index(path, 5))])
    for at in random.Random(1).sample(range(64, len(data)), 400):
        byte = data[at] ^ 1 << at % 8
        overwrite(path, at, bytes([byte]))
        out, failures = run(table.gather(np.arange(5)))
        heap_row = int(np.searchsorted(used, at - records, "right")) - 1
        number = (at - 64) // 64 if at < records else heap_row
        of_key = at >= records and at - records - used[number] < 3
        if of_key:  # decoding needs none
            assert failures == {}
            with pytest.raises(CorruptionError, match=f"damaged at row {number}"):
                Index(path, 5)[number]
        else:
            assert failures.keys() == {number} and failures[number][0] == "corrupt_index"
            assert "damaged" in failures[number][1]
        others = [i for i in range(5) if of_key or i != number]
        assert np.array_equal(out[others], right[others])
        overwrite(path, at, data[at : at + 1])


def test_parts_of_an_answer(tmp_path: Path) -> None:
    """Samples that lie in one buffer, and a sample whose rows do not fit."""
    answer = b"..".join(IMAGES)
    starts = np.cumsum([0, *(len(blob) + 2 for blob in IMAGES[:-1])])
    stops, none = starts + [len(blob) for blob in IMAGES], np.full(len(IMAGES), -1)
    extents = _native.Extents(write(tmp_path))
    slots = np.arange(len(IMAGES))
    extents.attach_parts(slots, [answer] * len(IMAGES), starts, stops, none)
    for path in tmp_path.iterdir():
        path.unlink()
    assert np.array_equal(decode_batch(extents, SIZE), EXPECTED)
    for start, stop, at in ((0, len(answer) + 1, -1), (5, 4, -1), (0, 0, 3), (0, 10, 1 << 40)):
        with pytest.raises(ValueError, match=r"outside|no such rows"):
            extents.attach_parts([0], [answer], [start], [stop], [at])

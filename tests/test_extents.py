"""Batches of extents: read, checked and decoded by the engine's threads."""

from __future__ import annotations

import gc
import io
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import pack_tree
from jpegs import encode, picture
from PIL import Image

from fastdata import ImageDataset, _native
from fastdata.decode import (
    DecodeError,
    Engine,
    PendingBatch,
    decode_batch,
    jpeg_info,
    seek_points,
)
from fastdata.storage.checksum import crc32c
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.index import ExtentTable, Index
from fastdata.storage.learnt import Learnt, Stamped
from fastdata.storage.records import Row as IndexRow
from fastdata.storage.records import rows_to_batch, write_index

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
    """The batch, and of what failed (code, detail)."""
    out = blank(len(extents))
    with Engine(2) as engine:
        pending = engine.submit(extents, out, **options)
        failures = pending.collect().failures
    return out, {index: (code, detail) for index, code, detail, _ in failures}


def open_files(folder: Path) -> int:
    """Descriptors of files below a folder: other tests' files come and go."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found += os.readlink(entry).startswith(f"{folder}{os.sep}")
    return found


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
    """All blobs in one file, one behind the other."""
    file = folder / "blobs"
    file.write_bytes(b"head" + b"".join(blobs))
    rows, at = [], 4
    for i, blob in enumerate(blobs):
        rows.append(row(i, blob, offset=at, **changes))
        at += len(blob)
    return table_of(folder, rows, [file])


def everything(table: ExtentTable, count: int = len(IMAGES)) -> _native.Extents:
    return table.gather(np.arange(count))


# --- whole files ---------------------------------------------------------------------------


def test_files_decode_as_their_bytes(simd: str, tmp_path: Path) -> None:
    extents = _native.Extents(write(tmp_path))
    assert len(extents) == 5
    out, failures = run(extents)
    assert failures == {}
    assert np.array_equal(out, EXPECTED)
    assert np.array_equal(decode_batch(extents, SIZE), EXPECTED)
    assert [extents.read(i) for i in range(5)] == IMAGES


def test_columns_are_read_only_views_that_outlive_the_extents(tmp_path: Path) -> None:
    extents = _native.Extents(write(tmp_path), seek_points=[seek_points(IMAGES[0]), *[None] * 4])
    columns = [
        (extents.labels, np.int64, [0] * 5),
        (extents.widths, np.int32, [0] * 5),
        (extents.heights, np.int32, [0] * 5),
        (extents.encodings, np.int8, [-1] * 5),
        (extents.seekable, np.uint8, [1, 0, 0, 0, 0]),
    ]
    assert all(column.base is extents for column, _, _ in columns)
    del extents
    gc.collect()
    for column, dtype, values in columns:
        assert column.dtype == dtype and column.tolist() == values
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_seek_points_of_files_are_used(tmp_path: Path) -> None:
    """A stale table is noticed, so tables are looked at."""
    paths = write(tmp_path)
    good = [seek_points(data) for data in IMAGES]
    out, failures = run(_native.Extents(paths, seek_points=good))
    assert failures == {} and np.array_equal(out, EXPECTED)
    stale = [*good[:4], good[3]]
    _, failures = run(_native.Extents(paths, seek_points=stale))
    assert {i: code for i, (code, _) in failures.items()} == {4: "bad_seek_points"}
    # Those of the call count more.
    _, failures = run(_native.Extents(paths, seek_points=stale), seek_points=good)
    assert failures == {}


def test_paths_with_odd_bytes(tmp_path: Path) -> None:
    names = [b"\xff\xfe.jpg", "größe ☃.jpg".encode(), b"a b\nc.jpg"]
    for name, blob in zip(names, IMAGES, strict=False):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(blob)
    raw = [os.fsencode(tmp_path) + b"/" + name for name in names]
    for paths in (raw, [os.fsdecode(path) for path in raw], [Path(os.fsdecode(p)) for p in raw]):
        extents = _native.Extents(paths)
        assert [extents.path(i) for i in range(3)] == [os.fsdecode(path) for path in raw]
        out, failures = run(extents)
        assert failures == {} and np.array_equal(out, EXPECTED[:3])
    with pytest.raises(ValueError, match="null"):
        _native.Extents(["a\0b"])
    with pytest.raises(TypeError):
        _native.Extents([3])  # type: ignore[list-item]


def test_what_cannot_be_read_is_a_code_and_the_others_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")  # must not be waited for
    good = write(tmp_path)[0]
    names = ["none", "folder", "loop", "empty", "pipe", "0.jpg/below"]
    extents = _native.Extents([good, *(str(tmp_path / name) for name in names), good])
    out, failures = run(extents)
    assert np.array_equal(out[0], EXPECTED[0]) and np.array_equal(out[-1], EXPECTED[0])
    assert failures == {
        1: ("file_missing", "No such file or directory"),
        2: ("file_unreadable", "Is a directory"),
        3: ("file_unreadable", "Too many levels of symbolic links"),
        4: ("not_jpeg", failures[4][1]),
        5: ("file_unreadable", "not a regular file"),
        6: ("file_missing", "Not a directory"),
    }
    with pytest.raises(FileNotFoundError, match="none"):
        extents.read(1)
    with pytest.raises(IsADirectoryError, match="folder"):
        extents.read(2)
    with pytest.raises(OSError, match="loop"):
        extents.read(3)
    assert extents.read(4) == b""
    with pytest.raises(OSError, match=r"not a regular file: '.*pipe'"):
        extents.read(5)
    with pytest.raises(IndexError):
        extents.read(8)
    with pytest.raises(DecodeError, match=r"sample 1: No such file .*file_missing"):
        decode_batch(extents, SIZE)


def test_files_without_permission(tmp_path: Path) -> None:
    paths = write(tmp_path)
    os.chmod(paths[1], 0)
    extents = _native.Extents(paths)
    user = os.geteuid()
    if user == 0:  # root may read everything, so be another; the folders above let nobody in
        os.seteuid(65534)
    try:
        failures = run(extents)[1]
        with pytest.raises(PermissionError, match=r"1\.jpg"):
            extents.read(1)
    finally:
        os.seteuid(user)
    assert failures[1] == ("file_unreadable", "Permission denied")


# --- extents of shared files -----------------------------------------------------------------


def test_extents_decode_as_their_bytes(simd: str, tmp_path: Path) -> None:
    extents = everything(packed(tmp_path))
    for options in ({}, {"check": False}):
        out, failures = run(extents, **options)
        assert failures == {} and np.array_equal(out, EXPECTED)
    assert [extents.read(i) for i in range(5)] == IMAGES
    assert extents.labels.tolist() == [0, 1, 2, 3, 4]


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
    # No decoder mends it.
    with pytest.raises(DecodeError, match="changed"):
        decode_batch(extents, SIZE, fallback="always")


def test_cut_short_while_open(tmp_path: Path) -> None:
    extents = everything(packed(tmp_path))
    assert run(extents)[1] == {}  # opens the file
    os.truncate(tmp_path / "blobs", 4 + len(IMAGES[0]) + 10)
    out, failures = run(extents)
    assert {i: code for i, (code, _) in failures.items()} == dict.fromkeys(range(1, 5), "cut_short")
    assert np.array_equal(out[0], EXPECTED[0])
    with pytest.raises(ValueError, match="cut_short"):
        extents.read(3)


def test_cut_short_while_it_is_read(tmp_path: Path) -> None:
    """A map would raise SIGBUS, which must kill no process, on any path of reading."""
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


def test_a_missing_file(tmp_path: Path) -> None:
    table = packed(tmp_path)
    (tmp_path / "blobs").unlink()
    assert set(run(everything(table))[1].values()) == {
        ("file_missing", "No such file or directory")
    }


def test_raw_pixels(simd: str, tmp_path: Path) -> None:
    pixels = picture(70, 50, 3)
    blob = pixels.tobytes()
    rows = [
        row(0, blob, encoding="raw", width=70, height=50),
        row(1, blob, encoding="raw", width=71, height=50),
        row(2, blob, encoding="raw", width=0, height=50),
        row(3, blob, encoding="raw", width=2**27, height=2**27),
    ]
    (tmp_path / "blobs").write_bytes(blob)
    extents = table_of(tmp_path, rows, [tmp_path / "blobs"]).gather(np.arange(4))
    boxes = [(3, 4, 66, 49)] * 4
    out, failures = run(extents, regions=boxes)
    assert {i: code for i, (code, _) in failures.items()} == dict.fromkeys((1, 2, 3), "cut_short")
    assert np.array_equal(out[0], decode_batch([pixels], SIZE, regions=boxes[:1])[0])
    with pytest.raises(DecodeError, match="of 70 x 50 pixels"):
        decode_batch(everything(table_of(tmp_path, rows[:1], [tmp_path / "blobs"]), 1), SIZE,
                     regions=[(0, 0, 71, 3)])  # fmt: skip


def test_other_encodings_are_pillows_and_not_read(tmp_path: Path) -> None:
    file = io.BytesIO()
    pixels = picture(60, 50, 1)
    Image.fromarray(pixels).save(file, "PNG")
    blobs = [IMAGES[0], file.getvalue()]
    (tmp_path / "blobs").write_bytes(b"".join(blobs))
    rows = [row(0, blobs[0]), row(1, blobs[1], offset=len(blobs[0]), encoding="png")]
    table = table_of(tmp_path, rows, [tmp_path / "blobs"])
    out = decode_batch(table.gather(np.array([0, 1])), SIZE)
    assert np.array_equal(out[0], EXPECTED[0])
    assert np.array_equal(out[1], decode_batch([pixels], SIZE)[0])
    (tmp_path / "blobs").unlink()
    index = Index(tmp_path / "_index.rows", 2)
    fresh = index.locate(_native.Files([tmp_path / "blobs"], [9**6]), None)
    _, failures = run(fresh.gather(np.array([0, 1])))
    assert {i: code for i, (code, _) in failures.items()} == {0: "file_missing", 1: "not_jpeg"}


def test_skip_leaves_samples_alone(tmp_path: Path) -> None:
    extents = _native.Extents([*write(tmp_path), str(tmp_path / "none")])
    skip = np.array([0, 1, 0, 0, 1, 1], bool)
    out, failures = run(extents, skip=skip)
    assert failures == {}
    assert (out[skip] == 77).all()
    assert np.array_equal(out[~skip], EXPECTED[[0, 2, 3]])
    out = blank(2)
    decode_batch([IMAGES[0], b"nothing"], SIZE, skip=[False, True], out=out)
    assert np.array_equal(out[0], EXPECTED[0]) and (out[1] == 77).all()


def test_stride_builds_seek_points_once(simd: str, tmp_path: Path) -> None:
    blobs = [*IMAGES, b"no image", IMAGES[0][: len(IMAGES[0]) * 3 // 4]]
    table = seek_points(IMAGES[1], 64)
    paths = write(tmp_path, blobs)
    extents = _native.Extents(paths, seek_points=[None, table, *[None] * 5])
    boxes = np.array([(2, 3, 60, 20)] * 7)
    out = blank(7)
    pending = PendingBatch(extents, out, regions=boxes, stride=64)
    pending.run()
    assert [code for _, code, _, _ in pending.collect().failures] == ["not_jpeg", "truncated"]
    expected = [(i, seek_points(IMAGES[i], 64), *stamp(paths[i])) for i in (0, 2, 3, 4)]
    assert pending.collect().built == expected
    assert np.array_equal(out[:5], decode_batch(IMAGES, SIZE, regions=boxes[:5]))
    assert PendingBatch(extents, out, regions=boxes).collect().built == []
    # From memory too.
    pending = PendingBatch(IMAGES, blank(5), regions=boxes[:5], stride=64)
    pending.run()
    assert [built[0] for built in pending.collect().built] == [0, 1, 2, 3, 4]


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
    pending = PendingBatch(extents, out, stride=64)
    pending.run()
    assert [(i, code) for i, code, _, _ in pending.collect().failures] == [(0, "bad_seek_points")]
    assert np.array_equal(out[1], EXPECTED[1])
    assert pending.collect().built == [(1, seek_points(IMAGES[1], 64), *stamp(paths[1]))]


def test_timings(tmp_path: Path) -> None:
    pending = PendingBatch(_native.Extents(write(tmp_path) * 20), blank(100))
    began = time.perf_counter()
    pending.run()
    done, elapsed = pending.collect(), time.perf_counter() - began
    assert done.read_seconds > 0 and done.decode_seconds > 0
    # One thread did it all; in other units they would be more.
    assert done.read_seconds + done.decode_seconds <= elapsed


def test_a_batch_runs_only_once(tmp_path: Path) -> None:
    with Engine(1) as engine:
        pending = engine.submit(_native.Extents(write(tmp_path)), blank(5))
        with pytest.raises(RuntimeError, match="once"):
            pending.run()


# --- descriptors, threads, processes ---------------------------------------------------------


def test_more_files_than_stay_open(tmp_path: Path, limited: Callable[[int], None]) -> None:
    """Every sample in another file: a quarter of the limit is open, none when all is dropped."""
    gc.collect()  # what other tests have left open
    limited(512)
    before = open_files(tmp_path)
    rows, files = [], []
    for i in range(400):
        blob = IMAGES[i % 5]
        file = tmp_path / f"shard-{i}"
        file.write_bytes(blob)
        files.append(file)
        rows.append(row(i, blob, file=i))
    table = table_of(tmp_path, rows, files)
    order = np.random.default_rng(1).permutation(400)
    with Engine(3) as engine:
        pending = [engine.submit(table.gather(order), blank(400)) for _ in range(3)]
        for batch in pending:
            out = batch.result()
            assert np.array_equal(out, EXPECTED[order % 5])
            # And those that the three threads of the other batches are about to close.
            assert open_files(tmp_path) - before <= 128 + 3
    assert open_files(tmp_path) - before > 100
    del table, pending, batch
    gc.collect()
    assert open_files(tmp_path) == before


def test_files_of_their_own_are_closed_at_once(tmp_path: Path) -> None:
    extents = _native.Extents(write(tmp_path) * 50)
    before = open_files(tmp_path)
    assert run(extents)[1] == {} and open_files(tmp_path) == before
    for i in range(5):
        extents.read(i)
    assert open_files(tmp_path) == before


def test_many_threads_share_the_open_files(tmp_path: Path) -> None:
    table = packed(tmp_path)
    errors: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            chosen = rng.integers(0, 5, 16)
            if not np.array_equal(decode_batch(table.gather(chosen), SIZE), EXPECTED[chosen]):
                errors.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_forked_while_threads_read(tmp_path: Path) -> None:
    """A child neither waits for a lock that a thread of the parent held, nor closes its files."""
    table = packed(tmp_path)
    order = np.arange(2000) % 5
    with Engine(2) as engine:
        for _ in range(5):
            pending = engine.submit(table.gather(order), blank(2000))
            child = os.fork()
            if child == 0:
                try:
                    with Engine(2) as own:
                        out = own.submit(table.gather(order[:50]), blank(50)).result(60)
                    os._exit(0 if np.array_equal(out, EXPECTED[order[:50]]) else 3)
                finally:
                    os._exit(4)
            assert np.array_equal(pending.result(), EXPECTED[order])
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_dropping_a_batch_that_has_not_ended(tmp_path: Path) -> None:
    table = packed(tmp_path)
    with Engine(2) as engine:
        for _ in range(20):
            pending = engine.submit(table.gather(np.arange(500) % 5), blank(500))
            del pending
        pending = engine.submit(table.gather(np.arange(500) % 5), blank(500))
        pending.cancel()
        assert {code for _, code, _, _ in pending.collect().failures} <= {"cancelled"}


# --- probing -----------------------------------------------------------------------------------


def jpeg_with_long_header(pixels: Any, comments: int) -> bytes:
    data = encode(pixels)
    return data[:2] + (b"\xff\xfe\xff\xff" + b"\xff\xc0" * 32766 + b"x") * comments + data[2:]


@pytest.mark.parametrize("threads", [0, 2])
def test_probing_files(tmp_path: Path, threads: int) -> None:
    png, progressive = io.BytesIO(), io.BytesIO()
    image = Image.fromarray(picture(33, 44, 1))
    image.save(png, "PNG")
    image.save(progressive, "JPEG", progressive=True)
    cmyk = io.BytesIO()
    image.convert("CMYK").save(cmyk, "JPEG")
    blobs = [
        *IMAGES,
        progressive.getvalue(),
        jpeg_with_long_header(picture(50, 60), 1),
        jpeg_with_long_header(picture(70, 20), 40),
        png.getvalue(),
        IMAGES[0][:150],
        b"",
        cmyk.getvalue(),
    ]
    extents = _native.Extents([*write(tmp_path, blobs), str(tmp_path / "none")])
    widths = extents.widths
    if threads:
        with Engine(threads) as engine:
            job = engine.probe(extents)
            assert job.wait(60) and job.done()
    else:
        job = _native.ProbeJob(extents)
        job.run()
    assert [(i, code) for i, code, _, _ in job.failures()] == [
        (8, "not_jpeg"),
        (9, "truncated"),
        (10, "not_jpeg"),
        (11, "unsupported"),
        (12, "file_missing"),
    ]
    assert widths.tolist() == [90, 99, 108, 117, 126, 33, 50, 70, 0, 0, 0, 0, 0]
    assert extents.heights.tolist() == [80, 85, 90, 95, 100, 44, 60, 20, 0, 0, 0, 0, 0]
    assert extents.encodings.tolist() == [1] * 5 + [2, 1, 1] + [-1] * 5


def test_probing_agrees_with_what_packing_found(made_tree: Path, tmp_path: Path) -> None:
    pack_tree(made_tree / "val", tmp_path / "folder", "folder")
    dataset = ImageDataset(tmp_path / "folder")
    rows = [dataset.row(i) for i in range(len(dataset))]
    root = Path(str(dataset.manifest.root))
    if not root.is_absolute():
        root = tmp_path / "folder" / root
    extents = _native.Extents([root / str(r.path) for r in rows])
    job = _native.ProbeJob(extents)
    job.run()
    failed = {index for index, _, _, _ in job.failures()}
    assert len(failed) < len(rows) // 4
    for i, r in enumerate(rows):
        if i not in failed:
            assert (extents.widths[i], extents.heights[i]) == (r.width, r.height)
            assert ENCODINGS[extents.encodings[i]] == r.encoding


# --- sizes that are said of files ------------------------------------------------------------


def test_a_jpeg_of_another_size_than_was_said_fails(tmp_path: Path) -> None:
    paths = write(tmp_path)
    true = [(info.width, info.height) for info in map(jpeg_info, IMAGES)]
    said = np.array([true[0], (0, 0), true[2][::-1], true[3], (1, 1)], np.int32)
    out, failures = run(_native.Extents(paths, sizes=said))
    assert {index: code for index, (code, _) in failures.items()} == {
        2: "other_size",
        4: "other_size",
    }
    for index in (0, 1, 3):
        assert np.array_equal(out[index], EXPECTED[index])
    extents = _native.Extents(paths, sizes=said)
    assert extents.widths.tolist() == said[:, 0].tolist()
    assert extents.heights.tolist() == said[:, 1].tolist()
    probe = _native.ProbeJob(extents)
    probe.run()
    # Only what is not known is looked up.
    assert (extents.widths[1], extents.heights[1]) == true[1]
    assert extents.widths[4] == 1 and probe.failures() == []


@pytest.mark.parametrize(
    "sizes",
    [np.zeros((5, 2), np.int64), np.zeros((4, 2), np.int32), np.zeros((5, 3), np.int32)],
)
def test_sizes_of_the_wrong_shape(tmp_path: Path, sizes: Any) -> None:
    with pytest.raises(ValueError, match="sizes must be int32"):
        _native.Extents(write(tmp_path), sizes=sizes)

"""ExtentTable: the rows of an index of any container, damaged ones too."""

from __future__ import annotations

import gc
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from containers import exchanged, pack_tree
from fastdata.converters import Encoding
from test_extents import IMAGES, SIZE, row, run, table_of

from fastdata import ImageDataset, _native
from fastdata.decode import Engine, PendingBatch, decode_batch, seek_points
from fastdata.errors import CorruptionError
from fastdata.plan.draws import child, sample_keys
from fastdata.storage.checksum import crc32c
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.index import ExtentTable, Index
from fastdata.storage.packed import PackedSource
from fastdata.storage.records import ROWS_PER_BATCH, SCHEMA, rows_to_batch, write_index
from fastdata.transforms import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from fastdata.transforms.geometry import compiled, draw


def open_table(folder: Path) -> ExtentTable:
    return PackedSource(folder).table


def index_of(folder: Path, rows: list[Any] | pa.RecordBatch) -> Index:
    """An index, made and opened."""
    batch = rows_to_batch(rows) if isinstance(rows, list) else rows
    write_index(folder / "_index.rows", [batch], batch.num_rows)
    return Index(folder / "_index.rows", batch.num_rows)


@pytest.mark.parametrize("container", ["lmdb", "parquet", "shards", "folder"])
@pytest.mark.parametrize("tree", ["made", "real"])
def test_every_row_is_the_indexs(
    container: str, tree: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fixture = {"made": "made_tree", "real": "imagenet_sample"}[tree]
    folder = tmp_path / "dataset"
    pack_tree(request.getfixturevalue(fixture) / "train", folder, container)
    dataset = ImageDataset(folder)
    order = np.random.default_rng(0).permutation(len(dataset))[:300]
    extents = open_table(folder).gather(order)
    assert len(extents) == len(order)
    for i, number in enumerate(order.tolist()):
        expected = dataset.row(number)
        assert extents.labels[i] == expected.label
        assert (extents.widths[i], extents.heights[i]) == (expected.width, expected.height)
        assert ENCODINGS[extents.encodings[i]] == expected.encoding
        assert extents.seekable[i] == (expected.seek_points is not None)
        assert extents.read(i) == dataset.read([number])[0]
        assert os.path.samefile(extents.path(i), PackedSource(folder).file(expected, number))
    size = (32, 32)
    blobs = dataset.read(order[:40])
    tables = [dataset.row(i).seek_points for i in order[:40].tolist()]
    expected_pixels = decode_batch(blobs, size, seek_points=tables, fallback="always")
    pixels = decode_batch(open_table(folder).gather(order[:40]), size, fallback="always")
    assert np.array_equal(pixels, expected_pixels)


@pytest.mark.parametrize("container", ["lmdb", "folder"])
@pytest.mark.parametrize("threads", [0, 2])
def test_rows_that_threads_look_up_are_those_gathered(
    container: str, threads: int, made_tree: Path, tmp_path: Path
) -> None:
    """Their columns, crops of every view and pixels; also what another decoder decodes."""
    pack_tree(made_tree / "train", tmp_path / "dataset", container)
    table, count = open_table(tmp_path / "dataset"), len(PackedSource(tmp_path / "dataset"))
    rows = np.random.default_rng(0).integers(0, count, 40)
    numbers, occurrences = rows + 7, rows % 3
    views = [
        (RandomResizedCrop(SIZE[::-1]), RandomHorizontalFlip()),
        (RandomResizedCrop(SIZE[::-1], scale=(0.1, 0.3)),),
    ]
    extents = table.gather(rows)
    keys = [sample_keys(5, numbers, view, occurrences) for view in (0, 1)]
    cuts = [
        draw(steps, extents.widths, extents.heights, own)
        for steps, own in zip(views, keys, strict=True)
    ]
    expected = [decode_batch(extents, SIZE, cuts=cut, fallback="always") for cut in cuts]

    samples = table.rows(rows, numbers, occurrences, 0)
    out = np.zeros((2, *expected[0].shape), np.uint8)
    drawn = [(compiled(steps), child(5, view)) for view, steps in enumerate(views)]
    second = PendingBatch(samples, out[1], drawn=drawn[1])
    first = PendingBatch(samples, out[0], drawn=drawn[0], views=[second], fallback="always")
    if threads:
        with Engine(threads) as engine:
            engine.begin(first)
            assert not first.failures()
    else:
        first.run()
        assert not first.failures()
    for got, want, pending, cut in zip(out, expected, (first, second), cuts, strict=True):
        assert np.array_equal(got, want)
        assert pending.cuts.tobytes() == cut.tobytes()
    for name in ("labels", "widths", "heights", "encodings", "seekable", "lengths"):
        assert np.array_equal(getattr(samples.extents, name), getattr(extents, name))


def test_rows_that_the_core_cannot_crop_are_refused(made_tree: Path, tmp_path: Path) -> None:
    pack_tree(made_tree / "train", tmp_path / "dataset", "lmdb")
    table, count = open_table(tmp_path / "dataset"), len(PackedSource(tmp_path / "dataset"))
    jpegs = table.gather(np.arange(count)).encodings == ENCODINGS.index("jpeg")
    rows = np.flatnonzero(jpegs)[:3]

    def codes(*steps: Any, max_pixels: int = 0) -> set[str]:
        samples = table.rows(rows, rows, None, max_pixels)
        pending = PendingBatch(
            samples, np.empty((3, *SIZE[::-1], 3), np.uint8), drawn=(compiled(steps), 1)
        )
        pending.run()
        if isinstance(steps[0], RandomCrop):
            assert pending.cuts["too_small"].tolist() == [1, 1, 1]
        return {code for _, code, _, _ in pending.collect().failures}

    assert codes(RandomResizedCrop(SIZE[::-1])) == set()
    assert codes(RandomResizedCrop(SIZE[::-1]), max_pixels=1) == {"too_large"}
    assert codes(CenterCrop(10_000), Resize(SIZE[::-1])) == set()
    assert codes(RandomCrop(10_000)) == {"bad_region"}
    for wrong in ([-1], [count]):
        with pytest.raises(IndexError):
            table.rows(np.array(wrong), np.array([0]), None, 0)


def test_raw_pixels_of_a_container(made_tree: Path, tmp_path: Path) -> None:
    pack_tree(made_tree / "val", tmp_path / "raw", "lmdb", encoding=Encoding("raw", max_side=64))
    dataset = ImageDataset(tmp_path / "raw")
    pixels = decode_batch(open_table(tmp_path / "raw").gather(np.arange(len(dataset))), SIZE)
    for i, got in enumerate(pixels):
        assert np.array_equal(got, decode_batch([np.asarray(dataset[i][0])], SIZE)[0])


def test_many_rows(tmp_path: Path) -> None:
    count = 2 * ROWS_PER_BATCH + 100
    rows = [
        row(i, b"x", label=i, offset=i, width=i % 1000 + 1, height=i % 77 + 1) for i in range(count)
    ]
    file = tmp_path / "file"
    file.write_bytes(b"x" * count)
    table = index_of(tmp_path, rows).locate(_native.Files([file], [count]), None)
    for chosen in (
        np.array([count - 1, 0, ROWS_PER_BATCH, ROWS_PER_BATCH - 1, 0]),
        np.random.default_rng(0).integers(0, count, 500),
        np.arange(0),
    ):
        extents = table.gather(chosen)
        assert extents.labels.tolist() == chosen.tolist()
        assert extents.widths.tolist() == (chosen % 1000 + 1).tolist()
        assert extents.heights.tolist() == (chosen % 77 + 1).tolist()
    for bad in ([-1], [count], [0, 2**62]):
        with pytest.raises(IndexError, match="sample"):
            table.gather(np.array(bad))
    with pytest.raises(TypeError, match="int64"):
        table._table.gather(np.array([1.5]))


def test_threads_gather_at_once(tmp_path: Path) -> None:
    count = 6 * ROWS_PER_BATCH
    labels = pa.array(np.arange(count, dtype=np.int32))
    one = rows_to_batch([row(0, b"x")])
    columns = [
        labels if name == "label" else pa.concat_arrays([one.column(name)] * count)
        for name in SCHEMA.names
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    table = index_of(tmp_path, rows).locate(_native.Files(["file"], [1]), None)
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            chosen = rng.integers(0, count, 64)
            if table.gather(chosen).labels.tolist() != chosen.tolist():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_extents_outlive_the_table(tmp_path: Path) -> None:
    rows = [row(i, IMAGES[0]) for i in range(3)]
    (tmp_path / "file").write_bytes(IMAGES[0])
    extents = table_of(tmp_path, rows, [tmp_path / "file"]).gather(np.arange(3))
    gc.collect()
    assert run(extents)[1] == {}


# --- rows that make no sense -----------------------------------------------------------------


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


def test_paths_below_the_root(tmp_path: Path) -> None:
    names = ["a.jpg", "..a/b..", "c/...", "größe"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(IMAGES[0])
    rows = [row(i, IMAGES[0], file=-1, path=name) for i, name in enumerate(names)]
    extents = table_of(tmp_path, rows, [], tmp_path).gather(np.arange(4))
    assert run(extents)[1] == {}
    assert [extents.path(i) for i in range(4)] == [str(tmp_path / name) for name in names]


# --- damaged records -------------------------------------------------------------------------


def with_tables(folder: Path) -> tuple[ExtentTable, Path]:
    """Images with seek points in one file, and their index."""
    (folder / "file").write_bytes(b"".join(IMAGES))
    starts = np.cumsum([0, *map(len, IMAGES)]).tolist()
    rows = [
        row(i, blob, offset=starts[i], seek_points=seek_points(blob, 16))
        for i, blob in enumerate(IMAGES)
    ]
    index = index_of(folder, rows)
    return index.locate(_native.Files([folder / "file"], [starts[-1]]), None), index.path


def overwrite(path: Path, at: int, data: bytes) -> None:
    """In place, so that whoever has it open reads something else; its time stays."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_every_flipped_bit_of_a_row_is_told_where_it_is_used(tmp_path: Path) -> None:
    """Of all records and the heap: named, and no other row fails."""
    table, path = with_tables(tmp_path)
    right = decode_batch(table.gather(np.arange(5)), SIZE, fallback="never")
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
        if of_key:  # which nobody needs for decoding
            assert failures == {}
            with pytest.raises(CorruptionError, match=f"damaged at row {number}"):
                Index(path, 5)[number]
        else:
            assert failures.keys() == {number} and failures[number][0] == "corrupt_index"
            assert "damaged" in failures[number][1]
        others = [i for i in range(5) if of_key or i != number]
        assert np.array_equal(out[others], right[others])
        overwrite(path, at, data[at : at + 1])


@pytest.mark.parametrize("keep", [0, 64 + 64 * 3, 64 + 64 * 5 + 30])
def test_an_index_cut_off_while_it_is_used(tmp_path: Path, keep: int) -> None:
    """Between the gathering of a batch and its decoding, too; what is cut off is told."""
    table, path = with_tables(tmp_path)
    before = path.stat()
    gathered = table.gather(np.arange(5))
    os.truncate(path, keep)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    _, failures = run(gathered)
    assert failures and {code for code, _ in failures.values()} == {"corrupt_index"}
    assert all("seek points" in detail for _, detail in failures.values())
    with pytest.raises(CorruptionError, match="has changed since it was opened"):
        table.gather(np.arange(5))
    _, failures = run(table._table.gather(np.arange(5)))  # past the look at its size
    assert failures and {code for code, _ in failures.values()} == {"corrupt_index"}


def test_records_of_an_attacker(tmp_path: Path) -> None:
    """Sound by their checksums, whatever they say: nothing outside of the heap is read."""
    table, path = with_tables(tmp_path)
    data = bytearray(path.read_bytes())
    draw = random.Random(2)
    hostile = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
    for _ in range(300):
        record = bytearray(data[64:128])
        at = draw.choice([0, 8, 16, 24, 28, 32, 36, 48, 50, 52, 56])
        size = 8 if at < 24 else 2 if at in (48, 50) else 1 if at == 56 else 4
        record[at : at + size] = (draw.choice(hostile) % 256**size).to_bytes(size, "little")
        record[60:] = exchanged(crc32c(bytes(16) + record[:60])).to_bytes(4, "little")
        overwrite(path, 64, record)
        _, failures = run(table.gather(np.arange(5)))
        assert failures.keys() <= {0}
        try:
            Index(path, 5)[0]
            list(Index(path, 5).batches())
        except CorruptionError as error:
            assert "damaged" in error.what
    overwrite(path, 0, data)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((["a", "b"], 64, 5, 0, None), ValueError),
        ((["a"], 64, -1, 0, None), ValueError),
        ((["a"], -64, 5, 0, None), ValueError),
        ((["a"], 64, 2**60, 0, None), ValueError),
        ((["a"], 64, 5, -1, None), ValueError),
        ((0, 64, 5, 0, None), TypeError),
    ],
)
def test_the_native_records_arguments(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        index, *numbers, root = arguments
        _native.RecordTable(_native.Files(index), *numbers, _native.Files([]), root)
    with pytest.raises(ValueError, match="one entry a file"):
        _native.Files(["a"], [])
    with pytest.raises(IndexError):
        _native.Files(["a"]).size(1)


def test_records_are_sealed_and_split_within_their_buffers() -> None:
    records = np.zeros(64, np.uint8)
    records[48] = 5  # bytes of the key
    zero, none = np.zeros(1, np.int64), (b"", np.zeros(1, np.int64))
    for data, start in ((b"four", 0), (b"longer", 2), (b"longer", -1), (b"longer", 2**62)):
        with pytest.raises(ValueError, match="outside its buffer"):
            _native.seal_records(records, 0, 0, (data, zero + start), none, none)
    with pytest.raises(ValueError, match="one entry a record"):
        _native.seal_records(records, 0, 0, (b"12345", zero[:0]), none, none)
    with pytest.raises(ValueError, match="64 bytes"):
        _native.sound_records(bytes(63), 0)
    assert _native.seal_records(records, 3, 0, (b"12345", zero), none, none) == b"12345"
    assert _native.sound_records(records, 3) == 1
    assert _native.sound_records(records, 4) == 0
    assert _native.split_heap(records, b"12345", 3, True) == (1, b"12345", b"", b"")
    assert _native.split_heap(records, b"1234", 3, True)[0] == 0
    assert _native.split_heap(records, b"12346", 3, True)[0] == 0

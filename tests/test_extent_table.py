"""ExtentTable: the rows of an index, whatever the container, and however damaged it is."""

from __future__ import annotations

import gc
import mmap
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import version1
from containers import pack_tree
from fastdata.converters import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from test_extents import IMAGES, SIZE, row, run, table_of

from fastdata import ImageDataset, _native
from fastdata.decode import decode_batch, seek_points
from fastdata.errors import CorruptionError
from fastdata.storage.arrow_index import ArrowIndex
from fastdata.storage.blobs import Blobs
from fastdata.storage.checksum import crc32c
from fastdata.storage.extents import ExtentTable
from fastdata.storage.index import ROWS_PER_BATCH, SCHEMA, Index, rows_to_batch
from fastdata.storage.probe import ENCODINGS
from fastdata.storage.records import RecordIndex, write_index


def open_table(folder: Path) -> ExtentTable:
    blobs = Blobs(folder)
    manifest = blobs.manifest
    return ExtentTable(
        blobs.index,
        [folder / entry.name for entry in manifest.files],
        [entry.size for entry in manifest.files],
        None if manifest.root is None else folder / manifest.root,
    )


def index_of(folder: Path, rows: list[Any] | pa.RecordBatch, version: int) -> Index:
    """An index of either version, made and opened."""
    batch = rows_to_batch(rows) if isinstance(rows, list) else rows
    if version == 1:
        version1.write_index(folder / "index.arrow", [batch])
        return ArrowIndex(folder / "index.arrow", batch.num_rows)
    write_index(folder / "_index.rows", [batch], batch.num_rows)
    return RecordIndex(folder / "_index.rows", batch.num_rows)


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
        assert os.path.samefile(extents.path(i), Blobs(folder).file(expected, number))
    size = (32, 32)
    blobs = dataset.read(order[:40])
    tables = [dataset.row(i).seek_points for i in order[:40].tolist()]
    expected_pixels = decode_batch(blobs, size, seek_points=tables, fallback="always")
    pixels = decode_batch(open_table(folder).gather(order[:40]), size, fallback="always")
    assert np.array_equal(pixels, expected_pixels)


def test_raw_pixels_of_a_container(made_tree: Path, tmp_path: Path) -> None:
    pack_tree(made_tree / "val", tmp_path / "raw", "lmdb", encoding=Encoding("raw", max_side=64))
    dataset = ImageDataset(tmp_path / "raw")
    pixels = decode_batch(open_table(tmp_path / "raw").gather(np.arange(len(dataset))), SIZE)
    for i, got in enumerate(pixels):
        assert np.array_equal(got, decode_batch([np.asarray(dataset[i][0])], SIZE)[0])


@pytest.mark.parametrize("version", [1, 2])
def test_many_rows(tmp_path: Path, version: int) -> None:
    """Of version 1, in the first, a middle and the short last batch, each added once."""
    count = 2 * ROWS_PER_BATCH + 100
    rows = [
        row(i, b"x", label=i, offset=i, width=i % 1000 + 1, height=i % 77 + 1) for i in range(count)
    ]
    file = tmp_path / "file"
    file.write_bytes(b"x" * count)
    table = ExtentTable(index_of(tmp_path, rows, version), [file], [count], None)
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


@pytest.mark.parametrize("version", [1, 2])
def test_threads_gather_at_once(tmp_path: Path, version: int) -> None:
    """Of version 1, while record batches are added."""
    count = 6 * ROWS_PER_BATCH
    labels = pa.array(np.arange(count, dtype=np.int32))
    one = rows_to_batch([row(0, b"x")])
    columns = [
        labels if name == "label" else pa.concat_arrays([one.column(name)] * count)
        for name in SCHEMA.names
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    table = ExtentTable(index_of(tmp_path, rows, version), ["file"], [1], None)
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
        ({"file": 1}, "a file that there is not"),
        ({"file": -1}, "a file that there is not"),
        ({"file": -(2**31)}, "a file that there is not"),
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


def arguments(rows: int = 4, **changes: Any) -> dict[str, Any]:
    """A record batch for the native table, all of whose rows lie in file 0."""
    fixed = {"file": 4, "offset": 8, "length": 8, "width": 4, "height": 4, "crc32c": 4, "label": 4}
    columns: dict[str, Any] = {name: (0, bytes(rows * size)) for name, size in fixed.items()}
    columns["encoding"] = (0, bytes(rows))
    return {**columns, "encoding_codes": b"\1", "path": None, "seek_points": None, **changes}


def native(rows: int = 4, root: str | None = None) -> _native.ExtentTable:
    return _native.ExtentTable(["file"], [100], root, rows, 4)


@pytest.mark.parametrize(
    "change",
    [
        {name: (0, bytes(size * 4 - 1))}
        for name, size in [("file", 4), ("offset", 8), ("length", 8), ("label", 4), ("crc32c", 4)]
    ]
    + [
        {"encoding": (0, b"123")},
        {"file": (1, bytes(16))},
        {"file": (-1, bytes(1000))},
        {"file": (2**62, bytes(16))},
        {"path": (0, None, bytes(19), b"")},
        {"path": (1, None, bytes(20), b"")},
        {"path": (0, b"", bytes(20), b"")},
        {"seek_points": (5, b"\xff", bytes(40), b"")},
        {"seek_points": (-1, None, bytes(40), b"")},
        {"seek_points": (2**60, None, bytes(40), b"")},
    ],
)
def test_buffers_too_short(change: dict[str, Any]) -> None:
    table = native()
    with pytest.raises(ValueError, match=r"too short|out of range"):
        table.add(0, 4, **arguments(**change))
    assert table.missing(np.array([0])) == [0]
    table.add(0, 4, **arguments())
    assert table.missing(np.array([0, 3])) == []
    assert len(table.gather(np.array([0, 3]))) == 2


def test_the_native_tables_arguments() -> None:
    table = native(10)
    with pytest.raises(ValueError, match="2 rows, not 4"):
        table.add(0, 2, **arguments())
    with pytest.raises(IndexError):
        table.add(3, 4, **arguments())
    with pytest.raises(ValueError, match="batch 2 was not added"):
        table.gather(np.array([9]))
    assert table.missing(np.array([9, 0, 1, 9])) == [2, 0]
    with pytest.raises(IndexError):
        table.missing(np.array([10]))
    with pytest.raises(ValueError, match="file_sizes"):
        _native.ExtentTable(["a"], [], None, 1, 1)
    with pytest.raises(ValueError, match="batch_rows"):
        _native.ExtentTable(["a"], [1], None, 1, 0)
    with pytest.raises(ValueError, match="rows"):
        _native.ExtentTable(["a"], [1], None, -1, 1)


_OFFSET = st.one_of(st.integers(-3, 40), st.sampled_from([2**31 - 1, -(2**31), 2**30]))


@settings(max_examples=300)
@given(data=st.data())
def test_hostile_columns_never_lead_out_of_their_buffers(data: st.DataObject) -> None:
    """Values anywhere; each buffer ends with its pages, so that reads far behind it crash."""
    rows = 4

    def guarded(blob: bytes) -> memoryview:
        page = mmap.PAGESIZE
        size = -(-len(blob) // page) * page or page
        area = mmap.mmap(-1, size)
        area[size - len(blob) :] = blob
        return memoryview(area)[size - len(blob) :]

    def integers(name: str, dtype: str) -> tuple[int, memoryview]:
        info = np.iinfo(dtype)
        values = data.draw(
            st.lists(
                st.one_of(st.integers(0, 120), st.integers(int(info.min), int(info.max))),
                min_size=rows,
                max_size=rows,
            ),
            name,
        )
        return 0, guarded(np.array(values, dtype).tobytes())

    def variable(name: str) -> Any:
        offset = data.draw(st.integers(0, 9))
        offsets = data.draw(
            st.lists(_OFFSET, min_size=offset + rows + 1, max_size=offset + rows + 1), name
        )
        validity = data.draw(st.sampled_from([None, b"\xff\xff", b"\xaa\x55"]))
        blob = data.draw(st.sampled_from([None, b"", b"a/../b", b"/" * 30]))
        return (
            offset,
            None if validity is None else guarded(validity[: (offset + rows + 7) // 8]),
            guarded(np.array(offsets, np.int32).tobytes()),
            None if blob is None else guarded(blob),
        )

    table = native(root="/nowhere" if data.draw(st.booleans()) else None)
    dtypes = {
        "file": "i4", "offset": "i8", "length": "i8", "width": "i4", "height": "i4",
        "crc32c": "u4", "label": "i4", "encoding": "i1",
    }  # fmt: skip
    columns = {name: integers(name, dtype) for name, dtype in dtypes.items()}
    codes = data.draw(st.binary(max_size=140))
    table.add(0, rows, **columns, encoding_codes=codes, path=variable("path"),
              seek_points=variable("seek_points"))  # fmt: skip
    extents = table.gather(np.arange(rows))
    _, failures = run(extents)
    assert failures.keys() == set(range(rows))  # there is no such file at all
    allowed = {"corrupt_index", "file_missing", "file_unreadable", "not_jpeg"}
    assert {code for code, _ in failures.values()} <= allowed
    for i in range(rows):
        assert isinstance(extents.path(i), str)


def edited(tmp_path: Path, rows: list[Any], find: bytes, replace: bytes) -> Path:
    """An index of version 1 whose file was edited after it was written."""
    version1.write_index(tmp_path / "index.arrow", [rows_to_batch(rows)])
    data = (tmp_path / "index.arrow").read_bytes()
    assert data.count(find) == 1
    (tmp_path / "index.arrow").write_bytes(data.replace(find, replace))
    return tmp_path / "index.arrow"


def test_hostile_offsets_in_an_index_file(tmp_path: Path) -> None:
    """Offsets of the seek points that lead out of the file: O(1) validation sees none of it."""
    tables = [b"abc" * 11, b"d" * 7, b"e" * 13, b"f" * 5, b"g"]
    rows = [row(i, b"x", seek_points=t, width=1, height=1) for i, t in enumerate(tables)]
    offsets = np.cumsum([0, *map(len, tables)]).astype(np.int32)
    hostile = offsets.copy()
    hostile[2:4] = [2**31 - 1, -(2**31)]
    (tmp_path / "file").write_bytes(b"x")
    # Index reads its first and last batch in full, so the damage is made after it is opened.
    index_path = tmp_path / "index.arrow"
    version1.write_index(index_path, [rows_to_batch(rows)])
    index = ArrowIndex(index_path, len(rows))
    before = index_path.stat()
    edited(tmp_path, rows, offsets.tobytes(), hostile.tobytes())
    os.utime(index_path, ns=(before.st_atime_ns, before.st_mtime_ns))  # else it would be noticed
    extents = ExtentTable(index, [tmp_path / "file"], [1], None).gather(np.arange(5))
    codes = {i: code for i, (code, _) in run(extents)[1].items()}
    assert codes == {
        0: "not_jpeg",
        1: "corrupt_index",
        2: "corrupt_index",
        3: "corrupt_index",
        4: "not_jpeg",
    }


def test_an_index_of_another_tool(tmp_path: Path) -> None:
    """Another order of encodings, unknown ones, sliced and unaligned arrays, other batches."""
    blobs = [IMAGES[0], IMAGES[1], IMAGES[2]]
    (tmp_path / "file").write_bytes(b"".join(blobs))
    starts = np.cumsum([0, *map(len, blobs)]).tolist()
    rows = [row(i, blob, offset=starts[i]) for i, blob in enumerate(blobs)]
    batch = rows_to_batch([row(9, b"?")] * 5 + rows).slice(5)
    column = batch.schema.get_field_index("encoding")
    dictionary = pa.array(["png", "no such", "jpeg", None])
    codes = pa.array([2, 1, 2], pa.int8())
    batch = batch.set_column(
        column, SCHEMA.field("encoding"), pa.DictionaryArray.from_arrays(codes, dictionary)
    )
    with (
        pa.OSFile(str(tmp_path / "index.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, SCHEMA) as writer,
    ):
        writer.write_batch(batch)
    index = ArrowIndex(tmp_path / "index.arrow", 3)
    table = ExtentTable(index, [tmp_path / "file"], [starts[-1]], None)
    extents = table.gather(np.arange(3))
    assert extents.encodings.tolist() == [1, -1, 1]
    assert {i: code for i, (code, _) in run(extents)[1].items()} == {1: "corrupt_index"}
    assert extents.read(2) == blobs[2]


def test_a_record_batch_of_another_size(tmp_path: Path) -> None:
    with (
        pa.OSFile(str(tmp_path / "index.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, SCHEMA) as writer,
    ):
        for count in (4, 3, 5):
            writer.write_batch(rows_to_batch([row(i, b"x") for i in range(count)]))
    index = ArrowIndex(tmp_path / "index.arrow", 13)
    table = ExtentTable(index, [], [], None)
    with pytest.raises(CorruptionError, match="record batch 1: the record batch has 3 rows"):
        table.gather(np.array([5]))


# --- records ---------------------------------------------------------------------------------


def with_tables(folder: Path) -> tuple[ExtentTable, Path]:
    """Images with seek points in one file, and their index."""
    (folder / "file").write_bytes(b"".join(IMAGES))
    starts = np.cumsum([0, *map(len, IMAGES)]).tolist()
    rows = [
        row(i, blob, offset=starts[i], seek_points=seek_points(blob, 16))
        for i, blob in enumerate(IMAGES)
    ]
    index = index_of(folder, rows, 2)
    return ExtentTable(index, [folder / "file"], [starts[-1]], None), index.path


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
    used = np.cumsum([0, *(len(r.key) + len(r.seek_points) + 4 for r in RecordIndex(path, 5))])
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
                RecordIndex(path, 5)[number]
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
        record[60:] = crc32c(bytes(8) + record[:60]).to_bytes(4, "little")
        overwrite(path, 64, record)
        _, failures = run(table.gather(np.arange(5)))
        assert failures.keys() <= {0}
        try:
            RecordIndex(path, 5)[0]
            list(RecordIndex(path, 5).batches())
        except CorruptionError as error:
            assert "damaged" in error.what
    overwrite(path, 0, data)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1, 64, 5, 0, [], [], None), OSError),
        ((0, 64, -1, 0, [], [], None), ValueError),
        ((0, -64, 5, 0, [], [], None), ValueError),
        ((0, 64, 2**60, 0, [], [], None), ValueError),
        ((0, 64, 5, -1, [], [], None), ValueError),
        ((0, 64, 5, 0, ["a"], [], None), ValueError),
    ],
)
def test_the_native_records_arguments(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        _native.RecordTable(*arguments)


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

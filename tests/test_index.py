"""The index: constant-time opening, rows where they belong, damage noticed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from containers import exchanged
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.errors import CorruptionError, DatasetError
from fastdata.storage.checksum import crc32c
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.index import Index
from fastdata.storage.manifest import FileEntry, Manifest
from fastdata.storage.records import (
    NO_GENERATION,
    RECORDS_AT,
    ROWS_PER_BATCH,
    SCHEMA,
    Row,
    rows_to_batch,
    write_index,
)

#: As many as ImageNet has, roughly; not a multiple of anything.
LARGE = 1_281_167


def row(number: int) -> Row:
    """A row that is like no other, and can be told from its number alone."""
    return Row(
        key=f"n{number % 1000:08d}/n{number % 1000:08d}_{number}",
        label=number % 1000,
        file=number // 2000,
        path=None if number % 3 else f"{number}.jpg",
        offset=110_000 * number,
        length=100_000 + number,
        width=500 + number % 7,
        height=375 + number % 5,
        channels=(1, 3, 4)[number % 3],
        encoding=ENCODINGS[number % len(ENCODINGS)],
        crc32c=(2_654_435_761 * number) % (1 << 32),
        seek_points=None if number % 4 else number.to_bytes(8, "little"),
        orientation=1 + number % 8,
    )


def batch(start: int, stop: int) -> pa.RecordBatch:
    return rows_to_batch([row(number) for number in range(start, stop)])


def written(path: Path, *sizes: int) -> Path:
    """An index of batches of some sizes."""
    ends = np.cumsum(sizes).tolist()
    batches = (batch(end - size, end) for end, size in zip(ends, sizes, strict=True))
    write_index(path, batches, sum(sizes))
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset folder with an index of 1.28 million rows, and a manifest."""
    folder = tmp_path_factory.mktemp("large")

    def batches() -> Iterator[pa.RecordBatch]:
        step = 40_000  # not the size of a batch in the file
        for start in range(0, LARGE, step):
            yield fast_batch(start, min(start + step, LARGE))

    write_index(folder / "_index.rows", batches(), LARGE)
    size = (folder / "_index.rows").stat().st_size
    manifest = Manifest(
        container="lmdb",
        samples=LARGE,
        skipped=0,
        classes=[f"n{label:08d}" for label in range(1000)],
        blob_bytes=LARGE * 110_000,
        index=FileEntry("_index.rows", size, "00000000"),
        files=[FileEntry("data.mdb", LARGE * 110_000, "00000000")],
        options={},
        source={},
        tool="0",
        generation=NO_GENERATION,
    )
    (folder / "_dataset.json").write_text(manifest.to_json(), "utf-8")
    return folder


def fast_batch(start: int, stop: int) -> pa.RecordBatch:
    """Rows that follow from their numbers, by NumPy: a million in a second."""
    numbers = np.arange(start, stop)
    columns = {
        "key": [f"n{number % 1000:08d}/{number}" for number in range(start, stop)],
        "label": numbers % 1000,
        "file": np.zeros_like(numbers),
        "path": pa.nulls(stop - start, pa.string()),
        "offset": numbers * 110_000,
        "length": 100_000 + numbers % 9_999,
        "width": 500 + numbers % 7,
        "height": 375 + numbers % 5,
        "channels": np.full_like(numbers, 3),
        "crc32c": (2_654_435_761 * numbers) % (1 << 32),
        "seek_points": pa.nulls(stop - start, pa.binary()),
        "orientation": np.ones_like(numbers),
    }
    jpegs = pa.array(np.ones(stop - start), pa.int8())
    encoding = pa.DictionaryArray.from_arrays(jpegs, pa.array(ENCODINGS, pa.string()))
    arrays = [
        encoding if field.name == "encoding" else pa.array(columns[field.name], field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


_MEASURE = """
import json, sys, time
import psutil
from fastdata import ImageDataset

process = psutil.Process()
before = process.memory_full_info()
dataset = ImageDataset(sys.argv[1])
after = process.memory_full_info()
grown = {name: getattr(after, name) - getattr(before, name) for name in ("uss", "rss")}
print(json.dumps({"rows": len(dataset), **grown}))
"""


def test_opening_a_large_dataset_takes_no_time_and_no_memory(large: Path) -> None:
    pytest.importorskip("psutil")
    runs: list[dict[str, Any]] = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, str(large)], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(done.stdout))
    assert {run["rows"] for run in runs} == {LARGE}
    assert min(run["rss"] for run in runs) < 20e6
    assert max(run["uss"] for run in runs) < 50e6


def test_rows_of_a_large_index(large: Path) -> None:
    index = Index(large / "_index.rows", LARGE)
    places = random.Random(1).sample(range(LARGE), 500)
    places += [0, LARGE - 1, ROWS_PER_BATCH - 1, ROWS_PER_BATCH, LARGE // ROWS_PER_BATCH]
    for place in places:
        found = index[place]
        assert found.key == f"n{place % 1000:08d}/{place}"
        assert found.offset == place * 110_000
        assert found.crc32c == (2_654_435_761 * place) % (1 << 32)
    assert index[-1] == index[LARGE - 1]
    labels = index.column("label")
    assert labels.shape == (LARGE,)
    assert np.array_equal(labels, np.arange(LARGE) % 1000)


def test_opening_does_not_depend_on_the_number_of_rows(tmp_path: Path) -> None:
    """The last row of 100 million, in a file that has nothing else but its header."""
    rows = 100_000_000
    write_index(tmp_path / "index", [rows_to_batch([row(1)])], 1)  # one without seek points
    data = (tmp_path / "index").read_bytes()
    record, heap = data[RECORDS_AT : RECORDS_AT + 60], data[RECORDS_AT + 64 :]
    header = data[:16] + rows.to_bytes(8, "little") + data[24:60]
    with (tmp_path / "index").open("wb") as file:
        file.write(header + crc32c(header).to_bytes(4, "little"))
        file.seek(RECORDS_AT + 64 * (rows - 1))
        number = (rows - 1).to_bytes(8, "little")
        crc = exchanged(crc32c(header[32:40] + number + record))
        file.write(record + crc.to_bytes(4, "little") + heap)
    index = Index(tmp_path / "index", rows)
    assert index[-1] == row(1)
    with pytest.raises(CorruptionError, match="damaged at row 50000000"):
        index[rows // 2]


def test_every_field_survives(tmp_path: Path) -> None:
    index = Index(written(tmp_path / "index", 100, 1), 101)
    assert list(index) == [row(number) for number in range(101)]
    assert index[-101] == row(0)
    assert index[10:20:3] == [row(number) for number in range(10, 20, 3)]
    assert index[np.int64(7)] == row(7)


@pytest.mark.parametrize("place", [3, -4, 1 << 40])
def test_there_is_no_row_beyond_the_end(tmp_path: Path, place: int) -> None:
    index = Index(written(tmp_path / "index", 3), 3)
    with pytest.raises(IndexError, match=f"sample {place} of a dataset of 3"):
        index[place]


@pytest.mark.parametrize("place", [1.0, "1", None, b"1"])
def test_only_whole_numbers_are_places(tmp_path: Path, place: Any) -> None:
    index = Index(written(tmp_path / "index", 3), 3)
    with pytest.raises(TypeError):
        index[place]


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    bounds=st.tuples(st.integers(0, 180), st.integers(0, 180)),
)
def test_batches_of_any_size_give_the_same_rows(
    sizes: list[int],
    bounds: tuple[int, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("index")
    total = sum(sizes)
    written(folder / "index", *sizes)
    index = Index(folder / "index", total)
    assert len(index) == total
    assert list(index) == [row(number) for number in range(total)]
    start, stop = sorted(min(bound, total) for bound in bounds)
    keys = [key for piece in index.batches(start, stop) for key in piece["key"].to_pylist()]
    assert keys == [row(number).key for number in range(start, stop)]
    assert index.column("offset").tolist() == [row(number).offset for number in range(total)]


def test_the_wrong_number_of_rows(tmp_path: Path) -> None:
    written(tmp_path / "index", 30)
    with pytest.raises(CorruptionError, match="holds 30 rows, but the manifest says 31"):
        Index(tmp_path / "index", 31)


def test_a_missing_index(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match="cannot be read") as caught:
        Index(tmp_path / "index", 3)
    assert caught.value.hint


@pytest.mark.parametrize("data", [b"", b"x", b"FDROWS3\n", b"ARROW1" * 100, bytes(5000)])
def test_garbage_is_no_index(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "index").write_bytes(data)
    with pytest.raises(CorruptionError, match=r"index: the index (ends early|cannot be read)"):
        Index(tmp_path / "index", 3)


def test_an_index_cut_short(tmp_path: Path) -> None:
    data = written(tmp_path / "index", 30).read_bytes()
    for keep in range(0, len(data), 97):
        (tmp_path / "cut").write_bytes(data[:keep])
        with pytest.raises(CorruptionError):
            Index(tmp_path / "cut", 30)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """By readers of single rows and by passes over all of them."""
    data = bytearray(written(tmp_path / "index", 5).read_bytes())
    copy = tmp_path / "damaged"

    def read() -> None:
        index = Index(copy, 5)
        for at in range(5):
            index[at]

    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        copy.write_bytes(data)
        with pytest.raises(CorruptionError, match="damaged: the index"):
            list(Index(copy, 5).rows(0, 5))
        with pytest.raises(CorruptionError, match="damaged: the index"):
            read()
        data[bit // 8] ^= 1 << bit % 8


def test_a_row_has_a_name_only_where_it_belongs(tmp_path: Path) -> None:
    """Two sound records that are exchanged, of rows whose parts of the heap are of one size."""
    data = bytearray(written(tmp_path / "index", 9).read_bytes())
    one, other = (slice(RECORDS_AT + 64 * at, RECORDS_AT + 64 * at + 64) for at in (1, 2))
    data[one], data[other] = data[other], data[one]
    (tmp_path / "index").write_bytes(data)
    index = Index(tmp_path / "index", 9)
    for at in (1, 2):
        with pytest.raises(CorruptionError, match=f"damaged at row {at}"):
            index[at]
    assert index[0] == row(0)
    with pytest.raises(CorruptionError, match="damaged at row 1"):
        list(index.batches(columns=("label",)))


def test_damaged_seek_points_are_no_bar_to_the_rest(tmp_path: Path) -> None:
    """`fastdata seek-points` can then rebuild them."""
    data = written(tmp_path / "index", 9).read_bytes()
    assert data.count((4).to_bytes(8, "little")) == 1
    at = data.index((4).to_bytes(8, "little"))
    (tmp_path / "index").write_bytes(data[:at] + b"\5" + data[at + 1 :])
    index = Index(tmp_path / "index", 9)
    with pytest.raises(CorruptionError, match="damaged at row 4"):
        list(index.rows(0, 9))
    bare = [row(at)._replace(seek_points=None) for at in range(9)]
    assert list(index.rows(0, 9, seek_points=False)) == bare


def test_an_index_that_was_written_to_since_it_was_opened(tmp_path: Path) -> None:
    path = written(tmp_path / "index", 9)
    index = Index(path, 9)
    assert index[3] == row(3)
    path.write_bytes(path.read_bytes()[:400])
    for read in (lambda: index[3], lambda: list(index.batches())):
        with pytest.raises(CorruptionError, match="has changed since it was opened"):
            read()


@pytest.mark.parametrize("rows", [4, 6])
def test_another_number_of_rows_is_not_written(tmp_path: Path, rows: int) -> None:
    with pytest.raises(ValueError, match=f"{rows}"):
        write_index(tmp_path / "index", [batch(0, 5)], rows)


@pytest.mark.parametrize("name", ["key", "path"])
def test_names_have_at_most_so_many_bytes(tmp_path: Path, name: str) -> None:
    rows = [row(0)._replace(**{name: "ä" * 32_767}), row(1)]
    write_index(tmp_path / "index", [rows_to_batch(rows)], 2)
    assert list(Index(tmp_path / "index", 2)) == rows
    rows[1] = rows[1]._replace(**{name: "ä" * 32_768})
    with pytest.raises(DatasetError, match=f"a {name} has 65,536 bytes"):
        write_index(tmp_path / "index", [rows_to_batch(rows)], 2)


def test_encodings_that_are_not_known_are_other(tmp_path: Path) -> None:
    """From a dictionary in any order, and from a record of a later fastdata."""
    rows = batch(0, 3)
    column = rows.schema.get_field_index("encoding")
    names = pa.array(["jpeg-xl", "png", "raw"])
    encodings = pa.DictionaryArray.from_arrays(pa.array([2, 0, 1], pa.int8()), names)
    rows = rows.set_column(column, SCHEMA.field(column), encodings)
    write_index(tmp_path / "index", [rows], 3)
    found = [row.encoding for row in Index(tmp_path / "index", 3)]
    assert found == ["raw", "other", "png"]


_READ_AS_NOBODY = """
import os, sys
from pathlib import Path
from fastdata.errors import CorruptionError, DatasetError
from fastdata.storage.index import Index
path = Path(sys.argv[1])
path.chmod(0)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    Index(path, 3)
except DatasetError as error:
    print(isinstance(error, CorruptionError), error.what, error.hint, sep="|")
"""


def test_an_unreadable_index_is_not_a_damaged_one(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # other users do not reach tmp_path
        Path(name).chmod(0o755)
        path = written(Path(name).resolve() / "index", 3)
        done = subprocess.run(
            [sys.executable, "-c", _READ_AS_NOBODY, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.strip() == (
        f"False|{path}: the index cannot be read: Permission denied|"
        f"Let it be read: chmod a+r {path}"
    )


@pytest.mark.parametrize("columns", [("offset",), ("label", "encoding"), ("key", "seek_points")])
def test_batches_of_some_columns(tmp_path: Path, columns: tuple[str, ...]) -> None:
    index = Index(written(tmp_path / "index", 40_000), 40_000)
    start = 100
    for piece in index.batches(100, 39_000, columns):
        assert tuple(piece.schema.names) == columns
        for at in (0, piece.num_rows - 1):
            found = [piece.column(name)[at].as_py() for name in columns]
            assert found == [getattr(row(start + at), name) for name in columns]
        start += piece.num_rows
    assert start == 39_000


def test_rows_in_order(tmp_path: Path) -> None:
    index = Index(written(tmp_path / "index", 20_000), 20_000)
    found = index.rows(ROWS_PER_BATCH - 3, ROWS_PER_BATCH + 4)
    assert list(found) == [row(at) for at in range(ROWS_PER_BATCH - 3, ROWS_PER_BATCH + 4)]
    assert list(index.rows(7, 7)) == []

"""The index: constant-time opening, rows where they belong, damage noticed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from containers import as_nobody, edit_manifest, exchanged, load_manifest, pack_tree
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import make_tree
from tiers import slow

from fastdata._native import crc32c
from fastdata.errors import CorruptionError, DatasetError
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.index import Index
from fastdata.storage.records import (
    RECORDS_AT,
    ROWS_PER_BATCH,
    SCHEMA,
    Row,
    rows_to_batch,
    write_index,
)


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
    ends = np.cumsum(sizes).tolist()
    batches = (batch(end - size, end) for end, size in zip(ends, sizes, strict=True))
    write_index(path, batches, sum(sizes))
    return path


def in_one_file(number: int) -> Row:
    return row(number)._replace(file=0)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 1.6 million rows: 100 times the same ones."""
    folder, count = tmp_path_factory.mktemp("large"), 100 * ROWS_PER_BATCH
    pack_tree(make_tree(folder / "tree", ["a/0.jpg"]), folder / "out", "lmdb")
    generation = load_manifest(folder / "out")["generation"]
    index = folder / "out" / "_index.rows"
    rows = rows_to_batch([in_one_file(number) for number in range(ROWS_PER_BATCH)])
    write_index(index, [rows] * 100, count, generation)
    size, blobs = index.stat().st_size, ROWS_PER_BATCH * 120_000
    assert size > 100e6
    os.truncate(folder / "out" / "data.mdb", blobs)

    def change(fields: dict[str, Any]) -> None:
        fields["index"]["size"], fields["files"][0]["size"] = size, blobs
        fields.update(samples=count, classes=[str(label) for label in range(1000)])

    edit_manifest(folder / "out", change)
    return folder / "out"


_MEASURE = """
import sys
from fastdata import ImageDataset, verify
from fastdata.cli.info import describe

def peak():  # ru_maxrss would have that of the parent, too
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))

folder, use = sys.argv[1:]
before = peak()
dataset = ImageDataset(folder)
if use == "verify":
    verify(folder, fast=True)
elif use == "info":
    describe(dataset.source, None)
print(peak() - before)
"""


@pytest.mark.parametrize(
    ("use", "most"), [("open", 20e6), slow("verify", 60e6), slow("info", 60e6)]
)
def test_a_large_index_takes_little_memory(large: Path, use: str, most: float) -> None:
    command = [sys.executable, "-c", _MEASURE, str(large), use]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < most


def test_rows_of_a_large_index(large: Path) -> None:
    count = 100 * ROWS_PER_BATCH
    index = Index(large / "_index.rows", count, load_manifest(large)["generation"])
    for place in (*random.Random(1).sample(range(count), 200), 0, count - 1, ROWS_PER_BATCH - 1):
        assert index[place] == in_one_file(place % ROWS_PER_BATCH)
    assert np.array_equal(index.column("label"), np.arange(count) % ROWS_PER_BATCH % 1000)
    start = ROWS_PER_BATCH - 3
    for piece in index.batches(start, 3 * ROWS_PER_BATCH, ("label", "encoding", "key")):
        assert piece.schema.names == ["label", "encoding", "key"]
        for at in (0, piece.num_rows - 1):
            expected = row((start + at) % ROWS_PER_BATCH)
            found = [piece.column(name)[at].as_py() for name in piece.schema.names]
            assert found == [expected.label, expected.encoding, expected.key]
        start += piece.num_rows
    assert start == 3 * ROWS_PER_BATCH


def test_opening_does_not_depend_on_the_number_of_rows(tmp_path: Path) -> None:
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
    for place in (101, -102, 1 << 40):
        with pytest.raises(IndexError, match=f"sample {place} of a dataset of 101"):
            index[place]
    for wrong in (1.0, "1", None):
        with pytest.raises(TypeError):
            index[wrong]  # type: ignore[call-overload]


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


def test_what_is_no_index(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with pytest.raises(CorruptionError, match="cannot be read"):
        Index(path, 30)
    data = written(path, 30).read_bytes()
    with pytest.raises(CorruptionError, match="holds 30 rows, but the manifest says 31"):
        Index(path, 31)
    cut = [data[:keep] for keep in range(0, len(data), 97)]
    for wrong in (*cut, b"x", b"FDROWS3\n", b"ARROW1" * 100, bytes(5000)):
        path.write_bytes(wrong)
        with pytest.raises(CorruptionError, match="index: the index"):
            Index(path, 30)


def test_an_unreadable_index_is_not_a_damaged_one(tmp_path: Path) -> None:
    path = written(tmp_path / "index", 3)
    path.chmod(0)
    with as_nobody(), pytest.raises(DatasetError, match="Permission denied") as caught:
        Index(path, 3)
    assert not isinstance(caught.value, CorruptionError) and str(path) in caught.value.what


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    data = bytearray(written(tmp_path / "index", 3).read_bytes())
    copy = tmp_path / "damaged"
    reads = lambda: list(Index(copy, 3).rows(0, 3)), lambda: list(Index(copy, 3))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        copy.write_bytes(data)
        for read in reads:
            with pytest.raises(CorruptionError, match="damaged: the index"):
                read()
        data[bit // 8] ^= 1 << bit % 8


def test_damaged_seek_points_are_no_bar_to_the_rest(tmp_path: Path) -> None:
    data = written(tmp_path / "index", 9).read_bytes()
    assert data.count((4).to_bytes(8, "little")) == 1
    at = data.index((4).to_bytes(8, "little"))
    (tmp_path / "index").write_bytes(data[:at] + b"\5" + data[at + 1 :])
    index = Index(tmp_path / "index", 9)
    with pytest.raises(CorruptionError, match="damaged at row 4"):
        list(index.rows(0, 9))
    bare = [row(at)._replace(seek_points=None) for at in range(9)]
    assert list(index.rows(0, 9, seek_points=False)) == bare


@pytest.mark.parametrize("name", ["key", "path"])
def test_names_have_at_most_so_many_bytes(tmp_path: Path, name: str) -> None:
    rows = [row(0)._replace(**{name: "ä" * 32_767}), row(1)]
    write_index(tmp_path / "index", [rows_to_batch(rows)], 2)
    assert list(Index(tmp_path / "index", 2)) == rows
    rows[1] = rows[1]._replace(**{name: "ä" * 32_768})
    with pytest.raises(DatasetError, match=f"a {name} has 65,536 bytes"):
        write_index(tmp_path / "index", [rows_to_batch(rows)], 2)


def test_encodings_that_are_not_known_are_other(tmp_path: Path) -> None:
    rows = batch(0, 3)
    column = rows.schema.get_field_index("encoding")
    names = pa.array(["jpeg-xl", "png", "raw"])
    encodings = pa.DictionaryArray.from_arrays(pa.array([2, 0, 1], pa.int8()), names)
    rows = rows.set_column(column, SCHEMA.field(column), encodings)
    write_index(tmp_path / "index", [rows], 3)
    found = [row.encoding for row in Index(tmp_path / "index", 3)]
    assert found == ["raw", "other", "png"]

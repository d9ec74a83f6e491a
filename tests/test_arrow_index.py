"""The index of version 1, an Arrow file: rows where they belong, its structure checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from version1 import write_index

from fastdata.errors import CorruptionError
from fastdata.storage.arrow_index import ArrowIndex as Index
from fastdata.storage.index import ROWS_PER_BATCH, SCHEMA, Row, rows_to_batch
from fastdata.storage.probe import ENCODINGS


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
    )


def batch(start: int, stop: int) -> pa.RecordBatch:
    return rows_to_batch([row(number) for number in range(start, stop)])


def written(path: Path, *sizes: int, rows_per_batch: int = ROWS_PER_BATCH) -> Path:
    """An index of batches of some sizes."""
    ends = np.cumsum(sizes).tolist()
    batches = (batch(end - size, end) for end, size in zip(ends, sizes, strict=True))
    write_index(path, batches, rows_per_batch=rows_per_batch)
    return path


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
    rows_per_batch=st.integers(1, 25),
    bounds=st.tuples(st.integers(0, 180), st.integers(0, 180)),
)
def test_batches_of_any_size_give_the_same_rows(
    sizes: list[int],
    rows_per_batch: int,
    bounds: tuple[int, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("index")
    total = sum(sizes)
    written(folder / "index", *sizes, rows_per_batch=rows_per_batch)
    index = Index(folder / "index", total)
    assert len(index) == total
    assert list(index) == [row(number) for number in range(total)]
    start, stop = sorted(min(bound, total) for bound in bounds)
    keys = [key for piece in index.batches(start, stop) for key in piece["key"].to_pylist()]
    assert keys == [row(number).key for number in range(start, stop)]
    assert index.column("offset").tolist() == [row(number).offset for number in range(total)]


def test_full_batches_but_the_last(tmp_path: Path) -> None:
    written(tmp_path / "index", 20_000, 20_000)
    with pa.memory_map(str(tmp_path / "index")) as source:
        reader = pa.ipc.open_file(source)
        assert [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)] == [
            ROWS_PER_BATCH,
            ROWS_PER_BATCH,
            40_000 - 2 * ROWS_PER_BATCH,
        ]


def test_the_wrong_number_of_rows(tmp_path: Path) -> None:
    written(tmp_path / "index", 30)
    with pytest.raises(CorruptionError, match="holds 30 rows, but the manifest says 31"):
        Index(tmp_path / "index", 31)


def test_a_missing_index(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match="cannot be read") as caught:
        Index(tmp_path / "index", 3)
    assert caught.value.hint


@pytest.mark.parametrize("data", [b"", b"x", b"ARROW1\0\0", b"ARROW1" * 100, bytes(5000)])
def test_garbage_is_no_index(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "index").write_bytes(data)
    with pytest.raises(CorruptionError, match=r"index: the index cannot be read"):
        Index(tmp_path / "index", 3)


def test_an_index_cut_short(tmp_path: Path) -> None:
    data = written(tmp_path / "index", 30).read_bytes()
    for keep in range(0, len(data), 97):
        (tmp_path / "cut").write_bytes(data[:keep])
        with pytest.raises(CorruptionError):
            Index(tmp_path / "cut", 30)


def rewrite(path: Path, *batches: pa.RecordBatch) -> Path:
    """Writes an index past `write_index`, with whatever batches and columns."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batches[0].schema) as writer:
        for piece in batches:
            writer.write_batch(piece)
    return path


@pytest.mark.parametrize("name", SCHEMA.names)
def test_a_missing_column(tmp_path: Path, name: str) -> None:
    rewrite(tmp_path / "index", batch(0, 3).drop_columns([name]))
    with pytest.raises(CorruptionError, match=f"lacks the column.s. {name}"):
        Index(tmp_path / "index", 3)


def test_a_column_of_another_type(tmp_path: Path) -> None:
    rows = batch(0, 3)
    at = SCHEMA.get_field_index("offset")
    rows = rows.set_column(at, "offset", rows.column("offset").cast(pa.int32()))
    rewrite(tmp_path / "index", rows)
    with pytest.raises(CorruptionError, match="column offset is int32, not int64"):
        Index(tmp_path / "index", 3)


def test_more_columns_do_no_harm(tmp_path: Path) -> None:
    rows = batch(0, 3)
    rewrite(tmp_path / "index", rows.append_column("extra", rows.column("label")))
    assert list(Index(tmp_path / "index", 3)) == [row(number) for number in range(3)]


@pytest.mark.parametrize("sizes", [(10, 5, 10), (10, 12, 10), (0, 10), (10, 0, 10)])
@pytest.mark.parametrize("rows", [10, 20, 25, 30, 32])
def test_batches_of_unequal_sizes_are_refused(
    tmp_path: Path, sizes: tuple[int, ...], rows: int
) -> None:
    ends = np.cumsum(sizes).tolist()
    rewrite(
        tmp_path / "index",
        *(batch(end - size, end) for end, size in zip(ends, sizes, strict=True)),
    )

    def read_all() -> None:
        index = Index(tmp_path / "index", rows)
        for _ in index.batches():
            pass

    with pytest.raises(CorruptionError):
        read_all()


_READ_DAMAGED = """
import random, sys
from pathlib import Path
from fastdata.errors import CorruptionError
from fastdata.storage.arrow_index import ArrowIndex as Index

path, rows = Path(sys.argv[1]), int(sys.argv[2])
data = path.read_bytes()
draw = random.Random(5)
refused = 0
for _ in range(400):
    damaged = bytearray(data)
    for _ in range(draw.choice((1, 1, 3, 50))):
        damaged[draw.randrange(len(data))] = draw.randrange(256)
    copy = path.with_name("damaged")
    copy.write_bytes(damaged)
    try:
        list(Index(copy, rows))
    except CorruptionError:
        refused += 1
    copy.unlink()
print(refused)
"""


def test_damage_is_an_error_and_never_a_crash(tmp_path: Path) -> None:
    written(tmp_path / "index", 200)
    done = subprocess.run(
        [sys.executable, "-c", _READ_DAMAGED, str(tmp_path / "index"), "200"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 20


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


def test_an_empty_first_batch_is_refused(tmp_path: Path) -> None:
    rewrite(tmp_path / "index", batch(0, 0), batch(0, 10))
    with pytest.raises(CorruptionError, match="another size"):
        list(Index(tmp_path / "index", 11).batches())

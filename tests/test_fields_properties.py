"""Columns of any type, cut and read in any way, give back the values that went in."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.storage.arrow import as_arrow
from fastdata.storage.columns import ColumnReader, as_column, join_columns, write_column
from fastdata.storage.fields import Field, StoredField
from fastdata.storage.formats import NewSample, open_writer
from fastdata.storage.formats.parquet import extents
from fastdata.storage.index import Index
from fastdata.storage.records import Row, rows_to_batch, write_index

#: Examples of a test.
EXAMPLES = int(os.environ.get("FASTDATA_FIELD_EXAMPLES", "40"))
_WIDTHS = (8, 16, 32, 64)
_NUMBERS = [
    (getattr(pa, f"int{n}")(), st.integers(-(1 << n - 1), (1 << n - 1) - 1)) for n in _WIDTHS
]
_NUMBERS += [(getattr(pa, f"uint{n}")(), st.integers(0, (1 << n) - 1)) for n in _WIDTHS]
_NUMBERS += [(pa.float32(), st.floats(width=32, allow_nan=False)),
             (pa.float64(), st.floats(allow_nan=False)), (pa.bool_(), st.booleans())]  # fmt: skip
_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_LEAVES = [*_NUMBERS, (pa.string(), _TEXT), (pa.large_string(), _TEXT)]
_LEAVES += [(pa.binary(), st.binary(max_size=12)), (pa.timestamp("ns"), st.integers(0, 1 << 62))]
_LEAVES += [(pa.time64("ns"), st.integers(0, 86_399_999_999_999))]


def _deeper(types: Any) -> Any:
    def lists(one: Any) -> Any:
        kind, values = one
        size = st.integers(1, 3)
        fixed = size.map(lambda n: (pa.list_(kind, n), st.lists(values, min_size=n, max_size=n)))
        return st.just((pa.list_(kind), st.lists(values, max_size=3))) | fixed

    def structs(one: Any) -> Any:
        (kind, values), (other, others) = one
        fields = pa.struct([("a", kind), ("b", other)])
        return fields, st.fixed_dictionaries({"a": values, "b": others})

    return types.flatmap(lists) | st.tuples(types, types).map(structs)


#: (type, strategy of values) of Arrow's types, nested to some depth.
TYPES = st.recursive(st.sampled_from(_LEAVES), _deeper, max_leaves=4)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    kind, values = draw(TYPES)
    if draw(st.booleans()):
        values = st.none() | values
    found = pa.array(draw(st.lists(values, min_size=1, max_size=40)), kind)
    start = draw(st.integers(0, len(found) - 1))
    return found.slice(start, draw(st.integers(1, len(found) - start)))


def text(column: pa.Array) -> str:
    """The values as pyarrow shows them: of nanoseconds, Python's values know nothing."""
    return str(column.to_string(window=1000, container_window=1000))


@settings(max_examples=EXAMPLES)
@given(column=columns(), pieces=st.integers(1, 50), data=st.data())
def test_columns_give_back_their_values(column: pa.Array, pieces: int, data: st.DataObject) -> None:
    field = Field("f", "column", column.type, nullable=True)
    stored = StoredField(field, "index", "file", pieces)
    cut = data.draw(st.integers(0, len(column)))
    # pyarrow's `take` gives wrong values of slices of fixed lists of fixed lists.
    batch = pa.RecordBatch.from_arrays([column], ["f"])
    whole_column = pa.ipc.read_record_batch(batch.serialize(), batch.schema).column(0)
    assert text(whole_column) == text(column)
    with tempfile.TemporaryDirectory() as folder:
        path, index = Path(folder) / "file", Path(folder) / "index"
        parts = [column.slice(0, cut), column.slice(cut)]
        write_column(path, index, stored, 0, parts, len(column))
        with pa.ipc.open_file(path) as file:
            assert text(file.read_all().column(0).combine_chunks()) == text(column)
        whole = path.read_bytes()
        opened = Index(index, -(-len(column) // pieces))

        def read(rows: Any) -> list[bytes]:
            return [whole[row.offset : row.offset + row.length] for row in rows]

        reader = ColumnReader(stored, opened, len(column), read)
        for _ in range(2):  # from the file, then from memory
            rows = np.array(data.draw(st.lists(st.integers(0, len(column) - 1), max_size=30)), int)
            found = reader.values(rows)
            assert text(found) == text(whole_column.take(pa.array(rows, pa.int64())))
            assert text(as_arrow(as_column(found))) == text(found)
            joined = join_columns([as_column(found)] * 2, np.arange(len(rows)))
            assert text(as_arrow(joined)) == text(found)
        assert text(reader.values()) == text(column)


_BLOBS = st.lists(st.none() | st.binary(min_size=1, max_size=40), min_size=1, max_size=40)


@settings(max_examples=EXAMPLES // 2)
@given(blobs=_BLOBS, plain=st.booleans(), kind=st.sampled_from(["blob", "image"]))
def test_extents_of_parquet_with_nulls(blobs: Any, plain: bool, kind: str) -> None:
    field = Field("f", kind)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        writer = open_writer("parquet", path, [], [field], plain=plain)
        for at, blob in enumerate(blobs):
            about = (0, 0, None, 0)
            own = Row("", *about, len(blob or b""), 0, 0, 1, "other", 0)
            image = Row(f"{at}", *about, 3, 1, 1, 3, "png", 0)
            writer.add(NewSample(image, b"abc", ((own, blob) if blob else None,)))
        offsets = writer.finish()
        written, data = pq.read_table(path).column("f").to_pylist(), path.read_bytes()
        found = [one.get("f") for one in extents(path, ["f"])]
    expected = [one["bytes"] if isinstance(one, dict) else one for one in written]
    assert [at and data[at[0] : sum(at)] for at in found] == expected == blobs
    assert list(offsets["f"]) == [at[0] if at else 0 for at in found]


def test_a_column_of_more_than_32_bits_can_count(tmp_path: Path) -> None:
    each, rows = 1 << 30, 5  # lists of nulls have no memory
    piece = pa.ListArray.from_arrays(pa.array([0, each], pa.int32()), pa.nulls(each))
    data = pa.RecordBatch.from_arrays([piece], ["f"]).serialize()
    stored = StoredField(Field("f", "column", piece.type, nullable=True), "index", "file", 1)
    about = Row("", 0, 0, None, 0, 0, 1, 1, 1, "other", 0)
    write_index(tmp_path / "index", [rows_to_batch([about] * rows)], rows)
    opened = Index(tmp_path / "index", rows)
    reader = ColumnReader(stored, opened, rows, lambda pieces: [data] * len(pieces))
    found = reader.values()
    assert found.type == pa.large_list(pa.null())
    assert found.value_lengths().to_pylist() == [each] * rows

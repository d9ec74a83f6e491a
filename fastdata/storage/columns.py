"""Columns of a dataset beside its images: values of any Arrow type, in pieces of a file.

A piece is a record batch with the same number of rows as all others but the last. An index has a
row for each piece, with its extent and its checksum, so a lookup reads one piece and no more. The
normative layout is docs/formats/fields.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata._native import crc32c
from fastdata.errors import CorruptionError, UsageError
from fastdata.storage.arrow import (
    as_arrow,
    fixed_items,
    has_nulls,
    is_number,
    item_type,
    list_offsets,
)
from fastdata.storage.fields import Field, StoredField
from fastdata.storage.index import Index
from fastdata.storage.records import NO_GENERATION, Row, write_extents
from fastdata.storage.source import Column

#: Bytes at which a piece ends, roughly; and most rows of one. A lookup reads whole pieces.
_PIECE_BYTES, _PIECE_ROWS = 64 << 10, 4096
#: Most bytes of a column that are kept in memory.
KEPT_BYTES = 256 << 20
#: Most damaged pieces whose errors are kept.
_KEPT_ERRORS = 4096


def rows_per_piece(size: int, rows: int) -> int:
    """Return the rows of each piece of a column that has so many bytes and rows."""
    wanted = _PIECE_BYTES * max(rows, 1) // max(size, 1)
    return 1 << max(0, min(wanted, _PIECE_ROWS).bit_length() - 1)


def write_column(
    path: Path,
    index: Path,
    stored: StoredField,
    number: int,
    arrays: Iterable[pa.Array],
    rows: int,
    generation: str = NO_GENERATION,
) -> None:
    """Write a column's file, which any Arrow reader reads, and the index of its pieces.

    Args:
        path: The file.
        index: The index file.
        stored: The field.
        number: The file's place among the manifest's.
        arrays: The values of all rows, in order.
        rows: Number of rows; another number in ``arrays`` is a ValueError.
        generation: The manifest's.
    """
    schema = pa.schema([(stored.field.name, stored.field.type)])
    offsets, lengths, counts, checksums = [], [], [], []
    named = schema.with_metadata({"generation": generation})
    with path.open("wb") as file, pa.ipc.new_file(file, named) as writer:
        for piece in _cut(arrays, stored.rows):
            batch = pa.RecordBatch.from_arrays([piece], schema=schema)
            # The first batch is written behind the schema, so count from its end.
            message = batch.serialize()
            writer.write_batch(batch)
            offsets.append(file.tell() - message.size)
            lengths.append(message.size)
            counts.append(len(piece))
            checksums.append(crc32c(message))
    if sum(counts) != rows:
        raise ValueError(f"not {rows} rows")
    pieces = {"offset": offsets, "length": lengths, "width": counts, "crc32c": checksums}
    write_extents(index, pieces | {"file": [number] * len(counts)}, len(counts), generation)


def _cut(arrays: Iterable[pa.Array], rows: int) -> Iterator[pa.Array]:
    """Yield the same values in arrays of a number of rows."""
    held: list[pa.Array] = []
    count = 0
    for array in arrays:
        while len(array):
            part = array.slice(0, rows - count)
            held.append(part)
            count += len(part)
            array = array.slice(len(part))
            if count == rows:
                yield pa.concat_arrays(held)
                held, count = [], 0
    if held:
        yield pa.concat_arrays(held)


class ColumnReader:
    """Reader of one column of a dataset.

    Safe to use from several threads, and after a fork: it has no lock.

    Args:
        stored: The field.
        index: The index of its pieces; a missing row is a CorruptionError.
        rows: Rows of the dataset.
        read: Reads the bytes of pieces, and compares their checksums.
    """

    def __init__(
        self,
        stored: StoredField,
        index: Index,
        rows: int,
        read: Callable[[Sequence[Row]], list[bytes]],
    ) -> None:
        self._stored, self._index, self._rows, self._read = stored, index, rows, read
        self._schema = pa.schema([(stored.field.name, stored.field.type)])
        pieces = -(-rows // stored.rows)
        if len(index) != pieces:
            raise index.corrupt(f"has {len(index)} pieces, not {pieces}")
        # Pieces in memory, the recent ones apart from the older, which go first.
        self._recent: dict[int, pa.Array] = {}
        self._older: dict[int, pa.Array] = {}
        self._whole: pa.Array | None = None
        # Errors of damaged pieces, which are not read again; a raised error would keep its frames.
        self._damaged: dict[int, tuple[str, str]] = {}
        self._bytes = 0

    def values(self, rows: npt.NDArray[np.int64] | None = None) -> pa.Array:
        """Return the values of some rows, in their order; of all rows without ``rows``."""
        if rows is not None and not len(rows):
            return pa.array([], self._stored.field.type)
        if rows is None and self._whole is None:
            every = self._pieces(range(len(self._index)))
            if self._whole is None:  # too large to keep
                return joined(every)
        whole = self._whole
        if rows is None:
            return whole
        if whole is not None:
            return joined([whole], rows)
        return values_in(self._pieces, *np.divmod(rows, self._stored.rows))

    def _pieces(self, numbers: Iterable[int]) -> list[pa.Array]:
        """Return pieces by number; read those that are not in memory, together."""
        recent, older = self._recent, self._older
        numbers = list(numbers)
        pieces = {number: recent.get(number, older.get(number)) for number in numbers}
        missing = [number for number, piece in pieces.items() if piece is None]
        for number in missing:
            if number in self._damaged:
                raise CorruptionError(*self._damaged[number])
        try:
            rows = list(map(self._record, missing))
            for number, data in zip(missing, self._read(rows) if rows else (), strict=True):
                pieces[number] = self._decoded(number, data)
        except CorruptionError as error:
            # Of several, the caller asks again for one at a time.
            if len(missing) == 1 and len(self._damaged) < _KEPT_ERRORS:
                self._damaged[missing[0]] = error.what, error.hint
            raise
        self._keep(pieces)
        return [pieces[number] for number in numbers]

    def _keep(self, pieces: dict[int, pa.Array]) -> None:
        new = {number: one for number, one in pieces.items() if number not in self._recent}
        if not new:
            return
        recent = self._recent  # another thread may exchange it meanwhile
        recent.update(new)
        self._bytes += sum(piece.nbytes for piece in new.values())
        if len(recent) == len(self._index) and self._bytes <= KEPT_BYTES:
            self._whole = joined([recent[number] for number in range(len(self._index))])
            self._recent, self._older = {}, {}
        elif self._bytes > KEPT_BYTES // 2:
            self._older, self._recent, self._bytes = recent, {}, 0

    def piece(self, number: int, data: bytes | None = None) -> pa.Array:
        """Return a piece, without keeping it; ``data`` if it is read."""
        if data is None:
            (data,) = self._read([self._record(number)])
        return self._decoded(number, data)

    def _record(self, number: int) -> Row:
        """Return the row of a piece, with a description as its key."""
        row: Row = self._index[number]
        return row._replace(key=self._describe(number))

    def _describe(self, number: int) -> str:
        first = number * self._stored.rows
        last = min(first + self._stored.rows, self._rows) - 1
        return f"the {self._stored.field.name} of samples {first} to {last}"

    def _decoded(self, number: int, data: bytes) -> pa.Array:
        expected = min(self._stored.rows, self._rows - number * self._stored.rows)
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)
            batch.validate(full=True)
            if batch.num_rows != expected:
                raise ValueError(f"it has {batch.num_rows} rows, not {expected}")
            if batch.nbytes > len(data):
                raise ValueError("it is compressed")
            if not self._stored.field.nullable and has_nulls(batch.column(0)):
                raise ValueError("it has a null, the manifest says that there is none")
        except (pa.ArrowException, EOFError, OSError, ValueError) as error:
            raise CorruptionError(
                f"{self._index.path.parent}: {self._describe(number)} cannot be read: {error}",
                "Pack the dataset again (fastdata convert … --force), or copy it again.",
            ) from None
        return batch.column(0)


def values_in(
    pieces: Callable[[list[int]], Sequence[pa.Array]],
    numbers: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
) -> pa.Array:
    """Return the values at some places, at least one, each in the piece of its number."""
    order = np.argsort(numbers, kind="stable")
    chosen, starts = np.unique(numbers[order], return_index=True)
    parts = np.split(places[order], starts[1:])
    values = [
        joined([piece], part) for piece, part in zip(pieces(chosen.tolist()), parts, strict=True)
    ]
    if len(values) == 1:
        # A stable sort of equal numbers keeps their order.
        return values[0]
    back = np.empty(len(numbers), np.int64)
    back[order] = np.arange(len(numbers))
    return joined(values, back)


def as_column(array: pa.Array) -> Column:
    """Return numbers without nulls as a NumPy array; others as they are."""
    if array.null_count or not is_number(item_type(array.type)):
        return array
    items = fixed_items(array)
    return array if items is None else items


def as_objects(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Return an array of Python objects."""
    objects = np.empty(len(values), object)
    for slot, value in enumerate(values):
        objects[slot] = value
    return objects


def join_columns(columns: Sequence[Column], order: npt.NDArray[np.int64] | None = None) -> Column:
    """Return columns one after the other; with ``order``, the values at these places."""
    if all(isinstance(column, np.ndarray) for column in columns):
        numbers = np.concatenate(columns)
        return numbers if order is None else numbers[order]
    return joined([as_arrow(column) for column in columns], order)


def joined(parts: Sequence[pa.Array], order: npt.NDArray[np.int64] | None = None) -> pa.Array:
    """Return arrays one after the other, or the values at ``order``; widen offsets if needed."""
    try:
        whole = pa.concat_arrays(parts) if len(parts) > 1 else parts[0]
        return whole if order is None else whole.take(_indices(order))
    except pa.ArrowInvalid:
        large = [_large(part.type) for part in parts]
        if large == [part.type for part in parts]:
            raise
        return joined([part.cast(large[0]) for part in parts], order)


def _large(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values that counts with 64 bits; itself if there is none."""
    if pa.types.is_list(kind):
        return pa.large_list(kind.value_field)
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)


def with_gaps(column: Column, places: npt.NDArray[np.int64], count: int) -> Column:
    """Return a column of so many rows, with these values at some places; else zeros or nulls."""
    if isinstance(column, np.ndarray):
        filled = np.zeros((count, *column.shape[1:]), column.dtype)
        filled[places] = column
        return filled
    order = np.full(count, -1, np.int64)
    order[places] = np.arange(len(places))
    return column.take(pa.array(order, mask=order < 0))


def is_ragged(kind: pa.DataType) -> bool:
    """Return whether a type's values are lists of numbers, or of arrays of one shape each."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    return is_number(item_type(kind.value_type))


def values_of(column: Column, field: Field) -> list[Any]:
    """Return the value of each row: a NumPy scalar or array, else a Python object."""
    if isinstance(column, np.ndarray):
        # Arrow's memory may not be written to; a user may change an array in place.
        return list(column if column.flags.writeable else column.copy())
    if not field.nullable and is_ragged(column.type):
        lists = (column.slice(at, 1).flatten() for at in range(len(column)))
        return [np.array(as_column(one)) for one in lists]
    return python_objects(column, field)


def python_objects(column: pa.Array, field: Field) -> list[Any]:
    """Return values as Python objects; UsageError for those that Python lacks."""
    try:
        objects: list[Any] = column.to_pylist()
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise UsageError(
            f"the field {field.name} has a value of {field.type} that is no Python object: {error}",
            "Read it as an Arrow array: ImageDataset.column(name).",
        ) from None
    return objects


def _indices(values: npt.NDArray[np.int64]) -> pa.Array:
    values = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def lists_of(column: Column) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the items of a column of lists, (M, …), and their offsets; a null has none.

    Raise UsageError if they are no numbers, or no arrays of one shape.
    """
    if isinstance(column, np.ndarray):
        return column.reshape(-1, *column.shape[2:]), list_offsets(column)
    return _items(column.flatten()), list_offsets(column)


def _items(values: pa.Array) -> npt.NDArray[Any]:
    """Return lists of one length each as an array; a null number is NaN."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        inner, offsets = lists_of(values)
        lengths = np.diff(offsets)
        length = int(lengths[0]) if len(lengths) else 0
        if np.any(lengths != length):
            other = int(lengths[np.argmax(lengths != length)])
            raise UsageError(
                f"lists in lists have {length} and {other} numbers",
                "Leave the field out of a joint transform's sample.",
            )
        return inner.reshape(len(lengths), length, *inner.shape[1:])
    items = as_column(values.fill_null(math.nan) if values.null_count else values)
    if not isinstance(items, np.ndarray):
        raise UsageError(f"a target is {values.type}", "Leave the field out of the sample.")
    return items

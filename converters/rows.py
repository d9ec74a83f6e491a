"""Reads of single rows of columns in Parquet and Arrow files; in row order, each group once."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from fastdata.errors import FastdataError, SampleError, UnreadableError
from fastdata.remote.answers import ChangedError
from fastdata.remote.urls import is_url
from fastdata.storage.arrow import column_path as column_path
from fastdata.storage.arrow import python_values
from fastdata.storage.formats.arrow_ipc import MappedArrow
from fastdata.storage.formats.parquet_pages import PARQUET_ERRORS

if TYPE_CHECKING:
    from fastdata.remote.files import SourceFile

#: Begins a Parquet file.
_PARQUET = b"PAR1"
#: Rows to decode at a time: some megabytes of images.
_ROWS = 64


def column_of(batch: pa.RecordBatch, column: str) -> pa.Array:
    """Return a column; ``a.b`` is the field ``b`` of the struct ``a``."""
    first, *fields = column_path(batch.schema, column)
    values = batch.column(first)
    for field in fields:
        # Not `field`, which ignores that the struct itself may be null.
        values = values.flatten()[values.type.get_field_index(field)]
    return values


def column_values(batch: pa.RecordBatch, column: str) -> list[Any]:
    """Return a column as `python_values`."""
    return python_values(column_of(batch, column))


class _Column:
    """Reader of one column of a file, forwards; going back restarts at the group of rows.

    Groups are a Parquet file's row groups; an Arrow file is one. Of the files behind URLs, all are
    Parquet.
    """

    def __init__(self, file: SourceFile, column: str) -> None:
        self._source, self._column = file.open(), column
        self._arrow: MappedArrow | None = None
        starts: Iterable[int] = [1 << 62]
        if is_url(file.location) or self._source.read(len(_PARQUET)) == _PARQUET:
            self._file = pq.ParquetFile(self._source)
            metadata = self._file.metadata
            starts = (
                metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)
            )
        else:
            self._arrow = MappedArrow(file.location)
        self._starts = list(accumulate(starts, initial=0))
        self._group, self._first = -1, 0
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.RecordBatch | None = None

    def value(self, row: int) -> Any:
        group = bisect_right(self._starts, row) - 1
        if row >= self._starts[-1]:
            raise SampleError(f"has {self._starts[-1]} rows now, but had more when it was listed")
        if group != self._group or row < self._first:
            self._group, self._first = group, self._starts[group]
            self._batches = self._of(group)
            self._batch = next(self._batches, None)
        while self._batch is not None and row >= self._first + self._batch.num_rows:
            self._first += self._batch.num_rows
            self._batch = next(self._batches, None)
        if self._batch is None:
            self._group = -1
            raise SampleError(f"has no row {row} now, but had it when it was listed")
        return column_values(self._batch.slice(row - self._first, 1), self._column)[0]

    def _of(self, group: int) -> Iterator[pa.RecordBatch]:
        if self._arrow is not None:
            return self._arrow.batches([column_path(self._arrow.schema, self._column)[0]])
        batches: Iterator[pa.RecordBatch] = self._file.iter_batches(
            _ROWS, [group], [self._column], use_threads=False
        )
        return batches

    def close(self) -> None:
        self._batch = None
        self._source.close()


class NullError(SampleError):
    """A value that is null."""


# Readers of the columns of one file, for each thread: each has its own position.
_open = threading.local()


def read_row(
    path: str, column: str, row: int, mtime_ns: int, open_file: Callable[[str], SourceFile]
) -> bytes:
    """Return the bytes of one row of the file that ``open_file(path)`` returns."""
    try:
        if getattr(_open, "file", None) != (path, mtime_ns):
            close_rows()
            _open.file, _open.readers = (path, mtime_ns), {}
        reader = _open.readers.get(column)
        if reader is None:
            file = open_file(path)
            if file.mtime_ns != mtime_ns:
                raise SampleError("has changed since it was listed")
            reader = _open.readers[column] = _Column(file, column)
        value = reader.value(row)
    except ChangedError:
        close_rows()
        raise SampleError("has changed since it was listed") from None
    except FastdataError:
        raise
    except PARQUET_ERRORS as error:
        close_rows()
        raise UnreadableError(f"row {row} cannot be read: {error}") from None
    if value is None:
        raise NullError(f"the {column} of row {row} is null")
    if not isinstance(value, bytes):
        raise SampleError(f"the {column} of row {row} is not bytes")
    return value


def close_rows() -> None:
    """Close the file that this thread has read rows from."""
    readers = getattr(_open, "readers", {})
    _open.file, _open.readers = None, {}
    for reader in readers.values():
        reader.close()

"""The index of version 1: an Arrow IPC file, ``index.arrow``, for reading.

It is memory-mapped and never read as a whole. Its rows have no checksums: what is damaged in them
may go unnoticed. The normative layout is docs/formats/index-1.md.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata.storage.arrow import as_numpy
from fastdata.storage.index import ENCODING_CODES, SCHEMA, Index, Row

#: Record batches that a pass over an index reads from one memory map. The pages of a map count
#: as private memory until it goes, so this bounds them: 25 MB without seek points. Mapping anew
#: takes a quarter of a millisecond.
_BATCHES_PER_MAP = 16

_FIXED = ("file", "offset", "length", "width", "height", "crc32c", "label")
_NO_CODE = 255
_REQUIRED = frozenset(field.name for field in SCHEMA if not field.nullable)


class ArrowIndex(Index):
    """A memory-mapped view of an index of version 1.

    Args:
        path: The index file.
        rows: How many rows the manifest says there are.

    Raises:
        DatasetError: The user may not read the file.
        CorruptionError: The file is not a complete index of that many rows.
    """

    def __init__(self, path: Path, rows: int) -> None:
        super().__init__(path, rows)
        self._reader = self._map()
        schema = self._reader.schema
        missing = [f.name for f in SCHEMA if schema.get_field_index(f.name) < 0]
        if missing:
            raise self.corrupt(f"lacks the column(s) {', '.join(missing)}")
        for field in SCHEMA:
            if schema.field(field.name).type != field.type:
                raise self.corrupt(
                    f"column {field.name} is {schema.field(field.name).type}, not {field.type}"
                )
        batches = self._reader.num_record_batches
        self._batches: list[pa.RecordBatch | None] = [None] * batches
        # All batches but the last are equally long: the first tells where a row lies.
        self._batch_rows = max(1, self._batch(0).num_rows) if batches else 1
        full = max(batches - 1, 0) * self._batch_rows
        found = full + (self._batch(batches - 1).num_rows if batches else 0)
        if found != rows:
            raise self.corrupt(f"holds {found} rows, but the manifest says {rows}")

    def _map(self, columns: Sequence[str] | None = None) -> pa.RecordBatchFileReader:
        """Maps the file anew; a reader of some columns, or of all."""
        fields = (
            None if columns is None else [self._reader.schema.get_field_index(c) for c in columns]
        )
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        try:
            self.require_unchanged()  # the kernel ends a process that touches what was cut off
            if not os.path.samestat(os.stat(self.path), os.fstat(self._file.descriptor)):
                raise self._changed()
            return pa.ipc.open_file(pa.memory_map(str(self.path)), options=options)
        except (OSError, pa.ArrowException) as error:
            raise self.corrupt(f"cannot be read: {error}") from None

    def native_table(
        self, files: list[bytes], sizes: list[int], root: bytes | None, classes: int
    ) -> _Columns:
        """See `Index.native_table`."""
        rows = len(self)
        table = _native.ExtentTable(files, sizes, root, rows, self._batch_rows, classes)
        # All columns: Arrow copies record batches of which it is to read only some.
        return _Columns(self, self._map(), table)

    def _batch(self, number: int) -> pa.RecordBatch:
        self.require_unchanged()
        batch = self._batches[number]
        if batch is None:
            batch = self._batches[number] = self._read(self._reader, number)
        return batch

    def _read(self, reader: pa.RecordBatchFileReader, number: int) -> pa.RecordBatch:
        self.require_unchanged()
        try:
            batch = reader.get_batch(number)
            # Arrow believes what it maps: an offset out of range would crash the process.
            batch.validate(full=True)
        except (OSError, pa.ArrowException) as error:
            raise self.corrupt(f"is damaged at record batch {number}: {error}") from None
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name in _REQUIRED and column.null_count:
                raise self.corrupt(f"is damaged: column {name} has nulls")
        if 0 < number < len(self._batches) - 1 and batch.num_rows != self._batch_rows:
            raise self.corrupt(f"is damaged: record batch {number} has another size")
        return batch

    def _row_at(self, position: int) -> Row:
        number, at = divmod(position, self._batch_rows)
        return self._as_row(self._batch(number).select(SCHEMA.names), at, position)

    def batches(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `Index.batches`: over the mapped file, of which nothing stays mapped."""
        stop = self._rows if stop is None else stop
        reader = None
        while start < stop:
            number, at = divmod(start, self._batch_rows)
            if reader is None or number % _BATCHES_PER_MAP == 0:
                reader = self._map(columns)
            piece = self._read(reader, number).slice(at, stop - start)
            if not piece.num_rows:
                raise self.corrupt(f"is damaged: record batch {number} has another size")
            start += piece.num_rows
            yield piece
            del piece  # or it would keep its map while the next one is read

    def find_file(self, number: int) -> int:
        """See `Index.find_file`."""

        def first(batch: int) -> int:
            return int(self._file_column(batch)[0])

        # The file begins in the last batch that begins before it, or right after that.
        batch = bisect_left(range(len(self._batches)), number, key=first) - 1
        if batch < 0:
            return 0
        return batch * self._batch_rows + int(np.searchsorted(self._file_column(batch), number))

    def _file_column(self, batch: int) -> npt.NDArray[Any]:
        start = batch * self._batch_rows
        (found,) = self.batches(start, min(start + self._batch_rows, self._rows), ("file",))
        return as_numpy(found.column("file"))


class _Columns:
    """An index's columns as the native core reads them: in place, in the mapped file.

    Takes memory for the record batches that were used, not for their rows.
    """

    def __init__(
        self, index: ArrowIndex, reader: pa.RecordBatchFileReader, table: _native.ExtentTable
    ) -> None:
        self._index, self._reader, self._table = index, reader, table

    def gather(self, indices: npt.NDArray[np.int64]) -> _native.Extents:
        """See `NativeTable.gather`."""
        for number in self._table.missing(indices):
            self._add(number)
        return self._table.gather(indices)

    def _add(self, number: int) -> None:
        try:
            batch = self._reader.get_batch(number)
            # Not in full: that would read all of it. The core checks each value that it uses.
            batch.validate()
            encoding = batch.column("encoding")
            self._table.add(
                number,
                batch.num_rows,
                **{name: _fixed(batch.column(name)) for name in _FIXED},
                encoding=_fixed(encoding.indices),
                encoding_codes=_encoding_codes(encoding.dictionary),
                path=_variable(batch.column("path")),
                seek_points=_variable(batch.column("seek_points")),
            )
        except (OSError, ValueError, TypeError, pa.ArrowException) as error:
            raise self._index.corrupt(f"is damaged at record batch {number}: {error}") from None


def _fixed(column: pa.Array) -> _native.FixedColumn:
    if column.null_count:
        raise ValueError("a column that must not have nulls has some")
    return column.offset, column.buffers()[1]


def _variable(column: pa.Array) -> _native.VariableColumn | None:
    if column.null_count == len(column):
        return None
    validity, offsets, data = column.buffers()
    return column.offset, validity, offsets, data


def _encoding_codes(dictionary: pa.Array) -> bytes:
    """For each entry of a dictionary, which another tool may have put in another order."""
    entries = dictionary.slice(0, 128)  # int8 reaches no further
    entries.validate(full=True)
    return bytes(ENCODING_CODES.get(name, _NO_CODE) for name in entries.to_pylist())

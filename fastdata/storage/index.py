"""The open index: the rows of a dataset, and their extents for the native core.

Records are read by ``pread`` and checked where they are used. Opening costs the same for any number
of rows, and a file that is cut off, overwritten or unreadable is an error.
"""

from __future__ import annotations

import operator
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata.errors import MORE_FILES, CorruptionError, DatasetError
from fastdata.storage.arrow import as_numpy
from fastdata.storage.files import is_too_many
from fastdata.storage.records import (
    IN_HEAP,
    NO_GENERATION,
    RECORD,
    RECORDS_AT,
    ROWS_PER_BATCH,
    SCHEMA,
    Records,
    Row,
    Values,
    heap_span,
    parse_header,
    seed_of,
    unpack_batch,
    unpack_row,
)
from fastdata.storage.source import ExtentTable

_MOST_CLASSES = 1 << 31  # labels have 32 bits


class Index(Sequence[Row]):
    """An index file that is open.

    Safe to use from several threads, and after a fork. Not picklable: the dataset that
    owns it opens it again.

    Args:
        path: The index file.
        rows: How many rows the manifest says there are.
        generation: The manifest's.

    Raises:
        DatasetError: The user may not read the file.
        CorruptionError: The file is missing, or not the index of that packing and that many rows.
    """

    def __init__(self, path: Path, rows: int, generation: str = NO_GENERATION) -> None:
        self.path = path
        self._rows, self._seed = rows, seed_of(generation)
        self._file = _native.Files([path])
        try:
            held, self._heap_size, own = parse_header(self._read(0, RECORDS_AT))
        except ValueError as error:
            raise self.corrupt(str(error)) from None
        if own != generation:
            raise self.corrupt("belongs to another packing than the manifest")
        if held != rows:
            raise self.corrupt(f"holds {held} rows, but the manifest says {rows}")
        self._heap_at = RECORDS_AT + rows * RECORD.itemsize
        said = self._heap_at + self._heap_size
        if (size := self._file.size(0)) != said:
            raise self.corrupt(
                f"has {size} bytes, its header says {said}: it was cut short, or "
                "changed after packing"
            )

    def unusable(self, error: OSError | ValueError) -> DatasetError:
        """Return the error for an index that `_native.Files` cannot read."""
        if not isinstance(error, OSError):  # another file has its name
            return self._changed()
        if is_too_many(error):
            return DatasetError(
                f"{self.path}: the index cannot be opened: {error.strerror}", MORE_FILES
            )
        if isinstance(error, PermissionError):
            return DatasetError(
                f"{self.path}: the index cannot be read: {error.strerror}",
                f"Let it be read: chmod a+r {self.path}",
            )
        return self.corrupt(f"cannot be read: {error.strerror}")

    def require_unchanged(self) -> None:
        """Raise CorruptionError if the file was written to since it was opened."""
        try:
            unchanged = self._file.is_unchanged(0)
        except (OSError, ValueError) as error:
            raise self.unusable(error) from None
        if not unchanged:
            raise self._changed()

    def _changed(self) -> CorruptionError:
        return CorruptionError(
            f"{self.path}: the index has changed since it was opened",
            "Open the dataset again when nothing writes to it any more; put a new version in place "
            "by a rename, not by a copy over the old one.",
        )

    def corrupt(self, problem: str) -> CorruptionError:
        """Return the error for an index; ``problem`` continues its text after "the index"."""
        return CorruptionError(
            f"{self.path}: the index {problem}",
            "Pack the dataset again (fastdata convert … --force), or copy it again.",
        )

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, position: Any) -> Any:
        """Return the `Row` at a position from 0; a negative one counts from the end."""
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(self._rows))]
        wanted = operator.index(position)
        if wanted < 0:
            wanted += self._rows
        if not 0 <= wanted < self._rows:
            raise IndexError(f"sample {position} of a dataset of {self._rows}")
        return self._row_at(wanted)

    def _read(self, at: int, size: int) -> bytes:
        self.require_unchanged()
        try:
            data = self._file.read(0, at, size)
        except (OSError, ValueError) as error:
            raise self.unusable(error) from None
        if len(data) != size:
            raise self.corrupt(f"ends early, after {at + len(data)} bytes")
        return data

    def _records(self, start: int, stop: int) -> Records:
        """Return the records of some rows, checked."""
        size = RECORD.itemsize
        data = self._read(RECORDS_AT + start * size, (stop - start) * size)
        sound = _native.sound_records(data, start, self._seed)
        if sound != stop - start:
            raise self._damaged(start + sound)
        return np.frombuffer(data, RECORD)

    def _heap(self, records: Records, start: int, with_tables: bool) -> Values:
        """Return all keys, paths and seek tables of some rows, checked."""
        begin, end = heap_span(records)
        if not 0 <= begin <= end <= self._heap_size:
            raise self._damaged(start)
        heap = self._read(self._heap_at + begin, end - begin)
        bytes_of = records.view(np.uint8)
        sound, *values = _native.split_heap(bytes_of, heap, start, with_tables, self._seed)
        if sound != len(records):
            raise self._damaged(start + sound)
        keys, paths, tables = values
        return keys, paths, tables

    def _damaged(self, row: int) -> CorruptionError:
        return self.corrupt(f"is damaged at row {row}")

    def _row_at(self, position: int) -> Row:
        records = self._records(position, position + 1)
        try:
            return unpack_row(records, self._heap(records, position, True))
        except UnicodeDecodeError as error:
            raise self.corrupt(f"is damaged at row {position}: {error}") from None

    def batches(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows from ``start`` to ``stop`` as record batches.

        Takes the same memory for any number of rows, if the consumer keeps none of them.

        Args:
            start: The first row.
            stop: One past the last; None for all from ``start``.
            columns: Which columns the batches have, in the order of `SCHEMA`; None for all.
                Others are not read.
        """
        stop = self._rows if stop is None else stop
        schema = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in columns])
        for first in range(start, stop, ROWS_PER_BATCH):
            yield self._batch(first, min(first + ROWS_PER_BATCH, stop), schema)

    def _batch(self, start: int, stop: int, schema: pa.Schema) -> pa.RecordBatch:
        records = self._records(start, stop)
        values = None
        if not IN_HEAP.isdisjoint(schema.names):
            values = self._heap(records, start, "seek_points" in schema.names)
        try:
            return unpack_batch(records, values, schema)
        except pa.ArrowException as error:
            raise self.corrupt(f"is damaged between rows {start} and {stop}: {error}") from None

    def rows(self, start: int, stop: int, *, seek_points: bool = True) -> Iterator[Row]:
        """Yield the rows from ``start`` to ``stop``, with or without seek points; see `batches`."""
        names = [name for name in SCHEMA.names if seek_points or name != "seek_points"]
        for batch in self.batches(start, stop, names):
            columns = [batch.column(name) for name in names]
            for at in range(batch.num_rows):
                values = (column[at].as_py() for column in columns)
                yield Row(**dict(zip(names, values, strict=True)))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one fixed-width column as an array of N values (4 or 8 bytes a row)."""
        pieces = [as_numpy(batch.column(name)) for batch in self.batches(columns=(name,))]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def common(self, *names: str) -> tuple[int, ...] | None:
        """Return the value that each of some columns has in all rows; None if a batch differs."""
        shared: tuple[int, ...] | None = None
        for batch in self.batches(columns=names):
            values = [as_numpy(batch.column(name)) for name in names]
            first = tuple(int(column[0]) for column in values)
            if shared not in (None, first) or any(
                np.any(column != one) for column, one in zip(values, first, strict=True)
            ):
                return None
            shared = first
        return shared

    def find_file(self, number: int) -> int:
        """Return the first row whose ``file`` is ``number`` or more; rows are in that order."""

        def file(row: int) -> int:
            return int(self._records(row, row + 1)[0]["file"])

        return bisect_left(range(self._rows), number, key=file)

    def locate(
        self,
        files: _native.Files,
        root: str | os.PathLike[str] | None,
        classes: int | None = None,
        *,
        upright: bool = False,
    ) -> ExtentTable:
        """Return the table that gathers extents of rows.

        Args:
            files: The dataset's files, in the order that the index counts them.
            root: The folder of rows that have a path of their own; None if there is none.
            classes: How many there are, None if rows have no labels. A row of another label is not
                read.
            upright: Whether images are turned as their orientation says.
        """
        most = _MOST_CLASSES if classes is None else classes
        layout = self._rows, self._heap_size, files, root, most, upright, self._seed
        table = _native.RecordTable(self._file, RECORDS_AT, *layout)
        return ExtentTable(table, self.require_unchanged, self.unusable, classes is not None)

"""The index: one row a sample, saying where its blob lies and what it is.

``index.arrow`` is an Arrow IPC file. It is memory-mapped and never read as a whole, so
opening it costs the same for a thousand rows and for a hundred million. The normative
layout is docs/formats/index.md.
"""

from __future__ import annotations

import operator
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata.errors import CorruptionError, DatasetError
from fastdata.storage.arrow import array, as_numpy
from fastdata.storage.files import OpenFile
from fastdata.storage.probe import ENCODINGS

INDEX_NAME = "index.arrow"

#: Rows in every record batch of an index but the last. Small enough that a batch with its
#: seek points (about 1 kB a row) is written from little memory; large enough that a
#: hundred million rows are 6,000 batches, whose list is read in under a millisecond.
ROWS_PER_BATCH = 16_384

#: Record batches that a pass over an index reads from one memory map. The pages of a map count
#: as private memory until it goes, so this bounds them: 25 MB without seek points. Mapping anew
#: takes a quarter of a millisecond.
_BATCHES_PER_MAP = 16

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("label", pa.int32(), nullable=False),
        pa.field("file", pa.int32(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field("channels", pa.uint8(), nullable=False),
        pa.field("encoding", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
        pa.field("seek_points", pa.binary()),
    ]
)
_REQUIRED = frozenset(field.name for field in SCHEMA if not field.nullable)
_ENCODING_DICTIONARY = array(ENCODINGS, pa.string())
_ENCODING_CODES = {name: code for code, name in enumerate(ENCODINGS)}


class Row(NamedTuple):
    """What the index knows of one sample.

    Attributes:
        key: The sample's name, unique in the dataset.
        label: Index of its class, from 0.
        file: Which of the manifest's files holds the blob; -1 where ``path`` does.
        path: The blob's own file, relative to the manifest's root; else None.
        offset: Where in the file the blob begins, in bytes; -1 while not yet known.
        length: The blob's length in bytes.
        width: Columns of the image, in pixels.
        height: Rows of the image, in pixels.
        channels: Colour components as stored: 1, 3 or 4.
        encoding: One of `fastdata.storage.probe.ENCODINGS`.
        crc32c: CRC-32C of the blob.
        seek_points: Where a JPEG decoder may start; None where there are none.
    """

    key: str
    label: int
    file: int
    path: str | None
    offset: int
    length: int
    width: int
    height: int
    channels: int
    encoding: str
    crc32c: int
    seek_points: bytes | None = None


def rows_to_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Turns rows into a record batch of `SCHEMA`."""
    columns: list[pa.Array] = []
    values = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    for field, column in zip(SCHEMA, values, strict=True):
        if field.name == "encoding":
            codes = array([_ENCODING_CODES[name] for name in column], pa.int8())
            columns.append(pa.DictionaryArray.from_arrays(codes, _ENCODING_DICTIONARY))
        else:
            columns.append(array(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def write_index(
    path: Path, batches: Iterable[pa.RecordBatch], *, rows_per_batch: int = ROWS_PER_BATCH
) -> int:
    """Writes an index from batches of any size; holds one output batch in memory.

    Args:
        path: Where to; an existing file is overwritten.
        batches: Record batches of `SCHEMA`, in the dataset's order.
        rows_per_batch: Rows of every output batch but the last.

    Returns:
        The number of rows.
    """
    total = 0
    pending: list[pa.RecordBatch] = []
    held = 0
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, SCHEMA) as writer,
    ):
        for batch in batches:
            total += batch.num_rows
            pending.append(batch)
            held += batch.num_rows
            while held >= rows_per_batch:
                joined = pa.concat_batches(pending)
                writer.write_batch(joined.slice(0, rows_per_batch))
                pending = [joined.slice(rows_per_batch)]
                held -= rows_per_batch
        if held:
            writer.write_batch(pa.concat_batches(pending))
    return total


class Index(Sequence[Row]):
    """A memory-mapped view of an index file.

    Safe to use from several threads, and after a fork. Not picklable: the dataset that
    owns it opens it anew.

    Args:
        path: The index file.
        rows: How many rows the manifest says there are.

    Raises:
        DatasetError: The user may not read the file.
        CorruptionError: The file is not a complete index of that many rows.
    """

    def __init__(self, path: Path, rows: int) -> None:
        self.path = path
        self._rows = rows
        try:
            self._file = OpenFile(path)
        except OSError as error:
            raise self._unreadable(error) from None
        self._reader = self._map()
        schema = self._reader.schema
        missing = [f.name for f in SCHEMA if schema.get_field_index(f.name) < 0]
        if missing:
            raise self._corrupt(f"lacks the column(s) {', '.join(missing)}")
        for field in SCHEMA:
            if schema.field(field.name).type != field.type:
                raise self._corrupt(
                    f"column {field.name} is {schema.field(field.name).type}, not {field.type}"
                )
        batches = self._reader.num_record_batches
        self._batches: list[pa.RecordBatch | None] = [None] * batches
        # All batches but the last are equally long: the first tells where a row lies.
        self._batch_rows = max(1, self._batch(0).num_rows) if batches else 1
        full = max(batches - 1, 0) * self._batch_rows
        found = full + (self._batch(batches - 1).num_rows if batches else 0)
        if found != rows:
            raise self._corrupt(f"holds {found} rows, but the manifest says {rows}")

    def _map(self, columns: Sequence[str] | None = None) -> pa.RecordBatchFileReader:
        """Maps the file anew; a reader of some columns, or of all."""
        fields = (
            None if columns is None else [self._reader.schema.get_field_index(c) for c in columns]
        )
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        try:
            self.require_unchanged()
            if not os.path.samestat(os.stat(self.path), os.fstat(self._file.descriptor)):
                raise self._changed()
            return pa.ipc.open_file(pa.memory_map(str(self.path)), options=options)
        except (OSError, pa.ArrowException) as error:
            raise self._corrupt(f"cannot be read: {error}") from None

    def _unreadable(self, error: OSError) -> DatasetError:
        if isinstance(error, PermissionError):
            return DatasetError(
                f"{self.path}: the index cannot be read: {error.strerror}",
                f"Let it be read: chmod a+r {self.path}",
            )
        return self._corrupt(f"cannot be read: {error.strerror}")

    def require_unchanged(self) -> None:
        """Compares the file with what it was when it was opened, before its map is used.

        The kernel ends a process that touches a map of what was cut off meanwhile, as by a copy
        over a dataset that is in use.

        Raises:
            CorruptionError: It was written to.
        """
        if self._file.current_stamp() != self._file.stamp:
            raise self._changed()

    def _changed(self) -> CorruptionError:
        return CorruptionError(
            f"{self.path}: the index has changed since it was opened",
            "Open the dataset again when nothing writes to it any more; put a new version in place "
            "by a rename, not by a copy over the old one.",
        )

    @property
    def batch_rows(self) -> int:
        """Rows in every record batch but the last; at least 1."""
        return self._batch_rows

    def unchecked(self) -> pa.RecordBatchFileReader:
        """Maps the file anew, for who checks every value before using it.

        All columns: Arrow copies record batches of which it is to read only some.
        """
        return self._map()

    def corrupt(self, problem: str) -> CorruptionError:
        """The error for an index that ``problem``: what follows "the index" in its text."""
        return self._corrupt(problem)

    def _corrupt(self, problem: str) -> CorruptionError:
        return CorruptionError(
            f"{self.path}: the index {problem}",
            "Pack the dataset anew (fastdata convert … --force), or copy it again.",
        )

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
            raise self._corrupt(f"is damaged at record batch {number}: {error}") from None
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name in _REQUIRED and column.null_count:
                raise self._corrupt(f"is damaged: column {name} has nulls")
        if 0 < number < len(self._batches) - 1 and batch.num_rows != self._batch_rows:
            raise self._corrupt(f"is damaged: record batch {number} has another size")
        return batch

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, position: Any) -> Any:
        """The `Row` at a position from 0; a negative one counts from the end."""
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(self._rows))]
        wanted = operator.index(position)
        if wanted < 0:
            wanted += self._rows
        if not 0 <= wanted < self._rows:
            raise IndexError(f"sample {position} of a dataset of {self._rows}")
        number, at = divmod(wanted, self._batch_rows)
        return self._row(self._batch(number), at, wanted)

    def _row(self, batch: pa.RecordBatch, at: int, position: int) -> Row:
        try:
            return Row(*(batch.column(name)[at].as_py() for name in SCHEMA.names))
        except (IndexError, UnicodeDecodeError, pa.ArrowException) as error:
            raise self._corrupt(f"is damaged at row {position}: {error}") from None

    def batches(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows from ``start`` to ``stop``, as record batches over the mapped file.

        Takes the same memory for any number of rows: what the consumer has dropped does not
        stay mapped.

        Args:
            start: The first row.
            stop: One past the last; None for all from ``start``.
            columns: Which columns the batches are to have, in the file's order; None for all.
                Others are not read.
        """
        stop = self._rows if stop is None else stop
        reader = None
        while start < stop:
            number, at = divmod(start, self._batch_rows)
            if reader is None or number % _BATCHES_PER_MAP == 0:
                reader = self._map(columns)
            piece = self._read(reader, number).slice(at, stop - start)
            if not piece.num_rows:
                raise self._corrupt(f"is damaged: record batch {number} has another size")
            start += piece.num_rows
            yield piece
            del piece  # or it would keep its map while the next one is read

    def rows(self, start: int, stop: int) -> Iterator[Row]:
        """The rows from ``start`` to ``stop`` in order; see `batches` for memory."""
        for batch in self.batches(start, stop):
            for at in range(batch.num_rows):
                yield self._row(batch, at, start + at)
            start += batch.num_rows

    def column(self, name: str) -> npt.NDArray[Any]:
        """One fixed-width column as an array of N values (copied: 4 or 8 bytes a row)."""
        # Copied one by one, or the pieces would keep the whole file mapped.
        pieces = [as_numpy(batch.column(name)).copy() for batch in self.batches(columns=(name,))]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def common(self, *names: str) -> tuple[int, ...] | None:
        """What each of some fixed-width columns has in all rows; None where rows differ.

        Reads up to the record batch that differs.
        """
        found: tuple[int, ...] | None = None
        for batch in self.batches(columns=names):
            values = [as_numpy(batch.column(name)) for name in names]
            first = tuple(int(column[0]) for column in values)
            if found not in (None, first) or any(
                np.any(column != one) for column, one in zip(values, first, strict=True)
            ):
                return None
            found = first
        return found

    def find_file(self, number: int) -> int:
        """The first row whose ``file`` is ``number`` or more, by bisection.

        Only where rows are in the order of their ``file``, as docs/formats/index.md says.
        """

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

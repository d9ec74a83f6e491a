"""The index: one row a sample, saying where its blob lies and what it is.

What all versions of the format have in common: rows, and record batches of them.
`fastdata.storage.records` reads and writes the present one, `fastdata.storage.arrow_index` reads
version 1.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata.errors import CorruptionError, DatasetError
from fastdata.storage.arrow import array, as_numpy
from fastdata.storage.files import OpenFile
from fastdata.storage.probe import ENCODINGS

#: Rows that are read and written at a time. Small enough that with their seek points (about 1 kB a
#: row) they need little memory; large enough that what each read costs does not count.
ROWS_PER_BATCH = 16_384

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
#: The dictionary of the column ``encoding``, and the place of each name in it.
ENCODING_DICTIONARY = array(ENCODINGS, pa.string())
ENCODING_CODES = {name: code for code, name in enumerate(ENCODINGS)}


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
            codes = array([ENCODING_CODES[name] for name in column], pa.int8())
            columns.append(pa.DictionaryArray.from_arrays(codes, ENCODING_DICTIONARY))
        else:
            columns.append(array(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class NativeTable(Protocol):
    """What gathers the extents of rows for the native core."""

    def gather(self, indices: npt.NDArray[np.int64]) -> _native.Extents:
        """See `fastdata.storage.extents.ExtentTable.gather`."""


class Index(Sequence[Row]):
    """An index file that is open.

    Safe to use from several threads, and after a fork. Not picklable: the dataset that
    owns it opens it anew.

    Args:
        path: The index file.
        rows: How many rows the manifest says there are.

    Raises:
        DatasetError: The user may not read the file.
        CorruptionError: It is missing.
    """

    def __init__(self, path: Path, rows: int) -> None:
        self.path = path
        self._rows = rows
        try:
            self._file = OpenFile(path)
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> DatasetError:
        if isinstance(error, PermissionError):
            return DatasetError(
                f"{self.path}: the index cannot be read: {error.strerror}",
                f"Let it be read: chmod a+r {self.path}",
            )
        return self.corrupt(f"cannot be read: {error.strerror}")

    def require_unchanged(self) -> None:
        """Compares the file with what it was when it was opened.

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

    def corrupt(self, problem: str) -> CorruptionError:
        """The error for an index that ``problem``: what follows "the index" in its text."""
        return CorruptionError(
            f"{self.path}: the index {problem}",
            "Pack the dataset anew (fastdata convert … --force), or copy it again.",
        )

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
        return self._row_at(wanted)

    @abstractmethod
    def native_table(
        self, files: list[bytes], sizes: list[int], root: bytes | None, classes: int
    ) -> NativeTable:
        """The table that gathers extents for the native core; see `ExtentTable`."""

    @abstractmethod
    def _row_at(self, position: int) -> Row: ...

    @abstractmethod
    def batches(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows from ``start`` to ``stop``, as record batches.

        Takes the same memory for any number of rows, if the consumer keeps none of them.

        Args:
            start: The first row.
            stop: One past the last; None for all from ``start``.
            columns: Which columns the batches are to have, in the order of `SCHEMA`; None for all.
                Others are not read.

        Raises:
            CorruptionError: The index is damaged, or has changed since it was opened.
        """

    def rows(self, start: int, stop: int, *, seek_points: bool = True) -> Iterator[Row]:
        """The rows from ``start`` to ``stop`` in order; see `batches` for memory.

        Without ``seek_points``, the rows have none, and damaged ones are not noticed.
        """
        names = (
            SCHEMA.names
            if seek_points
            else [name for name in SCHEMA.names if name != "seek_points"]
        )
        for batch in self.batches(start, stop, names):
            for at in range(batch.num_rows):
                yield self._as_row(batch, at, start + at)
            start += batch.num_rows

    def _as_row(self, batch: pa.RecordBatch, at: int, position: int) -> Row:
        try:
            return Row(**{name: batch.column(name)[at].as_py() for name in batch.schema.names})
        except (IndexError, UnicodeDecodeError, pa.ArrowException) as error:
            raise self.corrupt(f"is damaged at row {position}: {error}") from None

    def column(self, name: str) -> npt.NDArray[Any]:
        """One fixed-width column as an array of N values (copied: 4 or 8 bytes a row)."""
        # Copied one by one: the pieces may be views of a mapped file.
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

    @abstractmethod
    def find_file(self, number: int) -> int:
        """The first row whose ``file`` is ``number`` or more, by bisection.

        Only where rows are in the order of their ``file``, as docs/formats/index.md says.
        """

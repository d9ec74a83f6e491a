"""Files of rows with columns: the interface of a format to `fastdata.converters.tabular`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from fastdata.converters.trees import SourceFile

#: Most rows of a `Batch`.
BATCH_ROWS = 8192


class Place(NamedTuple):
    """Where a value's bytes lie; the attributes are those of `Record`."""

    path: str
    offset: int
    length: int
    mtime_ns: int
    column: str | None = None
    group: int | None = None
    problem: str | None = None


class Batch(NamedTuple):
    """Some rows of a file.

    Attributes:
        rows: Their number.
        values: Values of columns, by name; one of `fastdata.storage.arrow.python_values` each.
        places: Places of the values of columns of bytes, by name; None for nulls. Where a library
            decodes the column, nulls have a place, too.
    """

    rows: int
    values: dict[str, list[Any]]
    places: dict[str, list[Place | None]]


class OpenRows(Protocol):
    """Open file of rows; its columns are named as `stored_columns` names them."""

    @property
    def schema(self) -> pa.Schema:
        """Columns, with Hugging Face's features in the metadata, if there are any."""

    def values(self, column: str) -> Iterator[bytes | None]:
        """Yield the values of a column of bytes, from the first on, reading a few at a time."""

    def batches(self, columns: Sequence[str], blobs: Sequence[str]) -> Iterator[Batch]:
        """Yield all rows, at most `BATCH_ROWS` at a time.

        Args:
            columns: Columns whose values to read.
            blobs: Columns of bytes whose places to find.
        """

    def decoded_because(self, column: str) -> str:
        """Return why values of a column of bytes are no extents of this file; "" if all are."""

    def groups(self) -> list[list[int]]:
        """Return the rows of each row group, by file of `RowsFile.files`."""


#: Why values are no extents: the only reason for which they are no rows of a table, either.
OUTSIDE = "in files of their own"


class RowsFile(Protocol):
    """File of rows; picklable. ``str()`` returns its name for messages."""

    @property
    def name(self) -> str:
        """Its path below the source's folder, with ``/`` and without extension, for keys."""

    @property
    def files(self) -> Sequence[SourceFile]:
        """The files that it consists of."""

    def decoded(self) -> RowsFile:
        """Return the same with places of rows, not of bytes: a library decodes all columns."""

    def open(self) -> AbstractContextManager[OpenRows]:
        """Open it."""

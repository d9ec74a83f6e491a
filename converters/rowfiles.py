"""Files of rows with columns: Parquet and Arrow, and where the values of columns lie.

A format has a `RowsFile`, and an `OpenRows`, which the file's ``open`` yields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from fastdata.converters.records import Record

from fastdata.errors import FastdataError, SourceError
from fastdata.remote.answers import ChangedError
from fastdata.remote.files import SourceFile
from fastdata.storage.formats.parquet_pages import PARQUET_ERRORS

#: Most rows of a `RowBatch`.
BATCH_ROWS = 8192
#: How values of a column of bytes are kept: as extents of the file, as rows that a library decodes,
#: or, some of them, in files of their own.
EXTENTS, ROWS, OUTSIDE = "extents", "rows", "outside"


class RowBatch(NamedTuple):
    """Some rows of a file, and their values, `fastdata.storage.arrow.python_values`, by column.

    Columns of bytes have places, records without a key; None for nulls. Where a library decodes the
    column, nulls have a place, too.
    """

    rows: int
    values: dict[str, list[Any]]
    places: dict[str, list[Record | None]]


class OpenRows:
    """Open file of rows; `stored_columns` names its columns.

    The schema has Hugging Face's features in the metadata, if there are any.
    """

    schema: pa.Schema

    def values(self, column: str) -> Iterator[bytes | None]:
        """Yield the values of a column of bytes, from the first on, reading a few at a time."""
        raise NotImplementedError

    def batches(self, columns: Sequence[str], blobs: Sequence[str]) -> Iterator[RowBatch]:
        """Yield values of columns, and places of columns of bytes, of `BATCH_ROWS` at a time."""
        raise NotImplementedError

    def kept(self, column: str) -> str:
        """Return how values of a column of bytes are kept: `EXTENTS`, `ROWS` or `OUTSIDE`."""
        return EXTENTS

    def groups(self) -> list[int]:
        """Return the number of rows of each row group."""
        return []


@dataclass(frozen=True)
class RowsFile:
    """File of rows; picklable.

    ``name`` is its path below the source's folder, with ``/`` and without extension, for keys.
    Unless ``plain``, a library decodes the rows of all columns.
    """

    name: str
    file: SourceFile
    plain: bool = True

    def __str__(self) -> str:
        return str(self.file)

    def open(self) -> AbstractContextManager[OpenRows]:
        """Open it; on opening and later, `reading` turns errors into SourceError."""
        raise NotImplementedError


@contextmanager
def reading(file: object, form: str) -> Iterator[None]:
    """Say which file cannot be read as which format."""
    try:
        yield
    except ChangedError:
        raise SourceError(f"{file}: has changed meanwhile", "Run this again.") from None
    except FastdataError:
        raise
    except PARQUET_ERRORS as error:
        what = f"{file}: cannot be read as {form}: {error}"
        raise SourceError(what, "Check that it was written completely and copied whole.") from None


def stored_columns(file: RowsFile, schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the types of a file's stored columns by path in the schema, in order."""
    types: dict[str, pa.DataType] = {}

    def add(prefix: str, kind: pa.DataType) -> None:
        if pa.types.is_struct(kind):
            for number in range(kind.num_fields):
                child = kind.field(number)
                add(f"{prefix}.{child.name}", child.type)
        elif prefix in types:
            raise SourceError(f"{file}: two columns have the same path", "Rename or drop one.")
        else:
            types[prefix] = kind

    try:
        for field in schema:
            add(field.name, field.type)
    except pa.ArrowException as error:
        raise SourceError(f"{file}: its columns cannot be read: {error}") from None
    return types

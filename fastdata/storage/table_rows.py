"""Rows of an Arrow table, and the fields that its columns are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata.storage.arrow import has_nulls
from fastdata.storage.fields import Field
from fastdata.storage.source import Hints

#: Makes a Python object of a value.
Decode: TypeAlias = Callable[[Any], Any]


_HINTS = Hints(
    changed="Load the dataset again; remove its cache files before, if that fails, too.",
    missing="Put the file back, or load the dataset again.",
)


@dataclass(frozen=True)
class Part:
    """Part of a table that is a field.

    Attributes:
        field: The field.
        place: Name of a column, and of the fields in its structs.
        decode: Makes the Python object of a value of a column; None: it is as it is stored.
        type: Type that values of a column are cast to; None: as they are stored.
    """

    field: Field
    place: tuple[str, ...]
    decode: Decode | None = None
    type: pa.DataType | None = None


@dataclass(frozen=True)
class TableRows:
    """Rows of a table.

    Attributes:
        table: The table.
        parts: Its fields.
        numbers: Rows of the table, int64, (N,), that the rows are; None: all, in their order.
        classes: Names of classes.
        names: Column of the rows' names; None: they are numbered.
        files: (number of rows, path) of each file that the table is mapped from, in order; a path
            is "" for memory.
        name: Name of this content alone, for its seek points.
        location: See `Source`.
        base: Folder of relative paths.
        size: (width, height) of images that are pixels, 3 bytes each; None: they are files.
        hints: See `Source`.
    """

    table: pa.Table
    parts: Sequence[Part]
    numbers: npt.NDArray[np.int64] | None = None
    classes: Sequence[str] = ()
    names: str | None = None
    files: Sequence[tuple[int, str]] = ()
    name: str = ""
    location: Path | str = ""
    base: str = ""
    size: tuple[int, int] | None = None
    hints: Hints = _HINTS


def chunks_of(table: pa.Table, place: Sequence[str]) -> list[pa.Array]:
    """Return the chunks of a column, or of a field of its structs; extensions as stored."""
    first, *inner = place
    column, found = table.column(first), []
    for chunk in column.chunks or [pa.nulls(0, column.type)]:
        for name in inner:
            chunk = child_of(chunk, name)
        while isinstance(chunk, pa.ExtensionArray):
            chunk = chunk.storage
        found.append(chunk)
    return found


def child_of(array: pa.StructArray, name: str) -> pa.Array:
    """Return a field of structs, which is null where they are."""
    number = array.type.get_field_index(name)
    return array.flatten()[number] if array.null_count else array.field(number)


def column_path(schema: pa.Schema, column: str) -> list[str]:
    """Return the name of a column, which may have dots in it, and those of the fields inside."""
    for name in sorted(schema.names, key=len, reverse=True):
        if f"{column}.".startswith(f"{name}."):
            return [name, *filter(None, column[len(name) + 1 :].split("."))]
    return [column]


def nullable(chunks: Iterable[pa.Array]) -> bool:
    """Return whether a null is anywhere in some chunks."""
    return any(map(has_nulls, chunks))

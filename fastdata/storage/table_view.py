"""`TableView`: rows and fields of an Arrow table, as `fastdata.storage.tables` reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from fastdata.storage.fields import Field
from fastdata.storage.source import Hints, Rows

#: Makes a Python object of a value.
Decode: TypeAlias = Callable[[Any], Any]
_HINTS = Hints(
    changed="Load the dataset again; remove its cache files before, if that fails, too.",
    missing="Put the file back, or load the dataset again.",
)


@dataclass(frozen=True)
class TableField:
    """Field of the rows of a table.

    Attributes:
        field: The field.
        place: Name of a column, and of the fields in its structs.
        decode: Makes the Python object of a value of a column; None leaves values as stored.
        type: Type that values of a column are cast to; None leaves them as stored.
    """

    field: Field
    place: tuple[str, ...]
    decode: Decode | None = None
    type: pa.DataType | None = None


@dataclass(frozen=True)
class TableView:
    """Rows and fields of an Arrow table.

    Attributes:
        table: The table.
        fields: Its fields.
        numbers: Numbers of its rows in the table, int64, (N,); None: all, in their order.
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
    fields: Sequence[TableField]
    numbers: Rows | None = None
    classes: Sequence[str] = ()
    names: str | None = None
    files: Sequence[tuple[int, str]] = ()
    name: str = ""
    location: Path | str = ""
    base: str = ""
    size: tuple[int, int] | None = None
    hints: Hints = _HINTS

"""Source of image files in a list, with annotations that are read as they are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fastdata import _native
from fastdata.errors import LEAVE_OUT, FastdataError, SampleError
from fastdata.storage.arrow import as_arrow
from fastdata.storage.columns import as_objects
from fastdata.storage.fields import BLOBS, IMAGE, Field
from fastdata.storage.files import code_of
from fastdata.storage.listed import FilesSource
from fastdata.storage.source import Blob, BlobColumn, Column, Gathered, Rows

_HINT = f"Correct them, or {LEAVE_OUT}"


@dataclass(frozen=True)
class Annotated:
    """List of image files with annotations.

    Attributes:
        samples: (path, -1) of each image.
        fields: Fields beside the image: columns, and blobs with a file a row. A column without a
            type has Python objects.
        read: Returns a row's values of the columns, by name: for lists NumPy arrays, Python lists
            if they are nested, or None. It may raise anything.
        files: Files of each field of blobs, by name.
        classes: Names of classes.
    """

    samples: Sequence[tuple[Any, int]]
    fields: Sequence[Field]
    read: Callable[[int], Mapping[str, Any]]
    files: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    classes: Sequence[str] = ()


class AnnotatedSource(FilesSource):
    """Source of image files with annotations, which stay in memory once they are read."""

    def __init__(self, annotated: Annotated, location: Path | str = "") -> None:
        super().__init__(annotated, location)
        self._annotated = annotated
        self._values: dict[int, Mapping[str, Any]] = {}
        self.fields = (IMAGE, *annotated.fields)

    def column(self, field: str, rows: Rows | None = None) -> Column:
        """See `Source.column`. SampleError: annotations of a row cannot be used."""
        column = self.field(field, ("column",))
        numbers = range(len(self)) if rows is None else rows.tolist()
        values = [self._row(row)[field] for row in numbers]
        try:
            return _as_column(values, column)
        except Exception:
            for row in numbers:  # the error names its row
                self._called(lambda one: _as_column([self._row(one)[field]], column), row)
            raise

    def _row(self, row: int) -> Mapping[str, Any]:
        """Return a row's values."""
        values = self._values.get(row)
        if values is None:
            values = self._values[row] = self._called(self._annotated.read, row)
        return values

    def _called(self, function: Callable[[int], Any], row: int) -> Any:
        """Return what a function of a row returns; its errors name the row."""
        try:
            return function(row)
        except FileNotFoundError as error:
            detail = f"its annotations are missing: {error.filename}"
            raise self.problem(row, detail, "file_missing") from None
        except OSError as error:
            detail = f"its annotations cannot be read: {error}"
            raise self.problem(row, detail, code_of(error)) from None
        except SampleError as error:
            raise self.problem(row, error.what, hint=error.hint) from None
        except FastdataError:
            raise
        except Exception as error:
            detail = f"its annotations cannot be used: {type(error).__name__}: {error}"
            raise self.problem(row, detail, hint=_HINT) from error

    def gather(self, rows: Rows, fields: Sequence[str] = ("image",)) -> Gathered:
        """See `Source.gather`."""
        own = [name for name in fields if name in self._annotated.files]
        images = [one for one in fields if one not in own and self.field(one).kind in BLOBS]
        blobs = dict(super().gather(rows, images).blobs) if images else {}
        for name in own:
            files = self._annotated.files[name]
            blobs[name] = BlobColumn(_native.Extents([str(files[row]) for row in rows.tolist()]))
        columns = {name: self.column(name, rows) for name in fields if name not in blobs}
        return Gathered(blobs, columns)

    def encoded(self, row: int, field: str = "image", data: bytes | None = None) -> Blob:
        """See `Source.encoded`."""
        files = self._annotated.files.get(field)
        if files is None or data is not None:
            return super().encoded(row, field, data)
        return self._file(row, str(files[row]), field)


def _as_column(values: Sequence[Any], field: Field) -> Column:
    """Return values as a column: NumPy's numbers or objects, or Arrow's lists."""
    if field.type is None:
        return as_objects(values)
    if not pa.types.is_list(field.type):
        return np.array(values, field.type.to_pandas_dtype())
    lacks = np.array([one is None for one in values], np.bool_)
    lists = [one for one in values if one is not None]
    if any(isinstance(one, list) for one in lists):
        return pa.array(values, field.type)
    lengths = np.zeros(len(values) + 1, np.int32)
    lengths[1:][~lacks] = [len(one) for one in lists]
    ends = pa.array(np.cumsum(lengths, dtype=np.int32), mask=np.append(lacks, False))
    items = as_arrow(np.concatenate(lists)) if lists else pa.array([], field.type.value_type)
    return pa.ListArray.from_arrays(ends, items).cast(field.type)

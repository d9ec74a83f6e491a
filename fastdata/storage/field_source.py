"""Source of one field's blobs, for decoders of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastdata.errors import LEAVE_OUT, FastdataError, SampleError
from fastdata.storage.source import Blob, Column, ExtentTable, Gathered, Rows, Source


class MissingError(SampleError):
    """Error of a sample that lacks an image other than its first."""


_LACKS = f"Give a collate_fn, which gets None; or {LEAVE_OUT}"


class FieldSource(Source):
    """Source with the rows of another one, whose image is its field ``name``."""

    def __init__(self, source: Source, field: str) -> None:
        self._source, self.name = source, field
        self.location, self.hints = source.location, source.hints
        self.capabilities = replace(source.capabilities, stride=0)

    def __len__(self) -> int:
        return len(self._source)

    @property
    def classes(self) -> Sequence[str]:
        return self._source.classes

    def is_fetched(self, row: int) -> bool:
        return self._source.is_fetched(row)

    def key(self, row: int) -> str:
        return self._source.key(row)

    def describe(self, row: int) -> str:
        return f"{self._source.describe(row)}, its {self.name}"

    def problem(self, row: int, detail: str, code: str = "", hint: str = "") -> FastdataError:
        return self._source.problem(row, f"its {self.name}: {detail}", code, hint)

    def encoded(self, row: int, field: str = "image", data: bytes | None = None) -> Blob:
        """See `Source.encoded`. MissingError: the row has no such blob."""
        blob = self._source.encoded(row, self.name, data)
        if not blob.data:
            error = self._source.problem(row, f"it has no {self.name}", hint=_LACKS)
            raise MissingError(error.what, error.hint) if type(error) is SampleError else error
        return blob

    def column(self, field: str, rows: Rows | None = None) -> Column:
        return self._source.column(field, rows)

    def table_of(self, field: str = "image") -> ExtentTable | None:
        return self._source.table_of(self.name)

    def gather(self, rows: Rows, fields: Sequence[str] = ("image",)) -> Gathered:
        return Gathered({"image": self._source.gather(rows, [self.name]).blobs[self.name]}, {})

"""Source of the rows of an Arrow table, as a Hugging Face dataset has them.

Images are values of the table, where they lie in memory or in a mapped file, or files that it
names. Nothing is copied: the core decodes from the table's own memory.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata.errors import FastdataError, printable
from fastdata.once import once
from fastdata.storage.arrow import child_of, chunks_of, stored_type
from fastdata.storage.columns import KEPT_BYTES, as_column, as_objects, joined, values_in
from fastdata.storage.field_source import MissingError
from fastdata.storage.fields import BLOBS, LABEL, Field
from fastdata.storage.listed import UnindexedSource
from fastdata.storage.source import Blob, BlobColumn, Column, Gathered, Rows, Source
from fastdata.storage.table_view import Decode, TableView


class TableSource(UnindexedSource):
    """Source of the rows of a table.

    ``like``: a source of the same rows, with which it shares columns and formats of fields.
    """

    def __init__(self, rows: TableView, like: Source | None = None) -> None:
        self._rows, self.location, self.hints = rows, rows.location, rows.hints
        numbers = rows.numbers
        super().__init__(rows.table.num_rows if numbers is None else len(numbers))
        if rows.size is not None:
            self._sizes[:], self._encodings[:] = rows.size, _RAW
        self._stored = {one.field.name: one for one in rows.fields}
        self._blobs: dict[str, _Blobs] = {}
        self._columns: dict[tuple[str, ...], TableColumn] = {}
        self.fields: Sequence[Field] = tuple(one.field for one in rows.fields)
        if isinstance(like, TableSource):
            self.fields, self.upright = like.fields, like.upright
            self._blobs, self._columns = like._blobs, like._columns

    @property
    def classes(self) -> Sequence[str]:
        return self._rows.classes

    def __len__(self) -> int:
        return len(self._encodings)

    @property
    def summary(self) -> str:
        return f"{super().summary} in a table"

    @property
    def image_size(self) -> tuple[int, int] | None:
        return self._rows.size

    def _images_of(self, rows: Rows) -> Rows:
        """Return the places of rows in the table."""
        return rows if self._rows.numbers is None else self._rows.numbers[rows]

    def _place(self, row: int) -> int:
        return row if self._rows.numbers is None else int(self._rows.numbers[row])

    def _identity(self) -> tuple[str, int]:
        """See `UnindexedSource._identity`: the table's content."""
        return self._rows.name, self._rows.table.num_rows

    def key(self, row: int) -> str:
        """See `Source.key`: its number in the table and its path, unless a column has names."""
        place = self._place(row)
        if self._rows.names is not None:
            name = self._column((self._rows.names,)).values(np.array([place]))[0]
            return str(name.as_py() if name.is_valid else place)
        images = next((one.name for one in self.fields if one.kind == "image"), None)
        path = None if images is None else self._blobs_of(images).path(place)
        return f"{place}" if path is None else f"{place}:{path}"

    def describe(self, row: int) -> str:
        place = self._place(row)
        ends = list(accumulate(count for count, _ in self._rows.files))
        number = bisect_right(ends, place)
        path = self._rows.files[number][1] if number < len(ends) else ""
        key, where = self.key(row), f" in {path}" if path else ""
        images = next((one.name for one in self.fields if one.kind == "image"), None)
        (file,) = [""] if images is None else self._blobs_of(images).paths(np.array([place]))
        if file and file not in key:
            where = f" at {file}"
        return f"{self.location}: sample {row} ({printable(key)}){where}"

    def gather(self, rows: Rows, fields: Sequence[str] = ("image",)) -> Gathered:
        blobs, columns = {}, {}
        for name in fields:
            if self.field(name).kind not in BLOBS:
                columns[name] = self.column(name, rows)
                continue
            places = self._images_of(rows)
            stored = self._blobs_of(name)
            paths = stored.paths(places)
            if name == "image":
                blobs[name] = self._images(rows, paths, self._rows.size is not None)
            else:
                turns = self.upright and self.field(name).kind == "image"
                unknown = np.full(len(rows), -1, np.int8) if turns else None
                blobs[name] = BlobColumn(_native.Extents(paths, orientations=unknown))
            stored.attach(blobs[name].extents, places)
        return Gathered(blobs, columns)

    def encoded(self, row: int, field: str = "image", data: bytes | None = None) -> Blob:
        self.field(field, BLOBS)
        raw = self._rows.size if field == "image" else None
        if data is not None:
            return self._turned(data, field) if raw is None else Blob(data, "raw", *raw)
        stored, places = self._blobs_of(field), np.array([self._place(row)])
        (path,) = stored.paths(places)
        if path:
            if "://" in path:
                detail = f"its {field} is at {path}, which is not on this machine"
                raise self.problem(row, detail, "file_missing", _EMBED)
            return self._file(row, path, field)
        extents = _native.Extents([path])
        stored.attach(extents, places)
        try:
            data = extents.read(0)
        except ValueError as error:
            raise self.problem(row, str(error).removeprefix(": "), "corrupt_index") from None
        if not data and field == "image":
            missing = self.problem(row, "it has no image")
            raise MissingError(missing.what, missing.hint)
        if raw is not None:
            return Blob(data, "raw", *raw)
        # An empty value is one, and a null none.
        return self._turned(data, field)._replace(checked=not data and bool(extents.offsets[0]))

    def column(self, field: str, rows: Rows | None = None) -> Column:
        """See `Source.column`. SampleError: a value cannot be decoded."""
        column = self.field(field, ("column",))
        stored = self._stored[field]
        places = self._rows.numbers if rows is None else self._images_of(rows)
        values = self._column(stored.place).values(places)
        if column == LABEL:
            labels: npt.NDArray[Any] = np.array(as_column(values), np.int64)
            return labels
        if stored.decode is not None:
            return as_objects(self._decoded(stored.decode, field, values, rows))
        kind = stored.type or stored_type(values.type)
        if kind != values.type:
            values = values.cast(kind)
        return values if column.nullable else as_column(values)

    def _decoded(
        self, decode: Decode, field: str, values: pa.Array, rows: Rows | None
    ) -> list[Any]:
        """Return values after a function of another library, which may raise anything."""
        objects = []
        for slot, value in enumerate(values.to_pylist()):
            try:
                objects.append(None if value is None else decode(value))
            except FastdataError:
                raise
            except Exception as error:
                row = slot if rows is None else int(rows[slot])
                detail = f"its {field} cannot be decoded: {type(error).__name__}: {error}"
                raise self.problem(row, detail) from error
        return objects

    def _blobs_of(self, field: str) -> _Blobs:
        blobs = self._blobs.get(field)
        if blobs is None:
            chunks = chunks_of(self._rows.table, self._stored[field].place)
            blobs = self._blobs[field] = _Blobs(chunks, self._rows.base)
        return blobs

    def _column(self, place: tuple[str, ...]) -> TableColumn:
        column = self._columns.get(place)
        if column is None:
            column = self._columns[place] = TableColumn(chunks_of(self._rows.table, place))
        return column


_RAW = _native.ENCODINGS.index("raw")
_EMBED = (
    "Put the bytes into the table: dataset.with_format('arrow').map("
    "datasets.table.embed_table_storage, batched=True).with_format(None)"
)


class TableColumn:
    """Values of a column, in chunks of one type; small ones are joined on first use."""

    def __init__(self, chunks: Sequence[pa.Array]) -> None:
        self._chunks = chunks
        self._starts = np.cumsum([0, *map(len, chunks)])
        self._whole: pa.Array | None = None

    @once
    def _is_small(self) -> bool:
        """Whether all values may be in memory; one chunk stays where it is."""
        return len(self._chunks) == 1 or sum(one.nbytes for one in self._chunks) <= KEPT_BYTES

    @once
    def _takes(self) -> bool:
        """Whether Arrow can take values at places; of views of text, it cannot."""
        try:
            self._chunks[0][:0].take(pa.nulls(0, pa.int64()))
        except pa.ArrowNotImplementedError:
            return False
        return True

    def values(self, places: Rows | None) -> pa.Array:
        """Return the values at some places, in their order; all without ``places``."""
        whole = self._whole
        if whole is None and (places is None or self._is_small):
            whole = joined(self._chunks)
            if self._is_small:
                self._whole = whole
        if whole is not None and (places is None or self._takes):
            return whole if places is None else joined([whole], places)
        assert places is not None
        if not len(places):
            return self._chunks[0][:0]
        numbers = np.searchsorted(self._starts, places, "right") - 1
        chunks = self._chunks
        if not self._takes:
            pairs = zip(numbers.tolist(), (places - self._starts[numbers]).tolist(), strict=True)
            return pa.concat_arrays([chunks[number][at : at + 1] for number, at in pairs])
        return values_in(
            lambda chosen: [chunks[one] for one in chosen], numbers, places - self._starts[numbers]
        )


class _Blobs:
    """Images or other files of a table: structs of ``bytes``, or else a ``path`` below ``base``."""

    def __init__(self, chunks: Sequence[pa.Array], base: str) -> None:
        self._base = base
        contents = [_binary(child_of(chunk, "bytes")) for chunk in chunks]
        self._column = _native.BinaryColumn(list(map(_native_chunk, contents)))
        self._lacks = any(chunk.null_count for chunk in contents)
        self._paths = TableColumn([child_of(chunk, "path") for chunk in chunks])

    def path(self, place: int) -> str | None:
        """Return the path in a row; it may name an archive's member."""
        path: str | None = self._paths.values(np.array([place]))[0].as_py()
        return path

    def paths(self, places: Rows) -> list[str]:
        """Return the files of rows that hold no bytes; "" for rows that do."""
        files = [""] * len(places)
        if self._lacks:
            slots = np.flatnonzero(self._column.lengths(places) < 0)
            values = self._paths.values(places[slots]).to_pylist() if len(slots) else ()
            for slot, path in zip(slots.tolist(), values, strict=True):
                if path and "\0" not in path:  # it would end the path
                    files[slot] = path if "://" in path else os.path.join(self._base, path)
        return files

    def attach(self, extents: _native.Extents, places: Rows) -> None:
        """Set the bytes of rows that have no path."""
        extents.attach_column(self._column, places)


def _binary(chunk: pa.Array) -> pa.Array:
    """Return bytes in a layout of offsets: views are copied."""
    types, kind = pa.types, chunk.type
    if types.is_binary(kind) or types.is_large_binary(kind):
        return chunk
    return chunk.cast(pa.large_binary())


def _native_chunk(chunk: pa.Array) -> tuple[Any, ...]:
    validity, offsets, data = chunk.buffers()
    wide = pa.types.is_large_binary(chunk.type)
    return len(chunk), chunk.offset, wide, validity if chunk.null_count else None, offsets, data

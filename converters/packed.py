"""Packed dataset as a source, to pack it again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fastdata.converters.records import ImageSource, Listable, Record

from fastdata.remote.files import file_at
from fastdata.remote.manifests import images_url
from fastdata.remote.opening import open_packed
from fastdata.remote.urls import is_url, join_url, redact
from fastdata.storage.arrow import as_arrow, python_values
from fastdata.storage.fields import BLOBS, IMAGE, LABEL
from fastdata.storage.manifest import Manifest
from fastdata.storage.packed import IndexedSource
from fastdata.storage.records import ROWS_PER_BATCH, Row
from fastdata.storage.row_groups import VALUE_BITS, split_name, starts_of
from fastdata.storage.shapes import with_formats, with_masks

#: Rows of the index that one task lists.
_ROWS_PER_SHARD = 65_536


class PackedDataset(ImageSource):
    """Source of a packed dataset's samples, in the dataset's order.

    Bytes, keys, labels and classes are the dataset's. Every image is checked against its
    checksum; a damaged one is a bad sample.

    Args:
        formats: Formats of fields whose values lie in the image, such as ``{"boxes": "xywh"}``;
            see docs/formats/fields.md.
        masks: Fields of masks, images whose pixels are numbers.

    Attributes:
        packed_order: The manifest's fields for the order of its samples.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        formats: Mapping[str, str] | None = None,
        masks: Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._options = dict(storage_options or {})
        self._place = os.fspath(root) if is_url(root) else str(Path(root).absolute())
        shown = redact(self._place) if is_url(root) else str(Path(root).resolve())
        manifest = open_packed(self._place, self._options).manifest
        self._samples = manifest.samples
        self.classes = manifest.classes if LABEL in manifest.field_list else []
        fields = [one for one in manifest.field_list if one.name not in (IMAGE.name, LABEL.name)]
        self.fields = with_masks(with_formats(fields, formats, shown), masks, shown)
        self.packed_order = {"order": manifest.order, "seed": manifest.seed}
        root_of_images = _images_root(self._place, manifest)
        self.root = root_of_images if manifest.groups is None else None
        self.inputs = [self._place if is_url(root) else Path(self._place)]
        self.origin: dict[str, Any] = {"kind": "fastdata", "root": shown, "of": manifest.source}
        if "exif_transpose" in manifest.source:
            self.origin["exif_transpose"] = manifest.source["exif_transpose"]

    def shards(self) -> Sequence[Listable]:
        """Return shards of the index's rows; one for a URL, whose index is fetched once."""
        rows = self._samples
        step = rows if is_url(self._place) else _ROWS_PER_SHARD
        starts = range(0, rows, max(step, 1))
        return [PackedRows(self._place, at, min(at + step, rows), self._options) for at in starts]


def _images_root(place: str, manifest: Manifest) -> str | None:
    if manifest.root is None:
        return None
    root = images_url(place, manifest.root)
    return root if is_url(root) else str(Path(root).resolve())


class PackedRows(NamedTuple):
    """Some rows of a dataset's index, from ``start`` to ``stop``: a shard of a listing."""

    place: str
    start: int
    stop: int
    options: dict[str, Any]

    def records(self) -> Iterator[Record]:
        """Yield the records of its rows."""
        blobs = open_packed(self.place, self.options)
        where = self._finder(blobs.manifest)
        rows = blobs.index.rows(self.start, self.stop, seek_points=False)
        labels = range(len(blobs.manifest.classes))
        if LABEL not in blobs.manifest.field_list:
            labels = range(1 << 31)
        for (number, row), fields in zip(
            enumerate(rows, self.start), self._fields_of(blobs), strict=True
        ):
            values = []
            for name, value in fields.items():
                if isinstance(value, Row):
                    blobs.file(value, number)
                    own = f"{row.key}\0{name}"
                    value = Record(own, 0, **where(value)) if value.channels else None
                values.append(value)
            blobs.file(row, number)  # raises if the index is damaged
            yield Record(
                row.key,
                row.label,
                **where(row),
                pixels=(row.height, row.width) if row.encoding == "raw" else None,
                problem=None if row.label in labels else "its label is no class's",
                orientation=row.orientation,
                fields=tuple(values),
            )

    def _fields_of(self, source: IndexedSource) -> Iterator[dict[str, Any]]:
        """Yield the other fields of each row: values, and index rows of blobs."""
        for first in range(self.start, self.stop, ROWS_PER_BATCH):
            stop = min(first + ROWS_PER_BATCH, self.stop)
            columns: dict[str, list[Any]] = {}
            for field in source.fields:
                if field.kind in BLOBS and field != IMAGE:
                    index = source.index_of(field.name)
                    columns[field.name] = list(index.rows(first, stop, seek_points=False))
                elif field.kind == "column" and field != LABEL:
                    values = source.column(field.name, np.arange(first, stop))
                    columns[field.name] = python_values(as_arrow(values))
            for at in range(stop - first):
                yield {name: column[at] for name, column in columns.items()}

    def _finder(self, manifest: Manifest) -> Callable[[Row], dict[str, Any]]:
        """Return a function that says where a blob lies, as attributes of its record."""
        root, states = _images_root(self.place, manifest), dict[str, int]()

        def where(row: Row) -> dict[str, Any]:
            name = manifest.files[row.file].name if row.path is None else row.path
            path = join_url(root or self.place, name)
            place: dict[str, Any] = {"length": row.length, "crc32c": row.crc32c}
            if manifest.groups is None:
                # The checksum detects changes, so no modification time is needed.
                return {"path": path, "offset": row.offset, "mtime_ns": 0, **place}
            table, column = split_name(path)
            if table not in states:
                states[table] = file_at(table, self.options).mtime_ns
            number, starts = row.offset >> VALUE_BITS, starts_of(manifest.groups[row.file])
            group = int(np.searchsorted(starts[:-1], number, "right")) - 1
            place |= {"path": table, "offset": number, "mtime_ns": states[table]}
            return place | {"column": column, "group": group}

        return where

"""Datasets of the library ``datasets`` as rows of a table; it is not imported here."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fastdata.errors import UsageError
from fastdata.storage.arrow import as_numpy, chunks_of, nullable, stored_type
from fastdata.storage.fields import IMAGE, LABEL, Field
from fastdata.storage.table_view import Decode, TableField, TableView

#: Words in the name of a column of images whose pixels are numbers of classes or objects.
_MASKS = frozenset(
    {
        *("annotation", "annotations", "depth", "gt", "instance", "label", "labels", "mask"),
        *("masks", "panoptic", "seg", "segm", "segmentation", "semantic", "trimap"),
    }
)
#: Features whose values are files.
_BLOBS = ("Audio", "Mesh", "Nifti", "Pdf", "Video")
#: Modes of images that this package makes of all, by Pillow's names.
_PLAIN = (None, "RGB")
#: Kinds of columns of images.
_KINDS = ("image", "mask")
#: Columns of names and of classes that the loader of WebDatasets makes.
_KEYS, _CLASSES = "__key__", "cls"


def split_formats(formats: Any) -> tuple[Any, dict[str, str]]:
    """Return formats of columns, and those that are kinds of images."""
    if not isinstance(formats, Mapping):
        return formats, {}
    kinds = {name: one for name, one in formats.items() if one in _KINDS}
    return {name: one for name, one in formats.items() if name not in kinds}, kinds


def names_mask(column: str) -> bool:
    """Return whether a column of images has the name of masks."""
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower())
    return bool(_MASKS & {*words})


class Hub(NamedTuple):
    """Rows of a dataset of `datasets`, and the mode that it converts images to, if it does."""

    rows: TableView
    mode: str | None


def dataset_class() -> Any:
    """Return ``datasets.Dataset``; None if the library is not imported."""
    return getattr(sys.modules.get("datasets.arrow_dataset"), "Dataset", None)


def is_hub(dataset: Any) -> bool:
    """Return whether an object is a ``datasets.Dataset``."""
    known = dataset_class()
    return known is not None and isinstance(dataset, known)


def open_hub(dataset: Any, kinds: Mapping[str, str], base: str) -> Hub:
    """Return a dataset as rows of a table. Reads no values but of the table's schema.

    Args:
        dataset: A ``datasets.Dataset``; one without images is a UsageError.
        kinds: "image" or "mask" for columns of images, instead of what their names say.
        base: Folder of relative paths of images.
    """
    table = dataset.data.table
    files = list(_files(dataset.data))
    paths = [path for _, path in files if path]
    location = Path(paths[0]).parent if paths else _NAME
    stored = _TableFields(table, dict(dataset.features), dict(kinds), location)
    numbers = None
    if dataset._indices is not None:
        column = chunks_of(dataset._indices.table, ("indices",))
        numbers = as_numpy(pa.concat_arrays(column)).view(np.int64)
    names = _KEYS if _KEYS in table.column_names else None
    own = os.path.join(location, _digest(dataset, paths))
    rest = names, files, own, location, base
    return Hub(TableView(table, stored.fields, numbers, stored.classes, *rest), stored.mode)


def images_of(dataset: Any) -> list[str]:
    """Return the columns of a dataset that are images which it decodes."""
    features = dataset.features.items()
    return [name for name, one in features if _kind(one) == "Image" and one.decode]


_NAME = "datasets.Dataset"


def _files(data: Any) -> Iterator[tuple[int, str]]:
    """Yield (rows, path) of a table's blocks, in order; "" for those in memory."""
    for block in getattr(data, "blocks", [[data]]):
        first = block[0] if isinstance(block, list) else block
        yield len(first), getattr(first, "path", "")


def _digest(dataset: Any, paths: list[str]) -> str:
    """Return a name of a table's content, whatever the order of the dataset's rows."""
    digest = hashlib.sha256()
    for block in getattr(dataset.data, "blocks", [[dataset.data]]):
        for table in block if isinstance(block, list) else [block]:
            digest.update(repr(getattr(table, "replays", dataset._fingerprint)).encode())
    for path in paths:
        digest.update(path.encode(errors="surrogateescape"))
        with suppress(OSError):
            digest.update(str(os.stat(path).st_mtime_ns).encode())
    return digest.hexdigest()[:16]


class _TableFields:
    """Fields of a dataset's features, mode of its images, and names of the classes of ``label``."""

    def __init__(
        self, table: pa.Table, features: dict[str, Any], kinds: dict[str, str], where: Any
    ) -> None:
        self._table, self._kinds, self._where = table, kinds, where
        self.fields: list[TableField] = []
        self.classes: list[str] = []
        self._flat = dict(_flattened(features))
        image = self._image()
        label = self._label()
        self.mode = self._flat[image].mode
        self.fields.append(TableField(IMAGE, image))
        if label is not None:
            self.classes = list(getattr(self._flat[label], "names", None) or ())
            self.fields.append(TableField(LABEL, label))
        for place, feature in self._flat.items():
            name = ".".join(place)
            if place != image and (name != LABEL.name or label is None):
                self._add(f"{name}_" if name == IMAGE.name else name, place, feature)
        images = [one.field.name for one in self.fields if one.field.kind in _KINDS]
        for name in kinds:
            if name not in images:
                raise UsageError(
                    f"{where}: formats= has {kinds[name]!r} for {name!r}",
                    f'"image" and "mask" are for its columns of images: {", ".join(images)}.',
                )

    def _image(self) -> tuple[str, ...]:
        """Return the place of the image of a row."""
        places = [place for place, one in self._flat.items() if _kind(one) == "Image"]
        if not places:
            raise UsageError(
                f"{self._where}: none of its columns is datasets.Image: "
                f"{', '.join(map('.'.join, self._flat))}",
                "For bytes, paths, or structs of both: "
                "dataset = dataset.cast_column(NAME, datasets.Image()).",
            )
        if (IMAGE.name,) in places:
            return (IMAGE.name,)
        return next((place for place in places if not self._is_mask(place)), places[0])

    def _is_mask(self, place: tuple[str, ...]) -> bool:
        name = ".".join(place)
        return self._kinds.get(name, "mask" if names_mask(name) else "image") == "mask"

    def _label(self) -> tuple[str, ...] | None:
        """Return the place of the class of a row: a column of whole numbers without nulls."""
        own = (LABEL.name,)
        if own in self._flat:
            return own if self._is_label(own) else None
        classes = [place for place, one in self._flat.items() if _kind(one) == "ClassLabel"]
        several = [*(one for one in classes if len(one) == 1), (_CLASSES,)]
        return next((one for one in several if one in self._flat and self._is_label(one)), None)

    def _is_label(self, place: tuple[str, ...]) -> bool:
        if _kind(self._flat[place]) not in ("ClassLabel", "Value"):
            return False
        chunks = chunks_of(self._table, place)
        return bool(pa.types.is_integer(chunks[0].type)) and not nullable(chunks)

    def _add(self, name: str, place: tuple[str, ...], feature: Any) -> None:
        """Add the field of a column beside image and label."""
        kind, chunks = _kind(feature), chunks_of(self._table, place)
        lacks = nullable(chunks)
        if kind == "Image" and feature.mode in _PLAIN:
            kind = "mask" if feature.mode is None and self._is_mask(place) else "image"
            self.fields.append(TableField(Field(name, kind, None, True), place))
        elif kind in _BLOBS:
            self.fields.append(TableField(Field(name, "blob", None, True), place))
        elif (decode := _decoder(feature)) is not None:
            self.fields.append(TableField(Field(name, "column", None, lacks), place, decode))
        else:
            stored = _shaped(feature, stored_type(chunks[0].type))
            self.fields.append(TableField(Field(name, "column", stored, lacks), place, type=stored))


def _kind(feature: Any) -> str:
    """Return the name of a feature's class; "" for dicts and lists."""
    return str(getattr(feature, "_type", ""))


def _flattened(
    features: Mapping[str, Any], before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (place, feature) of columns, and of the items of their dicts, at any depth."""
    for name, feature in features.items():
        yield (*before, name), feature
        if isinstance(feature, dict):
            yield from _flattened(feature, (*before, name))


def _decoder(feature: Any) -> Decode | None:
    """Return the function of ``datasets`` that makes Python objects; None: it has none to make."""
    if not _has_decoder(feature):
        return None
    module = sys.modules["datasets.features.features"]
    return partial(module.decode_nested_example, feature)


def _has_decoder(feature: Any) -> bool:
    """Return whether values of a feature are decoded, at any depth."""
    if isinstance(feature, dict):
        return any(map(_has_decoder, feature.values()))
    if isinstance(feature, (list, tuple)):
        return any(map(_has_decoder, feature))
    inner = getattr(feature, "feature", None)
    if inner is not None:
        return _has_decoder(inner)
    return hasattr(feature, "decode_example") and bool(getattr(feature, "decode", True))


def _shaped(feature: Any, kind: pa.DataType) -> pa.DataType:
    """Return the type of arrays of one shape, instead of lists of lists."""
    shape = getattr(feature, "shape", None)
    if not isinstance(shape, tuple):
        return kind
    for _ in shape:
        kind = kind.value_type
    for size in reversed(shape):
        kind = pa.list_(kind) if size is None else pa.list_(kind, size)
    return kind

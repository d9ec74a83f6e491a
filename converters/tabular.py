"""Sources of rows with columns: images, and perhaps labels, keys and other fields.

Columns of Parquet and Arrow files (`fastdata.converters.rowfiles`) get their meaning here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from fastdata.converters.records import MOST_CLASSES, ImageSource, Record, Tables, has_image
from fastdata.converters.rowfiles import (
    EXTENTS,
    OUTSIDE,
    OpenRows,
    RowBatch,
    RowsFile,
    stored_columns,
)
from fastdata.converters.rows import column_path

from fastdata.errors import SourceError, UsageError
from fastdata.once import once
from fastdata.remote.files import SourceFile
from fastdata.storage.arrow import stored_type
from fastdata.storage.fields import Field
from fastdata.storage.jsontext import parse_json
from fastdata.storage.shapes import with_formats, with_masks

#: Usual names of a column of class indices or class names, the likelier first.
_LABELS = ("label", "labels", "class", "class_id", "class_idx", "class_name", "category", "target",
           "digit", "noun_id", "fine_label", "cls", "y")  # fmt: skip
_IMAGES = ("image", "img", "jpeg", "jpg", "png", "image_bytes", "picture", "content")
#: Usual names of a column of keys; `datasets` calls the keys of WebDatasets ``__key__``.
_KEYS = ("key", "__key__")
#: Hive's and Spark's name for the folder of rows without a value.
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
#: Whole numbers in folders' names; 007 is text.
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")


def is_unnamed(column: str) -> bool:
    """Return whether a column has no name of its own: one such as pandas' index, or __url__."""
    return re.fullmatch(r"|Unnamed: \d+|__.*", column, re.DOTALL) is not None


def describe_columns(
    roles: Mapping[str, str | None], fields: Iterable[Field], left_out: Iterable[str]
) -> str:
    """Return the columns that are packed and left out, as text."""
    taken = [f"{role} from {column}" for role, column in roles.items() if column]
    names = ", ".join(field.name for field in fields)
    taken += [f"fields {names}"] * bool(names)
    omitted = ", ".join(name or "the column without a name" for name in left_out)
    return ", ".join(taken) + (f"; left out: {omitted}" if omitted else "")


def require_columns(place: object, wanted: Iterable[str], there: Collection[str]) -> None:
    """Raise UsageError for a missing column."""
    for name in wanted:
        if name not in there:
            what = f"{place}: has no other column {name} (it has: {', '.join(there) or 'none'})"
            raise UsageError(what, "Name others with --fields.")


def taken_split(
    where: object, split: str | None, splits: Sequence[str], *, one: bool = False
) -> str | None:
    """Return the split to take, which must be one of those found; with ``one``, not all of them."""
    if split is not None and split not in splits:
        there = ", ".join(splits) or "none"
        raise UsageError(f"{where}: has no split {split!r}", f"It has {there}.")
    if one and split is None and len(splits) > 1:
        raise UsageError(f"{where}: has the splits {', '.join(splits)}", "Name one: --split.")
    return splits[0] if one and split is None and splits else split


class TabularImages(ImageSource):
    """Source of the rows of files with columns, by file and then row.

    The image column contains the bytes of image files, or Hugging Face's structs of ``bytes`` and
    ``path``. Labels are integers, or class names, which are sorted. Class names of integer labels
    come from the column ``class``, or from Hugging Face's features; else they are the numbers.

    A key is the value of the key column, else ``<file>/<row>``. A row whose image or label is
    null is a bad sample.

    The default image column is the only one whose values are images; of several in Hugging Face's
    features, ``image`` or the first. The default label column
    has a usual name, or is the only ``ClassLabel`` of Hugging Face's features. Nothing else is
    guessed.

    Each other column is a field of the column's type. A column of image files is a field of images,
    any other column of bytes one of blobs. A null there is no error. `columns_taken` lists the
    columns that are packed and left out.

    Args:
        image_column: The column of images; a struct's field after a dot.
        key_column: The column of keys; None for ``key`` or ``__key__`` if it exists.
        formats: Formats of columns whose values lie in the image, such as ``{"boxes": "xywh"}``;
            see docs/formats/fields.md.
        masks: Fields of masks, images whose pixels are numbers.
        others: Returns the files of the other splits: the class names of all splits are sorted
            together, so that a class has one number.
    """

    key_hint = "Name a column of keys with --key-column"

    def __init__(
        self,
        files: Iterable[RowsFile],
        where: str,
        kind: str,
        split: str | None = None,
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        fields: Sequence[str] | None = None,
        formats: Mapping[str, str] | None = None,
        masks: Sequence[str] = (),
        others: Callable[[], Iterable[RowsFile]] = tuple,
    ) -> None:
        self._files = list(files)
        self._where = where
        self.inputs = [rows.file.location for rows in self._files]
        self._left_out: list[str] = []
        self._first = next(filter(_has_rows, self._files), self._files[0])
        with self._first.open() as first:
            self._columns = self._choose(first, image_column, label_column, key_column)
            chosen, self._leaves = self._choose_fields(first, fields)
        self.fields = with_masks(with_formats(chosen, formats, where), masks, where)
        self.classes = self._find_classes(others) if self._columns.label else []
        columns = [self._columns.image, self._columns.label, self._columns.key]
        self.origin: dict[str, Any] = {"kind": kind, "root": where, "columns": columns}
        # The index has the names of the label's classes alone.
        names = {f.name: self._features[f.name] for f in self.fields if f.name in self._features}
        self.origin |= {"names": names} if names else {}
        self.origin |= {"split": split} if split is not None else {}

    @property
    def columns_taken(self) -> str:
        """Columns that are packed and left out, as text."""
        chosen = self._columns
        key = chosen.key or "file and row number"
        roles = {"images": chosen.image, "labels": chosen.label, "class names": chosen.names_in}
        return describe_columns(roles | {"keys": key}, self.fields, self._left_out)

    @once
    def _kept(self) -> set[str]:
        """How images and blobs are kept: `EXTENTS`, `ROWS`, `OUTSIDE`."""
        ways: set[str] = set()
        for rows in self._files:
            with rows.open() as file:
                ways |= set(map(file.kept, self._blob_leaves))
        return ways

    @once
    def archives(self) -> Sequence[SourceFile] | None:
        """Files that all images and blobs are extents of; None if any is none."""
        return [rows.file for rows in self._files] if self._kept == {EXTENTS} else None

    @once
    def tables(self) -> Tables | None:
        """Files that all images and blobs are rows of; None if they are extents.

        None, too, if any lies in a file of its own.
        """
        if self.archives is not None or OUTSIDE in self._kept:
            return None
        decoded = copy(self)
        decoded._files = [replace(rows, plain=False) for rows in self._files]
        groups: list[list[int]] = []
        for rows in self._files:
            with rows.open() as file:
                groups.append(file.groups())
        files = [rows.file for rows in self._files]
        decoded.tables = Tables(decoded, files, self._blob_leaves, groups)
        return decoded.tables

    @property
    def _blob_leaves(self) -> list[str]:
        leaves = zip(self._leaves, self.fields, strict=True)
        return [self._columns.image, *(leaf for leaf, field in leaves if field.type is None)]

    def shards(self) -> list[FileListing]:
        classes = tuple(self.classes) if self._columns.named else ()
        shared = self._columns, classes, self.fields, self._leaves
        return [FileListing(file, *shared) for file in self._files]

    def _choose(
        self, file: OpenRows, image: str | None, label: str | None, key: str | None
    ) -> _Columns:
        path, schema = self._first, file.schema
        folders, names = _folder_values(path.name), stored_columns(path, schema)
        self._features = _features(schema)
        if image is None:
            image = _noted_image(schema, names) or _image_column(path, file, names)
        elif image not in names and f"{image}.bytes" in names:  # of a struct of Hugging Face's
            image = f"{image}.bytes"
        binary = {name for name, kind in names.items() if _is_binary(kind)}
        kinds = {name: kind for name, kind in names.items() if _is_label(kind)}
        kinds |= dict.fromkeys(folders, pa.string())
        kinds |= {
            name: kind
            for name, kind in names.items()
            if (name == label or (label is None and name.lower() in _LABELS))
            and pa.types.is_floating(kind)
            and _are_whole(file, name)
        }
        if key is None:
            key = next((name for name in _KEYS if name in kinds), None)
        if label is None:
            usual = (name for one in _LABELS for name in kinds if name.lower() == one)
            noted = [name for name in self._features if name in kinds]
            label = next(usual, noted[0] if len(noted) == 1 else None)
        texts = "strings or integers"
        for option, column, possible, what in (
            ("image", image, binary, "bytes"),
            ("key", key, kinds, texts),
            ("label", label, kinds, texts),
        ):
            if column is not None and column not in possible:
                has = ", ".join(f"{name} ({kind})" for name, kind in names.items())
                raise UsageError(
                    f"{path}: has no column {column} of {what} (it has: {has})",
                    f"Name another with --{option}-column.",
                )
        named = label is not None and not _is_number(kinds[label])
        names_in = None
        if label and not named and "class" in kinds and label != "class":
            names_in = "class" if not pa.types.is_integer(kinds["class"]) else None
        roles = filter(None, (image, label, key, names_in))
        taken = {column_path(schema, name)[0] for name in roles}
        every = dict.fromkeys((*schema.names, *folders))
        self._left_out = [name for name in every if name not in taken]
        return _Columns(image, label, key, named, names_in)

    def _choose_fields(
        self, file: OpenRows, wanted: Sequence[str] | None
    ) -> tuple[tuple[Field, ...], tuple[str, ...]]:
        """Return the other fields and their columns; `_left_out` keeps the other columns."""
        path = self._first
        leaves = stored_columns(path, file.schema)
        fields_by_name: dict[str, tuple[Field, str]] = {}
        for column in file.schema:
            if column.name in self._left_out:
                fields_by_name[column.name] = _field(file, column, leaves)
        folders = [_folder_values(one.name) for one in self._files]
        for name in folders[0]:
            if name in self._left_out and name not in fields_by_name:
                values = (values.get(name) for values in folders)
                whole = all(value is None or _WHOLE.fullmatch(value) for value in values)
                fields_by_name[name] = (
                    Field(name, "column", pa.int64() if whole else pa.string()),
                    name,
                )
        if wanted is None:
            # Packing to Parquet writes the size.
            sizes = ("width", "height")
            wanted = [one for one in fields_by_name if one not in sizes and not is_unnamed(one)]
        require_columns(path, wanted, fields_by_name)
        self._left_out = [name for name in self._left_out if name not in wanted]
        fields = [fields_by_name[name] for name in wanted]
        return tuple(field for field, _ in fields), tuple(leaf for _, leaf in fields)

    def _find_classes(self, others: Callable[[], Iterable[RowsFile]]) -> list[str]:
        chosen = self._columns
        assert chosen.label is not None
        names_by_label: dict[Any, str | None] = {}
        wanted = [chosen.label, *([chosen.names_in] if chosen.names_in else [])]
        beside = others() if chosen.named else ()
        for file in (*self._files, *(one for one in beside if _has_labels(one, chosen))):
            for batch in _batches(file, chosen, wanted):
                names = batch.values[chosen.names_in] if chosen.names_in else [None] * batch.rows
                for label, name in set(zip(batch.values[chosen.label], names, strict=True)):
                    if label is None or not (chosen.named or label % 1 == 0):
                        continue  # a bad sample
                    if names_by_label.setdefault(label, name) != name:
                        raise SourceError(
                            f"{file}: a row has label {label} and class {name!r}, but another of "
                            f"that label has class {names_by_label[label]!r}",
                            "Correct the columns: one label, one class.",
                        )
        column = f"{self._where}: the column {chosen.label}"
        if not names_by_label:
            raise SourceError(f"{column} has no labels", "Name another with --label-column.")
        count = len(names_by_label) if chosen.named else int(max(names_by_label)) + 1
        if count > MOST_CLASSES:
            raise SourceError(
                f"{column} has {count:,} classes; there may be {MOST_CLASSES:,} classes at most",
                "Labels are names, or ranks of classes from 0; name another with --label-column.",
            )
        if chosen.named:
            return sorted(map(str, names_by_label))
        known = self._features.get(chosen.label, [])
        classes = [
            str(names_by_label.get(label) or (known[label] if label < len(known) else label))
            for label in range(max(count, len(known)))
        ]
        # If two classes have one name, use the numbers.
        return classes if len(set(classes)) == len(classes) else list(map(str, range(len(classes))))


class _Columns(NamedTuple):
    """Columns by role; ``named``: labels are class names; ``names_in``: column of class names."""

    image: str
    label: str | None
    key: str | None
    named: bool
    names_in: str | None


class FileListing(NamedTuple):
    """One file of a source: a shard of its listing.

    ``classes`` are names by label, if labels are names; ``leaves`` the columns of fields.
    """

    file: RowsFile
    columns: _Columns
    classes: tuple[str, ...]
    fields: Sequence[Field] = ()
    leaves: tuple[str, ...] = ()

    def records(self) -> Iterator[Record]:
        """Yield the records of its rows, in order."""
        chosen = self.columns
        ranks = {name: label for label, name in enumerate(self.classes)}
        values = [field for field in self.fields if field.type is not None]
        pairs = zip(self.fields, self.leaves, strict=True)
        blobs = [leaf for field, leaf in pairs if field.type is None]
        roles = [role for role in (chosen.label, chosen.key) if role]
        row = 0
        for batch in _batches(self.file, chosen, roles, values, (chosen.image, *blobs)):
            labels = batch.values[chosen.label] if chosen.label else [0] * batch.rows
            keys = batch.values[chosen.key] if chosen.key else [None] * batch.rows
            for at, (label, key) in enumerate(zip(labels, keys, strict=True)):
                number, problem = _rank(label, ranks, chosen.named)
                if chosen.key and key is None:
                    problem = problem or f"its {chosen.key} is null"
                own = f"{self.file.name}/{row:08d}" if key is None else str(key)
                yield self._record(own, number, problem, row, batch, at)
                row += 1

    def _record(
        self, key: str, label: int, problem: str | None, row: int, batch: RowBatch, at: int
    ) -> Record:
        image = self.columns.image
        place = batch.places[image][at]
        if place is None:
            problem = problem or f"the {image} of row {row} is null"
            place = Record("", 0, self.file.file.location, 0, 0, 0)
        problem = problem or place.problem
        values: list[Any] = []
        for field, leaf in zip(self.fields, self.leaves, strict=True):
            value = None
            if field.type is not None:
                value = batch.values[field.name][at]
            elif blob := batch.places[leaf][at]:
                problem = problem or (blob.problem and f"its {field.name} {blob.problem}")
                value = blob._replace(key=f"{key}\0{field.name}", problem=None)
            values.append(value)
        return place._replace(key=key, label=label, problem=problem, fields=tuple(values))


def _batches(
    file: RowsFile,
    chosen: _Columns,
    roles: Sequence[str],
    fields: Sequence[Field] = (),
    blobs: Sequence[str] = (),
) -> Iterator[RowBatch]:
    """Yield the rows of a file: columns of labels, class names, keys; of fields; of bytes."""
    folders = _folder_values(file.name)
    with file.open() as opened:
        names = stored_columns(file, opened.schema)
        kinds = dict.fromkeys(folders, pa.string()) | names
        for blob in (chosen.image, *blobs):
            _require(file, blob, kinds.get(blob), _is_binary)
        for role in roles:
            same = _is_label if role != chosen.label else partial(_is_label_of, chosen.named)
            _require(file, role, kinds.get(role), same)
        constants: dict[str, Any] = {name: folders[name] for name in roles if name not in names}
        stored = []
        for field in fields:
            known = field.name in opened.schema.names
            if not known and field.name in folders:
                text = folders[field.name]
                whole = text is not None and pa.types.is_integer(field.type)
                constants[field.name] = int(str(text)) if whole else text
                continue
            stored_kind = opened.schema.field(field.name).type if known else None
            _require(file, field.name, stored_kind, partial(_is_of, field))
            stored.append(field.name)
        read = [role for role in roles if role in names] + stored
        for batch in opened.batches(read, blobs):
            above = {name: [value] * batch.rows for name, value in constants.items()}
            yield batch._replace(values=batch.values | above)


def _has_rows(file: RowsFile) -> bool:
    with file.open() as opened:
        return any(batch.rows for batch in opened.batches([], []))


def _has_labels(file: RowsFile, chosen: _Columns) -> bool:
    with file.open() as opened:
        stored = stored_columns(file, opened.schema)
    kinds = dict.fromkeys(_folder_values(file.name), pa.string()) | stored
    image, label = (kinds.get(name, pa.null()) for name in (chosen.image, chosen.label or ""))
    return _is_binary(image) and _is_label_of(chosen.named, label)


def _require(
    source: RowsFile, column: str, kind: pa.DataType | None, same: Callable[[pa.DataType], bool]
) -> None:
    what = f"has no column {column}, unlike the other files"
    if kind is not None and same(kind):
        return
    if kind is not None:
        what = f"its column {column} is {kind}, unlike the other files'"
    raise SourceError(f"{source}: {what}", "Give --root files that were written together.")


def _is_label_of(named: bool, kind: pa.DataType) -> bool:
    return (_is_label(kind) or pa.types.is_floating(kind)) and _is_number(kind) != named


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _are_whole(file: OpenRows, name: str) -> bool:
    """Return whether a column of floats has whole numbers alone."""
    values = chain.from_iterable(one.values[name] for one in file.batches([name], []))
    return all(value is None or value != value or float(value).is_integer() for value in values)


def _is_of(field: Field, kind: pa.DataType) -> bool:
    return bool(stored_type(kind) == field.type)


def _field(
    file: OpenRows, column: pa.Field, leaves: Mapping[str, pa.DataType]
) -> tuple[Field, str]:
    """Return the field of a column, and the leaf with its bytes if it has image files or bytes."""
    for leaf in (column.name, f"{column.name}.bytes"):
        if leaf in leaves and _is_binary(leaves[leaf]):
            return Field(column.name, "image" if _holds_images(file, leaf) else "blob"), leaf
    return Field(column.name, "column", stored_type(column.type)), column.name


def _rank(label: Any, ranks: dict[str, int], named: bool) -> tuple[int, str | None]:
    """Return a label as a rank among the classes, and its problem or None."""
    if label is None or label != label:
        return 0, "its label is null"
    if named:
        return ranks[str(label)], None
    return (0, f"its label is {label}") if label < 0 or label % 1 else (int(label), None)


def _folder_values(path: str) -> dict[str, str | None]:
    """Return the columns in folder names, as Hive and Spark write them: ``name=value``."""
    pairs = (part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return {name: None if value == _NULL_FOLDER else unquote(value) for name, value in pairs}


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_label(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    strings = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(strings or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _hub_features(schema: pa.Schema) -> dict[str, Any]:
    """Return Hugging Face's features in a schema's metadata; none if there are none."""
    try:
        features = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _noted_image(schema: pa.Schema, names: Mapping[str, pa.DataType]) -> str | None:
    """Return the column of images in Hugging Face's features: ``image``, or else the first."""
    images = [name for one in _noted(_hub_features(schema)) if (name := f"{one}.bytes") in names]
    return "image.bytes" if "image.bytes" in images else next(iter(images), None)


def _noted(features: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the columns of images in features, and those in their dicts, in order."""
    for name, feature in features.items():
        if isinstance(feature, dict) and feature.get("_type") == "Image":
            yield before + name
        elif isinstance(feature, dict) and "_type" not in feature:
            yield from _noted(feature, f"{before}{name}.")


def _features(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the class names in Hugging Face's features, by column of one or several."""
    classes = {}
    for name, feature in _hub_features(schema).items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else feature
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
            names = inner.get("names")
            classes[name] = list(map(str, names)) if isinstance(names, list) else []
    return {name: names for name, names in classes.items() if names}


def _image_column(path: RowsFile, file: OpenRows, names: dict[str, pa.DataType]) -> str:
    binary = [name for name, kind in names.items() if _is_binary(kind)]
    holding = [name for name in binary if _holds_images(file, name)]
    if len(holding) == 1:
        return holding[0]
    for usual in _IMAGES:
        for name in holding:
            if name.lower().removesuffix(".bytes") == usual:
                return name
    what = f"several columns hold images, {', '.join(holding)}" if holding else (
        f"no column holds image files (columns of bytes: {', '.join(binary) or 'none'})"
    )  # fmt: skip
    hint = "" if holding else "; of paths to image files, fastdata convert table makes a dataset"
    raise SourceError(f"{path}: {what}", f"Name it with --image-column{hint}.")


def _holds_images(file: OpenRows, name: str) -> bool:
    return has_image(value for value in file.values(name) if value is not None)

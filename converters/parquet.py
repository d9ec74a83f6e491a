"""Source of Parquet files with a column of images, from Spark, Dask, petastorm, Hugging Face, ….

Files are read as plain Parquet. petastorm's own metadata are a pickle, which could run any code
when it is read. They are not needed and never unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from fastdata.converters.records import MOST_CLASSES, Record, Sharded, blob_of
from fastdata.converters.rows import column_path, column_values, open_parquet, stored_columns
from fastdata.converters.trees import (
    LocalTree,
    RemoteTree,
    SourceFile,
    Tree,
    is_folder,
    require_utf8,
)

from fastdata.decode.codecs import probe
from fastdata.errors import FastdataError, SampleError, SourceError, UsageError
from fastdata.remote.urls import folder_of, is_url, name_of, redact
from fastdata.storage.arrow import stored_type
from fastdata.storage.fields import Field
from fastdata.storage.formats.parquet import PARQUET_ERRORS, column_sizes
from fastdata.storage.jsontext import parse_json
from fastdata.storage.local import LocalFile
from fastdata.storage.look import instead, look
from fastdata.storage.shapes import with_formats, with_masks
from fastdata.storage.source import MOST_BYTES

#: Usual names of a column of class indices or class names, the likelier first.
_LABELS = ("label", "labels", "class", "class_id", "class_idx", "class_name", "category", "target",
           "digit", "noun_id", "fine_label", "y")  # fmt: skip
_IMAGES = ("image", "img", "jpeg", "jpg", "png", "image_bytes", "picture", "content")
_EXTENSION = ".parquet"
#: Hugging Face's name of a file of a split: ``data/train-00000-of-00002.parquet``.
_OF_SPLIT = re.compile(r"(?:.*/)?([^/]+)-\d+-of-\d+(?:-[0-9a-f]+)?\.parquet")
#: Hive's and Spark's name for the folder of rows without a value.
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
#: Values of a column to check for images.
_LOOKED_AT = 8


class ParquetImages(Sharded):
    """Source of the rows of Parquet files, by file path and then row.

    The image column contains the bytes of image files, as petastorm's ``CompressedImageCodec``
    writes them, or Hugging Face's structs of ``bytes`` and ``path``. Labels are integers, or
    class names, which are sorted. They may be in the names of folders,
    ``label=3/part-0.parquet``. Class names of integer labels come from the column ``class``, or
    from Hugging Face's features; else they are the numbers.

    A key is the value of the key column, else ``<file>/<row>``. A row whose image or label is
    null is a bad sample.

    The default image column is the only one whose values are images. The default label column
    has a usual name, or is the only ``ClassLabel`` of Hugging Face's features. Nothing else is
    guessed.

    Each other column is a field of the column's type. A column of image files is a field of images,
    any other column of bytes one of blobs. A null there is no error. `columns_taken` lists the
    columns that are packed and left out.

    The length of an image or blob is the mean of its column in the row group: exact lengths would
    require reading all images.

    Args:
        root: A folder of ``*.parquet``, at any depth, or one file; or the URL of either. Names
            that begin with ``_`` or ``.`` are not data.
        image_column: The column of images; a struct's field after a dot.
        label_column: The column of labels.
        key_column: The column of keys; None for ``key`` if it exists.
        fields: Columns to take beside these; None for all.
        split: The files to take, one of `parquet_splits`; None for all.
        formats: Formats of columns whose values lie in the image, such as ``{"boxes": "xywh"}``;
            see docs/formats/fields.md.
        masks: Fields of masks, images whose pixels are numbers.
        storage_options: Options of the driver of a URL.

    Raises:
        RemoteError: The URL cannot be reached.
        SourceError: There are no files, one cannot be read, or no column is recognised.
        UsageError: A given column does not exist, or has another type.
    """

    root: str | None = None  # there are no image files to leave in place

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        image_column: str | None = None,
        label_column: str | None = None,
        key_column: str | None = None,
        fields: Sequence[str] | None = None,
        split: str | None = None,
        formats: Mapping[str, str] | None = None,
        masks: Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        remote = is_url(root)
        where = redact(os.fspath(root)) if remote else str(require_utf8(Path(root).resolve()))
        tree, files = _files(root, storage_options)
        self._files = {n: f for n, f in files.items() if split is None or _split_of(n) == split}
        if not self._files:
            found = ", ".join(filter(None, dict.fromkeys(map(_split_of, files)))) or "none"
            raise UsageError(f"{where}: has no split {split!r}", f"There is: {found}.")
        self._base = str(tree)
        self.inputs: list[Path | str] = [file.location for file in self._files.values()]
        self._left_out: list[str] = []
        self._columns = self._choose(image_column, label_column, key_column)
        further, self._leaves = self._choose_fields(fields)
        self.fields = with_masks(with_formats(further, formats, where), masks, where)
        self.classes = self._find_classes() if self._columns.label else []
        self.about: dict[str, Any] = {
            "kind": "petastorm" if _is_petastorm(tree) else "parquet",
            "root": where,
            "columns": [self._columns.image, self._columns.label, self._columns.key],
        }
        # The index has the names of the label's classes alone.
        names = {f.name: self._features[f.name] for f in self.fields if f.name in self._features}
        if names:
            self.about["names"] = names
        if split is not None:
            self.about["split"] = split

    @property
    def columns_taken(self) -> str:
        """Columns that are packed and left out, as text."""
        chosen = self._columns
        taken = [f"images from {chosen.image}"]
        taken += [f"labels from {chosen.label}"] * bool(chosen.label)
        taken += [f"class names from {chosen.names_in}"] * bool(chosen.names_in)
        taken.append(f"keys from {chosen.key or 'file and row number'}")
        taken += [f"fields {', '.join(field.name for field in self.fields)}"] * bool(self.fields)
        left_out = f"; left out: {', '.join(self._left_out)}" if self._left_out else ""
        return ", ".join(taken) + left_out

    def shards(self) -> list[FileListing]:
        """Return the shards of the listing: the files."""
        classes = tuple(self.classes) if self._columns.named else ()
        return [
            FileListing(name, file, self._columns, classes, self.fields, self._leaves)
            for name, file in self._files.items()
        ]

    def _choose(self, image: str | None, label: str | None, key: str | None) -> _Columns:
        name, path = next(iter(self._files.items()))
        folders = _folder_values(name)
        with open_parquet(path) as file:
            names, schema = stored_columns(path, file), file.schema_arrow
            self._features = _features(file.schema_arrow)
            if image is None:
                image = _image_column(path, file, names)
            elif image not in names and f"{image}.bytes" in names:  # of a struct of Hugging Face's
                image = f"{image}.bytes"
            binary = {name: kind for name, kind in names.items() if _is_binary(kind)}
            kinds = {name: kind for name, kind in names.items() if _is_label(kind)}
            kinds |= dict.fromkeys(folders, pa.string())
            if key is None:
                key = "key" if "key" in kinds else None
            if label is None:
                label = _label_column(path, kinds, names, self._features)
            for option, column, possible, what in (
                ("image", image, binary, "bytes"),
                ("key", key, kinds, "strings or integers"),
                ("label", label, kinds, "strings or integers"),
            ):
                if column is not None and column not in possible:
                    raise UsageError(
                        f"{path}: has no column {column} of {what} (it has: {_listed(names)})",
                        f"Name another with --{option}-column.",
                    )
        named = label is not None and not pa.types.is_integer(kinds[label])
        names_in = None
        if label and not named and "class" in kinds and label != "class":
            names_in = "class" if not pa.types.is_integer(kinds["class"]) else None
        roles = filter(None, (image, label, key, names_in))
        taken = {column_path(schema, name)[0] for name in roles}
        every = dict.fromkeys((*schema.names, *folders))
        self._left_out = [name for name in every if name not in taken]
        return _Columns(image, label, key, named, names_in)

    def _choose_fields(
        self, wanted: Sequence[str] | None
    ) -> tuple[tuple[Field, ...], tuple[str, ...]]:
        """Return the further fields and their columns; `_left_out` keeps the other columns."""
        path = next(iter(self._files.values()))
        found: dict[str, tuple[Field, str]] = {}
        with open_parquet(path) as file:
            leaves = stored_columns(path, file)
            for column in file.schema_arrow:
                if column.name in self._left_out:
                    found[column.name] = _field(file, column, leaves)
        if wanted is None:
            # Columns in folders' names have no type, and packing to Parquet writes the size.
            wanted = [name for name in found if name not in ("width", "height")]
        for name in wanted:
            if name not in found:
                raise UsageError(
                    f"{path}: has no further column {name} (it has: {', '.join(found) or 'none'})",
                    "Name others with --fields.",
                )
        self._left_out = [name for name in self._left_out if name not in wanted]
        fields = [found[name] for name in wanted]
        return tuple(field for field, _ in fields), tuple(leaf for _, leaf in fields)

    def _find_classes(self) -> list[str]:
        """Return the class names; reads the labels alone."""
        chosen = self._columns
        assert chosen.label is not None
        found: dict[Any, str | None] = {}
        wanted = [chosen.label, *([chosen.names_in] if chosen.names_in else [])]
        for path, file in self._files.items():
            for _, _, rows, columns in _batches(path, file, chosen, wanted):
                names = columns[chosen.names_in] if chosen.names_in else [None] * rows
                for label, name in set(zip(columns[chosen.label], names, strict=True)):
                    if label is None:
                        continue
                    if found.setdefault(label, name) != name:
                        raise SourceError(
                            f"{file}: a row has label {label} and class {name!r}, but another of "
                            f"that label has class {found[label]!r}",
                            "Correct the columns: one label, one class.",
                        )
        if not found:
            raise SourceError(
                f"{self._base}: the column {chosen.label} has no labels",
                "Name another with --label-column.",
            )
        if len(found) > MOST_CLASSES:
            raise SourceError(
                f"{self._base}: the column {chosen.label} has over {MOST_CLASSES:,} labels",
                "Name the column of classes with --label-column.",
            )
        if chosen.named:
            return sorted(map(str, found))
        most = max(found)
        if most >= MOST_CLASSES:
            raise SourceError(
                f"{self._base}: the column {chosen.label} has the label {most}, but there may be "
                f"{MOST_CLASSES:,} classes at most",
                "Labels must be ranks of classes, from 0; name another with --label-column.",
            )
        known = self._features.get(chosen.label, [])
        classes = [
            str(found.get(label) or (known[label] if label < len(known) else label))
            for label in range(max(most + 1, len(known)))
        ]
        # If two classes have one name, use the numbers.
        return classes if len(set(classes)) == len(classes) else list(map(str, range(len(classes))))


def is_petastorm(
    folder: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> bool:
    """Return whether petastorm wrote a folder, by the name of its metadata, which stay unread.

    Raises:
        RemoteError: The URL cannot be reached.
    """
    if is_url(folder):
        return _is_petastorm(RemoteTree(os.fspath(folder), storage_options))
    return _is_petastorm(LocalTree(Path(folder)))


def _is_petastorm(tree: Tree) -> bool:
    file = tree.file("_common_metadata")
    if file is None:
        return False
    try:
        with file.open() as opened:
            return b"dataset-toolkit.unischema.v1" in (pq.read_schema(opened).metadata or {})
    except FastdataError:
        raise
    except PARQUET_ERRORS:
        return False


def parquet_splits(
    root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the splits that Hugging Face's names of files have; none if a file has another."""
    splits = [_split_of(name) for name in _files(root, storage_options)[1]]
    return [] if None in splits else [split for split in dict.fromkeys(splits) if split]


def _split_of(name: str) -> str | None:
    found = _OF_SPLIT.fullmatch(name)
    return found and found[1]


def _files(
    root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> tuple[Tree, Mapping[str, SourceFile]]:
    if is_url(root):
        return _remote_files(os.fspath(root), storage_options)
    return _local_files(Path(root))


def _local_files(root: Path) -> tuple[Tree, Mapping[str, SourceFile]]:
    """Return a folder and its files; for a single file, its folder and the file."""
    tree = LocalTree(root.absolute())
    if not is_folder(root):
        if not root.is_file():
            raise SourceError(f"{root}: no such folder or file", "Name the files with --root.")
        if not look(root).source:
            raise instead(root, "is not Parquet", "")
        return LocalTree(tree.location.parent), {root.name: LocalFile(tree.location)}
    files = tree.files(_EXTENSION)
    if not files:
        raise instead(root, "holds no *.parquet", "Name the folder of the files with --root.")
    return tree, files


def _remote_files(
    url: str, storage_options: Mapping[str, Any] | None
) -> tuple[Tree, Mapping[str, SourceFile]]:
    """Return a folder and its files, or a single file, behind a URL."""
    # Spark's folders may have this suffix, too; on a web server, only a final slash shows it.
    if name_of(url).endswith(_EXTENSION) and not url.endswith("/"):
        tree = RemoteTree(folder_of(url), storage_options)
        file = tree.file(name_of(url))
        if file is not None:
            return tree, {name_of(url): file}
    tree = RemoteTree(url, storage_options)
    files = tree.files(_EXTENSION)
    if not files:
        raise SourceError(
            f"{tree}: no *.parquet here", "Name the files, or their folder, with --root."
        )
    return tree, files


class _Columns(NamedTuple):
    """Columns by role; ``named``: labels are class names; ``names_in``: column of class names."""

    image: str
    label: str | None
    key: str | None
    named: bool
    names_in: str | None


class FileListing(NamedTuple):
    """One file of a source: a shard of its listing.

    Attributes:
        path: Its path below the source's folder, with ``/``.
        file: The file.
        columns: Columns by role.
        classes: Class names by label if labels are names; else empty.
        fields: Further fields.
        leaves: Their columns; a struct's field after a dot.
    """

    path: str
    file: SourceFile
    columns: _Columns
    classes: tuple[str, ...]
    fields: tuple[Field, ...] = ()
    leaves: tuple[str, ...] = ()

    def records(self) -> Iterator[Record]:
        """Yield the records of its rows, in order."""
        chosen = self.columns
        ranks = {name: label for label, name in enumerate(self.classes)}
        values = [field for field in self.fields if field.type is not None]
        roles = [role for role in (chosen.label, chosen.key) if role]
        name = self.path.removesuffix(_EXTENSION)
        row = 0
        batches = _batches(self.path, self.file, chosen, roles, values)
        for group, lengths, count, columns in batches:
            labels = columns[chosen.label] if chosen.label else [0] * count
            keys = columns[chosen.key] if chosen.key else [None] * count
            for at, (label, key) in enumerate(zip(labels, keys, strict=True)):
                number, problem = _rank(label, ranks, chosen.named)
                if chosen.key and key is None:
                    problem = problem or f"its {chosen.key} is null"
                own = f"{name}/{row:08d}" if key is None else str(key)
                fields = tuple(
                    blob_of(
                        f"{own}\0{field.name}",
                        self.file.location,
                        row,
                        lengths[leaf],
                        self.file.mtime_ns,
                        leaf,
                        group,
                    )
                    if field.type is None
                    else columns[field.name][at]
                    for field, leaf in zip(self.fields, self.leaves, strict=True)
                )
                yield Record(
                    own,
                    number,
                    self.file.location,
                    row,
                    lengths[chosen.image],
                    self.file.mtime_ns,
                    problem=problem,
                    column=chosen.image,
                    group=group,
                    fields=fields,
                )
                row += 1


def _batches(
    path: str,
    source: SourceFile,
    chosen: _Columns,
    roles: Sequence[str],
    fields: Sequence[Field] = (),
) -> Iterator[tuple[int, dict[str, int], int, dict[str, list[Any]]]]:
    """Yield (row group, mean lengths by column, rows, values by column) for each batch.

    Args:
        path: The file's path below the source's folder.
        source: The file.
        chosen: Columns by role.
        roles: Columns of labels, class names and keys to read.
        fields: Further columns to read, and their types.
    """
    folders = _folder_values(path)
    with open_parquet(source) as file:
        names = stored_columns(source, file)
        kinds = dict.fromkeys(folders, pa.string()) | names
        _require(source, chosen.image, kinds.get(chosen.image), _is_binary)
        for role in roles:
            same = _is_label if role != chosen.label else partial(_is_label_of, chosen.named)
            _require(source, role, kinds.get(role), same)
        schema = file.schema_arrow
        for field in fields:
            found = schema.field(field.name).type if field.name in schema.names else None
            _require(source, field.name, found, partial(_is_of, field))
        read = [role for role in roles if role in names] + [field.name for field in fields]
        sizes = column_sizes(file.metadata)
        for group in range(file.num_row_groups):
            about = file.metadata.row_group(group)
            if not about.num_rows:
                continue
            whole = dict.fromkeys(names, about.total_byte_size) | sizes[group]
            lengths = {
                name: min(max(1, size // about.num_rows), MOST_BYTES)
                for name, size in whole.items()
            }
            batches = file.iter_batches(8192, [group], read, use_threads=False) if read else [None]
            for batch in batches:
                rows = about.num_rows if batch is None else batch.num_rows
                values = {
                    role: column_values(batch, role) if role in names else [folders[role]] * rows
                    for role in roles
                }
                values |= {field.name: column_values(batch, field.name) for field in fields}
                yield group, lengths, rows, values


def _require(
    source: SourceFile, column: str, kind: pa.DataType | None, same: Callable[[pa.DataType], bool]
) -> None:
    """Check that a file has a column of the same type as the others."""
    if kind is None or not same(kind):
        raise SourceError(
            f"{source}: has no column {column}, unlike the other files"
            if kind is None
            else f"{source}: its column {column} is {kind}, unlike the other files'",
            "Give --root files that were written together.",
        )


def _is_label_of(named: bool, kind: pa.DataType) -> bool:
    return _is_label(kind) and pa.types.is_integer(kind) != named


def _is_of(field: Field, kind: pa.DataType) -> bool:
    return bool(stored_type(kind) == field.type)


def _field(
    file: pq.ParquetFile, column: pa.Field, leaves: Mapping[str, pa.DataType]
) -> tuple[Field, str]:
    """Return the field of a column, and the leaf with its bytes if it has image files or bytes."""
    for leaf in (column.name, f"{column.name}.bytes"):
        if leaf in leaves and _is_binary(leaves[leaf]):
            return Field(column.name, "image" if _holds_images(file, leaf) else "blob"), leaf
    return Field(column.name, "column", stored_type(column.type)), column.name


def _rank(label: Any, ranks: dict[str, int], named: bool) -> tuple[int, str | None]:
    """Return a label as a rank among the classes, and its problem or None."""
    if label is None:
        return 0, "its label is null"
    if named:
        return ranks[str(label)], None
    if label < 0:
        return 0, f"its label is {label}"
    return int(label), None


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
    return bool(strings or pa.types.is_integer(kind))


def _listed(names: dict[str, pa.DataType]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in names.items())


def _image_column(path: SourceFile, file: pq.ParquetFile, names: dict[str, pa.DataType]) -> str:
    """Return the one column whose values are images."""
    binary = [name for name, kind in names.items() if _is_binary(kind)]
    holding = [name for name in binary if _holds_images(file, name)]
    for usual in _IMAGES:
        for name in holding:
            if len(holding) > 1 and name.lower().removesuffix(".bytes") == usual:
                return name
    if len(holding) == 1:
        return holding[0]
    what = f"several columns hold images, {', '.join(holding)}" if holding else (
        f"no column holds image files (columns of bytes: {', '.join(binary) or 'none'})"
    )  # fmt: skip
    raise SourceError(f"{path}: {what}", "Name it with --image-column.")


def _holds_images(file: pq.ParquetFile, name: str) -> bool:
    others = 0
    # One row group at a time: otherwise pyarrow prefetches all the others.
    for group in range(file.num_row_groups):
        for batch in file.iter_batches(_LOOKED_AT, [group], [name], use_threads=False):
            for value in column_values(batch, name):
                if value is None:
                    continue
                try:
                    probe(value)
                except SampleError:
                    others += 1
                    if others == _LOOKED_AT:
                        return False
                else:
                    return True
    return False


def _label_column(
    path: SourceFile,
    kinds: dict[str, pa.DataType],
    names: dict[str, pa.DataType],
    features: Mapping[str, list[str]],
) -> str | None:
    """Return the column of a usual name, else the only ``ClassLabel`` column; None without one."""
    for usual in _LABELS:
        for name in kinds:
            if name.lower() == usual:
                return name
    noted = [name for name in features if name in kinds]
    if len(noted) == 1:
        return noted[0]
    return None


def _features(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the class names in Hugging Face's schema metadata, by column of one or several."""
    try:
        about = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
        inner = {name: feature.get("feature", feature) for name, feature in about.items()}
        return {
            name: [str(entry) for entry in feature["names"]]
            for name, feature in inner.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}

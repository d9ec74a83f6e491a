"""Source of images that a table lists, with any other columns.

Readers of annotations (`fastdata.converters.annotations`) make such tables, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from fastdata.converters.records import MOST_CLASSES, ImageSource, Record
from fastdata.converters.rowfiles import reading
from fastdata.converters.table_files import read_table
from fastdata.converters.tabular import describe_columns, is_unnamed, require_columns
from fastdata.converters.trees import RemoteTree, Tree, source_tree, storable

from fastdata.decode.memory import PATHS
from fastdata.errors import SourceError, UsageError
from fastdata.remote.urls import is_url, join_url, redact
from fastdata.storage.arrow import array, as_numpy, python_values, stored_type
from fastdata.storage.encodings import is_image_name
from fastdata.storage.fields import Field
from fastdata.storage.paths import is_inside
from fastdata.storage.shapes import with_formats, with_masks

#: Rows that one task lists.
_ROWS_PER_SHARD = 65_536
#: Most folders of files that the output is compared with.
_MOST_FOLDERS = 4096


class TableColumns(NamedTuple):
    """Columns of a table, by role; ``blobs`` are paths of other files."""

    path: str
    label: str | None = None
    key: str | None = None
    blobs: tuple[str, ...] = ()
    problem: str | None = None
    size: str | None = None


class TableImages(ImageSource):
    """Source of image files that a table lists, in the table's order.

    A row whose path, label or key is null or empty, or whose file is missing, is a bad sample.
    Rows of one image and, where keys have a column, of one key are one sample: columns that differ
    between rows of an image become lists, in the order of the rows.

    Columns without a role are fields of the same type, except those without a name of their own,
    as pandas writes its index (`is_unnamed`). A column of ``files`` is a field of images
    if all its files have suffixes of images, else of blobs; one of ``masks`` is a field of masks.
    A row with a mask of another size than its image, or with a value of another shape than its
    format's, is a bad sample.

    Args:
        table: A file (.csv, .tsv, .jsonl, .parquet), its URL, or a table in memory.
        root: The folder of the images, or its URL. None if paths are absolute, or relative to the
            table's folder.
        path: Column of images' paths; None for one with a usual name.
        key: Column of keys; None for ``key`` if it exists, else the path without extension.
        masks: Columns of paths of masks, images whose pixels are numbers; each is a field.
        formats: Formats of columns whose values lie in the image, such as ``{"boxes": "xywh"}``,
            by field; see docs/formats/fields.md.
        classes: Class names, by label. None for the labels' names, sorted, or their numbers.
    """

    key_hint = "Name a column of keys with --key-column"
    #: Column of reasons why rows cannot be packed; null for a good row.
    _problem: str | None = None
    #: Column of widths and heights that annotations are for; an image of another size is bad.
    _size: str | None = None

    def __init__(
        self,
        table: str | os.PathLike[str] | pa.Table,
        root: str | os.PathLike[str] | None = None,
        *,
        path: str | None = None,
        label: str | None = None,
        key: str | None = None,
        files: Sequence[str] = (),
        masks: Sequence[str] = (),
        formats: Mapping[str, str] | None = None,
        fields: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        origin: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        name, beside = "the table" if root is None else redact(os.fspath(root)), None
        self.inputs: list[Path | str] = []
        if not isinstance(table, pa.Table):
            place = os.fspath(table) if is_url(table) else str(Path(table).absolute())
            name = redact(os.fspath(table))
            beside = place.rpartition("/")[0] or "/"
            self.inputs.append(place if is_url(place) else Path(place))
            table = read_table(table, storage_options, [one for one in (path, key) if one])
        if isinstance(masks, str):
            raise UsageError(f"masks={masks!r}", f"Give a list of names: [{masks!r}].")
        blobs = tuple(dict.fromkeys((*files, *masks)))
        asked = {path, label, key, *blobs, *(fields or ())}
        self._left_out = [c for c in table.column_names if is_unnamed(c) and c not in asked]
        self._table = _plain(name, table.drop_columns(self._left_out))
        self._columns = self._choose(name, path, label, key, blobs)
        self._tree = self._find_tree(root, beside, storage_options)
        self.root = self._tree.root
        self.hint = f"Check that the images are below {self._tree}"
        self.hint += "." if beside is None else ", or name another folder with --images."
        self.inputs += self._places()
        self._grouped = ""
        if self._problem is None:
            self._group(name)
        formatted = with_formats(self._choose_fields(name, fields), formats, name)
        self.fields = with_masks(formatted, masks, name)
        self.classes, self._ranks = self._find_classes(name, classes)
        self.origin = dict(origin or {"kind": "table", "root": str(self._tree), "table": name})
        if self._columns.label is not None:
            self.origin["label"] = self._columns.label

    @property
    def columns_taken(self) -> str:
        """Columns that are packed and left out, as text."""
        chosen = self._columns
        roles = {"images": chosen.path, "labels": chosen.label, "keys": chosen.key or chosen.path}
        return describe_columns(roles, self.fields, self._left_out) + self._grouped

    def shards(self) -> Sequence[TableShard]:
        """Return shards of the table's rows; one behind a URL, whose files are listed once."""
        rows = len(self._table)
        step = rows if is_url(self._tree.root) else _ROWS_PER_SHARD
        paths = self._table.column(self._columns.path)
        whole = frozenset(repeated(paths).to_pylist() if self._columns.key is None else ())
        shared = self._tree, self._columns, self.fields, self._ranks, len(self.classes), whole
        starts = range(0, rows, max(step, 1))
        return [TableShard(self._table.slice(at, step), at, *shared) for at in starts]

    def _choose(
        self, name: str, path: str | None, label: str | None, key: str | None, blobs: Any
    ) -> TableColumns:
        names = self._table.column_names
        if len(set(names)) < len(names):
            raise SourceError(f"{name}: two columns have the same name", "Rename or drop one.")
        path = path or next((usual for usual in PATHS if usual in names), None)
        if path is None:
            raise SourceError(
                f"{name}: no column has a usual name of paths ({', '.join(PATHS[:4])}, …); it "
                f"has {', '.join(names)}",
                "Name one with --path-column; the first line has to name the columns.",
            )
        label = label or ("label" if "label" in names else None)
        key = key or ("key" if "key" in names else None)
        for role in (path, label, key, *blobs):
            if role is not None and role not in names:
                raise UsageError(
                    f"{name}: has no column {role} (it has: {', '.join(names)})", "Name another."
                )
        for role in (path, *blobs):
            kind = self._table.schema.field(role).type
            if not _is_text(kind):
                raise UsageError(f"{name}: its column {role} is {kind}, not paths", "Name another.")
        return TableColumns(path, label, key, blobs, self._problem, self._size)

    def _find_tree(
        self,
        root: str | os.PathLike[str] | None,
        beside: str | None,
        storage_options: Mapping[str, Any] | None,
    ) -> Tree:
        """Return the folder of all files, and make paths relative to it.

        ``beside`` is the table's own folder.
        """
        roles = dict.fromkeys((self._columns.path, *self._columns.blobs))
        columns = {role: self._table.column(role).to_pylist() for role in roles}
        start, place_of_files = "", beside if root is None else root
        if root is None and not is_url(beside or ""):
            paths = [path for path in chain.from_iterable(columns.values()) if path]
            folders = {os.path.dirname(path) for path in paths if path[0] == "/"}
            if folders:
                if beside is not None and any(path[0] != "/" for path in paths):
                    folders.add(beside)
                place_of_files, start = os.path.commonpath(folders), beside or ""
        if place_of_files is None:
            raise UsageError("a table in memory has no folder", "Give root=, or absolute paths.")
        tree = source_tree(place_of_files, storage_options)
        place = os.fspath(place_of_files)
        above = {f"{one.rstrip('/')}/" for one in (tree.root, place)}
        if not is_url(place):
            above.add(f"{os.path.abspath(place).rstrip('/')}/")

        prefixes = ("./", *sorted(above, key=len, reverse=True))

        def inner(path: str | None) -> str | None:
            path = os.path.normpath(os.path.join(start, path)) if start and path else path
            for prefix in prefixes:
                path = path and path.removeprefix(prefix)
            return path

        for role, values in columns.items():
            at = self._table.schema.get_field_index(role)
            relative = pa.chunked_array([array([*map(inner, values)], pa.string())])
            self._table = self._table.set_column(at, role, relative)
        return tree

    def _places(self) -> list[Path | str]:
        """Return the folders of files, so that others may hold the output.

        Of files that lie directly in the root, one is enough.
        """
        folders: dict[str, str] = {}
        for role in (self._columns.path, *self._columns.blobs):
            for path in self._table.column(role).unique().to_pylist():
                if is_inside(path or ""):
                    folder = path.rpartition("/")[0]
                    folders.setdefault(folder, folder or path)
        if len(folders) > _MOST_FOLDERS:
            folders = {"": os.path.commonpath(folders.values())}
        root: Any = self._tree.root
        join: Any = join_url if is_url(root) else Path
        return [join(root, name) for name in folders.values()]

    def _group(self, name: str) -> None:
        """Make one row of the rows that have one image and, with a column of keys, one key."""
        chosen, rows = self._columns, len(self._table)
        paths = self._table.column(chosen.path).to_pylist()
        keys = self._table.column(chosen.key).to_pylist() if chosen.key else paths
        groups: dict[Any, int] = {}
        pairs = zip(paths, keys, range(rows), strict=True)
        group = [groups.setdefault((path, key) if path else at, at) for path, key, at in pairs]
        if len(groups) == rows:
            return
        order = np.argsort(group, kind="stable")
        same = np.diff(np.array(group)[order]) == 0
        starts = np.flatnonzero(np.append(True, ~same))
        ends = array([*starts.tolist(), rows], pa.int32())
        table, columns = self._table.take(order), {}
        lists = []
        for column in table.schema.names:
            values = table.column(column).combine_chunks()
            grouped = values.take(array(starts.tolist(), pa.int64()))
            if (apart := _first_apart(values, same)) is not None:
                if column in {chosen.label, *chosen.blobs}:
                    raise SourceError(
                        f"{name}: rows of one image, {table.column(chosen.path)[apart]}, differ in "
                        f"{column}: {values[apart]} and {values[apart + 1]}",
                        "Correct it; or name a column of keys, --key-column, to keep each row; or "
                        "rename a column of labels, so that it is a field of lists.",
                    )
                grouped = pa.ListArray.from_arrays(ends, values)
                lists.append(column)
            columns[column] = grouped
        self._table = pa.table(columns)
        self._grouped = f"; {rows:,} rows are {len(starts):,} images" + (
            f", with lists of {', '.join(lists)}" if lists else ": rows of an image are the same"
        )

    def _choose_fields(self, name: str, wanted: Sequence[str] | None) -> tuple[Field, ...]:
        chosen = self._columns
        taken = {*chosen._replace(blobs=())}
        names = unused = [column for column in self._table.column_names if column not in taken]
        require_columns(name, wanted or (), unused)
        if wanted is not None:
            names = [*wanted, *(blob for blob in chosen.blobs if blob not in wanted)]
        return tuple(self._field(column) for column in names)

    def _field(self, name: str) -> Field:
        if name not in self._columns.blobs:
            return Field(name, "column", self._table.schema.field(name).type)
        paths = self._table.column(name).unique().to_pylist()
        images = all(is_image_name(path) for path in paths if path)
        return Field(name, "image" if images else "blob")

    def _find_classes(
        self, name: str, classes: Sequence[str] | None
    ) -> tuple[list[str], dict[str, int] | None]:
        if self._columns.label is None:
            if classes is not None:
                raise UsageError(f"{name}: has no column of labels", "Name it with --label-column.")
            return [], None
        names = None if classes is None else distinct_classes(classes)
        column = _as_classes(self._table.column(self._columns.label))
        self._table = self._table.set_column(
            self._table.schema.get_field_index(self._columns.label), self._columns.label, column
        )
        labels = None
        if _is_text(column.type) or pa.types.is_integer(column.type):
            labels = [value for value in column.unique().to_pylist() if value is not None]
        if labels is not None and _is_text(column.type):
            names = sorted(filter(None, labels)) if names is None else names
            return names, {value: label for label, value in enumerate(names)}
        if labels is None or not all(0 <= label < MOST_CLASSES for label in labels):
            raise UsageError(
                f"{name}: its column {self._columns.label} has labels that are neither names nor "
                f"whole numbers from 0 to {MOST_CLASSES - 1:,}",
                "Name another with --label-column, or rename it, so that it is a field.",
            )
        numbers = range(max(labels, default=-1) + 1)
        return [str(label) for label in numbers] if names is None else names, None


class TableShard(NamedTuple):
    """Some rows of a table, from number ``first`` on: a shard of a listing."""

    table: pa.Table
    first: int
    tree: Tree
    columns: TableColumns
    fields: Sequence[Field]
    ranks: dict[str, int] | None
    classes: int
    repeated: frozenset[str] = frozenset()

    def records(self) -> Iterator[Record]:
        """Yield the records of its rows, in order."""
        find, number = _finder(self.tree), self.first
        for batch in self.table.to_batches(1024):
            names, columns = batch.schema.names, map(python_values, batch.columns)
            for row in zip(*columns, strict=True):
                yield self._record(number, dict(zip(names, row, strict=True)), find)
                number += 1

    def _record(self, number: int, row: Mapping[str, Any], find: Any) -> Record:
        path, *state, missing = find(row[self.columns.path])
        problem = row[self.columns.problem] if self.columns.problem else None
        problem = problem or missing
        key, unsafe = self._key(number, row)
        label, unlabelled = self._label(row)
        fields: list[Any] = []
        for field in self.fields:
            value = row[field.name]
            if field.type is None and value is not None:
                where, *size, missing = find(value)
                if missing and missing.startswith("cannot"):  # the others name the path
                    missing = f"{value} {missing}"
                problem = problem or (missing and f"its {field.name} {missing}")
                value = Record(f"{key}\0{field.name}", 0, where, 0, *size)
            fields.append(value)
        sides = row[self.columns.size] if self.columns.size else None
        details: Any = {"problem": problem or unsafe or unlabelled, "fields": tuple(fields)}
        details["annotated_size"] = None if sides is None else (int(sides[0]), int(sides[1]))
        return Record(key, label, path, 0, state[0], state[1], **details)

    def _key(self, number: int, row: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return a row's key; if it has none, a key for the list of bad samples and the problem."""
        name = self.columns.key
        path = row[self.columns.path] or ""
        key = row[name] if name else path if key_of(path) in self.repeated else key_of(path)
        instead = f"_row-{number}"
        if key is None or key == "":
            return instead, f"its {name or self.columns.path} is null or empty"
        key = str(key)
        if not is_inside(key) or not PurePosixPath(key).parts:
            return instead, f"its key {key!r} is not a relative path without '..'"
        return storable(key)

    def _label(self, row: Mapping[str, Any]) -> tuple[int, str | None]:
        if self.columns.label is None:
            return 0, None
        value = row[self.columns.label]
        if value is None or value == "":
            return 0, f"its {self.columns.label} is null or empty"
        label = value if self.ranks is None else self.ranks.get(value, self.classes)
        if label >= self.classes:
            return 0, f"its {self.columns.label} {value!r} is not among the classes"
        return label, None


def _finder(tree: Tree) -> Any:
    """Return a function that finds a file below a root: its path or URL, size, state, problem."""
    listed = tree.listed() if isinstance(tree, RemoteTree) else None

    def find(path: str | None) -> tuple[str, int, int, str | None]:
        name, root = path, tree.root
        if not name:
            return root, 0, 0, "has no path: it is null or empty"
        if not is_inside(name):
            return name, 0, 0, f"has the path {name}, which is not inside {tree}"
        if listed is not None:
            entry = listed.get(name)
            if entry is None:
                return join_url(root, name), 0, 0, "cannot be opened: it does not exist"
            return entry.location, entry.size, entry.mtime_ns, None
        where = os.path.join(root, name)
        try:
            stat = os.stat(where)
        except OSError as error:
            return where, 0, 0, f"cannot be opened: {error.strerror}"
        return where, stat.st_size, stat.st_mtime_ns, None

    return find


def distinct_classes(names: Sequence[str]) -> list[str]:
    """Return class names, by label; refuse two that are the same."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UsageError(f"the class {name!r} is given {count} times", "Name each class once.")
    return list(names)


def key_of(path: str) -> str:
    """Return a path without its extension."""
    folder, slash, name = path.rpartition("/")
    return folder + slash + (name.rpartition(".")[0] or name)


def _as_classes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return labels such as 1.0 as whole numbers, and truth values as names."""
    if pa.types.is_boolean(column.type):
        return pc.if_else(column, "True", "False")
    if pa.types.is_floating(column.type):
        with suppress(pa.ArrowInvalid):
            return pc.if_else(pc.is_nan(column), None, column).cast(pa.int64())
    return column


def _first_apart(values: pa.Array, same: npt.NDArray[np.bool_]) -> int | None:
    """Return the first place of two values, ``same`` in image, that differ."""
    if pa.types.is_nested(values.type):
        values = array([*map(repr, values.to_pylist())], pa.string())
    codes = as_numpy(values.dictionary_encode("encode").indices)
    apart = np.flatnonzero(same & (np.diff(codes) != 0))
    return int(apart[0]) if len(apart) else None


def keys_of(paths: pa.Array) -> pa.Array:
    """Return paths without extension, as `key_of` does, but whole where several differ in it alone.

    Null for null.
    """
    stems = _stems(paths)
    return pc.if_else(pc.is_in(stems, value_set=repeated(paths)), paths, stems).cast(pa.string())


def repeated(paths: pa.Array) -> pa.Array:
    """Return the `key_of` that several of some paths have."""
    counts = _stems(paths.unique()).value_counts()
    return counts.field("values").filter(pc.greater(counts.field("counts"), 1))


def _stems(paths: pa.Array) -> pa.Array:
    paths = paths.cast(pa.large_string())  # those of an empty table have no type
    return pc.replace_substring_regex(paths, pattern=r"([^/])\.[^./]*$", replacement=r"\1")


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.null())


def _plain(name: str, table: pa.Table) -> pa.Table:
    """Return a table of stored types, whose text is UTF-8."""
    with reading(name, "a table"):
        table.validate(full=True)
        for place, field in enumerate(table.schema):
            _decode_names(field.type)
            kind = stored_type(field.type)
            if kind != field.type:
                chunks = [array(python_values(one), kind) for one in table.column(place).chunks]
                table = table.set_column(place, field.name, pa.chunked_array(chunks, kind))
    return table


def _decode_names(kind: pa.DataType) -> None:
    """Decode the names of a type's fields, which Arrow does not validate, or raise ValueError."""
    for place in range(kind.num_fields):
        field = kind.field(place)
        str(field.name)
        _decode_names(field.type)

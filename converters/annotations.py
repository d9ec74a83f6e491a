"""Annotations of images in files beside them: what their readers share.

A reader makes a table with a row for each image, and `TableImages` lists it. Objects of an image
are in columns of lists, one entry an object.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

import pyarrow as pa
from fastdata.converters.table import TableImages, key_of
from fastdata.converters.trees import RemoteTree, file_at, is_utf8, source_tree, walk

from fastdata.errors import SourceError, printable
from fastdata.remote.urls import is_url
from fastdata.storage.encodings import is_image_name
from fastdata.storage.files import check_regular

#: Four numbers of each object's box.
BOXES = pa.list_(pa.list_(pa.float32(), 4))
#: Polygons of each object, each x, y, x, y, …. Only double precision gives the original's masks.
POLYGONS = pa.list_(pa.list_(pa.list_(pa.float64())))
#: Largest float32.
_MOST_FLOAT32 = 3.4028234663852886e38
#: Files that are read at once behind a URL.
_THREADS = 16
#: Most bytes of the annotations of one image.
_MOST_BYTES = 64 << 20
MISSING = "does not exist"
#: Rows that are held as Python's objects.
_ROWS_HELD = 4096


class Table(NamedTuple):
    """Images and their annotations.

    Attributes:
        rows: A row for each image: ``path``, ``key``, ``problem`` (why it cannot be packed, else
            null), ``size`` (width and height that its annotations are for, or null), and columns
            of annotations.
        about: Origin of the data, for the manifest: JSON values.
        masks: Columns of paths of masks.
        formats: Formats of columns, by name; there may be others, too.
    """

    rows: pa.Table
    about: dict[str, Any]
    masks: tuple[str, ...] = ()
    formats: Mapping[str, str] = MappingProxyType({})


class AnnotatedImages(TableImages):
    """Source of images with annotations.

    Args:
        table: The images.
        root: The folder that their paths are relative to, or its URL.
        fields: Columns to take; None for all.
        inputs: Further files that packing must not write to.
        storage_options: Options of the driver of a URL.
    """

    def __init__(
        self,
        table: Table,
        root: str | os.PathLike[str],
        fields: Sequence[str] | None,
        inputs: Iterable[Any] = (),
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        chosen = table.rows.column_names
        if fields is not None:
            chosen = [name for name in chosen if name in fields]
        super().__init__(
            table.rows,
            root,
            path="path",
            key="key",
            problem="problem",
            size="size",
            masks=[name for name in table.masks if name in chosen],
            formats={name: one for name, one in table.formats.items() if name in chosen},
            fields=fields,
            about=table.about,
            storage_options=storage_options,
        )
        self.about["root"] = str(self._tree)
        self.inputs += inputs


class Rows:
    """Builder of a table of annotations.

    Args:
        columns: Types of the columns beside path, key, problem and size.
    """

    def __init__(self, columns: Mapping[str, pa.DataType]) -> None:
        first = dict.fromkeys(("path", "key", "problem"), pa.string())
        self._schema = pa.schema({**first, "size": pa.list_(pa.int32(), 2), **columns})
        self._values: dict[str, list[Any]] = {name: [] for name in self._schema.names}
        self._batches: list[pa.RecordBatch] = []

    def add(
        self,
        path: str,
        values: Mapping[str, Any],
        key: str | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        """Add a good row; without a key, its key is the path without extension.

        ``size`` is the width and height that the annotations are for.
        """
        key = key_of(path) if key is None else key
        if is_utf8(path) and is_utf8(key):
            self._add({"path": path, "key": key, "size": size, **values})
        else:
            self.add_bad("its name is not UTF-8; rename it", path, key)

    def add_bad(self, problem: str, path: str | None, key: str | None = None) -> None:
        """Add a row that cannot be packed, and why; it has a path or a key."""
        path = None if path is None else printable(path)
        self._add({"path": path, "key": printable(key or key_of(path or "")), "problem": problem})

    def _add(self, values: Mapping[str, Any]) -> None:
        for name, column in self._values.items():
            column.append(values.get(name))
        if len(column) == _ROWS_HELD:
            self._flush()

    def _flush(self) -> None:
        """Make arrays of the rows, which need a fraction of the memory."""
        arrays = [pa.array(self._values[field.name], field.type) for field in self._schema]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        for column in self._values.values():
            column.clear()

    def table(self) -> pa.Table:
        """Return all rows."""
        self._flush()
        return pa.Table.from_batches(self._batches, self._schema)


class Folder:
    """Files below a folder; those behind a URL are listed once.

    Args:
        root: The folder, or its URL.
        storage_options: Options of the driver of a URL.

    Raises:
        RemoteError: The URL cannot be reached.
        SourceError: The folder is missing, or cannot be read.
    """

    def __init__(
        self, root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self.tree = source_tree(root, storage_options)
        self._listed = self.tree.listed() if isinstance(self.tree, RemoteTree) else None

    def __str__(self) -> str:
        return str(self.tree)

    def has(self, name: str) -> bool:
        """Return whether it has such a file."""
        if self._listed is not None:
            return name in self._listed
        return os.path.isfile(os.path.join(self.tree.root, name))

    def has_folder(self, name: str) -> bool:
        """Return whether it has such a folder, with files if it is behind a URL."""
        if self._listed is not None:
            return any(entry.startswith(f"{name}/") for entry in self._listed)
        return os.path.isdir(os.path.join(self.tree.root, name))

    def top(self, below: str = "") -> list[str]:
        """Return the sorted paths of the files in one of its folders, not in folders of that."""
        prefix = f"{below}/" if below else ""
        if self._listed is not None:
            found = [name for name in self._listed if name.startswith(prefix)]
            return sorted(name for name in found if "/" not in name[len(prefix) :])
        if not self.has_folder(below):
            return []
        return sorted(prefix + name for name in _files_in(os.path.join(self.tree.root, below)))

    def names(self, below: str) -> list[str]:
        """Return the sorted paths of files in one of its folders, at any depth; not hidden ones.

        Raises:
            SourceError: A folder cannot be read.
        """
        prefix = f"{below}/" if below else ""
        if self._listed is not None:
            found = [name for name in self._listed if name.startswith(prefix)]
        elif not self.has_folder(below):
            found = []
        else:
            root = self.tree.root
            found = [
                os.path.join(folder, file)[len(root) + 1 :]
                for folder in walk(os.path.join(root, below).rstrip("/"))
                for file in _files_in(folder)
            ]
        return sorted(
            name
            for name in found
            if not any(part.startswith(".") for part in name[len(prefix) :].split("/"))
        )

    def images(self, below: str) -> list[str]:
        """Return the sorted paths of images in one of its folders, at any depth."""
        return [name for name in self.names(below) if is_image_name(name)]

    def read(self, name: str) -> bytes:
        """Read a file.

        Raises:
            RemoteError: The URL cannot be reached.
            SourceError: The file cannot be read.
        """
        data = self._read(name)
        if isinstance(data, str):
            raise SourceError(f"{self}/{printable(name)}: {data}", "Check --root.")
        return data

    def read_all(
        self, names: Iterable[str], missing: bytes | str = MISSING
    ) -> Iterator[bytes | str]:
        """Yield the bytes of each file; of one that cannot be read, the reason.

        Args:
            names: The files.
            missing: What to yield for a file that does not exist.

        Raises:
            RemoteError: The URL cannot be reached.
        """
        read = partial(self._read, missing=missing)
        if self._listed is None:
            yield from map(read, names)
            return
        rest = iter(names)
        with ThreadPoolExecutor(_THREADS, "fastdata-annotations") as pool:
            while some := list(islice(rest, 64 * _THREADS)):
                yield from pool.map(read, some)

    def _read(self, name: str, missing: bytes | str = MISSING) -> bytes | str:
        if self._listed is not None:
            entry = self._listed.get(name)
            if entry is None:
                return missing
            if entry.size > _MOST_BYTES:
                return f"has {entry.size:,} bytes, and may have {_MOST_BYTES:,}"
            try:
                return entry.read(0, entry.size)
            except FileNotFoundError:
                return missing
        path = os.path.join(self.tree.root, name)
        try:
            check_regular(path)
            with open(path, "rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return missing
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            return f"cannot be read: {getattr(error, 'strerror', None) or error}"
        return data if len(data) <= _MOST_BYTES else f"has more than {_MOST_BYTES:,} bytes"


def read_file(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> bytes:
    """Read a file of annotations, or its URL, whole.

    Raises:
        RemoteError: The URL cannot be reached.
        SourceError: It cannot be read.
    """
    name = os.fspath(path)
    shown = shown_name(name)
    try:
        with file_at(name, storage_options).open() as file:
            data: bytes = file.read()
            return data
    except OSError as error:
        reason = error.strerror or "it does not exist"
        raise SourceError(f"{shown}: cannot be read: {reason}", "Check the path.") from None


def lines_of(data: bytes, name: str) -> list[str]:
    """Return the lines of a text file in UTF-8, as Python's text files have them.

    Raises:
        SourceError: It is not UTF-8.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{name}: {error}", "Write it in UTF-8.") from None
    # str.splitlines() also splits at characters that names may have.
    return [line.rstrip("\n") for line in io.StringIO(text, newline=None)]


def shown_name(path: str) -> str:
    """Return the name of a file of annotations, for messages."""
    return printable(path.rpartition("/")[2].partition("?")[0] if is_url(path) else path)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number that float32 can hold."""
    # bool is an int, and comparisons of NaN are false.
    return type(value) in (int, float) and -_MOST_FLOAT32 <= value <= _MOST_FLOAT32


def are_numbers(values: Any, count: int | None = None) -> bool:
    """Return whether a value is a list of finite numbers, of so many if ``count`` is given."""
    return (
        isinstance(values, list)
        and (count is None or len(values) == count)
        and all(map(is_number, values))
    )


def number_of(text: str | None) -> float:
    """Return the number that a text is.

    Raises:
        ValueError: It is not a finite number that float32 can hold.
    """
    # float() takes "1_000" and digits of other scripts.
    number = float(text) if text and text.isascii() and "_" not in text else math.nan
    if not is_number(number):
        raise ValueError("not a number")
    return number


def is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is a string that UTF-8 can hold."""
    return isinstance(value, str) and is_utf8(value)


def _files_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.is_dir()]
    except OSError as error:
        raise SourceError(
            f"{printable(folder)}: cannot be read: {error.strerror}", "Check its permissions."
        ) from None

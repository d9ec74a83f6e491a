"""Annotations of images in files beside them: what their readers share.

A reader fills `Annotations`, a table with a row for each image, and `AnnotatedImages` lists it.
Objects of an image are in columns of lists, one entry an object. An annotation that is damaged
makes its image a bad sample: the reader raises ValueError, or returns the reason as text.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc
from fastdata.converters.table import TableImages, key_of, keys_of
from fastdata.converters.trees import read_file, source_tree

from fastdata.errors import SourceError, printable
from fastdata.remote.files import SourceFile
from fastdata.remote.urls import is_url
from fastdata.storage.encodings import is_image_name
from fastdata.text import is_utf8
from fastdata.threads import Threads

#: Labels, and four numbers of each object's box.
LABELS, BOXES = pa.list_(pa.int32()), pa.list_(pa.list_(pa.float32(), 4))
#: Polygons of each object, each x, y, x, y, …. Only double precision gives the original's masks.
POLYGONS = pa.list_(pa.list_(pa.list_(pa.float64())))
#: Most keypoints of an object.
MOST_KEYPOINTS = 10_000
#: Largest float32.
_MOST_FLOAT32 = 3.4028234663852886e38
#: Files that are read at once.
_THREADS = 16
#: Most bytes of the annotations of one image.
_MOST_BYTES = 64 << 20
#: Rows that are held as Python's objects.
_ROWS_HELD = 4096


class Annotations:
    """Builder of a table of images and their annotations."""

    def __init__(
        self,
        columns: Mapping[str, pa.DataType],
        origin: dict[str, Any],
        formats: Mapping[str, str] | None = None,
        masks: Sequence[str] = (),
    ) -> None:
        self.origin, self.formats, self.masks = origin, formats or {}, masks
        first = dict.fromkeys(("path", "key", "problem"), pa.string())
        self.schema = pa.schema({**first, "size": pa.list_(pa.int32(), 2), **columns})
        self._held: list[Mapping[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []

    def add(
        self,
        path: str | None,
        values: Mapping[str, Any] | str,
        key: str | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        """Add a row: its values, or the reason why it cannot be packed.

        It has a path or a key; without a key, `keys_of` makes it of the path. ``size`` is the width
        and height that the annotations are for.
        """
        if not isinstance(values, str) and not is_utf8(f"{path}{key}"):
            values = "its name is not UTF-8; rename it"
        row = {"path": path, "key": key, "size": size}
        if isinstance(values, str):
            path = None if path is None else printable(path)
            key = None if key is None else printable(key)
            row, values = {"path": path, "key": key}, {"problem": values}
        self._held.append({**row, **values})
        if len(self._held) == _ROWS_HELD:
            self._flush()

    def _flush(self) -> None:
        """Make arrays of the rows, which need a fraction of the memory."""
        names = self.schema.names
        columns = [[row.get(name) for row in self._held] for name in names]
        arrays = [pa.array(*one) for one in zip(columns, self.schema.types, strict=True)]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        self._held = []

    def table(self, *roots: str) -> pa.Table:
        """Return all rows; paths are relative to these names of one folder."""
        self._flush()
        table = pa.Table.from_batches(self._batches, self.schema)
        above = "|".join(re.escape(f"{root}/") for root in roots)
        pattern = f"^(?:{above}|(?:\\./)+)"
        paths = pc.replace_substring_regex(table.column("path"), pattern=pattern, replacement="")
        columns = {"path": paths, "key": pc.coalesce(table.column("key"), keys_of(paths))}
        for name, column in columns.items():
            table = table.set_column(table.column_names.index(name), name, column)
        return table


class AnnotatedImages(TableImages):
    """Source of images with annotations."""

    key_hint = "Rename one of them"
    _problem, _size = "problem", "size"

    def __init__(
        self,
        annotations: Annotations,
        root: str | os.PathLike[str],
        fields: Sequence[str] | None,
        inputs: Iterable[Any] = (),
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        chosen = [name for name in annotations.schema.names if fields is None or name in fields]
        places = [os.fspath(root).rstrip("/")]
        if not is_url(root):
            places = [os.path.abspath(root), os.path.realpath(root)]
        table, classes = annotations.table(*places), annotations.origin.get("classes") or ()
        #: Number of objects of each class.
        self.objects = dict.fromkeys(classes, 0)
        if "labels" in table.column_names:
            for label in pc.value_counts(pc.list_flatten(table.column("labels"))).to_pylist():
                self.objects[classes[label["values"]]] += label["counts"]
        super().__init__(
            table,
            root,
            path="path",
            key="key",
            masks=[name for name in annotations.masks if name in chosen],
            formats={name: one for name, one in annotations.formats.items() if name in chosen},
            fields=fields,
            origin=annotations.origin,
            storage_options=storage_options,
        )
        self.origin["root"] = str(self._tree)
        self.inputs += inputs


class AnnotatedFolder:
    """Files below a folder, which are listed once."""

    def __init__(
        self, root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self.tree, self._options = source_tree(root, storage_options), storage_options
        self._listed: Mapping[str, SourceFile] = self.tree.listed()

    def __str__(self) -> str:
        return str(self.tree)

    def has(self, name: str) -> bool:
        """Return whether it has such a file."""
        return name in self._listed

    def has_folder(self, name: str) -> bool:
        """Return whether it has such a folder, with files."""
        return any(entry.startswith(f"{name}/") for entry in self._listed)

    def names(self, below: str = "") -> list[str]:
        """Return the sorted paths of files, not hidden, at any depth in a folder."""
        prefix = f"{below}/" if below else ""
        paths = (name[len(prefix) :] for name in self._listed if name.startswith(prefix))
        hidden = re.compile(r"(.*/)?\.", re.DOTALL)
        return sorted(prefix + name for name in paths if not hidden.match(name))

    def images(self, below: str) -> dict[str, list[str]]:
        """Return the images in one of its folders by their paths in it, without suffix."""
        images: dict[str, list[str]] = {}
        for path in filter(is_image_name, self.names(below)):
            images.setdefault(key_of(path[len(below) + 1 if below else 0 :]), []).append(path)
        return images

    def lines(self, name: str) -> list[str]:
        """Return the lines of a text file in UTF-8, as Python's text files have them."""
        try:
            text = read_file(f"{self.tree.root}/{name}", self._options).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SourceError(f"{self}/{name}: {error}", "Write it in UTF-8.") from None
        # str.splitlines() also splits at characters that names may have.
        return [line.rstrip("\n") for line in io.StringIO(text, newline=None)]

    def read_all(
        self, names: Iterable[str], parse: Callable[[bytes], dict[str, Any]]
    ) -> Iterator[dict[str, Any] | str | None]:
        """Yield what ``parse`` makes of each file; None for a missing one.

        Yield the reason if a file cannot be read, or ``parse`` raises ValueError.
        """

        def parsed(name: str) -> dict[str, Any] | str | None:
            data = self._read(name)
            try:
                return parse(data) if isinstance(data, bytes) else data and f"{name}: {data}"
            except ValueError as error:
                return f"{name}: {error}"

        rest = iter(names)
        with Threads(_THREADS, "fastdata-annotations") as pool:
            while some := list(islice(rest, 64 * _THREADS)):
                yield from pool.map(parsed, some)

    def _read(self, name: str) -> bytes | str | None:
        file = self._listed.get(name)
        if file is None:
            return None
        try:
            with file.open() as opened:
                data: bytes = opened.read(_MOST_BYTES + 1)
        except OSError as error:
            return f"cannot be read: {getattr(error, 'strerror', None) or error}"
        return data if len(data) <= _MOST_BYTES else f"has more than {_MOST_BYTES:,} bytes"


def shown_name(path: str) -> str:
    """Return the name of a file of annotations, for messages."""
    return printable(path.rpartition("/")[2].partition("?")[0] if is_url(path) else path)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number that float32 can hold."""
    # bool is an int, and comparisons of NaN are false.
    return type(value) in (int, float) and -_MOST_FLOAT32 <= value <= _MOST_FLOAT32


def are_numbers(values: Any, count: int | None = None) -> bool:
    """Return whether a value is a list of finite numbers, ``count`` of them unless None."""
    of_length = isinstance(values, list) and count in (None, len(values))
    return of_length and all(map(is_number, values))


def number_of(text: str | None) -> float:
    """Return the number that a text is; raise ValueError if float32 cannot hold it."""
    # float() takes "1_000" and digits of other scripts.
    number = float(text) if text and text.isascii() and "_" not in text else math.nan
    if not is_number(number):
        raise ValueError("not a number")
    return number


def is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is a string that UTF-8 can hold."""
    return isinstance(value, str) and is_utf8(value)

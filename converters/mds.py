"""Source of MosaicML Streaming's MDS shards with a column of images.

A shard begins with the number of its samples and their offsets; a sample, with the sizes of its
columns that have no fixed one. So the values are extents of the shards
(https://docs.mosaicml.com/projects/streaming).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from fastdata.converters import tabular
from fastdata.converters.records import Record
from fastdata.converters.rowfiles import BATCH_ROWS, OpenRows, RowBatch, RowsFile, reading
from fastdata.converters.trees import Tree, source_tree

from fastdata.errors import FastdataError, SourceError
from fastdata.remote.files import SourceFile
from fastdata.storage.jsontext import parse_json
from fastdata.storage.paths import is_inside
from fastdata.storage.peek import lacks_data
from fastdata.storage.source import MOST_BYTES

_INDEX, _EXTENSION = "index.json", ".mds"
#: Most bytes of an index.
_MOST_INDEX = 1 << 30
#: Most dimensions of NumPy's arrays.
_MOST_SIDES = 32
#: Encodings whose values are strings.
_TEXTS = {"str", "json", "str_int", "str_float", "str_decimal"}
_NUMBERS = {
    name: np.dtype(name)
    for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
                 "float16", "float32", "float64")
} | {"int": np.dtype("int64")}  # fmt: skip


class MdsImages(tabular.TabularImages):
    """Source of the samples of MDS shards, in the order of ``index.json``.

    See `TabularImages`. Numbers and text are columns, ``json`` is text; arrays of a fixed type and
    shape are lists of a fixed size. Other values are blobs of the bytes that Streaming stores;
    pickles are never unpickled. ``root`` is the folder of ``index.json``, or of one folder a split;
    or its URL.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        split: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> None:
        tree = source_tree(root, storage_options)
        splits = mds_splits(root, storage_options)
        split = tabular.taken_split(tree, split, splits, one=True)
        others = (tree / one for one in splits if one != split)
        files = _shards(tree if split is None else tree / split)
        more: Any = {"others": lambda: chain.from_iterable(map(_shards, others)), **columns}
        super().__init__(files, str(tree), "mds", split, **more)


def mds_splits(
    root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the folders of splits, which have an index each; none if the root has one."""
    tree = source_tree(root, storage_options)
    if _has_index(tree):
        return []
    splits = [name for name in tree.classes() if _has_index(tree / name)]
    if not splits:
        hint = "Name the folder of index.json with --root."
        raise lacks_data(str(tree), f"holds no {_INDEX}", hint)
    return splits


def _has_index(tree: Tree) -> bool:
    return tree.file(_INDEX) is not None


class _Column(NamedTuple):
    """Column of a shard; ``size`` is 0 if it is written with each sample."""

    name: str
    encoding: str
    size: int

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of its values."""
        if self.encoding in _TEXTS:
            return pa.string()
        if self.encoding in _NUMBERS:
            return pa.from_numpy_dtype(_NUMBERS[self.encoding])
        kind, shape = self.array()
        if kind is None:
            return pa.binary()
        type_of_items = pa.from_numpy_dtype(kind)
        for size in reversed(shape):
            type_of_items = pa.list_(type_of_items, size)
        return type_of_items

    def value(self, data: bytes) -> Any:
        """Return the value in its bytes, one of `fastdata.storage.arrow.python_values`."""
        if self.encoding in _TEXTS:
            return data.decode()
        if self.encoding in _NUMBERS:
            return np.frombuffer(data, _NUMBERS[self.encoding])[0].item()
        kind, shape = self.array()
        return np.frombuffer(data, kind).reshape(shape)

    def array(self) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
        """Return the type and shape of arrays that have the same; None for others."""
        word, _, rest = self.encoding.partition(":")
        kind, _, shape = rest.partition(":")
        if word != "ndarray" or kind not in _NUMBERS or not shape:
            return None, ()
        return _NUMBERS[kind], tuple(map(int, shape.split(",")[: _MOST_SIDES + 1]))


@dataclass(frozen=True)
class MdsRows(RowsFile):
    """Samples of a shard: their number, its bytes, and its columns in the order of the values."""

    samples: int = 0
    size: int = 0
    columns: tuple[_Column, ...] = ()

    @contextmanager
    def open(self) -> Iterator[_OpenMds]:
        with reading(self, "MDS"), self.file.open() as opened:
            yield _OpenMds(self, opened)


class _OpenMds(OpenRows):
    def __init__(self, rows: MdsRows, opened: Any) -> None:
        self._rows, self._opened = rows, opened
        self._state = rows.file.mtime_ns
        self.schema = pa.schema([(one.name, one.type) for one in rows.columns])
        size = opened.seek(0, 2)
        if size != rows.size:
            raise ValueError(f"it has {size:,} bytes, and the index says {rows.size:,}")
        head = self._read(0, 4 * (rows.samples + 2))
        if len(head) < 8 or int.from_bytes(head[:4], "little") != rows.samples:
            raise ValueError(f"it has another number of samples than {rows.samples:,}")
        self._offsets = np.frombuffer(head, "<u4")[1:].astype(np.int64)
        ends = np.append(self._offsets, size)
        if len(self._offsets) != rows.samples + 1 or (np.diff(ends) < 0).any():
            raise ValueError("its samples lie beyond its end")

    def values(self, column: str) -> Iterator[bytes | None]:
        for row in range(self._rows.samples):
            offset, length = self._extents(row)[column]
            yield self._read(offset, min(length, MOST_BYTES))

    def batches(self, columns: Sequence[str], blobs: Sequence[str]) -> Iterator[RowBatch]:
        path = self._rows.file.location
        wanted = {one.name: one for one in self._rows.columns if one.name in columns}
        for first in range(0, self._rows.samples, BATCH_ROWS):
            rows = range(first, min(first + BATCH_ROWS, self._rows.samples))
            values: dict[str, list[Any]] = {name: [] for name in columns}
            places: dict[str, list[Record | None]] = {name: [] for name in blobs}
            for row in rows:
                extents = self._extents(row)
                for name, column in wanted.items():
                    values[name].append(column.value(self._read(*extents[name])))
                for name in blobs:
                    places[name].append(Record("", 0, path, *extents[name], self._state))
            yield RowBatch(len(rows), values, places)

    def _extents(self, row: int) -> dict[str, tuple[int, int]]:
        begin, end = self._offsets[row : row + 2].tolist()
        columns = self._rows.columns
        count = sum(not one.size for one in columns)
        sizes = iter(np.frombuffer(self._read(begin, 4 * count), "<u4").tolist())
        lengths = [one.size or next(sizes, -1) for one in columns]
        ends = list(accumulate(lengths, initial=begin + 4 * count))
        if ends[-1] != end or min(lengths, default=0) < 0:
            raise ValueError(f"sample {row} has other sizes than its columns")
        places = zip(ends, lengths, strict=False)
        return {one.name: place for one, place in zip(columns, places, strict=True)}

    def _read(self, offset: int, length: int) -> bytes:
        self._opened.seek(offset)
        data: bytes = self._opened.read(length)
        return data


def _shards(tree: Tree) -> list[MdsRows]:
    index = tree.file(_INDEX)
    assert index is not None
    try:
        with index.open() as opened:
            content = parse_json(opened.read(_MOST_INDEX))
        shards = [_shard(tree, index, one) for one in content["shards"]]
    except FastdataError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{index}: is no index of MDS: {error!r}", "Check that it was copied whole."
        ) from None
    if not shards:
        raise SourceError(f"{index}: lists no shards", "Write the dataset again.")
    return shards


def _shard(tree: Tree, index: SourceFile, entry: Mapping[str, Any]) -> MdsRows:
    if entry["format"] != "mds" or entry["version"] != 2:
        raise SourceError(
            f"{index}: its shards are of format {entry['format']} {entry['version']}, not mds 2",
            "Write the dataset again with MDSWriter.",
        )
    name = str(entry["raw_data"]["basename"])
    if not is_inside(name):
        raise ValueError(f"{name} lies outside of its folder")
    file = tree.file(name)
    if file is None and entry.get("zip_data"):
        raise SourceError(
            f"{tree}/{entry['zip_data']['basename']}: is compressed, so nothing can be read in the "
            "middle of it",
            "Unpack the shards beside it (zstd -d, gunzip, …), and run this again.",
        )
    if file is None:
        raise SourceError(f"{tree}/{name}: this shard is missing", "Copy the whole folder.")
    names, encodings = entry["column_names"], entry["column_encodings"]
    columns = tuple(
        _Column(str(one), str(encoding), int(size or 0))
        for one, encoding, size in zip(names, encodings, entry["column_sizes"], strict=True)
    )
    for column in columns:
        known = _NUMBERS.get(column.encoding)
        if known is not None and column.size != known.itemsize:
            raise ValueError(f"column {column.name} has another size than {column.encoding}")
        kind, shape = column.array()
        items = math.prod(shape) * (0 if kind is None else kind.itemsize)
        if len(shape) > _MOST_SIDES or any(side < 1 for side in shape) or items > MOST_BYTES:
            raise ValueError(f"column {column.name} has arrays of an impossible shape")
    size, samples = int(entry["raw_data"]["bytes"]), int(entry["samples"])
    if not 0 <= 4 * samples <= size:
        raise ValueError(f"{name} has {samples:,} samples in {size:,} bytes")
    return MdsRows(name.removesuffix(_EXTENSION), file, True, samples, size, columns)

"""Source of Arrow IPC files with a column of images, such as Hugging Face's ``datasets`` writes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastdata.converters import tabular
from fastdata.converters.records import Record
from fastdata.converters.rowfiles import (
    BATCH_ROWS,
    EXTENTS,
    OUTSIDE,
    ROWS,
    OpenRows,
    RowBatch,
    RowsFile,
    reading,
)
from fastdata.converters.rows import column_of, column_path, column_values
from fastdata.converters.trees import LocalTree, data_files, is_folder, require_utf8

from fastdata.errors import SourceError
from fastdata.remote.urls import is_url, redact
from fastdata.storage.arrow import as_numpy
from fastdata.storage.files import read_file
from fastdata.storage.formats.arrow_ipc import MappedArrow
from fastdata.storage.jsontext import parse_json
from fastdata.storage.local import LocalFile
from fastdata.storage.peek import lacks_data

_EXTENSION = ".arrow"
#: Files of save_to_disk, and of the cache.
_STATE, _INFO, _DICT = "state.json", "dataset_info.json", "dataset_dict.json"
#: What ``map`` and the like leave in the cache beside a dataset's own files.
_DERIVED = re.compile(r"(cache-|tmp).*")
#: Values to decode at a time.
_FEW = 8


class ArrowImages(tabular.TabularImages):
    """Source of the rows of Arrow IPC streams and files, by file path and then row.

    See `TabularImages`. In a folder of ``save_to_disk``, the files are those that ``state.json``
    lists, in that order. In a folder of Hugging Face's cache, files of ``map`` and the like are
    left out.

    Images and blobs are extents of the files. Of compressed batches, pyarrow decodes the rows. A
    null in ``bytes`` beside an absolute ``path`` is the file there. ``root`` is a folder of
    ``*.arrow``, at any depth, or one file; not a URL. ``split`` is one of `arrow_splits`, None for
    all files.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        split: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> None:
        if is_url(root):
            raise SourceError(
                f"{redact(os.fspath(root))}: Arrow files are read on this machine alone",
                "Copy them here first; of a dataset on the Hub, convert its Parquet files.",
            )
        path = require_utf8(Path(root).absolute())
        splits = arrow_splits(path)
        tabular.taken_split(root, split, splits)
        rest = [one for one in splits if one != split] if split is not None else []
        more: Any = {"others": lambda: (one for name in rest for one in _files(path, name))}
        files = _files(path, split)
        super().__init__(files, str(path.resolve()), "arrow", split, **more, **columns)


def arrow_splits(
    root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the splits of a folder of ``save_to_disk`` or of the cache; none of another."""
    if is_url(root):
        return []
    path = Path(root)
    if (path / _DICT).is_file():
        return [str(one) for one in _read_json(path / _DICT).get("splits", ())]
    if not (path / _STATE).is_file() and (path / _INFO).is_file():
        splits = [str(one) for one in _read_json(path / _INFO).get("splits") or ()]
        names = [
            name for name in data_files(LocalTree(path), _EXTENSION) if not _DERIVED.match(name)
        ]
        if all(any(_is_of(name, one) for one in splits) for name in names):
            return [one for one in splits if any(_is_of(name, one) for name in names)]
    return []


def _is_of(name: str, split: str) -> bool:
    """Return whether a file in the cache is of a split: ``food101-train-00000-of-00002.arrow``."""
    return bool(re.fullmatch(rf"(?:.*[-/])?{re.escape(split)}(?:-\d+-of-\d+)?\.arrow", name))


def _files(path: Path, split: str | None) -> list[ArrowRows]:
    if not is_folder(path):
        if not path.is_file():
            raise SourceError(f"{path}: no such folder or file", "Name the files with --root.")
        return [ArrowRows(path.stem, LocalFile(path))]
    if (path / _DICT).is_file():
        name = tabular.taken_split(path, split, arrow_splits(path), one=True)
        if name is None:
            raise SourceError(f"{path / _DICT}: lists no splits", "Save the dataset again.")
        return _files(path / name, None)
    if (path / _STATE).is_file():
        return _saved(path)
    of_cache = (path / _INFO).is_file()
    files = {
        name: file
        for name, file in data_files(LocalTree(path), _EXTENSION).items()
        if (split is None or _is_of(name, split)) and not (of_cache and _DERIVED.match(name))
    }
    if not files:
        raise lacks_data(
            path, f"holds no *{_EXTENSION}", "Name the folder of the files with --root."
        )
    return [ArrowRows(name.removesuffix(_EXTENSION), file) for name, file in files.items()]


def _saved(folder: Path) -> list[ArrowRows]:
    """Return the files of ``save_to_disk``."""
    state, data = _read_json(folder / _STATE), list[LocalFile]()
    with suppress(TypeError, KeyError):
        data = [LocalFile(folder / one["filename"]) for one in state["_data_files"]]
    # Versions of `datasets` before 2 wrote indices, which choose rows of the files.
    if not data or state.get("_indices_files") or state.get("_indices_data_files"):
        what = "has indices, from an old version of datasets" if data else "lists no files"
        hint = "Save the dataset again, flatten_indices() first."
        raise SourceError(f"{folder / _STATE}: {what}", hint)
    return [ArrowRows(file.stem, file) for file in data]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}", "Save the dataset again.") from None
    return content if isinstance(content, dict) else {}


class ArrowRows(RowsFile):
    """Rows of an Arrow file."""

    @contextmanager
    def open(self) -> Iterator[_OpenArrow]:
        with reading(self, "Arrow IPC"):
            yield _OpenArrow(self, MappedArrow(self.file.location))


class _Piece(NamedTuple):
    """Rows of a record batch: the batch's number in the file, and the first row's."""

    rows: ArrowRows
    arrow: MappedArrow
    state: int
    batch: pa.RecordBatch
    number: int
    first: int

    def places(self, column: str) -> list[Record | None]:
        """Return the places of the values of a column of bytes."""
        values = column_of(self.batch, column)
        starts, lengths = self.arrow.extents(values)
        valid, paths = _valid(values), self._paths(column)
        path, state = self.rows.file.location, self.state
        places: list[Record | None] = []
        for row, length in enumerate(lengths.tolist()):
            if not valid[row]:
                places.append(None if paths is None else _outside(paths[row].as_py()))
                continue
            if starts is None or not self.rows.plain:
                where = self.first + row, length, state
                places.append(Record("", 0, path, *where, column=column, group=self.number))
            else:
                places.append(Record("", 0, path, int(starts[row]), length, state))
        return places

    def kept(self, column: str) -> str:
        values = column_of(self.batch, column)
        paths = self._paths(column)
        nulls = np.flatnonzero(~_valid(values)).tolist() if values.null_count else []
        if paths is not None and any(paths[row].is_valid for row in nulls):
            return OUTSIDE
        return ROWS if self.arrow.extents(values)[0] is None else EXTENTS

    def _paths(self, column: str) -> pa.Array | None:
        """Return the paths beside bytes in Hugging Face's structs; None if there are none."""
        first, *fields = column_path(self.batch.schema, column)
        kind = self.batch.schema.field(first).type
        if fields != ["bytes"] or kind.get_field_index("path") < 0:
            return None
        paths = column_of(self.batch, f"{first}.path")
        return paths if pa.types.is_string(paths.type) else None


def _valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    return as_numpy(values.is_valid().cast(pa.uint8())).astype(np.bool_)


def _outside(path: str | None) -> Record | None:
    if not path:
        return None
    if not os.path.isabs(path):
        return Record("", 0, path, 0, 0, 0, problem=f"is not here, and {path} is no absolute path")
    try:
        stat = os.stat(path)
    except OSError as error:
        return Record("", 0, path, 0, 0, 0, problem=f"cannot be opened: {error.strerror}")
    return Record("", 0, path, 0, stat.st_size, stat.st_mtime_ns)


class _OpenArrow(OpenRows):
    def __init__(self, rows: ArrowRows, arrow: MappedArrow) -> None:
        self._rows, self._arrow, self.schema = rows, arrow, arrow.schema

    def values(self, column: str) -> Iterator[bytes | None]:
        """Yield the values of a column of bytes; those in files of their own as well."""
        for piece in self._pieces([column], _FEW):
            places = piece.places(column)
            for value, place in zip(column_values(piece.batch, column), places, strict=True):
                if value is None and place is not None and place.problem is None:
                    value = read_file(place.path)
                yield value

    def batches(self, columns: Sequence[str], blobs: Sequence[str]) -> Iterator[RowBatch]:
        for piece in self._pieces([*columns, *blobs], BATCH_ROWS):
            values = {name: column_values(piece.batch, name) for name in columns}
            places = {name: piece.places(name) for name in blobs}
            yield RowBatch(piece.batch.num_rows, values, places)

    def kept(self, column: str) -> str:
        ways = {piece.kept(column) for piece in self._pieces([column])}
        kinds = OUTSIDE, ROWS
        return next((kind for kind in kinds if kind in ways), EXTENTS)

    def groups(self) -> list[int]:
        return [batch.num_rows for batch in self._arrow.batches([])]

    def _pieces(self, columns: Sequence[str], most: int = 1 << 62) -> Iterator[_Piece]:
        """Yield the batches with some columns, in pieces of at most so many rows."""
        names = list(dict.fromkeys(column_path(self.schema, name)[0] for name in columns))
        for name in names:
            if self.schema.get_all_field_indices(name) != [self.schema.get_field_index(name)]:
                raise ValueError(f"it has no column {name}, or several")
        first, shared = 0, (self._rows, self._arrow, self._rows.file.mtime_ns)
        for number, batch in enumerate(self._arrow.batches(names)):
            for at in range(0, batch.num_rows, most):
                yield _Piece(*shared, batch.slice(at, most), number, first + at)
            first += batch.num_rows

"""Source of Arrow IPC files with a column of images, such as Hugging Face's ``datasets`` writes."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastdata.converters import tabular
from fastdata.converters.rows import column_of, column_path, column_values
from fastdata.converters.trees import LocalTree, SourceFile, data_files, is_folder, require_utf8

from fastdata.errors import SourceError
from fastdata.remote.urls import is_url, redact
from fastdata.storage.arrow import as_numpy
from fastdata.storage.files import read_file
from fastdata.storage.formats.arrow_ipc import MappedArrow
from fastdata.storage.jsontext import parse_json
from fastdata.storage.local import LocalFile
from fastdata.storage.look import instead

_EXTENSION = ".arrow"
#: Files of save_to_disk, and of the cache.
_STATE, _INFO, _DICT = "state.json", "dataset_info.json", "dataset_dict.json"
#: What ``map`` and the like leave in the cache beside a dataset's own files.
_DERIVED = re.compile(r"(cache-|tmp).*")
#: Values to decode at a time.
_FEW = 8


class ArrowImages(tabular.TabularImages):
    """Source of the rows of Arrow IPC streams and files, by file path and then row.

    See `TabularImages`. In a folder of ``save_to_disk``, the rows are those of the dataset: the
    files that ``state.json`` lists, in that order, and of these the rows of its indices, if it has
    any. In a folder of Hugging Face's cache, files of ``map`` and the like are left out.

    Images and blobs are extents of the files. Of compressed batches, pyarrow decodes the rows. A
    null in ``bytes`` beside an absolute ``path`` is the file there. ``root`` is a folder of
    ``*.arrow``, at any depth, or one file; not a URL. ``split`` is one of `arrow_splits`, None for
    all files.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, split: str | None = None, **columns: Any
    ) -> None:
        if is_url(root):
            raise SourceError(
                f"{redact(os.fspath(root))}: Arrow files are read on this machine alone",
                "Copy them here first; of a dataset on the Hub, convert its Parquet files.",
            )
        path = require_utf8(Path(root).absolute())
        found = arrow_splits(path)
        tabular.taken_split(root, split, found)
        rest = [one for one in found if one != split] if split is not None else []
        more: Any = {"others": lambda: (one for name in rest for one in _files(path, name))}
        files = _files(path, split)
        super().__init__(files, str(path.resolve()), "arrow", split, **more, **columns)


def arrow_splits(root: str | os.PathLike[str]) -> list[str]:
    """Return the splits of a folder of ``save_to_disk`` or of the cache; none of another."""
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
        return [ArrowRows(path.stem, (LocalFile(path),))]
    if (path / _DICT).is_file():
        name = tabular.taken_split(path, split, arrow_splits(path), one=True)
        if name is None:
            raise SourceError(f"{path / _DICT}: lists no splits", "Save the dataset again.")
        return _files(path / name, None)
    info = _read_json(path / _INFO) if (path / _INFO).is_file() else {}
    features = json.dumps({"info": {"features": info.get("features")}})
    if (path / _STATE).is_file():
        return _saved(path, features)
    found = {
        name: file
        for name, file in data_files(LocalTree(path), _EXTENSION).items()
        if (split is None or _is_of(name, split)) and not (info and _DERIVED.match(name))
    }
    if not found:
        raise instead(path, f"holds no *{_EXTENSION}", "Name the folder of the files with --root.")
    return [
        ArrowRows(name.removesuffix(_EXTENSION), (file,), features=features)
        for name, file in found.items()
    ]


def _saved(folder: Path, features: str) -> list[ArrowRows]:
    """Return the files of ``save_to_disk``: one, if indices choose among their rows."""
    state = _read_json(folder / _STATE)

    def files(*keys: str) -> list[LocalFile]:
        listed: Any = next((state[key] for key in keys if state.get(key)), [])
        return [LocalFile(folder / one["filename"]) for one in listed]

    data: list[LocalFile] = []
    with suppress(TypeError, KeyError):
        # Before version 2, `datasets` called them otherwise.
        data, indices = files("_data_files"), files("_indices_files", "_indices_data_files")
    if not data:
        raise SourceError(f"{folder / _STATE}: lists no files", "Save the dataset again.")
    if indices:
        return [ArrowRows("rows", tuple(data), True, tuple(indices), features)]
    return [ArrowRows(file.stem, (file,), features=features) for file in data]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}", "Save the dataset again.") from None
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class ArrowRows(tabular.RowsFile):
    """Rows of Arrow files; ``features`` are Hugging Face's in the schema's metadata.

    ``indices`` are files of the numbers of rows among those of all files; none for all rows of a
    file.
    """

    indices: tuple[LocalFile, ...] = ()
    features: str = ""

    @contextmanager
    def open(self) -> Iterator[_OpenArrow]:
        """Open it."""
        with tabular.reading(self, "Arrow IPC"):
            yield _OpenArrow(self, [(file, _mapped(file)) for file in self.files])


def _mapped(file: SourceFile) -> MappedArrow:
    with tabular.reading(file, "Arrow IPC"):
        return MappedArrow(file.location)


class _Piece(NamedTuple):
    """Record batch of a file: its number and that of its first row in the file."""

    file: SourceFile
    arrow: MappedArrow
    batch: pa.RecordBatch
    number: int
    first: int
    state: int
    plain: bool

    def values(self, columns: Sequence[str], rows: npt.NDArray[np.int64]) -> dict[str, list[Any]]:
        tops = list(dict.fromkeys(column_path(self.batch.schema, name)[0] for name in columns))
        if not tops:
            return {}
        taken = self.batch.select(tops)
        run = (np.diff(rows) == 1).all()
        taken = taken.slice(int(rows[0]), len(rows)) if run else taken.take(pa.array(rows))
        return {name: column_values(taken, name) for name in columns}

    def places(self, column: str, rows: npt.NDArray[np.int64]) -> list[tabular.Place | None]:
        """Return the places of the values of a column of bytes in some rows."""
        values = column_of(self.batch, column)
        starts, lengths = self.arrow.extents(values)
        valid, paths = _valid(values), self._paths(column)
        path, state = self.file.location, self.state
        places: list[tabular.Place | None] = []
        for row in rows.tolist():
            if not valid[row]:
                places.append(None if paths is None else _outside(paths[row].as_py()))
                continue
            length = int(lengths[row])
            if starts is None or not self.plain:
                where = self.first + row, length, state, column, self.number
                places.append(tabular.Place(path, *where))
            else:
                places.append(tabular.Place(path, int(starts[row]), length, state))
        return places

    def decoded_because(self, column: str) -> str:
        values = column_of(self.batch, column)
        paths = self._paths(column)
        nulls = np.flatnonzero(~_valid(values)).tolist() if values.null_count else []
        if paths is not None and any(paths[row].is_valid for row in nulls):
            return tabular.OUTSIDE
        return "compressed" if self.arrow.extents(values)[0] is None else ""

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


def _outside(path: str | None) -> tabular.Place | None:
    if not path:
        return None
    if not os.path.isabs(path):
        return tabular.Place(path, 0, 0, 0, problem=f"is not here, and {path} is no absolute path")
    try:
        stat = os.stat(path)
    except OSError as error:
        return tabular.Place(path, 0, 0, 0, problem=f"cannot be opened: {error.strerror}")
    return tabular.Place(path, 0, stat.st_size, stat.st_mtime_ns)


class _OpenArrow(tabular.OpenRows):
    def __init__(self, rows: ArrowRows, files: Sequence[tuple[SourceFile, MappedArrow]]) -> None:
        self._rows, self._files = rows, files
        schema = files[0][1].schema
        metadata = schema.metadata or {}
        if rows.features and b"huggingface" not in metadata:
            schema = schema.with_metadata({**metadata, b"huggingface": rows.features.encode()})
        self.schema: pa.Schema = schema

    def values(self, column: str) -> Iterator[bytes | None]:
        """Yield the values of a column of bytes; those in files of their own as well."""
        for piece in self._pieces([column]):
            for at in range(0, piece.batch.num_rows, _FEW):
                some = piece._replace(batch=piece.batch.slice(at, _FEW))
                places = some.places(column, np.arange(some.batch.num_rows))
                for value, place in zip(column_values(some.batch, column), places, strict=True):
                    if value is None and place is not None and place.problem is None:
                        value = read_file(place.path)
                    yield value

    def batches(self, columns: Sequence[str], blobs: Sequence[str]) -> Iterator[tabular.Batch]:
        pieces = self._pieces([*columns, *blobs])
        if self._rows.indices:
            yield from self._chosen(list(pieces), columns, blobs)
            return
        for piece in pieces:
            for at in range(0, piece.batch.num_rows, tabular.BATCH_ROWS):
                rows = np.arange(at, min(at + tabular.BATCH_ROWS, piece.batch.num_rows))
                values = piece.values(columns, rows)
                places = {name: piece.places(name, rows) for name in blobs}
                yield tabular.Batch(len(rows), values, places)

    def decoded_because(self, column: str) -> str:
        found = (piece.decoded_because(column) for piece in self._pieces([column]))
        return next(filter(None, found), "")

    def groups(self) -> list[list[int]]:
        return [[batch.num_rows for batch in arrow.batches([])] for _, arrow in self._files]

    def _pieces(self, columns: Sequence[str]) -> Iterator[_Piece]:
        """Yield the batches of all files with some columns."""
        names = list(dict.fromkeys(column_path(self.schema, name)[0] for name in columns))
        for file, arrow in self._files:
            for name in names:
                if arrow.schema.get_all_field_indices(name) != [arrow.schema.get_field_index(name)]:
                    raise ValueError(f"it has no column {name}, or several")
                if arrow.schema.field(name).type != self.schema.field(name).type:
                    raise ValueError(f"its column {name} is of another type than in {self._rows}")
            first, about = 0, (file.mtime_ns, self._rows.plain)
            for number, batch in enumerate(arrow.batches(names)):
                yield _Piece(file, arrow, batch, number, first, *about)
                first += batch.num_rows

    def _chosen(
        self, pieces: Sequence[_Piece], columns: Sequence[str], blobs: Sequence[str]
    ) -> Iterator[tabular.Batch]:
        """Yield the rows of the indices, in their order."""
        ends = list(accumulate(piece.batch.num_rows for piece in pieces))
        for file in self._rows.indices:
            arrow = _mapped(file)
            for batch in arrow.batches(arrow.schema.names[:1]):
                for at in range(0, batch.num_rows, tabular.BATCH_ROWS):
                    numbers = np.array(
                        batch.column(0)[at : at + tabular.BATCH_ROWS].to_pylist(), object
                    )
                    if any(one is None or not 0 <= one < (ends or [0])[-1] for one in numbers):
                        raise SourceError(
                            f"{file}: an index is not of a row", "Save the dataset again."
                        )
                    yield _gathered(pieces, ends, numbers.astype(np.int64), columns, blobs)


def _gathered(
    pieces: Sequence[_Piece],
    ends: Sequence[int],
    numbers: npt.NDArray[np.int64],
    columns: Sequence[str],
    blobs: Sequence[str],
) -> tabular.Batch:
    owners = np.array([bisect_right(ends, number) for number in numbers.tolist()])
    values: dict[str, list[Any]] = {name: [None] * len(numbers) for name in columns}
    places: dict[str, list[tabular.Place | None]] = {name: [None] * len(numbers) for name in blobs}
    for owner in np.unique(owners).tolist():
        chosen = np.flatnonzero(owners == owner)
        piece = pieces[owner]
        rows = numbers[chosen] - (ends[owner] - piece.batch.num_rows)
        for name, column in piece.values(columns, rows).items():
            for place, value in zip(chosen.tolist(), column, strict=True):
                values[name][place] = value
        for name in blobs:
            for place, where in zip(chosen.tolist(), piece.places(name, rows), strict=True):
                places[name][place] = where
    return tabular.Batch(len(numbers), values, places)

"""Sources with an index: a packed dataset on a local disk, and the base of those elsewhere."""

from __future__ import annotations

import os
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata.errors import LEAVE_OUT, CorruptionError, DatasetError, FastdataError, printable, warn
from fastdata.once import once
from fastdata.storage.cache import Cache
from fastdata.storage.checksum import crc32c
from fastdata.storage.columns import Column, ColumnReader, as_column
from fastdata.storage.encodings import DEFAULT_STRIDE, upright_size
from fastdata.storage.fields import BLOBS, LABEL
from fastdata.storage.files import open_file, read_exactly, remedy
from fastdata.storage.formats import IN_PLACE
from fastdata.storage.generation import explained, generation_in, require_same
from fastdata.storage.index import ExtentTable, Index
from fastdata.storage.learnt import Learnt, Stamped, learnt_of
from fastdata.storage.manifest import FileEntry, Manifest
from fastdata.storage.paths import is_inside
from fastdata.storage.records import Row
from fastdata.storage.row_groups import ADDRESSES
from fastdata.storage.source import (
    MOST_BYTES,
    Blob,
    BlobColumn,
    Capabilities,
    Encodings,
    Gathered,
    Hints,
    Orientations,
    Rows,
    Sides,
    Source,
)
from fastdata.text import human_count, human_size

_IN_PLACE_HINT = (
    "Run fastdata verify to find further damage; then put the files back as they were, or index "
    "them again with --force."
)
_MISSING_IN_PLACE_HINT = (
    "Put the files back. If they are elsewhere now, index them there, with the same command and "
    "--force."
)
_HINT = "Run fastdata verify to find further damage; then copy or pack the dataset again."
_PERMISSIONS_HINT = "Check that it is a file, and that you may read it."


class IndexedSource(Source):
    """Source with a manifest and an index.

    Args:
        location: See `Source`.
        manifest: The manifest.
        index: The open index.
        files: Paths or URLs of the manifest's files.
        root: Folder or URL of rows that have files of their own; None if there are none.
        local: Whether the core can read the files.
        guard: Context in which the index and the blobs are read; may extend their errors.
    """

    hints = Hints(
        _HINT,
        "Put the file back, or pack the dataset again.",
        f"Find them all with fastdata verify and pack without them (--skip-bad), or {LEAVE_OUT}",
    )

    def __init__(
        self,
        location: Path | str,
        manifest: Manifest,
        index: Index,
        files: Sequence[str],
        root: Path | str | None,
        *,
        local: bool = True,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.location = location
        self.manifest = manifest
        self.generation = manifest.generation
        self.index = index
        self._files, self._root = files, root
        self._given_guard = guard
        if manifest.container in IN_PLACE:
            self.hints = self.hints._replace(changed=_IN_PLACE_HINT, missing=_MISSING_IN_PLACE_HINT)
        self._warned = False
        self._stored = {one.field.name: one for one in manifest.fields}
        self.fields = tuple(one.field for one in manifest.fields)
        self._has_label = "label" in self._stored
        self._readers: dict[str, ColumnReader] = {}
        self._indexes: dict[str, Index] = {}
        self._tables: dict[tuple[str, bool], ExtentTable] = {}
        self._learnt: Learnt | None = None
        seek_points = bool(manifest.options.get("seek_points"))
        self.capabilities = Capabilities(local, manifest.order == "shuffled", seek_points)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def places(self) -> Sequence[str]:
        """Paths or URLs of the manifest's files."""
        return self._files

    @once
    def sizes(self) -> list[int]:
        """Ends of the addresses of the manifest's files: their sizes, but of tables."""
        tables = self.manifest.groups is not None
        files = self.manifest.files
        return [ADDRESSES if tables and not one.crc32c else one.size for one in files]

    @once
    def files(self) -> _native.Files:
        """The manifest's files, if they are on this machine."""
        return _native.Files(self._files, self.sizes)

    @property
    def classes(self) -> Sequence[str]:
        """Names of classes."""
        return self.manifest.classes

    @property
    def summary(self) -> str:
        """See `Source.summary`."""
        return f"{super().summary} in {self.manifest.container}"

    @property
    def table(self) -> ExtentTable:
        """Extents of the images of all rows, for the core."""
        return self.table_of("image")

    def table_of(self, field: str) -> ExtentTable:
        """See `Source.table_of`."""
        upright = self._turns(field)
        found = self._tables.get((field, upright))
        if found is None:
            given = [len(self.classes)] if field == "image" and self._has_label else []
            index = self.index_of(field)
            found = index.locate(self.files, self._table_root(), *given, upright=upright)
            self._tables[field, upright] = found
            self._show_learnt()
        return found

    def learn(self, cache: Cache | None = None) -> None:
        """Keep seek points built while decoding if the index has none; see `learnt_of`."""
        if self._learnt is not None or self.capabilities.seek_points:
            return
        index = self.index.path
        self._learnt = learnt_of(index.parent, self.generation, len(self), cache, index)
        if self._learnt is not None:
            self.capabilities = replace(self.capabilities, stride=DEFAULT_STRIDE)
            self._show_learnt()

    def learnt(self, row: int) -> bytes | None:
        """Return the seek points that loaders have learnt of a row; None if there are none."""
        self.learn()
        return None if self._learnt is None else self._learnt.table(row)

    def _show_learnt(self) -> None:
        """Have the core look for learnt seek points, once there are some."""
        if self._learnt is None:
            return
        if self._learnt.stopped:
            self.capabilities = replace(self.capabilities, stride=0)
        for (field, _), table in self._tables.items():
            if field == "image" and self._learnt.file is not None:
                table.learn(self._learnt.file)

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        """See `Source.built`."""
        if self._learnt is not None:
            # The index has checksums of the images.
            self._learnt.put([(row, Stamped(entry.table)) for row, entry in tables])
            self._show_learnt()

    def end_epoch(self) -> None:
        """See `Source.end_epoch`. Write the seek points that were learnt last."""
        if self._learnt is not None:
            self._learnt.flush()
            self._show_learnt()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Extend errors of reading: they may come of another packing."""
        with self._given_guard():
            try:
                yield
            except DatasetError as error:
                raise explained(self, error) from None

    def problem(self, row: int, detail: str, code: str = "", hint: str = "") -> FastdataError:
        """See `Source.problem`."""
        return explained(self, super().problem(row, detail, code, hint))

    def generation_now(self) -> str:
        """See `Source.generation_now`."""
        return generation_in(self.location)

    def _turns(self, field: str) -> bool:
        return self.upright and (field == "image" or self.field(field).kind == "image")

    def index_of(self, field: str) -> Index:
        """Return the index of a field's blobs, or of a column's pieces."""
        stored = self._stored[field]
        if stored.index is None:
            return self.index
        found = self._indexes.get(field)
        if found is None:
            entry = self.manifest.files[self.manifest.number_of(stored.index)]
            rows = -(-len(self) // stored.rows) if stored.rows else len(self)
            with self._guard():
                found = self._indexes[field] = self._open_index(entry, rows)
        return found

    def _table_root(self) -> Path | str | None:
        return self._root

    def gather(self, rows: Rows, fields: Sequence[str] = ("image",)) -> Gathered:
        """See `Source.gather`."""
        blobs: dict[str, BlobColumn] = {}
        columns: dict[str, Column] = {}
        if "image" in fields or "label" in fields:
            images = self.table.gather(rows)
        for name in fields:
            if name == "image":
                blobs[name] = BlobColumn(images)
            elif (field := self.field(name)) == LABEL:
                columns[name] = images.labels.copy()
            elif field.kind in BLOBS:
                blobs[name] = BlobColumn(self.table_of(name).gather(rows))
            else:
                columns[name] = self.column(name, rows)
        return Gathered(blobs, columns)

    def described(self, extents: _native.Extents) -> Gathered:
        """See `Source.described`."""
        columns = {"label": extents.labels.copy()} if self._has_label else {}
        return Gathered({"image": BlobColumn(extents)}, columns)

    def column(self, field: str, rows: Rows | None = None) -> Column:
        """See `Source.column`."""
        nullable = self.field(field, ("column",)).nullable
        with self._guard():
            if field != "label":
                values = self._reader_of(field).values(rows)
                return values if nullable else as_column(values)
            if rows is not None:
                found = self.table.gather(rows)
                for slot in found.corrupt_slots():
                    self.row(int(rows[slot]))  # raises, unless only its extent is damaged
                return found.labels.copy()
            labels: npt.NDArray[np.int64] = self.index.column(field).astype(np.int64)
            for label in (labels.min(), labels.max()) if len(labels) else ():
                self._check_label(int(label), "a sample")
            return labels

    def piece(self, field: str, number: int) -> pa.Array:
        """Return a piece of a further column, without keeping it in memory."""
        with self._guard():
            return self._reader_of(field).piece(number)

    def _reader_of(self, field: str) -> ColumnReader:
        found = self._readers.get(field)
        if found is None:
            stored, index = self._stored[field], self.index_of(field)
            # Without a cycle, its files are closed when the last user of this source has gone.
            read = partial(IndexedSource._read_pieces, weakref.proxy(self), field)
            found = ColumnReader(stored, index, len(self), read)
            self._readers[field] = found
        return found

    def _read_pieces(self, field: str, pieces: Sequence[Row]) -> list[bytes]:
        """Read pieces of a column, and compare their checksums."""
        stored = self._stored[field]
        assert stored.file is not None
        number = self.manifest.number_of(stored.file)
        size = self.manifest.files[number].size
        for piece in pieces:
            if piece.file != number or not 0 <= piece.offset <= size - piece.length:
                raise self.index_of(field).corrupt("puts a piece outside of its file")
        return self.read_several(pieces, None)

    @once
    def image_size(self) -> tuple[int, int] | None:
        """See `Source.image_size`; reads the index up to the first row that differs."""
        with self._guard():
            if not self.upright:
                found = self.index.common("width", "height")
                return None if found is None else (found[0], found[1])
            found = self.index.common("width", "height", "orientation")
        return None if found is None else upright_size(*found)

    def row(self, number: int) -> Row:
        """Return a row's record in the index; raise IndexError if there is no such row."""
        with self._guard():
            record: Row = self.index[number]
            self._check_label(record.label, f"sample {number} ({printable(record.key)})")
        return record

    def record(self, row: int, field: str) -> Row:
        """Return the record of one blob of a row."""
        if field == "image":
            return self.row(row)
        self.field(field, BLOBS)
        with self._guard():
            found: Row = self.index_of(field)[row]
            return found._replace(key=self.key(row))

    def _check_label(self, label: int, where: str) -> None:
        if self._has_label and not 0 <= label < len(self.classes):
            raise CorruptionError(
                f"{self.location}: {where}: the index gives label {label}, but the dataset "
                f"has {human_count(len(self.classes), 'class', 'classes')}",
                _HINT,
            )

    def key(self, row: int) -> str:
        """See `Source.key`."""
        return self.row(row).key

    def describe(self, row: int) -> str:
        """See `Source.describe`."""
        record = self.row(row)
        file = self.file(record, row)
        return f"{self.location}: sample {row} ({printable(record.key)}) in {file}"

    def encoded(self, row: int, field: str = "image", data: bytes | None = None) -> Blob:
        """See `Source.encoded`."""
        record = self.record(row, field)
        if data is None:
            with self._guard():
                data = self.read(record, row)
                if record.encoding == "raw" and len(data) != record.width * record.height * 3:
                    size = human_size(record.width, record.height)
                    raise self.corrupt(record, row, f"it does not have {size} pixels")
        about = (record.encoding, record.width, record.height, record.channels)
        orientation = record.orientation if self._turns(field) else 0
        return Blob(data, *about, orientation, checked=True)

    def resized(
        self,
        rows: Rows,
        widths: Sides,
        heights: Sides,
        encodings: Encodings | None = None,
        orientations: Orientations | None = None,
    ) -> None:
        """See `Source.resized`. Only a damaged index lacks sizes."""
        for row, width, height in zip(rows.tolist(), widths, heights, strict=True):
            record = self.row(row)
            size = record.width, record.height
            if all(size):
                if self.upright:
                    size = upright_size(*size, record.orientation)
                raise self.problem(
                    row,
                    f"the image is {human_size(int(width), int(height))}, the index says "
                    f"{human_size(*size)}",
                    "corrupt_index",
                )

    def declined(self, row: int, code: str) -> None:
        """See `Source.declined`. Warn once if seek points belong to other images."""
        if code == "bad_seek_points" and self._learnt is not None:
            self._learnt.drop(row)
        elif code == "bad_seek_points" and not self._warned:
            self._warned = True
            warn(
                f"{self.location}: sample {row} ({self.key(row)}) has seek points of another "
                "image. Such samples are decoded without seek points, which is slower. Rebuild "
                f"them: fastdata seek-points {self.location}"
            )

    def own_files(self, fields: Iterable[str], start: int, stop: int) -> Iterator[FileEntry]:
        """Yield the blobs of some rows as files below the root, if each has a file."""
        for name in fields:
            for row in self.index_of(name).rows(start, stop, seek_points=False):
                if row.path is not None or name == "image":
                    yield FileEntry(row.path or "", row.length, f"{row.crc32c:08x}")

    @abstractmethod
    def _open_index(self, entry: FileEntry, rows: int) -> Index:
        """Open the index of a further field."""

    @abstractmethod
    def file(self, record: Row, number: int | None) -> Path | str:
        """Return the path or URL, without credentials, of the file that holds a row's blob.

        ``number`` is for messages; None for a piece of a column.
        """

    @abstractmethod
    def read(self, record: Row, number: int | None) -> bytes:
        """Read a row's blob and compare its checksum; the arguments are those of `file`."""

    def read_several(self, records: Sequence[Row], number: int | None) -> list[bytes]:
        """Read several blobs of a row, or pieces of a column; see `read`."""
        return [self.read(record, number) for record in records]

    def _own_path(self, record: Row, number: int | None) -> str | None:
        """Return the path of a row's own file below the root; None for a manifest's file."""
        if record.path is not None and self._root is not None:
            if not is_inside(record.path):
                problem = f"its path {record.path} leaves the dataset's root"
                raise self.corrupt(record, number, problem)
            if record.file != -1:
                problem = f"the index gives it both a path and file {record.file}"
                raise self.corrupt(record, number, problem)
            return record.path
        if not 0 <= record.file < len(self._files):
            problem = f"the index puts it in file {record.file}, which does not exist"
            raise self.corrupt(record, number, problem)
        return None

    def corrupt(self, record: Row, number: int | None, problem: str) -> CorruptionError:
        """Return the error for a damaged row, or piece of a column."""
        key = printable(record.key)
        where = key if number is None else f"sample {number} ({key})"
        return CorruptionError(f"{self.location}: {where}: {problem}", self.hints.changed)


class PackedSource(IndexedSource):
    """Source of a packed dataset on a local disk.

    Opening reads the manifest, unless it is given, and the index's header, nothing that grows
    with the number of rows. Unpickling opens it again, once per process for all tasks on the same
    dataset.

    Raises:
        DatasetError: It is missing, unfinished, of another version, or does not match its manifest.
    """

    location: Path

    def __init__(
        self,
        path: Path,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
        manifest: Manifest | None = None,
    ) -> None:
        manifest = manifest or Manifest.load(path)
        root = None if manifest.root is None else path / manifest.root
        files = manifest.places(path, root)
        opened = Index(path / manifest.index.name, manifest.samples, manifest.generation)
        super().__init__(path, manifest, opened, files, root, guard=guard)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.location, self.generation)

    def _open_index(self, entry: FileEntry, rows: int) -> Index:
        return Index(self.location / entry.name, rows, self.generation)

    def file(self, record: Row, number: int | None) -> Path:
        """See `IndexedSource.file`."""
        own = self._own_path(record, number)
        return Path(self._files[record.file] if own is None else f"{self._root}/{own}")

    def read(self, record: Row, number: int | None) -> bytes:
        """See `IndexedSource.read`."""
        path = self.file(record, number)
        try:
            # A row's own file is opened once, for its size and its bytes.
            with nullcontext() if record.path is None else open_file(path) as own:
                size = self.sizes[record.file] if own is None else os.fstat(own.fileno()).st_size
                if not 0 <= record.offset <= record.offset + record.length <= size:
                    problem = f"{path} has {size} bytes, too few to hold it"
                    raise self.corrupt(record, number, problem)
                if record.length > MOST_BYTES:
                    problem = f"it has {record.length:,} bytes, too many"
                    raise self.corrupt(record, number, problem)
                extent = record.offset, record.length
                if own is None:
                    data = self.files.read(record.file, *extent)
                else:
                    data = read_exactly(own.fileno(), *extent)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            what = "no such file" if missing else f"cannot be read: {error.strerror}"
            hint = self.hints.missing if missing else _PERMISSIONS_HINT
            raise DatasetError(f"{path}: {what}", remedy(error, hint)) from None
        except ValueError:
            expected = self.manifest.files[record.file].size
            with suppress(OSError):  # it was removed meanwhile
                require_size(path, expected, path.stat().st_size, self.hints.changed)
            what = f"{path}: was replaced or changed since it was opened"
            raise CorruptionError(what, self.hints.changed) from None
        if crc32c(data) != record.crc32c:
            problem = f"its bytes in {path} have changed since it was packed"
            raise self.corrupt(record, number, problem)
        return data


@lru_cache(maxsize=1)
def _reopen(path: Path, generation: str) -> PackedSource:
    """Open a dataset in a worker."""
    source = PackedSource(path)
    require_same(source, generation)
    return source


def require_size(path: Path, expected: int, found: int, hint: str = _HINT) -> None:
    """Raise CorruptionError for a file of another size than the manifest's."""
    if found != expected:
        raise CorruptionError(
            f"{path}: has {found} bytes, but the manifest says {expected}: it was cut short, or "
            "changed after packing",
            hint,
        )

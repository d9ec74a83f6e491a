"""Sources with an index: a packed dataset on a local disk, and the base of those elsewhere."""

from __future__ import annotations

import os
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata._native import crc32c
from fastdata.errors import LEAVE_OUT, CorruptionError, DatasetError, FastdataError, printable, warn
from fastdata.once import once
from fastdata.storage.cache import Cache
from fastdata.storage.columns import ColumnReader, as_column
from fastdata.storage.descriptors import read_exactly
from fastdata.storage.encodings import upright_size
from fastdata.storage.fields import BLOBS, LABEL
from fastdata.storage.files import open_file, remedy
from fastdata.storage.index import Index
from fastdata.storage.learnt import LearningSource, Learnt, learnt_of
from fastdata.storage.manifest import IN_PLACE, FileEntry, Manifest, generation_in
from fastdata.storage.paths import is_inside
from fastdata.storage.records import Row
from fastdata.storage.row_groups import ADDRESSES
from fastdata.storage.source import (
    MOST_BYTES,
    Blob,
    BlobColumn,
    Capabilities,
    Column,
    ExtentTable,
    Gathered,
    Hints,
    Measured,
    Rows,
    Source,
    Stamped,
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


def require_same(source: Source, generation: str) -> None:
    """Raise CorruptionError if a dataset that is opened again is another one."""
    if source.generation != generation:
        raise _packed_again(source, "")


def explained(source: Source, error: FastdataError) -> FastdataError:
    """Return the error of reading a dataset; or its cause, if the dataset was packed again."""
    if isinstance(error, DatasetError):
        with suppress(OSError):  # as where too many files are open
            if source.generation_now() != source.generation:
                return _packed_again(source, f"{error.what}: ")
        return noted(error, source.note)
    return error


def noted(error: DatasetError, note: str) -> DatasetError:
    """Return an error whose hint ends with a note."""
    if not note or note in error.hint:
        return error
    return type(error)(error.what, f"{error.hint} {note}".lstrip())


def _packed_again(source: Source, what: str) -> CorruptionError:
    return CorruptionError(
        f"{what}{source.location}: was packed again, or removed, while open",
        "Open the dataset again, when packing or copying has ended.",
    )


@dataclass(frozen=True)
class BlobFiles:
    """Files that hold the blobs of a dataset, and the pieces of its columns.

    Attributes:
        manifest: The dataset's manifest.
        places: Paths or URLs of the manifest's files.
        root: Folder or URL of rows that have files of their own; None if there are none.
    """

    manifest: Manifest
    places: Sequence[str]
    root: Path | str | None

    @once
    def sizes(self) -> list[int]:
        """Ends of the addresses of the manifest's files: their sizes, except for tables."""
        tables = self.manifest.groups is not None
        files = self.manifest.files
        return [ADDRESSES if tables and not one.crc32c else one.size for one in files]

    @once
    def native(self) -> _native.Files:
        """The manifest's files for the core, if they are on this machine."""
        return _native.Files(self.places, self.sizes)

    def own_path(self, record: Row) -> str | None:
        """Return the path of a row's own file below the root; None for a manifest's file.

        ValueError: the index contradicts itself; the text is its problem.
        """
        if record.path is not None and self.root is not None:
            if not is_inside(record.path):
                raise ValueError(f"its path {record.path} leaves the dataset's root")
            if record.file != -1:
                raise ValueError(f"the index gives it both a path and file {record.file}")
            return record.path
        if not 0 <= record.file < len(self.places):
            raise ValueError(f"the index puts it in file {record.file}, which does not exist")
        return None


class IndexedSource(LearningSource):
    """Source with a manifest and an index.

    Args:
        location: See `Source`.
        index: The open index.
        files: Its files.
        local: Whether the core can read the files.
    """

    hints = Hints(
        _HINT,
        "Put the file back, or pack the dataset again.",
        f"Find them all with fastdata verify and pack without them (--skip-bad), or {LEAVE_OUT}",
    )

    def __init__(
        self,
        location: Path | str,
        index: Index,
        files: BlobFiles,
        *,
        local: bool = True,
    ) -> None:
        self.location = location
        self.manifest = manifest = files.manifest
        self.generation = manifest.generation
        self.index, self.files = index, files
        if manifest.container in IN_PLACE:
            self.hints = self.hints._replace(changed=_IN_PLACE_HINT, missing=_MISSING_IN_PLACE_HINT)
        self._warned = False
        self._stored = {one.field.name: one for one in manifest.fields}
        self.fields = tuple(one.field for one in manifest.fields)
        self._has_label = "label" in self._stored
        self._readers: dict[str, ColumnReader] = {}
        self._indexes: dict[str, Index] = {}
        self._tables: dict[tuple[str, bool], ExtentTable] = {}
        self.capabilities = Capabilities(
            local,
            shuffled=manifest.order == "shuffled",
            seek_points=bool(manifest.options.get("seek_points")),
            row_groups=manifest.groups is not None,
        )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def classes(self) -> Sequence[str]:
        return self.manifest.classes

    @property
    def summary(self) -> str:
        return f"{super().summary} in {self.manifest.container}"

    def table_of(self, field: str = "image") -> ExtentTable:
        upright = self._turns(field)
        table = self._tables.get((field, upright))
        if table is None:
            classes = len(self.classes) if field == "image" and self._has_label else None
            files, index = self.files, self.index_of(field)
            table = index.locate(files.native, files.root, classes, upright=upright)
            self._tables[field, upright] = table
            self._use_learnt()
        return table

    def _open_learnt(self, cache: Cache | None) -> Learnt | None:
        index = self.index.path
        return learnt_of(index.parent, self.generation, len(self), cache, index)

    def _use_learnt(self) -> None:
        super()._use_learnt()
        if self._learnt is not None and self._learnt.file is not None:
            for (field, _), table in self._tables.items():
                if field == "image":
                    table.learn(self._learnt.file)

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        """See `Source.built`. The index has checksums of the images, so times say nothing."""
        super().built([(row, Stamped(entry.table)) for row, entry in tables])

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Extend errors of reading: another packing may have caused them."""
        try:
            yield
        except DatasetError as error:
            raise explained(self, error) from None

    def problem(self, row: int, detail: str, code: str = "", hint: str = "") -> FastdataError:
        return explained(self, super().problem(row, detail, code, hint))

    def generation_now(self) -> str:
        return generation_in(self.location)

    def _turns(self, field: str) -> bool:
        return self.upright and (field == "image" or self.field(field).kind == "image")

    def index_of(self, field: str) -> Index:
        """Return the index of a field's blobs, or of a column's pieces."""
        stored = self._stored[field]
        if stored.index is None:
            return self.index
        index = self._indexes.get(field)
        if index is None:
            entry = self.manifest.files[self.manifest.number_of(stored.index)]
            rows = -(-len(self) // stored.rows) if stored.rows else len(self)
            with self._guard():
                index = self._indexes[field] = self._open_index(entry, rows)
        return index

    def gather(self, rows: Rows, fields: Sequence[str] = ("image",)) -> Gathered:
        blobs: dict[str, BlobColumn] = {}
        columns: dict[str, Column] = {}
        if "image" in fields or "label" in fields:
            images = self.table_of().gather(rows)
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

    def column(self, field: str, rows: Rows | None = None) -> Column:
        nullable = self.field(field, ("column",)).nullable
        with self._guard():
            if field != "label":
                values = self._reader_of(field).values(rows)
                return values if nullable else as_column(values)
            if rows is not None:
                extents = self.table_of().gather(rows)
                for slot in extents.corrupt_slots():
                    self.row(int(rows[slot]))  # raises, unless only its extent is damaged
                return extents.labels.copy()
            labels: npt.NDArray[np.int64] = self.index.column(field).astype(np.int64)
            for label in (labels.min(), labels.max()) if len(labels) else ():
                self._check_label(int(label), "a sample")
            return labels

    def piece(self, field: str, number: int, data: bytes | None = None) -> pa.Array:
        """Return a piece of a column, without keeping it in memory; ``data`` if it is read."""
        with self._guard():
            return self._reader_of(field).piece(number, data)

    def _reader_of(self, field: str) -> ColumnReader:
        reader = self._readers.get(field)
        if reader is None:
            stored, index = self._stored[field], self.index_of(field)
            # Without a cycle, its files are closed when the last user of this source has gone.
            read = partial(IndexedSource._read_pieces, weakref.proxy(self), field)
            reader = self._readers[field] = ColumnReader(stored, index, len(self), read)
        return reader

    def _read_pieces(self, field: str, pieces: Sequence[Row]) -> list[bytes]:
        """Read pieces of a column, and compare their checksums."""
        stored = self._stored[field]
        assert stored.file is not None
        number = self.manifest.number_of(stored.file)
        size = self.manifest.files[number].size
        for piece in pieces:
            if piece.file != number or not 0 <= piece.offset <= size - piece.length:
                raise self.index_of(field).corrupt("puts a piece outside of its file")
        return self.read(pieces, None)

    @once
    def image_size(self) -> tuple[int, int] | None:
        """See `Source.image_size`; reads the index up to the first row that differs."""
        with self._guard():
            if not self.upright:
                size = self.index.common("width", "height")
                return None if size is None else (size[0], size[1])
            turned = self.index.common("width", "height", "orientation")
        return None if turned is None else upright_size(*turned)

    def row(self, number: int, field: str = "image") -> Row:
        """Return the record of one blob of a row; raise IndexError if there is no such row."""
        record: Row
        if field != "image":
            self.field(field, BLOBS)
            with self._guard():
                record = self.index_of(field)[number]
                return record._replace(key=self.key(number))
        with self._guard():
            record = self.index[number]
            self._check_label(record.label, f"sample {number} ({printable(record.key)})")
        return record

    def _check_label(self, label: int, where: str) -> None:
        if self._has_label and not 0 <= label < len(self.classes):
            raise CorruptionError(
                f"{self.location}: {where}: the index gives label {label}, but the dataset "
                f"has {human_count(len(self.classes), 'class', 'classes')}",
                _HINT,
            )

    def key(self, row: int) -> str:
        return self.row(row).key

    def describe(self, row: int) -> str:
        record = self.row(row)
        file = self.file(record, row)
        return f"{self.location}: sample {row} ({printable(record.key)}) in {file}"

    def encoded(self, row: int, field: str = "image", data: bytes | None = None) -> Blob:
        record = self.row(row, field)
        if data is None:
            with self._guard():
                (data,) = self.read([record], row)
                if record.encoding == "raw" and len(data) != record.width * record.height * 3:
                    size = human_size(record.width, record.height)
                    raise self._corrupt(record, row, f"it does not have {size} pixels")
        shape = record.encoding, record.width, record.height, record.channels
        orientation = record.orientation if self._turns(field) else 0
        return Blob(data, *shape, orientation, checked=True)

    def resized(self, rows: Rows, measured: Measured) -> None:
        """See `Source.resized`. Only a damaged index lacks sizes."""
        widths, heights = measured[:2]
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
        super().declined(row, code)
        if code == "bad_seek_points" and self._learnt is None and not self._warned:
            self._warned = True
            warn(
                f"{self.location}: sample {row} ({self.key(row)}) has seek points of another "
                "image. Such samples are decoded without seek points, which is slower. Rebuild "
                f"them: fastdata seek-points {self.location}"
            )

    @abstractmethod
    def _open_index(self, entry: FileEntry, rows: int) -> Index:
        """Open the index of a field other than the image."""

    @abstractmethod
    def file(self, record: Row, number: int | None) -> Path | str:
        """Return the path or URL, without credentials, of the file that holds a row's blob.

        ``number`` is for messages; None for a piece of a column.
        """

    @abstractmethod
    def read(self, records: Sequence[Row], number: int | None) -> list[bytes]:
        """Read blobs of a row, or pieces of a column, and compare their checksums; see `file`."""

    def _own_path(self, record: Row, number: int | None) -> str | None:
        """Return `BlobFiles.own_path`; raise CorruptionError for a damaged index."""
        try:
            return self.files.own_path(record)
        except ValueError as error:
            raise self._corrupt(record, number, str(error)) from None

    def _corrupt(self, record: Row, number: int | None, problem: str) -> CorruptionError:
        """Return the error for a damaged row, or piece of a column."""
        key = printable(record.key)
        where = key if number is None else f"sample {number} ({key})"
        return CorruptionError(f"{self.location}: {where}: {problem}", self.hints.changed)


def own_files(
    source: IndexedSource, fields: Iterable[str], start: int, stop: int
) -> Iterator[FileEntry]:
    """Yield the blobs of some rows as files below the root, if each has a file."""
    for name in fields:
        for row in source.index_of(name).rows(start, stop, seek_points=False):
            if row.path is not None or name == "image":
                yield FileEntry(row.path or "", row.length, f"{row.crc32c:08x}")


class PackedSource(IndexedSource):
    """Source of a packed dataset on a local disk.

    Opening reads the manifest, unless the caller has, and the index's header, nothing that grows
    with the number of rows. Unpickling opens it again, once per process for all tasks on the same
    dataset.

    Raises:
        DatasetError: It is missing, unfinished, of another version, or does not match its manifest.
    """

    location: Path

    def __init__(self, path: Path, manifest: Manifest | None = None) -> None:
        manifest = manifest or Manifest.load(path)
        root = None if manifest.root is None else path / manifest.root
        index = Index(path / manifest.index.name, manifest.samples, manifest.generation)
        files = BlobFiles(manifest, manifest.places(path, root), root)
        super().__init__(path, index, files)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.location, self.generation)

    def _open_index(self, entry: FileEntry, rows: int) -> Index:
        return Index(self.location / entry.name, rows, self.generation)

    def file(self, record: Row, number: int | None) -> Path:
        own = self._own_path(record, number)
        files = self.files
        return Path(files.places[record.file] if own is None else f"{files.root}/{own}")

    def read(self, records: Sequence[Row], number: int | None) -> list[bytes]:
        return [self._read_blob(record, number) for record in records]

    def _read_blob(self, record: Row, number: int | None) -> bytes:
        path = self.file(record, number)
        try:
            # A row's own file is opened once, for its size and its bytes.
            with nullcontext() if record.path is None else open_file(path) as own:
                sizes = self.files.sizes
                size = sizes[record.file] if own is None else os.fstat(own.fileno()).st_size
                if not 0 <= record.offset <= record.offset + record.length <= size:
                    problem = f"{path} has {size} bytes, too few to hold it"
                    raise self._corrupt(record, number, problem)
                if record.length > MOST_BYTES:
                    problem = f"it has {record.length:,} bytes, too many"
                    raise self._corrupt(record, number, problem)
                extent = record.offset, record.length
                if own is None:
                    data = self.files.native.read(record.file, *extent)
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
            raise self._corrupt(record, number, problem)
        return data


@lru_cache(maxsize=1)
def _reopen(path: Path, generation: str) -> PackedSource:
    """Open a dataset in a worker."""
    source = PackedSource(path)
    require_same(source, generation)
    return source


def require_size(path: Path, expected: int, size: int, hint: str = _HINT) -> None:
    """Raise CorruptionError for a file of another size than the manifest's."""
    if size != expected:
        raise CorruptionError(
            f"{path}: has {size} bytes, but the manifest says {expected}: it was cut short, or "
            "changed after packing",
            hint,
        )

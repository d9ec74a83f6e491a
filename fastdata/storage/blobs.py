"""The blobs of a dataset: from an index row to checked bytes, whatever the container."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from fastdata.errors import CorruptionError, DatasetError, printable
from fastdata.storage.checksum import crc32c
from fastdata.storage.files import ExtentReader
from fastdata.storage.index import ExtentTable, Index
from fastdata.storage.manifest import FileEntry, Manifest
from fastdata.storage.paths import is_inside
from fastdata.storage.rows import Row

#: Bytes that an image may have. The native core has the same bound (``io/extents.cpp``).
MOST_BYTES = 1 << 30


class Blobs:
    """Index and files of one dataset on a local disk, open for reading.

    Opening reads the manifest and the index's header, nothing that grows with the number of
    samples. Safe to use from several threads, and after a fork. Unpickling opens it again, once
    per process for all tasks on the same dataset.

    Args:
        path: The dataset's folder.

    Raises:
        DatasetError: It is missing, unfinished, of another version, or does not match its manifest.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = Manifest.load(path)
        index = path / self.manifest.index.name
        _require_size(index, self.manifest.index.size, index_size(index))
        self.index = Index(index, self.manifest.samples)
        self._reader = ExtentReader()
        self._files = [path / entry.name for entry in self.manifest.files]
        self._root = path / self.manifest.root if self.manifest.root is not None else None

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.path, self.manifest.index)

    def file(self, row: Row, number: int) -> Path:
        """Return the file that a row's blob lies in; ``number`` is the row's, for error messages.

        Raises:
            CorruptionError: The row names no file of this dataset.
        """
        if row.path is not None and self._root is not None:
            if not is_inside(row.path):
                raise self._corrupt(row, number, f"its path {row.path} leaves the dataset's root")
            if row.file != -1:
                raise self._corrupt(
                    row, number, f"the index gives it a path, and file {row.file} besides"
                )
            return self._root / row.path
        if not 0 <= row.file < len(self._files):
            raise self._corrupt(
                row, number, f"the index puts it in file {row.file}, which there is not"
            )
        return self._files[row.file]

    def read(self, row: Row, number: int) -> bytes:
        """Read a row's blob and check it; ``number`` is the row's, for error messages.

        Raises:
            DatasetError: Its file is missing or unreadable.
            CorruptionError: The file was cut short, or the blob's checksum is wrong.
        """
        path = self.file(row, number)
        try:
            size = self._reader.size(path)
            if row.path is None:
                _require_size(path, self.manifest.files[row.file].size, size)
            if not 0 <= row.offset <= row.offset + row.length <= size:
                raise self._corrupt(row, number, f"{path} has {size} bytes, too few to hold it")
            if row.length > MOST_BYTES:
                raise self._corrupt(row, number, f"it has {row.length:,} bytes, too many")
            data = self._reader.read(path, row.offset, row.length)
        except OSError as error:
            raise _unreadable(path, error) from None
        if crc32c(data) != row.crc32c:
            raise self._corrupt(
                row, number, f"its bytes in {path} have changed since it was packed"
            )
        return data

    def extents(self) -> ExtentTable:
        """Return the table that gathers the extents of whole batches of samples."""
        sizes = [entry.size for entry in self.manifest.files]
        classes = len(self.manifest.classes)
        return self.index.locate(self._files, sizes, self._root, classes)

    def _corrupt(self, row: Row, number: int, problem: str) -> CorruptionError:
        return CorruptionError(
            f"{self.path}: sample {number} ({printable(row.key)}): {problem}", _HINT
        )


@lru_cache(maxsize=1)
def _reopen(path: Path, index: FileEntry) -> Blobs:
    """Open a dataset in a worker. ``index`` distinguishes datasets packed to the same place."""
    return Blobs(path)


_HINT = "See what else is damaged with fastdata verify; copy or pack the dataset again."


def index_size(path: Path) -> int:
    """Return the size of an index file in bytes.

    Raises:
        CorruptionError: It is missing.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise CorruptionError(f"{path}: {error.strerror}", _HINT) from None


def _require_size(path: Path, expected: int, found: int) -> None:
    if found != expected:
        raise CorruptionError(
            f"{path}: has {found} bytes, but the manifest says {expected}: it was cut short, or "
            "changed after packing",
            _HINT,
        )


def _unreadable(path: Path, error: OSError) -> DatasetError:
    if isinstance(error, FileNotFoundError):
        return DatasetError(
            f"{path}: no such file, though the index names it",
            "Put it back; where a folder that was indexed in place has moved, run fastdata "
            "convert --to folder again.",
        )
    return DatasetError(
        f"{path}: cannot be read: {error.strerror}",
        "Check that it is a file, and that you may read it.",
    )

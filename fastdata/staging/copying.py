"""Checked copies of files, made in blocks by several threads."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fastdata._native import crc32c, crc32c_combine
from fastdata.errors import CorruptionError, DataError, DatasetError
from fastdata.remote.filesystem import file_sizes, read_bytes
from fastdata.remote.manifests import images_url
from fastdata.remote.urls import is_url, join_url, redact
from fastdata.storage.descriptors import read_exactly, write_exactly
from fastdata.storage.files import crc32c_file, open_file, read_file
from fastdata.storage.manifest import FileEntry
from fastdata.storage.trust import make_own_folder
from fastdata.threads import Task, Threads

_BLOCK = 1 << 20  # bytes that a thread copies at a time; fits the L2 cache
#: Bytes of one request to a bucket: enough to make its latency small in comparison.
_FETCHED = 8 << 20
_TICK = 0.1  # seconds between two reports

#: Length of a block, and its CRC-32C as read back from the copy.
_Copied = tuple[int, int]


class Origin:
    """Folder or URL to copy from; ``storage_options`` are for the driver of a URL."""

    def __init__(
        self, location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self._location, self.options = os.fspath(location), storage_options
        self.is_remote = is_url(location)

    def _at(self, name: str) -> str:
        return join_url(self._location, name)

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes in bytes of the files that exist, by name."""
        if self.is_remote:
            return file_sizes(self._location, names, self.options)
        paths = {name: self._at(name) for name in names}
        return {name: os.stat(path).st_size for name, path in paths.items() if os.path.exists(path)}

    def shown(self, name: str) -> str:
        """Return a file's name for messages."""
        return redact(self._at(name)) if self.is_remote else self._at(name)

    def read(self, name: str, start: int | None = None, stop: int = 0, size: int = 0) -> bytes:
        """Return a file's bytes; or some, of a file that must have so many in all."""
        where = self._at(name)
        if self.is_remote:
            return read_bytes(where, self.options, start, stop)
        if start is None:
            return read_file(where)
        with open_file(where) as file:
            require_size(where, os.fstat(file.fileno()).st_size, size)
            return read_exactly(file.fileno(), start, stop - start)

    def root(self, root: str) -> Origin:
        """Return the folder of images or archives that a manifest names; see `images_url`."""
        return Origin(images_url(self._location, root), self.options)


class CopiedFile(NamedTuple):
    """File to copy: its name, size and checksum, where it is, and the copy."""

    entry: FileEntry
    place: Origin
    target: Path

    @property
    def source(self) -> str:
        """The path of the original, or its URL without credentials."""
        return self.place.shown(self.entry.name)

    def offsets(self) -> range:
        """Return where its blocks start; an empty file has one."""
        return range(0, max(self.entry.size, 1), _FETCHED if self.place.is_remote else _BLOCK)

    def read(self, at: int) -> bytes:
        """Read the block that starts at an offset of the original."""
        stop = min(at + self.offsets().step, self.entry.size)
        try:
            return self.place.read(self.entry.name, at, stop, self.entry.size)
        except FileNotFoundError:
            raise damaged(self.source, "it is missing") from None
        except OSError as error:
            raise DatasetError(
                f"{self.source}: cannot be read: {error.strerror}",
                "Check its permissions and its disk.",
            ) from error

    def copy(self, at: int) -> _Copied:
        """Copy the block that starts at an offset."""
        data = self.read(at)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.target, flags, 0o644)
        try:
            os.fchmod(descriptor, 0o644)  # regardless of the umask
            os.ftruncate(descriptor, self.entry.size)
            write_exactly(descriptor, data, at)
            return len(data), crc32c(read_exactly(descriptor, at, len(data)))
        finally:
            os.close(descriptor)


def damaged(path: str, problem: str) -> CorruptionError:
    """Return the error for an original that does not match its manifest."""
    return CorruptionError(
        f"{path}: the original is damaged, or was changed after packing: {problem}",
        "Run fastdata verify to find further damage; then copy or pack the dataset again.",
    )


def require_size(path: str, actual: int | None, size: int) -> None:
    """Raise CorruptionError for a file that is missing, or has another size."""
    if actual != size:
        problem = "is missing" if actual is None else f"has {actual} bytes, not {size}"
        raise damaged(path, f"it {problem}")


class Copying:
    """Copy of several files, without those that the copy has whole; ``copied`` are its bytes."""

    def __init__(self, files: Iterator[CopiedFile], report: Callable[[int], None]) -> None:
        self.copied = self._done = self._crc = 0
        self._files, self._report = files, report
        self._reported = 0.0

    def run(self, threads: int) -> None:
        """Copy everything.

        Raise CorruptionError for an original that does not match its checksum, DataError for a copy
        that does not.
        """
        running: deque[tuple[CopiedFile, int, Task[_Copied]]] = deque()
        with Threads(threads, "fastdata-stage") as pool:  # after Ctrl-C, they stop within a block
            for file in self._files:
                if self._has(file, threads):
                    continue
                if not file.target.parent.exists():
                    make_own_folder(file.target.parent)
                for at in file.offsets():
                    running.append((file, at, pool.submit(file.copy, at)))
                    if len(running) > 2 * threads:
                        self._finish(*running.popleft())
            while running:
                self._finish(*running.popleft())
        self._report(self._done)

    def _has(self, file: CopiedFile, threads: int) -> bool:
        """Return whether an earlier run has copied a file."""
        crc = int(file.entry.crc32c, 16)
        with suppress(FileNotFoundError):
            size = file.target.lstat().st_size
            if size == file.entry.size and crc32c_file(file.target, threads) == crc:
                self._done += size
                return True
        return False

    def _finish(self, file: CopiedFile, at: int, running: Task[_Copied]) -> None:
        """Wait for a block, in order; check the file after its last one."""
        length, crc = running.result()
        if time.monotonic() > self._reported + _TICK:
            self._report(self._done)
            self._reported = time.monotonic()
        self._crc = crc32c_combine(self._crc if at else 0, crc, length)
        self._done += length
        self.copied += length
        expected = int(file.entry.crc32c, 16)
        if at != file.offsets()[-1] or self._crc == expected:
            return
        crc = 0
        for start in file.offsets():  # the transfer may have damaged it
            length, of_block = file.copy(start)
            crc = crc32c_combine(crc, of_block, length)
        if crc == expected:
            return
        crc = 0
        for start in file.offsets():
            crc = crc32c(file.read(start), crc)
        if crc != expected:
            raise damaged(file.source, "its checksum is wrong")
        raise DataError(
            f"{file.target}: the copy was damaged twice while it was written; the original, "
            f"{file.source}, is sound",
            "Check this machine's memory and the disk of the copy, or choose another with --to.",
        )

"""Copying files in blocks by several threads, checking the copy.

A journal notes each copied block of a large file with its checksum, so that a killed run resumes
within the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fastdata.errors import CorruptionError, DatasetError
from fastdata.storage.checksum import crc32c, crc32c_combine
from fastdata.storage.files import open_descriptor, read_exactly
from fastdata.storage.manifest import FileEntry
from fastdata.storage.trust import make_own_folder

#: Name of the journal, in the copy while it is partial.
JOURNAL_NAME = "copied-blocks"

_BLOCK = 64 << 20  # bytes that one thread copies at a time: the unit of resuming
_CHUNK = 256 << 10  # bytes between two looks at the stop flag; stays in the L2 cache
#: Bytes of one request to a bucket: enough to make its latency small in comparison.
_FETCHED = 8 << 20
_TICK = 0.1  # seconds between two calls of `progress`


@dataclass(frozen=True)
class CopiedFile:
    """A file to copy.

    Attributes:
        entry: Its name, size and checksum.
        source: The original; of a URL its text without credentials.
        target: The copy.
        fetch: Reads the bytes from one offset to before another, where ``source`` is a URL.
    """

    entry: FileEntry
    source: Path | str
    target: Path
    fetch: Callable[[int, int], bytes] | None = None

    @property
    def crc(self) -> int:
        """Its CRC-32C as a number."""
        return int(self.entry.crc32c, 16)

    def blocks(self) -> range:
        """Offsets of its blocks; an empty file has one."""
        return range(0, max(self.entry.size, 1), _BLOCK)


class _StoppedError(Exception):
    """Another thread has failed, or the user has interrupted."""


class Copying:
    """Copies files in blocks, by several threads.

    Blocks of files that have several are noted in the journal.

    Attributes:
        copied: Bytes copied so far; those found in the copy do not count.
    """

    def __init__(
        self,
        files: Iterator[CopiedFile],
        journal: Path,
        total: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.copied = 0
        self._done = 0
        self._total = total
        self._progress = progress
        self._work = ((file, offset) for file in files for offset in file.blocks())
        self._journal = journal
        self._noted = _read_journal(journal)
        self._crcs: dict[Path, dict[int, int]] = {}  # by target, of its blocks copied so far
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(self, threads: int) -> None:
        """Copies everything.

        Raises:
            CorruptionError: A file does not match its checksum.
            DatasetError: A file cannot be read.
            RemoteError: A file cannot be fetched.
            OSError: A file cannot be written.
        """
        with ThreadPoolExecutor(threads, "fastdata-stage") as pool:
            try:
                running = [pool.submit(self._copy_blocks) for _ in range(threads)]
                while wait(running, _TICK).not_done:
                    self._tell()
            finally:
                self._stop.set()  # after Ctrl-C, threads end within a chunk
        for thread in running:
            thread.result()
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _copy_blocks(self) -> None:
        try:
            while True:
                with self._lock:
                    block = next(self._work, None)
                if block is None:
                    return
                self._do(*block)
        except _StoppedError:
            return
        except BaseException:
            self._stop.set()
            raise

    def _do(self, file: CopiedFile, offset: int) -> None:
        """Copies a block unless it is there; checks the file after its last one."""
        blocks = file.blocks()
        length = min(_BLOCK, file.entry.size - offset)
        line = f"{offset} {file.entry.name}"
        known = file.crc if len(blocks) == 1 else self._noted.get(line)
        if known is not None and self._is_there(file, offset, length, known):
            crc = known
            self._count(length, 0)
        else:
            crc = self._copy(file, offset, length)
            if len(blocks) > 1:
                self._note(crc, line)
        with self._lock:
            crcs = self._crcs.setdefault(file.target, {})
            crcs[offset] = crc
            complete = len(crcs) == len(blocks)
            if complete:
                del self._crcs[file.target]
        if complete:
            self._check(file, crcs)

    def _note(self, crc: int, line: str) -> None:
        with self._lock, self._journal.open("a", encoding="utf-8") as journal:
            journal.write(f"{crc:08x} {line}\n")

    def _is_there(self, file: CopiedFile, offset: int, length: int, crc: int) -> bool:
        try:
            if file.target.stat().st_size != file.entry.size:
                return False
        except FileNotFoundError:
            return False
        with _target(file) as target:
            return self._crc(file.target, target, offset, length) == crc

    def _copy(self, file: CopiedFile, offset: int, length: int) -> int:
        """Copies a block; returns its CRC-32C, as read back from the copy."""
        if file.fetch is not None:
            return self._write_all(file, self._fetch(file, offset, length), offset)
        with _source(file) as source:
            return self._write_all(file, self._read(file.source, source, offset, length), offset)

    def _write_all(self, file: CopiedFile, chunks: Iterator[bytes], offset: int) -> int:
        crc = 0
        with _target(file) as target:
            for chunk in chunks:
                _write(target, chunk, offset)
                # Read back, at a tenth of the speed: this checks the copy.
                crc = crc32c(read_exactly(target, offset, len(chunk)), crc)
                offset += len(chunk)
                self._count(len(chunk), len(chunk))
        return crc

    def _count(self, done: int, copied: int) -> None:
        with self._lock:
            self._done += done
            self.copied += copied

    def _fetch(self, file: CopiedFile, offset: int, length: int) -> Iterator[bytes]:
        """Yields a block of a remote file, a piece per request."""
        assert file.fetch is not None
        for start in range(offset, offset + length, _FETCHED):
            if self._stop.is_set():
                raise _StoppedError
            try:
                yield file.fetch(start, min(start + _FETCHED, offset + length))
            except FileNotFoundError:
                raise _damaged(file, "it is missing") from None

    def _read(self, path: Path | str, descriptor: int, offset: int, length: int) -> Iterator[bytes]:
        """Yields the chunks of a block; fewer where the file ends."""
        end = offset + length
        while offset < end:
            if self._stop.is_set():
                raise _StoppedError
            try:
                chunk = os.pread(descriptor, min(_CHUNK, end - offset), offset)
            except OSError as error:
                raise _unreadable(path, error) from error
            if not chunk:
                return
            yield chunk
            offset += len(chunk)

    def _crc(self, path: Path | str, descriptor: int, offset: int, length: int) -> int:
        crc = 0
        for chunk in self._read(path, descriptor, offset, length):
            crc = crc32c(chunk, crc)
        return crc

    def _check(self, file: CopiedFile, crcs: dict[int, int]) -> None:
        """Checks a copied file; if it is wrong, reads the original again to tell which one is."""
        if _combined(file, crcs) == file.crc:
            return
        if file.fetch is not None:
            # It may have been damaged on the way.
            self._fetch_again(file, crcs)
            if _combined(file, crcs) == file.crc:
                return
            raise _damaged(file, "its checksum is wrong")
        with _source(file) as source:
            if self._crc(file.source, source, 0, file.entry.size) != file.crc:
                raise _damaged(file, "its checksum is wrong")
        raise CorruptionError(
            f"{file.target}: the copy does not have the checksum of {file.source}, which is sound",
            "Run the same command again; if it happens again, check this machine's memory.",
        )

    def _fetch_again(self, file: CopiedFile, crcs: dict[int, int]) -> None:
        blocks = file.blocks()
        for offset in blocks:
            length = min(_BLOCK, file.entry.size - offset)
            crcs[offset] = self._copy(file, offset, length)
            with self._lock:
                self._done -= length  # it was counted when it came first
            if len(blocks) > 1:
                self._note(crcs[offset], f"{offset} {file.entry.name}")


def _combined(file: CopiedFile, crcs: dict[int, int]) -> int:
    """The CRC-32C of a file, of those of its blocks."""
    crc = crcs[0]
    for offset in file.blocks()[1:]:
        length = min(_BLOCK, file.entry.size - offset)
        crc = crc32c_combine(crc, crcs[offset], length)
    return crc


def _read_journal(path: Path) -> dict[str, int]:
    """The CRC-32C of every block that was copied, by offset and file name."""
    noted: dict[str, int] = {}
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return noted
    for line in lines:
        crc, _, block = line.partition(" ")
        with suppress(ValueError):  # a kill may leave half a line
            noted[block] = int(crc, 16)
    return noted


@contextmanager
def _source(file: CopiedFile) -> Iterator[int]:
    try:
        descriptor = open_descriptor(file.source)
    except FileNotFoundError:
        raise _damaged(file, "it is missing") from None
    except OSError as error:
        raise _unreadable(file.source, error) from error
    try:
        size = os.fstat(descriptor).st_size
        if size != file.entry.size:
            raise _damaged(file, f"it has {size} bytes, not {file.entry.size}")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _target(file: CopiedFile) -> Iterator[int]:
    """A file of the copy, of its full size, to write and to read."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(file.target, flags, 0o644)
    except FileNotFoundError:
        make_own_folder(file.target.parent)
        descriptor = os.open(file.target, flags, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # whatever the umask
        os.ftruncate(descriptor, file.entry.size)
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    """``pwrite`` until all is written."""
    written = os.pwrite(descriptor, data, offset)
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], offset + written)


def _damaged(file: CopiedFile, problem: str) -> CorruptionError:
    return CorruptionError(
        f"{file.source}: the original is damaged, or was changed after packing: {problem}",
        "See what else is with fastdata verify; copy or pack the dataset again.",
    )


def _unreadable(path: Path | str, error: OSError) -> DatasetError:
    return DatasetError(
        f"{path}: cannot be read: {error.strerror}", "Check its permissions and its disk."
    )

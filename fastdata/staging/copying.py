"""Checked copies of files, made in blocks by several threads.

A journal records each copied block of a large file with its checksum, so that a killed run
resumes within the file.
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

#: Name of the journal in a partial copy.
JOURNAL_NAME = "copied-blocks"

_BLOCK = 64 << 20  # bytes that a thread copies at a time; an interrupted run resumes at a block
_CHUNK = 256 << 10  # bytes between two checks of the stop flag; fits the L2 cache
#: Bytes of one request to a bucket: enough to make its latency small in comparison.
_FETCHED = 8 << 20
_TICK = 0.1  # seconds between two calls of `progress`


@dataclass(frozen=True)
class CopiedFile:
    """File to copy.

    Attributes:
        entry: Its name, size and checksum.
        source: The original; a URL is text without credentials.
        target: The copy.
        fetch: Reads the bytes from one offset to before another, if ``source`` is a URL.
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
        """Return the offsets of its blocks; an empty file has one."""
        return range(0, max(self.entry.size, 1), _BLOCK)


class _StoppedError(Exception):
    """Signal that another thread failed, or the user interrupted the run."""


class Copying:
    """Copy of several files, in blocks and by several threads.

    The journal records the blocks of files that have more than one.

    Attributes:
        copied: Bytes copied so far, without those that the copy already had.
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
        self._crcs: dict[Path, dict[int, int]] = {}  # of the blocks copied so far, by target
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(self, threads: int) -> None:
        """Copy everything.

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
                    self._report()
            finally:
                self._stop.set()  # after Ctrl-C, threads stop within a chunk
        for thread in running:
            thread.result()
        self._report()

    def _report(self) -> None:
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
        """Copy a block unless the copy has it; check the file after its last block."""
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
        """Copy a block; return its CRC-32C, as read back from the copy."""
        if file.fetch is not None:
            return self._write_all(file, self._fetch(file, offset, length), offset)
        with _source(file) as source:
            return self._write_all(file, self._read(file.source, source, offset, length), offset)

    def _write_all(self, file: CopiedFile, chunks: Iterator[bytes], offset: int) -> int:
        crc = 0
        with _target(file) as target:
            for chunk in chunks:
                _write(target, chunk, offset)
                # Checksum what the copy holds, not what was written to it.
                crc = crc32c(read_exactly(target, offset, len(chunk)), crc)
                offset += len(chunk)
                self._count(len(chunk), len(chunk))
        return crc

    def _count(self, done: int, copied: int) -> None:
        with self._lock:
            self._done += done
            self.copied += copied

    def _fetch(self, file: CopiedFile, offset: int, length: int) -> Iterator[bytes]:
        """Yield the bytes of a remote file's block, one request at a time."""
        assert file.fetch is not None
        for start in range(offset, offset + length, _FETCHED):
            if self._stop.is_set():
                raise _StoppedError
            try:
                yield file.fetch(start, min(start + _FETCHED, offset + length))
            except FileNotFoundError:
                raise _damaged(file, "it is missing") from None

    def _read(self, path: Path | str, descriptor: int, offset: int, length: int) -> Iterator[bytes]:
        """Yield the chunks of a block; fewer at the end of the file."""
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
        """Check a copied file; if it is wrong, read the original again to find which is."""
        if _combined(file, crcs) == file.crc:
            return
        if file.fetch is not None:
            # The transfer may have damaged it.
            self._fetch_again(file, crcs)
            if _combined(file, crcs) == file.crc:
                return
            raise _damaged(file, "its checksum is wrong")
        with _source(file) as source:
            if self._crc(file.source, source, 0, file.entry.size) != file.crc:
                raise _damaged(file, "its checksum is wrong")
        raise CorruptionError(
            f"{file.target}: the copy's checksum is wrong, though {file.source} is intact",
            "Run the same command again; if it happens again, check this machine's memory.",
        )

    def _fetch_again(self, file: CopiedFile, crcs: dict[int, int]) -> None:
        blocks = file.blocks()
        for offset in blocks:
            length = min(_BLOCK, file.entry.size - offset)
            crcs[offset] = self._copy(file, offset, length)
            with self._lock:
                self._done -= length  # it was already counted
            if len(blocks) > 1:
                self._note(crcs[offset], f"{offset} {file.entry.name}")


def _combined(file: CopiedFile, crcs: dict[int, int]) -> int:
    """Return the CRC-32C of a file, combined from those of its blocks."""
    crc = crcs[0]
    for offset in file.blocks()[1:]:
        length = min(_BLOCK, file.entry.size - offset)
        crc = crc32c_combine(crc, crcs[offset], length)
    return crc


def _read_journal(path: Path) -> dict[str, int]:
    """Return the CRC-32C of every block that was copied, by offset and file name."""
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
    """Yield the descriptor of a file of the copy, with its full size, to write and read."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(file.target, flags, 0o644)
    except FileNotFoundError:
        make_own_folder(file.target.parent)
        descriptor = os.open(file.target, flags, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # regardless of the umask
        os.ftruncate(descriptor, file.entry.size)
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    """Write all bytes at an offset."""
    written = os.pwrite(descriptor, data, offset)
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], offset + written)


def _damaged(file: CopiedFile, problem: str) -> CorruptionError:
    return CorruptionError(
        f"{file.source}: the original is damaged, or was changed after packing: {problem}",
        "Run fastdata verify to find further damage; then copy or pack the dataset again.",
    )


def _unreadable(path: Path | str, error: OSError) -> DatasetError:
    return DatasetError(
        f"{path}: cannot be read: {error.strerror}", "Check its permissions and its disk."
    )

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
from functools import reduce
from pathlib import Path

from fastdata.errors import CorruptionError, DatasetError
from fastdata.storage.checksum import crc32c, crc32c_combine, crc32c_range
from fastdata.storage.files import read_exactly, write_exactly
from fastdata.storage.manifest import FileEntry
from fastdata.storage.trust import make_own_folder

#: Name of the journal in a partial copy.
JOURNAL_NAME = "copied-blocks"

_BLOCK = 64 << 20  # bytes that a thread copies at a time; an interrupted run resumes at a block
_CHUNK = 1 << 20  # bytes between two checks of the stop flag; fits the L2 cache
#: Bytes of one request to a bucket: enough to make its latency small in comparison.
_FETCHED = 8 << 20
_TICK = 0.1  # seconds between two calls of `progress`


@dataclass(frozen=True)
class CopiedFile:
    """File to copy.

    Attributes:
        entry: Its name, size and checksum.
        source: The path of the original, or its URL without credentials.
        target: The copy.
        read: Reads the original's bytes from one offset to before another.
    """

    entry: FileEntry
    source: str
    target: Path
    read: Callable[[int, int], bytes]

    @property
    def crc(self) -> int:
        """Its CRC-32C as a number."""
        return int(self.entry.crc32c, 16)

    def blocks(self) -> list[tuple[int, int]]:
        """Return (offset, length) of its blocks; an empty file has one."""
        size = self.entry.size
        return [(at, min(_BLOCK, size - at)) for at in range(0, max(size, 1), _BLOCK)]


def damaged(path: str, problem: str) -> CorruptionError:
    """Return the error for an original that does not match its manifest."""
    return CorruptionError(
        f"{path}: the original is damaged, or was changed after packing: {problem}",
        "Run fastdata verify to find further damage; then copy or pack the dataset again.",
    )


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
        self._work = ((file, *block) for file in files for block in file.blocks())
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

    def _do(self, file: CopiedFile, offset: int, length: int) -> None:
        """Copy a block unless the copy has it; check the file after its last block."""
        blocks = file.blocks()
        crc = file.crc if len(blocks) == 1 else self._noted.get(f"{offset} {file.entry.name}")
        if crc is not None and _has(file, offset, length, crc):
            self._count(length, 0)
        else:
            crc = self._copy(file, offset, length)
        with self._lock:
            crcs = self._crcs.setdefault(file.target, {})
            crcs[offset] = crc
            complete = len(crcs) == len(blocks)
            if complete:
                del self._crcs[file.target]
        if complete:
            self._check(file, crcs)

    def _copy(self, file: CopiedFile, offset: int, length: int) -> int:
        """Copy a block; return its CRC-32C, as read back from the copy."""
        crc, at = 0, offset
        with _target(file) as target:
            for chunk in self._chunks(file, offset, length):
                write_exactly(target, chunk, at)
                # Checksum what the copy holds, not what was written to it.
                crc = crc32c(read_exactly(target, at, len(chunk)), crc)
                at += len(chunk)
                self._count(len(chunk), len(chunk))
        if length < file.entry.size:
            with self._lock, self._journal.open("a", encoding="utf-8") as journal:
                journal.write(f"{crc:08x} {offset} {file.entry.name}\n")
        return crc

    def _count(self, done: int, copied: int) -> None:
        with self._lock:
            self._done += done
            self.copied += copied

    def _chunks(self, file: CopiedFile, offset: int, length: int) -> Iterator[bytes]:
        """Yield the original's bytes in a block."""
        step = _FETCHED if "://" in file.source else _CHUNK
        for start in range(offset, offset + length, step):
            if self._stop.is_set():
                raise _StoppedError
            try:
                yield file.read(start, min(start + step, offset + length))
            except FileNotFoundError:
                raise damaged(file.source, "it is missing") from None
            except OSError as error:
                raise DatasetError(
                    f"{file.source}: cannot be read: {error.strerror}",
                    "Check its permissions and its disk.",
                ) from error

    def _check(self, file: CopiedFile, crcs: dict[int, int]) -> None:
        """Check a copied file; if it is wrong, copy it again, then find out why."""
        if _combined(file, crcs) == file.crc:
            return
        for offset, length in file.blocks():  # the transfer may have damaged it
            crcs[offset] = self._copy(file, offset, length)
            self._count(-length, 0)  # it was already counted
        if _combined(file, crcs) == file.crc:
            return
        chunks = self._chunks(file, 0, file.entry.size)
        if reduce(lambda crc, chunk: crc32c(chunk, crc), chunks, 0) != file.crc:
            raise damaged(file.source, "its checksum is wrong")
        raise CorruptionError(
            f"{file.target}: the copy's checksum is wrong, though {file.source} is intact",
            "Run the same command again; if it happens again, check this machine's memory.",
        )


def _has(file: CopiedFile, offset: int, length: int, crc: int) -> bool:
    """Return whether a copy has a block."""
    try:
        complete = file.target.lstat().st_size == file.entry.size
    except FileNotFoundError:
        return False
    return complete and crc32c_range(file.target, offset, length) == crc


def _combined(file: CopiedFile, crcs: dict[int, int]) -> int:
    """Return the CRC-32C of a file, combined from those of its blocks."""
    crc = 0
    for offset, length in file.blocks():
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

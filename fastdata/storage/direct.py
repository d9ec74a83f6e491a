"""Files that are written past the page cache.

A large file that is written once and flushed gains nothing from the page cache: its pages must
be found, filled and later written from, and they push out what is being read. Where the file
system allows it (``O_DIRECT``), blocks go from an aligned buffer to the disk (measured in
docs/design/0001-containers-and-extents.md).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

#: What file offsets, lengths and buffers are multiples of: the largest block that disks ask for.
_ALIGNMENT = 4096
_BUFFER = 4 << 20
#: While one is written, the next is filled.
_BUFFERS = 2
_O_DIRECT = getattr(os, "O_DIRECT", 0)  # not on macOS


class DirectFile:
    """A new file, written from beginning to end; through the page cache where it must be.

    A thread writes filled buffers while the caller continues. An error of the disk is raised
    by a later call, by `close` at the latest.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = _open(path)
        self._buffers = [
            mmap.mmap(-1, _BUFFER, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(_BUFFERS)
        ]
        self._writing: list[Future[None] | None] = [None] * _BUFFERS
        self._thread = ThreadPoolExecutor(1, "fastdata-direct")
        self._turn = 0
        self._filled = 0
        self._flushed = 0

    def write(self, data: bytes) -> None:
        """Append bytes; raise OSError if the disk refused these, or earlier ones."""
        view, at = memoryview(data), 0
        while at < len(data):
            size = min(len(data) - at, _BUFFER - self._filled)
            self._buffers[self._turn][self._filled : self._filled + size] = view[at : at + size]
            self._filled += size
            at += size
            if self._filled == _BUFFER:
                self._flush(_BUFFER)

    def _flush(self, length: int) -> None:
        """Make the thread write ``length`` bytes of the buffer; wait for the next buffer."""
        self._writing[self._turn] = self._thread.submit(
            _write_all, self._descriptor, self._buffers[self._turn], length, self._flushed
        )
        self._flushed += length
        self._filled = 0
        self._turn = (self._turn + 1) % _BUFFERS
        self._wait(self._turn)

    def _wait(self, turn: int) -> None:
        pending, self._writing[turn] = self._writing[turn], None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Write the rest, and close the file; raise OSError if the disk refused something."""
        if self._descriptor < 0:
            return
        try:
            size = self._flushed + self._filled
            padding = -self._filled % _ALIGNMENT
            if self._filled:
                end = self._filled + padding
                self._buffers[self._turn][self._filled : end] = bytes(padding)
                self._flush(end)
            for turn in range(_BUFFERS):
                self._wait(turn)
            os.ftruncate(self._descriptor, size)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is; drop bytes that are not yet written."""
        if self._descriptor < 0:
            return
        # Not by the join alone: until Python 3.13, one that Ctrl-C interrupts makes the next one
        # return at once, and the thread may still write.
        wait([one for one in self._writing if one is not None and not one.cancel()])
        self._thread.shutdown()
        os.close(self._descriptor)
        self._descriptor = -1
        self._writing = [None] * _BUFFERS
        for buffer in self._buffers:
            buffer.close()


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    if _O_DIRECT:
        with suppress(OSError):  # tmpfs and others know no direct writes
            return os.open(path, flags | _O_DIRECT, 0o666)
    return os.open(path, flags, 0o666)


def _write_all(descriptor: int, buffer: mmap.mmap, length: int, offset: int) -> None:
    with memoryview(buffer) as whole:
        done = 0
        while done < length:
            # A write that was cut short may end within a block, where no direct one can begin.
            if done % _ALIGNMENT:
                _stop_direct(descriptor)
            try:
                with whole[done:length] as rest:
                    done += os.pwrite(descriptor, rest, offset + done)
            except OSError as error:
                # The disk's blocks may be larger, or the file system may refuse only now.
                if error.errno != errno.EINVAL or not _stop_direct(descriptor):
                    raise


def _stop_direct(descriptor: int) -> bool:
    """Write through the page cache from now on; return whether that is a change."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not flags & _O_DIRECT:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_O_DIRECT)
    return True

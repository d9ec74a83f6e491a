"""Cache folder for pieces of remote files, shared by all processes of this machine.

The user's folder contains::

    <dataset>-<id>/_index.rows                          the index (fastdata.remote.opening)
    fastdata-pieces/usage                               bytes of all pieces; locked to make room
    fastdata-pieces/<id>-<piece bytes>/<file>-<n>.piece     piece n of a file
    fastdata-pieces/<id>-<piece bytes>/<file>-<n>.partial   a piece being filled, and its lock

A piece is a range of a remote file, followed by a trailer: magic, length, CRC-32C. It is flushed
before it is renamed, so a killed process leaves no incomplete piece. A process compares a piece
with its trailer on first use. Samples are compared with their own checksums on every read. Only
files with these names are ever deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fastdata._native import crc32c
from fastdata.errors import DatasetError, UsageError, is_no_space, warn
from fastdata.remote.options import RemoteOptions
from fastdata.remote.ranges import FileRef, Piece, RangeCache
from fastdata.remote.reader import RangeReader
from fastdata.storage.cache import room
from fastdata.storage.descriptors import read_exactly
from fastdata.storage.files import is_open_file, open_file, remedy, sync, wait_for_lock
from fastdata.storage.trust import is_own_file, make_cache_folder, open_own_file
from fastdata.threads import pause

FOLDER = "fastdata-pieces"
_NAME = re.compile(r"^(?:(?:part-\d{6,}-)?\d{6,}|p[0-9a-f]{24})-\d+\.(piece|partial)$")
_TRAILER = struct.Struct("<8sQII")
_MAGIC = b"fdpiece1"

#: Most bytes downloaded into a cache at once: more would only delay the first pieces.
_UNDER_WAY = 64 << 20
#: Most pieces that a process fills at once, of all datasets: each needs several open files.
_MOST_FILLS = 32
#: Seconds between two checks whether another process has filled a piece.
_POLL = 0.05
#: Seconds to wait for a process that fills a piece or counts: it may be suspended.
_PATIENCE = 60.0
#: Seconds after which a piece's time of last use is updated.
_TOUCH_EVERY = 30.0
#: Times to fill a piece that other processes keep evicting, before reading past the cache.
_FILLS = 3
#: Seconds to wait for other processes' fills: finished pieces can be evicted.
_ROOM_PATIENCE = 2.0


class PieceCache(RangeCache):
    """Cache of pieces of one dataset's files, as one process uses it.

    ``id`` is the dataset's state, in hexadecimal digits. ``limit`` is the most bytes of pieces in
    the folder, of all datasets; None for nine tenths of the free space and the existing pieces
    together. ``used`` are those when last counted. Raise UsageError if the folder cannot be
    written.
    """

    def __init__(
        self,
        folder: Path,
        id: str,  # noqa: A002 - the name that the docs use
        reader: RangeReader,
        options: RemoteOptions,
        limit: int | None,
    ) -> None:
        super().__init__()
        self._base = folder / FOLDER
        self._folder = self._base / f"{id[:24]}-{options.piece_bytes}"
        self._reader = reader
        self._piece = options.piece_bytes
        try:
            make_cache_folder(self._folder)
            with self._usage():
                self._count()
        except OSError as error:
            raise UsageError(
                f"cache={str(folder)!r}: cannot be written: {error.strerror or error}",
                "Give a writable folder of this machine.",
            ) from None
        if limit is None:
            # In /dev/shm, memory is the limit, not the space that the file system reports.
            limit = (room(self._folder)[0] + self.used) * 9 // 10
        self.limit = limit
        self._slots = threading.Semaphore(
            max(1, min(options.concurrency, _UNDER_WAY // options.piece_bytes))
        )
        #: Inodes that were compared with their trailer, and when their time of last use was set.
        self._known: dict[Piece, tuple[int, float]] = {}
        self._full = False

    def pieces(self, file: FileRef, start: int, stop: int) -> list[Piece]:
        if start == stop:
            return []
        return [(file, n) for n in range(start // self._piece, (stop - 1) // self._piece + 1)]

    def read(self, file: FileRef, start: int, stop: int) -> Any:
        for _ in range(_FILLS):
            data = self._present(file, start, stop)
            if data is not None:
                return data
            if not all(self._once(piece, self._fill) for piece in self.pieces(file, start, stop)):
                break
        return self._reader.read(file.url, start, stop)

    def ensure(self, piece: Piece) -> None:
        self._once(piece, self._fill)

    def drop(self, file: FileRef, start: int, stop: int) -> None:
        for piece in self.pieces(file, start, stop):
            self._path(piece).unlink(missing_ok=True)

    def _present(self, file: FileRef, start: int, stop: int) -> bytes | None:
        """Return a byte range, or None unless all its pieces are there."""
        parts = []
        for piece in self.pieces(file, start, stop):
            begin = piece[1] * self._piece
            data = self._bytes_of(piece, max(start - begin, 0), min(stop - begin, self._piece))
            if data is None:
                return None
            parts.append(data)
        with self._lock:
            self._reads += len(parts)
        return b"".join(parts)  # a single part is not copied

    def _path(self, piece: Piece) -> Path:
        return self._folder / f"{piece[0].tag}-{piece[1]}.piece"

    def _size(self, piece: Piece) -> int:
        return min(self._piece, piece[0].size - piece[1] * self._piece)

    def _bytes_of(self, piece: Piece, start: int = 0, stop: int = 0) -> bytes | None:
        """Return bytes of a piece; None if it is missing or damaged."""
        path = self._path(piece)
        with contextlib.suppress(OSError), open_file(path, 0, os.O_NOFOLLOW) as file:
            state = os.fstat(file.fileno())
            inode, touched = self._known.get(piece, (-1, -_TOUCH_EVERY))
            if inode != state.st_ino and not (
                is_own_file(state) and _is_sound(file.fileno(), self._size(piece))
            ):
                path.unlink(missing_ok=True)
                return None
            now = time.monotonic()
            if now - touched >= _TOUCH_EVERY:
                touched = now
                with contextlib.suppress(OSError):  # another user's, or just evicted
                    os.utime(path)
            self._known[piece] = state.st_ino, touched
            return read_exactly(file.fileno(), start, stop - start)
        return None

    def _fill(self, piece: Piece) -> bool:
        """Fill a missing piece, or wait for a process that fills it; return whether it is there."""
        partial = self._path(piece).with_suffix(".partial")
        end = time.monotonic() + _PATIENCE
        while self._bytes_of(piece) is None:
            if self._full or time.monotonic() > end:
                return False
            with self._slots, _fills_of(os.getpid()):
                descriptor = self._claim(partial)
                if descriptor is not None:
                    try:
                        # Another process may have filled it meanwhile. Replace a piece that
                        # exists but cannot be read (a bad block, another user's file).
                        if self._bytes_of(piece) is None:
                            begin = piece[1] * self._piece
                            data = self._reader.read(piece[0].url, begin, begin + self._size(piece))
                            self._store(piece, data, partial, descriptor)
                        return not self._full
                    finally:
                        if is_open_file(partial, descriptor):
                            partial.unlink()
                        os.close(descriptor)
            pause(_POLL)
        return True

    def _claim(self, partial: Path) -> int | None:
        """Open and lock the file of a piece to fill; None while another process has the lock."""
        with self._writing():
            descriptor = open_own_file(partial, 0o600)  # other users must not hold the lock
            if _lock_same(partial, descriptor):
                return descriptor
            os.close(descriptor)
        return None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Stop caching when the disk is full; raise `DatasetError` for other write errors."""
        try:
            yield
        except OSError as error:
            if not is_no_space(error):
                raise DatasetError(
                    f"{self._folder}: cannot be written: {error.strerror or error}",
                    remedy(error, "Give another folder as cache=."),
                ) from None
            if not self._full:
                self._full = True
                warn(
                    f"{self._folder}: the disk is full, so samples that do not fit are fetched "
                    "again every time; give fewer bytes in cache=Cache(path, bytes)"
                )

    def _store(self, piece: Piece, data: Any, partial: Path, descriptor: int) -> None:
        """Write a piece, if there is room for it."""
        with self._writing():
            size = memoryview(data).nbytes
            self._make_room(size + _TRAILER.size, descriptor)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
                file.write(_TRAILER.pack(_MAGIC, size, crc32c(data), 0))
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
            with self._usage():  # a process that counts could see it under neither name
                os.replace(partial, self._path(piece))
                self._fills += 1
            sync(self._folder)
            self._known[piece] = os.fstat(descriptor).st_ino, time.monotonic()

    # Room.

    @contextlib.contextmanager
    def _usage(self) -> Iterator[None]:
        """Lock the count of cached bytes across processes; `used` is -1 if unknown."""
        descriptor = open_own_file(self._base / "usage", 0o600)
        try:
            wait_for_lock(descriptor, _PATIENCE)
            text = os.pread(descriptor, 32, 0)
            self.used = int(text) if text.strip().isdigit() else -1
            yield
            os.pwrite(descriptor, b"%-31d\n" % self.used, 0)
        finally:
            # Closing alone keeps the lock: a process forked meanwhile shares the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _make_room(self, size: int, descriptor: int) -> None:
        """Evict the least recently used pieces until there is room for another.

        The new file gets its size at once, so the next count includes it.
        Pieces that are being filled cannot be evicted; wait for their end.
        """
        end = time.monotonic() + _ROOM_PATIENCE
        while True:
            with self._usage():
                if self.used < 0 or self.used + size > self.limit:
                    self._evict(size)
                if self.used + size <= self.limit or time.monotonic() > end:
                    os.ftruncate(descriptor, size)
                    self.used += size
                    return
            pause(0.005)

    def _evict(self, size: int) -> None:
        # Evict more than needed, so that the next piece need not count again.
        goal = self.limit - size - min(self.limit // 20, 4 * self._piece)
        for _, bytes_, path in sorted(self._count()):
            if self.used <= goal:
                break
            path.unlink(missing_ok=True)
            self.used -= bytes_

    def _count(self) -> list[tuple[float, int, Path]]:
        """Return (time of last use, size, path) of all datasets' pieces, and set `used`."""
        pieces = []
        self.used = 0
        for folder in filter(Path.is_dir, self._base.iterdir()):
            for entry in os.scandir(folder):
                name = _NAME.match(entry.name)
                with contextlib.suppress(FileNotFoundError):  # just evicted
                    if name is None or not entry.is_file(follow_symlinks=False):
                        continue
                    if name[1] == "partial":
                        _remove_abandoned(Path(entry.path))
                    stat = entry.stat(follow_symlinks=False)
                    self.used += stat.st_size
                    if name[1] == "piece":
                        pieces.append((stat.st_mtime, stat.st_size, Path(entry.path)))
        return pieces


@cache
def _fills_of(process: int) -> threading.Semaphore:
    """Return the limit of a process's fills at once; a forked process has its own."""
    return threading.Semaphore(_MOST_FILLS)


def _is_sound(descriptor: int, size: int) -> bool:
    """Return whether a piece has the length and checksum of its trailer."""
    data = read_exactly(descriptor, 0, size + _TRAILER.size + 1)
    if len(data) != size + _TRAILER.size:
        return False
    magic, length, crc, _ = _TRAILER.unpack_from(data, size)
    return bool(magic == _MAGIC and length == size and crc32c(memoryview(data)[:size]) == crc)


def _lock_same(path: Path, descriptor: int) -> bool:
    """Lock an open file, unless it is locked; return whether its path still names it then."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return is_open_file(path, descriptor)


def _remove_abandoned(partial: Path) -> None:
    """Remove the partial piece of a killed process."""
    flags = os.O_NOFOLLOW | os.O_RDWR
    with contextlib.suppress(OSError), open_file(partial, 0, flags) as file:
        if _lock_same(partial, file.fileno()):
            partial.unlink()

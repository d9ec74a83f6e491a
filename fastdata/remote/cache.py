"""A folder on this machine that keeps pieces of remote files, shared by all processes.

In the folder that the user names lie::

    <dataset>-<id>/index.arrow                          the index (fastdata.remote.opening)
    fastdata-pieces/usage                               bytes of all pieces; locked to make room
    fastdata-pieces/<id>-<piece bytes>/<file>-<n>.piece     piece n of a file
    fastdata-pieces/<id>-<piece bytes>/<file>-<n>.partial   one being filled; locked by who does

A piece is so many bytes of a remote file, and a trailer: magic, length, CRC-32C. It gets its name
by a rename, after it was flushed, so what a killed process leaves is never taken for a piece; and
the first time that a process uses one, it compares all of it with its trailer. Every sample is
compared with its own checksum as well, each time; where that is wrong, the piece goes and the
sample is fetched by itself. Nothing is ever deleted but files of these names.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import struct
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastdata.errors import DatasetError, FastdataError, UsageError
from fastdata.remote.options import RemoteOptions
from fastdata.remote.ranges import Request, Wanted
from fastdata.remote.reader import RangeReader
from fastdata.storage.checksum import crc32c
from fastdata.storage.files import human_bytes, is_no_space, room, sync

if TYPE_CHECKING:
    from fastdata.remote.opening import FileRef

FOLDER = "fastdata-pieces"
_NAME = re.compile(r"^(\d{6,}|p[0-9a-f]{24})-\d+\.piece$")
_PARTIAL = re.compile(r"^(\d{6,}|p[0-9a-f]{24})-\d+\.partial$")
_TRAILER = struct.Struct("<8sQII")
_MAGIC = b"fdpiece1"

#: Bytes that are downloaded at once into a cache: more would only make the first ones late.
_UNDER_WAY = 64 << 20
#: Seconds between two looks at whether another process has filled a piece.
_POLL = 0.05
#: Seconds after which a piece's time of last use is set again.
_TOUCH_EVERY = 30.0
_REPORT_EVERY = 10.0
#: How often a piece is looked for that others keep evicting.
_LOOKS = 3

Piece = tuple["FileRef", int]
Found = bytes | FastdataError | None


class PieceCache:
    """Pieces of one dataset's files, in a folder; for one process.

    Args:
        folder: The cache folder.
        id: Which state of which dataset: hexadecimal digits.
        reader: Reads the remote files.
        options: How.
        limit: Most bytes of pieces in the folder, of all datasets; None for nine tenths of what
            is free or already pieces.
        shown: The dataset's URL for messages.
        total: Bytes of all its files.

    Attributes:
        limit: Most bytes of pieces in the folder.
        used: What they came to when last counted.
        reads: Pieces that were there when needed.
        fills: Pieces that this process has put there.

    Raises:
        UsageError: The folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        id: str,  # noqa: A002 - what it is called in docs
        reader: RangeReader,
        options: RemoteOptions,
        limit: int | None,
        shown: str,
        total: int,
    ) -> None:
        self._base = folder / FOLDER
        self._folder = self._base / f"{id[:24]}-{options.piece_bytes}"
        self._reader = reader
        self._piece = options.piece_bytes
        self._reporting = threading.Lock()
        self._progress = options.progress
        self._shown = shown
        self._total = total
        self.used = self.reads = self.fills = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._usage():
                self._count(remove_partial=True)
        except OSError as error:
            raise UsageError(
                f"cache={str(folder)!r}: it cannot be written: {error.strerror or error}",
                "Give a folder of this machine that can be, such as /dev/shm/cache.",
            ) from None
        if limit is None:
            # In /dev/shm it is memory that bounds, not what the file system promises.
            limit = (room(self._folder)[0] + self.used) * 9 // 10
        self.limit = limit
        self._filling: dict[Piece, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(
            max(1, min(options.concurrency, _UNDER_WAY // options.piece_bytes))
        )
        self._sound: dict[Path, int] = {}  # inodes that were compared with their trailer
        self._touched: dict[Path, float] = {}
        self._protected: Counter[Path] = Counter()
        self._begun = time.monotonic()
        self._full_said = False

    def pieces(self, one: Wanted, ref: FileRef) -> list[Piece]:
        """The pieces that a sample lies in: one, or neighbours."""
        if one.start == one.stop:
            return []
        first, last = one.start // self._piece, (one.stop - 1) // self._piece
        return [(ref, number) for number in range(first, last + 1)]

    def protect(self, piece: Piece) -> None:
        """Has this process not evict a piece while there are others."""
        self._protected[self._path(piece)] += 1

    def unprotect(self, piece: Piece) -> None:
        """Takes `protect` back."""
        path = self._path(piece)
        self._protected[path] -= 1
        if self._protected[path] <= 0:
            del self._protected[path]

    async def ensure(self, ref: FileRef, number: int) -> None:
        """Has a piece in the folder when it returns, if there is room; on the reader's loop.

        Raises:
            RemoteError: It cannot be had.
        """
        piece = ref, number
        task = self._filling.get(piece)
        if task is None:
            task = self._reader.loop.create_task(self._fill(piece))
            self._filling[piece] = task
            task.add_done_callback(lambda done: self._filled(piece, done))
        # Several may wait for it, and one that gives up must not end it for the others.
        await asyncio.shield(task)

    def _filled(self, piece: Piece, task: asyncio.Task[None]) -> None:
        self._filling.pop(piece, None)
        if not task.cancelled():
            task.exception()  # who waited for it has it; asyncio need not say that nobody did

    async def read(self, wanted: list[tuple[Wanted, FileRef]]) -> list[Found]:
        """Samples, from their pieces; on the reader's loop.

        Returns:
            For each its bytes, what kept it from being read, or None if its bytes are wrong
            however often they are fetched.
        """
        parts: list[dict[int, bytes]] = [{} for _ in wanted]
        needed: dict[Piece, list[int]] = {}
        for at, (one, ref) in enumerate(wanted):
            for piece in self.pieces(one, ref):
                needed.setdefault(piece, []).append(at)
        missing = await asyncio.to_thread(self._read_parts, needed, wanted, parts)
        self.reads += len(needed) - len(missing)
        errors: dict[int, FastdataError] = {}

        async def fill(piece: Piece) -> None:
            for _ in range(_LOOKS):
                try:
                    await self.ensure(*piece)
                except FastdataError as error:
                    errors.update(dict.fromkeys(needed[piece], error))
                    return
                one = {piece: needed[piece]}
                if not await asyncio.to_thread(self._read_parts, one, wanted, parts):
                    return

        await asyncio.gather(*(fill(piece) for piece in missing))
        found: list[Found] = await asyncio.to_thread(self._join, wanted, parts)
        for at, (one, ref) in enumerate(wanted):
            if found[at] is None:
                whole = len(parts[at]) == len(self.pieces(one, ref))
                found[at] = errors.get(at) or await self._read_alone(one, ref, whole)
        return found

    async def _read_alone(self, one: Wanted, ref: FileRef, wrong: bool) -> Found:
        """A sample that is missing in the pieces, or is there but wrong."""
        if wrong:
            self._reader.counts.refetched += 1
            for piece in self.pieces(one, ref):
                self._path(piece).unlink(missing_ok=True)
        got: list[bytes] = []
        request = Request(one.url, one.start, one.stop, [one])
        try:
            await self._reader.read_checked(request, lambda _, data: got.append(data))
        except FastdataError as error:
            return error
        return got[0] if got else None

    # Reading pieces; in threads.

    def _read_parts(
        self,
        needed: dict[Piece, list[int]],
        wanted: list[tuple[Wanted, FileRef]],
        parts: list[dict[int, bytes]],
    ) -> list[Piece]:
        """Reads what samples need of pieces; returns the pieces that are not there."""
        missing = []
        for piece, places in needed.items():
            ref, number = piece
            begin = number * self._piece
            size = min(self._piece, ref.size - begin)
            descriptor = self._open(self._path(piece), size)
            if descriptor is None:
                missing.append(piece)
                continue
            try:
                for at in places:
                    one = wanted[at][0]
                    start, stop = max(one.start, begin), min(one.stop, begin + size)
                    parts[at][number] = os.pread(descriptor, stop - start, start - begin)
            finally:
                os.close(descriptor)
        return missing

    def _join(
        self, wanted: list[tuple[Wanted, FileRef]], parts: list[dict[int, bytes]]
    ) -> list[Found]:
        """Whole samples whose checksums are right; None for others."""
        found: list[Found] = []
        for (one, _), of in zip(wanted, parts, strict=True):
            data = b"".join(of[number] for number in sorted(of))
            found.append(data if len(data) == one.size and crc32c(data) == one.crc else None)
        return found

    def _open(self, path: Path, size: int) -> int | None:
        """Opens a piece; None if it is not there, or not as it was written."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            inode = os.fstat(descriptor).st_ino
            if self._sound.get(path) != inode:
                if not _is_whole(descriptor, size):
                    with contextlib.suppress(OSError):
                        path.unlink(missing_ok=True)
                    os.close(descriptor)
                    return None
                self._sound[path] = inode
            now = time.monotonic()
            if now - self._touched.get(path, -_TOUCH_EVERY) >= _TOUCH_EVERY:
                self._touched[path] = now
                with contextlib.suppress(OSError):  # another user's, or just evicted
                    os.utime(path)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    # Filling.

    async def _fill(self, piece: Piece) -> None:
        ref, number = piece
        start = number * self._piece
        stop = min(start + self._piece, ref.size)
        path = self._path(piece)
        partial = path.with_suffix(".partial")
        while True:
            if await asyncio.to_thread(self._is_there, path, stop - start):
                return
            async with self._slots:
                try:
                    descriptor = _try_lock(partial)
                except OSError as error:
                    if not is_no_space(error):
                        raise self._unwritable(error) from None
                    self._tell_full()
                    return
                if descriptor is not None:
                    try:
                        # Filled by who held the lock. That it exists is not enough: what cannot
                        # be read (a bad block, another user's file) is replaced.
                        if await asyncio.to_thread(self._is_there, path, stop - start):
                            return
                        data = await self._reader.read(ref.url, start, stop)
                        if await asyncio.to_thread(self._store, descriptor, partial, path, data):
                            self.fills += 1
                            await asyncio.to_thread(self._report)
                    finally:
                        _unlink_same(partial, descriptor)
                        os.close(descriptor)
                    return
            await asyncio.sleep(_POLL)

    def _tell_full(self) -> None:
        if not self._full_said:
            self._full_said = True
            warnings.warn(
                f"{self._folder}: the disk is full, so what does not fit is read remotely "
                "each time; give a smaller cache_bytes=",
                stacklevel=2,
            )

    def _unwritable(self, error: OSError) -> DatasetError:
        return DatasetError(
            f"{self._folder}: cannot be written: {error.strerror or error}",
            "Give another folder as cache=.",
        )

    def _is_there(self, path: Path, size: int) -> bool:
        descriptor = self._open(path, size)
        if descriptor is None:
            return False
        os.close(descriptor)
        return True

    def _store(self, descriptor: int, partial: Path, path: Path, data: bytes) -> bool:
        """Writes a piece; False if there is no room for it."""
        try:
            self._make_room(len(data) + _TRAILER.size, descriptor)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
                file.write(_TRAILER.pack(_MAGIC, len(data), crc32c(data), 0))
            os.fsync(descriptor)
            with self._usage():  # who counts might see it under neither name
                os.replace(partial, path)
            sync(self._folder)
        except OSError as error:
            if not is_no_space(error):
                raise self._unwritable(error) from None
            self._tell_full()
            return False
        self._sound[path] = os.fstat(descriptor).st_ino
        self._touched[path] = time.monotonic()
        return True

    def _path(self, piece: Piece) -> Path:
        ref, number = piece
        return self._folder / f"{ref.tag}-{number}.piece"

    # Room.

    @contextlib.contextmanager
    def _usage(self) -> Iterator[None]:
        """Holds the lock on what the pieces come to."""
        descriptor = os.open(
            self._base / "usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            text = os.pread(descriptor, 32, 0)
            self.used = int(text) if text.strip().isdigit() else -1
            yield
            os.pwrite(descriptor, b"%-31d\n" % self.used, 0)
        finally:
            # Closing is not enough: a process forked meanwhile has the descriptor, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _make_room(self, size: int, descriptor: int) -> None:
        """Evicts pieces that were used least recently until there is room for another.

        The file of that one gets its size at once, so that whoever counts next counts it too.
        Those that are being filled cannot be evicted; they are waited for.
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
            time.sleep(0.005)

    def _evict(self, size: int) -> None:
        found = sorted(self._count())
        # Some more than needed: the next one need not count again.
        goal = self.limit - size - min(self.limit // 20, 4 * self._piece)
        for spared in (False, True):
            for _, bytes_, path in found:
                if self.used <= goal or (spared and self.used + size <= self.limit):
                    break
                if (path in self._protected) == spared and path.exists():
                    path.unlink(missing_ok=True)
                    self.used -= bytes_

    def _count(self, remove_partial: bool = False) -> list[tuple[float, int, Path]]:
        """(time of last use, size, path) of all pieces of all datasets; sets `used`."""
        found = []
        filling = 0
        for folder in os.scandir(self._base):
            if not folder.is_dir(follow_symlinks=False):
                continue
            for entry in os.scandir(folder.path):
                with contextlib.suppress(FileNotFoundError):  # it has just gone
                    if remove_partial and _PARTIAL.match(entry.name):
                        _remove_abandoned(Path(entry.path))
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    stat = entry.stat(follow_symlinks=False)
                    if _NAME.match(entry.name):
                        found.append((stat.st_mtime, stat.st_size, Path(entry.path)))
                    elif _PARTIAL.match(entry.name):
                        filling += stat.st_size
        self.used = filling + sum(size for _, size, _ in found)
        return found

    # Progress.

    def _is_due(self) -> bool:
        """Whether this thread is to report now; if so, no other, of any process, soon will."""
        mark = self._folder / "reported"
        with self._reporting, contextlib.suppress(OSError):
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            except FileExistsError:
                if time.time() - mark.stat().st_mtime < _REPORT_EVERY:
                    return False
                os.utime(mark)
            return True
        return False

    def _report(self) -> None:
        """Says how far the folder is filled, one process every ten seconds."""
        if not self._progress or not self._is_due():
            return
        with contextlib.suppress(OSError):
            here = sum(
                entry.stat().st_size
                for entry in os.scandir(self._folder)
                if _NAME.match(entry.name)
            )
            total = f" of {human_bytes(self._total)}" if self._total else ""
            seconds = max(time.monotonic() - self._begun, 1e-3)
            rate = human_bytes(self.fills * self._piece / seconds)
            print(
                f"caching {self._shown} in {self._base.parent}: {human_bytes(here)}{total}, "
                f"{rate}/s by this process",
                file=sys.stderr,
                flush=True,
            )


#: Seconds for others to have filled their pieces; more only where one has stopped in the middle.
_ROOM_PATIENCE = 2.0


def _is_whole(descriptor: int, size: int) -> bool:
    """Whether a piece has the length and the checksum that its trailer says."""
    if os.fstat(descriptor).st_size != size + _TRAILER.size:
        return False
    data = os.pread(descriptor, size + _TRAILER.size, 0)
    if len(data) != size + _TRAILER.size:
        return False
    magic, length, crc, _ = _TRAILER.unpack_from(data, size)
    return bool(magic == _MAGIC and length == size and crc32c(memoryview(data)[:size]) == crc)


def _try_lock(partial: Path) -> int | None:
    """Opens and locks the file of a piece to be filled; None while another process holds it."""
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(partial.stat(), os.fstat(descriptor)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _unlink_same(path: Path, descriptor: int) -> None:
    """Removes a file, if it is still the one that is open."""
    with contextlib.suppress(OSError):
        if os.path.samestat(path.stat(), os.fstat(descriptor)):
            path.unlink()


def _remove_abandoned(partial: Path) -> None:
    """Removes what a killed process has left of a piece."""
    try:
        descriptor = os.open(partial, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _unlink_same(partial, descriptor)
    except OSError:
        pass  # somebody is filling it
    finally:
        os.close(descriptor)

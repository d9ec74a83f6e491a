"""Bytes on local disks: extents and checksums of files, locks, and files that appear when whole."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fastdata import _native
from fastdata._native import crc32c, crc32c_combine
from fastdata.errors import MORE_FILES, BusyError, SpaceError
from fastdata.storage.descriptors import read_exactly
from fastdata.storage.paths import folder_variable
from fastdata.threads import Threads

#: Suffix of a file that is being written.
PARTIAL_SUFFIX = ".partial"
_BLOCK = 64 << 20  # bytes that one thread checksums at a time
_CHUNK = 1 << 20  # bytes read at a time: stays in the L2 cache between read and checksum


def open_descriptor(path: str | os.PathLike[str], more_flags: int = 0) -> int:
    """Open a regular file for reading, with ``more_flags``; the caller closes its descriptor.

    A FIFO would wait for a writer, and a device may have no end: they are an OSError. The native
    core has the same check (``io/files.cpp``).
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | more_flags
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        # Those of datasets can be opened again.
        if not is_too_many(error) or not _native.close_files():
            raise
        descriptor = os.open(path, flags)
    try:
        _require_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_too_many(error: OSError) -> bool:
    """Return whether a file could not be opened because too many are open."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def remedy(error: OSError, hint: str) -> str:
    """Return the hint for a file that cannot be read: ``hint``, unless too many are open."""
    return MORE_FILES if is_too_many(error) else hint


def open_file(path: str | os.PathLike[str], buffering: int = 0, more_flags: int = 0) -> Any:
    """Open a regular file as a Python file, unbuffered by default; see `open_descriptor`."""
    return open(open_descriptor(path, more_flags), "rb", buffering)


def read_file(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """Return all bytes of a regular file; OSError if it has more than ``most``, but for -1."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if 0 <= most < size:
            text = f"it has {human_bytes(size)}, more than {human_bytes(most)}"
            raise OSError(errno.EFBIG, text, os.fspath(path))
        data: bytes = file.read()
    return data


def check_regular(path: str | os.PathLike[str]) -> None:
    """Check a file that a library opens by its path, as `open_descriptor` does."""
    _require_regular(os.stat(path), path)


def _require_regular(state: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def read_extent(path: str | os.PathLike[str], offset: int, length: int) -> bytes:
    """Return bytes of a regular file, fewer at its end; see `open_descriptor`."""
    with open_file(path) as file:
        return read_exactly(file.fileno(), offset, length)


def crc32c_range(
    path: str | os.PathLike[str], offset: int, length: int, *, chunk: int = _CHUNK
) -> int:
    """Return the CRC-32C of ``length`` bytes of a file from ``offset``, fewer where it ends."""
    crc = 0
    buffer = memoryview(bytearray(min(length, chunk)))
    with open_file(path) as file:
        file.seek(offset)
        while length > 0 and (count := file.readinto(buffer[: min(length, chunk)])):
            crc = crc32c(buffer[:count], crc)
            length -= count
    return crc


def crc32c_file(path: str | os.PathLike[str], threads: int = 1, *, block: int = _BLOCK) -> int:
    """Return the CRC-32C of a whole file, of which ``threads`` blocks are read at once."""
    size = os.stat(path).st_size
    if threads <= 1 or size <= block:
        return crc32c_range(path, 0, size)
    blocks = [(start, min(block, size - start)) for start in range(0, size, block)]
    crc = 0
    with Threads(threads, "fastdata-crc") as pool:
        pieces = pool.map(lambda block: crc32c_range(path, *block), blocks)
        for piece, (_, length) in zip(pieces, blocks, strict=True):
            crc = crc32c_combine(crc, piece, length)
    return crc


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Make a file appear under its name when it is complete, or not at all.

    Yield the temporary path to write to. At the end, the file is flushed to the disk,
    then renamed; after an exception it is removed.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        publish(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a file of text, which appears under its name when it is complete."""
    with whole_file(path) as temporary:
        temporary.write_text(text, "utf-8")


def temporary_name(path: Path) -> Path:
    """Return a file's name while this process, which may seem dead to others, writes it."""
    number = os.getpid() if _process_number is None else _process_number
    return path.with_name(f"{path.name}.{number}{PARTIAL_SUFFIX}")


_process_number: int | None = None


def name_process(number: int) -> None:
    """Make `temporary_name` use this process's number in a whole cluster."""
    global _process_number
    _process_number = number


def publish(temporary: Path, path: Path) -> None:
    """Flush a finished file or folder to the disk and rename it to its final name."""
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def written_behind(path: Path) -> Iterator[None]:
    """Make the kernel write a file while it grows, if it can, so that the last flush is short."""
    if _sync_file_range is None:
        yield
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    done = threading.Event()

    def start_writing() -> None:
        everything = ctypes.c_int64(0), ctypes.c_int64(0)
        while not done.wait(_WRITE_EVERY):
            _sync_file_range(descriptor, *everything, _SYNC_FILE_RANGE_WRITE)

    thread = threading.Thread(target=start_writing, name="fastdata-write-behind", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        os.close(descriptor)


_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
_SYNC_FILE_RANGE_WRITE = 2
_WRITE_EVERY = 0.02  # seconds: some tens of megabytes


#: Seconds to wait for a lock whose holder shows no progress: it may be stopped.
PATIENCE = 600.0


@contextmanager
def file_lock(
    path: Path,
    busy: BusyError | None = None,
    waiting: Callable[[], None] | None = None,
    patience: float | None = None,
) -> Iterator[Callable[[], None]]:
    """Hold a lock among the processes of this machine.

    The lock file exists only while a process wants it, or after one was killed. Yield a function
    that reports progress to the waiting processes.

    Args:
        path: The lock file.
        busy: Raised where another process holds the lock; None to wait for it.
        waiting: Called once, before waiting for another process.
        patience: Seconds to wait for a holder who shows no progress; None for `PATIENCE`.

    Raises:
        BusyError: ``busy``, or patience has ended, or another user made the lock file.
        OSError: The lock file cannot be made; it names the folder.
    """
    while True:
        with os.fdopen(_open_lock(path)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if busy is not None:
                    raise busy from None
                _refuse_foreign(path, os.fstat(file.fileno()).st_uid)
                if waiting is not None:
                    waiting()
                    waiting = None
                try:
                    wait_for_lock(file.fileno(), PATIENCE if patience is None else patience)
                except TimeoutError as error:
                    raise BusyError(
                        f"{path}: {error.strerror}",
                        "End that process, if it hangs, and run this again.",
                    ) from None
            # The holder unlinked this file: retry on the new inode.
            if not is_open_file(path, file.fileno()):
                continue
            try:
                yield partial(os.utime, file.fileno())
            finally:
                # In another user's folder such as /tmp, only who made a file may remove it.
                with suppress(PermissionError):
                    path.unlink(missing_ok=True)
                # Closing is not enough: a process forked meanwhile has the descriptor, too, and
                # who waits would wait for its end.
                fcntl.flock(file, fcntl.LOCK_UN)
            return


def wait_for_lock(descriptor: int, patience: float) -> None:
    """Lock a file with ``flock``; TimeoutError: it has not changed for ``patience`` seconds."""
    pause, seen, end = 0.001, -1, 0.0
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        changed = os.fstat(descriptor).st_mtime_ns
        if changed != seen:
            seen, end = changed, time.monotonic() + patience
        if time.monotonic() >= end:
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"{_holder(descriptor)} holds the lock, without progress for {patience:.0f} s",
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


_LONGEST_PAUSE = 0.1


def _holder(descriptor: int) -> str:
    """Return the name of a lock's holder, as far as Linux knows."""
    inode = f":{os.fstat(descriptor).st_ino}"
    with suppress(OSError), open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            fields = line.split()  # "1: FLOCK ADVISORY WRITE <process> <device>:<inode> 0 EOF"
            if fields[1] == "FLOCK" and fields[5].endswith(inode) and fields[4] != "0":
                return f"process {fields[4]}"
    return "another process"


def _open_lock(path: Path) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # In a folder such as /dev/shm, Linux refuses O_CREAT for another user's file.
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        # For this user alone: a user who may open it may hold it for ever.
        return os.open(path, flags | os.O_CREAT, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:  # users know the folder, not the lock
        raise OSError(error.errno, error.strerror, os.fspath(path.parent)) from None


def _refuse_foreign(path: Path, owner: int) -> None:
    if owner not in (0, os.geteuid()):
        raise BusyError(
            f"{path}: another user (id {owner}) holds this lock",
            "Wait for the process of that user, or remove the file.",
        )


def is_open_file(path: Path, descriptor: int) -> bool:
    """Return whether a path still names an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def cache_folder() -> Path:
    """Return $FASTDATA_CACHE_DIR, $XDG_CACHE_HOME/fastdata or ~/.cache/fastdata."""
    if folder := folder_variable("FASTDATA_CACHE_DIR"):
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME", "")  # its specification ignores relative ones
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache")) / "fastdata"


#: Digits of a digest, and bytes of a name, in `digest_name`: with a suffix, 255 bytes at most.
ID_DIGITS, _NAME_BYTES = 12, 200


def digest_name(name: str, digest: str) -> str:
    """Return the name of a file or folder for a dataset: its name, shortened, and its state."""
    return f"{os.fsdecode(os.fsencode(name)[:_NAME_BYTES])}-{digest[:ID_DIGITS]}"


def human_bytes(count: float) -> str:
    """Return a number of bytes as people read it, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def free_space(folder: Path) -> int:
    """Return the bytes that are free where ``folder`` is, or will be."""
    while not folder.exists():
        folder = folder.parent
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def is_tmpfs(folder: Path) -> bool:
    """Return whether a folder's files lie in memory."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except FileNotFoundError:  # not Linux
        return False
    for mount in mounts.splitlines():
        fields, _, source = mount.partition(" - ")
        if fields.split()[2] == wanted:
            return source.split()[0] == "tmpfs"
    return False


def no_space(folder: Path, error: BaseException, hint: str) -> SpaceError:
    """Return the error to raise if `is_no_space`."""
    return SpaceError(
        f"{folder}: the disk is full ({human_bytes(free_space(folder))} free): {error}", hint
    )

"""What the kernel's page cache holds of a file, and having it forget parts of one."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

_PAGE = mmap.PAGESIZE
_CACHESTAT = 451  # the number of the system call, the same on every processor
#: Bytes that are mapped at a time: their pages' states take 256 kB.
_WINDOW = 1 << 30

#: Linux keeps files in memory in pieces of up to this size, and forgets a piece as a whole.
_PIECE = 2 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class Extent(NamedTuple):
    """A part of a file, in bytes."""

    path: Path
    offset: int
    length: int


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent")
    )


def cached_bytes(extent: Extent) -> tuple[int, str]:
    """How much of a part of a file is in memory.

    Args:
        extent: The part; it is rounded to whole pages.

    Returns:
        Bytes, of whole pages; and the system call that told: ``cachestat`` or ``mincore``.

    Raises:
        OSError: The file cannot be opened, or the system does not tell.
    """
    descriptor = os.open(extent.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        start, stop = _pages(extent)
        try:
            return cachestat(descriptor, start, stop - start), "cachestat"
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        return mincore(descriptor, start, stop - start), "mincore"
    finally:
        os.close(descriptor)


def cachestat(descriptor: int, offset: int, length: int) -> int:
    """Bytes in memory of a part of a file, as Linux 6.5 and later tell.

    Raises:
        OSError: ENOSYS on older ones; EPERM for another user's file.
    """
    if length <= 0:
        return 0
    wanted, counts = _Range(offset, length), _Counts()
    found = _libc.syscall(
        _CACHESTAT, descriptor, ctypes.byref(wanted), ctypes.byref(counts), ctypes.c_uint(0)
    )
    if found != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(counts.cached) * _PAGE


def mincore(descriptor: int, offset: int, length: int) -> int:
    """The same by mapping the file and asking for its pages: any Linux.

    Raises:
        OSError: The file cannot be mapped, or is another user's, of which the kernel says that
            all is in memory.
    """
    about = os.fstat(descriptor)
    if os.geteuid() not in (0, about.st_uid):
        raise PermissionError(errno.EPERM, "the kernel tells only of a user's own files")
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
    _libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    stop = min(offset + length, about.st_size)
    found = 0
    for start in range(offset, stop, _WINDOW):
        size = min(_WINDOW, stop - start)
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
        if address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        try:
            states = np.zeros(-(-size // _PAGE), np.uint8)
            if _libc.mincore(address, size, states.ctypes.data) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            found += int(np.count_nonzero(states & 1))
        finally:
            _libc.munmap(address, size)
    return found * _PAGE


def drop(extents: Iterable[Extent]) -> None:
    """Asks the kernel to forget parts of files and what is close to them.

    What is mapped by a process it may keep.

    Raises:
        OSError: A file cannot be opened, or the system has no such call.
    """
    if not hasattr(os, "posix_fadvise"):
        raise OSError(errno.ENOSYS, "this system has no posix_fadvise")
    open_path, descriptor = None, -1
    try:
        for extent in sorted(extents):
            if extent.path != open_path:
                if descriptor >= 0:
                    os.close(descriptor)
                descriptor = -1
                descriptor = os.open(extent.path, os.O_RDONLY | os.O_CLOEXEC)
                open_path = extent.path
                os.fsync(descriptor)  # what is not yet on the disk is kept
            start = extent.offset // _PIECE * _PIECE
            stop = -(-(extent.offset + extent.length) // _PIECE) * _PIECE
            os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def resident_share(extents: Iterable[Extent]) -> float:
    """The part of some extents that is in memory, 0 to 1.

    Raises:
        OSError: As `cached_bytes`.
    """
    pages = cached = 0
    for extent in extents:
        start, stop = _pages(extent)
        pages += stop - start
        cached += cached_bytes(extent)[0]
    return min(1.0, cached / pages) if pages else 1.0


def _pages(extent: Extent) -> tuple[int, int]:
    """The whole pages that an extent lies in: from, to, in bytes."""
    start = extent.offset // _PAGE * _PAGE
    return start, -(-(extent.offset + extent.length) // _PAGE) * _PAGE

"""Page cache of the kernel: the share of a file that it holds, and how to drop it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastdata.storage.files import open_descriptor, open_file

_PAGE = mmap.PAGESIZE
#: Bytes that are mapped at a time: their pages' states take 256 kB.
_WINDOW = 1 << 30

#: Linux keeps files in memory in pieces of up to this size, and forgets a piece as a whole.
_PIECE = 2 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class Extent(NamedTuple):
    """Part of a file, in bytes."""

    path: Path
    offset: int
    length: int


def cached_bytes(extent: Extent) -> int:
    """Return the bytes of a part of a file that are in memory, in whole pages.

    Raises:
        OSError: The file cannot be opened or mapped, or is another user's, of which the kernel
            says that all is in memory.
    """
    start, stop = _pages(extent)
    found = 0
    with open_file(extent.path) as file:
        about = os.fstat(file.fileno())
        if os.geteuid() not in (0, about.st_uid):
            raise PermissionError(errno.EPERM, "the kernel tells only of a user's own files")
        stop = min(stop, about.st_size)
        for begin in range(start, stop, _WINDOW):
            size = min(_WINDOW, stop - begin)
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ, offset=begin) as mapped:
                pages = np.frombuffer(mapped, np.uint8)
                states = np.zeros(-(-size // _PAGE), np.uint8)
                failed = _libc.mincore(
                    ctypes.c_void_p(pages.ctypes.data),
                    ctypes.c_size_t(size),
                    ctypes.c_void_p(states.ctypes.data),
                )
                del pages  # the map is closed only when nothing looks into it
                if failed:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
                found += int(np.count_nonzero(states & 1))
    return found * _PAGE


def drop(extents: Iterable[Extent]) -> None:
    """Ask the kernel to drop parts of files, and their surroundings, from the page cache.

    It may keep pages that a process has mapped.

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
                descriptor = open_descriptor(extent.path)
                open_path = extent.path
                os.fsync(descriptor)  # the kernel keeps pages that are not yet on the disk
            start = extent.offset // _PIECE * _PIECE
            stop = -(-(extent.offset + extent.length) // _PIECE) * _PIECE
            os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def resident_share(extents: Iterable[Extent]) -> float:
    """Return the share of some extents that is in memory, 0 to 1.

    Raises:
        OSError: As `cached_bytes`.
    """
    pages = cached = 0
    for extent in extents:
        start, stop = _pages(extent)
        pages += stop - start
        cached += cached_bytes(extent)
    return min(1.0, cached / pages) if pages else 1.0


def _pages(extent: Extent) -> tuple[int, int]:
    """Return begin and end of the pages that contain an extent, in bytes."""
    start = extent.offset // _PAGE * _PAGE
    return start, -(-(extent.offset + extent.length) // _PAGE) * _PAGE

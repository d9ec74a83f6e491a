"""Page cache of the kernel: the share of a file that it holds, and how to drop it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastdata.storage.files import open_descriptor, open_file

_PAGE = mmap.PAGESIZE
#: Linux keeps files in memory in pieces of up to this size, and forgets a piece as a whole.
_PIECE = 2 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class Extent(NamedTuple):
    """Part of a file, in bytes."""

    path: Path
    offset: int
    length: int


def resident_share(extents: Iterable[Extent]) -> float:
    """Return the share of some extents that is in memory, 0 to 1.

    OSError: a file is another user's, of which the kernel says that all is in memory.
    """
    pages = cached = 0
    for extent in extents:
        start = extent.offset // _PAGE * _PAGE
        with open_file(extent.path) as file:
            stat = os.fstat(file.fileno())
            if os.geteuid() not in (0, stat.st_uid):
                raise PermissionError(errno.EPERM, "the kernel tells only of a user's own files")
            size = min(extent.offset + extent.length, stat.st_size) - start
            if size <= 0:
                continue
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ, offset=start) as mapped:
                contents = np.frombuffer(mapped, np.uint8)
                states = np.zeros(-(-size // _PAGE), np.uint8)
                failed = _libc.mincore(
                    ctypes.c_void_p(contents.ctypes.data),
                    ctypes.c_size_t(size),
                    ctypes.c_void_p(states.ctypes.data),
                )
                del contents  # the map is closed only when nothing looks into it
                if failed:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            pages += len(states)
            cached += int(np.count_nonzero(states & 1))
    return cached / pages if pages else 1.0


def drop(extents: Iterable[Extent]) -> None:
    """Ask the kernel to drop parts of files, and their surroundings, from the page cache.

    It may keep pages that a process has mapped. OSError: the system has no such call.
    """
    if not hasattr(os, "posix_fadvise"):
        raise OSError(errno.ENOSYS, "this system has no posix_fadvise")
    for path, parts in groupby(sorted(extents), key=lambda extent: extent.path):
        descriptor = open_descriptor(path)
        try:
            os.fsync(descriptor)  # the kernel keeps pages that are not yet on the disk
            for _, offset, length in parts:
                start = offset // _PIECE * _PIECE
                stop = -(-(offset + length) // _PIECE) * _PIECE
                os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

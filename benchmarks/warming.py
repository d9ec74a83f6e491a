"""Page cache before a measurement: dropped for a cold start, filled for a warm one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from fastdata.doctor import page_cache
from fastdata.doctor.page_cache import Extent

_DROP = Path("/proc/sys/vm/drop_caches")


def drop(data: Path) -> str:
    """Drop the page cache, of the whole machine if permitted, else of the data's files.

    Returns:
        How it was done: "all", "files", or "" where it could not be done.
    """
    os.sync()
    try:
        _DROP.write_text("3\n")
        return "all"
    except OSError:
        pass
    try:
        page_cache.drop(Extent(path, 0, path.stat().st_size) for path in _files(data))
    except OSError:
        return ""
    return "files"


def fill(data: Path) -> bool:
    """Read the data once, so that every contender finds it in memory.

    Returns:
        Whether it was done; not where the data is larger than the memory that is left for it.
    """
    if size(data) > psutil.virtual_memory().available:
        return False
    buffer = bytearray(1 << 20)
    seen = set()
    for path in _files(data):
        about = path.stat()
        if (about.st_dev, about.st_ino) in seen:
            continue  # a tree of links has each image many times
        seen.add((about.st_dev, about.st_ino))
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return True


def size(data: Path) -> int:
    """Return the bytes of all files of a folder, or of one file."""
    return sum(path.stat().st_size for path in _files(data))


def _files(data: Path) -> Iterator[Path]:
    if data.is_file():
        yield data
    for folder, _, names in os.walk(data, followlinks=True):
        yield from (Path(folder, name) for name in names)

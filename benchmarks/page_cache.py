"""Drops what the kernel keeps of files, so that a cold start can be measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_DROP = Path("/proc/sys/vm/drop_caches")


def drop(data: Path) -> str:
    """Drops the page cache, of the whole machine where permitted, else of the data's files.

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
        for path in _files(data):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    except (OSError, AttributeError):
        return ""
    return "files"


def size(data: Path) -> int:
    """Bytes of all files of a folder, or of one file."""
    return sum(path.stat().st_size for path in _files(data))


def _files(data: Path) -> Iterator[Path]:
    if data.is_file():
        yield data
    for folder, _, names in os.walk(data, followlinks=True):
        yield from (Path(folder, name) for name in names)

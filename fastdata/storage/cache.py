"""`Cache`: data that an `ImageDataset` may keep on this machine, and the room for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fastdata.errors import SpaceError, UsageError
from fastdata.machine import available_memory
from fastdata.storage.files import free_space, human_bytes, is_tmpfs
from fastdata.storage.paths import working_folder


@dataclass(frozen=True)
class Cache:
    """Place and size of a dataset's cache: the ``cache`` of `fastdata.ImageDataset`.

    A dataset behind a URL keeps pieces of its files, for all processes of this machine. Any other
    keeps the seek points that its images lack in a file, from the first epoch on.

    Attributes:
        path: The folder. None: a URL keeps no pieces; seek points lie beside the index, or in
            ``$FASTDATA_CACHE_DIR``.
        bytes: Most bytes of the pieces in the folder, or of the file of seek points. None for nine
            tenths of the free space, or for no limit. 0 for no seek points.

    Raises:
        UsageError: ``bytes`` is not a whole number from 0, or ``path`` is a URL.
    """

    path: str | os.PathLike[str] | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None and (type(self.bytes) is not int or self.bytes < 0):
            raise UsageError(f"Cache(bytes={self.bytes!r})", "Give a number of bytes from 0.")
        if self.path is not None:
            if "://" in os.fspath(self.path):
                raise UsageError("cache= is a URL", "Give a folder of this machine.")
            object.__setattr__(self, "path", os.path.join(working_folder(), self.path))


#: Bytes of memory that caches and copies in memory leave free for training.
MEMORY_LEFT = 1 << 30


def room(place: Path, left: int = MEMORY_LEFT) -> tuple[int, str]:
    """Return the bytes that files in a folder may take, and their limit if not the disk.

    ``left`` are bytes of memory to leave free, if the folder is in memory.
    """
    free = free_space(place)
    if place.exists() and is_tmpfs(place):
        # A tmpfs promises a share of all memory, including memory in use.
        memory = max(available_memory() - left, 0)
        if memory < free:
            return memory, f" (memory, {human_bytes(left)} set aside)"
    return free, ""


def require_room(place: Path, needed: int, hint: str, left: int = 0) -> None:
    """Raise SpaceError if a folder has no room for so many bytes; see `room`."""
    free, limit = room(place, left)
    if needed > free:
        what = f"{human_bytes(needed)} are needed, {human_bytes(free)} are free{limit}"
        raise SpaceError(f"{place}: {what}", hint)

"""Room for files in a folder, which may lie in memory."""

from __future__ import annotations

from pathlib import Path

from fastdata.machine import available_memory
from fastdata.storage.files import free_space, human_bytes, is_tmpfs

#: Bytes of memory that files in memory leave free.
_MEMORY_LEFT = 1 << 30


def room(place: Path) -> tuple[int, str]:
    """Return the bytes that files in a folder may take, and their limit if not the disk."""
    free = free_space(place)
    if place.exists() and is_tmpfs(place):
        # A tmpfs promises a share of all memory, including memory in use.
        memory = max(available_memory() - _MEMORY_LEFT, 0)
        if memory < free:
            return memory, f" (memory, {human_bytes(_MEMORY_LEFT)} set aside)"
    return free, ""

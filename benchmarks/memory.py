"""Memory that a process has for itself: with few imports, as these count where it is measured."""

from __future__ import annotations

from pathlib import Path

import psutil


def private_memory(pid: int) -> int:
    """Private memory of a process and all below it, in bytes: what is in no file.

    Not USS: in that are the pages of the page cache and of /dev/shm that one process alone maps,
    which are there without it, too. What a fork shares is counted once.
    """
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += _anonymous(process)
    except psutil.NoSuchProcess:
        pass
    return total


def _anonymous(process: psutil.Process) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        lines = []
    for line in lines:
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) << 10
    # No Linux, or one before 5.3; or it has ended: NoSuchProcess.
    uss: int = process.memory_full_info().uss
    return uss

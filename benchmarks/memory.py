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
        uss: int = process.memory_full_info().uss  # no Linux, or it has ended: NoSuchProcess
        return uss
    found = (line.split() for line in lines)
    return sum(int(words[1]) << 10 for words in found if words[0] == "Pss_Anon:")

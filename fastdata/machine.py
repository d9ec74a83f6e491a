"""CPUs and memory that this process may use: of the machine, and of its control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from fastdata.errors import DataError

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def usable_cpus(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """How many CPUs this process may use: its affinity, and its cgroup's quota; at least 1.

    Args:
        proc: Where the kernel tells of processes.
        cgroups: Where control groups are mounted.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        allowed = os.cpu_count() or 1
    quota = cgroup_cpus(proc, cgroups)
    # A quota of 3.5 CPUs is used up by four threads, not by three.
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cpus_for_this_rank() -> int:
    """Usable CPUs divided by the ranks on this machine, as torchrun counts them; at least 1."""
    try:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError:
        ranks = 1
    return max(1, usable_cpus() // max(ranks, 1))


def available_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes of memory that this process can get without swapping, within its cgroups' limits.

    The pages of a tmpfs are charged to the cgroup of the process that writes them: beyond its
    limit, the kernel kills. Page cache is charged, too, but what was not used lately gives way.

    Args:
        proc: Where the kernel tells of processes.
        cgroups: Where control groups are mounted.

    Raises:
        DataError: The kernel does not say (before Linux 3.14).
    """
    left = (_memory_left(*group) for group in _groups("memory", proc, cgroups))
    return min([_machine_memory(proc), *(size for size in left if size is not None)])


def _machine_memory(proc: Path) -> int:
    for line in (proc / "meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise DataError("/proc/meminfo: lacks MemAvailable", "Choose a folder on a disk with --to.")


def cgroup_cpus(proc: Path, cgroups: Path) -> float | None:
    """The narrowest CPU quota of this process's cgroup and those above it; None without one."""
    quotas = (_cpu_quota(*group) for group in _groups("cpu", proc, cgroups))
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(controller: str, proc: Path, cgroups: Path) -> Iterator[tuple[Path, bool]]:
    """This process's cgroup and all above it: each one's folder, and whether it is version 2."""
    try:
        lines = os.fsdecode((proc / "self/cgroup").read_bytes()).splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        fields = line.split(":", 2)
        if len(fields) < 3:  # not what the kernel writes
            continue
        _, controllers, name = fields
        if controllers and controller not in controllers.split(","):
            continue
        top = cgroups / controller if controllers else cgroups
        # In a container the name may be the host's; then the mount's top is the container's own.
        inner = Path(os.path.normpath(f"{top}/{name}"))
        for folder in dict.fromkeys((inner, *inner.parents, top)):
            if folder.is_relative_to(top):
                yield folder, not controllers


def _cpu_quota(group: Path, version_2: bool) -> float | None:
    try:
        if version_2:
            quota, period = (group / "cpu.max").read_text("ascii").split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text("ascii")
            period = (group / "cpu.cfs_period_us").read_text("ascii")
        cpus = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        return None
    return cpus if cpus > 0 else None  # -1: no quota


def _memory_left(group: Path, version_2: bool) -> int | None:
    names = ("max", "current") if version_2 else ("limit_in_bytes", "usage_in_bytes")
    reclaimable = "inactive_file" if version_2 else "total_inactive_file"
    try:
        limit, usage = (int((group / f"memory.{name}").read_text("ascii")) for name in names)
        stat = (group / "memory.stat").read_text("ascii").splitlines()
        cache = sum(int(line.split()[1]) for line in stat if line.split()[:1] == [reclaimable])
    except (OSError, ValueError):  # no such file, or "max"
        return None
    return max(limit - usage + cache, 0)

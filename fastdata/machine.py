"""What this process may use of its machine: CPUs, by affinity, cgroup and ranks."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cpus() -> int:
    """How many CPUs this process may use: its affinity, and its cgroup's quota; at least 1."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        allowed = os.cpu_count() or 1
    quota = cgroup_cpus(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    # A quota of 3.5 CPUs is used up by four threads, not by three.
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cpus_for_this_rank() -> int:
    """Usable CPUs divided by the ranks on this machine, as torchrun counts them; at least 1."""
    try:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError:
        ranks = 1
    return max(1, usable_cpus() // max(ranks, 1))


def cgroup_cpus(membership: Path, mount: Path) -> float | None:
    """The CPU quota of the cgroup that a process is in, or of one above it; None for none.

    Args:
        membership: The process's ``/proc/PID/cgroup``.
        mount: Where cgroups are mounted: ``/sys/fs/cgroup``.
    """
    found: list[float] = []
    try:
        lines = os.fsdecode(membership.read_bytes()).splitlines()
    except OSError:  # not Linux
        return None
    for line in lines:
        fields = line.split(":", 2)
        if len(fields) < 3:  # not what the kernel writes
            continue
        _, controllers, name = fields
        if not controllers:  # version 2
            root, read = mount, _quota_v2
        elif "cpu" in controllers.split(","):
            root, read = mount / "cpu", _quota_v1
        else:
            continue
        # In a container the name may be the host's; then the mount's root is the container's own.
        group = root / name.lstrip("/")
        while True:
            quota = read(group)
            if quota is not None:
                found.append(quota)
            if group == root:
                break
            group = group.parent
    return min(found, default=None)


def _quota_v2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
        return None if quota <= 0 else quota / period
    except (OSError, ValueError, ZeroDivisionError):
        return None

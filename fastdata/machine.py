"""CPUs and memory that this process may use, within its control groups.

``proc`` and ``cgroups`` are where procfs and the control groups are mounted.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from fastdata.errors import DataError

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def usable_cpus(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the number of CPUs within this process's affinity and cgroup quota; at least 1."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        allowed = os.cpu_count() or 1
    quota = cgroup_cpus(proc, cgroups)
    # Round up: four threads use a quota of 3.5 CPUs fully, three do not.
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cpus_for_this_rank(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return this rank's share of the usable CPUs, at least 1.

    A CPU that several ranks may use counts in part. Ranks that are bound to separate CPUs
    (``torchrun --numa-binding``, ``taskset``, srun) share none. Invisible ranks, as in other
    containers, count as users of the same CPUs.
    """
    ranks = local_ranks() or 1
    if ranks == 1 or not hasattr(os, "sched_getaffinity"):
        return max(1, usable_cpus(proc, cgroups) // ranks)
    own = os.sched_getaffinity(0)
    # Ranks that may use each CPU, and ranks in this control group, which share its quota.
    users, members = dict.fromkeys(own, ranks), ranks
    group = _text(proc / "self/cgroup")
    for pid in _neighbours(proc):
        try:
            theirs = os.sched_getaffinity(pid)
        except OSError:  # the process has ended
            continue
        for cpu in own - theirs:
            users[cpu] -= 1
        members -= _text(proc / f"{pid}/cgroup") != group
    # Add a little, so that three thirds are one.
    share = math.floor(sum(1 / count for count in users.values()) + 1e-6)
    quota = cgroup_cpus(proc, cgroups)
    return max(1, share if quota is None else min(share, math.ceil(quota) // members))


def local_ranks() -> int | None:
    """Return the number of ranks that torchrun or srun started here; None if unknown."""
    environ = os.environ
    ranks = environ.get("LOCAL_WORLD_SIZE")
    try:
        if ranks is None and "SLURM_STEP_TASKS_PER_NODE" in environ:
            # "2(x3),1": two tasks on each of three nodes, one on the last.
            groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ["SLURM_STEP_TASKS_PER_NODE"])
            counts = [count for count, nodes in groups for _ in range(int(nodes or 1))]
            ranks = counts[int(environ["SLURM_NODEID"])]
        return None if ranks is None else max(int(ranks), 1)
    except (KeyError, ValueError, IndexError):
        return None


#: Variables that identify a run, and the two that identify a rank on its machine.
_RUN = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")
_PLACE = ("LOCAL_RANK", "SLURM_LOCALID")


def _neighbours(proc: Path) -> list[int]:
    """Return the id of one process of each other visible rank on this machine."""
    run, place = _rank_of(proc / "self")
    seen = {place: 0}
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        theirs, other = _rank_of(folder)
        # Take a rank's first process; its children inherit the variables.
        if other and theirs == run:
            seen.setdefault(other, int(folder.name))
    return [pid for pid in seen.values() if pid]


def _rank_of(process: Path) -> tuple[list[str | None], str]:
    """Return the run that a process belongs to, and its rank; "" if it is no rank."""
    pairs = (entry.partition("=") for entry in _text(process / "environ").split("\0"))
    environ = {name: value for name, _, value in pairs}
    place = next((environ[name] for name in _PLACE if name in environ), "")
    return [environ.get(name) for name in _RUN], place


def _text(path: Path) -> str:
    """Return the text of a file in procfs; "" if it is another user's or gone, or without Linux."""
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return ""


def available_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes that this process can allocate without swapping, within cgroup limits.

    The kernel charges the pages of a tmpfs to the cgroup of the process that writes them, and
    kills beyond its limit. It also charges page cache, but evicts pages that were not used
    lately.

    Raises:
        DataError: The kernel does not report it (before Linux 3.14).
    """
    left = (_memory_left(*group) for group in _groups("memory", proc, cgroups))
    return min([_machine_memory(proc), *(size for size in left if size is not None)])


def _machine_memory(proc: Path) -> int:
    for line in (proc / "meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise DataError("/proc/meminfo: lacks MemAvailable", "Choose a folder on a disk with --to.")


def cgroup_cpus(proc: Path, cgroups: Path) -> float | None:
    """Return the smallest CPU quota of this process's cgroup and its parents; None without any."""
    quotas = (_cpu_quota(*group) for group in _groups("cpu", proc, cgroups))
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(controller: str, proc: Path, cgroups: Path) -> Iterator[tuple[Path, bool]]:
    """Yield (folder, whether it is version 2) of this process's cgroup and its parents."""
    for line in _text(proc / "self/cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) < 3:  # malformed
            continue
        _, controllers, name = fields
        if controllers and controller not in controllers.split(","):
            continue
        top = cgroups / controller if controllers else cgroups
        # In a container the name may be the host's; the container's group is then the mount's top.
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

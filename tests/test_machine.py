"""CPUs and memory that a process may use: affinity, cgroups of either version, ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastdata.errors import DataError
from fastdata.machine import available_memory, cpus_for_this_rank, usable_cpus


def tree(root: Path, files: dict[str, str]) -> Path:
    """A mount of control groups; `files` are by path in it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def process(tmp_path: Path, membership: str, **files: str) -> Path:
    return tree(tmp_path / "proc", {"self/cgroup": membership, **files})


def of_version_1(period: str, quota: str) -> dict[str, str]:
    return {"cpu/a/cpu.cfs_period_us": period, "cpu/a/cpu.cfs_quota_us": quota}


#: Lines of /proc/self/cgroup, files of control groups, and the CPUs that they leave of eight.
QUOTAS: list[tuple[str, dict[str, str], int]] = [
    ("0::/a/b\n", {"a/b/cpu.max": "350000 100000\n"}, 4),
    ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, 8),
    ("0::/a/b\n", {"a/b/cpu.max": "5000 100000\n"}, 1),
    ("0::/a/b\n", {"a/b/cpu.max": "6400000 100000\n"}, 8),
    ("0::/a/b\n", {}, 8),
    # The narrowest of the group and those above it; none beside it, or below.
    ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2),
    ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, 2),
    ("0::/a/b\n", {"a/b/cpu.max": "100000 50000", "cpu.max": "100000 100000"}, 1),
    ("0::/a/b\n", {"a/c/cpu.max": "1000 100000", "a/b/d/cpu.max": "1000 100000"}, 8),
    # Not what the kernel writes.
    *(("0::/a\n", {"a/cpu.max": text}, 8) for text in ("", "many few", "100000", "100000 0")),
    ("0::/a/b\n", {"a/b/cpu.max": "1 2 3", "a/cpu.max": "200000 100000"}, 2),
    # Names of the host's, in a container; of a namespace that is not the mount's; malformed.
    ("0::/pods/7\n", {"cpu.max": "125000 100000"}, 2),
    *((f"0::{name}\n", {"cpu.max": "100000 100000"}, 1) for name in ("/../..", "/../x", "//")),
    *((text, {"x/cpu.max": "1000 100000"}, 8) for text in ("", "nonsense\n", "0:\n", "0::/a:b\n")),
    # Version 1, and beside version 2.
    ("4:cpu,cpuacct:/a\n3:cpuset:/a\n1:name=x:/x:y\n", of_version_1("100000", "250000"), 3),
    *(("4:cpu:/a\n", of_version_1("100000", quota), 8) for quota in ("-1", "0", "")),
    ("4:cpuacct,cpu:/a\n", of_version_1("0", "100000"), 8),
    ("4:cpu:/a/b\n", of_version_1("100000", "300000"), 3),
    ("2:cpuset:/a\n", of_version_1("100000", "300000"), 8),
    ("2:cpu:/a\n0::/z\n", {**of_version_1("1", "3"), "z/cpu.max": "150000 100000"}, 2),
]


@pytest.mark.parametrize(("membership", "files", "expected"), QUOTAS)
def test_usable_cpus(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    membership: str,
    files: dict[str, str],
    expected: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    groups = tree(tmp_path / "mount", files)
    assert usable_cpus(process(tmp_path, membership), groups) == expected
    assert usable_cpus(tmp_path / "none", groups) == 8


def ranks_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masks: list[set[int]], ranks: int
) -> Path:
    """A `/proc` of ranks that may run on these CPUs; the first one asks. Each has a worker."""
    run = "TORCHELASTIC_RUN_ID=7\0MASTER_ADDR=here\0MASTER_PORT=29500\0LOCAL_RANK="
    files = {"9/environ": "HOME=/\0", "8/environ": run.replace("7", "6") + "1"}
    for number, _ in enumerate(masks):
        for pid in (10 + number, 100 + number):
            files |= {f"{pid}/environ": f"{run}{number}\0A=b\0", f"{pid}/cgroup": "0::/a\n"}
    files |= {"self/environ": files["10/environ"], "self/cgroup": "0::/a\n"}
    affinity = {0: masks[0], 8: masks[0]} | {10 + n: mask for n, mask in enumerate(masks)}
    monkeypatch.setattr(os, "sched_getaffinity", affinity.__getitem__)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    return tree(tmp_path / "proc", files)


@pytest.mark.parametrize(
    ("masks", "ranks", "expected"),
    [
        ([{*range(12)}], 1, 12),
        ([{*range(12)}] * 4, 4, 3),
        ([{*range(12)}] * 13, 13, 1),
        # Bound to CPUs of its own: taskset, srun.
        ([{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 11}], 4, 3),
        # To a NUMA node's, which two share: torchrun --numa-binding.
        ([{*range(6)}, {*range(6)}, {*range(6, 12)}, {*range(6, 12)}], 4, 3),
        ([{0, 1, 2}] * 3, 3, 1),
        ([{0, 1, 2, 3}, {2, 3, 4, 5}], 2, 3),
        # Three that cannot be seen, as in other containers: as if they used the same.
        ([{*range(12)}], 4, 3),
        ([{*range(8)}, {*range(8, 16)}], 4, 2),
    ],
)
def test_cpus_for_this_rank(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    masks: list[set[int]],
    ranks: int,
    expected: int,
) -> None:
    proc = ranks_here(tmp_path, monkeypatch, masks, ranks)
    assert cpus_for_this_rank(proc, tmp_path) == expected


def test_ranks_that_are_bound_share_a_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of their own control group; one of another has its own."""
    masks = [{*range(8)}, {*range(8, 16)}, {*range(16, 24)}]
    proc = ranks_here(tmp_path, monkeypatch, masks, 3)
    groups = tree(tmp_path / "mount", {"a/cpu.max": "1150000 100000"})
    assert cpus_for_this_rank(proc, groups) == 4
    (proc / "12/cgroup").write_text("0::/b\n")
    assert cpus_for_this_rank(proc, groups) == 6
    (proc / "11/cgroup").write_text("0::/b\n")
    assert cpus_for_this_rank(proc, groups) == 8


def test_ranks_that_nobody_tells_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_STEP_TASKS_PER_NODE", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert cpus_for_this_rank() == usable_cpus()
    for ranks in ("0", "-3", "all"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert cpus_for_this_rank() == usable_cpus()


@pytest.mark.slow
def test_processes_of_one_run_that_are_bound(tmp_path: Path) -> None:
    """Real ones: each has a CPU of its own, and so a thread, not half of one."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 4:
        cpus = [cpus[0], cpus[-1], cpus[0], cpus[-1]]
    code = "import sys; from fastdata.machine import cpus_for_this_rank as share; print(share())"
    code += "; sys.stdout.flush(); sys.stdin.read()"
    told = {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": str(os.getpid())}
    waits = [sys.executable, "-c", "import sys; print(); sys.stdout.flush(); sys.stdin.read()"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

    def start(rank: int, command: list[str]) -> subprocess.Popen[str]:
        mine = ",".join(map(str, cpus[rank::2]))
        environ = os.environ | told | {"LOCAL_RANK": str(rank)}
        return subprocess.Popen(["taskset", "-c", mine, *command], env=environ, **pipes)

    with start(1, waits) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with start(0, [sys.executable, "-c", code]) as one:
            assert one.stdout is not None
            found = int(one.stdout.readline())
            one.communicate()
        other.communicate()
    assert found == len(set(cpus[0::2]))


@pytest.mark.parametrize(
    ("tasks", "node", "expected"),
    [("2(x3),1", "0", 6), ("2(x3),1", "3", 12), ("4", "0", 3), ("4", "9", 12), ("", "0", 12)],
)
def test_tasks_of_slurm_share_the_cpus(
    monkeypatch: pytest.MonkeyPatch, tasks: str, node: str, expected: int
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", tasks)
    monkeypatch.setenv("SLURM_NODEID", node)
    assert cpus_for_this_rank(cgroups=Path("/none")) == expected


# Of control groups: the lines of /proc/self/cgroup, files and what they hold, bytes left.
GROUPS: dict[str, tuple[str, dict[str, str], list[int]]] = {
    "none": ("", {}, []),
    "version 2": (
        "0::/a/b\n",
        {
            "a/memory.max": "900",
            "a/memory.current": "300",
            "a/memory.stat": "anon 100\ninactive_file 50\nactive_file 20",
            "a/b/memory.max": "500",
            "a/b/memory.current": "200",
            "a/b/memory.stat": "anon 100\ninactive_file 0",
            "b/memory.max": "1",  # another's
        },
        [300, 650],
    ),
    "version 2 in a container": (
        "0::/\n",
        {"memory.max": "500", "memory.current": "600", "memory.stat": "inactive_file 10"},
        [0],
    ),
    "version 1": (
        "3:cpuset:/\n4:memory:/docker/a:b\n0::/\n",
        {
            "memory/docker/a:b/memory.limit_in_bytes": "700",
            "memory/docker/a:b/memory.usage_in_bytes": "300",
            "memory/docker/a:b/memory.stat": "inactive_file 1\ntotal_inactive_file 100",
        },
        [500],
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_memory_that_a_container_may_use(tmp_path: Path, name: str) -> None:
    own, files, left = GROUPS[name]
    groups = tree(tmp_path / "groups", files)
    for free in (1000, 0):  # kB, of the machine
        meminfo = f"MemTotal: 99 kB\nMemAvailable: {free} kB\n"
        proc = process(tmp_path, own, meminfo=meminfo)
        assert available_memory(proc, groups) == min([free * 1024, *left])


def test_memory_of_this_machine(tmp_path: Path) -> None:
    assert available_memory() > 0
    assert available_memory(cgroups=tmp_path) >= available_memory() // 2  # of the machine alone
    with pytest.raises(DataError, match="lacks MemAvailable"):
        available_memory(process(tmp_path, "", meminfo="MemTotal: 99 kB\n"), tmp_path)

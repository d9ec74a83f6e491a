"""CPUs and memory that a process may use: affinity, cgroups of either version, ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastdata.errors import DataError, UsageError
from fastdata.machine import (
    available_memory,
    cgroup_cpus,
    cpus_for_this_rank,
    slurm_variables,
    usable_cpus,
)


def tree(root: Path, files: dict[str, str]) -> Path:
    """A mount of control groups; `files` are by path in it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def process(tmp_path: Path, membership: str, **files: str) -> Path:
    """A `/proc` of a process of some control groups."""
    return tree(tmp_path / "proc", {"self/cgroup": membership, **files})


def quota(tmp_path: Path, membership: str, files: dict[str, str]) -> float | None:
    return cgroup_cpus(process(tmp_path, membership), tree(tmp_path / "mount", files))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a/b/cpu.max": "350000 100000\n"}, 3.5),
        ({"a/b/cpu.max": "max 100000\n"}, None),
        ({"a/b/cpu.max": "5000 100000\n"}, 0.05),
        ({}, None),
        # The narrowest of the group and those above it.
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2.0),
        ({"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, 2.0),
        ({"a/b/cpu.max": "100000 100000", "a/cpu.max": "200000 100000"}, 1.0),
        ({"a/b/cpu.max": "100000 50000", "cpu.max": "150000 100000"}, 1.5),
        # A group beside it, or below, is nothing to it.
        ({"a/c/cpu.max": "1000 100000", "a/b/d/cpu.max": "1000 100000"}, None),
        # Not what the kernel writes: as if it were not there.
        ({"a/b/cpu.max": ""}, None),
        ({"a/b/cpu.max": "many few"}, None),
        ({"a/b/cpu.max": "100000"}, None),
        ({"a/b/cpu.max": "100000 0"}, None),
        ({"a/b/cpu.max": "1 2 3"}, None),
        ({"a/b/cpu.max": "", "a/cpu.max": "200000 100000"}, 2.0),
    ],
)
def test_version_2(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    assert quota(tmp_path, "0::/a/b\n", files) == expected


@pytest.mark.parametrize(
    ("period", "quota_us", "expected"),
    [
        ("100000", "250000", 2.5),
        ("100000", "-1", None),
        ("100000", "0", None),
        ("0", "100000", None),
        ("x", "100000", None),
        ("100000", "", None),
    ],
)
@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_version_1(
    tmp_path: Path, controllers: str, period: str, quota_us: str, expected: float | None
) -> None:
    files = {"cpu/job/cpu.cfs_period_us": period, "cpu/job/cpu.cfs_quota_us": quota_us}
    lines = f"12:memory:/elsewhere\n4:{controllers}:/job\n3:cpuset:/job\n1:name=systemd:/x:y\n"
    assert quota(tmp_path, lines, files) == expected


def test_version_1_nested_and_beside_version_2(tmp_path: Path) -> None:
    files = {
        "cpu/a/cpu.cfs_period_us": "100000",
        "cpu/a/cpu.cfs_quota_us": "300000",
        "cpu/a/b/cpu.cfs_period_us": "100000",
        "cpu/a/b/cpu.cfs_quota_us": "-1",
        "z/cpu.max": "150000 100000",
    }
    assert quota(tmp_path, "2:cpu:/a/b\n0::/\n", files) == 3.0
    assert quota(tmp_path, "2:cpu:/a/b\n0::/z\n", files) == 1.5
    assert quota(tmp_path, "2:cpuset:/a/b\n", files) is None


def test_a_name_of_the_hosts_in_a_container(tmp_path: Path) -> None:
    """There is no such folder in the mount, whose root is the container's own group."""
    name = "0::/kubepods.slice/pod7/container9\n"
    assert quota(tmp_path, name, {}) is None
    assert quota(tmp_path, name, {"cpu.max": "125000 100000"}) == 1.25


@pytest.mark.parametrize("name", ["/../..", "/../other", "//"])
def test_a_group_outside_the_mount(tmp_path: Path, name: str) -> None:
    """Of a namespace that is not the mount's: only the mount itself counts, and it ends."""
    assert quota(tmp_path, f"0::{name}\n", {"cpu.max": "100000 100000"}) == 1.0


@pytest.mark.parametrize("text", ["", "\n", "nonsense\n", "0:\n", "::\n", "0::/a:b\n"])
def test_a_malformed_membership(tmp_path: Path, text: str) -> None:
    assert quota(tmp_path, text, {"elsewhere/cpu.max": "1000 100000"}) is None


def test_no_membership(tmp_path: Path) -> None:
    assert cgroup_cpus(tmp_path / "none", tmp_path) is None
    proc = process(tmp_path, "")
    (proc / "self/cgroup").write_bytes(b"0::/\xff\xfe\n")
    assert cgroup_cpus(proc, tree(tmp_path, {"cpu.max": "100000 100000"})) == 1.0


@pytest.mark.parametrize(
    ("quota", "allowed", "expected"),
    [
        ("max 100000", 8, 8),
        ("350000 100000", 8, 4),
        ("200000 100000", 8, 2),
        ("5000 100000", 8, 1),
        ("6400000 100000", 8, 8),
        ("100010 100000", 8, 2),
    ],
)
def test_usable_cpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, allowed: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)))
    groups = tree(tmp_path / "mount", {"a/cpu.max": quota})
    assert usable_cpus(process(tmp_path, "0::/a\n"), groups) == expected


def test_usable_cpus_heed_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= usable_cpus() <= len(before)


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
    groups = tree(tmp_path / "mount", {"a/cpu.max": "1200000 100000"})
    assert cpus_for_this_rank(proc, groups) == 4
    (proc / "12/cgroup").write_text("0::/b\n")
    assert cpus_for_this_rank(proc, groups) == 6
    (proc / "11/cgroup").write_text("0::/b\n")
    assert cpus_for_this_rank(proc, groups) == 8


@pytest.mark.parametrize("ranks", [None, "0", "-3", "all"])
def test_ranks_that_nobody_tells_of(monkeypatch: pytest.MonkeyPatch, ranks: str | None) -> None:
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert cpus_for_this_rank() == usable_cpus()


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


STEP = {
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "gpu[003-005,9],login",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
}


def test_what_slurm_says_is_what_torchrun_would_have() -> None:
    found = slurm_variables(STEP)
    assert found == {
        "RANK": "6",
        "WORLD_SIZE": "7",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "gpu003",
        "MASTER_PORT": "35298",
    }
    assert slurm_variables(STEP | {"SLURM_NODEID": "1"})["LOCAL_WORLD_SIZE"] == "2"
    other = slurm_variables(STEP | {"SLURM_STEP_ID": "3", "MASTER_ADDR": "login"})
    assert other["MASTER_PORT"] != found["MASTER_PORT"] and other["MASTER_ADDR"] == "login"
    # Torchrun within a task; a step of one task; none.
    assert slurm_variables(STEP | {"RANK": "0"}) == {}
    assert slurm_variables(STEP | {"SLURM_STEP_NUM_TASKS": "1"}) == slurm_variables({}) == {}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("one", "one"),
        ("a1,b2", "a1"),
        ("n[1,7]", "n1"),
        ("n[08-11]", "n08"),
        ("r[1-2]c[3-4]-ib,x", "r1c3-ib"),
        ("a,n[1-2]", "a"),
    ],
)
def test_the_first_node_is_where_ranks_meet(nodes: str, first: str) -> None:
    assert slurm_variables(STEP | {"SLURM_STEP_NODELIST": nodes})["MASTER_ADDR"] == first


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_STEP_NODELIST", None),
        ("SLURM_PROCID", None),
        ("SLURM_STEP_ID", "batch"),
        ("SLURM_NODEID", "9"),
    ],
)
def test_slurm_that_does_not_say_enough(name: str, value: str | None) -> None:
    environ = {key: text for key, text in STEP.items() if key != name}
    with pytest.raises(UsageError, match=r"as one of 7.*\nStart one process per node"):
        slurm_variables(environ if value is None else environ | {name: value})


def test_tasks_of_srun_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    for name, text in (STEP | {"SLURM_NODEID": "0"}).items():
        monkeypatch.setenv(name, text)
    assert cpus_for_this_rank(cgroups=Path("/none")) == 6


# Of control groups: the lines of /proc/self/cgroup, files and what they hold, bytes left.
GROUPS: dict[str, tuple[str, dict[str, str], list[int]]] = {
    "none": ("", {}, []),
    "no limit": ("0::/a\n", {"a/memory.max": "max", "a/memory.current": "5"}, []),
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
    "version 2 beside it": (
        "0::/../other\n",
        {"memory.max": "500", "memory.current": "1", "memory.stat": ""},
        [499],
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
    "version 1 in a container": (
        "4:memory:/docker/outer\n",
        {
            "memory/memory.limit_in_bytes": "700",
            "memory/memory.usage_in_bytes": "300",
            "memory/memory.stat": "total_inactive_file 100",
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

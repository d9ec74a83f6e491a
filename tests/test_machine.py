"""How many CPUs a process may use: affinity, cgroups of either version, ranks of a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastdata import machine
from fastdata.machine import cgroup_cpus, cpus_for_this_rank, usable_cpus


def tree(root: Path, files: dict[str, str]) -> Path:
    """A mount of control groups; `files` are by path in it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def quota(tmp_path: Path, membership: str, files: dict[str, str]) -> float | None:
    member = tmp_path / "cgroup"
    member.write_text(membership)
    return cgroup_cpus(member, tree(tmp_path / "mount", files))


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
    (tmp_path / "binary").write_bytes(b"0::/\xff\xfe\n")
    assert cgroup_cpus(tmp_path / "binary", tree(tmp_path, {"cpu.max": "100000 100000"})) == 1.0


@pytest.mark.parametrize(
    ("quota", "allowed", "expected"),
    [(None, 8, 8), (3.5, 8, 4), (2.0, 8, 2), (0.05, 8, 1), (64.0, 8, 8), (1.0001, 8, 2)],
)
def test_usable_cpus(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, allowed: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)))
    monkeypatch.setattr(machine, "cgroup_cpus", lambda membership, mount: quota)
    assert usable_cpus() == expected


def test_usable_cpus_heed_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= usable_cpus() <= len(before)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [(None, 12), ("1", 12), ("4", 3), ("5", 2), ("13", 1), ("0", 12), ("-3", 12), ("all", 12)],
)
def test_cpus_for_this_rank(
    monkeypatch: pytest.MonkeyPatch, ranks: str | None, expected: int
) -> None:
    monkeypatch.setattr(machine, "usable_cpus", lambda: 12)
    if ranks is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert cpus_for_this_rank() == expected

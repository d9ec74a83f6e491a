"""Training steps that loaders feed, and the check of a machine with a GPU: small, on the CPU."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hangs import HANG
from loader_data import tree
from test_bench_workloads import _WORKLOADS, run

pytest.importorskip("torch")


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("FASTDATA_DEVICE", "cpu")
    monkeypatch.syspath_prepend(_WORKLOADS)
    import gpu_check

    return gpu_check


def check(module: Any, out: Path, *more: str) -> Result:
    small = ["--batch=4", "--seconds=0.01", "--images=8"]
    return CliRunner().invoke(module.main, ["--out", str(out), *small, *more])


@pytest.mark.slow
def test_each_library_feeds_a_step(tmp_path: Path) -> None:
    left_out = {"torchvision's CUDA decoder"}  # it needs an NVIDIA GPU
    left_out |= (
        set() if find_spec("nvidia") and find_spec("nvidia.nvimgcodec") else {"nvImageCodec"}
    )
    names = ["the step alone", "fastdata", "DALI", "nvImageCodec", "torch"]
    chosen = [f"--contender={name}" for name in names if name not in left_out]
    result = run("training", tree(), tmp_path, "--case=ResNet-18", *chosen)
    for contender in result["contenders"]:
        assert not contender["error"], contender["error"]
        (figures,) = contender["runs"]
        assert figures["images"] % 4 == 0 < figures["images"]
        assert 0 <= figures["waited_s"] <= figures["seconds"]


@pytest.mark.slow
def test_what_was_found_is_kept_when_a_step_fails(
    gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI (make setup)")
    run = gpu_check.run  # a busy machine takes longer than a step's limit
    monkeypatch.setattr(gpu_check, "run", lambda name, _, *rest: run(name, HANG, *rest))
    out, tests = tmp_path / "out", tmp_path / "tests"
    tests.mkdir()
    found = check(gpu_check, out, "--tests", str(tests))
    summary = (out / "summary.txt").read_text()
    assert found.exit_code == 1
    for line in ("photographs: done", "tests: failed", "decoding: done", "training: done"):
        assert line in summary, found.output
    assert (out / "loaders.json").exists() and (out / "training.json").exists()
    assert summary in found.output


def test_a_step_that_takes_too_long_is_ended(gpu_check: Any, tmp_path: Path) -> None:
    """Its workers end, too: they would slow the next step down."""
    held = tmp_path / "held"
    code = f"""
import fcntl, os, time
file = open({str(held)!r}, "w")
fcntl.flock(file, fcntl.LOCK_EX)
os.fork()
time.sleep(100000)
"""
    assert gpu_check.run("endless", 2, ["-c", code], tmp_path).startswith("not done")
    # It is free once all processes have ended.
    subprocess.run(["flock", held, "true"], timeout=HANG, check=True)


def test_earlier_results_stay(gpu_check: Any, tmp_path: Path) -> None:
    (tmp_path / "summary.txt").write_text("earlier")
    assert check(gpu_check, tmp_path).exit_code == 2
    assert (tmp_path / "summary.txt").read_text() == "earlier"

"""The check of a machine with a GPU: a small run on the CPU, and what is kept when a step fails."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hangs import HANG
from loader_data import SAMPLES, dataset, tree

pytest.importorskip("torch")
pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI (make setup)")

from fastdata.benchmarks import gpu_check, gpu_decoding


def check(out: Path, *more: str) -> Result:
    small = ["--device=cpu", "--batch=4", "--seconds=0.01", "--images=8"]
    return CliRunner().invoke(gpu_check.main, ["--out", str(out), *small, *more])


def test_what_was_found_is_kept_when_a_step_fails(tmp_path: Path) -> None:
    out, tests = tmp_path / "out", tmp_path / "tests"
    tests.mkdir()
    found = check(out, "--tests", str(tests), "--model=alexnet")
    assert found.exit_code == 1
    assert "alexnet" in (out / "training.log").read_text()
    result = json.loads((out / "decoding.json").read_text())
    assert 0 < result["pixels"]["defaults"]["mean"] < 1
    assert "DALI (CPU)" in result["pixels"]["defaults"]["decoders"]["jpeg"]
    names = [f"{kind}, {count} threads" for kind in ("by hand", "DALILoader") for count in (2, 8)]
    assert set(names) <= set(result["windows"])
    for windows in result["windows"].values():
        assert len(windows) == 2 and all(images % 4 == 0 < images for images, *_ in windows)
    summary = (out / "summary.txt").read_text()
    for line in ("photographs: done", "tests: failed", "decoding: done", "training: failed"):
        assert line in summary
    # A CPU decodes no 15,000 images a second.
    assert "SHORT: DALILoader, 2 threads, images/s" in summary
    assert summary in found.output


def test_a_batch_larger_than_the_dataset_is_refused() -> None:
    arguments = [str(dataset()), str(tree()), "--device=cpu", f"--batch={SAMPLES + 1}"]
    assert CliRunner().invoke(gpu_decoding.main, arguments).exit_code == 2


@pytest.mark.parametrize(("rate", "verdict"), [(980, "good"), (970, "SHORT")])
def test_a_summary_judges_how_a_step_was_fed(tmp_path: Path, rate: int, verdict: str) -> None:
    turns = {"step": {"0": [[1000, 1, 0, 0.1]] * 2}, "DALI": {"2": [[rate, 1, 0, 0.1]] * 2}}
    workload = {"title": "ResNet-50", "traces": {}, "missing": {}, "turns": turns}
    (tmp_path / "training.json").write_text(json.dumps({"workloads": {"resnet50": workload}}))
    summary = gpu_check.summary({}, tmp_path)
    assert any(line.startswith(verdict) and f"{rate / 1000}" in line for line in summary)


def test_a_step_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """Its workers end, too: they would slow the next step down."""
    held = tmp_path / "held"
    code = f"""
import fcntl, os, time
file = open({str(held)!r}, "w")
fcntl.flock(file, fcntl.LOCK_EX)
os.fork()
time.sleep(100000)
"""
    step = gpu_check.Step("endless", 2, ["-c", code])
    assert gpu_check.run(step, tmp_path).startswith("not done")
    # It is free once all processes have ended.
    subprocess.run(["flock", held, "true"], timeout=HANG, check=True)


def test_a_tree_without_photographs_is_refused(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    found = check(tmp_path / "out", "--tree", str(tree))
    assert found.exit_code == 1 and "no images" in found.output


def test_earlier_results_stay(tmp_path: Path) -> None:
    (tmp_path / "summary.txt").write_text("earlier")
    assert check(tmp_path).exit_code == 2
    assert (tmp_path / "summary.txt").read_text() == "earlier"

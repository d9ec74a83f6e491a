"""The check of a machine with a GPU: a small run on the CPU, and what is kept when a step fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from loader_data import SAMPLES, dataset, tree

pytest.importorskip("torch")
pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI (make setup)")

from fastdata.benchmarks import gpu_check, gpu_decoding


def check(out: Path, *more: str) -> Result:
    small = ["--device=cpu", "--batch=4", "--seconds=0.01", "--images=8"]
    return CliRunner().invoke(gpu_check.main, ["--out", str(out), *small, *more])


def test_what_was_found_is_kept_when_a_step_fails(made_tree: Path, tmp_path: Path) -> None:
    out, tests, tree = tmp_path / "out", tmp_path / "tests", made_tree / "train"
    tests.mkdir()
    found = check(out, "--tree", str(tree), "--tests", str(tests), "--model=alexnet")
    assert found.exit_code == 1
    assert "alexnet" in (out / "training.log").read_text()
    result = json.loads((out / "decoding.json").read_text())
    assert 0 < result["pixels"]["defaults"]["mean"] < 1
    assert set(result["pixels"]["defaults"]["decoders"]) == {"jpeg"}
    names = [f"{kind}, {count} threads" for kind in ("by hand", "DALILoader") for count in (2, 8)]
    assert set(names) <= set(result["windows"])
    for windows in result["windows"].values():
        assert len(windows) == 2 and all(images % 4 == 0 < images for images, *_ in windows)
    summary = (out / "summary.txt").read_text()
    for line in ("tests: failed (exit status 4)", "decoding: done", "training: failed"):
        assert line in summary
    # A CPU decodes no 15,000 images a second.
    assert "SHORT: DALILoader, 2 threads, images/s" in summary
    assert summary in found.output


def test_a_batch_larger_than_the_dataset_is_refused() -> None:
    arguments = [str(dataset()), str(tree()), "--device=cpu", f"--batch={SAMPLES + 1}"]
    assert CliRunner().invoke(gpu_decoding.main, arguments).exit_code == 2


def test_a_summary_judges_how_a_step_was_fed(tmp_path: Path) -> None:
    """In the published result, DALILoader did not use the engine."""
    results = Path(__file__).parents[1] / "docs/results/training.json"
    shutil.copy(results, tmp_path)
    summary = gpu_check.summary({"training": "done in 90 s"}, tmp_path)
    share = next(line for line in summary if "fed by DALILoader" in line)
    assert share.startswith("SHORT") and "0.20" in share
    assert len(summary) <= 40


def test_a_step_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    step = gpu_check.Step("endless", 0.5, ["-c", "import time\nwhile True: time.sleep(1)"])
    assert gpu_check.run(step, tmp_path).startswith("not done")


def test_earlier_results_stay(tmp_path: Path) -> None:
    (tmp_path / "summary.txt").write_text("earlier")
    assert check(tmp_path).exit_code == 2
    assert (tmp_path / "summary.txt").read_text() == "earlier"

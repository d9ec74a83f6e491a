"""The benchmark of a training step that loaders feed: a small run, and what a trace says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from containers import pack_tree

torch = pytest.importorskip("torch")

from fastdata.benchmarks import pages, training  # noqa: E402


@pytest.fixture(scope="module")
def packed(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench") / "lmdb"
    pack_tree(made_tree / "train", out, "lmdb", unit_size=None, seek_points=128)
    return out


def test_a_small_run(packed: Path, made_tree: Path, tmp_path: Path) -> None:
    options = "--device=cpu --model=resnet18 --batch=4 --steps=1 --rounds=1 --threads=1"
    told = [
        "--workers=1",
        "--tree",
        str(made_tree / "train"),
        "--out",
        str(tmp_path / "training.json"),
    ]
    found = CliRunner().invoke(training.main, [str(packed), *options.split(), *told])
    assert found.exit_code == 0, found.output
    result = json.loads((tmp_path / "training.json").read_text())
    assert result["trace"] == {}  # nothing ran on a GPU
    turns = {(name, count) for name, of in result["turns"].items() for count in of}
    fed = {("fastdata", "1"), ("torch", "1")}
    assert turns == {("step", "0")} | fed | {(f"{name} alone", count) for name, count in fed}
    for of in result["turns"].values():
        for measured in of.values():
            assert len(measured) == 1 and all(rate > 0 for rate, _ in measured)
    step, loaders = training.figures(result)
    assert [row[:2] for row in step.rows] == [["the step alone", ""], *map(list, sorted(fed))]
    assert len(loaders.rows) == 2


def test_wrong_pixels_are_not_timed(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = training.Training(packed, None, torch.device("cpu"), "resnet18", 4)
    measured.verify()
    # Of a loader whose device normalises in another way:
    from fastdata.device import transfer

    def darker(source: Any, constants: Any, out: Any) -> None:
        out.copy_(source / 300)

    monkeypatch.setattr(transfer, "normalise", darker)
    with pytest.raises(SystemExit, match="nothing was timed"):
        measured.verify()


def test_too_large_a_batch_and_odd_numbers_are_refused(packed: Path) -> None:
    for options, said in ((["--batch=65"], "lower --batch"), (["--threads=1;2"], "1,2,4")):
        found = CliRunner().invoke(training.main, [str(packed), "--device=cpu", *options])
        assert found.exit_code == 2 and said in found.output


def test_what_a_trace_says() -> None:
    """Two kernels of 30 us with a gap of 40 between; of a copy's 20 us, 5 are beside them."""

    def event(cat: str, ts: float, dur: float, stream: int, size: int = 0) -> dict[str, Any]:
        return {"cat": cat, "ts": ts, "dur": dur, "args": {"stream": stream, "bytes": size}}

    kernels = [event("kernel", 0, 30, 7), event("kernel", 70, 30, 7), event("kernel", 60, 9, 20)]
    copies = [event("gpu_memcpy", 25, 20, 20, 2_000_000), event("gpu_memcpy", 0, 1, 20, 2048)]
    assert training.of_trace([*kernels, *copies, {"cat": "cpu_op"}]) == {
        "busy": pytest.approx(0.6),
        "copy_gb_s": pytest.approx(100),
        "copy_share": pytest.approx(0.2),
        "beside": pytest.approx(0.25),
    }
    assert training.of_trace(kernels) == {}


def test_the_committed_page_is_of_the_committed_results() -> None:
    docs = Path(__file__).resolve().parents[1] / "docs"
    page = CliRunner().invoke(pages.main, ["training", str(docs / "results")]).output
    assert page == (docs / "feeding.md").read_text()

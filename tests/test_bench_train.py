"""The training ladder changes one thing a rung, measures what it says, and makes nothing up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import training_data
from click.testing import CliRunner
from fastdata.benchmarks import train, train_figures, train_rung, train_sources
from fastdata.benchmarks.train_published import PUBLISHED
from fastdata.benchmarks.train_rungs import RUNGS, Machine, Setting, plan

from fastdata.errors import UsageError

CPU = Machine(gpus=0, workers=2, batch=16)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("ladder")
    return training_data.packed(root) | {"tree": root / "tree" / "train"}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    torch.set_num_threads(before)


def base(data: dict[str, Path]) -> Setting:
    return Setting(
        tree=str(data["tree"]), lmdb=str(data["train"]), batch=8, width=8, size=32, steps=2,
        warmup=1, device="cpu",
    )  # fmt: skip


class TestPlan:
    @pytest.mark.parametrize("gpus", [0, 1, 4])
    def test_each_rung_is_one_change_to_the_one_below(self, gpus: int) -> None:
        machine = Machine(gpus, workers=7, batch=64, launcher="two nodes")
        planned = [one for one in plan(Setting(batch=32), machine) if not one.needs]
        assert len(planned) == (16 if gpus else 14)
        before = planned[0].setting.to_dict()
        assert before == Setting(batch=32).to_dict()
        for one in planned[1:]:
            now = one.setting.to_dict()
            changed = {name: now[name] for name in now if now[name] != before[name]}
            wanted = one.rung.changes if one.rung.name != "two" else {"shm": False}
            assert changed == {
                name: {"workers": 7, "batch": 64}[name] if value is None else value
                for name, value in wanted.items()
            }
            before = now

    def test_what_cannot_be_done_says_what_it_needs_and_changes_nothing(self) -> None:
        planned = {one.rung.name: one for one in plan(Setting(), replace(CPU, no_shm="no room"))}
        assert [name for name, one in planned.items() if one.needs] == ["pinned", "shm", "autotune"]
        assert planned["pinned"].needs == planned["autotune"].needs == "needs a GPU"
        last = planned["two"].setting
        assert not last.pin and not last.shm and not last.autotune and last.compile

    def test_processes(self) -> None:
        def launchers(machine: Machine) -> list[tuple[str, str]]:
            return [(one.launcher[-1:], one.needs[:7]) for one in plan(Setting(), machine)[-2:]]

        assert launchers(CPU) == [("1", ""), ("2", "")]
        assert launchers(Machine(1, 1, 1)) == [("1", ""), ("", "needs a")]
        assert launchers(Machine(4, 1, 1)) == [("4", ""), ("", "needs a")]
        assert launchers(Machine(4, 1, 1, launcher="srun x")) == [("4", ""), ("x", "")]

    def test_left_out_rungs_take_their_changes_along(self) -> None:
        planned = plan(Setting(), CPU, without=["amp", "lmdb"])
        assert {one.rung.name for one in planned}.isdisjoint({"amp", "lmdb"})
        assert not any(one.setting.amp for one in planned)
        with pytest.raises(UsageError, match="no rung is called 'speed'"):
            plan(Setting(), CPU, without=["speed"])


@pytest.mark.parametrize("name", [r.name for r in RUNGS if r.name not in ("ddp", "two", "compile")])
def test_a_rung_trains(data: dict[str, Path], name: str) -> None:
    """All that a CPU can do, without a process of its own; its switch is seen to act."""
    planned = {one.rung.name: one for one in plan(base(data), CPU)}[name]
    if planned.needs:
        assert planned.needs == "needs a GPU"
        return
    setting = replace(planned.setting, workers=min(planned.setting.workers, 1))
    found = train_rung.train(setting)
    assert found["images"] == 2 * setting.batch and found["seconds"] > 0
    assert 0 < found["wait_share"] < 1 and 0 < found["loss"] < 20
    assert found["gpu_use"] is None and found["processes"] == 1
    assert set(found["phases_s"]) >= {"wait", "forward", "loss", "backward", "optimiser"}
    half = torch.bfloat16
    batches = train_sources.batches(setting, torch.device("cpu"), half, 0, 1)
    for _ in range(25):  # beyond the end of an epoch
        images, labels = next(batches)
        assert images.shape == (setting.batch, 3, 32, 32) and labels.max() < 4
        assert images.dtype == (half if setting.amp else torch.float32)
        layout = torch.channels_last if setting.channels_last else torch.contiguous_format
        assert images.is_contiguous(memory_format=layout)
    assert images.float().mean().abs() < 1.5  # normalised
    assert images.float().std() < 3


def test_the_sources_give_the_same_kind_of_pixels(data: dict[str, Path]) -> None:
    """Means and deviations of the same classes, whichever way the images came."""
    device, kinds = torch.device("cpu"), []
    for source, uint8 in (("tree", False), ("tree", True), ("lmdb", True), ("fastdata", True)):
        setting = replace(base(data), source=source, uint8=uint8, batch=160)
        images, labels = next(train_sources.batches(setting, device, torch.bfloat16, 0, 1))
        kinds.append(torch.stack([images[labels == label].mean((0, 2, 3)) for label in range(4)]))
    for kind in kinds[1:]:
        torch.testing.assert_close(kind, kinds[0], atol=0.15, rtol=0)


@pytest.mark.parametrize("source", ["tree", "lmdb", "fastdata"])
def test_every_epoch_of_a_rank_has_another_order(data: dict[str, Path], source: str) -> None:
    setting = replace(base(data), source=source, batch=32, uint8=True)
    found = []
    for rank in (0, 1):
        batches = train_sources.batches(setting, torch.device("cpu"), torch.bfloat16, rank, 2)
        epochs = [torch.cat([next(batches)[1] for _ in range(5)]) for _ in range(2)]
        assert not torch.equal(*epochs)
        found.append(epochs)
    for one, other in zip(*found, strict=True):
        assert torch.cat((one, other)).bincount().tolist() == [40] * 4  # ranks share an epoch


def test_too_few_images_are_told(data: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="too few images"):
        train_rung.train(replace(base(data), batch=161))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(train.main, arguments)


def test_the_ladder_from_start_to_plot(data: dict[str, Path], tmp_path: Path) -> None:
    out, plot = tmp_path / "ladder.json", tmp_path / "ladder.svg"
    small = ["--steps", "2", "--warmup", "1", "--batch-size", "8", "--large-batch", "16"]
    small += ["--width", "8", "--image-size", "32", "--workers", "1", "--device", "cpu"]
    done = run(
        "--tree", str(data["tree"]), "--work", str(tmp_path / "work"), *small, "--without",
        "compile,amp", "--rungs", "baseline,pinned,fastdata,two", "--json", str(out),
        "--plot", str(plot),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    result = train_figures.load(out)
    runs = {rung["name"]: rung for rung in result["rungs"]}
    assert list(runs) == ["baseline", "pinned", "fastdata", "two"]
    assert runs["pinned"]["needs"] == "needs a GPU" and not runs["pinned"]["runs"]
    assert [runs[name]["runs"][0]["processes"] for name in ("baseline", "fastdata", "two")] == [
        1, 1, 2,
    ]  # fmt: skip
    for name, batch in (("baseline", 8), ("fastdata", 16), ("two", 16)):
        assert runs[name]["runs"][0]["images"] == 2 * batch
    assert runs["fastdata"]["setting"]["shm"] and not list((tmp_path / "shm").iterdir())
    assert plot.stat().st_size > 1000
    shown = run("--show", str(out)).output
    assert "scaled from 2" in " ".join(shown.split()) and "336.5" in shown and "pinned" in shown
    assert train_figures.figures(result).rows[1][-1] == "needs a GPU"


def test_a_failing_rung_is_told_and_does_not_stop_the_others(
    data: dict[str, Path], tmp_path: Path
) -> None:
    options = train.Options(
        batch_size=8, large_batch=15, width=8, image_size=32, steps=1, warmup=0, device="cpu",
        launcher="{python} -c 'import sys; sys.exit(\"out of luck: \" + sys.argv[-1])'",
    )  # fmt: skip
    only = frozenset({"two", "baseline"})
    result = train.climb(data["tree"], tmp_path / "w", options, only, frozenset({"compile"}))
    good, bad = result["rungs"]
    assert good["runs"] and not good["error"]
    # Another node finds its setting where the images are.
    assert f"out of luck: {tmp_path / 'w'}/" in bad["error"] and not bad["runs"]
    assert train_figures.failures(result) == [f"two: {bad['error']}"]
    assert train_figures.figures(result).rows[-1][-1] == "failed"
    hung = train.climb(
        data["tree"], tmp_path / "w", replace(options, timeout=0.1), frozenset({"baseline"})
    )
    assert hung["rungs"][0]["error"] == "not done after 0 s"


def test_figures_are_scaled_to_300_and_medians(tmp_path: Path) -> None:
    def one(seconds: float) -> dict[str, Any]:
        return {
            "seconds": seconds, "images": 100, "steps": 10, "wait_share": 0.5, "gpu_use": 40.0,
            "batch": 10,
        }  # fmt: skip

    rungs = [
        {"name": name, "change": "", "runs": runs, "needs": "", "error": ""}
        for name, runs in (("a", [one(2), one(4), one(9)]), ("b", [one(1)]))
    ]
    options = {"steps": 10, "model": "resnet18", "width": 64, "image_size": 224}
    result = {"benchmark": train_figures.NAME, "on": "this", "rungs": rungs, "options": options}
    table = train_figures.figures(result)
    assert "300 batches, scaled from 10" in table.title
    assert table.rows[0][1:] == ["10", "120.0", "25.0", "", "50%", "40%"]
    assert table.rows[1][1:] == ["10", "30.0", "100", "x4.00", "50%", "40%"]
    train_figures.plot(result, tmp_path / "a.png")
    (tmp_path / "wrong.json").write_text(json.dumps({"benchmark": "loader"}))
    with pytest.raises(UsageError, match="no results of the training ladder"):
        train_figures.load(tmp_path / "wrong.json")


def test_published_ladders_are_as_published() -> None:
    first, second, third = PUBLISHED
    assert [step.seconds for step in first.steps] == [
        336.5, 88.0, 70.1, 161.0, 81.7, 60.2, 41.6, 38.8, 22.1,
    ]  # fmt: skip
    assert [step.rate for step in second.steps] == [400, 1670, 2477, 3268]
    assert [step.rate for step in third.steps] == [680, 1800, 2200, 2530]
    rows = train_figures.published()[0].rows
    assert rows[0] == ["one GPU, JPEG folders", "256", "336.5", "228"]


def test_says_what_is_missing(tmp_path: Path) -> None:
    assert isinstance(run().exception, UsageError)
    missing = run("--tree", str(tmp_path / "none"), "--device", "cpu").exception
    assert "none" in str(missing)
    if not torch.cuda.is_available():
        wanted = run("--tree", str(tmp_path), "--device", "cuda").exception
        assert "there is no GPU" in str(wanted)

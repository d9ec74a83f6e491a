"""The training ladder changes one thing a rung, measures what it says, and makes nothing up."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import training_data
from click.testing import CliRunner
from fastdata.benchmarks import train, train_rung
from fastdata.benchmarks.train import RUNGS, plan
from fastdata.benchmarks.train_rung import Setting

from fastdata.errors import UsageError

CPU = torch.device("cpu")


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
        tree=str(data["tree"]), packed=str(data["train"]), batch=8, width=8, image_size=32,
        steps=2, warmup=1, device="cpu",
    )  # fmt: skip


class TestPlan:
    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_each_rung_is_one_change_to_the_one_below(self, device: str) -> None:
        lowest = Setting(batch=32, device=device)
        planned = [
            (rung, asdict(setting)) for rung, setting, needs in plan(lowest, 7, 64) if not needs
        ]
        assert len(planned) == (13 if device == "cuda" else 11)
        before = planned[0][1]
        assert before == asdict(lowest)
        for rung, now in planned[1:]:
            changed = {name: now[name] for name in now if now[name] != before[name]}
            assert changed == {
                name: {"workers": 7, "batch": 64}[name] if value is None else value
                for name, value in rung.changes.items()
            }
            before = now

    def test_what_cannot_be_done_says_what_it_needs_and_changes_nothing(self) -> None:
        planned = plan(Setting(device="cpu"), 2, 16)
        needs = {rung.name: why for rung, _, why in planned if why}
        assert needs == {"pinned": "needs a GPU", "autotune": "needs a GPU"}
        last = planned[-1][1]
        assert not last.pin and not last.autotune and last.compile

    def test_left_out_rungs_take_their_changes_along(self) -> None:
        planned = plan(Setting(), 2, 16, ["amp", "uint8"])
        assert {rung.name for rung, *_ in planned}.isdisjoint({"amp", "uint8"})
        assert not any(setting.amp or setting.uint8 for _, setting, _ in planned)
        with pytest.raises(UsageError, match="no rung is called 'speed'"):
            plan(Setting(), 2, 16, ["speed"])


@pytest.mark.parametrize("name", [r.name for r in RUNGS if r.name not in ("ddp", "compile")])
def test_a_rung_trains(data: dict[str, Path], name: str) -> None:
    """All that a CPU can do, without a process of its own; its switch is seen to act."""
    ((found_setting, needs),) = (
        (setting, why) for rung, setting, why in plan(base(data), 2, 16) if rung.name == name
    )
    if needs:
        assert needs == "needs a GPU"
        return
    setting = replace(found_setting, workers=min(found_setting.workers, 1))
    found = train_rung.train(setting)
    assert found["images"] == 2 * setting.batch and found["seconds"] > 0
    assert 0 < found["wait_share"] < 1 and 0 < found["loss"] < 20
    assert found["processes"] == 1
    assert set(found["phases_s"]) >= {"wait", "forward", "loss", "backward", "optimiser"}
    batches = train_rung.batches(setting, CPU)
    for _ in range(25):  # beyond the end of an epoch
        images, labels = next(batches)
        assert images.shape == (setting.batch, 3, 32, 32) and labels.max() < 4
        assert images.dtype == (torch.bfloat16 if setting.amp else torch.float32)
        layout = torch.channels_last if setting.channels_last else torch.contiguous_format
        assert images.is_contiguous(memory_format=layout)
    assert images.float().mean().abs() < 1.5  # normalised
    assert images.float().std() < 3


def test_the_sources_give_the_same_kind_of_pixels(data: dict[str, Path]) -> None:
    """Means and deviations of the same classes, whichever way the images came."""
    kinds = []
    for fastdata, uint8 in ((False, False), (False, True), (True, True)):
        setting = replace(base(data), fastdata=fastdata, uint8=uint8, batch=160)
        images, labels = next(train_rung.batches(setting, CPU))
        kinds.append(torch.stack([images[labels == label].mean((0, 2, 3)) for label in range(4)]))
    for kind in kinds[1:]:
        torch.testing.assert_close(kind, kinds[0], atol=0.15, rtol=0)


@pytest.mark.parametrize("fastdata", [False, True])
def test_every_epoch_of_a_rank_has_another_order(data: dict[str, Path], fastdata: bool) -> None:
    setting = replace(base(data), fastdata=fastdata, batch=32, uint8=True)
    found = []
    for rank in (0, 1):
        batches = train_rung.batches(setting, CPU, rank, 2)
        epochs = [torch.cat([next(batches)[1] for _ in range(5)]) for _ in range(2)]
        assert not torch.equal(*epochs)
        found.append(epochs)
    for one, other in zip(*found, strict=True):
        assert torch.cat((one, other)).bincount().tolist() == [40] * 4  # ranks share an epoch


def test_too_few_images_are_told(data: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="too few images"):
        train_rung.train(replace(base(data), batch=161))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(train.main, arguments, env={"COLUMNS": "200"})


def test_the_ladder_from_start_to_table(data: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "ladder.json"
    small = ["--steps", "2", "--warmup", "1", "--batch-size", "8", "--large-batch", "16"]
    small += ["--width", "8", "--image-size", "32", "--workers", "1", "--device", "cpu"]
    without = "workers,uint8,set_to_none,amp,channels-last,autotune,fused,compile"
    done = run(
        "--tree", str(data["tree"]), "--work", str(tmp_path / "work"), *small,
        "--without", without, "--json", str(out),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    runs = {rung["name"]: rung for rung in result["rungs"]}
    assert list(runs) == ["baseline", "pinned", "batch", "fastdata", "ddp"]
    assert runs["pinned"]["needs"] == "needs a GPU" and runs["pinned"]["run"] is None
    for name, batch, processes in (("baseline", 8, 1), ("fastdata", 16, 1), ("ddp", 16, 2)):
        assert runs[name]["run"]["images"] == 2 * batch
        assert runs[name]["run"]["processes"] == processes
    assert "scaled from 2" in done.output and "needs a GPU" in done.output
    assert train.figures(result).rows[1][-1] == "needs a GPU"


def test_a_failing_rung_is_told_and_does_not_stop_the_others(
    data: dict[str, Path], tmp_path: Path
) -> None:
    planned = plan(base(data), 1, 161, ["compile"])[:1]
    baseline, setting, _ = planned[0]
    failing = replace(setting, batch=161)
    bad, good = train.climb(
        [(baseline, failing, ""), (baseline, setting, "")], 0, tmp_path, timeout=300
    )
    assert good["run"] and not good["error"]
    assert "exit code 1: error" in bad["error"] and "too few images" in bad["error"]
    result = {"model": "", "on": "", "steps": 2, "rungs": [bad, good]}
    assert train.figures(result).rows[0][-1] == "failed"
    (hung,) = train.climb(planned, 0, tmp_path, timeout=0.1)
    assert hung["error"] == "not done after 0 s"


def test_figures_are_scaled_to_300() -> None:
    def one(name: str, seconds: float) -> dict[str, Any]:
        run = {"seconds": seconds, "images": 100, "steps": 10, "wait_share": 0.5, "batch": 10}
        return {"name": name, "change": "", "run": run, "needs": "", "error": ""}

    result = {"on": "this", "model": "", "steps": 10, "rungs": [one("a", 4), one("b", 1)]}
    table = train.figures(result)
    assert "300 batches, scaled from 10" in table.title
    assert table.rows[0][1:] == ["10", "120.0", "25.0", "", "50%"]
    assert table.rows[1][1:] == ["10", "30.0", "100", "x4.00", "50%"]


def test_says_what_is_missing(tmp_path: Path) -> None:
    missing = run("--tree", str(tmp_path / "none"), "--device", "cpu").exception
    assert "none" in str(missing)
    if not torch.cuda.is_available():
        wanted = run("--tree", str(tmp_path), "--device", "cuda").exception
        assert "there is no GPU" in str(wanted)

"""The training script: it learns, goes on where it was stopped, to the bit, and its options act."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_data
import training_models
import training_ranks
from fastdata.examples import train_imagenet
from fastdata.examples.train_imagenet import Config, Mix, Trainer, Writer, join, parse
from hangs import HANG
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision_stub import import_torchvision

from fastdata import ImageDataset
from fastdata.device.delivery import DeviceIterator
from fastdata.errors import DataError, UsageError

SMALL = ["--model", "training_models:tiny", "--device", "cpu", "--batch-size", "16"]
SMALL += ["--image-size", "32", "--val-size", "32", "--val-resize", "37", "--workers", "1"]
SMALL += ["--warmup-epochs", "0.5", "--timeout", "60"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One rank, and one thread: sums do not depend on the number of threads."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return training_data.packed(tmp_path_factory.mktemp("training"))


@pytest.fixture
def trained(data: dict[str, Path], tmp_path: Path) -> Callable[..., Any]:
    """Trains, on this process; returns the Trainer."""

    def train(*options: str, out: str = "out") -> Any:
        given = ["--train", str(data["train"]), "--out", str(tmp_path / out), *SMALL, *options]
        config = parse(given)
        with join(config) as device:
            trainer = Trainer(config, device)
            trainer.summary = trainer.run()  # type: ignore[attr-defined]
        return trainer

    return train


def checkpoint(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    return state


def log(folder: Path, kind: str, name: str) -> list[float]:
    """The values that log.jsonl has."""
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [line[name] for line in lines if line["kind"] == kind]


def assert_same(one: Any, other: Any) -> None:
    """Whether two checkpoints hold the same, to the bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"out", "resume"}:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


def assert_right_score(out: Path, path: Path, score: dict[str, float], model: str) -> None:
    """Compares a score with one that is computed without loader, batches and ranks."""
    network = training_models.tiny(training_data.CLASSES)
    saved = checkpoint(out)[model]
    network.load_state_dict(
        {name.removeprefix("module."): saved[name] for name in saved if name != "n_averaged"}
    )
    network.eval()
    losses, right = [], 0
    mean, std = (np.array(v, np.float32) for v in (train_imagenet.MEAN, train_imagenet.STD))
    dataset = ImageDataset(path)
    for number in range(len(dataset)):
        image, label = dataset[number]
        size = (37 * image.width // image.height, 37)
        assert image.width > image.height
        left, top = round((size[0] - 32) / 2), round((37 - 32) / 2)
        cut = image.resize(size, 2).crop((left, top, left + 32, top + 32))
        pixels = (np.asarray(cut, np.float32) / 255 - mean) / std
        with torch.no_grad():
            logits = network(torch.from_numpy(pixels).permute(2, 0, 1)[None])
        losses.append(functional.cross_entropy(logits, torch.tensor([label])).item())
        right += int(logits.argmax()) == label
    # Pillow's pixels are another level here and there: one image may fall to the other side.
    assert score["top1"] == pytest.approx(right / len(dataset), abs=1.01 / len(dataset))
    assert score["loss"] == pytest.approx(np.mean(losses), abs=0.02)
    assert (score["top5"], score["samples"]) == (1, len(dataset))


def test_learns_and_is_begun_anew_and_again(
    data: dict[str, Path], trained: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--epochs", "3", "--lr", "1.5", "--val", str(data["val"]), "--log-every", "4"]
    done = trained(*options)
    assert done.summary["val"]["top1"] > 0.9 and done.summary["steps"] == 30
    assert_right_score(done.out, data["val"], done.summary["val"], "model")
    assert json.loads((done.out / "summary.json").read_text()) == done.summary
    assert log(done.out, "train", "step") == [4, 8, 10, 12, 16, 20, 24, 28, 30]
    assert log(done.out, "val", "step") == [10, 20, 30]
    said = capfd.readouterr().out
    assert "val step 30: loss" in said
    assert said.index("160 images of 4 classes; 3 epochs of 10 batches of 16") < said.index("step")
    assert f"writing to {done.out}" in said
    best = torch.load(done.out / "best.pt", weights_only=True)
    assert best["top1"] == max(log(done.out, "val", "top1")) == done.summary["best_top1"]
    # A job that is queued again after its end.
    assert trained(*options, "--resume", "auto").summary == done.summary
    # Without --resume, it would overwrite that run.
    before = checkpoint(done.out)
    with pytest.raises(UsageError, match=r"checkpoint\.pt: is the checkpoint of a run"):
        trained(*options)
    assert_same(checkpoint(done.out), before)
    # One that was stopped goes on to the same end; with as many steps as it has had, not at all.
    first = trained(*options, "--max-steps", "14", out="stopped")
    assert (first.summary["steps"], first.summary["epochs"]) == (14, 1)
    assert trained(*options, "--max-steps", "14", "--resume", "auto", out="stopped").step == 14
    capfd.readouterr()
    again = trained(*options, "--resume", "auto", out="stopped")
    resumed = f"resumed from {first.out / 'checkpoint.pt'}: step 14, in epoch 1"
    assert resumed in capfd.readouterr().out
    assert_same(checkpoint(again.out)["model"], done.model.state_dict())
    assert again.summary["val"] == done.summary["val"]


RECIPE = [*SMALL, "--model-args", '{"dropout": 0.2}', "--epochs", "2", "--repeats", "2"]
RECIPE += ["--image-size", "0:24,1:32", "--mixup", "0.2", "--cutmix", "1", "--augment", "trivial"]
RECIPE += ["--erasing", "0.1", "--label-smoothing", "0.1", "--ema-decay", "0.9", "--ema-every", "2"]
RECIPE += ["--clip-grad", "1", "--checkpoint-every", "3", "--log-every", "5"]


def test_killed_and_resumed_is_as_undisturbed(data: dict[str, Path], tmp_path: Path) -> None:
    """Two ranks, all that is random switched on: SIGTERM, SIGKILL, a loss that is no number."""

    def run(out: str, *options: str, **more: Any) -> list[tuple[int, str]]:
        paths = ["--train", str(data["train"]), "--val", str(data["val"])]
        paths += ["--out", str(tmp_path / out)]
        return training_ranks.run(tmp_path / "printed", *paths, *RECIPE, *options, **more)

    def resume(out: str) -> None:
        ended = run(out, "--resume", "auto")
        assert [status for status, _ in ended] == [0, 0], ended
        assert_same(checkpoint(tmp_path / out), checkpoint(tmp_path / "whole"))

    ended = run("whole")
    assert [status for status, _ in ended] == [0, 0], ended
    whole = checkpoint(tmp_path / "whole")
    assert (whole["step"], len(whole["loaders"])) == (20, 2)
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    # 53 images, which two ranks cannot share evenly.
    assert_right_score(tmp_path / "whole", data["val"], summary["val"], "ema")

    # One of them is told to end: both save after the same step, which is the next, and an epoch's
    # last: validation is left for later.
    ended = run("told", accident="1:9:15")
    assert [status for status, _ in ended] == [143, 143], ended
    assert checkpoint(tmp_path / "told")["step"] == 10
    assert not log(tmp_path / "told", "val", "step")
    resume("told")

    # One is killed in the second epoch: the other one ends by itself, with an error.
    ended = run("killed", accident="1:14:9")
    assert [status for status, _ in ended] == [1, -9], ended
    assert "RuntimeError" in ended[0][1]
    assert checkpoint(tmp_path / "killed")["step"] == 12
    shutil.copytree(tmp_path / "killed", tmp_path / "fewer")
    resume("killed")

    # A checkpoint fits another number of ranks: one sees what is left, in as many images a step.
    ended = run("fewer", "--resume", "auto", "--batch-size", "32", ranks=1)
    assert ended[0][0] == 0, ended
    assert checkpoint(tmp_path / "fewer")["step"] == 20

    # The loss of one rank is no number: both end, and nothing is saved after it.
    ended = run("nan", accident="1:5:nan")
    assert [status for status, _ in ended] == [1, 1], ended
    assert all("loss became nan by step 5" in text for _, text in ended)
    assert checkpoint(tmp_path / "nan")["step"] == 3


def test_sigusr1_saves_and_goes_on(trained: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setenv(training_models.ACCIDENT, "0:2:10")
    saved = []
    kept = Trainer.save
    monkeypatch.setattr(Trainer, "save", lambda self: (saved.append(self.step), kept(self)))
    done = trained("--max-steps", "6", "--epochs", "1")
    assert saved == [3, 6]
    assert done.summary["steps"] == 6 and not done.summary["terminated"]


def test_sigterm_with_the_last_step(trained: Callable[..., Any], monkeypatch: Any) -> None:
    """Queued again, as what ends with 143 is, the run is over."""
    monkeypatch.setenv(training_models.ACCIDENT, "0:5:15")
    assert trained("--max-steps", "6").summary["terminated"]
    again = trained("--max-steps", "6", "--resume", "auto")
    assert again.step == 6 and not again.summary["terminated"]


def test_two_ranks_are_one_with_their_batches(
    data: dict[str, Path], trained: Callable[..., Any], tmp_path: Path
) -> None:
    """Gradients of ranks, and of several batches, are those of one large batch."""
    options = ["--model-args", '{"norm": false}', "--max-steps", "4", "--epochs", "1"]
    one = trained(*options, "--batch-size", "32").model.state_dict()
    several = trained(*options, "--batch-size", "8", "--accumulate", "4", out="several")
    assert several.step == 4
    paths = ["--train", str(data["train"]), "--out", str(tmp_path / "ranks")]
    more = ["--batch-size", "8", "--accumulate", "2"]
    ended = training_ranks.run(tmp_path, *paths, *SMALL, *options, *more)
    assert [status for status, _ in ended] == [0, 0], ended
    ranks = checkpoint(tmp_path / "ranks")["model"]
    for name, value in one.items():
        torch.testing.assert_close(several.model.state_dict()[name], value, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(ranks[name], value, atol=1e-5, rtol=1e-4)


def test_an_epochs_last_step_may_have_fewer_batches(trained: Callable[..., Any]) -> None:
    options = ["--model-args", '{"norm": false}', "--epochs", "1", "--accumulate", "3"]
    done = trained(*options, "--log-every", "1")
    assert done.step == 4 and len(done.model.seen) == 10
    assert log(done.out, "train", "loss")[-1] == pytest.approx(
        log(done.out, "train", "loss")[0], 0.3
    )


def run_by_slurm(folder: Path, script: str, *arguments: str) -> None:
    """The batch script as Slurm would run it, with two tasks on one node."""
    commands = folder / "bin"
    commands.mkdir()
    # What Slurm brings: tasks that know their numbers, and have the CPUs that srun was told of.
    (commands / "srun").write_text(
        f"""#!{sys.executable}
import os, subprocess, sys
assert os.environ["SRUN_CPUS_PER_TASK"] == os.environ["SLURM_CPUS_PER_TASK"]
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
step = dict(SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="2", SLURM_NODEID="0")
step |= dict(SLURM_STEP_NODELIST="localhost", SLURM_STEP_ID="0")
tasks = [
    subprocess.Popen(words, env=os.environ | step | dict(SLURM_PROCID=n, SLURM_LOCALID=n))
    for n in "01"
]
sys.exit(max(task.wait() for task in tasks))
"""
    )
    (commands / "python").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    for command in commands.iterdir():
        command.chmod(0o755)
    told = {"PATH": f"{commands}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "1"}
    told |= {"SLURM_JOB_ID": str(os.getpid()), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    told |= {"PYTHONPATH": str(Path(__file__).parent), "FASTDATA_TRAIN": script}
    batch = Path(train_imagenet.__file__).with_suffix(".slurm")
    environ = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"} | told
    command = ["bash", str(batch), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


def test_a_copy_of_the_file_trains_under_slurm(data: dict[str, Path], tmp_path: Path) -> None:
    """Tasks that srun starts are ranks of one run; the recipe is found where fastdata is."""
    script = shutil.copy(train_imagenet.__file__, tmp_path / "mine.py")
    arguments = ["--config", "cpu", "--train", str(data["train"]), "--out", str(tmp_path / "out")]
    run_by_slurm(tmp_path, script, *arguments, *SMALL, "--epochs", "1")
    state = checkpoint(tmp_path / "out")
    assert len(state["loaders"]) == 2 and state["step"] == 5
    assert state["config"]["augment"] == "trivial" and state["ema"]


class TestOptionsAct:
    @pytest.mark.parametrize("kind", ["bfloat16", "float16", "none"])
    def test_amp(self, trained: Callable[..., Any], kind: str) -> None:
        done = trained("--amp", kind, "--max-steps", "2")
        dtype = torch.float32 if kind == "none" else getattr(torch, kind)
        for images, logits in done.model.seen:
            assert images.dtype == logits.dtype == dtype
        assert all(parameter.dtype == torch.float32 for parameter in done.model.parameters())
        assert bool(checkpoint(done.out)["scaler"]) == (kind == "float16")

    def test_an_overflow_in_the_first_step(
        self, data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The scaler skips that step: it must leave nothing unwritten behind."""
        # Memory that nothing was written to is NaN.
        empty = torch.empty_like
        monkeypatch.setattr(
            torch, "empty_like", lambda *one, **more: empty(*one, **more).fill_(float("nan"))
        )
        options = ["--train", str(data["train"]), "--out", str(tmp_path), *SMALL]
        config = parse([*options, "--amp", "float16", "--epochs", "1", "--max-steps", "6"])
        with join(config) as device:
            trainer = Trainer(config, device)
            trainer.scaler = torch.amp.GradScaler("cpu", 2.0**60, backoff_factor=2.0**-50)
            trainer.run()
        assert trainer.scaler.get_scale() == 2.0**10
        for parameter in trainer.model.parameters():
            assert parameter.isfinite().all() and parameter.abs().max() < 10

    def test_layout(self, trained: Callable[..., Any]) -> None:
        for flag, on in (("--channels-last", True), ("--no-channels-last", False)):
            done = trained(flag, "--max-steps", "2", "--mixup", "1", "--cutmix", "1", out=flag[2:])
            for tensor in [images for images, _ in done.model.seen] + [done.model[0].weight]:
                assert tensor.is_contiguous(memory_format=torch.channels_last) == on
                assert tensor.is_contiguous() != on

    def test_tf32(self, trained: Callable[..., Any]) -> None:
        for flag, precision in (("--tf32", "high"), ("--no-tf32", "highest")):
            trained(flag, "--max-steps", "1", out=precision)
            assert torch.get_float32_matmul_precision() == precision
            assert torch.backends.cudnn.allow_tf32 == (precision == "high")

    def test_a_compiled_model_has_one_graph_a_size(self, trained: Callable[..., Any]) -> None:
        """160 images in batches of 48: what is left over would be a batch of another size."""
        shapes, graphs = [], []

        def backend(graph: Any, inputs: list[Any]) -> Any:
            graphs.append(any(isinstance(one, torch.SymInt) for one in inputs))

            def call(*arguments: Any) -> Any:
                shapes.extend(one.shape for one in arguments if one.ndim == 4 and len(one) == 48)
                return graph(*arguments)

            return call

        torch._dynamo.reset()
        torch._dynamo.register_backend(backend, name="counts_graphs")
        options = ["--epochs", "2", "--batch-size", "48", "--image-size", "0:24,1:32"]
        trained("--compile", "counts_graphs", *options)
        assert graphs == [False, False]
        assert [tuple(one) for one in shapes] == [(48, 3, 24, 24)] * 3 + [(48, 3, 32, 32)] * 3

    def test_sizes_repeats_and_mixing(self, trained: Callable[..., Any]) -> None:
        options = ["--epochs", "2", "--image-size", "0:24,1:28", "--repeats", "4", "--erasing", "1"]
        done = trained(*options)
        sides = [tuple(images.shape) for images, _ in done.model.seen]
        # Every image comes four times an epoch: 160 make 40 batches of 16.
        assert sides == [(16, 3, 24, 24)] * 40 + [(16, 3, 28, 28)] * 40
        (batch, *_) = done.loader
        groups = batch["label"].view(4, 4)
        assert (groups == groups[0]).all()
        crops = batch["image"].reshape(4, 4, -1)
        assert all(not torch.equal(crops[0], crops[view]) for view in (1, 2, 3))

    def test_rate_rises_then_falls(self, trained: Callable[..., Any]) -> None:
        """10 steps an epoch: it rises for one, and falls for two."""
        options = ["--epochs", "3", "--warmup-epochs", "1", "--lr", "0.8", "--log-every", "1"]
        done = trained(*options, "--max-steps", "13")
        trained(*options, "--resume", "auto")
        wanted = [0.05 * (step + 1) / 10 for step in range(10)]
        wanted += [0.05 * (1 + math.cos(math.pi * step / 20)) / 2 for step in range(20)]
        assert log(done.out, "train", "lr") == pytest.approx(wanted)

    def test_the_average_begins_when_the_rate_has_risen(self, trained: Callable[..., Any]) -> None:
        options = ["--ema-decay", "0.9", "--ema-every", "2", "--epochs", "2"]
        done = trained(*options, "--max-steps", "10", "--warmup-epochs", "1")
        assert_same(done.ema.module.state_dict(), done.model.state_dict())

    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
    @pytest.mark.parametrize("augment", train_imagenet.AUGMENTATIONS)
    def test_interpolation(self, data: dict[str, Path], interpolation: str, augment: str) -> None:
        """As in torchvision's reference, it is that of the crops and of what the policies turn."""
        options = ["--augment", augment, "--interpolation", interpolation]
        config = parse(["--train", str(data["train"]), *SMALL, *options])
        with join(config) as device:
            dataset = train_imagenet.training_data(config, device).dataset
        crop, _, policy, _ = dataset.transform.current.transforms  # type: ignore[attr-defined]
        assert crop.interpolation == policy.interpolation == interpolation

    def test_models(self) -> None:
        import_torchvision()
        arguments = '{"zero_init_residual": true}'
        made = train_imagenet.make_model(Config(model="resnet18", model_args=arguments), 7)
        assert made(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
        assert not made.layer1[0].bn2.weight.any()  # type: ignore[operator, union-attr, index]
        vit = Config(model="vit_b_16", model_args='{"image_size": 32}')
        assert train_imagenet.make_model(vit, 7)(torch.zeros(1, 3, 32, 32)).shape == (1, 7)
        for name in ("resnet19", "timn/resnet18", "training_models:none"):
            with pytest.raises(UsageError, match="MODULE:FUNCTION"):
                train_imagenet.make_model(Config(model=name), 7)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_steps_are_those_of_torchvisions_reference(
    trained: Callable[..., Any], optimizer: str
) -> None:
    """Compare with a step of its train.py, written out: loss, clipping, decay, rate, average."""
    options = ["--optimizer", optimizer, "--epochs", "1", "--max-steps", "7", "--lr", "0.5"]
    options += ["--mixup", "0.2", "--cutmix", "1", "--label-smoothing", "0.1", "--clip-grad", "0.3"]
    options += ["--weight-decay", "0.3", "--warmup-epochs", "0"]
    if optimizer == "adamw":
        # A bias before a norm has gradients that are rounding alone, and Adam scales them up.
        options += ["--model-args", '{"norm": false}']
    done = trained(*options, "--ema-decay", "0.9", "--ema-every", "3")
    config = done.config
    with join(config) as device:
        loader = train_imagenet.training_data(config, device)
        batches = [batch for batch, _ in zip(loader, range(7), strict=False)]
    model = train_imagenet.make_model(config, training_data.CLASSES).train()
    # Its decay of norms alone is 0; here that of biases, too.
    groups = [
        {"params": [one for one in model.parameters() if one.ndim > 1], "weight_decay": 0.3},
        {"params": [one for one in model.parameters() if one.ndim == 1], "weight_decay": 0.0},
    ]
    plain: torch.optim.Optimizer = torch.optim.AdamW(groups)
    if optimizer == "sgd":
        plain = torch.optim.SGD(groups, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    mean: dict[str, torch.Tensor] = {}
    for step, batch in enumerate(batches):
        for group in plain.param_groups:
            group["lr"] = 0.5 * 16 / 256 * (1 + math.cos(math.pi * step / 10)) / 2
        plain.zero_grad()
        criterion(model(batch["image"]), batch["label"]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        plain.step()
        if step % 3 == 2:
            now = {name: value.clone() for name, value in model.state_dict().items()}
            mean = {name: 0.729 * mean.get(name, now[name]) + 0.271 * now[name] for name in now}
    for found, wanted in ((done.model, model.state_dict()), (done.ema.module, mean)):
        for name, value in found.state_dict().items():
            if value.is_floating_point():
                torch.testing.assert_close(value, wanted[name])


@pytest.mark.parametrize("way", ["mixup", "cutmix"])
def test_mixing(way: str) -> None:
    """Image n is all of value n: what is left of it is what its label says."""
    torch.manual_seed(0)
    mix = Mix(Config(**{way: 1.0}), classes=4)
    for _ in range(50):
        values = torch.arange(8.0)
        labels = torch.arange(8) % 4
        images = values.view(-1, 1, 1, 1).expand(-1, 3, 20, 30).clone()
        mixed = mix({"image": images, "label": labels})
        target = mixed["label"]
        assert target.sum(1) == pytest.approx(1) and target.shape == (8, 4)
        share = target[torch.arange(8), labels]
        other = target[torch.arange(8), labels.roll(1)]
        assert torch.allclose(share + other, torch.ones(8), atol=1e-6)
        expected = share * values + other * values.roll(1)
        assert torch.allclose(mixed["image"].mean((1, 2, 3)), expected, atol=1e-4)
        if way == "cutmix":
            whole = (mixed["image"] == values.view(-1, 1, 1, 1)) | (
                mixed["image"] == values.roll(1).view(-1, 1, 1, 1)
            )
            assert whole.all()


class Asked(TorchDispatchMode):
    """Counts what would wait for a GPU: its values asked for by the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put_") and any(
            one is not None and one.dtype == torch.bool for one in args[1]
        )
        self.count += masks or name in ("_local_scalar_dense", "nonzero", "masked_select")
        return func(*args, **(kwargs or {}))


def test_validation_asks_the_device_once_at_its_end(
    data: dict[str, Path], trained: Callable[..., Any]
) -> None:
    done = trained("--max-steps", "1", "--val", str(data["val"]))
    batches = list(done.val_loader)
    asked = []

    class Batches:
        dataset = done.val_loader.dataset

        def __iter__(self) -> Iterator[Any]:
            for batch in batches:
                with Asked() as found:
                    yield batch
                asked.append(found.count)

    with join(done.config) as device:
        (score,) = train_imagenet.evaluate([done.model.eval()], Batches(), done.config, device)
    assert score["samples"] == 53
    assert asked == [0] * len(batches)


def test_threads_decode_the_next_epoch_while_one_is_validated(
    data: dict[str, Path], trained: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has asked for its batches yet; `ready` is what begins them."""
    events = []
    ready, evaluate = DeviceIterator.ready, train_imagenet.evaluate
    monkeypatch.setattr(
        DeviceIterator, "ready", lambda self: (events.append("begun"), ready(self))[1]
    )
    monkeypatch.setattr(
        train_imagenet, "evaluate", lambda *given: (events.append("validated"), evaluate(*given))[1]
    )
    trained("--epochs", "2", "--val", str(data["val"]))
    assert events == ["begun", "validated", "validated"]


def test_bad_images_are_left_out(data: dict[str, Path], tmp_path: Path) -> None:
    """Training takes others in their place; validation counts the whole ones alone."""
    from fastdata.converters import ImageFolder, pack

    images = training_data.tree(tmp_path / "tree") / "val"
    pack(ImageFolder(images), tmp_path / "val", container="folder", workers=1)
    damaged = images / "class1" / "3.jpg"
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    options = ["--on-error", "skip", "--val", str(tmp_path / "val"), "--epochs", "1"]
    with pytest.warns(UserWarning, match="class1/3"):
        done = train_imagenet.main(
            ["--train", str(tmp_path / "val"), "--out", str(tmp_path / "o"), *SMALL, *options]
        )
    assert done["val"]["samples"] == 52


class TestCheckpoints:
    def test_a_failed_write_is_told_and_leaves_the_one_before(self, tmp_path: Path) -> None:
        path, writer = tmp_path / "checkpoint.pt", Writer()
        tensor = torch.zeros(3)
        writer.write({"tensor": tensor}, path)
        tensor += 1  # what is written is what it was
        writer.wait()
        assert torch.load(path)["tensor"].sum() == 0
        with pytest.raises(Exception, match="pickle"):
            writer.write({"tensor": lambda: 0}, path)
        partial = tmp_path / "checkpoint.pt.partial"
        partial.symlink_to("/dev/full")
        writer.write({"tensor": tensor}, path)
        with pytest.raises(DataError, match=r"checkpoint\.pt: cannot be written: No space left"):
            writer.wait()
        assert torch.load(path)["tensor"].sum() == 0
        assert not partial.is_symlink()  # what was written of it takes no room

    def test_a_full_disk_ends_the_run_at_its_next_report(
        self, trained: Callable[..., Any], tmp_path: Path
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "checkpoint.pt.partial").symlink_to("/dev/full")
        options = ["--checkpoint-every", "2", "--log-every", "1", "--epochs", "9"]
        with pytest.raises(DataError, match=r"checkpoint\.pt: cannot be written: No space left"):
            trained(*options)
        assert 2 <= len(log(tmp_path / "out", "train", "step")) <= 4
        for name in ("log.jsonl", "summary.json"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / name).symlink_to("/dev/full")
            with pytest.raises(DataError, match=rf"{name}: cannot be written: No space left"):
                trained("--max-steps", "1", out=name)
        with pytest.raises(DataError, match=r"log\.jsonl: cannot be written: File exists"):
            trained(out="out/log.jsonl")

    def test_one_that_does_not_fit_is_refused(self, trained: Callable[..., Any]) -> None:
        done = trained("--max-steps", "1")
        with pytest.raises(UsageError, match=r"seed=0, this run has 3"):
            trained("--resume", "auto", "--seed", "3")
        with pytest.raises(UsageError, match=r"ema=False, this run has True"):
            trained("--resume", "auto", "--ema-decay", "0.9")
        with pytest.raises(UsageError, match="no such checkpoint"):
            trained("--resume", str(done.out / "none.pt"))
        path = done.out / "checkpoint.pt"
        path.write_bytes(path.read_bytes()[:-3000])
        others = {
            "truncated": path,
            **{name: done.out / name for name in ("empty", "tensor", "weights", "words")},
        }
        others["empty"].touch()
        others["words"].write_text("none")
        torch.save(torch.zeros(3), others["tensor"])
        torch.save(done.model.state_dict(), others["weights"])
        for name in others.values():
            with pytest.raises(DataError, match=r"out/.*: cannot be read as a checkpoint"):
                trained("--resume", str(name))

    def test_another_precision_layout_and_options(
        self, trained: Callable[..., Any], tmp_path: Path
    ) -> None:
        """Momentum is that of the same weights, however both lie in memory."""
        options = ["--epochs", "1", "--lr", "0.8", "--max-steps"]
        trained(*options, "3", "--channels-last")
        saved = checkpoint(tmp_path / "out")
        for name, more in {
            "same": ["--channels-last"],
            "layout": ["--no-channels-last"],
            "half": ["--amp", "float16"],
            "brain": ["--amp", "bfloat16", "--no-channels-last"],
        }.items():
            shutil.copytree(tmp_path / "out", tmp_path / name)
            changed = [*options, "5", "--resume", "auto", "--weight-decay", "0.01", *more]
            trained(*changed, out=name)
            found = checkpoint(tmp_path / name)
            assert found["optimizer"]["param_groups"][0]["weight_decay"] == 0.01
            assert found["step"] == 5
            for key, value in checkpoint(tmp_path / "same")["model"].items():
                torch.testing.assert_close(found["model"][key], value, atol=2e-2, rtol=2e-2)
        assert saved["step"] == 3


class TestOptions:
    def test_a_recipe_and_the_command_line_which_has_the_last_word(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text("lr: 1e-4\nepochs: 3\ntf32: false\nmodel_args: {a: [1]}\ntrain: some\n")
        config = parse(["--config", str(path), "--batch-size", "7", "--epochs", "4"])
        assert (config.lr, config.epochs, config.tf32) == (1e-4, 4, False)
        assert (config.train, config.batch_size, config.arguments) == ("some", 7, {"a": [1]})
        assert config.momentum == Config().momentum
        # One may build on another.
        (tmp_path / "more.yaml").write_text(f"config: {path}\nepochs: 5\n")
        config = parse(["--config", str(tmp_path / "more.yaml"), "--seed", "2"])
        assert (config.lr, config.epochs, config.seed) == (1e-4, 5, 2)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("batchsize: 3", r"c\.yaml: error: unrecognized arguments: --batchsize=3"),
            ("epochs: many", r"c\.yaml: error: argument --epochs: invalid int value: 'many'"),
            ("epochs: true", "argument --epochs: expected one argument"),
            ("tf32: 1", "argument --tf32.*'1'"),
            ("amp: half", "choose from .*bfloat16"),
            ("1: 2", "unrecognized arguments: --1=2"),
        ],
    )
    def test_a_wrong_file_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
    ) -> None:
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(SystemExit, match="2"):
            parse(["--config", str(tmp_path / "c.yaml")])
        assert re.search(said, capsys.readouterr().err)

    @pytest.mark.parametrize("text", [b"lr: [", b"- lr", b"lr", b"\xff"])
    def test_what_is_no_recipe(self, tmp_path: Path, text: bytes) -> None:
        (tmp_path / "c.yaml").write_bytes(text)
        with pytest.raises(UsageError, match=r"c\.yaml: cannot be read as options"):
            parse(["--config", str(tmp_path / "c.yaml")])

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--lr", "-1"], "lr is -1.0"),
            (["--lr", "nan"], "lr is nan"),
            (["--ema-decay", "1.5"], "Give 0 to 1"),
            (["--epochs", "0"], "Give 1 or more"),
            (["--batch-size", "6", "--repeats", "4"], "that the repeats divide"),
            (["--image-size", "5:128"], "sides from epochs on, from 0"),
            (["--image-size", "x"], "image_size is 'x'"),
            (["--model-args", "{"], "Give a JSON object"),
            (["--config", "resnet51"], "one of cpu, resnet50, resnet50_fast, vit_b_16"),
            (["--train", "some", "--device", "tpu"], "no device 'tpu'"),
            ([], "nothing to train on"),
        ],
    )
    def test_wrong_options_are_refused(self, options: list[str], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            train_imagenet.main(options)

    def test_what_is_not_enough_to_train_on(
        self, trained: Callable[..., Any], data: dict[str, Path]
    ) -> None:
        with pytest.raises(UsageError, match="160 images make no batch of 161"):
            trained("--batch-size", "161")
        with pytest.raises(Exception, match="nothing-there"):
            trained("--train", "nothing-there")

    def test_recipes(self) -> None:
        folder = Path(train_imagenet.__file__).parent / "configs"
        recipes = {path.stem: parse(["--config", path.stem]) for path in folder.glob("*.yaml")}
        assert recipes["resnet50"].arguments == {"zero_init_residual": True}
        assert recipes["resnet50"].size(149) == 176
        assert [recipes["resnet50_fast"].size(epoch) for epoch in (0, 24, 25)] == [160, 160, 192]
        assert recipes["vit_b_16"].optimizer == "adamw"
        # torchvision's: 0.99998 at an update of 32 steps, scaled by images a step and epochs.
        for name, epochs in (("resnet50", 600), ("vit_b_16", 300)):
            recipe = recipes[name]
            images = recipe.batch_size * recipe.accumulate * 8
            taken = (1 - 0.99998) * images * 32 / epochs
            assert 1 - recipe.ema_decay**32 == pytest.approx(taken, rel=0.03)
            assert recipe.epochs * recipe.repeats == epochs and recipe.ema_every == 32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# torch's own compiler still imports it.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_on_a_gpu_all_switches_learn(data: dict[str, Path], trained: Callable[..., Any]) -> None:
    options = ["--device", "cuda", "--amp", "bfloat16", "--compile", "inductor"]
    options += ["--epochs", "4", "--lr", "1.5", "--val", str(data["val"])]
    assert trained(*options).summary["val"]["top1"] > 0.9

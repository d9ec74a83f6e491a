"""The training recipe learns, goes on where it was stopped, and every switch of it acts."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_data
from fastdata.examples import train_imagenet
from fastdata.examples.training import checkpoint, schedule
from fastdata.examples.training.config import Config, parse, read_yaml
from fastdata.examples.training.ranks import Ranks
from fastdata.examples.training.resnet import ResNet
from fastdata.examples.training.step import weights
from fastdata.examples.training.trainer import Trainer
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from fastdata import ImageDataset
from fastdata.errors import DataError, UsageError
from fastdata.plan.sharding import Epoch

ALONE = Ranks(0, 1, 0, torch.device("cpu"), False)
SMALL = ["--model", "resnet18", "--width", "8", "--image-size", "32", "--workers", "1"]
SMALL += ["--device", "cpu", "--batch-size", "16", "--no-tensorboard"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Other processes need the CPUs, too; and sums do not depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return training_data.packed(tmp_path_factory.mktemp("training"))


def arguments(data: dict[str, Path], out: Path, *more: str) -> list[str]:
    return ["--train", str(data["train"]), "--out", str(out), *SMALL, *more]


def samples(out: Path, rank: int = 0) -> list[tuple[int, int, int]]:
    """(epoch, step, sample) that count: what a resumed run has undone is left out."""
    found: list[tuple[int, int, int]] = []
    for line in (out / "samples" / f"rank-{rank}.jsonl").read_text().splitlines():
        event = json.loads(line)
        if "resumed" in event:
            found = [one for one in found if one[1] < event["resumed"]]
        else:
            found += [(event["epoch"], event["step"], sample) for sample in event["samples"]]
    return found


def scalars(out: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would show."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_learns_and_goes_on_where_it_was_stopped(data: dict[str, Path], tmp_path: Path) -> None:
    options = ["--epochs", "4", "--lr", "1", "--warmup-epochs", "0.5", "--log-samples"]
    options += ["--val", str(data["val"]), "--log-every", "4", "--tensorboard"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done = train_imagenet.main(arguments(data, whole, *options))
    assert done["val"]["top1"] > 0.9 and done["val"]["samples"] == 53
    assert json.loads((whole / "summary.json").read_text()) == done

    stopped = train_imagenet.main(arguments(data, parts, *options, "--max-steps", "14"))
    assert stopped["steps"] == 14 and len(samples(parts)) == 14 * 16  # in the second epoch
    again = train_imagenet.main(arguments(data, parts, *options, "--resume", "auto"))
    # A job that is queued again after its end.
    assert train_imagenet.main(arguments(data, parts, *options, "--resume", "auto")) == again
    assert again["steps"] == done["steps"] == 40
    assert again["val"] == done["val"] and again["best_top1"] == done["best_top1"]
    one, other = checkpoint.load(whole / "checkpoint.pt"), checkpoint.load(parts / "checkpoint.pt")
    assert_same(one, other)
    assert samples(whole) == samples(parts)
    assert Counter(sample for *_, sample in samples(whole)) == dict.fromkeys(range(160), 4)

    for out in (whole, parts):
        shown = scalars(out)
        assert set(shown) == {
            *(f"train/{name}" for name in ("loss", "top1", "top5", "lr")),
            *(f"train/{name}" for name in ("images_per_second", "wait_share")),
            *(f"val/{name}" for name in ("loss", "top1", "top5")),
        }
        assert [step for step, _ in shown["val/top1"]] == [10, 20, 30, 40]
        assert shown["val/top1"][-1][1] == pytest.approx(done["val"]["top1"])
        assert all(0 <= value <= 1 for _, value in shown["train/wait_share"])
        assert all(value > 0 for _, value in shown["train/images_per_second"])
    assert_right_score(whole, data["val"], done["val"])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_run_that_ends_with_an_epoch_validates_it(
    data: dict[str, Path], tmp_path: Path, accumulate: int
) -> None:
    steps = -(-10 // accumulate)
    options = ["--val", str(data["val"]), "--tensorboard", "--epochs", "2", "--log-samples"]
    options += ["--accumulate", str(accumulate)]
    given = arguments(data, tmp_path, *options)
    ended = train_imagenet.main([*given, "--max-steps", str(steps)])
    assert (ended["steps"], ended["epochs"]) == (steps, 1)
    assert ended["val"]["samples"] == 53 and ended["best_top1"] == ended["val"]["top1"]
    assert (tmp_path / "best.pt").exists()
    # Nothing of that epoch is done again; and an end in the middle of one still validates nothing.
    middle = train_imagenet.main([*given, "--resume", "auto", "--max-steps", str(steps + 1)])
    assert middle["val"] is None and middle["epochs"] == 1
    assert len(samples(tmp_path)) == 160 + 16 * accumulate
    whole = train_imagenet.main([*given, "--resume", "auto"])
    assert whole["steps"] == 2 * steps
    assert Counter(sample for *_, sample in samples(tmp_path)) == dict.fromkeys(range(160), 2)
    assert [step for step, _ in scalars(tmp_path)["val/top1"]] == [steps, 2 * steps]


def assert_same(one: Any, other: Any) -> None:
    """Whether two checkpoints hold the same, to the bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


def assert_right_score(out: Path, path: Path, score: dict[str, float]) -> None:
    """Compares a score with one that is computed without loader, batches and ranks."""
    model = ResNet("resnet18", training_data.CLASSES, width=8)
    model.load_state_dict(checkpoint.load(out / "checkpoint.pt")["model"])
    model.eval()
    losses, right = [], 0
    mean, std = (np.array(v, np.float32) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    dataset = ImageDataset(path)
    for number in range(len(dataset)):
        image, label = dataset[number]
        short = 37  # round(32 * 256 / 224)
        size = (short * image.width // image.height, short)
        assert image.width > image.height
        resized = image.resize(size, 2)
        left, top = round((size[0] - 32) / 2), round((short - 32) / 2)
        pixels = np.asarray(resized.crop((left, top, left + 32, top + 32)), np.float32) / 255
        with torch.no_grad():
            logits = model(torch.from_numpy((pixels - mean) / std).permute(2, 0, 1)[None])
        losses.append(functional.cross_entropy(logits, torch.tensor([label])).item())
        right += int(logits.argmax()) == label
    # Pillow's pixels are another level here and there: one image may fall to the other side.
    assert score["top1"] == pytest.approx(right / len(dataset), abs=1.01 / len(dataset))
    assert score["loss"] == pytest.approx(np.mean(losses), abs=0.02)
    assert score["top5"] == 1


class TestSwitches:
    """Each is thrown on the command line, and is seen to act in training."""

    @pytest.fixture
    def trained(self, data: dict[str, Path], tmp_path: Path) -> Callable[..., Any]:
        """Trains two steps; what came in and out of the model is in ``seen``."""

        def train(*options: str, steps: int = 2) -> Any:
            out = tmp_path / "out"
            given = arguments(data, out, "--max-steps", str(steps), *options)
            trainer: Any = Trainer(parse(given), ALONE)
            trainer.seen = []

            def look(_: Any, inputs: Any, output: Any) -> None:
                trainer.seen.append((inputs[0], output))

            if "--compile" not in options:
                trainer.model.register_forward_hook(look)
            trainer.run()
            return trainer

        return train

    @pytest.mark.parametrize("kind", ["bfloat16", "float16"])
    def test_amp(self, trained: Callable[..., Any], kind: str) -> None:
        trainer = trained("--amp", kind)
        dtype = getattr(torch, kind)
        assert all(images.dtype == logits.dtype == dtype for images, logits in trainer.seen)
        assert all(parameter.dtype == torch.float32 for parameter in trainer.model.parameters())
        scaler = checkpoint.load(trainer.out / "checkpoint.pt")["scaler"]
        assert bool(scaler) == (kind == "float16")

    def test_no_amp(self, trained: Callable[..., Any]) -> None:
        for images, logits in trained().seen:
            assert images.dtype == logits.dtype == torch.float32

    @pytest.mark.parametrize("on", [True, False])
    def test_channels_last(self, trained: Callable[..., Any], on: bool) -> None:
        trainer = trained("--channels-last" if on else "--no-channels-last")
        tensors = [images for images, _ in trainer.seen] + [trainer.model.conv1.weight]
        for tensor in tensors:
            assert tensor.is_contiguous(memory_format=torch.channels_last) == on
            assert tensor.is_contiguous() != on

    @pytest.mark.parametrize("on", [True, False])
    def test_cudnn_autotune(
        self, trained: Callable[..., Any], on: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", not on)
        trained("--cudnn-autotune" if on else "--no-cudnn-autotune")
        assert torch.backends.cudnn.benchmark == on

    def test_compile(self, trained: Callable[..., Any]) -> None:
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        counters.clear()
        plain = trained("--val", "").model.state_dict()
        assert not counters["frames"]
        compiled = trained("--compile", "--compile-backend", "eager").model.state_dict()
        assert counters["frames"]["ok"] >= 1
        assert plain.keys() == compiled.keys()
        for name, value in plain.items():
            torch.testing.assert_close(value, compiled[name], atol=1e-3, rtol=1e-3)

    def test_fused(self, trained: Callable[..., Any]) -> None:
        results = []
        for flag, on in (("--fused", True), ("--no-fused", False)):
            trainer = trained(flag)
            for parameter in trainer.model.parameters():
                parameter.grad = torch.ones_like(parameter)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
                trainer.stepper.optimiser.step()
            names = {event.key for event in seen.key_averages()}
            assert ("aten::_fused_sgd_" in names) == on
            results.append(trainer.model.state_dict())
        for one, other in zip(results[0].values(), results[1].values(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("on", [True, False])
    def test_set_to_none(self, trained: Callable[..., Any], on: bool) -> None:
        for parameter in trained("--set-to-none" if on else "--no-set-to-none").model.parameters():
            assert parameter.grad is None if on else not parameter.grad.any()

    @pytest.mark.parametrize("on", [True, False])
    def test_bias_before_norm(self, trained: Callable[..., Any], on: bool) -> None:
        trainer = trained("--bias-before-norm" if on else "--no-bias-before-norm", steps=1)
        convolutions = [m for m in trainer.model.modules() if isinstance(m, torch.nn.Conv2d)]
        assert len(convolutions) == 20
        assert all((one.bias is not None) == on for one in convolutions)

    @pytest.mark.parametrize("on", [True, False])
    def test_decay_norm_and_bias(self, trained: Callable[..., Any], on: bool) -> None:
        flag = "--decay-norm-and-bias" if on else "--no-decay-norm-and-bias"
        trainer = trained(flag, "--momentum", "0", "--weight-decay", "0.5")
        for parameter in trainer.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        for group in trainer.stepper.optimiser.param_groups:
            group["lr"] = 1.0
        trainer.stepper.optimiser.step()
        for name, parameter in trainer.model.named_parameters():
            decayed = parameter.ndim > 1 or on
            torch.testing.assert_close(parameter, before[name] * (0.5 if decayed else 1.0))

    def test_sync_batch_norm_is_refused_without_gpus(self, trained: Callable[..., Any]) -> None:
        with pytest.raises(UsageError, match="sync_batch_norm needs GPUs"):
            trained("--sync-batch-norm")

    @pytest.mark.parametrize(
        ("scaling", "wanted"), [("linear", 0.1 * 48 / 256), ("sqrt", 0.1 * (48 / 256) ** 0.5)]
    )
    def test_learning_rate(self, trained: Callable[..., Any], scaling: str, wanted: float) -> None:
        """160 images in batches of 16, three a step: 4 steps an epoch, the last of one batch."""
        options = ["--lr-scaling", scaling, "--accumulate", "3", "--epochs", "3"]
        options += ["--warmup-epochs", "1"]
        trainer = trained(*options, steps=12)
        assert len(trainer.seen) == 30
        rates = [wanted * (step + 1) / 4 for step in range(4)]
        rates += [wanted * (1 + np.cos(np.pi * step / 8)) / 2 for step in range(8)]
        for steps in (1, 4, 5, 9):
            (trainer.out / "checkpoint.pt").unlink()
            trained(*options, steps=steps)
            state = checkpoint.load(trainer.out / "checkpoint.pt")
            found = {group["lr"] for group in state["optimiser"]["param_groups"]}
            assert list(found) == [pytest.approx(rates[steps])]
        constant = trained(*options, "--decay", "constant", "--lr-scaling", "none", steps=9)
        assert constant.stepper.optimiser.param_groups[0]["lr"] == 0.1

    def test_nesterov_and_label_smoothing(self, trained: Callable[..., Any]) -> None:
        trainer = trained("--nesterov", "--label-smoothing", "0.3", steps=1)
        assert all(group["nesterov"] for group in trainer.stepper.optimiser.param_groups)
        _, logits = trainer.seen[0]
        labels = torch.zeros(len(logits), dtype=torch.int64)
        smoothed = functional.cross_entropy(logits, labels, label_smoothing=0.3)
        assert trainer.stepper.loss(logits, labels).item() == pytest.approx(smoothed.item())


@given(
    samples=st.integers(1, 200),
    batch=st.integers(1, 16),
    accumulate=st.integers(1, 5),
    world_size=st.integers(1, 3),
)
def test_gradients_of_several_batches_are_those_of_one(
    samples: int, batch: int, accumulate: int, world_size: int
) -> None:
    epoch = Epoch(samples, batch, 0, world_size)
    places = list(weights(epoch, accumulate))
    assert len(places) == len(epoch)
    values = torch.randn(samples * 2, generator=torch.Generator().manual_seed(0))
    begin, total, number = 0, 0.0, 0
    for index, place in enumerate(places):
        size = len(epoch.positions(index))
        total += values[number : number + size].mean().item() * place.share
        number += size
        if place.last:
            assert total == pytest.approx(values[begin:number].mean().item(), abs=1e-5)
            begin, total = number, 0.0
    assert places[-1].last and sum(place.last for place in places) == -(-len(epoch) // accumulate)


@given(steps=st.integers(1, 300), warmup=st.integers(0, 300))
def test_the_rate_rises_then_falls(steps: int, warmup: int) -> None:
    rates = [
        schedule.factor(step, steps=steps, warmup=warmup, decay="cosine") for step in range(steps)
    ]
    assert all(0 <= rate <= 1 for rate in rates)
    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == sorted(rising) and falling == sorted(falling, reverse=True)
    assert not falling or falling[0] == 1
    assert schedule.factor(max(steps, warmup), steps=steps, warmup=warmup, decay="cosine") in (
        pytest.approx(0, abs=1e-12),
        1.0 if warmup >= steps else 0.0,
    )


class TestCheckpoints:
    def test_a_failed_write_leaves_the_one_before(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint.pt"
        state: dict[str, Any] = dict.fromkeys(checkpoint._KEYS - {"version"}, 1)
        checkpoint.save(state, path)
        with pytest.raises(Exception, match="pickle"):
            checkpoint.save(state | {"model": (torch.zeros(1000), lambda: 0)}, path)
        assert checkpoint.load(path)["model"] == 1

    def test_one_cut_short_is_named(self, data: dict[str, Path], tmp_path: Path) -> None:
        given = arguments(data, tmp_path, "--max-steps", "1")
        train_imagenet.main(given)
        path = tmp_path / "checkpoint.pt"
        path.write_bytes(path.read_bytes()[:-3000])
        with pytest.raises(DataError, match=r"checkpoint\.pt: cannot be read"):
            train_imagenet.main([*given, "--resume", "auto"])

    def test_one_of_another_run_is_refused(self, data: dict[str, Path], tmp_path: Path) -> None:
        train_imagenet.main(arguments(data, tmp_path, "--max-steps", "1"))
        with pytest.raises(UsageError, match=r"width=8, this run has 16"):
            train_imagenet.main(arguments(data, tmp_path, "--resume", "auto", "--width", "16"))
        with pytest.raises(UsageError, match="no such checkpoint"):
            train_imagenet.main(arguments(data, tmp_path, "--resume", str(tmp_path / "none.pt")))

    def test_options_are_those_of_the_run_that_goes_on(
        self, data: dict[str, Path], tmp_path: Path
    ) -> None:
        first = arguments(data, tmp_path, "--max-steps", "3", "--lr", "0.1", "--decay", "constant")
        train_imagenet.main([*first, "--warmup-epochs", "0", "--momentum", "0.5"])
        changed = ["--lr", "0.2", "--decay", "constant", "--warmup-epochs", "0"]
        changed += ["--momentum", "0.7", "--no-fused", "--lr-scaling", "none"]
        given = arguments(data, tmp_path, *changed, "--resume", "auto", "--max-steps", "5")
        trainer = Trainer(parse(given), ALONE)
        for steps in (3, 5):
            assert trainer.step == steps
            for group in trainer.stepper.optimiser.param_groups:
                assert (group["lr"], group["momentum"], group["fused"]) == (0.2, 0.7, False)
            trainer.run()

    @pytest.mark.parametrize("batch_size", [8, 16, 32])
    def test_the_rate_goes_on_by_epochs_when_batches_change(
        self, data: dict[str, Path], tmp_path: Path, batch_size: int
    ) -> None:
        options = ["--epochs", "4", "--warmup-epochs", "0", "--lr", "0.1", "--lr-scaling", "none"]
        train_imagenet.main(arguments(data, tmp_path, *options, "--max-steps", "20"))
        options += ["--batch-size", str(batch_size), "--resume", "auto"]
        trainer = Trainer(parse(arguments(data, tmp_path, *options)), ALONE)
        # Half of the run is done, so half of the cosine.
        for group in trainer.stepper.optimiser.param_groups:
            assert group["lr"] == pytest.approx(0.05)


class TestOptions:
    def test_yaml_begins_from_others_and_the_command_line_has_the_last_word(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "base.yaml").write_text("lr: 1e-4\nepochs: 3\nwidth: 16\n")
        (tmp_path / "more.yaml").write_text("epochs: 4\nfused: false\n")
        top = tmp_path / "top.yaml"
        top.write_text("defaults: [base.yaml, more.yaml]\nwidth: 32\ntrain: some\n")
        config = parse(["--config", str(top), "--batch-size", "7", "--fused"])
        assert (config.lr, config.epochs, config.width) == (1e-4, 4, 32)
        assert (config.train, config.batch_size, config.fused) == ("some", 7, True)
        assert config.momentum == Config().momentum

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("batchsize: 3", r"c\.yaml: unrecognized arguments: --batchsize=3\n--help lists all"),
            ("epochs: many", r"c\.yaml: argument --epochs: invalid int value: 'many'"),
            ("epochs: true", "argument --epochs: invalid int value: 'True'"),
            ("fused: 1", "argument --fused.*'1'"),
            ("model: vgg", "choose from .*resnet18.*resnet50"),
            ("defaults: c.yaml", "begins from itself"),
            ("defaults: none.yaml", r"none\.yaml, which .*c\.yaml begins from"),
            ("defaults: 3", "Name a file, or a list of files"),
            ("- lr", "not options and their values"),
            ("lr: [", r"c\.yaml: while parsing"),
            ("lr: -1", "lr is -1.0"),
            ("nesterov: true\nmomentum: 0", "nesterov needs momentum"),
        ],
    )
    def test_a_wrong_file_is_refused(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(UsageError, match=said):
            parse(["--config", str(tmp_path / "c.yaml"), "--train", "some"])

    def test_the_files_beside_the_recipe_are_right(self) -> None:
        folder = Path(train_imagenet.__file__).parent / "configs"
        files = sorted(folder.glob("*.yaml"))
        assert len(files) >= 4
        for path in files:
            assert Config(**read_yaml(path)).lr == 0.1

    def test_a_missing_dataset_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="nothing to train on"):
            train_imagenet.main([])
        with pytest.raises(Exception, match="nothing-there"):
            train_imagenet.main(["--train", str(tmp_path / "nothing-there"), *SMALL])


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# torch's own compiler still imports it.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
def test_on_a_gpu_all_switches_learn(data: dict[str, Path], tmp_path: Path) -> None:
    options = ["--device", "cuda", "--amp", "bfloat16", "--compile", "--sync-batch-norm"]
    options += ["--epochs", "4", "--lr", "1", "--warmup-epochs", "0.5", "--val", str(data["val"])]
    done = train_imagenet.main(arguments(data, tmp_path, *options))
    assert done["val"]["top1"] > 0.9 and os.path.exists(tmp_path / "best.pt")

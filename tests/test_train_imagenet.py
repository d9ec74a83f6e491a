"""The training script: it learns, and resumes to the bit from wherever it was stopped."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_data
import training_models
import training_ranks
from hangs import HANG
from torch.nn import functional

import fastdata
from fastdata import ImageDataset

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent.parent / "examples" / "train_imagenet.py"

SMALL = ["--model", "tiny", "--device", "cpu", "--dtype", "float32", "--size", "32"]
SMALL += ["--val-size", "32", "--val-resize", "37", "--batch-size", "16", "--epochs", "2"]
SMALL += ["--warmup", "0.5", "--lr", "0.1", "--ema-decay", "0.9", "--ema-every", "2"]
SMALL += ["--save-every", "3"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    training_models.register()  # skips the tests without torchvision
    root = tmp_path_factory.mktemp("training")
    return {"tree": root / "tree", **training_data.packed(root)}


class Runs:
    def __init__(self, data: dict[str, Path], root: Path) -> None:
        self.data, self.root = data, root

    def run(self, out: str, *options: str, **more: Any) -> tuple[list[int], str]:
        paths = ["--train", str(self.data["train"]), "--val", str(self.data["val"])]
        paths += ["--out", str(self.root / out)]
        given = [*SMALL, *paths, *options]
        ended = training_ranks.run(self.root / f"{out}-printed", *given, **more)
        return [status for status, _ in ended], "".join(text for _, text in ended)

    def checkpoint(self, out: str) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(self.root / out / "checkpoint.pt", weights_only=True)
        return state


@pytest.fixture
def runs(data: dict[str, Path], tmp_path: Path) -> Runs:
    return Runs(data, tmp_path)


@pytest.fixture(scope="module")
def whole(
    data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[int, Any]]:
    runs = Runs(data, tmp_path_factory.mktemp("whole"))
    statuses, said = runs.run("whole")
    assert statuses == [0, 0], said
    return runs.checkpoint("whole"), scores(said)


def lines(said: str, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [line for line in found if line["kind"] == kind]


def scores(said: str) -> dict[int, Any]:
    return {line["step"]: line for line in lines(said, "val")}


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"out"}:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@pytest.mark.parametrize(
    ("accident", "statuses", "step"),
    [
        # 5 steps an epoch, saved after 3, 5, 6, 9 and 10; both ranks stop after the same step.
        ("1:train:2:15", [143, 143], 2),
        ("1:train:7:9", [1, -9], 6),
        ("0:save:2:15", [143, 143], 5),
        ("0:save:2:9", [-9, 1], 3),
        ("1:val:1:9", [1, -9], 5),
        ("1:train:4:nan", [1, 1], 3),
    ],
)
def test_stopped_in_any_phase_and_resumed_is_as_undisturbed(
    runs: Runs, whole: Any, accident: str, statuses: list[int], step: int
) -> None:
    """Compare weights, average, momentum, rate and position; and each epoch is scored."""
    found, said = runs.run("out", accident=accident)
    assert found == statuses, said
    assert runs.checkpoint("out")["step"] == step
    again, more = runs.run("out")
    assert again == [0, 0], more
    assert [line["step"] for line in lines(more, "resumed")] == [step]
    assert_same(runs.checkpoint("out"), whole[0])
    assert scores(said) | scores(more) == whole[1]


def test_the_undisturbed_run_learns_and_its_score_is_right(
    data: dict[str, Path], whole: Any, runs: Runs
) -> None:
    """Score the images one by one with Pillow: 53, which two ranks cannot share evenly."""
    state, found = whole
    assert (state["step"], state["data"]["epoch"], list(found)) == (10, 2, [5, 10])
    network = training_models.tiny(training_data.CLASSES)
    average = {name.removeprefix("module."): one for name, one in state["ema"].items()}
    average.pop("n_averaged")
    network.load_state_dict(average)
    network.eval()
    losses, right, dataset = [], 0, ImageDataset(data["val"])
    mean, std = np.float32((0.485, 0.456, 0.406)), np.float32((0.229, 0.224, 0.225))
    for number in range(len(dataset)):
        image, label = dataset[number]
        width = 37 * image.width // image.height
        left, top = round((width - 32) / 2), round((37 - 32) / 2)
        cut = image.resize((width, 37), 2).crop((left, top, left + 32, top + 32))
        pixels = (np.asarray(cut, np.float32) / 255 - mean) / std
        with torch.no_grad():
            logits = network(torch.from_numpy(pixels).permute(2, 0, 1)[None])
        losses.append(functional.cross_entropy(logits, torch.tensor([label])).item())
        right += int(logits.argmax()) == label
    # Pillow's pixels are another level here and there: one image may fall to the other side.
    assert found[10]["top1"] == pytest.approx(right / len(dataset), abs=1.01 / len(dataset))
    assert found[10]["loss"] == pytest.approx(np.mean(losses), abs=0.02)
    statuses, said = runs.run("longer", "--epochs", "8", "--lr", "1")
    assert statuses == [0, 0], said
    assert scores(said)[40]["top1"] > 0.6 > 2 / training_data.CLASSES


def test_a_failed_write_keeps_the_checkpoint_before(runs: Runs) -> None:
    assert runs.run("out", accident="0:train:4:15")[0] == [143, 143]
    (runs.root / "out" / "checkpoint.partial").symlink_to("/dev/full")
    statuses, said = runs.run("out")
    assert 0 not in statuses and "No space left" in said
    assert runs.checkpoint("out")["step"] == 4


def test_it_resumes_with_the_same_options_alone(runs: Runs) -> None:
    """Another rate or number of ranks would follow a schedule that was made for these."""
    assert runs.run("out", accident="0:train:1:15")[0] == [143, 143]
    for options, ranks in (["--lr", "0.2"], 2), ([], 1):
        statuses, said = runs.run("out", *options, ranks=ranks)
        assert statuses == [1] * ranks and "'lr': 0.1" in said and "'ranks': 2" in said
        assert runs.checkpoint("out")["step"] == 1


def test_datasets_of_different_classes_are_refused(data: dict[str, Path], runs: Runs) -> None:
    from fastdata.converters import ImageFolder, pack

    tree = shutil.copytree(data["tree"] / "val", runs.root / "tree")
    shutil.move(tree / "class3", tree / "other")
    pack(ImageFolder(tree), runs.root / "val", workers=1)
    statuses, said = runs.run("out", "--val", str(runs.root / "val"))
    assert statuses == [1, 1] and "different classes" in said


@pytest.mark.parametrize("option", [["--bacth-size", "3"], ["--epochs", "many"]])
def test_wrong_options_are_refused(runs: Runs, option: list[str]) -> None:
    statuses, said = runs.run("out", *option, ranks=1)
    assert statuses == [2] and option[0] in said


def test_it_can_be_read_and_uses_public_names_alone() -> None:
    """200 lines at most; and a copy of the file needs nothing beside it."""
    text = SCRIPT.read_text()
    assert len(text.splitlines()) <= 200
    names = [
        alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fastdata")
        for alias in node.names
        if node.module == "fastdata" or pytest.fail(f"imports from {node.module}")
    ]
    assert set(names) <= {*fastdata.__all__, "transforms"}
    assert "import fastdata" not in text


def test_the_batch_script_runs_torchrun_on_each_node(runs: Runs) -> None:
    """What Slurm brings is there in small: its variables, ``scontrol``, and an ``srun``."""
    script = shutil.copy(SCRIPT, runs.root / "mine.py")
    source = Path(script).read_text()
    register = "import training_models; training_models.register()\n"
    Path(script).write_text(register + source)
    commands = runs.root / "bin"
    commands.mkdir()
    (commands / "scontrol").write_text("#!/bin/bash\necho localhost\n")
    (commands / "srun").write_text(
        '#!/bin/bash\n[ "$SRUN_CPUS_PER_TASK" = "$SLURM_CPUS_PER_TASK" ] || exit 9\n'
        'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n'
    )
    (commands / "torchrun").write_text(
        f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    )
    for command in commands.iterdir():
        command.chmod(0o755)
    environ = {"PATH": f"{commands}:/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parent)}
    environ |= {"SLURM_CPUS_PER_TASK": "2", "SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2"}
    environ |= {"SLURM_JOB_ID": str(os.getpid())}  # which decides the port
    environ |= {"SLURM_JOB_NODELIST": "localhost", "OMP_NUM_THREADS": "1"}
    environ |= {"FASTDATA_TRAIN": str(script), "CUDA_VISIBLE_DEVICES": ""}
    words = ["--train", str(runs.data["train"]), "--val", str(runs.data["val"]), *SMALL]
    done = subprocess.run(
        ["bash", str(SCRIPT.with_suffix(".slurm")), *words, "--out", str(runs.root / "out")],
        capture_output=True, text=True, timeout=HANG, env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert runs.checkpoint("out")["step"] == 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_learns_on_a_gpu(runs: Runs) -> None:
    options = ["--device", "cuda", "--dtype", "bfloat16"]
    statuses, said = runs.run("out", *options, "--epochs", "8", "--lr", "1", ranks=1)
    assert statuses == [0], said
    assert scores(said)[80]["top1"] > 0.6

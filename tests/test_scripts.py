"""Training scripts of others with the lines of docs/guides/replace-dataloader.md.

FASTDATA_SCRIPTS names a folder of checkouts, or is one (make test-loops SRC=folder).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hangs import HANG
from PIL import Image

SAMPLES = 8  # of each split, every one of a class of its own; two batches

#: Where a script lies in its checkout, what else is in there, and its arguments.
SCRIPTS = {
    "pytorch/examples": (
        "imagenet/main.py",
        "imagenet",
        "{data} -a resnet18 -b 4 -j 2 --epochs 2",
    ),
    "torchvision": (
        "references/classification/train.py",
        "references",
        "--data-path {data} --model resnet18 --device cpu -b 4 -j 2 --epochs 2 --output-dir . "
        "--train-crop-size 64 --val-resize-size 72 --val-crop-size 64",
    ),
    "torchvision, its recipe": (
        "references/classification/train.py",
        "references",
        "--data-path {data} --model resnet18 --device cpu -b 4 -j 2 --epochs 2 --output-dir . "
        "--train-crop-size 64 --val-resize-size 72 --val-crop-size 64 --auto-augment ta_wide "
        "--random-erase 0.1 --label-smoothing 0.1",
    ),
    "timm": (
        "train.py",
        "timm",
        "{data} --dataset torch/image_folder --model resnet18 --img-size 64 --num-classes 8 "
        "--device cpu -b 4 -j 2 --epochs 2 --warmup-epochs 0 --cooldown-epochs 0 --output .",
    ),
}


def find(script: str, beside: str) -> Path:
    source = os.environ.get("FASTDATA_SCRIPTS")
    if not source:
        pytest.skip("no checkouts were given (make test-loops SRC=folder)")
    folder = Path(source).resolve()
    for checkout in (folder, *sorted(folder.iterdir())):
        if (checkout / script).is_file() and (checkout / beside).is_dir():
            return checkout / script
    pytest.skip(f"{folder} has no {script}")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for split in ("train", "val"):
        for number in range(SAMPLES):
            image = Image.fromarray(np.full((240 + number, 250, 3), number * 10, np.uint8))
            path = folder / split / f"class{number}" / "0.jpg"
            path.parent.mkdir(parents=True)
            image.save(path)
    return folder


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_natively(images: Path, tmp_path: Path, name: str) -> None:
    where, beside, arguments = SCRIPTS[name]
    script = find(where, beside)
    report = tmp_path / "report.json"
    runner = Path(__file__).with_name("run_script.py")
    command = [sys.executable, runner, report, script, *arguments.format(data=images).split()]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert not re.search(r"loss: +(nan|inf)", done.stdout)
    passes = json.loads(report.read_text())
    assert len(passes) == 4  # training and validation, twice
    for one in passes:
        assert one["explained"].startswith("native"), one["explained"]
        assert sorted(one["samples"]) == list(range(SAMPLES))
    first, _, second, _ = (one["samples"] for one in passes)
    assert first != second
    assert "SlowPathWarning" not in done.stderr

"""One rung of the training ladder: trains some steps, measures them, writes JSON.

python -m fastdata.benchmarks.train_rung SETTING.json

torchrun starts one process a GPU; the first one writes.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastdata.benchmarks.adapters._transforms import image_folder, train_crop
from fastdata.examples.training.optimiser import make_sgd, parameter_groups
from fastdata.examples.training.resnet import ResNet
from PIL import Image
from torch import distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, DistributedSampler

from fastdata import DataLoader, DeviceLoader, ImageDataset, fast_collate
from fastdata.errors import UsageError
from fastdata.profile import StepTimer
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Setting:
    """How one rung trains.

    Attributes:
        tree: Folder of class folders.
        packed: Dataset of the same images.
        fastdata: Whether fastdata's DataLoader reads ``packed``; else torch's reads ``tree``.
        workers: Worker processes, or fastdata's threads, of all training processes together.
        pin: Whether batches are page-locked, and copied without waiting.
        batch: Images a step, of all GPUs together.
        uint8: Whether images go to the device as bytes, and are normalised there.
        set_to_none: Whether gradients are dropped rather than zeroed.
        amp: Mixed precision: bfloat16 where the device has it, else float16.
        channels_last: Layout of images and weights.
        autotune: Whether cuDNN times its algorithms.
        fused: SGD in one kernel.
        compile: torch.compile.
        ddp: DistributedDataParallel, one process a GPU, instead of DataParallel.
        model: Name of the network.
        width: Channels of its first stage.
        image_size: Side of the crops, in pixels.
        steps: Measured.
        warmup: Steps before them.
        device: "cuda" or "cpu".
        out: File for what was measured.
    """

    tree: str = ""
    packed: str = ""
    fastdata: bool = False
    workers: int = 0
    pin: bool = False
    batch: int = 256
    uint8: bool = False
    set_to_none: bool = False
    amp: bool = False
    channels_last: bool = False
    autotune: bool = False
    fused: bool = False
    compile: bool = False
    ddp: bool = False
    model: str = "resnet18"
    width: int = 64
    image_size: int = 224
    steps: int = 300
    warmup: int = 10
    device: str = "cuda"
    out: str = ""

    def dtype(self) -> torch.dtype:
        """What images are on the device."""
        if not self.amp:
            return torch.float32
        if self.device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.float16
        return torch.bfloat16

    def layout(self) -> torch.memory_format:
        """Of images and weights."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


class _Tree(Dataset[tuple[Any, int]]):
    """Images of class folders, cropped at random by Pillow: torchvision's ImageFolder."""

    def __init__(self, setting: Setting) -> None:
        self._samples = image_folder(setting.tree)
        self._size, self._uint8 = setting.image_size, setting.uint8

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._samples[index]
        with Image.open(path) as image:
            crop = train_crop(image.convert("RGB"), self._size)
        if self._uint8:
            return crop, label
        pixels = torch.from_numpy(np.array(crop)).permute(2, 0, 1).contiguous().float().div_(255)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
        return pixels.sub_(mean).div_(std), label


def batches(
    setting: Setting, device: torch.device, rank: int = 0, world_size: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images (N, 3, S, S), normalised, and labels (N,) on the device, epoch after epoch.

    Raises:
        UsageError: There are too few images for a batch.
    """
    options: dict[str, Any] = {
        "batch_size": setting.batch // world_size,
        "num_workers": (workers := -(-setting.workers // world_size)),
        "pin_memory": setting.pin,
        "persistent_workers": workers > 0,
        "drop_last": True,
    }
    sampler: DistributedSampler[Any] | None = None
    loader: Any
    if setting.fastdata:
        crops = Compose((RandomResizedCrop(setting.image_size), RandomHorizontalFlip()))
        dataset = ImageDataset(setting.packed, transform=crops, staged=False)
        loader = DeviceLoader(
            DataLoader(dataset, shuffle=True, seed=0, shard=(rank, world_size), **options),
            device,
            dtype=setting.dtype(),
            mean=MEAN,
            std=STD,
            channels_last=setting.channels_last,
        )
    else:
        tree = _Tree(setting)
        if world_size > 1:
            sampler = DistributedSampler(tree, world_size, rank)
        loader = torch.utils.data.DataLoader(
            tree,
            shuffle=sampler is None,
            sampler=sampler,
            collate_fn=fast_collate if setting.uint8 else None,
            **options,
        )
    if not len(loader):
        raise UsageError(
            f"{setting.tree} has too few images for a batch of {setting.batch}",
            "Give --images, which repeats them, or smaller batches.",
        )
    return _forever(loader, sampler, setting, device)


def _forever(
    loader: Any, sampler: DistributedSampler[Any] | None, setting: Setting, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) * 255 for v in (MEAN, STD))
    for epoch in itertools.count():
        if sampler is not None:
            sampler.set_epoch(epoch)  # without it, every epoch has the first one's order
        for images, labels in loader:
            images = images.to(device, non_blocking=setting.pin)
            labels = labels.to(device, non_blocking=setting.pin)
            if images.dtype == torch.uint8:
                images = ((images - mean) / std).to(setting.dtype())
            yield images.contiguous(memory_format=setting.layout()), labels


def train(setting: Setting) -> dict[str, Any]:
    """Trains as a rung does.

    Returns:
        "seconds" and "images" of the measured "steps", "wait_share" (0 to 1), "phases_s", "loss"
        of the last step, "processes", "batch" (images a step, of all processes).

    Raises:
        UsageError: There are too few images, or a batch cannot be divided.
    """
    device = torch.device("cpu")
    if setting.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not setting.ddp:
        return _train(setting, device, 0, 1)
    dist.init_process_group("nccl" if setting.device == "cuda" else "gloo")
    try:
        return _train(setting, device, dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def _train(setting: Setting, device: torch.device, rank: int, world_size: int) -> dict[str, Any]:
    if setting.batch % world_size:
        raise UsageError(
            f"a batch of {setting.batch} cannot be divided among {world_size} processes",
            "Give another --batch-size and --large-batch.",
        )
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = setting.autotune
    classes = sum(1 for entry in Path(setting.tree).iterdir() if entry.is_dir())
    plain: Any = ResNet(setting.model, classes, width=setting.width)
    plain.to(device, memory_format=setting.layout())
    model: Any = plain
    if setting.ddp:
        ids = [device.index] if device.type == "cuda" else None
        model = nn.parallel.DistributedDataParallel(plain, device_ids=ids)
    elif device.type == "cuda" and torch.cuda.device_count() > 1:
        model = nn.DataParallel(plain)
    if setting.compile:
        model = torch.compile(model)
    groups = parameter_groups(plain, 5e-5, decay_norm_and_bias=True)
    sgd = make_sgd(groups, 0.01, 0.9, nesterov=False, fused=setting.fused)
    half = setting.dtype()
    scaler = torch.amp.GradScaler(device.type, enabled=half == torch.float16)
    autocast: Any = torch.autocast(device.type, half) if setting.amp else nullcontext()
    loss: Any = torch.zeros(())  # backward() is untyped

    def synchronise() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if setting.ddp:
            dist.barrier()

    source = batches(setting, device, rank, world_size)

    def run(steps: int, timer: StepTimer) -> float:
        """Seconds of some steps."""
        nonlocal loss
        synchronise()
        begun = time.perf_counter()
        for images, labels in timer.batches(itertools.islice(source, steps)):
            with timer.phase("forward"), autocast:
                logits = model(images)
            with timer.phase("loss"), autocast:
                loss = functional.cross_entropy(logits, labels)
            with timer.phase("backward"):
                scaler.scale(loss).backward()
            with timer.phase("optimiser"):
                scaler.step(sgd)
                scaler.update()
                sgd.zero_grad(set_to_none=setting.set_to_none)
        synchronise()
        return time.perf_counter() - begun

    run(setting.warmup, StepTimer(every=0))
    timer = StepTimer(every=0)
    seconds = run(setting.steps, timer)
    phases = timer.totals()
    return {
        "seconds": seconds,
        "images": setting.steps * setting.batch,
        "steps": setting.steps,
        "wait_share": phases.get("wait", 0.0) / seconds,
        "phases_s": phases,
        "loss": loss.item(),
        "processes": world_size,
        "batch": setting.batch,
    }


def main() -> None:
    """Trains as the file that the command line names says."""
    setting = Setting(**json.loads(Path(sys.argv[1]).read_text()))
    found = train(setting)
    if int(os.environ.get("RANK", "0")) == 0:
        Path(setting.out).write_text(json.dumps(found))


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(f"error: {error}")

"""One rung of the training ladder: trains some steps, measures them, writes JSON.

python -m fastdata.benchmarks.train_rung SETTING.json

Under torchrun there are several of these, and the first one writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from fastdata.benchmarks import train_sources
from fastdata.benchmarks.train_rungs import Setting
from fastdata.examples.training.optimiser import make_sgd, parameter_groups
from fastdata.examples.training.resnet import ResNet
from torch import distributed as dist
from torch import nn
from torch.nn import functional

from fastdata.errors import UsageError
from fastdata.profile import StepTimer


class GpuUse:
    """Samples how busy GPUs are, while it is entered: percent of the time that kernels ran."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._found: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> GpuUse:
        if self._gpus:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._gpus:
            self._thread.join()

    @property
    def mean(self) -> float | None:
        """Over time and GPUs, 0 to 100; None where the driver does not tell."""
        return sum(self._found) / len(self._found) if self._found else None

    def _sample(self) -> None:
        while not self._done.wait(0.25):
            found = [utilization(number) for number in range(self._gpus)]
            self._found += [float(one) for one in found if one is not None]


def utilization(gpu: int) -> int | None:
    """What NVML says of a GPU, by its Python binding or by nvidia-smi; None if neither does."""
    try:
        return int(torch.cuda.utilization(gpu))
    except (ModuleNotFoundError, RuntimeError):
        pass
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(
            [*query, f"--id={gpu}"], capture_output=True, text=True, timeout=5, check=True
        )
        return int(told.stdout.strip())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def train(setting: Setting) -> dict[str, Any]:
    """Trains as a rung does.

    Returns:
        "seconds" and "images" of the measured steps, "wait_share" (0 to 1), "phases_s",
        "gpu_use" (0 to 100 or None), "loss" of the last step, "processes", "batch" (images a step,
        of all processes).

    Raises:
        UsageError: There are too few images, or a batch cannot be divided.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    cuda = setting.device == "cuda"
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    rank, world_size = 0, 1
    if setting.ddp:
        dist.init_process_group("nccl" if cuda else "gloo")
        rank, world_size = dist.get_rank(), dist.get_world_size()
    if setting.batch % world_size:
        raise UsageError(
            f"a batch of {setting.batch} cannot be divided among {world_size} processes",
            "Give another --batch-size and --large-batch.",
        )
    try:
        return _train(setting, device, rank, world_size)
    finally:
        if setting.ddp:
            dist.destroy_process_group()


def _train(setting: Setting, device: torch.device, rank: int, world_size: int) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = setting.autotune
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    half = torch.bfloat16
    if gpus and not torch.cuda.is_bf16_supported(including_emulation=False):
        half = torch.float16
    layout = torch.channels_last if setting.channels_last else torch.contiguous_format
    plain: Any = ResNet(setting.model, train_sources.classes(setting), width=setting.width)
    plain.to(device, memory_format=layout)
    model: Any = plain
    if setting.ddp:
        ids = [device.index] if gpus else None
        model = nn.parallel.DistributedDataParallel(plain, device_ids=ids)
    elif gpus > 1:
        model = nn.DataParallel(plain)
    if setting.compile:
        model = torch.compile(model)
    groups = parameter_groups(plain, 5e-5, decay_norm_and_bias=True)
    sgd = make_sgd(groups, 0.01, 0.9, nesterov=False, fused=setting.fused)
    scaler = torch.amp.GradScaler(device.type, enabled=setting.amp and half == torch.float16)
    autocast: Any = torch.autocast(device.type, half) if setting.amp else nullcontext()
    loss = torch.zeros(())

    def step(images: torch.Tensor, labels: torch.Tensor, timer: StepTimer) -> torch.Tensor:
        with timer.phase("forward"), autocast:
            logits = model(images)
        with timer.phase("loss"), autocast:
            found: Any = functional.cross_entropy(logits, labels)
        with timer.phase("backward"):
            scaler.scale(found).backward()
        with timer.phase("optimiser"):
            scaler.step(sgd)
            scaler.update()
            sgd.zero_grad(set_to_none=setting.set_to_none)
        loss: torch.Tensor = found.detach()
        return loss

    batches = train_sources.batches(setting, device, half, rank, world_size)
    for images, labels in islice(batches, setting.warmup):
        step(images, labels, StepTimer(every=0))
    _synchronise(device, setting.ddp)
    timer = StepTimer(every=0)
    used = GpuUse(gpus if rank == 0 else 0)
    with used:
        begun = time.perf_counter()
        for images, labels in timer.batches(islice(batches, setting.steps)):
            loss = step(images, labels, timer)
        _synchronise(device, setting.ddp)
        seconds = time.perf_counter() - begun
    phases = timer.totals()
    return {
        "seconds": seconds,
        "images": setting.steps * setting.batch,
        "steps": setting.steps,
        "wait_share": phases.get("wait", 0.0) / seconds,
        "phases_s": phases,
        "gpu_use": used.mean,
        "loss": loss.item(),
        "processes": world_size,
        "batch": setting.batch,
        "amp": str(half).removeprefix("torch.") if setting.amp else None,
    }


def _synchronise(device: torch.device, ddp: bool) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if ddp:
        dist.barrier()


def main() -> None:
    """Runs as the file that the command line names says."""
    setting = Setting(**json.loads(Path(sys.argv[1]).read_text()))
    found = train(setting)
    if int(os.environ.get("RANK", "0")) == 0:
        Path(setting.out).write_text(json.dumps(found))


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(f"error: {error}")

"""What a run reports: rates, TensorBoard scalars, and which samples each step saw."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from fastdata.examples.training.ranks import Ranks

from fastdata.errors import UsageError
from fastdata.profile import StepTimer


class Meter:
    """Scalars of the steps since the last look, over all ranks."""

    def __init__(self, ranks: Ranks, timer: StepTimer) -> None:
        self._ranks = ranks
        self._timer = timer
        self._begun, self._waited = self._now()

    def _now(self) -> tuple[float, float]:
        """The clock, and the seconds waited so far."""
        return time.perf_counter(), self._timer.totals().get("wait", 0.0)

    def look(self, sums: torch.Tensor) -> dict[str, float]:
        """Scalars of the steps since the last look; every rank must look.

        Args:
            sums: What `Stepper.take_sums` returned.

        Returns:
            "loss", "top1", "top5" (0 to 1), "images_per_second" of all ranks together,
            "wait_share" (0 to 1, the mean of the ranks).
        """
        sums = sums.double()
        if sums.device.type == "cuda":
            torch.cuda.synchronize(sums.device)  # so that the time includes the GPU's work
        now, total = self._now()
        times = sums.new_tensor([now - self._begun, total - self._waited])
        self._begun, self._waited = now, total
        loss, top1, top5, images, seconds, waited = self._ranks.sum(
            torch.cat((sums, times))
        ).tolist()
        return {
            "loss": loss / max(images, 1),
            "top1": top1 / max(images, 1),
            "top5": top5 / max(images, 1),
            "images_per_second": images * self._ranks.world_size / max(seconds, 1e-9),
            "wait_share": waited / max(seconds, 1e-9),
        }


def open_board(folder: Path, step: int) -> Any:
    """A writer of TensorBoard scalars.

    Args:
        folder: The folder to write to.
        step: Steps done; what an earlier run wrote of later ones is dropped.

    Raises:
        UsageError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise UsageError(
            f"TensorBoard scalars need {error.name}, which is not installed",
            "pip install 'fastdata-torch[train]', or give --no-tensorboard.",
        ) from error
    return SummaryWriter(str(folder), purge_step=step + 1)


class SampleLog:
    """Which samples this rank saw, a line of JSON a step: ``{"epoch", "step", "samples"}``.

    Steps after the checkpoint that a run resumed from were undone: the line
    ``{"resumed": step}`` says so, and lines before it with that step or a later one do not count.
    Steps are numbered from 0.
    """

    def __init__(self, out: Path, rank: int, step: int, resumed: bool) -> None:
        folder = out / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"rank-{rank}.jsonl").open("a" if resumed else "w")
        if resumed:
            self._write({"resumed": step})

    def add(self, epoch: int, step: int, samples: list[int]) -> None:
        """Adds a step that is done."""
        self._write({"epoch": epoch, "step": step, "samples": samples})

    def _write(self, line: dict[str, Any]) -> None:
        # At once: what was seen must not be forgotten when the process is killed.
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

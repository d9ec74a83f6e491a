"""One optimiser step: forward, loss, backward over one or more batches, then the optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from fastdata.examples.training.evaluate import hits
from torch import nn

from fastdata.plan.sharding import Epoch
from fastdata.profile import StepTimer


@dataclass(frozen=True)
class Weight:
    """A batch's place in its optimiser step.

    Attributes:
        share: Its part of the step's samples: what its mean loss is multiplied by.
        last: Whether the step ends with it.
    """

    share: float
    last: bool


def weights(epoch: Epoch, accumulate: int) -> Iterator[Weight]:
    """The place of each batch of (what is left of) an epoch.

    Gradients of several batches add up to that of one large batch, also where the last batch is
    smaller, or the last step has fewer of them. The sizes are the same on every rank.
    """
    for begin in range(0, len(epoch), accumulate):
        numbers = range(begin, min(begin + accumulate, len(epoch)))
        sizes = [len(epoch.positions(number)) for number in numbers]
        for number, size in zip(numbers, sizes, strict=True):
            yield Weight(size / sum(sizes), number == numbers[-1])


class Sums:
    """Loss and hits since the last look, on the device: looking is what waits for it."""

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(4, device=device)

    def add(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Adds a batch, by its mean loss."""
        size = len(labels)
        top1, top5 = hits(logits, labels)
        count = torch.full((), size, device=labels.device)
        self.values += torch.stack((loss * size, top1.sum(), top5.sum(), count))

    def take(self) -> torch.Tensor:
        """Sums of loss, top-1, top-5 and samples, and begins anew."""
        taken, self.values = self.values, torch.zeros_like(self.values)
        return taken


@dataclass
class Stepper:
    """All that a step changes.

    Attributes:
        model: In training mode, as it is to be called: wrapped, compiled.
        optimiser: Of its parameters.
        scaler: Enabled for float16 alone.
        schedule: Sets the learning rate of each step.
        loss: Mean over a batch.
        autocast: Mixed precision, to be entered again for each batch.
        set_to_none: Whether gradients are dropped, or filled with zeros.
        no_sync: While it lasts, gradients stay on their rank.
        sums: Counts what came out.
        timer: Times the phases.
    """

    model: nn.Module
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    schedule: torch.optim.lr_scheduler.LambdaLR
    loss: nn.Module
    autocast: AbstractContextManager[Any]
    set_to_none: bool
    no_sync: Callable[[], AbstractContextManager[Any]]
    sums: Sums
    timer: StepTimer

    def batch(self, images: torch.Tensor, labels: torch.Tensor, weight: Weight) -> None:
        """Adds a batch's gradients, and makes the step if it is the last one's turn."""
        # Gradients go over the network once a step, not once a batch.
        with nullcontext() if weight.last else self.no_sync():
            with self.timer.phase("forward"), self.autocast:
                logits = self.model(images)
            with self.timer.phase("loss"), self.autocast:
                loss = self.loss(logits, labels)
            with self.timer.phase("backward"):
                self.scaler.scale(loss * weight.share).backward()
        self.sums.add(loss.detach(), logits.detach(), labels)
        if not weight.last:
            return
        with self.timer.phase("optimiser"):
            self.scaler.step(self.optimiser)
            self.scaler.update()
            self.schedule.step()
            self.optimiser.zero_grad(set_to_none=self.set_to_none)

    def epoch(
        self, batches: Iterable[Any], places: Iterator[Weight]
    ) -> Iterator[list[torch.Tensor]]:
        """Trains on batches; yields once for each optimiser step, when it is made.

        Yields:
            The sample numbers of each of the step's batches, on the device.
        """
        numbers = []
        for batch, weight in zip(batches, places, strict=True):
            self.batch(batch["image"], batch["label"], weight)
            numbers.append(batch["index"])
            if weight.last:
                yield numbers
                numbers = []

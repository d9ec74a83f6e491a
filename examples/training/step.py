"""One optimiser step: forward, loss, backward over one or more batches, then the optimiser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from fastdata.examples.training import setup
from fastdata.examples.training.config import Config
from fastdata.examples.training.evaluate import hits
from fastdata.examples.training.ranks import Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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


class Stepper:
    """All that a step changes.

    Args:
        config: The options.
        ranks: Who takes part.
        model: With the weights to begin from.
        timer: Times the phases.

    Attributes:
        model: In training mode, as it is to be called: wrapped, compiled.
        optimiser: Of its parameters.
        scaler: Enabled for float16 alone.
        loss: Mean over a batch.
        sums: Of loss, top-1, top-5 and samples since they were taken, on the device: taking them
            is what waits for it.
    """

    def __init__(self, config: Config, ranks: Ranks, model: nn.Module, timer: StepTimer) -> None:
        self.model = model
        self._no_sync: Any = nullcontext
        if ranks.distributed:
            ids = [ranks.local_rank] if ranks.device.type == "cuda" else None
            self.model = DistributedDataParallel(model, ids, gradient_as_bucket_view=True)
            self._no_sync = self.model.no_sync
        if config.compile:
            # Of the wrapped model, so that torch cuts the graph where gradients can be sent.
            self.model = torch.compile(self.model, backend=config.compile_backend)  # type: ignore[assignment]
        self.optimiser = setup.make_sgd(config, model)
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=config.amp == "float16")
        self.loss = nn.CrossEntropyLoss(label_smoothing=config.label_smoothing)
        self.sums = torch.zeros(4, device=ranks.device)
        self._autocast = setup.autocast(config, ranks.device)
        self._set_to_none = config.set_to_none
        self._timer = timer

    def batch(self, images: torch.Tensor, labels: torch.Tensor, weight: Weight) -> None:
        """Adds a batch's gradients, and makes the step if it is the last one's turn."""
        # Gradients go over the network once a step, not once a batch.
        with nullcontext() if weight.last else self._no_sync():
            with self._timer.phase("forward"), self._autocast:
                logits = self.model(images)
            with self._timer.phase("loss"), self._autocast:
                loss = self.loss(logits, labels)
            with self._timer.phase("backward"):
                self.scaler.scale(loss * weight.share).backward()
        top1, top5 = (hit.sum() for hit in hits(logits.detach(), labels))
        count = torch.full((), len(labels), device=labels.device)
        self.sums += torch.stack((loss.detach() * count, top1, top5, count))
        if weight.last:
            with self._timer.phase("optimiser"):
                self.scaler.step(self.optimiser)
                self.scaler.update()
                self.optimiser.zero_grad(set_to_none=self._set_to_none)

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

    def take_sums(self) -> torch.Tensor:
        """`sums`, which begin anew."""
        taken, self.sums = self.sums, torch.zeros_like(self.sums)
        return taken

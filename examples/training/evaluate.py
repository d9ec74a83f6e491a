"""Top-1 and top-5 of a whole validation set, each sample counted once on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from fastdata.examples.training.ranks import Ranks
from torch import nn
from torch.nn import functional


class Score(NamedTuple):
    """How good a model is.

    Attributes:
        loss: Mean cross-entropy, without smoothing.
        top1: Part of the samples whose label is the highest logit, 0 to 1.
        top5: Part of the samples whose label is among the five highest; with fewer classes, 1.
        samples: How many were counted.
    """

    loss: float
    top1: float
    top5: float
    samples: int


def hits(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether each label is the highest logit, and among the five highest: two bool (N,)."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return best[:, 0], best.any(dim=1)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Any, Any, torch.Tensor]],
    ranks: Ranks,
    autocast: AbstractContextManager[Any],
) -> Score:
    """Scores a model on all ranks together; the same on each.

    Args:
        model: As it is without DDP, which would wait for the other ranks in each batch.
        batches: Images, labels, and which of the samples count.
        ranks: Who takes part.
        autocast: Mixed precision, to be entered again for each batch.
    """
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64, device=ranks.device)
    for images, labels, counts in batches:
        with autocast:
            logits = model(images)
        losses = functional.cross_entropy(logits.float(), labels, reduction="none")
        for number, values in enumerate((losses, *hits(logits, labels), torch.ones_like(losses))):
            # Not a product: what does not count may be infinite.
            sums[number] += values[counts].double().sum()
    model.train()
    loss, top1, top5, samples = ranks.sum(sums).tolist()
    count = max(samples, 1.0)
    return Score(loss / count, top1 / count, top5 / count, int(samples))

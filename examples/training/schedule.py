"""Learning rates: scaled by the batch, warmed up, decayed; a function of the step alone."""

from __future__ import annotations

import math

#: The batch that learning rates are given for, as Goyal et al. (2017) have it.
BASE_BATCH = 256

SCALINGS = ("linear", "sqrt", "none")
DECAYS = ("cosine", "constant")


def scaled(lr: float, scaling: str, batch: int) -> float:
    """The learning rate at its highest.

    Args:
        lr: For batches of `BASE_BATCH`.
        scaling: "linear" (Goyal et al., 2017), "sqrt" (Krizhevsky, 2014) or "none".
        batch: Images that one optimiser step sees, on all ranks together.
    """
    ratio = batch / BASE_BATCH
    return lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[scaling]


def factor(step: int, *, steps: int, warmup: int, decay: str) -> float:
    """What the highest learning rate is multiplied by at a step.

    Args:
        step: From 0.
        steps: Optimiser steps of the whole run.
        warmup: Steps over which the rate rises linearly; the last of them has all of it.
        decay: "cosine" to zero at the end of the run, or "constant".
    """
    if step < warmup:
        return (step + 1) / warmup
    if decay == "constant":
        return 1.0
    done = min((step - warmup) / max(steps - warmup, 1), 1.0)
    return 0.5 * (1.0 + math.cos(math.pi * done))

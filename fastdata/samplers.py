"""Samplers for ``sampler=``, batch samplers for ``batch_sampler=``, and shuffles for ``order=``."""

from fastdata.loading.planned import AspectRatioBatches, TokenBudgetBatches
from fastdata.loading.samplers import (
    BalancedSampler,
    MPerClassSampler,
    RepeatSampler,
    WeightedSampler,
)
from fastdata.plan.order import QuasiRandom

__all__ = [
    "AspectRatioBatches",
    "BalancedSampler",
    "MPerClassSampler",
    "QuasiRandom",
    "RepeatSampler",
    "TokenBudgetBatches",
    "WeightedSampler",
]

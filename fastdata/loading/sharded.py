"""Samplers that a loader makes for torch's own, whose epoch frameworks may set."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from fastdata.errors import SlowPathWarning, warn
from fastdata.loading.samplers import PlannedSampler
from fastdata.plan.order import Order, OrderLike, make_order
from fastdata.plan.schedule import ordered
from fastdata.plan.sharding import Epoch, HasEpoch

_HINT = (
    "Resume by loader.load_state_dict(state), not by accelerate.skip_first_batches(loader, n); "
    "with transformers' Trainer, TrainingArguments(ignore_data_skip=True)."
)


class LoadersOwn(HasEpoch):
    """Sampler that a loader makes; ``native``: the loader takes the native path."""

    native = False

    def __iter__(self) -> Iterator[Any]:
        self.warn_if_native()
        return super().__iter__()  # type: ignore[misc, no-any-return]

    def warn_if_native(self) -> None:
        """Warn that other code iterates the sampler: a native loader asks for the order alone."""
        if self.native:
            warn(
                "other code iterates the sampler of a native loader. If it is another loader, that "
                "decodes in Python, without fields=, batch_transform= and on_error=, in the order "
                f"of epoch {self.epoch}. {_HINT}",
                SlowPathWarning,
            )


class ShardedSampler(LoadersOwn, DistributedSampler[Any]):
    """Sampler of one rank's samples, in the batches of `fastdata.plan.sharding.Epoch`.

    It is a ``DistributedSampler``, so that frameworks do not add one. Only the dataset's length
    matters. ``starts`` are as of `make_order`. ``planned`` is shared out instead of an order.
    """

    def __init__(
        self,
        dataset: Sized,
        plan: Epoch,
        order: OrderLike,
        seed: int,
        starts: npt.NDArray[np.int64] | None,
        planned: PlannedSampler | None,
    ) -> None:
        self.plan, self.order, self._starts, self.planned = plan, order, starts, planned
        super().__init__(
            dataset if planned is None else planned,  # type: ignore[arg-type]
            plan.world_size,
            plan.rank,
            shuffle=order != "sequential",
            seed=seed,
            drop_last=plan.drop_last,
        )
        self.recount()

    def recount(self) -> None:
        """Count the dataset's samples again: a folder's list of files may have changed."""
        self.plan = plan = replace(self.plan, samples=len(self.dataset))  # type: ignore[arg-type]
        # Batches between the first and the last are full.
        ends = sorted({0, len(plan) - 1}) if len(plan) else []
        self.num_samples = sum(len(plan.positions(batch)) for batch in ends)
        self.num_samples += max(len(plan) - 2, 0) * plan.batch_size
        self.total_size = self.num_samples * plan.world_size

    @property
    def rows(self) -> int:
        """Number of the dataset's samples; of positions, where `planned` has as many."""
        return self.plan.samples if self.planned is None else self.planned.rows

    def order_of(self, seed: int, epoch: int) -> Order:
        """Return the order of an epoch."""
        if self.planned is not None:
            return self.planned.order(epoch)
        return make_order(self.order, self.plan.samples, seed, epoch, self._starts)

    def __repr__(self) -> str:
        order = self.planned or f"order={self.order!r}, seed={self.seed}"
        ranks = f"rank {self.rank} of {self.num_replicas}"
        return f"{type(self).__name__}({len(self):,} of {len(self.dataset):,}, {ranks}, {order})"  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of this rank's samples in the epoch."""
        self.warn_if_native()
        order = self.order_of(self.seed, self.epoch)
        for draws, _, _ in ordered(self.plan, order, self.rows):
            yield from (draws % self.rows).tolist()


class ShuffledRows(LoadersOwn, RandomSampler):
    """Torch's random order, for a loader whose epoch frameworks may set."""


class SequentialOrder(LoadersOwn, SequentialSampler):
    """Torch's sequential order, for a loader whose epoch frameworks may set."""

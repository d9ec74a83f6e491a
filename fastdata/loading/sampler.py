"""`ShardedSampler`: the order and sharding of `fastdata.DataLoader`, for torch's own path."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import distributed as dist
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from fastdata.errors import SlowPathWarning, UsageError, warn
from fastdata.loading.samplers import EpochSampler, PlannedSampler
from fastdata.plan.order import Order, OrderLike, make_order
from fastdata.plan.schedule import ordered
from fastdata.plan.sharding import Epoch

_HINT = (
    "Write loader = loader.skip_first_batches(n), not accelerate.skip_first_batches(loader, n); "
    "with transformers' Trainer, TrainingArguments(ignore_data_skip=True)."
)


class LoadersOwn(EpochSampler):
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
    ``group`` positions belong to one batch; the last batches are then full.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        order: OrderLike = "random",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        starts: npt.NDArray[np.int64] | None = None,
        planned: PlannedSampler | None = None,
        group: int = 1,
    ) -> None:
        self._starts = starts
        self.planned = planned
        if planned is not None:
            dataset = planned
        about = rank, world_size, drop_last
        self.plan = Epoch(len(dataset), batch_size, *about, full=group > 1)
        self.order = order
        super().__init__(
            dataset,  # type: ignore[arg-type]
            world_size,
            rank,
            shuffle=order != "sequential",
            seed=seed,
            drop_last=drop_last,
        )
        self.recount()

    def recount(self) -> None:
        """Count the dataset's samples again: a folder's list of files may have changed."""
        self.plan = plan = replace(self.plan, samples=len(self.dataset))  # type: ignore[arg-type]
        self.num_samples = sum(len(plan.positions(i)) for i in _ends(len(plan)))
        if len(plan) > 2:
            self.num_samples += (len(plan) - 2) * plan.batch_size
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


def draws_once(batch_sampler: Any, samples: int) -> bool:
    """Return whether a batch sampler is torch's own, and repeats samples only to fill ranks."""
    if type(batch_sampler) is not BatchSampler:
        return False
    sampler: Any = batch_sampler.sampler
    if type(sampler) in (RandomSampler, ShuffledRows):
        return not sampler.replacement and sampler.num_samples <= samples
    return type(sampler) in (SequentialSampler, SequentialOrder, DistributedSampler)


def own_sampler(
    dataset: Any,
    batch_size: int | None,
    shuffle: bool | None,
    drop_last: bool,
    order: OrderLike | None,
    seed: int | None,
    ranks: tuple[int, int],
    starts: npt.NDArray[np.int64] | None = None,
    planned: PlannedSampler | None = None,
    group: int = 1,
) -> ShardedSampler:
    """Return the sampler for ``order``, ``seed``, ``shard`` and a sampler of fastdata's.

    Raise UsageError if they contradict torch's arguments.
    """
    if isinstance(dataset, IterableDataset):
        raise UsageError(
            "order= and seed= have no meaning with an IterableDataset",
            "Let the dataset choose its order and draw from its own seed.",
        )
    if order is not None and shuffle is not None and shuffle == (order == "sequential"):
        raise UsageError(
            f"order={order!r} and shuffle={shuffle} contradict each other", "Leave one out."
        )
    if planned is not None and planned.rows != len(dataset):
        raise UsageError(
            f"the sampler is for {planned.rows} samples, and the dataset has {len(dataset)}",
            "Give the sampler a weight, factor or label of each sample.",
        )
    return ShardedSampler(
        dataset,
        batch_size or 1,
        order=order or ("random" if shuffle else "sequential"),
        seed=seed or 0,
        rank=ranks[0],
        world_size=ranks[1],
        drop_last=drop_last,
        starts=starts,
        planned=planned,
        group=group,
    )


def _ends(count: int) -> list[int]:
    """Return the first and last of ``count`` batches; those between them are full."""
    return sorted({0, count - 1}) if count else []


def own_ranks() -> tuple[int, int]:
    """Return (rank, world size): of the process group, else of torchrun's environment.

    Raise UsageError if RANK and WORLD_SIZE contradict each other.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    said = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if said == (None, None):
        return 0, 1
    try:
        rank, world_size = (int(one or "") for one in said)
    except ValueError:
        rank, world_size = 0, 0
    if not 0 <= rank < world_size:
        raise UsageError(
            "which rank this is: the environment has RANK={} and WORLD_SIZE={}".format(*said),
            "Start all processes with torchrun, or unset both.",
        )
    return rank, world_size


def find_ranks(shard: str | Sequence[int] | None) -> tuple[int, int] | None:
    """Return (rank, world size) for ``shard``, None to load all; raise UsageError if invalid."""
    if shard is None:
        return None
    if isinstance(shard, str) and shard == "auto":
        return own_ranks()
    given: Any = shard
    with suppress(TypeError, ValueError):
        rank, world_size = map(operator.index, given)
        if 0 <= rank < world_size:
            return rank, world_size
    raise UsageError(f"shard={shard!r}", 'Give "auto", or (rank, world_size), with rank from 0.')

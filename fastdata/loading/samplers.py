"""Samplers for torch's ``sampler=`` that `fastdata.DataLoader` shards and resumes.

Each is a function of (seed, epoch, position). ``num_samples`` positions are an epoch, of all ranks
together. Torch's own loader takes them, too: there each rank has all positions, as with torch's
``WeightedRandomSampler``.
"""

from __future__ import annotations

import operator
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed as dist
from torch.utils.data import Sampler

from fastdata.errors import UsageError
from fastdata.plan.batches import Plan, SizedBatch
from fastdata.plan.draws import child, epoch_key
from fastdata.plan.order import Order
from fastdata.plan.position import PLANNED, Fingerprint, Position, digest_of
from fastdata.plan.sampling import PerClass, Race, Repeated, Weighted
from fastdata.plan.sharding import HasEpoch, whole
from fastdata.text import human_count

#: Positions that are computed at once.
_AT_ONCE = 4096
#: Classes of batches that are named.
_NAMED = 6


class PlannedSampler(HasEpoch, Sampler[int]):
    """Sampler of some of ``rows`` rows, a function of (seed, epoch, position).

    ``num_samples`` are positions of an epoch. ``group`` neighbouring ones belong to one batch of a
    rank. A loader's state tells samplers apart by the ``fingerprint``, which covers ``arguments``.
    """

    group = 1
    #: Arguments to print.
    _shown: tuple[str, ...] = ()

    def __init__(self, num_samples: int, rows: int, seed: int, *arguments: Any) -> None:
        self._length, self.rows, self._seed = num_samples, rows, operator.index(seed)
        settings = type(self).__name__, self._seed, num_samples, rows
        self.fingerprint = digest_of(settings, *arguments)

    def __repr__(self) -> str:
        shown = {name: getattr(self, f"_{name}") for name in (*self._shown, "seed")}
        arguments = "".join(f", {name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({len(self):,} of {human_count(self.rows, 'row')}{arguments})"

    @abstractmethod
    def order(self, epoch: int) -> Order:
        """Return the rows of an epoch, by position."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Yield the rows of the epoch."""
        order = self.order(self.epoch)
        for first in range(0, len(self), _AT_ONCE):
            yield from order(np.arange(first, min(first + _AT_ONCE, len(self)))).tolist()


class PlannedBatches(HasEpoch, Sampler[list[int]]):
    """Batch sampler whose batches are a function of (seed, epoch), on any number of ranks.

    Every rank has as many batches. As ``batch_sampler`` of a `fastdata.DataLoader` it shards and
    resumes as the loader's own order does: the loader's ``seed`` and ``shard``, where they are
    given, become its own. In torch's ``DataLoader``, call `set_epoch` before each epoch, as with a
    ``DistributedSampler``. ``ranks`` are this rank and the number of ranks; None without a shard.
    """

    def __init__(self, plan: Plan, seed: int, shard: str | tuple[int, int] | None) -> None:
        self.plan, self.seed = plan, seed
        self.ranks = find_ranks(shard)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's batches: lists of row numbers."""
        plan, sizes, start = self.plan, self.plan.sizes, self.beginning(self.epoch)
        for draws, _, size in plan.rest(start.key, start.world_size).batches(start.rank):
            rows = (draws % plan.samples).tolist()
            yield SizedBatch(rows, sizes[size]) if sizes else rows

    @property
    def sampler(self) -> PlannedBatches:
        """This batch sampler: frameworks set the epoch of a batch sampler's sampler."""
        return self

    def __len__(self) -> int:
        """Return the number of batches of this rank in the epoch."""
        return self.length(self.epoch)

    def length(self, epoch: int) -> int:
        """Return the number of batches of this rank in an epoch."""
        own = self.beginning(epoch)
        return len(self.plan.rest(own.key, own.world_size))

    def beginning(self, epoch: int) -> Position:
        """Return the position at an epoch's beginning."""
        fingerprint = Fingerprint(self.plan.samples, PLANNED, self.plan.digest)
        rank, world_size = self.ranks or (0, 1)
        return Position(fingerprint, self.seed, epoch, (), rank=rank, world_size=world_size)

    def __repr__(self) -> str:
        classes = ", ".join(self.plan.classes[:_NAMED]) + ", …" * (len(self.plan.classes) > _NAMED)
        samples = human_count(self.plan.samples, "sample")
        return f"{type(self).__name__}({samples}; {classes}; seed={self.seed})"


class WeightedSampler(PlannedSampler):
    """Sampler that draws rows by their weights: torch's ``WeightedRandomSampler``.

    Without replacement, more than 65,536 rows are dealt at random into windows, each of which gives
    its share of the positions. So memory does not grow, and a row's chance depends on its weight in
    the same way.

    Args:
        weights: A number from 0 for each row; they need not sum to 1.
        num_samples: Positions of an epoch; None for as many as there are weights. Without
            replacement, at most the number of positive weights.
        replacement: Whether a row may come again in an epoch.
        seed: Seed of the draws.

    Raises:
        UsageError: Weights are negative, not finite, or all 0; or too few for ``num_samples``.
    """

    _shown = ("replacement",)

    def __init__(
        self,
        weights: Sequence[float] | npt.NDArray[Any] | torch.Tensor,
        num_samples: int | None = None,
        replacement: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        checked = _weights("weights", weights)
        count = len(checked) if num_samples is None else whole("num_samples", num_samples, 1)
        if replacement not in (True, False):
            raise UsageError(f"{replacement=}", "Give True or False.")
        super().__init__(count, len(checked), seed, checked, bool(replacement))
        self._chosen: npt.NDArray[np.uint64] | None = None
        self._weights: npt.NDArray[Any] = checked
        self._replacement = replacement
        if replacement:
            self._weights = np.cumsum(checked, dtype=np.float64)
            return
        positive = np.count_nonzero(checked)
        if count > positive:
            raise UsageError(
                f"num_samples={count} without replacement, and {positive} weights are positive",
                f"Give at most {positive}, or replacement=True.",
            )
        if positive < len(checked):
            self._chosen = np.flatnonzero(checked).astype(np.uint64)
            self._weights = checked[checked > 0]

    def order(self, epoch: int) -> Order:
        key = epoch_key(self._seed, epoch)
        if self._replacement:
            return Weighted(len(self), self._weights, key)
        return Race(len(self), self._weights, self._chosen, key)


class RepeatSampler(PlannedSampler):
    """Sampler that repeats each row by a factor, such as the repeat factors of LVIS.

    A factor of 2.3 is 2 or 3 times, 2.3 on average over epochs. All rows are shuffled.

    Args:
        factors: A number from 0 for each row.
        seed: Seed of the order, and of rounding.

    Raises:
        UsageError: Factors are negative, not finite, or sum to less than 1.
    """

    def __init__(
        self, factors: Sequence[float] | npt.NDArray[Any] | torch.Tensor, *, seed: int = 0
    ) -> None:
        checked = _weights("factors", factors)
        self._cumulated = np.cumsum(checked, dtype=np.float64)
        count = round(float(self._cumulated[-1]))
        if not count:
            raise UsageError("factors sum to less than 1", "Give larger ones.")
        super().__init__(count, len(checked), seed, checked)
        self._cumulated *= count / self._cumulated[-1]

    def order(self, epoch: int) -> Order:
        return Repeated(len(self), self._cumulated, epoch_key(self._seed, epoch))


class MPerClassSampler(PlannedSampler):
    """Sampler of ``m`` rows of a class, then of another: pytorch-metric-learning's.

    With ``batch_size``, each batch has ``batch_size / m`` different classes. A class with fewer
    than ``m`` rows repeats some. Rows of a class come in turn, shuffled anew for each pass over
    them.

    Args:
        labels: The class of each row.
        m: Rows of a class in a row.
        batch_size: The loader's; None to let classes come again within a batch.
        num_samples: Positions of an epoch, rounded down to whole batches, or to multiples of ``m``;
            None for as many as there are labels.
        seed: Seed of the draws.

    Raises:
        UsageError: ``batch_size`` is no multiple of ``m``, or there are too few classes for it.
    """

    _shown: tuple[str, ...] = ("m", "batch_size")

    def __init__(
        self,
        labels: Sequence[int] | npt.NDArray[Any] | torch.Tensor,
        m: int,
        batch_size: int | None = None,
        num_samples: int | None = None,
        *,
        seed: int = 0,
    ) -> None:
        classes = np.asarray(labels)
        if classes.ndim != 1 or not len(classes) or classes.dtype.kind not in "iub":
            raise UsageError(
                f"labels of {classes.dtype}, shape {classes.shape}", "Give a list of ints."
            )
        m = whole("m", m, 1)
        self.group = m if batch_size is None else whole("batch_size", batch_size, 1)
        if self.group % m:
            raise UsageError(f"{batch_size=} and {m=}", f"Give a multiple of {m} as batch_size.")
        count = len(classes) if num_samples is None else whole("num_samples", num_samples, 1)
        count = count // self.group * self.group
        order = np.argsort(classes, kind="stable")
        starts = np.flatnonzero(np.diff(classes[order], prepend=classes[order[0]] - 1))
        if not count:
            raise UsageError(f"num_samples makes no batch of {self.group}", "Give a larger one.")
        at_once = self.group // m
        if at_once > len(starts):
            raise UsageError(
                f"{batch_size=} with {m=} needs {at_once} classes, and there are {len(starts)}",
                f"Give {len(starts) * m} or less as batch_size.",
            )
        super().__init__(count, len(classes), seed, classes, m, self.group)
        if batch_size is None:
            self.group = 1
        self._batch_size = batch_size
        self._m, self._classes = m, len(starts) // at_once * at_once
        self._rows, self._starts = order.astype(np.uint64), np.append(starts, len(classes))

    def order(self, epoch: int) -> Order:
        rows, starts = self._rows, self._starts
        return PerClass(
            len(self), rows, starts, self._m, self._classes, epoch, child(self._seed, 0)
        )


class BalancedSampler(MPerClassSampler):
    """Sampler that draws each class equally often, whatever the number of its rows.

    Each class comes once in so many positions as there are classes. Rows of a class come in turn,
    shuffled anew for each pass over them.

    Args:
        labels: The class of each row.
        num_samples: Positions of an epoch; None for as many as there are labels.
        seed: Seed of the draws.

    Raises:
        UsageError: There are no labels.
    """

    _shown = ()

    def __init__(
        self,
        labels: Sequence[int] | npt.NDArray[Any] | torch.Tensor,
        num_samples: int | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(labels, 1, None, num_samples, seed=seed)


def _weights(name: str, values: Any) -> npt.NDArray[np.floating]:
    """Return finite weights from 0, one above it, as floats; raise UsageError for others."""
    weights = np.asarray(values)
    if weights.dtype.kind in "iub":
        weights = weights.astype(np.float64)
    wrong = weights.ndim != 1 or weights.dtype.kind != "f" or not len(weights)
    if wrong or not (weights.min() >= 0 and 0 < weights.max() < np.inf):
        hint = "Give a list of finite numbers from 0, one of them positive."
        raise UsageError(f"{name} of {weights.dtype}, shape {weights.shape}", hint)
    return weights


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
    pair: Any = shard
    with suppress(TypeError, ValueError):
        rank, world_size = map(operator.index, pair)
        if 0 <= rank < world_size:
            return rank, world_size
    raise UsageError(f"shard={shard!r}", 'Give "auto", or (rank, world_size), with rank from 0.')

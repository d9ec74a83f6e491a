"""Division of an epoch among ranks and batches.

A global batch is the batches of all ranks at one step. It covers a contiguous piece of the order,
so what all ranks have consumed is one number, and an epoch resumes from it on any number of ranks
and with any batch size. All ranks have the same number of batches, of the same sizes, so
none waits for a rank that has run out.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.errors import UsageError


@dataclass(frozen=True)
class Epoch:
    """Division of an epoch, or of its rest, among ranks and batches.

    A last global batch that is not full is dropped on all ranks (``drop_last``), or divided evenly
    and padded with positions from the beginning of the epoch. Only padding is repeated.

    Args:
        samples: Number of samples in the epoch, 0 or more.
        batch_size: Samples in a batch of one rank, 1 or more.
        rank: This rank, in [0, ``world_size``).
        world_size: Number of ranks, 1 or more.
        drop_last: Whether to drop samples that do not fill a batch on every rank.
        start: Positions already consumed, by all ranks together, in [0, ``samples``].
        full: Whether to pad the last batches to ``batch_size`` instead of dividing them, because
            each batch belongs together.

    Raises:
        UsageError: An argument is out of its range.
    """

    samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    start: int = 0
    full: bool = False

    def __post_init__(self) -> None:
        settle(self, "samples", 0)
        settle(self, "batch_size", 1)
        settle(self, "world_size", 1)
        settle(self, "rank", 0, self.world_size - 1)
        settle(self, "start", 0, self.samples)

    def __len__(self) -> int:
        """Return the number of batches from ``start`` on, the same on every rank."""
        full, rest = divmod(self.samples - self.start, self.step)
        return full + (rest > 0 and not self.drop_last)

    def positions(self, batch: int) -> npt.NDArray[np.int64]:
        """Return the positions of the order in a batch of this rank, int64, as many on every rank.

        They are ``batch_size``, or fewer in the last batch. Padding counts on past the end:
        ``samples`` is position 0 again.
        """
        first = self.start + batch * self.step
        size = self.batch_size
        if not self.full:
            size = min(size, -(-(self.samples - first) // self.world_size))
        first += self.rank * size
        return np.arange(first, first + size, dtype=np.int64)

    def consumed(self, batch: int) -> int:
        """Return how many positions all ranks together have consumed after a batch.

        It is the ``start`` of the rest, also with another world size or batch size.
        """
        return min(self.start + (batch + 1) * self.step, self.samples)

    @property
    def step(self) -> int:
        """Number of positions in a full global batch."""
        return self.world_size * self.batch_size


class HasEpoch:
    """Sampler, mixture or schedule whose epoch a loader or a framework sets.

    Attributes:
        epoch: The epoch of what it returns next.
        times_set: How often it was set.
    """

    epoch = times_set = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; `fastdata.DataLoader` does it by itself.

        Raises:
            UsageError: It is not a whole number from 0 to 2**32 - 1.
        """
        self.epoch = epoch_number(epoch)
        self.times_set += 1


def epoch_number(epoch: object) -> int:
    """Return an epoch's number; raise UsageError unless it is whole, from 0 to 2**32 - 1."""
    return whole("epoch", epoch, 0, (1 << 32) - 1)


def whole(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> int:
    """Return a whole number, also numpy's, as an int; raise UsageError for others, and bools."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        limits = f" from {least}" * (least > -math.inf) + f" to {most}" * (most < math.inf)
        raise UsageError(f"{name}={value!r}", f"Give a whole number{limits}.")
    return number


def settle(frozen: object, name: str, least: float = -math.inf, most: float = math.inf) -> None:
    """Make an attribute of a frozen dataclass a `whole` number."""
    object.__setattr__(frozen, name, whole(name, getattr(frozen, name), least, most))

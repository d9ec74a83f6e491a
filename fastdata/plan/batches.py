"""Plans of batches: which rows make which batch, on which rank, as a function of (seed, epoch).

A `Plan` knows columns of all rows, such as sizes or lengths, and nothing else about them. For the
key of an epoch, a number of ranks and what was consumed, it returns the epoch's `Rest`: the batches
to come. All ranks have as many, and those of one step belong together: they have one size class.
`fastdata.plan.sharding.Epoch`, with an order, is the plan of batches of one size in plain order.

`Consumed` is a few integers, the same on all ranks: the number of ranks, the steps that these have
taken, and what was consumed before them. From it, another number of ranks takes what is left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np

from fastdata.errors import UsageError
from fastdata.plan.schedule import Drawn, Indices

#: () for the beginning; else (ranks, their steps, what was consumed before).
Consumed: TypeAlias = tuple[int, ...]


class SizedBatch(list[int]):
    """Rows of a batch of a (width, height), as a batch sampler yields them."""

    def __init__(self, rows: Iterable[int], size: tuple[int, int]) -> None:
        super().__init__(rows)
        self.size = size


class Rest(ABC):
    """Batches of an epoch from a position on, for so many ranks."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of one rank, the same on every rank."""

    @abstractmethod
    def batches(self, rank: int) -> Iterator[Drawn]:
        """Yield the batches of one rank: (draws, position after, size class)."""


class Plan(ABC):
    """Batches of every epoch.

    ``sizes`` are (width, height) by size class, () where batches have none; ``classes`` are words.
    ``digest`` covers all that batches depend on.
    """

    samples: int
    sizes: tuple[tuple[int, int], ...] = ()
    classes: tuple[str, ...]
    digest: int

    @abstractmethod
    def rest(self, key: int, world_size: int = 1, position: Consumed = ()) -> Rest:
        """Return the batches of an epoch from a position, which any number of ranks had."""

    def require(self, position: Consumed, key: int) -> None:
        """Raise UsageError if a position is not in an epoch of this plan."""
        if position and not (0 < position[0] < 1 << 32 and self._fits(position, key)):
            raise UsageError(
                f"The state's position, {list(position)}, is not in an epoch of these batches.",
                "Give what state_dict() returned, unchanged.",
            )

    @abstractmethod
    def _fits(self, position: Consumed, key: int) -> bool:
        """Return whether a position that is not () is as long and as large as it may be."""


def with_occurrences(draws: Indices, rows: Indices, count: int, samples: int) -> Indices:
    """Return draws of ``samples`` rows for draws of ``count`` of them, which ``rows`` lists."""
    if np.maximum.reduce(draws) < count:  # numpy's max() is Python
        return rows[draws].astype(np.int64)
    again, at = np.divmod(draws, count)
    repeated: Indices = rows[at].astype(np.int64) + again * samples
    return repeated

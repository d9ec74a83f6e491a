"""Progress of an epoch, from which a loader's state is made."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from fastdata.device.delivery import Tracker
from fastdata.loading.seeding import seeded


@dataclass
class Progress:
    """Progress of an epoch; outlives its iterator.

    Attributes:
        seed: Seed of the epoch's order and crops.
        epoch: Number of the epoch.
        position: Number of the order's positions delivered, by all ranks together; of a plan of
            batches as it has it.
        ended: Whether all batches have been delivered.
        batch_key: Key of the draws for the batch delivered last.
    """

    seed: int
    epoch: int
    position: Any
    ended: bool = False
    batch_key: int = 0


class ProgressTracker(Tracker):
    """Tracker of a consumer that takes batches some time after they are delivered.

    Args:
        delivered: Progress of the iterator that delivers.
        consumed: Progress of the consumer.
    """

    def __init__(self, delivered: Progress, consumed: Progress) -> None:
        self._delivered, self._consumed = delivered, consumed

    def mark(self) -> Progress:
        """Return a copy of the delivered progress."""
        return replace(self._delivered)

    def reach(self, mark: Progress) -> None:
        """Record that the consumer has the batch of that mark."""
        consumed = self._consumed
        consumed.position, consumed.batch_key = mark.position, mark.batch_key

    def end(self) -> None:
        """Record that the consumer has all batches of the epoch."""
        self._consumed.ended = True

    def drawing(self) -> AbstractContextManager[None]:
        """Return the context in which draws depend on the consumer's batch alone."""
        return seeded(self._consumed.batch_key)

"""Progress of an epoch, from which a loader's state is made."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from fastdata.device.delivery import Tracker
from fastdata.loading.seeding import seeded
from fastdata.plan.sharding import State


@dataclass
class Progress:
    """Progress of an epoch from ``start``; outlives its iterator.

    ``left`` counts batches to come, negative if unknown. ``position`` counts positions delivered by
    all ranks together; of a plan of batches as it has it; None for that of ``start``. ``batch_key``
    is the key of the draws of the batch delivered last.
    """

    start: State
    left: int
    position: Any = None
    batch_key: int = 0

    def __post_init__(self) -> None:
        if self.position is None:
            self.position = self.start.position

    def state(self) -> State:
        """Return the position after the batch delivered last."""
        return replace(self.start, position=self.position)


class ProgressTracker(Tracker):
    """Tracker of a consumer that takes batches some time after they are delivered."""

    def __init__(self, delivered: Progress, consumed: Progress) -> None:
        self._delivered, self._consumed = delivered, consumed

    def mark(self) -> Progress:
        """Return a copy of the delivered progress."""
        return replace(self._delivered)

    def reach(self, mark: Progress) -> None:
        """Record that the consumer has the batch of that mark."""
        # The consumer's start has the epoch that was named when its pass began.
        vars(self._consumed).update(vars(mark) | {"start": self._consumed.start})

    def drawing(self) -> AbstractContextManager[None]:
        """Return the context in which draws depend on the consumer's batch alone."""
        return seeded(self._consumed.batch_key)

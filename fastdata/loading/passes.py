"""Parts of passes over a loader: iterators in iterators, none, and the progress of consumers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NoReturn

from fastdata.device.delivery import Tracker
from fastdata.loading.seeding import seeded
from fastdata.plan.position import PassProgress


class WrappedPass(Iterator[Any]):
    """Pass that takes its batches, and its other attributes, from another iterator."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]


class NoBatches(Iterator[Any]):
    """The rest of an epoch that has ended."""

    def __len__(self) -> int:
        return 0

    def __next__(self) -> NoReturn:
        raise StopIteration


class ProgressTracker(Tracker):
    """Tracker of a consumer that takes batches some time after they are delivered."""

    def __init__(self, delivered: PassProgress, consumed: PassProgress) -> None:
        self._delivered, self._consumed = delivered, consumed

    def mark(self) -> PassProgress:
        """Return a copy of the delivered progress."""
        return replace(self._delivered)

    def reach(self, mark: PassProgress) -> None:
        """Record that the consumer has the batch of that mark."""
        # The consumer's start has the epoch that was named when its pass began.
        vars(self._consumed).update(vars(mark) | {"start": self._consumed.start})

    def drawing(self) -> AbstractContextManager[None]:
        """Return the context in which draws depend on the consumer's batch alone."""
        return seeded(self._consumed.batch_key)

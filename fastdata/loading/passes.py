"""Parts of passes over a loader: iterators in iterators, none, and the progress of consumers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from fastdata.device.delivery import BatchIterator, Tracker
from fastdata.loading.seeding import seeded
from fastdata.plan.position import LatestPass, PassProgress, Position


class WrappedPass(BatchIterator):
    """Pass that takes its batches, and its other attributes, from another iterator."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def _close_batches(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


class TorchPass(NamedTuple):
    """A pass of torch's loader from ``start`` on, None for the end of an epoch; its progress."""

    start: Position | None
    progress: PassProgress | None
    batches: Iterator[Any]


class Pass(WrappedPass):
    """One pass over torch's loader, which begins with its first batch.

    Args:
        begin: As of `NativeIterator`. torch's workers begin to prefetch at once, so it is called
            now; and again with the first batch, as the pass may have to begin elsewhere.
        length: Returns the number of batches if it began now.
    """

    def __init__(
        self, begin: Callable[[TorchPass | None, bool], TorchPass], length: Callable[[], int]
    ) -> None:
        self._begin: Callable[[TorchPass | None, bool], TorchPass] | None = begin
        self._length, self._beginning = length, threading.Lock()
        self._opened: TorchPass | None = begin(None, False)
        super().__init__(self._opened.batches)

    def __len__(self) -> int:
        return super().__len__() if self._begin is None else self._length()

    def __next__(self) -> Any:
        if self._begin is not None:
            with self._beginning:
                if self._begin is not None:
                    opened = self._begin(self._opened, True)
                    if opened is not self._opened:
                        self._close_batches()
                    # Without the one before, whose worker processes end with it.
                    self._batches, self._begin, self._opened = opened.batches, None, None
        return next(self._batches)

    def ready(self) -> bool:
        """Return whether ``next`` would return at once, as far as it is known."""
        ready = getattr(self._batches, "ready", None)
        return ready is None or bool(ready())

    def close(self) -> None:
        """Close the pass, which does not begin any more."""
        with self._beginning:
            self._close_batches()
            if self._begin is not None:
                self._batches, self._begin, self._opened = NoBatches(), None, None


class ReportedPass(WrappedPass):
    """Pass that Accelerate's ``GradientState`` knows, as it knows those of its own loaders.

    ``accumulate`` steps at the end of a loader, and ``gather_for_metrics`` drops samples that were
    repeated.

    Attributes:
        remainder: Samples in the last batches of all ranks together, without repeated ones; 0 if
            the batches are full, -1 if unknown.
        end_of_dataloader: Whether the last batch was delivered.
    """

    end_of_dataloader, remainder = False, -1

    def __init__(self, batches: Iterator[Any], remainder: Callable[[], int], state: Any) -> None:
        super().__init__(batches)
        self._measure, self._state = remainder, state
        self._left: int | None = None

    def __next__(self) -> Any:
        if self._left is None:
            self._left, self.remainder = len(self), self._measure()
            self._state._add_dataloader(self)  # by a weak reference
        try:
            batch = next(self._batches)
        except StopIteration:
            self._state._remove_dataloader(self)
            raise
        except Exception:  # an error in a batch's place
            self._count()
            raise
        self._count()
        return batch

    def reported_through(self, function: Callable[[Iterator[Any]], Iterator[Any]]) -> ReportedPass:
        """Report what a function makes of the batches, in their place."""
        self._batches = function(self._batches)
        return self

    def _count(self) -> None:
        assert self._left is not None
        self._left -= 1
        self.end_of_dataloader = self._left == 0

    def close(self) -> None:
        """Close the pass, of which Accelerate then knows no more."""
        self._state._remove_dataloader(self)
        self._close_batches()


class NoBatches(Iterator[Any]):
    """The rest of an epoch that has ended."""

    def __len__(self) -> int:
        return 0

    def __next__(self) -> NoReturn:
        raise StopIteration


class ProgressTracker(Tracker):
    """Tracker of a consumer that takes batches some time after they are delivered."""

    def __init__(self, delivered: LatestPass, consumed: LatestPass) -> None:
        self._delivered, self._latest = delivered, consumed
        self._key = 0

    def mark(self) -> PassProgress | None:
        """Return a copy of the delivered progress; None before the first batch."""
        progress = self._delivered.progress
        return None if progress is None else replace(progress)

    def reach(self, mark: PassProgress | None) -> None:
        """Record that the consumer has the batch of that mark."""
        if mark is not None:
            self._latest.progress, self._key = mark, mark.batch_key

    def drawing(self) -> AbstractContextManager[None]:
        """Return the context in which draws depend on the consumer's batch alone."""
        return seeded(self._key)

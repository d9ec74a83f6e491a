"""One pass over a loader: it begins with its first batch, and reports to Accelerate.

``accumulate`` steps at the end of a loader, and ``gather_for_metrics`` drops samples that were
repeated to fill the last batches. Accelerate's own loaders report their progress to its
`GradientState`. A pass here does the same, by the same two attributes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import Lock
from typing import Any, NoReturn

from fastdata.device.delivery import Tracker, cannot_pickle
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


class Pass(WrappedPass):
    """One pass over a loader, which begins with its first batch.

    Until then it follows the loader: where `set_epoch` or `load_state_dict` name another place, it
    begins there. A loader that shards reports the pass to Accelerate, if the process has an
    ``Accelerator``. Other attributes are those of the iterator inside. ``through`` gets the
    batches, and returns those that are delivered.

    ``remainder`` are the samples in the last batches of all ranks together, without repeated ones;
    0 if the batches are full, -1 if unknown.
    """

    end_of_dataloader = False
    remainder = _left = -1

    def __init__(self, loader: Any, through: Callable[[Any], Any]) -> None:
        self._loader, self._begun, self._beginning = loader, False, Lock()
        self._through = through
        self._gradients: Any = None
        self._open()
        module = sys.modules.get("accelerate.state") if loader._shares_samples else None
        if module is not None and module.GradientState._shared_state:
            self._gradients = module.GradientState()
            self._measure()
            self._gradients._add_dataloader(self)  # by a weak reference

    def _open(self) -> None:
        """Prepare the batches from the place where the loader begins."""
        self._start, self._progress, batches = self._loader._open_pass()
        self._batches = self._through(batches)
        if self._gradients is not None:
            self._measure()

    def _measure(self) -> None:
        start, self._left = self._start, len(self)
        self.remainder = -1 if start is None else self._loader._batching.remainder(start)

    def _begin(self) -> None:
        with self._beginning:
            if self._begun:
                return
            loader = self._loader
            loader._follow_samplers()
            if not loader._is_next(self._start):
                self._close_batches()
                self._open()
            loader._begin_pass(self._start, self._progress)
            self._begun = True

    def __reduce__(self) -> NoReturn:
        raise cannot_pickle()

    def __next__(self) -> Any:
        if not self._begun:
            self._begin()
        # The pass whose ``next`` ran last decides the loader's state.
        before, self._loader._progress = self._loader._progress, self._progress
        try:
            batch = next(self._batches)
        except StopIteration:
            self._loader._progress = before
            self._end()
            raise
        except Exception:  # an error in a batch's place
            self._count()
            raise
        self._count()
        return batch

    def _count(self) -> None:
        self._left -= 1
        self.end_of_dataloader = self._left == 0

    def _end(self) -> None:
        if self._gradients is not None:
            self._gradients._remove_dataloader(self)
            self._gradients = None

    def ready(self) -> bool:
        """Return whether ``next`` would return at once, as far as it is known."""
        ready = getattr(self._batches, "ready", None)
        return ready is None or bool(ready())

    def close(self) -> None:
        """Close the pass, which does not begin any more."""
        self._begun = True
        self._end()
        self._close_batches()

    def _close_batches(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


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

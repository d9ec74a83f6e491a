"""One pass over a loader's batches on a device, prefetched for the consumer."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from fastdata.device.transfer import Arrival, Destination, Transfer, normalisation
from fastdata.errors import UsageError, called


def destination(
    device: str | torch.device,
    dtype: str | torch.dtype | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    channels_last: bool = True,
    prefetch: int = 2,
) -> Destination:
    """Return a destination from a loader's arguments; UsageError if they contradict each other."""
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device={device!r}: {reason}", _DEVICES) from None
    if target.type != "cpu":
        _check_accelerator(target)
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 1:
        raise UsageError(
            f"prefetch={prefetch!r}", "Give the number of batches to prefetch, 1 or more."
        )
    return Destination(target, normalisation(dtype, mean, std), channels_last, prefetch)


_DEVICES = 'Give "cpu", or a device that torch.accelerator finds here, such as "cuda" or "xpu".'


def _check_accelerator(device: torch.device) -> None:
    """Raise UsageError if this machine lacks the device."""
    here = torch.accelerator.current_accelerator()
    if here is None or device.type != here.type:
        found = "no accelerator" if here is None else f"{here.type} devices"
        raise UsageError(f"device={str(device)!r}: torch finds {found} here", _DEVICES)
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if (device.index or 0) >= count:
        raise UsageError(
            f"device={str(device)!r}: torch finds {count or 'no'} {here.type} devices here",
            'Give device="cpu", or check torch.accelerator.is_available().',
        )


class Tracker:
    """Observer of a pass, so that a state counts only batches that the consumer took."""

    def mark(self) -> Any:
        """Return the loader's position after the batch that it returned last."""

    def reach(self, mark: Any) -> None:
        """Record that the consumer takes the batch, or the error, of that mark."""

    def end(self) -> None:
        """Record that the consumer has taken all batches."""

    def drawing(self) -> AbstractContextManager[None]:
        """Return the context for ``batch_transform`` on the batch reached last."""
        return nullcontext()


def transformed(batch: Any, batch_transform: Callable[[Any], Any] | None) -> Any:
    """Return a batch, passed as one argument, after ``batch_transform``, if there is one."""
    if batch_transform is None:
        return batch
    return called(batch_transform, batch)


def after_fork() -> RuntimeError:
    """Return the error for a process that uses an iterator of its parent."""
    return RuntimeError(
        "this iterator was made before a fork, and its threads are in the parent process: "
        "make a new one in this process, with iter(loader)"
    )


class BatchIterator(Iterator[Any]):
    """Iterator over batches, which is neither pickled nor copied."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an iterator over batches cannot be pickled or copied: it has threads and memory of "
            "this process. Pickle the loader, and its state_dict() for the position"
        )


#: Device memory of the parent's iterators in a forked child, which must never free it.
_OF_PARENT: list[Any] = []


@dataclass(frozen=True)
class _Sent:
    """Batch under way, or the error in its place."""

    mark: Any
    arrival: Arrival | None
    error: Exception | None = None


class DeviceIterator(BatchIterator):
    """Iterator of batches on a device, in order.

    It has no Python thread. When the consumer takes a batch, its own thread starts the next
    copies by a few driver calls, and the GPU does the rest. Batches outside page-locked memory
    also cost that thread a copy.

    Args:
        batches: Batches on the host.
        where: Their destination.
        tracker: Records the consumer's progress.
        batch_transform: Called with a batch on the device; None for none.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        where: Destination,
        tracker: Tracker,
        batch_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self._closed = True  # until every attribute that close() needs exists
        self._batches = batches
        self._close_loader = getattr(batches, "close", None)
        self._ready: Callable[[], bool] | None = getattr(batches, "ready", None)
        self._prefetch = where.prefetch
        self._ahead = 0
        self._transfer = Transfer(where)
        self._tracker = tracker
        self._batch_transform = batch_transform
        self._sent: deque[_Sent] = deque()
        self._exhausted = False
        # Two threads that share an iterator must not get the same batch.
        self._taking = threading.RLock()
        self._process = os.getpid()
        self._closed = False

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        if os.getpid() != self._process:
            raise after_fork()
        with self._taking:
            batch = self._next()
            drawing = self._tracker.drawing()
        if self._batch_transform is not None:
            with drawing:
                batch = transformed(batch, self._batch_transform)
        return batch

    def ready(self) -> bool:
        """Return whether ``next`` would return at once; let decoding proceed meanwhile."""
        return bool(self._sent) or self._ready is None or self._ready()

    def _next(self) -> Any:
        if self._closed:
            raise StopIteration
        if not self._sent:
            self._send_one(wait=True)
        if self._closed:  # by another thread, meanwhile
            raise StopIteration
        if not self._sent:
            self.close()
            self._tracker.end()
            raise StopIteration
        sent = self._sent.popleft()
        self._tracker.reach(sent.mark)
        if sent.error is not None:
            raise sent.error
        assert sent.arrival is not None
        batch = sent.arrival.take()
        # Increase gradually: the first batch must not wait for `prefetch` others.
        self._ahead = min(self._ahead + 1, self._prefetch)
        while len(self._sent) < self._ahead and self._send_one(wait=False):
            pass
        return batch

    def _send_one(self, wait: bool) -> bool:
        """Take a batch, waiting for the loader if ``wait``, and start its copy.

        Return whether there may be another batch to send.
        """
        # Stop at an error: the consumer's reaction may change the next batches.
        if self._exhausted or (self._sent and self._sent[-1].error is not None):
            return False
        arrival: Arrival | None = None
        error: Exception | None = None
        try:
            if not (wait or self._ready is None or self._ready()):
                return False
            batch = next(self._batches)
        except StopIteration:
            self._exhausted = True
            return False
        except Exception as caught:
            error = caught
        mark = self._tracker.mark()
        if error is None:
            try:
                arrival = self._transfer.begin(batch)
            except Exception as caught:
                error = caught
        self._sent.append(_Sent(mark, arrival, error))
        return True

    def close(self) -> None:
        """End the pass: close the loader's iterator and wait for copies under way.

        If another thread is taking a batch, wait for it; its iteration ends, too.
        """
        if getattr(self, "_closed", True):
            return
        self._closed = True
        if os.getpid() != self._process:
            # A forked child cannot use its parent's GPU, nor free memory there.
            _OF_PARENT.append((self._sent, self._transfer))
            self._close_batches()
            return
        if not self._taking.acquire(blocking=False):
            # Closing wakes fastdata's iterators; a running generator cannot be closed.
            if not isinstance(self._batches, Generator):
                self._close_batches()
            self._taking.acquire()
        try:
            with self._transfer.here():
                self._transfer.close()  # first: copies may still write to unused batches
                self._sent.clear()
            self._close_batches()
        finally:
            self._taking.release()

    def _close_batches(self) -> None:
        close, self._close_loader = self._close_loader, None
        if callable(close):
            close()

    # At interpreter exit, this module's names may be gone; a default argument stays.
    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.close()

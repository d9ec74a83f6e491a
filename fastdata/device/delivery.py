"""One pass over a loader's batches on a device, sent there a few ahead of the consumer."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from fastdata.device.normalise import Normalisation, normalisation
from fastdata.device.static import StaticMemory
from fastdata.device.transfer import Arrival, Transfer, is_asynchronous
from fastdata.errors import UsageError


@dataclass(frozen=True)
class Destination:
    """Where batches go, and what becomes of them there.

    Attributes:
        device: An accelerator, or the CPU. An accelerator without a number is the current one when
            a pass begins.
        normalisation: What is done to uint8 images; None to leave them.
        channels_last: Whether images come in channels-last memory, else contiguous; None for as
            they are.
        prefetch: How many batches are sent ahead.
        copy: Whether tensors that are on the device already are copied, too: they are for use on
            the copy stream alone.
    """

    device: torch.device
    normalisation: Normalisation | None
    channels_last: bool | None
    prefetch: int
    copy: bool = False

    def transfer(self) -> Transfer:
        """What puts the batches of one pass there."""
        device = numbered(self.device)
        # One more than are sent ahead: the one that is handed over may still be being copied.
        return Transfer(
            device, self.normalisation, self.channels_last, self.prefetch + 1, self.copy
        )

    def describe(self) -> str:
        """In words."""
        if self.normalisation is None:
            return str(self.device)
        dtype = str(self.normalisation.dtype).removeprefix("torch.")
        return f"{self.device}, uint8 images made {dtype} there"


def numbered(device: torch.device) -> torch.device:
    """The device with its number, which is the current one's unless it is given."""
    if not is_asynchronous(device) or device.index is not None:
        return device
    return torch.accelerator.current_stream(device).device


def destination(
    device: str | torch.device,
    dtype: str | torch.dtype | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    channels_last: bool = True,
    prefetch: int = 2,
) -> Destination:
    """A destination from a loader's arguments.

    Raises:
        UsageError: They contradict each other, or there is no such device.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device={device!r}: {reason}", _DEVICES) from None
    if found.type != "cpu":
        _check_accelerator(found)
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 1:
        raise UsageError(f"prefetch={prefetch!r}", "Give the number of batches to send ahead.")
    return Destination(found, normalisation(dtype, mean, std), channels_last, prefetch)


_DEVICES = 'Give "cuda", "xpu", or what else torch.accelerator finds here; or "cpu".'


def _check_accelerator(device: torch.device) -> None:
    """See that this machine has the device.

    Raises:
        UsageError: It has not.
    """
    here = torch.accelerator.current_accelerator()
    if here is None or device.type != here.type:
        found = "no accelerator" if here is None else f"{here.type} devices"
        raise UsageError(f"device={str(device)!r}: torch finds {found} here", _DEVICES)
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if (device.index or 0) >= count:
        raise UsageError(
            f"device={str(device)!r}: torch finds {count or 'no'} {here.type} devices here",
            'Give device="cpu", or look at torch.accelerator.is_available().',
        )


class Tracker:
    """Is told how far a pass has come, so that a state counts what the consumer was given."""

    def mark(self) -> Any:
        """Where the loader is, having given a batch."""

    def reach(self, mark: Any) -> None:
        """The consumer is given the batch, or the error, of that mark."""

    def end(self) -> None:
        """The consumer has had all batches."""

    def drawing(self) -> AbstractContextManager[None]:
        """What the loader's ``batch_transform`` is called in, for the batch reached last."""
        return nullcontext()


def transformed(batch: Any, batch_transform: Callable[..., Any] | None) -> Any:
    """What a loader's ``batch_transform`` makes of a batch.

    Args:
        batch: A mapping, which is its one argument, or a list or tuple, whose elements are.
        batch_transform: None for none.
    """
    if batch_transform is None:
        return batch
    return called(batch_transform, *([batch] if isinstance(batch, Mapping) else batch))


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the user's returns.

    Raises:
        RuntimeError: It raised StopIteration, which would end the pass in silence.
    """
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError(f"{function!r} raised StopIteration") from error


def after_fork() -> RuntimeError:
    """What to raise where a process goes on with an iterator of its parent's."""
    return RuntimeError(
        "this iterator was made before a fork, and its threads are in the parent process: "
        "make a new one in this process, with iter(loader)"
    )


def cannot_pickle() -> TypeError:
    """What to raise where an iterator over batches is pickled, or copied."""
    return TypeError(
        "an iterator over batches cannot be pickled or copied: it has threads and memory of this "
        "process. Pickle the loader, and its state_dict() for where it is"
    )


#: What a fork's copies of its parent's iterators have: kept, as nothing here may free it.
_OF_PARENT: list[Any] = []


@dataclass(frozen=True)
class _Sent:
    """A batch that was sent, or the error in its place."""

    mark: Any
    arrival: Arrival | None
    error: Exception | None = None


class DeviceIterator(Iterator[Any]):
    """Batches on a device, in order.

    No thread of Python's: whenever the consumer takes a batch, its own thread sends the next ones
    on their way, which is some calls into the driver, and the GPU does the rest. A loader whose
    batches are not page-locked costs their copy into memory that is.

    Args:
        batches: Batches on the host.
        where: Where they go.
        tracker: Is told how far the consumer has come.
        batch_transform: Called with a batch's elements on the device; None for none.
        static: Has every batch in the same memory; None for memory of its own.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        where: Destination,
        tracker: Tracker,
        batch_transform: Callable[..., Any] | None = None,
        static: StaticMemory | None = None,
    ) -> None:
        self._closed = True  # until all is there that closing needs
        self._batches = batches
        self._close_loader = getattr(batches, "close", None)
        self._ready: Callable[[], bool] | None = getattr(batches, "ready", None)
        self._prefetch = where.prefetch
        self._ahead = 0
        self._transfer = where.transfer()
        self._tracker = tracker
        self._batch_transform = batch_transform
        self._static = static
        self._on_cuda = where.device.type == "cuda"
        self._sent: deque[_Sent] = deque()
        self._exhausted = False
        # Two threads that take batches from one iterator must not get the same one.
        self._taking = threading.RLock()
        self._process = os.getpid()
        self._closed = False

    def __iter__(self) -> DeviceIterator:
        return self

    def __reduce__(self) -> NoReturn:
        raise cannot_pickle()

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        if os.getpid() != self._process:
            raise after_fork()
        if self._on_cuda and torch.cuda.is_current_stream_capturing():
            raise UsageError(
                "a batch was asked for while a CUDA graph is captured",
                "Take it before, and capture what is done with it: DeviceLoader(static=True) gives "
                "every batch in the same memory.",
            )
        with self._taking:
            batch = self._next()
            drawing = self._tracker.drawing()
        if self._batch_transform is not None:
            with drawing:
                batch = transformed(batch, self._batch_transform)
        return batch if self._static is None else self._static.place(batch)

    def ready(self) -> bool:
        """Whether ``next`` would return at once; decoding goes on with what it can go on with."""
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
        # The first batch is not to wait for all that are to be ahead of it.
        self._ahead = min(self._ahead + 1, self._prefetch)
        while len(self._sent) < self._ahead and self._send_one(wait=False):
            pass
        return batch

    def _send_one(self, wait: bool) -> bool:
        """Takes a batch from the loader and sends it on its way.

        Args:
            wait: Whether to wait for a loader that is not ready.

        Returns:
            Whether there may be another one to send.
        """
        # What comes after an error may depend on what the consumer does about it.
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
        """Ends the pass: the loader's own, and copies under way. Iteration ends.

        Where another thread is taking a batch, waits for it; it is given none.
        """
        if getattr(self, "_closed", True):
            return
        self._closed = True
        if os.getpid() != self._process:
            # A forked child has no GPU of its parent's, and could not even free what is there.
            _OF_PARENT.append((self._sent, self._transfer))
            self._close_batches()
            return
        if not self._taking.acquire(blocking=False):
            # Ours stop waiting when they are closed; a generator cannot be while it runs.
            if not isinstance(self._batches, Generator):
                self._close_batches()
            self._taking.acquire()
        try:
            with self._transfer.here():
                self._transfer.close()  # first: batches that nobody wants are still being written
                self._sent.clear()
            self._close_batches()
        finally:
            self._taking.release()

    def _close_batches(self) -> None:
        close, self._close_loader = self._close_loader, None
        if callable(close):
            close()

    # While the interpreter ends, names of this module may be gone; this one is kept here.
    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.close()

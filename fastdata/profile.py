"""`StepTimer`: a training loop's wall time by phase, such as waiting for data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import record_function

from fastdata.device.transfer import DEVICE_WAIT
from fastdata.errors import UsageError

__all__ = ["Interval", "StepTimer"]


@dataclass
class Interval:
    """Timing of consecutive steps.

    Attributes:
        steps: Number of finished steps.
        images: Images in them.
        seconds: Wall time.
        wait_seconds: The part of it spent waiting for batches.
        longest_wait: The longest wait for one batch, in seconds.
        longest_at: The step of that batch, counted from 1.
    """

    steps: int = 0
    images: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    longest_wait: float = 0.0
    longest_at: int = 0

    @property
    def images_per_second(self) -> float:
        """Images per second of wall time; 0 without any."""
        return self.images / self.seconds if self.seconds > 0 else 0.0

    @property
    def wait_share(self) -> float:
        """Share of wall time spent waiting, 0 to 1."""
        return self.wait_seconds / self.seconds if self.seconds > 0 else 0.0


class StepTimer:
    """Timer of a training loop's steps and their phases.

    A step begins when the loop requests its batch, and ends when it requests the next. Its first
    phase, "wait", ends when the batch arrives; in an epoch's first step it includes the start of
    the loader. Time between two epochs belongs to no step. A `DeviceLoader` that has prefetched
    all it may waits for the GPU to finish earlier steps. This time is the phase "device", not
    "wait", because the data is ready.

    GPU kernels run asynchronously. Without ``synchronise``, a phase contains the launches of its
    kernels, and their run time falls into the phase that waits for them. Whole steps, images a
    second and the wait for data are right either way.

    Phases are also ranges of `torch.profiler`, which its traces show.

    Args:
        every: Steps between two lines; 0 for no lines.
        batch_size: Images of a step; None to take the length of the batch's first tensor.
        synchronise: Whether to wait for the GPU at both ends of each phase, so that the phase
            includes the GPU's time. Slows training: use it only to measure. No effect without
            a GPU.
        write: Called with each line.

    Attributes:
        overall: All steps so far.
        reported: The steps of the last line; None before the first line.

    Raises:
        UsageError: ``every`` or ``batch_size`` is out of range.

    Example:
        ::

            timer = StepTimer(every=50)
            for images, labels in timer.batches(loader):
                with timer.phase("forward"):
                    output = model(images)
                with timer.phase("loss"):
                    loss = criterion(output, labels)
                with timer.phase("backward"):
                    loss.backward()
                with timer.phase("optimiser"):
                    optimiser.step()
            print(timer.totals())
    """

    def __init__(
        self,
        *,
        every: int = 50,
        batch_size: int | None = None,
        synchronise: bool = False,
        write: Callable[[str], Any] = print,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise UsageError(f"every={every!r}", "Give the number of steps; 0 for no lines.")
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"batch_size={batch_size!r}", "Give the images of a step, or None.")
        self._every, self._batch_size = every, batch_size
        self._gpu = synchronise and torch.accelerator.is_available()
        self._write = write
        self._phases: dict[str, float] = {}
        self._open: str | None = None
        self.overall, self._recent = Interval(), Interval()
        self._stepping = False
        self.reported: Interval | None = None

    # Steps.

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the loader's batches, each of them a step.

        Raises:
            UsageError: A batch has no tensor, so its number of images is unknown; or the timer
                already times another loop.
        """
        if self._stepping:
            raise UsageError(
                "a StepTimer times one loop at a time", "Make a second StepTimer for this loop."
            )
        self._stepping = True
        try:
            yield from self._steps(loader)
        finally:
            self._stepping = False

    def _steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        iterator: Iterator[Any] | None = None
        left = False
        while not left:
            # Start here, so that writing a line belongs to no step.
            began, waited = time.perf_counter(), self._phases.get("wait", 0.0)
            before = DEVICE_WAIT.seconds
            with self.phase("wait"):
                if iterator is None:
                    iterator = iter(loader)
                batch = next(iterator, _END)
            self._move_to_device(DEVICE_WAIT.seconds - before)
            images = 0
            if batch is not _END:
                images = self._images(batch)
                try:
                    yield batch
                except GeneratorExit:
                    left = True  # the loop broke off; count its step like the others
            seconds = time.perf_counter() - began
            waited = self._phases["wait"] - waited
            for interval in (self.overall, self._recent):
                interval.seconds += seconds
                interval.wait_seconds += waited
            if batch is _END:
                return
            batch = None  # free its memory while the next one is made
            self._count(waited, images)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a ``with`` block as a phase of the step; phases of the same name add up.

        Raises:
            UsageError: Another phase has not ended.
        """
        if self._open is not None:
            raise UsageError(
                f"phase {name!r} begins within phase {self._open!r}",
                "End one before the next, so that no time is counted twice.",
            )
        self._open = name
        try:
            with record_function(name):
                self._synchronise()
                began = time.perf_counter()
                try:
                    yield
                    self._synchronise()
                finally:
                    seconds = time.perf_counter() - began
                    self._phases[name] = self._phases.get(name, 0.0) + seconds
        finally:
            self._open = None

    def _move_to_device(self, seconds: float) -> None:
        """Move time spent waiting for the GPU from "wait" to "device"."""
        if seconds > 0:
            self._phases["wait"] -= seconds
            self._phases["device"] = self._phases.get("device", 0.0) + seconds

    def _synchronise(self) -> None:
        if self._gpu:
            torch.accelerator.synchronize()

    def _images(self, batch: Any) -> int:
        if self._batch_size is not None:
            return self._batch_size
        length = _length(batch)
        if length is None:
            raise UsageError(
                f"cannot count the images of a batch of type {type(batch).__name__}",
                "Give the StepTimer batch_size=.",
            )
        return length

    def _count(self, waited: float, images: int) -> None:
        number = self.overall.steps + 1
        for interval in (self.overall, self._recent):
            interval.steps += 1
            interval.images += images
            if waited > interval.longest_wait:
                interval.longest_wait, interval.longest_at = waited, number
        if self._every and number % self._every == 0:
            self.report()

    # Results.

    def report(self) -> None:
        """Write a line about the steps since the last line."""
        self.reported = recent = self._recent
        self._recent = Interval()
        self._write(
            f"step {self.overall.steps}: {recent.images_per_second:,.0f} images/s, "
            f"waiting for data {recent.wait_share:.1%}, "
            f"longest {recent.longest_wait:.3f} s before step {recent.longest_at}"
        )

    def totals(self) -> dict[str, float]:
        """Return the seconds of each phase and of "other", which add up to wall time."""
        return self._phases | {"other": max(self.overall.seconds - sum(self._phases.values()), 0.0)}


def _length(batch: Any) -> int | None:
    """Return the length of the first tensor of a batch; None if it has none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for value in batch:
            length = _length(value)
            if length is not None:
                return length
    return None


_END = object()

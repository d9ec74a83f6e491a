"""Where the time of a training step goes: a timer of its phases, and traces for profilers.

`StepTimer` splits wall time into waiting for data, copying, forward, loss, backward and optimiser,
and writes a line every so many steps. `capture` records a block for TensorBoard, Chrome and nsys.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function, tensorboard_trace_handler

from fastdata.device.transfer import DEVICE_WAIT
from fastdata.errors import UsageError

__all__ = ["PHASES", "Interval", "StepTimer", "capture"]

#: The usual phases of a step; a timer takes any others as well.
PHASES = ("wait", "device", "copy", "forward", "loss", "backward", "optimiser")


class Interval(NamedTuple):
    """Steps that followed each other.

    Attributes:
        steps: How many have ended.
        images: How many images they had.
        seconds: Wall time.
        wait_seconds: That of it that was spent on waiting for batches.
        longest_wait: The longest wait for one batch, in seconds.
        longest_at: The step, counted from 1, that it was before.
    """

    steps: int
    images: int
    seconds: float
    wait_seconds: float
    longest_wait: float
    longest_at: int

    @property
    def images_per_second(self) -> float:
        """Images by wall time; 0 before anything was timed."""
        return self.images / self.seconds if self.seconds > 0 else 0.0

    @property
    def wait_share(self) -> float:
        """Waiting by wall time, 0 to 1."""
        return self.wait_seconds / self.seconds if self.seconds > 0 else 0.0


class StepTimer:
    """Times the steps of a training loop, and their phases.

    A step begins when its batch is asked for, and ends when the next one is. The first phase,
    "wait", is until the batch is there; that of an epoch's first step has the starting of
    the loader in it. What the loop does between two epochs is in no step. Where a `DeviceLoader`
    has sent as much ahead as it may, and waits for the GPU to be done with steps before, the data
    is there: that time is the phase "device", not "wait".

    A GPU works on after it was told to: without ``synchronise``, a phase is the time that telling
    took, and the GPU's own time is in whichever phase waits for it. The time of whole steps, images
    a second and the wait for data are right either way.

    Phases are ranges of `torch.profiler` as well, and of NVTX if asked: profilers show them.

    Args:
        every: Steps between two lines; 0 for no lines.
        batch_size: Images of a step; None to take the length of the batch's first tensor.
        synchronise: Whether to wait for the GPU at both ends of each phase, so that it has its own
            time there. This makes training slower: for measuring only. Without a GPU there is
            nothing to wait for.
        nvtx: Whether steps and phases are NVTX ranges, for ``nsys profile``.
        write: Is given each line.

    Attributes:
        reported: What the last line was about; None before the first.

    Raises:
        UsageError: ``every`` or ``batch_size`` is out of range; NVTX without a GPU.

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
        nvtx: bool = False,
        write: Callable[[str], Any] = print,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise UsageError(f"every={every!r}", "Give the number of steps; 0 for no lines.")
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"batch_size={batch_size!r}", "Give the images of a step, or None.")
        if nvtx:
            _need_gpu("nvtx=True")
        self._every, self._batch_size = every, batch_size
        self._gpu = synchronise and torch.cuda.is_available()
        self._nvtx, self._write = nvtx, write
        self._phases: dict[str, float] = {}
        self._open: str | None = None
        self._all, self._recent = _Sum(), _Sum()
        self._recordings: list[_Planned] = []
        self._stepping = False
        self.reported: Interval | None = None

    # Steps.

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's batches, each of them a step.

        Raises:
            UsageError: It is not known how many images a batch has; or another loader's steps are
                being timed.
        """
        if self._stepping:
            raise UsageError(
                "a StepTimer times the steps of one loop at a time", "Make another one for this."
            )
        self._stepping = True
        try:
            yield from self._steps(loader)
        finally:
            self._stepping = False
            self._end_recordings(math.inf)

    def _steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        iterator: Iterator[Any] | None = None
        left = False
        while not left:
            self._begin_recordings()
            # What recordings and lines cost is in no step.
            began, waited = time.perf_counter(), self._phases.get("wait", 0.0)
            with self._range(f"step {self._all.steps + 1}"):
                ahead = DEVICE_WAIT.seconds
                with self.phase("wait"):
                    if iterator is None:
                        iterator = iter(loader)
                    batch = next(iterator, _END)
                self._move_to_device(DEVICE_WAIT.seconds - ahead)
                if batch is not _END:
                    images = self._images(batch)
                    try:
                        yield batch
                    except GeneratorExit:
                        left = True  # by a break: the step is one like the others
            seconds = time.perf_counter() - began
            waited = self._phases["wait"] - waited
            if batch is _END:
                self._all.add_time(seconds, waited)
                self._recent.add_time(seconds, waited)
                return
            batch = None  # its memory is free while the next one is made
            self._count(seconds, waited, images)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase of the step, to be used with ``with``; several of a name are added up.

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
            with record_function(name), self._range(name):
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
        """Takes what was no waiting for data out of "wait"."""
        if seconds > 0:
            self._phases["wait"] -= seconds
            self._phases["device"] = self._phases.get("device", 0.0) + seconds

    def _range(self, name: str) -> AbstractContextManager[None]:
        return torch.cuda.nvtx.range(name) if self._nvtx else nullcontext()

    def _synchronise(self) -> None:
        if self._gpu:
            torch.cuda.synchronize()

    def _images(self, batch: Any) -> int:
        if self._batch_size is not None:
            return self._batch_size
        found = _length(batch)
        if found is None:
            raise UsageError(
                f"a batch of type {type(batch).__name__} does not tell how many images it has",
                "Give the StepTimer batch_size=.",
            )
        return found

    def _count(self, seconds: float, waited: float, images: int) -> None:
        number = self._all.steps + 1
        for total in (self._all, self._recent):
            total.add_time(seconds, waited)
            total.add_step(number, waited, images)
        self._end_recordings(number)
        if self._every and number % self._every == 0:
            self.report()

    # What was found.

    def report(self) -> None:
        """Writes a line about the steps since the last one, and begins anew to count them."""
        found = self.recent
        self.reported = found
        self._recent = _Sum()
        longest = (
            f", longest {found.longest_wait:.3f} s before step {found.longest_at}"
            if found.steps
            else ""
        )
        self._write(
            f"step {self._all.steps}: {found.images_per_second:,.0f} images/s, "
            f"waiting for data {found.wait_share:.1%}{longest}"
        )

    @property
    def overall(self) -> Interval:
        """All steps so far."""
        return self._all.interval()

    @property
    def recent(self) -> Interval:
        """Steps since the last line."""
        return self._recent.interval()

    @property
    def images_per_second(self) -> float:
        """Images by wall time, over all steps so far; see `recent` and `reported` for some."""
        return self.overall.images_per_second

    @property
    def wait_share(self) -> float:
        """Waiting for data by wall time, 0 to 1, over all steps so far."""
        return self.overall.wait_share

    def totals(self) -> dict[str, float]:
        """Seconds in each phase that occurred, and in "other", so that all add up to wall time."""
        names = dict.fromkeys((*PHASES, *self._phases))  # the usual ones first
        found = {name: self._phases[name] for name in names if name in self._phases}
        found["other"] = max(self._all.seconds - sum(found.values()), 0.0)
        return found

    # Recording some steps of a loop.

    def capture(
        self,
        trace: str | os.PathLike[str] | None = None,
        *,
        first: int = 10,
        steps: int = 10,
        **options: Any,
    ) -> None:
        """Records some of the steps to come, as `capture` does.

        Recording ends with the loop, if that ends before.

        Args:
            trace: As of `capture`.
            first: Steps that are left out first, as what is new is slow.
            steps: Steps that are recorded.
            options: As of `capture`.

        Raises:
            UsageError: As of `capture`; or ``first`` or ``steps`` is out of range.
        """
        for name, value, least in (("first", first, 0), ("steps", steps, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"{name}={value!r}", f"Give a number of steps, at least {least}.")
        start = self._all.steps + first
        block = capture(trace, **options)
        self._recordings.append(_Planned(block, start, start + steps))

    def _begin_recordings(self) -> None:
        for planned in list(self._recordings):
            if not planned.under_way and self._all.steps >= planned.start:
                # What cannot be begun is not tried again, nor ended.
                self._recordings.remove(planned)
                planned.block.__enter__()
                planned.under_way = True
                self._recordings.append(planned)

    def _end_recordings(self, steps: float) -> None:
        with ExitStack() as ends:  # all are ended, also where one cannot be written
            for planned in list(self._recordings):
                if planned.under_way and steps >= planned.stop:
                    self._recordings.remove(planned)
                    ends.callback(planned.block.__exit__, None, None, None)


def capture(
    trace: str | os.PathLike[str] | None = None,
    *,
    nsys: bool = False,
    shapes: bool = False,
    stacks: bool = False,
    memory: bool = False,
) -> AbstractContextManager[Any]:
    """Records what happens in a ``with`` block, for a profiler's viewer.

    Args:
        trace: Where torch.profiler's trace goes. A name that ends with ".json" or ".json.gz" is
            one file, for chrome://tracing or Perfetto. Any other is a folder for TensorBoard's
            profiler plugin, to which a file is added; those are Chrome's, too.
        nsys: Whether the block is the range that
            ``nsys profile --capture-range=cudaProfilerApi`` records.
        shapes: Whether the trace has the shapes of operators' arguments.
        stacks: Whether it has Python's stacks.
        memory: Whether it has allocations.

    Returns:
        A context manager. As its value it has the ``torch.profiler.profile``, None if ``trace`` is.

    Raises:
        UsageError: There is nothing to record, or ``nsys`` is asked for where there is no GPU.
    """
    if trace is None and not nsys:
        raise UsageError("nothing is to be recorded", "Give trace=, or nsys=True.")
    if trace is None and (shapes or stacks or memory):
        raise UsageError("shapes=, stacks= and memory= are parts of a trace", "Give trace= too.")
    if nsys:
        _need_gpu("nsys=True")
    options: dict[str, Any] = {
        "record_shapes": shapes,
        "with_stack": stacks,
        "profile_memory": memory,
    }
    return _recording(None if trace is None else Path(trace), nsys, options)


@contextmanager
def _recording(trace: Path | None, nsys: bool, options: dict[str, Any]) -> Iterator[Any]:
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()  # what was told to the GPU before is not of this block
    with ExitStack() as ends:
        recorder = None
        if trace is not None:
            recorder = ends.enter_context(
                profile(activities=activities, on_trace_ready=_writer(trace), **options)
            )
        if nsys:
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            ends.callback(torch.cuda.profiler.stop)
        try:
            yield recorder
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()


def _writer(trace: Path) -> Callable[[Any], None]:
    """What writes a finished trace."""
    if not trace.name.endswith((".json", ".json.gz")):
        return tensorboard_trace_handler(str(trace))  # type: ignore[no-any-return]

    def write(recorder: Any) -> None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        # Under its name it is complete.
        part = trace.with_name(f".{os.getpid()}.{trace.name}")
        recorder.export_chrome_trace(str(part))
        part.replace(trace)

    return write


@dataclass
class _Sum:
    """Adds up steps."""

    steps: int = 0
    images: int = 0
    seconds: float = 0.0
    wait: float = 0.0
    longest: float = 0.0
    longest_at: int = 0

    def add_time(self, seconds: float, waited: float) -> None:
        self.seconds += seconds
        self.wait += waited

    def add_step(self, number: int, waited: float, images: int) -> None:
        self.steps += 1
        self.images += images
        if waited > self.longest:
            self.longest, self.longest_at = waited, number

    def interval(self) -> Interval:
        return Interval(
            self.steps, self.images, self.seconds, self.wait, self.longest, self.longest_at
        )


@dataclass
class _Planned:
    """A recording of some steps: from after ``start`` of them until after ``stop``."""

    block: AbstractContextManager[Any]
    start: int
    stop: int
    under_way: bool = False


def _length(batch: Any) -> int | None:
    """The length of the first tensor of a batch; None if it has none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for value in batch:
            found = _length(value)
            if found is not None:
                return found
    return None


def _need_gpu(what: str) -> None:
    if not torch.cuda.is_available():
        raise UsageError(
            f"{what} needs a CUDA device, and torch finds none",
            "Leave it out: phases are in torch.profiler's traces either way.",
        )


_END = object()

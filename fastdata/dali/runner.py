"""The thread that runs DALI's pipelines, and gets over what they die of.

A pipeline is fed batch by batch and gives them back in that order; one sample that it cannot
decode ends it, with all that it had under way. Then it is built anew, the batch is run in halves
until the sample stands alone, and what came after is fed again. So what happens to a batch does
not depend on its neighbours, nor on when they failed.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.dali.graph import Graph
from fastdata.transforms.geometry import Geometry


class DALIError(RuntimeError):
    """DALI itself does not work here: not for want of a good sample."""


class Run:
    """Some samples of a batch that DALI decodes together.

    Args:
        kind: `fastdata.dali.graph.ENCODED` or ``RAW``.
        places: int64, their places in the batch.
        samples: Their bytes, or pixels.
    """

    def __init__(
        self, kind: str, places: npt.NDArray[np.int64], samples: list[npt.NDArray[np.uint8]]
    ) -> None:
        self.kind = kind
        self.places = places
        self.samples = samples

    def halves(self) -> Iterator[Run]:
        """The same in two parts."""
        middle = len(self.places) // 2
        for part in (slice(None, middle), slice(middle, None)):
            yield Run(self.kind, self.places[part], self.samples[part])


class Work(Protocol):
    """One batch, as the runner sees it."""

    read: _native.ReadJob
    geometries: list[Geometry]
    #: The CUDA stream that its pixels are for; None on the CPU.
    stream: Any
    cancelled: bool
    error: Exception | None

    def sort(self) -> list[Run]:
        """When it is read: what DALI is to decode of it."""

    def take(self, run: Run, outputs: list[Any]) -> None:
        """Takes pixels: a tensor of DALI's for each view."""

    def refuse(self, place: int) -> None:
        """Takes note of a sample that DALI cannot decode."""

    def finish(self, seconds: float) -> None:
        """Nothing more will come; DALI has worked so long on it."""


class Runner:
    """Runs batches one after the other, some of them under way at once, in a thread of its own.

    The thread starts with the first batch; pipelines are built when a batch needs them.

    Args:
        graph: What the pipelines are.
        batch_size: The most samples of a batch, as far as is known.
    """

    def __init__(self, graph: Graph, batch_size: int) -> None:
        self._graph = graph
        self._batch_size = batch_size
        self._tasks: SimpleQueue[Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    @property
    def alive(self) -> bool:
        """Whether it can be used: not closed, and not a fork's copy of its parent's."""
        return self._process == os.getpid()

    def submit(self, work: Work) -> None:
        """Begins a batch; its ``finish`` is called in the end, whatever happens."""
        self._tasks.put(work)
        if self._thread is None:
            # It knows the queue only, so that the runner can be collected.
            thread = threading.Thread(
                target=_serve,
                args=(self._tasks, self._graph, self._batch_size),
                name="fastdata-dali",
                daemon=True,
            )
            self._thread = thread
            weakref.finalize(self, _end, self._tasks, self._process)
            with _starting:  # whoever ends all threads finds it started, or it finds the end
                thread.start()
                _THREADS[thread] = self._tasks

    def close(self) -> None:
        """Ends the thread when it is done with what was submitted; does not wait for that."""
        _end(self._tasks, self._process)


def _end(tasks: SimpleQueue[Work | None], process: int) -> None:
    if os.getpid() == process:
        tasks.put(None)


class _Lane:
    """A pipeline for one kind of samples."""

    def __init__(self, graph: Graph, kind: str, batch_size: int) -> None:
        self._graph = graph
        self._kind = kind
        self._batch_size = batch_size
        self._pipeline: Any = None

    def holds(self, count: int) -> bool:
        """Whether it takes batches of so many samples."""
        return count <= self._batch_size

    def discard(self) -> None:
        """Gives up the pipeline, with what is under way."""
        self._pipeline = None

    def feed(self, work: Work, run: Run) -> None:
        """Begins a run.

        Raises:
            DALIError: There is no pipeline to be had.
        """
        if self._pipeline is None:
            try:
                self._pipeline = self._graph.build(self._kind, self._batch_size)
            except Exception as error:
                raise DALIError(f"DALI's pipeline cannot be built or run: {error}") from error
        self._graph.feed(self._pipeline, run.samples, work.geometries, run.places)
        self._pipeline.schedule_run()

    def outputs(self, stream: Any) -> list[Any]:
        """The oldest run's pixels: a tensor for each view.

        Raises:
            Exception: Some sample of it cannot be decoded.
        """
        return [
            found.as_tensor()
            for found in (
                self._pipeline.outputs()
                if stream is None
                else self._pipeline.outputs(cuda_stream=stream)
            )
        ]


class _Under:
    """A batch under way: how many of its runs are, and in which lanes."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.lanes: dict[str, _Lane] = {}
        self.runs = 0
        self.seconds = 0.0


def _serve(tasks: SimpleQueue[Work | None], graph: Graph, batch_size: int) -> None:
    _Server(tasks, graph, batch_size).serve()


class _Server:
    """What the thread does."""

    def __init__(self, tasks: SimpleQueue[Work | None], graph: Graph, batch_size: int) -> None:
        self._tasks = tasks
        self._graph = graph
        self._batch_size = batch_size
        self._depth = graph.options.prefetch_queue_depth
        self._lanes: dict[str, _Lane] = {}
        self._under_way: deque[tuple[_Under, Run]] = deque()
        self._busy_since = 0.0

    def serve(self) -> None:
        """Works until there is None in the queue."""
        waiting: Work | None = None
        while not _ending.is_set():
            if waiting is None:
                try:
                    waiting = self._tasks.get(block=not self._under_way)
                except Empty:
                    self._collect()
                    continue
                if waiting is None:
                    break
            full = len(self._under_way) >= self._depth
            if self._under_way and (full or not waiting.read.done()):
                self._collect()
                continue
            self._begin(waiting)
            waiting = None
        while self._under_way and not _ending.is_set():
            self._collect()

    def _begin(self, work: Work) -> None:
        under = _Under(work)
        under.runs = 1  # this: collecting others, for a larger pipeline, must not finish it
        try:
            work.read.wait()
            runs = [] if work.cancelled else work.sort()
        except Exception as error:  # its own: the batches before it are none the worse
            runs = []
            _blame(work, error)
        try:
            for run in runs:
                if not self._feed(under, run):
                    break
        except Exception as error:
            self._fail(under, error)
        under.runs -= 1
        if not under.runs:
            work.finish(under.seconds)

    def _feed(self, under: _Under, run: Run) -> bool:
        """Begins a run; False if it cannot be fed to a pipeline, which is its batch's own error."""
        lane = self._lane(run)
        if not self._under_way:
            self._busy_since = time.perf_counter()
        try:
            lane.feed(under.work, run)
        except DALIError:
            raise
        except Exception as error:
            _blame(under.work, error)
            lane.discard()  # it may have been fed a part
            self._feed_again(lane, run.kind)
            return False
        under.lanes[run.kind] = lane
        under.runs += 1
        self._under_way.append((under, run))
        return True

    def _feed_again(self, lane: _Lane, kind: str) -> None:
        """Begins anew what was under way in a pipeline that was given up."""
        for under, run in self._under_way:
            if run.kind == kind and under.lanes[kind] is lane:
                lane.feed(under.work, run)

    def _lane(self, run: Run) -> _Lane:
        """The pipeline for a run; a larger one, once the others are through, if need be."""
        lane = self._lanes.get(run.kind)
        if lane is None or not lane.holds(len(run.places)):
            while lane is not None and self._under_way:
                self._collect()
            size = max(self._batch_size, len(run.places))
            lane = self._lanes[run.kind] = _Lane(self._graph, run.kind, size)
        return lane

    def _collect(self) -> None:
        """Waits for the oldest run."""
        under, run = self._under_way.popleft()
        try:
            lane = under.lanes[run.kind]
            if self._lanes.get(run.kind) is lane:  # else it was given up, with what it had
                self._take(lane, under.work, run)
        except Exception as error:
            self._fail(under, error)
        now = time.perf_counter()
        under.seconds += now - self._busy_since
        self._busy_since = now
        under.runs -= 1
        if not under.runs:
            under.work.finish(under.seconds)

    def _take(self, lane: _Lane, work: Work, run: Run) -> None:
        try:
            outputs = lane.outputs(work.stream)
        except Exception:
            lane.discard()
            if not work.cancelled:
                self._sift(lane, work, run)
            self._feed_again(lane, run.kind)
        else:
            if not work.cancelled:
                _hand(work, run, outputs)

    def _sift(self, lane: _Lane, work: Work, run: Run) -> None:
        """Runs what has failed in parts, to find the samples that it fails for."""
        if len(run.places) == 1:
            work.refuse(int(run.places[0]))
            return
        for half in run.halves():
            lane.feed(work, half)
            try:
                outputs = lane.outputs(work.stream)
            except Exception:
                lane.discard()
                self._sift(lane, work, half)
            else:
                _hand(work, half, outputs)

    def _fail(self, under: _Under, error: Exception) -> None:
        """DALI as such does not work: everything under way has failed."""
        for one in (under, *(other for other, _ in self._under_way)):
            _blame(one.work, error)
        self._lanes.clear()


def _blame(work: Work, error: Exception) -> None:
    """Notes why a batch has failed, unless something before has made it."""
    if work.error is None:
        work.error = error


def _hand(work: Work, run: Run, outputs: list[Any]) -> None:
    """Gives a batch its pixels; what it makes of them is its own affair."""
    try:
        work.take(run, outputs)
    except Exception as error:
        _blame(work, error)


_THREADS: weakref.WeakKeyDictionary[threading.Thread, SimpleQueue[Work | None]] = (
    weakref.WeakKeyDictionary()
)


_ending = threading.Event()
_starting = threading.RLock()

#: Seconds for a thread to end: more than DALI takes for a batch, less than a stalled read may.
_PATIENCE = 10.0


@atexit.register
def _end_all() -> None:
    """DALI's threads must not be at work while the interpreter goes.

    Batches are left as they are; iterators are closed next, and nobody waits for them any more.
    """
    _ending.set()
    with _starting:
        threads = list(_THREADS.items())
    for thread, tasks in threads:
        tasks.put(None)
        thread.join(_PATIENCE)


def _after_fork() -> None:
    global _starting
    _starting = threading.RLock()  # the parent's may be held by a thread that is not here
    _THREADS.clear()  # the parent's


os.register_at_fork(after_in_child=_after_fork)

"""A DALI pipeline, fed and emptied in the order of batches, without Python threads.

DALI decodes in its own threads: feeding the pipeline returns at once, and taking its oldest batch
waits for it. One batch that DALI cannot take or decode ends the pipeline with all batches under
way. Then fastdata decodes that batch, and a new pipeline the later ones. If DALI cannot build a
pipeline, fastdata decodes all batches.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastdata.transforms.geometry import Cuts

if TYPE_CHECKING:
    from fastdata.dali.graph import Graph


@dataclass(eq=False)
class Run:
    """Samples of a batch that DALI decodes together.

    Attributes:
        slots: int64, their slots in the batch.
        samples: Their bytes; empty once DALI is done with them.
        cuts: Geometry of the batch, for each view.
        pixels: One DALI tensor per view, once it is done.
        error: Why DALI cannot decode them.
        cancelled: Whether they are no longer needed.
    """

    slots: npt.NDArray[np.int64]
    samples: list[Any]
    cuts: list[Cuts]
    pixels: list[Any] | None = None
    error: Exception | None = None
    cancelled: bool = False


class Runner:
    """Pipeline, built on first use, and the queue of its runs. Thread-safe.

    Attributes:
        graph: Builder of pipelines.
        broken: Why DALI cannot build a pipeline; None if it can, as far as is known.
    """

    def __init__(self, graph: Graph, batch_size: int) -> None:
        self.broken: Exception | None = None
        self.graph = graph
        self._batch_size = batch_size
        self._pipeline: Any = None
        self._queue: deque[Run] = deque()
        self._fed = 0  # number of runs under way, the queue's first
        self._process = os.getpid()
        self.lock = threading.RLock()
        _LIVE.add(self)
        _end_at_exit()

    @property
    def alive(self) -> bool:
        """Whether this process can use it: a forked child cannot use its parent's."""
        return self._process == os.getpid()

    def begin(self, run: Run) -> None:
        """Queue a run; it begins when the pipeline has room."""
        with self._in_step():
            self._queue.append(run)
            self._fill()

    def finish(self, run: Run, stream: Any = None) -> None:
        """Wait until a run has its pixels, or an error, or is cancelled.

        ``stream`` uses the pixels; None on the CPU. DALI reuses their memory after the work that
        was queued on that stream before they were dropped.
        """
        with self._in_step():
            while run.pixels is None and run.error is None and not run.cancelled:
                self._take(stream)

    def close(self) -> None:
        """End the pipeline and all runs under way."""
        if self.alive:
            with self.lock:
                for run in self._queue:
                    run.cancelled = True
                self._queue.clear()
                self._drop_pipeline()

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Hold the lock; end a pipeline that Ctrl-C may have put out of step with the queue.

        It may have half of a batch, or have given one that nobody has. The next batches would get
        the pixels of others.
        """
        with self.lock:
            try:
                yield
            except BaseException:
                self._drop_pipeline()
                raise

    def _drop_pipeline(self) -> None:
        """End the pipeline; the next one is fed the runs that are under way."""
        self._pipeline, self._fed = None, 0

    def _fill(self) -> None:
        """Feed the pipeline up to its depth."""
        while self._fed < min(self.graph.depth, len(self._queue)):
            run = self._queue[self._fed]
            if run.cancelled:
                del self._queue[self._fed]
                continue
            if len(run.slots) > self._batch_size:
                if self._fed:
                    return  # a larger pipeline, once this one is empty
                self._batch_size, self._pipeline = len(run.slots), None
            error = self.broken or self._feed(run)
            if error is None:
                self._fed += 1
            else:
                del self._queue[self._fed]
                self._drop_pipeline()
                run.error, run.samples = error, []

    def _feed(self, run: Run) -> Exception | None:
        """Feed a run to the pipeline, which is built if there is none; return any error."""
        try:
            if self._pipeline is None:
                if _ENDING.is_set():
                    raise SystemExit  # ends a daemon thread without a traceback
                self._pipeline = self.graph.build(self._batch_size)
            self.graph.feed(self._pipeline, run.samples, run.cuts, run.slots)
            self._pipeline.schedule_run()
        except Exception as error:
            kept = error.with_traceback(None)  # its frames would keep samples and pipeline
            if self._pipeline is None:
                self.broken = kept  # building takes long: do not try it for every batch
            return kept
        return None

    def _take(self, stream: Any) -> None:
        """Wait for the oldest run that DALI has taken, if there is one."""
        self._fill()
        if not self._fed:
            return
        run = self._queue[0]
        try:
            # Only a GPU's outputs are ordered on a stream.
            where = {} if stream is None else {"cuda_stream": stream}
            run.pixels = [found.as_tensor() for found in self._pipeline.outputs(**where)]
        except Exception as error:
            self._drop_pipeline()
            run.error = error.with_traceback(None)
        else:
            self._fed -= 1
        self._queue.popleft()
        run.samples = []
        self._fill()


_LIVE: weakref.WeakSet[Runner] = weakref.WeakSet()
_OF_PARENT: list[Runner] = []

#: Set when the interpreter ends, to build no more pipelines.
_ENDING = threading.Event()

#: Seconds for DALI to end a batch: more than it takes.
_PATIENCE = 10.0


@functools.cache
def _end_at_exit() -> None:
    """End pipelines before DALI's own atexit function: atexit calls the last one first."""
    atexit.register(_end_all)


def _end_all() -> None:
    """End pipelines while the interpreter still works, and block threads that would use them."""
    _ENDING.set()
    for runner in list(_LIVE):
        if runner.alive and runner.lock.acquire(timeout=_PATIENCE):
            runner.close()


# Ending a pipeline waits for its threads, which a fork does not have.
os.register_at_fork(after_in_child=lambda: _OF_PARENT.extend(_LIVE))

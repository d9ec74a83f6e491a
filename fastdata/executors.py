"""Where independent tasks run: in this process, or in several of this machine."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from typing import Any, Protocol, TypeVar

from fastdata.errors import DataError, UsageError
from fastdata.machine import usable_cpus

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Seconds between two looks at the progress of running tasks.
_TICK = 0.1


class Executor(Protocol):
    """Runs tasks, several at once; a context manager."""

    def __enter__(self) -> Executor:
        """Begins."""

    def __exit__(self, *exception: Any) -> None:
        """Ends; tasks that still run are given up."""

    def run(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        tick: Callable[[], None] = lambda: None,
        ahead: int = 0,
    ) -> Iterator[Result]:
        """Yields ``function(item)`` for each item, in the items' order.

        Items are taken, and results held, only a few ahead of the consumer. The first
        exception of a task is raised where its result would have come.

        Args:
            function: A picklable function.
            items: What to call it with.
            tick: Called about ten times a second while results are awaited.
            ahead: How many items ahead of the consumer may be taken where their results are
                small and the consumer's pauses long; never fewer than keep all workers busy.
        """

    def reported(self) -> tuple[int, int]:
        """Images and bytes that tasks have reported so far."""


# Images and bytes that the tasks of this process have reported, and the lock for adding to them;
# in a worker, both are shared with its siblings and the parent.
_counters: Any = [0, 0]
_counting: Any = threading.Lock()
_on_report: Callable[[], None] | None = None


def report(images: int, size: int) -> None:
    """Adds to the progress, from within a task; safe to call from several threads."""
    with _counting:
        _counters[0] += images
        _counters[1] += size
    if _on_report is not None:
        _on_report()


@contextmanager
def counted() -> Iterator[list[int]]:
    """Collects what one task reports: images and bytes, in a list, when the block has ended."""
    global _counters
    before, _counters = _counters, [0, 0]
    try:
        yield _counters
    finally:
        _counters = before


def local_executor(workers: int | None) -> InProcess | Processes:
    """Makes the executor for a number of workers; None for one a CPU.

    Raises:
        UsageError: There would be none.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers}: no work would be done", "Use 1 or more.")
    workers = usable_cpus() if workers is None else workers
    return Processes(workers) if workers > 1 else InProcess()


class InProcess:
    """Runs tasks one by one in this process."""

    def __enter__(self) -> InProcess:
        _counters[:] = [0, 0]
        return self

    def __exit__(self, *exception: Any) -> None:
        global _on_report
        _on_report = None

    def run(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        tick: Callable[[], None] = lambda: None,
        ahead: int = 0,
    ) -> Iterator[Result]:
        """See `Executor.run`."""
        global _on_report
        _on_report = tick
        for item in items:
            yield function(item)

    def reported(self) -> tuple[int, int]:
        """See `Executor.reported`."""
        return _counters[0], _counters[1]


class Processes:
    """Runs tasks in worker processes, which die with this one.

    Processes are spawned, not forked: a fork in a program with threads may hang.
    """

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._counters = context.Array("q", 2)
        self._ahead = 2 * workers
        self._pool = ProcessPoolExecutor(
            workers, context, initializer=_start_worker, initargs=(self._counters,)
        )

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: Any) -> None:
        if exception[0] is not None:
            # Nothing that a task writes counts before it is whole, so none is waited for.
            # The executor's own way to do this came with Python 3.14.
            for process in list((getattr(self._pool, "_processes", None) or {}).values()):
                process.kill()
        self._pool.shutdown(cancel_futures=True)

    def run(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        tick: Callable[[], None] = lambda: None,
        ahead: int = 0,
    ) -> Iterator[Result]:
        """See `Executor.run`."""
        remaining = iter(items)
        running: deque[Future[Result]] = deque()
        ahead = max(ahead, self._ahead)
        while True:
            try:
                while len(running) < ahead and (item := next(remaining, _END)) is not _END:
                    running.append(self._submit(function, item))
                if not running:
                    return
                while not wait([running[0]], _TICK, FIRST_COMPLETED).done:
                    tick()
                tick()
                result = running.popleft().result()
            except BrokenProcessPool:
                # From `result`; or from `submit`, if it died while the consumer was at work.
                raise DataError(
                    "a worker process died (killed, or out of memory)",
                    "Run the same command again, it resumes; fewer --workers need less memory.",
                ) from None
            yield result

    def _submit(self, function: Callable[[Item], Result], item: Item) -> Future[Result]:
        # Ctrl-C reaches the whole process group, and this process decides what happens. The
        # executor starts workers here, and they inherit what is blocked.
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.submit(function, item)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)

    def reported(self) -> tuple[int, int]:
        """See `Executor.reported`."""
        # Read without their lock, which a worker that was killed may hold for ever.
        counters: Any = self._counters.get_obj()
        return counters[0], counters[1]


_END: Any = object()


def keep_freed_memory() -> None:
    """Lets this process keep the memory that it frees, for the next image.

    By default glibc maps every block of more than 128 kB afresh and gives it back when it is
    freed, and the kernel clears each page anew. Reading images and writing them to LMDB took
    0.76 s for 4,200 and 0.44 s with this. For processes that are fastdata's own: workers,
    the command line.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc takes
    mallopt(_M_TRIM_THRESHOLD, 256 << 20)


# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def _start_worker(counters: Any) -> None:
    global _counters, _counting
    _counters, _counting = counters.get_obj(), counters.get_lock()
    keep_freed_memory()
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)

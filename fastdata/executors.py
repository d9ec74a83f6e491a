"""Executors of independent tasks: in this thread, in daemon threads, or in worker processes.

Packing uses the interface of `Executor`: results in order, and progress. Loaders submit tasks to
`Threads` or `InProcess`.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import SpawnProcess
from typing import Any, TypeAlias, TypeVar

from fastdata.errors import DataError, UsageError
from fastdata.machine import usable_cpus
from fastdata.threads import AWAITED, Result, Task, Threads

Item = TypeVar("Item")
#: Called now and then while tasks run, to show progress.
Tick: TypeAlias = Callable[[], None]

#: Seconds that a process whose pipe is closed may take to end.
_TO_END = 10
#: Seconds between two reports of running tasks.
_TICK = 0.1
#: Seconds between two looks for requests to cancel, while threads end.
_SLICE = 0.05


class Executor:
    """Executor of tasks, several at once; a context manager, whose end cancels running tasks.

    Attributes:
        reported: Images and bytes that tasks have reported so far.
    """

    def __init__(self) -> None:
        self.reported = [0, 0]

    def run(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        tick: Tick = lambda: None,
        ahead: int = 0,
    ) -> Iterator[Result]:
        """Yield ``function(item)`` for each item, in the items' order.

        Takes items and holds results only a few ahead of the consumer. A task's exception is
        raised instead of its result.

        Args:
            function: A picklable function.
            items: Its arguments.
            tick: Called some ten times a second while waiting for results.
            ahead: Most items to take ahead of the consumer. Give many if results are small and
                the consumer pauses long; at least enough to keep all workers busy.
        """
        raise NotImplementedError

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *exception: Any) -> None:
        """Cancel running tasks."""


# Called with the images and bytes that a task of this process reports, and the lock for counting
# them.
_on_report: Callable[[int, int], None] | None = None
_counting = threading.Lock()


def report(images: int, size: int) -> None:
    """Add to the progress, inside a task; safe to call from several threads."""
    if _on_report is not None:
        _on_report(images, size)


def _add(counts: list[int], images: int, size: int) -> None:
    with _counting:
        counts[0] += images
        counts[1] += size


@contextmanager
def counted() -> Iterator[list[int]]:
    """Collect the images and bytes that a task reports inside the block, in a list."""
    global _on_report
    counts = [0, 0]
    _on_report = partial(_add, counts)
    try:
        yield counts
    finally:
        _on_report = None


#: More processes than any machine has CPUs.
_MOST_WORKERS = 4096


def local_executor(workers: int | None) -> Executor:
    """Return the executor for a number of workers, None for one a CPU; UsageError below 1."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise _unguarded()  # this is a worker that imports the script
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers}: no work would be done", "Use 1 or more.")
    workers = usable_cpus() if workers is None else workers
    if workers > _MOST_WORKERS:
        raise UsageError(
            f"--workers {workers}: too many processes for one machine",
            f"Use as many as it has CPUs ({usable_cpus()}), {_MOST_WORKERS:,} at the most.",
        )
    return Processes(workers) if workers > 1 else InProcess()


class InProcess(Executor):
    """Executor that runs tasks one by one, each at once, in the caller's thread."""

    def submit(self, function: Callable[..., Result], *args: Any) -> Task[Result]:
        """See `Threads.submit`."""
        task = Task(partial(function, *args))
        task.run(Exception)
        return task

    def end(self) -> None:
        """See `Threads.end`."""

    def __exit__(self, *exception: Any) -> None:
        global _on_report
        _on_report = None

    def run(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        tick: Tick = lambda: None,
        ahead: int = 0,
    ) -> Iterator[Result]:
        global _on_report

        def count(images: int, size: int) -> None:
            _add(self.reported, images, size)
            tick()

        _on_report = count
        for item in items:
            yield function(item)


class Processes(Executor):
    """Executor that runs tasks in worker processes, which die with this one.

    Processes are spawned, not forked: a fork in a program with threads may hang. Threads feed
    them through pipes. `concurrent.futures.ProcessPoolExecutor` is no alternative: its semaphores
    stay in ``/dev/shm`` when the whole process group is killed.
    """

    def __init__(self, workers: int) -> None:
        super().__init__()
        self._ahead = 2 * workers
        self._threads = Threads(workers, "fastdata-worker")
        self._workers: list[tuple[SpawnProcess, Connection]] = []
        #: Those that no thread uses.
        self._free: list[tuple[SpawnProcess, Connection]] = []
        self._lock = threading.Lock()
        self._ended = False

    def __exit__(self, *exception: Any) -> None:
        with self._lock:
            self._ended = True
        if exception[0] is not None:
            # Incomplete output of a task never counts, so do not wait for any.
            for process, _ in self._workers:
                process.kill()
        self._threads.end(wait=True)
        for process, connection in self._workers:
            connection.close()
            process.join()

    def run(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        tick: Tick = lambda: None,
        ahead: int = 0,
    ) -> Iterator[Result]:
        remaining = iter(items)
        running: deque[Task[Result]] = deque()
        ahead = max(ahead, self._ahead)
        while True:
            while len(running) < ahead and (item := next(remaining, _END)) is not _END:
                running.append(self._submit(function, item))
            if not running:
                return
            while not running[0].wait(_TICK):
                tick()
            tick()
            yield running.popleft().result()

    def _submit(self, function: Callable[[Item], Result], item: Item) -> Task[Result]:
        # Ctrl-C reaches the whole process group, but only the main thread handles it. Threads
        # start here; they and the worker processes inherit the blocked signals.
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._threads.submit(self._call, function, item)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)

    def _call(self, function: Callable[[Item], Result], item: Item) -> Result:
        """Run a task in a worker process."""
        # Not `send`: its buffer outlives a broken pipe and warns when it is destroyed.
        call, process = pickle.dumps((function, item)), None
        try:
            process, connection = self._worker()
            connection.send_bytes(call)
            while True:
                kind, value, counts = connection.recv()
                _add(self.reported, *counts)
                if kind != _PROGRESS:
                    break
            self._free.append((process, connection))
        except (EOFError, ConnectionError):
            if process is not None:
                process.join(_TO_END)
                if process.exitcode == 1:  # by an exception of its own, not a task's
                    raise _unguarded() from None
            raise DataError(
                "a worker process died (killed, or out of memory)",
                "Run the same command again: it resumes. Fewer --workers need less memory.",
            ) from None
        if kind == _ERROR:
            error, trace = value
            raise error from _WorkerError(trace)
        result: Result = value
        return result

    def _worker(self) -> tuple[SpawnProcess, Connection]:
        """Return a worker process that is free, or a new one."""
        with suppress(IndexError):
            return self._free.pop()
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        with self._lock:
            if self._ended:
                raise EOFError  # the result is no longer needed
            process = context.Process(target=_work, args=(theirs,))
            # Start the tracker first: starting it, as the first process would, unblocks SIGINT.
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            process.start()
            self._workers.append((process, ours))
        theirs.close()
        return process, ours


def _unguarded() -> UsageError:
    return UsageError(
        "worker processes cannot start: each imports the script that starts it, and that fails",
        'Put the call below `if __name__ == "__main__":`, or use workers=1.',
    )


#: Kinds of a worker's messages: counts alone, a task's result, or its exception.
_PROGRESS, _RESULT, _ERROR = range(3)


class _WorkerError(Exception):
    """Traceback of an exception in a worker, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


_END: Any = object()


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, for the next image.

    By default glibc maps every block of more than 128 kB and unmaps it when it is freed, and
    the kernel clears each page again. Reading 4,200 images and writing them to LMDB took 0.76 s
    without this and 0.44 s with it. Call it only in fastdata's own processes: workers, the
    command line.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc takes
    mallopt(_M_TRIM_THRESHOLD, 256 << 20)


# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def _work(connection: Connection) -> None:
    """Run tasks in a worker process until the connection ends."""
    global _on_report
    keep_freed_memory()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    counts, sent = [0, 0], time.monotonic()

    def send(kind: int, value: Any = None) -> None:
        with _counting:  # threads of a task may report
            connection.send((kind, value, counts))
            counts[:] = [0, 0]

    def count(images: int, size: int) -> None:
        nonlocal sent
        _add(counts, images, size)
        if time.monotonic() - sent >= _TICK:
            sent = time.monotonic()
            send(_PROGRESS)

    _on_report = count
    with suppress(EOFError, ConnectionError):  # the parent has closed the pipe
        while True:
            task = connection.recv_bytes()
            try:
                function, item = pickle.loads(task)
                send(_RESULT, function(item))
            except BaseException as error:
                send(_ERROR, (_sendable(error), traceback.format_exc()))


def _sendable(error: BaseException) -> BaseException:
    """Return the exception, or one with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def helper_threads(threads: int) -> Threads | InProcess:
    """Return an executor of so many threads, started on demand; for 0, the caller's thread."""
    if not threads:
        return InProcess()
    executor = Threads(threads, "fastdata-helper")
    _HELPERS.add(executor)
    return executor


_HELPERS: weakref.WeakSet[Threads] = weakref.WeakSet()


def end_helpers() -> None:
    """End all helper threads; each finishes its current image, and no request to a server."""
    executors = list(_HELPERS)
    for executor in executors:
        executor.end()
    while not all(executor.join(_SLICE) for executor in executors):
        for request in tuple(AWAITED):  # a copy in one step, as threads add others
            request.cancel()

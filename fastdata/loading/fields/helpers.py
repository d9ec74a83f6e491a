"""Daemon pool for the Pillow fallback, which does not block interpreter exit; waiting for jobs."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, wait
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from fastdata.errors import FastdataError, OutageError
from fastdata.remote.abandoning import cancel_awaited

T = TypeVar("T")
_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]

#: Seconds between two checks for signals such as Ctrl-C, while waiting for batches.
_SLICE = 0.05


def helper_threads(threads: int) -> Executor:
    """Return an executor of so many threads, started on demand; for 0, the caller's thread."""
    return HelperThreads(threads) if threads else InlineExecutor()


class InlineExecutor(Executor):
    """Executor that runs each task immediately, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `concurrent.futures.Executor.submit`."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class HelperThreads(Executor):
    """Executor of threads that end with the interpreter.

    `concurrent.futures.ThreadPoolExecutor` finishes all its tasks before the interpreter exits,
    and refuses new ones from then on, though other threads may still iterate.
    """

    def __init__(self, threads: int) -> None:
        self._limit = threads
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._process = os.getpid()
        self._ended = False
        # Serialises start and shutdown. Reentrant, because garbage collection or a signal
        # handler may close the iterator.
        self._lock = threading.RLock()
        _EXECUTORS.add(self)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `concurrent.futures.Executor.submit`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._ended:
                _cancel(future)  # another thread closed the executor meanwhile
                return future
            self._tasks.put((future, fn, args, kwargs))
            if len(self._threads) < self._limit:
                # The thread refers to the queue alone, so that the executor can be collected.
                thread = threading.Thread(
                    target=_run_all, args=(self._tasks,), name="fastdata-pillow", daemon=True
                )
                thread.start()
                self._threads.append(thread)
                _THREADS.add(thread)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `concurrent.futures.Executor.shutdown`."""
        if os.getpid() != self._process:
            return  # the threads are the parent's
        with self._lock:
            if not self._ended:
                self._ended = True
                if cancel_futures:
                    _cancel_all(self._tasks)
                self._end_threads()
        if wait:
            for thread in self._threads:
                thread.join()

    def _end_threads(self) -> None:
        # One for every possible thread: a signal handler may interrupt a start.
        for _ in range(self._limit):
            self._tasks.put(None)

    def __del__(self) -> None:
        self._end_threads()  # of a forked process there are none


def _run_all(tasks: SimpleQueue[_Task | None]) -> None:
    while True:
        task = tasks.get()
        if task is None:
            return
        _run(*task)
        del task  # it refers to a batch's memory


def _run(
    future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:  # the consumer re-raises it
        future.set_exception(error)
    else:
        future.set_result(result)


def _cancel_all(tasks: SimpleQueue[_Task | None]) -> None:
    while True:
        try:
            task = tasks.get_nowait()
        except Empty:
            return
        if task is not None:
            _cancel(task[0])


def _cancel(future: Future[Any]) -> None:
    """Cancel a future that no thread will run, and wake its waiters."""
    future.cancel()
    future.set_running_or_notify_cancel()


_EXECUTORS: weakref.WeakSet[HelperThreads] = weakref.WeakSet()
_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def end_all() -> None:
    """End all threads; each finishes its current image, and no request to a server."""
    for executor in list(_EXECUTORS):
        executor.shutdown(wait=False, cancel_futures=True)
    for thread in list(_THREADS):
        while thread.is_alive():
            cancel_awaited()
            thread.join(_SLICE)


class Waitable(Protocol):
    """Job to wait for."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for some seconds or until it is done; return whether it is done."""


def raise_outage(failed: Mapping[int, FastdataError]) -> None:
    """Raise the first OutageError among the errors of samples, which may be intact."""
    for error in failed.values():
        if isinstance(error, OutageError):
            raise error


def await_done(pending: Waitable, deadline: float | None) -> None:
    """Wait for a job and handle signals; raise TimeoutError once the deadline has passed."""
    while not pending.wait(_SLICE):
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError


def result_of(future: Future[T], deadline: float | None) -> T:
    """Wait for a future as `await_done` does, and return its result."""
    # Not by result(timeout): before Python 3.11 its TimeoutError is not the builtin one.
    while not wait([future], _SLICE).done:
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError
    return future.result()

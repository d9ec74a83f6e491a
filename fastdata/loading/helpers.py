"""Daemon pool for the Pillow fallback; does not block interpreter exit."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any

_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def helper_threads(threads: int) -> Executor:
    """So many threads, none of which is started before there is work for it; 0: the caller's."""
    return HelperThreads(threads) if threads else InlineExecutor()


class InlineExecutor(Executor):
    """Runs everything at once, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `concurrent.futures.Executor.submit`."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class HelperThreads(Executor):
    """Runs tasks in threads that end with the interpreter.

    `concurrent.futures.ThreadPoolExecutor` finishes all its tasks before the interpreter may
    exit, and takes none from then on, though other threads may still iterate.

    Args:
        threads: How many at most.
    """

    def __init__(self, threads: int) -> None:
        self._limit = threads
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._process = os.getpid()
        self._ended = False
        # Serialises start and shutdown; reentrant, because garbage collection or a signal's
        # handler may close the iterator.
        self._lock = threading.RLock()
        _EXECUTORS.add(self)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `concurrent.futures.Executor.submit`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._ended:
                _cancel(future)  # another thread has closed this while it was in use
                return future
            self._tasks.put((future, fn, args, kwargs))
            if len(self._threads) < self._limit:
                # It knows the queue only, so that the executor can be collected.
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
                # Also for one that is just being started: a signal's handler may have come between.
                for _ in range(self._limit):
                    self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()


def _run_all(tasks: SimpleQueue[_Task | None]) -> None:
    while True:
        task = tasks.get()
        if task is None:
            return
        _run(*task)
        del task  # it has the memory of a batch


def _run(
    future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:  # whatever it is, the consumer is to know
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
    """Cancels a future that no thread will run; who waits for it waits no longer."""
    future.cancel()
    future.set_running_or_notify_cancel()


_EXECUTORS: weakref.WeakSet[HelperThreads] = weakref.WeakSet()
_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def end_all() -> None:
    """Ends all threads; each finishes the image it is at."""
    for executor in list(_EXECUTORS):
        executor.shutdown(wait=False, cancel_futures=True)
    for thread in list(_THREADS):
        thread.join()

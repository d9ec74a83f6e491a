"""Leaving uploads that are under way: at Ctrl-C nobody is to wait for a slow line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from fastdata.errors import FastdataError

if TYPE_CHECKING:
    import asyncio


class AbandonedError(FastdataError):
    """What was being done is wanted no more."""


class Abandon:
    """Ends what other threads are at: transfers, and waits before they are tried again."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._lock = threading.Lock()
        self._transfers: set[Future[Any]] = set()

    def now(self) -> None:
        """From now on, all that is asked of this object is an `AbandonedError`."""
        self._set.set()
        with self._lock:
            transfers = list(self._transfers)
        for transfer in transfers:
            transfer.cancel()

    def check(self) -> None:
        """Raises `AbandonedError` once `now` was called."""
        if self._set.is_set():
            raise AbandonedError("given up")

    def pause(self, seconds: float) -> None:
        """Waits, unless `now` is called; raises as `check` does."""
        self._set.wait(seconds)
        self.check()

    def run(
        self,
        work: Callable[[], Coroutine[Any, Any, Any]],
        loop: asyncio.AbstractEventLoop,
        timeout: float,
    ) -> Any:
        """What a coroutine on another thread's event loop returns; `now` cancels it.

        Raises:
            AbandonedError: `now` was called.
            TimeoutError: It took longer than so many seconds; asyncio's.
        """
        import asyncio  # not with this module, which all that reads remotely imports

        async def limited() -> Any:
            return await asyncio.wait_for(work(), timeout)

        with self._lock:
            self.check()
            transfer = asyncio.run_coroutine_threadsafe(limited(), loop)
            self._transfers.add(transfer)
        try:
            return transfer.result()
        except CancelledError:
            raise AbandonedError("given up") from None
        finally:
            with self._lock:
                self._transfers.discard(transfer)


class Threads:
    """A pool of threads that may be left at work: unlike an executor's, none keeps a process.

    Args:
        count: How many.
        name: What they are called.
    """

    def __init__(self, count: int, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._count, self._name = count, name
        self._threads: list[threading.Thread] = []

    def submit(self, call: Callable[..., None], *arguments: Any) -> Future[None]:
        """Has a thread call something; the result tells when it has, or what it raised."""
        future: Future[None] = Future()
        self._calls.put((future, partial(call, *arguments)))
        if len(self._threads) < self._count:  # not before: processes may be forked until then
            thread = threading.Thread(
                target=_work, args=(self._calls,), name=self._name, daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return future

    def close(self, patience: float | None = None) -> None:
        """Begins nothing more, and waits for what is under way; at most so many seconds."""
        with suppress(Empty):
            while (waiting := self._calls.get_nowait()) is not None:
                waiting[0].cancel()
        for _ in self._threads:
            self._calls.put(None)
        end = None if patience is None else time.monotonic() + patience
        for thread in self._threads:
            thread.join(None if end is None else max(end - time.monotonic(), 0.0))


_Call = tuple[Future[None], Callable[[], None]]


def _work(calls: SimpleQueue[_Call | None]) -> None:
    while (found := calls.get()) is not None:
        future, call = found
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        del future, found, call  # nothing is kept alive while waiting for the next

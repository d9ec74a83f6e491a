"""Cancellation of requests that other threads wait for: Ctrl-C ends them at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any

from fastdata.errors import FastdataError

if TYPE_CHECKING:
    import fsspec


class AbandonedError(FastdataError):
    """Error of a request that was cancelled."""


class Abandon:
    """Switch that cancels the requests of other threads, and their waits before a retry."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._lock = threading.Lock()
        self._requests: set[Future[Any]] = set()

    def now(self) -> None:
        """Cancel all requests; every later call raises `AbandonedError`."""
        self._set.set()
        with self._lock:
            requests = list(self._requests)
        for request in requests:
            request.cancel()

    def check(self) -> None:
        """Raise `AbandonedError` if `now` was called."""
        if self._set.is_set():
            raise AbandonedError("given up")

    def pause(self, seconds: float) -> None:
        """Wait so many seconds; raise `AbandonedError` as soon as `now` is called."""
        self._set.wait(seconds)
        self.check()

    def call(
        self, fs: fsspec.AbstractFileSystem, method: str, seconds: float, *args: Any, **options: Any
    ) -> Any:
        """Call a method of a driver; `now`, and an exception such as Ctrl-C, cancel it.

        Calls to a driver that is not asynchronous have no time limit and cannot be cancelled. Raise
        AbandonedError after `now`, TimeoutError (asyncio's) after ``seconds``.
        """
        self.check()
        if not getattr(fs, "async_impl", False):
            return getattr(fs, method)(*args, **options)
        return self._run(partial(getattr(fs, f"_{method}"), *args, **options), fs.loop, seconds)

    def _run(
        self,
        work: Callable[[], Coroutine[Any, Any, Any]],
        loop: asyncio.AbstractEventLoop,
        seconds: float,
    ) -> Any:
        async def limited() -> Any:
            return await asyncio.wait_for(work(), seconds)

        with self._lock:
            self.check()
            request = asyncio.run_coroutine_threadsafe(limited(), loop)
            self._requests.add(request)
        try:
            return request.result()
        except CancelledError:
            raise AbandonedError("given up") from None
        finally:
            request.cancel()
            with self._lock:
                self._requests.discard(request)

"""Cancels requests that other threads wait for, so that Ctrl-C need not wait for a slow line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any

from fastdata.errors import FastdataError

if TYPE_CHECKING:
    import asyncio

    import fsspec


class AbandonedError(FastdataError):
    """The request is not wanted any more."""


class Abandon:
    """Cancels what other threads wait for: requests, and the waits before they are retried."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._lock = threading.Lock()
        self._requests: set[Future[Any]] = set()

    def now(self) -> None:
        """Cancels all requests; from now on, every call raises `AbandonedError`."""
        self._set.set()
        with self._lock:
            requests = list(self._requests)
        for request in requests:
            request.cancel()

    def check(self) -> None:
        """Raises `AbandonedError` once `now` was called."""
        if self._set.is_set():
            raise AbandonedError("given up")

    def pause(self, seconds: float) -> None:
        """Waits, unless `now` is called; raises as `check` does."""
        self._set.wait(seconds)
        self.check()

    def call(
        self, fs: fsspec.AbstractFileSystem, method: str, seconds: float, *args: Any, **options: Any
    ) -> Any:
        """Calls a method of a driver; `now`, and an exception such as Ctrl-C, cancel it.

        Where a driver is not asynchronous, it is neither cancelled nor bounded in time.

        Raises:
            AbandonedError: `now` was called.
            TimeoutError: It took longer than so many seconds; asyncio's.
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
        import asyncio  # not with this module, which all that reads remotely imports

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

"""Requests to a driver of fsspec: each with a limit of time, and cancelled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from fastdata.threads import Threads, awaited

if TYPE_CHECKING:
    import fsspec

T = TypeVar("T")
V = TypeVar("V")
#: Calls at once of drivers that are not asynchronous.
_MOST_CALLS = 32


def call_driver(
    fs: fsspec.AbstractFileSystem, method: str, seconds: float | None, *args: Any, **options: Any
) -> Any:
    """Return what a method of a driver does; Ctrl-C, and the interpreter's end, cancel it.

    Raise TimeoutError after ``seconds``; asyncio's, if the driver is asynchronous.
    """
    if not getattr(fs, "async_impl", False):
        return call_in_thread(partial(getattr(fs, method), *args, **options), seconds)
    return run_on(fs.loop, asyncio.wait_for(getattr(fs, f"_{method}")(*args, **options), seconds))


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that runs on another thread's loop, as `call_driver`."""
    result: T = awaited(asyncio.run_coroutine_threadsafe(work, loop))
    return result


def call_in_thread(call: Callable[[], T], seconds: float | None = None) -> T:
    """Return a function's result, as `call_driver` does."""
    result: T = awaited(_threads(os.getpid()).submit(call), seconds)
    return result


@cache
def _threads(process: int) -> Threads:
    """Return the threads of a process that call drivers that are not asynchronous."""
    return Threads(_MOST_CALLS, "fastdata-driver")


def in_threads(call: Callable[[V], T], values: Sequence[V], most: int = 16) -> list[T]:
    """Return a function's results, made by several threads; an error or Ctrl-C ends all calls."""
    if len(values) < 2:
        return list(map(call, values))
    with Threads(min(most, len(values)), "fastdata-calls") as threads:
        return threads.map(call, values)

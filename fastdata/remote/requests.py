"""Requests to a driver of fsspec, on its event loop: each with a limit of time, and cancelled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fastdata.waiting import awaited

if TYPE_CHECKING:
    import fsspec

T = TypeVar("T")
#: Calls at once of drivers that are not asynchronous.
_MOST_CALLS = 32
#: Runs a coroutine on a loop, as `run_on` does.
Run: TypeAlias = "Callable[[asyncio.AbstractEventLoop, Coroutine[Any, Any, Any]], Any]"


async def call_driver(
    fs: fsspec.AbstractFileSystem, method: str, seconds: float | None, *args: Any, **options: Any
) -> Any:
    """Call a method of a driver, in a thread if it is not asynchronous; runs on `loop_of`.

    Raise TimeoutError (asyncio's) after ``seconds``.
    """
    if getattr(fs, "async_impl", False):
        work = getattr(fs, f"_{method}")(*args, **options)
    else:
        work = in_thread(partial(getattr(fs, method), *args, **options))
    return await asyncio.wait_for(work, seconds)


async def in_thread(call: Callable[[], T]) -> T:
    """Call a driver in a thread that is none of the loop's own: all of these may wait for it."""
    return await asyncio.get_running_loop().run_in_executor(_threads(os.getpid()), call)


async def all_of(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines that run at once; cancel the others if one fails."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process that call drivers that are not asynchronous."""
    return ThreadPoolExecutor(_MOST_CALLS, "fastdata-driver")


def loop_of(fs: fsspec.AbstractFileSystem | None) -> asyncio.AbstractEventLoop:
    """Return the event loop of a driver's requests, which has its own thread."""
    from fsspec.asyn import get_loop

    loop: asyncio.AbstractEventLoop = getattr(fs, "loop", None) or get_loop()
    return loop


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on another thread's loop; Ctrl-C, and the interpreter's end, cancel it."""
    request = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        result: T = awaited(request)
        return result
    finally:
        request.cancel()

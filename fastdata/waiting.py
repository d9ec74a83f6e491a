"""Requests to servers that threads wait for; the end of the interpreter cancels them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol


class Cancellable(Protocol):
    """Request that another thread can cancel."""

    def cancel(self) -> Any:
        """Have the waiting thread raise an error."""


#: Requests to servers that threads wait for, with the group of the thread.
AWAITED: dict[Cancellable, Group | None] = {}
# A child must not cancel its parent's: they share connections.
os.register_at_fork(after_in_child=AWAITED.clear)


class Group:
    """Threads whose requests are cancelled together."""

    def __init__(self) -> None:
        self.cancelled = False

    def join(self) -> None:
        """Add this thread."""
        _group.set(self)

    def cancel(self) -> None:
        """Cancel the requests under way, and later ones."""
        self.cancelled = True
        for request, group in AWAITED.copy().items():  # in one step, as threads add others
            if group is self:
                request.cancel()


_group: ContextVar[Group | None] = ContextVar("group", default=None)


def awaited(request: Future[Any], seconds: float | None = None) -> Any:
    """Wait for a request to a server; cancel it on TimeoutError and Ctrl-C.

    Raise CancelledError if the interpreter ends, or the thread's group is cancelled.
    """
    AWAITED[request] = group = _group.get()
    try:
        if group is not None and group.cancelled:
            request.cancel()
        return request.result(seconds)
    finally:
        AWAITED.pop(request, None)
        request.cancel()


@contextmanager
def cancellable(request: Cancellable) -> Iterator[None]:
    """Cancel a request, which the block makes, when the thread's group is cancelled.

    Raise CancelledError then. `Cancellable.cancel` may also be called just after the block.
    """
    AWAITED[request] = group = _group.get()
    try:
        if group is not None and group.cancelled:
            raise CancelledError
        yield
    except Exception:
        if group is not None and group.cancelled:
            raise CancelledError from None
        raise
    finally:
        AWAITED.pop(request, None)


def pause(seconds: float) -> None:
    """Wait for some seconds; raise CancelledError as `awaited` does."""
    with suppress(futures.TimeoutError):
        awaited(Future(), seconds)

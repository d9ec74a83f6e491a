"""Requests to servers that threads wait for; the end of the interpreter cancels them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

#: Requests to servers that threads wait for.
AWAITED: set[Future[Any]] = set()


def awaited(request: Future[Any]) -> Any:
    """Wait for a request to a server; raise CancelledError if the interpreter ends."""
    AWAITED.add(request)
    try:
        return request.result()
    finally:
        AWAITED.discard(request)

"""Clients that read byte ranges of remote files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from fastdata.remote.answers import asking, require_length
from fastdata.remote.requests import call_driver

if TYPE_CHECKING:
    import fsspec


class RangeClient(ABC):
    """Client that reads byte ranges: one request each, without retries. Threads may share it.

    Attributes:
        name: Its name in `fastdata.remote.RemoteStats`.
    """

    name: str

    def reads(self, url: str) -> bool:
        """Return whether it can read a file."""
        return True

    @abstractmethod
    def get(self, url: str, start: int, stop: int, seconds: float) -> Any:
        """Return bytes ``start`` to ``stop`` of a file as a buffer; block until they have come.

        Raise any exception if not all of them come within ``seconds``.
        """


class FsspecClient(RangeClient):
    """Client that reads by a driver of fsspec, on the driver's event loop.

    A ``state`` (`fastdata.remote.answers.state_number`) that is not 0 is the only one accepted.
    """

    name = "fsspec"

    def __init__(self, fs: fsspec.AbstractFileSystem, state: int = 0) -> None:
        self._fs: Any = fs
        self._state = state

    def get(self, url: str, start: int, stop: int, seconds: float) -> Any:
        path, span = self._fs._strip_protocol(url), {"start": start, "end": stop}
        with asking(url, start, stop - start, self._state):
            data = call_driver(self._fs, "cat_file", seconds, path, **span)
        require_length(data, url, stop - start)
        return data

"""Reader of remote byte ranges: concurrent, checked and retried."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fastdata.errors import RemoteError
from fastdata.remote.answers import SLOWEST, asking, require_length
from fastdata.remote.options import RemoteOptions
from fastdata.remote.requests import call_driver, loop_of, run_on
from fastdata.remote.retries import Patience, Retries
from fastdata.remote.urls import is_url, redact
from fastdata.storage.files import read_extent

if TYPE_CHECKING:
    import fsspec

T = TypeVar("T")


@dataclass
class RangeCounts:
    """Counters of a reader, updated on the event loop's thread alone."""

    requests: int = 0
    bytes: int = 0
    retries: int = 0
    refetched: int = 0


class RangeReader:
    """Reader of byte ranges of remote files, several at once; for one process.

    Requests run on fsspec's event loop, in its own thread, and share the driver's connections.
    ``fs`` is None if all files are on this machine.
    """

    def __init__(
        self,
        fs: fsspec.AbstractFileSystem | None,
        options: RemoteOptions,
        patience: Patience | None = None,
    ) -> None:
        self.options = options
        self.counts = RangeCounts()
        #: Shared by all passes under way; each new pass resets it.
        self.patience = patience or Patience(options.patience)
        self._fs = fs
        #: Event loop of all requests.
        self.loop = loop_of(fs)
        self._slots = asyncio.Semaphore(options.concurrency)

    async def read(self, url: str, start: int, stop: int) -> bytes:
        """Read one range of a file that an index names; see `fetch`."""
        try:
            return await self.fetch(url, start, stop)
        except FileNotFoundError as error:
            raise RemoteError(
                f"{error.filename}: the file is missing, though the index names it",
                "Upload the dataset again.",
            ) from None

    async def fetch(self, url: str, start: int, stop: int, state: int = 0) -> bytes:
        """Read one range, and retry temporary errors; runs on `loop`.

        Raise FileNotFoundError if there is no such file, ChangedError if its state is another one
        (0 accepts any), RemoteError if the server ignores ranges, OutageError after failing for too
        long.
        """
        if start == stop:
            return b""  # servers answer an empty range with the whole file, or an error
        fs: Any = self._fs
        what = f"{redact(url)}: reading bytes {start} to {stop}"
        limit = self.options.timeout + (stop - start) / SLOWEST
        retries = Retries(what, self.options.tries, self.patience)

        async def attempt() -> bytes:
            data: bytes
            self.counts.retries += bool(retries.failed)
            async with self._slots:
                self.counts.requests += 1
                self.counts.bytes += stop - start
                if not is_url(url):  # a column of an index on this machine of files behind URLs
                    data = await asyncio.to_thread(read_extent, url, start, stop - start)
                else:
                    path, span = fs._strip_protocol(url), {"start": start, "end": stop}
                    with asking(url, start, stop, state):
                        data = await call_driver(fs, "cat_file", limit, path, **span)
            require_length(data, url, stop - start)
            return data

        return await retries.run(attempt)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on `loop`, and return its result."""
        return run_on(self.loop, work)

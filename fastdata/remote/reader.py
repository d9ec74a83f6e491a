"""Reader of remote byte ranges: concurrent, checked and retried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastdata.errors import RemoteError
from fastdata.remote.answers import SLOWEST, asking, require_length
from fastdata.remote.drivers import call_driver, loop_of, open_filesystem, run_on
from fastdata.remote.options import RemoteOptions
from fastdata.remote.ranges import RangeCache, RangeRequest
from fastdata.remote.retries import Patience, Retries, wait_before
from fastdata.remote.urls import is_url, redact
from fastdata.storage.files import read_extent

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
    """

    def __init__(
        self,
        url: str,
        options: RemoteOptions,
        storage_options: Mapping[str, Any] | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.options = options
        self.counts = RangeCounts()
        #: Shared by all passes under way; each new pass resets it.
        self.patience = patience or Patience(options.patience)
        # Rows of tables of this machine need no driver.
        self._fs: Any = open_filesystem(url, storage_options)[0] if is_url(url) else None
        #: Event loop of all requests.
        self.loop = loop_of(self._fs)
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
                    path = self._fs._strip_protocol(url)
                    with asking(url, start, stop, state):
                        data = await call_driver(
                            self._fs, "cat_file", limit, path, start=start, end=stop
                        )
            require_length(data, url, stop - start)
            return data

        return await retries.run(attempt)

    async def read_checked(
        self,
        cache: RangeCache | None,
        request: RangeRequest,
        take: Callable[[Any, bytes], None],
        present: bytes | None = None,
    ) -> list[Any]:
        """Read a request's samples; return those that were wrong at every try; runs on the loop.

        Wrong samples are evicted from the cache and fetched again, without the others. Calls
        ``take`` with each right member and its bytes. ``present`` are the request's bytes, if the
        cache had them.
        """
        tries = self.options.tries if cache is None or not cache.only else 1
        for number in range(0 if cache is not None else 1, tries + 1):
            file, start, stop = request.file, request.start, request.stop
            if cache is not None and (number == 0 or cache.only):
                data = memoryview(present or await cache.read(file, start, stop))
            else:
                data = memoryview(await self.read(file.url, start, stop))
            wrong = []
            for one in request.members:
                # Copy, so that memory is freed sample by sample.
                part = bytes(data[one.start - start : one.stop - start])
                if one.is_right(part):
                    take(one, part)
                else:
                    wrong.append(one)
            if not wrong or number == tries:
                break
            self.counts.refetched += len(wrong)
            start, stop = min(one.start for one in wrong), max(one.stop for one in wrong)
            request = RangeRequest(file, start, stop, wrong)
            if cache is not None and number == 0:
                cache.drop(file, start, stop)
            else:
                await asyncio.sleep(wait_before(number))
        return wrong

    def read_all(
        self, cache: RangeCache | None, requests: Sequence[RangeRequest]
    ) -> dict[Any, bytes]:
        """Read requests at once; return right members' bytes by key."""
        got: dict[Any, bytes] = {}

        def take(one: Any, data: bytes) -> None:
            got[one.key] = data

        async def read() -> None:
            await asyncio.gather(*(self.read_checked(cache, one, take) for one in requests))

        self.run(read())
        return got

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on `loop`, and return its result."""
        return run_on(self.loop, work)

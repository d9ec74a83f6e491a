"""Reader of remote byte ranges: concurrent, checked and retried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastdata.errors import RemoteError
from fastdata.executors import awaited
from fastdata.remote.answers import SLOWEST, asking, require_length
from fastdata.remote.drivers import open_filesystem
from fastdata.remote.options import RemoteOptions
from fastdata.remote.ranges import Request
from fastdata.remote.retries import Patience, Retries, wait_before
from fastdata.remote.urls import is_url, redact
from fastdata.storage.files import read_extent

if TYPE_CHECKING:
    from fastdata.remote.cache import PieceCache
    from fastdata.remote.row_groups import RowGroups


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
    Requests of drivers that are not asynchronous run in threads.
    """

    def __init__(
        self,
        url: str,
        options: RemoteOptions,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        from fsspec.asyn import get_loop

        self.options = options
        self.counts = RangeCounts()
        #: Shared by all passes under way; each new pass resets it.
        self.patience = Patience(options.patience)
        # Rows of tables of this machine need no driver.
        self._fs: Any = open_filesystem(url, storage_options)[0] if is_url(url) else None
        #: Event loop of all requests.
        self.loop: asyncio.AbstractEventLoop = getattr(self._fs, "loop", None) or get_loop()
        self._async = bool(getattr(self._fs, "async_impl", False))
        self._slots = asyncio.Semaphore(options.concurrency)

    async def read(self, url: str, start: int, stop: int) -> bytes:
        """Read one range, and retry temporary errors; runs on `loop`.

        Raise RemoteError if the server ignores ranges, OutageError after failing for too long.
        """
        if start == stop:
            return b""
        what = f"{redact(url)}: reading bytes {start} to {stop}"
        limit = self.options.timeout + (stop - start) / SLOWEST
        tries = self.options.tries
        retries = Retries(what, tries, enough=tries, patience=self.patience)
        while True:
            try:
                async with self._slots:
                    self.counts.requests += 1
                    self.counts.bytes += stop - start
                    data = await asyncio.wait_for(self._get(url, start, stop), limit)
                require_length(data, url, stop - start)
                self.patience.answered()
                return data
            except FileNotFoundError:
                raise RemoteError(
                    f"{what}: the file is missing, though the index names it",
                    "Upload the dataset again.",
                ) from None
            except Exception as error:
                seconds = retries.wait_after(error)
            self.counts.retries += 1
            await asyncio.sleep(seconds)

    async def read_checked(
        self,
        request: Request,
        found: Callable[[Any, bytes], None],
        cache: PieceCache | RowGroups | None = None,
        present: bytes | None = None,
    ) -> list[Any]:
        """Read a request's samples; return those that were wrong at every try; runs on `loop`.

        Wrong samples are evicted from the cache and fetched again, without the others. Calls
        ``found`` with each right member and its bytes. ``present`` are the request's bytes, if the
        cache folder had them.
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
                    found(one, part)
                else:
                    wrong.append(one)
            if not wrong or number == tries:
                break
            self.counts.refetched += len(wrong)
            start, stop = min(one.start for one in wrong), max(one.stop for one in wrong)
            request = Request(file, start, stop, wrong)
            if cache is not None and number == 0:
                cache.drop(file, start, stop)
            else:
                await asyncio.sleep(wait_before(number))
        return wrong

    async def read_all(
        self, requests: Sequence[Request], cache: PieceCache | RowGroups | None = None
    ) -> dict[Any, bytes]:
        """Read requests at once; return right members' bytes by key; runs on `loop`."""
        got: dict[Any, bytes] = {}

        def found(one: Any, data: bytes) -> None:
            got[one.key] = data

        await asyncio.gather(*(self.read_checked(one, found, cache) for one in requests))
        return got

    def run(self, work: Any) -> Any:
        """Run a coroutine on `loop`, and return its result."""
        return awaited(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def _get(self, url: str, start: int, stop: int) -> bytes:
        data: bytes
        if not is_url(url):  # a column of an index on this machine of files behind URLs
            data = await asyncio.to_thread(read_extent, url, start, stop - start)
            return data
        path = self._fs._strip_protocol(url)
        if self._async:
            with asking(url, start, stop):
                data = await self._fs._cat_file(path, start=start, end=stop)
        else:
            data = await asyncio.to_thread(self._fs.cat_file, path, start=start, end=stop)
        return data

"""Reader of remote byte ranges: several at once, checked and retried."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fastdata.errors import RemoteError, warn
from fastdata.remote.answers import SLOWEST
from fastdata.remote.clients import FsspecClient, RangeClient
from fastdata.remote.drivers import open_filesystem
from fastdata.remote.failures import StatusError, TruncatedError
from fastdata.remote.options import RemoteOptions
from fastdata.remote.places import http_client
from fastdata.remote.retries import Patience, Retries, describe_error
from fastdata.remote.urls import is_url, redact
from fastdata.storage.files import read_extent
from fastdata.threads import Threads

#: Requests in a row, as multiples of those at once, that only fsspec could make.
_DOUBTS = 3


@dataclass
class RangeCounts:
    """Counters of a reader."""

    requests: int = 0
    bytes: int = 0
    retries: int = 0
    refetched: int = 0


class RangeReader:
    """Reader of byte ranges of remote files; for one process.

    Args:
        server: A URL of the files; a path if all of them are on this machine.
        storage_options: Options of the driver.
        options: How to read.
    """

    def __init__(
        self, server: str, storage_options: Mapping[str, Any], options: RemoteOptions
    ) -> None:
        self.options = options
        self.counts = RangeCounts()
        #: Shared by all passes under way; each new pass resets it.
        self.patience = Patience(options.patience)
        #: Threads that make the requests.
        self.threads = Threads(options.concurrency, "fastdata-remote")
        self._careful: RangeClient | None = None
        self._fast: RangeClient | None = None
        if is_url(server):
            fs, _ = open_filesystem(server, storage_options)
            self._careful = FsspecClient(fs)
            self._fast = http_client(fs, server, storage_options)
        self._lock = threading.Lock()
        self._doubts = 0

    @property
    def client(self) -> str:
        """Name of the client that reads, see `RangeClient`."""
        client = self._fast or self._careful
        return "" if client is None else client.name

    def read(self, url: str, start: int, stop: int, careful: bool = False) -> Any:
        """Return a range of a file that an index names, as a buffer; retry temporary errors.

        If ``careful``, fsspec reads: it also refuses compressed responses. It blocks; call it from
        `threads`. Raise RemoteError if there is no such file or the server ignores ranges,
        OutageError if the server fails for too long, CancelledError if the pass was closed.
        """
        if start == stop:
            return b""  # servers answer an empty range with the whole file, or an error
        if not is_url(url):  # a column of an index on this machine of files behind URLs
            return read_extent(url, start, stop - start)
        what = f"{_shown(url)}: reading bytes {start} to {stop}"
        seconds = self.options.timeout + (stop - start) / SLOWEST
        retries = Retries(what, self.options.tries, self.patience)
        fast = self._fast
        if fast is not None and (careful or not fast.reads(url)):
            fast = None

        def attempt() -> Any:
            with self._lock:
                self.counts.requests += 1
                self.counts.bytes += stop - start
                self.counts.retries += bool(retries.failed)
            if fast is None or retries.failed:
                assert self._careful is not None
                return self._careful.get(url, start, stop, seconds)
            try:
                data = fast.get(url, start, stop, seconds)
            except (StatusError, TruncatedError):
                raise
            except Exception as error:  # fsspec's next try says what is wrong
                raise ConnectionError(describe_error(error)) from None
            self._doubts = 0
            return data

        try:
            data = retries.call(attempt)
            if fast is not None and retries.failed:
                self._doubt(fast)
            return data
        except FileNotFoundError as error:
            raise RemoteError(
                f"{error.filename}: the file is missing, though the index names it",
                "Upload the dataset again.",
            ) from None

    def _doubt(self, fast: RangeClient) -> None:
        """Note that fsspec could read what the fast client could not; use fsspec after many."""
        self._doubts += 1
        if self._fast is not None and self._doubts > _DOUBTS * self.options.concurrency:
            self._fast = None
            warn(
                f"{fast.name} cannot read this server, fsspec can; fsspec reads on, more slowly. "
                "For a bucket in another region, set AWS_DEFAULT_REGION; else please report this."
            )


#: `redact`, for the few files that are read again and again.
_shown = lru_cache(maxsize=1024)(redact)

"""HTTP answers, bounded: of the range that was asked for, no longer than that, and not encoded.

The drivers of http, Google's and Amazon's protocols read an answer to its end, however long it is.
All of them use aiohttp, so `bounded_options` bounds them all.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fastdata.errors import RemoteError
from fastdata.remote.retries import PASSING_STATUS, StatusError, TruncatedError
from fastdata.remote.urls import redact

if TYPE_CHECKING:
    import aiohttp
    import fsspec

#: Most bytes of an answer that is no file's: a page of a listing, what is known of a file.
_MOST_OTHER = 64 << 20
#: Bytes that are read of an error's text.
_MOST_ERROR = 64 << 10
#: Seconds that an answer's body may take, and bytes in each further second.
_SECONDS, _SLOWEST = 60.0, 256 << 10
#: Values of Content-Encoding that leave bytes as they are. Amazon keeps the last with some files.
_PLAIN = {"", "identity", "aws-chunked"}
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/")


#: Headers that name the state of a file; `state_number` keeps which one it was.
_STATE_HEADERS = ("X-Goog-Generation", "ETag", "Last-Modified")


class ChangedError(RemoteError):
    """A file is in another state than it was when it was listed."""


class Asked(NamedTuple):
    """Bytes of a file that a request asks for.

    Attributes:
        url: The file.
        start: The first byte; None for the whole file.
        stop: One past the last; of a whole file, how many bytes it may have.
        state: The file's state, as `state_number` has it; 0 for any.
    """

    url: str
    start: int | None
    stop: int
    state: int


def state_number(name: str, value: str) -> int:
    """A number below 2**56 for a file's state.

    Args:
        name: The header that names the state, or another name that is no header.
        value: Its value.
    """
    header = _STATE_HEADERS.index(name) + 1 if name in _STATE_HEADERS else 0
    digest = hashlib.blake2b(value.encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") << 2 | header


_asked: ContextVar[Asked | None] = ContextVar("asked", default=None)
_OURS = (RemoteError, StatusError, TruncatedError)
#: Hosts and ports that have answered a range: where one sends a whole file once, it is asked again.
_know_ranges: set[str] = set()


@contextmanager
def asking(url: str, start: int | None, stop: int, state: int = 0) -> Iterator[None]:
    """Says what the requests of this thread or task ask for; see `Asked`."""
    token = _asked.set(Asked(url, start, stop, state))
    try:
        yield
    finally:
        _asked.reset(token)


def require_length(data: bytes, url: str, length: int) -> None:
    """Checks that what came is as long as what was asked for.

    Raises:
        TruncatedError: It is shorter.
        RemoteError: It is longer: the server does not answer ranges.
    """
    if len(data) > length:
        raise _ranges_ignored(url)
    if len(data) < length:
        raise TruncatedError(f"{len(data)} bytes came of {length}")


def _ranges_ignored(url: str) -> RemoteError:
    return RemoteError(
        f"{redact(url)}: a range of its bytes was asked for, and its server sends the whole file",
        "Use a server that answers HTTP's Range header (a bucket, nginx, Apache; Python's "
        "http.server does not), or download the dataset and give its folder.",
    )


def too_long(url: str, most: int) -> RemoteError:
    """The error for an answer of more bytes than may come."""
    return RemoteError(
        f"{redact(url)}: its server sends more than {most >> 20} MiB, more than it may have",
        "Check the URL: it is no file of a dataset, or the server is broken.",
    )


def _encoded(url: str, encoding: str) -> RemoteError:
    return RemoteError(
        f"{redact(url)}: its server sends it encoded ({encoding[:80]}), though asked not to",
        "Have the server send such files as they are: no compression, no Content-Encoding.",
    )


def bounded_options(
    driver: type[fsspec.AbstractFileSystem], given: Mapping[str, Any], connect: float, idle: float
) -> dict[str, Any]:
    """Options that bound an fsspec driver's answers; none where it is not one of these three.

    Args:
        driver: The driver.
        given: What the user gives it, which is added to.
        connect: Seconds to wait for a connection.
        idle: Seconds to wait for the next bytes.
    """
    module = driver.__module__
    if module.startswith("s3fs."):
        times = {"connect_timeout": connect, "read_timeout": idle}
        config = given.get("config_kwargs") or {}
        return {"config_kwargs": {**times, "http_session_cls": _amazon_session(), **config}}
    google = module.startswith("gcsfs.")
    if not google and module != "fsspec.implementations.http":
        return {}
    import aiohttp

    found: dict[str, Any] = {}
    if google and isinstance(seconds := given.get("requests_timeout"), (int, float)):
        connect = idle = float(seconds)
    # Not a total time: a file of any size may take as long as it moves.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=idle)
    if google and not isinstance(given.get("requests_timeout"), aiohttp.ClientTimeout):
        found["requests_timeout"] = timeout
    name = "session_kwargs" if google else "client_kwargs"
    session = dict(given.get(name) or {})
    headers = {"Accept-Encoding": "identity", **(session.pop("headers", None) or {})}
    bounds = {"response_class": _response_class(), "auto_decompress": False, "timeout": timeout}
    return {**found, name: {**bounds, "headers": headers, **session}}


@cache
def _amazon_session() -> type:
    from aiobotocore.httpsession import AIOHTTPSession
    from botocore.exceptions import HTTPClientError

    class Session(AIOHTTPSession):  # type: ignore[misc]
        async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
            session: aiohttp.ClientSession = await super()._get_session(proxy_url)
            session._response_class = _response_class()  # it has no option for that
            return session

        async def send(self, request: Any) -> Any:
            try:
                return await super().send(request)
            except HTTPClientError as error:
                if isinstance(error.__context__, _OURS):
                    raise error.__context__ from None  # or it would be made again at once
                raise

    return Session


@cache
def _response_class() -> type[aiohttp.ClientResponse]:
    """The class of aiohttp's answers that are bounded by what `asking` says."""
    import aiohttp

    class Bounded(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            self.content = _Body(self, self.content, _asked.get())  # type: ignore[assignment]
            return self

    return Bounded


class _Body:
    """An answer's body, which is read no further than it may go.

    Errors wait until it is read: the drivers would make others of what `start` raises.
    """

    def __init__(self, response: aiohttp.ClientResponse, body: Any, asked: Asked | None) -> None:
        self._response, self._body = response, body
        self._url = str(response.url) if asked is None else asked.url
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    async def read(self, size: int = -1) -> bytes:
        """Reads so many bytes at most, or all there are.

        Raises:
            TruncatedError: Fewer or more come than were asked for, or another range; or a few at
                a time, for longer than they may take.
            ChangedError: It is of another state of the file than was asked for.
            RemoteError: It is encoded, too long, or a whole file in a range's place.
            StatusError: The server has failed, and may not next time.
        """
        import aiohttp

        status, getting = self._response.status, self._response.method == "GET"
        failed = status >= 400
        if getting and not failed:
            self._check_headers()
        most = _MOST_ERROR if failed else self._most()
        blocks: list[bytes] = []
        length = 0
        end = time.monotonic() + _SECONDS
        try:
            while block := await (self._body.readany() if size < 0 else self._body.read(size)):
                blocks.append(block)
                length += len(block)
                if length > most or size >= 0:
                    break
                if time.monotonic() > end + length / _SLOWEST:
                    raise TruncatedError(f"{length} bytes came in more than {_SECONDS:.0f} s")
        except aiohttp.ClientPayloadError as error:
            raise TruncatedError(f"it ended after {length} bytes: {error}") from None
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        if getting and status in PASSING_STATUS:
            # Or the drivers would ask again by themselves, some for half a minute.
            raise StatusError(status, self._response.headers, data.decode("utf-8", "replace"))
        if length > most and not failed:
            raise self._longer(most)
        return data

    def _most(self) -> int:
        asked = self._asked
        return _MOST_OTHER if asked is None else asked.stop - (asked.start or 0)

    def _longer(self, most: int) -> Exception:
        if self._asked is None or self._asked.start is None:
            return too_long(self._url, most)
        if self._response.status == 200:
            return self._whole()
        return TruncatedError(f"more than {most} bytes came")

    def _whole(self) -> Exception:
        if self._response.url.authority in _know_ranges:
            return TruncatedError("the whole file came, not the range that was asked for")
        return _ranges_ignored(self._url)

    def _check_headers(self) -> None:
        response, asked = self._response, self._asked
        encoding = response.headers.get("Content-Encoding", "")
        if encoding.lower() not in _PLAIN:
            raise _encoded(self._url, encoding)
        if asked is not None:
            self._check_state(asked)
        length = response.content_length
        if asked is None or asked.start is None:
            if length is not None and length > self._most():
                raise self._longer(self._most())
            return
        if response.status == 200 and not (asked.start == 0 and length in (None, asked.stop)):
            raise self._whole()
        if response.status != 206:
            return
        _know_ranges.add(response.url.authority)
        found = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        if found and not asked.start == int(found[1]) <= int(found[2]) < asked.stop:
            raise TruncatedError(f"bytes {found[1]} to {found[2]} came, which were not asked for")

    def _check_state(self, asked: Asked) -> None:
        if not asked.state & 3:  # its state is unknown, or no header names it
            return
        header = _STATE_HEADERS[(asked.state & 3) - 1]
        found = self._response.headers.get(header)
        if found is not None and state_number(header, found) != asked.state:
            raise ChangedError(
                f"{redact(asked.url)}: it has changed since it was listed ({header}: {found[:80]})",
                "Run the same command again when nothing writes to it any more.",
            )

"""Checks of HTTP responses: the requested range, no longer than requested, and not encoded.

The drivers for http, Google and Amazon read a response to its end, however long it is.
All of them use aiohttp, so `bounded_options` limits them all.
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
from fastdata.remote.failures import PASSING_STATUS, StatusError, TruncatedError
from fastdata.remote.urls import redact

if TYPE_CHECKING:
    import aiohttp
    import fsspec

#: Most bytes of a response that is no file: a page of a listing, or metadata.
_MOST_OTHER = 64 << 20
#: Most bytes read of an error's text.
_MOST_ERROR = 64 << 10
#: Bytes a second below which a transfer counts as stalled.
SLOWEST = 256 << 10
#: Seconds that a body may take, beyond those for its bytes at that rate.
_SECONDS = 60.0
#: Connections of s3fs: as many as `RemoteOptions.concurrency` by default. Its own limit is 10.
_CONNECTIONS = 32
#: Values of Content-Encoding that leave bytes unchanged. Amazon stores the last with some files.
PLAIN_ENCODINGS = {"", "identity", "aws-chunked"}
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/")
#: Headers that name the state of a file; `state_number` records which one. The first is none.
_STATE_HEADERS = ("", "X-Goog-Generation", "ETag", "Last-Modified")
#: Drivers' names for a file's version, the surest first, and the equivalent header.
_VERSIONS = {
    "generation": "X-Goog-Generation",
    "etag": "",
    "ETag": "ETag",
    "Last-Modified": "Last-Modified",
    "mtime": "",
    "LastModified": "",
    "created": "",
}


class ChangedError(RemoteError):
    """Error about a file that changed after it was listed."""


class Asked(NamedTuple):
    """Most bytes of a file that a request asks for; ``start`` is None for the whole file.

    A ``state`` of 0, see `state_number`, accepts any.
    """

    url: str
    start: int | None
    most: int
    state: int


def state_of(info: Mapping[str, Any]) -> int:
    """Return the `state_number` of a file from a driver's metadata."""
    name = next((name for name in _VERSIONS if info.get(name)), "")
    return state_number(_VERSIONS.get(name, ""), str(info.get(name)))


def state_number(header: str, value: str) -> int:
    """Return a number below 2**56 that identifies a file's state."""
    digest = hashlib.blake2b(value.encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") << 2 | _STATE_HEADERS.index(header)


_asked: ContextVar[Asked | None] = ContextVar("asked", default=None)
_OURS = (RemoteError, StatusError, TruncatedError)
#: Hosts and ports that have answered a range. If one sends a whole file once, retry.
_know_ranges: set[str] = set()


@contextmanager
def asking(url: str, start: int | None, most: int, state: int = 0) -> Iterator[None]:
    """Declare the bytes that this thread or task requests inside the block; see `Asked`."""
    token = _asked.set(Asked(url, start, most, state))
    try:
        yield
    finally:
        _asked.reset(token)


def require_length(data: bytes, url: str, length: int) -> None:
    """Raise TruncatedError for a shorter response, RemoteError for a longer one."""
    if len(data) > length:
        raise _ranges_ignored(url)
    if len(data) < length:
        raise TruncatedError(f"received {len(data)} bytes of {length}")


def _ranges_ignored(url: str) -> RemoteError:
    return RemoteError(
        f"{redact(url)}: the server ignores the requested byte range and sends the whole file",
        "Use a server that answers HTTP's Range header (a bucket, nginx, Apache; Python's "
        "http.server does not), or download the dataset and give its folder.",
    )


def too_long(url: str, most: int) -> RemoteError:
    """Return the error for a response that exceeds its limit."""
    return RemoteError(
        f"{redact(url)}: the server sends more than {most >> 20} MiB, the limit for this file",
        "Check the URL: it names no file of a dataset, or the server is broken.",
    )


def bounded_options(
    driver: type[fsspec.AbstractFileSystem],
    configured: Mapping[str, Any],
    connect: float,
    idle: float,
) -> dict[str, Any]:
    """Return options that limit an fsspec driver's responses; none for drivers without aiohttp.

    The user's options, ``configured``, take precedence. Times are in seconds.
    """
    module = driver.__module__
    if module.startswith("s3fs."):
        times = {"connect_timeout": connect, "read_timeout": idle}
        config = configured.get("config_kwargs") or {}
        more = {"http_session_cls": _amazon_session(), "max_pool_connections": _CONNECTIONS}
        return {"config_kwargs": {**times, **more, **config}}
    google = module.startswith("gcsfs.")
    if not google and module != "fsspec.implementations.http":
        return {}
    import aiohttp

    options: dict[str, Any] = {}
    if google and isinstance(seconds := configured.get("requests_timeout"), (int, float)):
        connect = idle = float(seconds)
    # No total limit: a large file may take long while bytes keep coming.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=idle)
    if google and not isinstance(configured.get("requests_timeout"), aiohttp.ClientTimeout):
        options["requests_timeout"] = timeout
    name = "session_kwargs" if google else "client_kwargs"
    session = dict(configured.get(name) or {})
    headers = {"Accept-Encoding": "identity", **(session.pop("headers", None) or {})}
    bounds = {"response_class": _response_class(), "auto_decompress": False, "timeout": timeout}
    return {**options, name: {**bounds, "headers": headers, **session}}


@cache
def _amazon_session() -> type:
    from aiobotocore.httpsession import AIOHTTPSession
    from botocore.exceptions import HTTPClientError

    class Session(AIOHTTPSession):  # type: ignore[misc]
        async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
            session: aiohttp.ClientSession = await super()._get_session(proxy_url)
            session._response_class = _response_class()  # aiobotocore has no option for it
            return session

        async def send(self, request: Any) -> Any:
            try:
                return await super().send(request)
            except HTTPClientError as error:
                if isinstance(error.__context__, _OURS):
                    raise error.__context__ from None  # botocore would retry at once
                raise

    return Session


@cache
def _response_class() -> type[aiohttp.ClientResponse]:
    """Return the aiohttp response class that enforces the limits declared by `asking`."""
    import aiohttp

    class Bounded(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            self.content = _Body(self, self.content, _asked.get())  # type: ignore[assignment]
            return self

    return Bounded


class _Body:
    """Body of a response, read no further than its limit.

    `read` raises all errors: the drivers replace errors that `start` raises.
    """

    def __init__(self, response: aiohttp.ClientResponse, body: Any, asked: Asked | None) -> None:
        self._response, self._body = response, body
        self._asked = asked or Asked(str(response.url), None, _MOST_OTHER, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    async def read(self, size: int = -1) -> bytes:
        """Read at most ``size`` bytes, or the whole body if negative.

        Raises:
            TruncatedError: The server sent fewer or more bytes than requested, another range,
                or too few bytes a second.
            ChangedError: The file is in another state than requested.
            RemoteError: The body is encoded, too long, or a whole file instead of a range.
            StatusError: The server failed in a way that may pass.
        """
        import aiohttp

        status, getting = self._response.status, self._response.method == "GET"
        failed = status >= 400
        if getting and not failed:
            self._check_headers()
        most = _MOST_ERROR if failed else self._asked.most
        blocks: list[bytes] = []
        length = 0
        end = time.monotonic() + _SECONDS
        try:
            while block := await (self._body.readany() if size < 0 else self._body.read(size)):
                blocks.append(block)
                length += len(block)
                if length > most or size >= 0:
                    break
                if time.monotonic() > end + length / SLOWEST:
                    raise TruncatedError(
                        f"received only {length} bytes in more than {_SECONDS:.0f} s"
                    )
        except aiohttp.ClientPayloadError as error:
            raise TruncatedError(f"the response ended after {length} bytes: {error}") from None
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        if getting and status in PASSING_STATUS:
            # The drivers would retry on their own, some for half a minute.
            raise StatusError(status, self._response.headers, data.decode("utf-8", "replace"))
        if length > most and not failed:
            raise self._longer()
        return data

    def _longer(self) -> Exception:
        """Return the error for a body with more bytes than requested."""
        asked, response = self._asked, self._response
        if asked.start is None:
            return too_long(asked.url, asked.most)
        if response.status == 200 and response.url.authority not in _know_ranges:
            return _ranges_ignored(asked.url)
        return TruncatedError(f"received more than {asked.most} bytes")

    def _check_headers(self) -> None:
        response, (url, start, most, state) = self._response, self._asked
        encoding = response.headers.get("Content-Encoding", "")
        if encoding.lower() not in PLAIN_ENCODINGS:
            raise RemoteError(
                f"{redact(url)}: the server sends it encoded ({encoding[:80]}) despite the request",
                "Configure the server to send these files unchanged: no compression, no "
                "Content-Encoding.",
            )
        header = _STATE_HEADERS[state & 3]
        value = response.headers.get(header, "")
        if value and state_number(header, value) != state:
            raise ChangedError(
                f"{redact(url)}: it has changed since it was listed ({header}: {value[:80]})",
                "Run the same command again once nothing writes to the file.",
            )
        length = response.content_length
        if start is None:
            if (length or 0) > most:
                raise self._longer()
        elif response.status == 200 and not (start == 0 and length in (None, most)):
            raise self._longer()
        elif response.status == 206:
            _know_ranges.add(response.url.authority)
            sent = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
            if sent and not start == int(sent[1]) <= int(sent[2]) < start + most:
                raise TruncatedError(
                    f"received bytes {sent[1]} to {sent[2]}, not the requested range"
                )

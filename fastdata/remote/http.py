"""Client that reads ranges from HTTP servers, from the socket into the buffer that is decoded."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from fastdata.remote.answers import PLAIN_ENCODINGS
from fastdata.remote.clients import RangeClient
from fastdata.remote.drivers import CONNECT, STALLED
from fastdata.remote.failures import PASSING_STATUS, StatusError, TruncatedError
from fastdata.threads import cancellable

Bytes: TypeAlias = npt.NDArray[np.uint8]
#: Status, reason and headers of a response, those that matter, and how long they may be in all.
_HEAD = re.compile(rb"HTTP/1\.[01] (\d{3}) ?([^\r\n]*)\r\n((?:[^\r\n]+\r\n)*)\r\n")
_FIELDS = re.compile(
    "^(connection|content-encoding|content-length|content-range|retry-after|transfer-encoding)"
    ":[ \t]*([^\r\n]*?)[ \t]*\r$",
    re.IGNORECASE | re.MULTILINE,
)
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_MOST_HEAD = 16 << 10
#: A waiting thread wakes when so many bytes have come, as each time costs CPU time.
_WAKE = 256 << 10
#: Sizes of the buffers that are used again, and how many free ones are kept.
_LARGE = 1 << 20
_LARGEST = 8 << 20
_MOST_KEPT = 32
_NOTHING = np.empty(0, np.uint8)
_PORTS = {"http": 80, "https": 443}


class Place(NamedTuple):
    """Where a file is: its http URL, and headers of the requests for it."""

    url: str
    headers: Mapping[str, str]


class _ClosedError(TruncatedError):
    """Error of a connection that was closed before a response began."""


class HttpClient(RangeClient):
    """Client that reads by HTTP/1.1; each thread keeps a connection of its own.

    It understands the range that it asked for, and failures that may pass. Anything else raises an
    error, so that fsspec reads instead: redirections, encodings, chunks, refusals.

    Args:
        place_of: Returns the place of a file.
        is_plain: Returns whether a file has one.
        certificates: Makes the settings of TLS.
        idle: Seconds after which a connection without a byte counts as stalled.
    """

    name = "http"

    def __init__(
        self,
        place_of: Callable[[str], Place],
        is_plain: Callable[[str], object] = bool,
        certificates: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        idle: float = STALLED,
    ) -> None:
        self._place_of, self._is_plain = place_of, is_plain
        self._certificates, self._idle = certificates, idle
        self._context: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self._own = threading.local()
        self._free: deque[Bytes] = deque(maxlen=_MOST_KEPT)

    def reads(self, url: str) -> bool:
        return bool(self._is_plain(url))

    def get(self, url: str, start: int, stop: int, seconds: float) -> memoryview:
        end = time.monotonic() + seconds
        place = self._place_of(url)
        scheme, host, path, query, _ = urlsplit(place.url)
        lines = [
            f"GET {path or '/'}{query and '?'}{query} HTTP/1.1",
            f"Host: {host}",
            f"Range: bytes={start}-{stop - 1}",
            "Accept-Encoding: identity",
            *(f"{name}: {value}" for name, value in place.headers.items()),
        ]
        # One for head and body, as most heads come together with a part of the body.
        buffer = self._buffer(_MOST_HEAD + stop - start).data
        question = "\r\n".join([*lines, "", ""]).encode()
        connection: _Connection | None = self._own.__dict__.pop("connection", None)
        data = None
        if connection is not None and connection.server == (scheme, host):
            with suppress(_ClosedError):  # the server has closed it meanwhile
                data = connection.ask(question, start, stop, end, buffer)
        if connection is None or data is None:
            connection = self._connect(scheme, host, end)
            data = connection.ask(question, start, stop, end, buffer)
        if connection.is_kept:
            self._own.connection = connection
        # The room for the head must not cost more memory than the bytes.
        return data if len(data) > _MOST_HEAD else memoryview(bytes(data))

    def _buffer(self, size: int) -> Bytes:
        """Return a buffer. A large one is used again: making new pages costs as much as a copy."""
        if not _LARGE <= size <= _LARGEST:
            return np.empty(size, np.uint8)
        memory = _NOTHING
        with suppress(IndexError):
            memory = self._free.pop()
        if not size <= len(memory) < 2 * size:
            memory = np.empty(-(-size // _LARGE) * _LARGE, np.uint8)
        buffer = memory[:size]
        weakref.finalize(buffer, self._free.append, memory).atexit = False
        return buffer

    def _connect(self, scheme: str, host: str, end: float) -> _Connection:
        parts = urlsplit(f"//{host}")
        name, port = parts.hostname or "", parts.port or _PORTS[scheme]
        context = None
        if scheme == "https":
            with self._lock:
                context = self._context = self._context or self._certificates()
        seconds = max(min(CONNECT, self._idle, end - time.monotonic()), 0.001)
        connected = socket.create_connection((name, port), seconds)
        if context is not None:
            connected = context.wrap_socket(
                connected, server_hostname=name, do_handshake_on_connect=False
            )
        connection = _Connection(connected, (scheme, host), self._idle)
        if isinstance(connected, ssl.SSLSocket):
            with cancellable(connection):
                connected.do_handshake()
        return connection


class _Connection:
    """Connection to a server; it closes when it is dropped.

    Attributes:
        server: Scheme and host of the server.
        is_kept: Whether the server answers another question.
    """

    def __init__(self, connected: socket.socket, server: tuple[str, str], idle: float) -> None:
        self._socket, self.server, self._idle = connected, server, idle
        self._can_wait = not isinstance(connected, ssl.SSLSocket)  # it may hold bytes back
        self._wake, self._seconds = 1, 0.0
        self.is_kept = False
        weakref.finalize(self, connected.close).atexit = False

    def ask(
        self, question: bytes, start: int, stop: int, end: float, buffer: memoryview
    ) -> memoryview:
        """Return the bytes of a range, in a buffer that has room for the response's head too.

        Raise OSError; TimeoutError after ``end``, see `time.monotonic`.
        """
        length = stop - start
        with cancellable(self):
            try:
                self._limit(end)
                self._socket.sendall(question)
                got = self._receive(buffer, 1, end)
            except (ConnectionError, TruncatedError, ssl.SSLError):
                raise _ClosedError("the server closed the connection, not answering") from None
            while (head := _HEAD.match(buffer[: min(got, _MOST_HEAD)])) is None:
                seen = bytes(buffer[:got])
                begins = seen.startswith(b"HTTP/1."[:got])
                if not begins or got >= _MOST_HEAD or _END_OF_HEAD.search(seen):
                    raise ConnectionError("no HTTP response")
                got += self._receive(buffer[got:], 1, end)
            self.is_kept = _check(head, start, stop)
            body = buffer[head.end() : head.end() + length]
            got -= head.end()
            while got < length:
                got += self._receive(body[got:], length - got, end)
        if got > length:
            raise ConnectionError(f"received more than {length} bytes")
        return body

    def _limit(self, end: float) -> None:
        """Have the socket wait no longer than until ``end``, or a tenth longer."""
        left = min(self._idle, end - time.monotonic())
        if left <= 0:
            raise TimeoutError("received too few bytes in time")
        if abs(left - self._seconds) > left / 10:  # it costs a call of the system
            self._socket.settimeout(left)
            self._seconds = left

    def _receive(self, buffer: memoryview, missing: int, end: float) -> int:
        """Receive some bytes that are missing; return how many."""
        self._limit(end)
        wake = min(missing, _WAKE) if self._can_wait else 1
        if wake != self._wake:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake)
            self._wake = wake
        got = self._socket.recv_into(buffer)
        if not got:
            raise TruncatedError("the connection was closed in the middle of a response")
        return got

    def cancel(self) -> None:
        """Wake the thread that waits for bytes; it fails."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _check(head: re.Match[bytes], start: int, stop: int) -> bool:
    """Raise if a response is no range from ``start`` to ``stop``; return whether others may follow.

    Raise StatusError for failures that may pass, else ConnectionError.
    """
    status, reason = int(head[1]), head[2].decode("latin-1")
    found = _FIELDS.findall(head[3].decode("latin-1"))
    fields = {name.lower(): value for name, value in found}
    if status in PASSING_STATUS:
        raise StatusError(status, fields, reason)
    if status != 206:
        raise ConnectionError(f"status {status} {reason}")
    encoding = fields.get("content-encoding", "").lower()
    if encoding not in PLAIN_ENCODINGS or "transfer-encoding" in fields:
        raise ConnectionError("an encoded response")
    sent, length = fields.get("content-range", ""), fields.get("content-length")
    is_range = sent.startswith(f"bytes {start}-{stop - 1}/") and length == str(stop - start)
    if not is_range or len(fields) < len(found):
        raise ConnectionError(f"a response with {sent or 'no range'}, {length or '?'} bytes long")
    return head[0].startswith(b"HTTP/1.1") and fields.get("connection", "").lower() != "close"

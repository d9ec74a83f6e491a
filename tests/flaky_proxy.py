"""An HTTP proxy in threads of the test's process that counts what passes, and breaks it."""

from __future__ import annotations

import gzip
import http.client
import http.server
import random
import socket
import struct
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hangs import HANG
from web_server import Quiet, Server

#: What can be injected. Where nothing else is said, the server sees the request.
FAULTS = {
    "503": "answered by the proxy; the server never sees it",
    "429": "answered by the proxy; the server never sees it",
    "403": "answered by the proxy; the server never sees it",
    "reset": "the connection is reset; the server never sees it",
    "lost": "the server acts, and the connection is reset before its answer",
    "stall": "half of the answer's body comes, then nothing; nothing at all if it has no body",
    "truncate": "half of the answer's body comes, then the connection is closed",
    "corrupt": "the middle byte of the answer's body is another one",
    "chunked": "half of the answer's body comes in chunks, then the connection is closed",
    "open": "half of the body comes with no word of its length, then the connection is closed",
    "short": "half of the answer's body comes, and is said to be all",
    "long": "the answer's body comes twice, and is said to be all",
    "shifted": "another range comes than was asked for",
    "whole": "the whole file comes, not the range that was asked for",
    "gzip": "the answer's body comes compressed, though it was asked for as it is",
    "garbled": "what comes is not HTTP",
    "drip": "the answer comes byte by byte",
}
#: Those after which the same request is to be made again, and succeeds.
PASSING = sorted(FAULTS.keys() - {"403", "corrupt", "gzip", "lost", "drip"})


@dataclass
class Exchange:
    method: str
    path: str  # unquoted, with its query
    range: str  # its Range or Content-Range header
    sent: int  # bytes of its body
    connection: int
    headers: Any = field(default_factory=dict, repr=False)
    received: int = 0  # bytes of the answer's body that were passed on
    status: int = 0
    fault: str | None = None


@dataclass
class _Fault:
    kind: str
    when: Callable[[Exchange], bool]
    times: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, exchange: Exchange) -> bool:
        with self.lock:
            if self.times > 0 and self.when(exchange):
                self.times -= 1
                return True
        return False


class FlakyProxy(Server):
    """A proxy before one HTTP/1.1 server."""

    def __init__(self, upstream: str) -> None:
        parts = urllib.parse.urlsplit(upstream)
        assert parts.hostname and parts.port
        self._upstream = parts.hostname, parts.port
        self.exchanges: list[Exchange] = []
        self.delay = 0.0
        self.more_headers: Callable[[Exchange], list[tuple[str, str]]] = lambda _: []
        self.retry_after = ""
        self._faults: list[_Fault] = []
        self._closed = threading.Event()
        self._clients: list[socket.socket] = []
        self._under_way = 0
        self._counting = threading.Lock()
        proxy = self

        class Handler(Quiet, http.server.BaseHTTPRequestHandler):
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with proxy._counting:
                    self.number = len(proxy._clients)
                    proxy._clients.append(self.connection)

            def do_GET(self) -> None:
                with suppress(OSError):
                    self.close_connection = not proxy._serve(self)

            do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

        super().__init__(Handler)

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        super().__exit__()
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def inject(
        self, kind: str, when: Callable[[Exchange], bool] | None = None, times: int = 1
    ) -> None:
        """Breaks the next ``times`` requests that ``when`` is true of (None: any)."""
        assert kind in FAULTS
        self._faults.append(_Fault(kind, when or (lambda _: True), times))

    def inject_often(self, share: float, seed: int, kinds: Sequence[str] = PASSING) -> None:
        """Breaks this share of the requests, each in a way that is drawn."""
        drawn = random.Random(seed)
        for kind in kinds:
            self.inject(kind, lambda _: drawn.random() < share / len(kinds), sys.maxsize)

    def clear(self) -> None:
        self.exchanges.clear()
        self._faults.clear()
        self.delay = 0.0

    def matching(self, method: str = "", part: str = "") -> list[Exchange]:
        return [
            exchange
            for exchange in list(self.exchanges)
            if exchange.method.startswith(method) and part in exchange.path
        ]

    def count(self, method: str = "", part: str = "") -> int:
        return len(self.matching(method, part))

    def received(self, method: str = "", part: str = "") -> int:
        return sum(exchange.received for exchange in self.matching(method, part))

    def settle(self) -> None:
        """Waits until every request that has come is answered: who sent it may be dead."""
        wait_until(lambda: self._under_way == 0)

    def _serve(self, handler: Any) -> bool:
        """Serves one request; whether another may follow."""
        handler.close_connection = True
        headers, body = handler.headers, _read_body(handler.rfile, handler.headers)
        asked = headers.get("Range") or headers.get("Content-Range") or ""
        path = urllib.parse.unquote(handler.path)
        exchange = Exchange(handler.command, path, asked, len(body), handler.number, headers)
        self.exchanges.append(exchange)
        with self._counting:
            self._under_way += 1
        try:
            return self._treat(handler.connection, exchange, handler.path, headers, body)
        finally:
            with self._counting:
                self._under_way -= 1

    def _treat(
        self, client: socket.socket, exchange: Exchange, target: str, headers: Any, body: bytes
    ) -> bool:
        method = exchange.method
        if self.delay:
            self._closed.wait(self.delay)
        fault = next((fault.kind for fault in self._faults if fault.take(exchange)), None)
        exchange.fault = fault
        if fault in ("503", "429", "403"):
            exchange.status = int(fault)
            after = [("Retry-After", self.retry_after)] if self.retry_after else []
            _answer(client, int(fault), after, b"injected", method != "HEAD")
            return True
        if fault == "reset":
            _reset(client)
            return False
        if fault == "garbled":
            client.sendall(b"\0\1\2 no answer\r\n\r\n")
            return False
        asked = headers.get("Range")
        if asked and fault in ("shifted", "whole"):
            del headers["Range"]
            if fault == "shifted":
                first, last = map(int, asked.removeprefix("bytes=").split("-"))
                headers["Range"] = f"bytes={first + 1}-{last + 1}"
        try:
            status, found, content = self._forward(method, target, headers, body)
        except OSError:
            _reset(client)
            return False
        if fault == "lost":
            _reset(client)
            return False
        exchange.status = status
        found = [*found, *self.more_headers(exchange)]
        if fault == "corrupt" and content:
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        if fault == "gzip":
            content = gzip.compress(content)
            found = [*found, ("Content-Encoding", "gzip")]
        content = {"short": content[: len(content) // 2], "long": 2 * content}.get(fault, content)
        cut = fault in ("stall", "truncate", "chunked", "open")
        passed = len(content) // 2 if cut else len(content)
        exchange.received = passed
        if fault == "drip":
            _answer(client, status, found, content, method != "HEAD", 0)
            for at in range(len(content)):
                client.sendall(content[at : at + 1])
                self._closed.wait(0.05)
        elif content or fault != "stall":  # a head without a body would be a whole answer
            _answer(client, status, found, content, method != "HEAD", passed, fault)
        if fault == "stall":
            self._closed.wait(600)
        return not cut

    def _forward(
        self, method: str, target: str, headers: Any, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection(*self._upstream, timeout=HANG)
        try:
            upstream.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in _OWN_HEADERS:
                    upstream.putheader(name, value)
            if body or method in ("POST", "PUT", "PATCH"):
                upstream.putheader("Content-Length", str(len(body)))
            upstream.putheader("Connection", "close")
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            content = answer.read()
            found = [
                (name, value)
                for name, value in answer.getheaders()
                # The answer to HEAD tells the length of what it does not hold.
                if name.lower() not in _OWN_HEADERS
                or (method == "HEAD" and name.lower() == "content-length")
            ]
            return answer.status, found, content
        finally:
            upstream.close()


_OWN_HEADERS = {"content-length", "transfer-encoding", "connection", "expect", "keep-alive"}


def _read_body(reader: Any, headers: Any) -> bytes:
    if "chunked" not in headers.get("Transfer-Encoding", "").lower():
        return bytes(reader.read(int(headers.get("Content-Length") or 0)))
    body = b""
    while length := int(reader.readline().split(b";")[0], 16):
        body += reader.read(length)
        reader.readline()
    while reader.readline().strip():  # trailers
        pass
    return body


def _answer(
    client: socket.socket,
    status: int,
    headers: list[tuple[str, str]],
    content: bytes,
    has_body: bool,
    passed: int | None = None,
    fault: str | None = None,
) -> None:
    reason = http.client.responses.get(status, "")
    head = f"HTTP/1.1 {status} {reason}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers)
    body = content[:passed] if has_body else b""
    if has_body and fault == "chunked":
        head += "Transfer-Encoding: chunked\r\n"
        body = f"{len(content):x}\r\n".encode() + body
    elif has_body and fault == "open":
        head += "Connection: close\r\n"
    elif has_body and status not in (204, 304):
        head += f"Content-Length: {len(content)}\r\n"
    client.sendall(head.encode("latin-1") + b"\r\n" + body)


def _reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # The descriptor itself: a file made from the socket keeps `close` from closing it.
    socket.close(client.detach())


def wait_until(done: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)

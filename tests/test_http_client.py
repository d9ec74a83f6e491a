"""The client of ranges over HTTP, against servers of raw sockets that answer in odd ways."""

from __future__ import annotations

import gc
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hangs import HANG

from fastdata.remote.failures import StatusError, TruncatedError
from fastdata.remote.http import HttpClient, Place
from fastdata.threads import Group

DATA = os.urandom(1 << 20)
#: Time limit of requests that must not reach it.
SECONDS = 30.0
#: Time limit of requests that reach it.
SHORT = 0.3


class Asked:
    """A request that a server received, and its connection.

    Attributes:
        number: Number of the request, of all connections.
        start, stop: The range.
        head: The request's text.
    """

    def __init__(self, connection: socket.socket, number: int, head: bytes) -> None:
        self.connection, self.number, self.head = connection, number, head
        span = head.partition(b"Range: bytes=")[2].partition(b"\r\n")[0].split(b"-")
        self.start, self.stop = int(span[0]), int(span[1]) + 1

    @property
    def body(self) -> bytes:
        return DATA[self.start : self.stop]

    def fields(self) -> bytes:
        size = self.stop - self.start
        named = f"Content-Length: {size}\r\nContent-Range: bytes {self.start}-{self.stop - 1}/"
        return f"{named}{len(DATA)}\r\n".encode()

    def good(self) -> bytes:
        return b"HTTP/1.1 206 OK\r\n" + self.fields() + b"\r\n" + self.body

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.connection.sendall(part)


class RawServer:
    """Server whose answers are a function's; it closes the connection if that raises OSError.

    Attributes:
        url: Where it is.
        trusted: The certificate to trust.
        connections: How many there were.
        received: Set by each request.
        hung_up: Set once a client closed a connection.
    """

    def __init__(
        self,
        answer: Callable[[Asked], Any],
        context: ssl.SSLContext | None = None,
        trusted: Path | None = None,
    ) -> None:
        self._answer, self._context, self.trusted = answer, context, trusted
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"http{'s' if context else ''}://127.0.0.1:{port}/file"
        self.connections = self._requests = 0
        self.received, self.hung_up = threading.Event(), threading.Event()

    def __enter__(self) -> RawServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if self._context:
                connection = self._context.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as lines:
                head = b""
                while line := lines.readline():
                    head += line
                    if line == b"\r\n":
                        asked, head = Asked(connection, self._requests, head), b""
                        self._requests += 1
                        self.received.set()
                        self._answer(asked)
        self.hung_up.set()


def client_of(server: RawServer, **more: Any) -> HttpClient:
    if server.trusted:
        more["certificates"] = lambda: ssl.create_default_context(cafile=server.trusted)
    return HttpClient(lambda url: Place(url, {"User-Agent": "test"}), **more)


def head_of(*lines: bytes) -> Callable[[Asked], bytes]:
    """Return a function that makes a head; ``<range>`` and ``<size>`` are replaced."""

    def made(asked: Asked) -> bytes:
        span = b"bytes %d-%d/%d" % (asked.start, asked.stop - 1, len(DATA))
        text = b"\r\n".join(lines) + b"\r\n\r\n"
        return text.replace(b"<range>", span).replace(b"<size>", b"%d" % (asked.stop - asked.start))

    return made


GOOD = (b"HTTP/1.1 206 OK", b"Content-Range: <range>", b"Content-Length: <size>")
READ = {
    "usual": GOOD,
    "no reason": (b"HTTP/1.1 206", *GOOD[1:]),
    "old": (b"HTTP/1.0 206 Partial", *GOOD[1:]),
    "lower": (GOOD[0], b"content-range:<range>", b"content-length:<size>  "),
    "upper": (GOOD[0], b"CONTENT-RANGE: \t<range>\t", b"CONTENT-LENGTH: <size>"),
    "long": (*GOOD, b"X: " + b"x" * 12_000),
    "latin": (*GOOD, b"X-\xff: \xfc"),
    "folded": (*GOOD, b"X: 1,", b"  2"),
    "close": (*GOOD, b"Connection: close"),
    "plain": (*GOOD, b"Content-Encoding: identity"),
}


@pytest.mark.parametrize("by", [1, 7, 1 << 16])
@pytest.mark.parametrize("lines", READ.values(), ids=READ)
def test_heads(lines: tuple[bytes, ...], by: int) -> None:
    def answer(asked: Asked) -> None:
        asked.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = head_of(*lines)(asked) + asked.body
        asked.send(*(data[at : at + by] for at in range(0, len(data), by)))

    with RawServer(answer) as server:
        client = client_of(server)
        for start, stop in ((0, 1), (5, 600), (1000, 3000)):
            assert bytes(client.get(server.url, start, stop, SECONDS)) == DATA[start:stop]
        kept = lines not in (READ["old"], READ["close"])
        assert server.connections == (1 if kept else 3)


REFUSED = {
    "bare LF": lambda asked: head_of(*GOOD)(asked).replace(b"\r\n", b"\n"),
    "no HTTP": lambda asked: b"SSH-2.0-server\r\n",
    "one byte": lambda asked: b"\0",
    "HTTP/2": head_of(b"HTTP/2 206 OK", *GOOD[1:]),
    "20 KB": head_of(*GOOD, b"X: " + b"x" * 20_000),
    "whole": head_of(b"HTTP/1.1 200 OK", b"Content-Length: <size>"),
    "early": head_of(b"HTTP/1.1 103 Early", b"Link: a"),
    "redirect": head_of(b"HTTP/1.1 302 Found", b"Location: /other", b"Content-Length: 0"),
    "missing": head_of(b"HTTP/1.1 404 Not Found", b"Content-Length: 0"),
    "gzip": head_of(*GOOD, b"Content-Encoding: gzip"),
    "chunked": head_of(*GOOD, b"Transfer-Encoding: chunked"),
    "no length": head_of(*GOOD[:2]),
    "no range": head_of(GOOD[0], GOOD[2]),
    "other length": head_of(*GOOD[:2], b"Content-Length: 1<size>"),
    "two lengths": head_of(GOOD[0], GOOD[1], b"Content-Length: 5", GOOD[2]),
    "two ranges": head_of(GOOD[0], b"Content-Range: bytes 0-5/10", *GOOD[1:]),
    "other range": head_of(GOOD[0], b"Content-Range: bytes 0-9/10", GOOD[2]),
    "longer": lambda asked: head_of(*GOOD)(asked) + asked.body + b"more",
}


@pytest.mark.parametrize("head", REFUSED.values(), ids=REFUSED)
def test_other_answers_are_errors_at_once(head: Callable[[Asked], bytes]) -> None:
    """Not at the time limit: fsspec may know what to do."""
    with RawServer(lambda asked: asked.send(head(asked))) as server:
        with pytest.raises(ConnectionError):
            client_of(server).get(server.url, 1000, 3000, SECONDS)
        assert server.hung_up.wait(HANG)


def test_passing_failures() -> None:
    head = head_of(b"HTTP/1.1 429 Slow down", b"RETRY-AFTER: 7", b"Content-Length: 0")
    with RawServer(lambda asked: asked.send(head(asked))) as server:
        with pytest.raises(StatusError) as caught:
            client_of(server).get(server.url, 0, 10, SECONDS)
        assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "7")


def test_a_body_that_ends_early() -> None:
    def answer(asked: Asked) -> None:
        asked.send(asked.good()[:-1])
        asked.connection.shutdown(socket.SHUT_RDWR)

    with RawServer(answer) as server, pytest.raises(TruncatedError):
        client_of(server).get(server.url, 0, 1 << 19, SECONDS)


# Time.


def drip(asked: Asked, data: bytes) -> None:
    for at in range(len(data)):
        asked.send(data[at : at + 1])
        time.sleep(0.05)


SLOW: dict[str, Callable[[Asked], Any]] = {
    "head": lambda asked: drip(asked, b"HTTP/1.1 206 OK\r\nX: " + b"x" * 10_000),
    "body": lambda asked: (asked.send(asked.good()[:-1500]), drip(asked, asked.body[-1500:])),
}
STALLED: dict[str, Callable[[Asked], Any]] = {
    "head": lambda asked: asked.connection.recv(1),
    "half a head": lambda asked: (asked.send(b"HTTP/1.1 206"), asked.connection.recv(1)),
    "half a body": lambda asked: (asked.send(asked.good()[:-1]), asked.connection.recv(1)),
}


@pytest.mark.parametrize("answer", [*SLOW.values(), *STALLED.values()], ids=[*SLOW, *STALLED])
def test_time_limits(answer: Callable[[Asked], Any]) -> None:
    with RawServer(answer) as server:
        with pytest.raises(TimeoutError):
            client_of(server).get(server.url, 0, 2000, SHORT)
        assert server.hung_up.wait(HANG)


@pytest.mark.parametrize("answer", STALLED.values(), ids=STALLED)
def test_connections_without_a_byte(answer: Callable[[Asked], Any]) -> None:
    with RawServer(answer) as server, pytest.raises(TimeoutError):
        client_of(server, idle=SHORT).get(server.url, 0, 2000, 2 * HANG)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1, and its key."""
    path = tmp_path_factory.mktemp("tls") / "certificate"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(path), "-keyout", str(path)]
    key = path.with_name("key")
    subprocess.run([*make[:-1], str(key)], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


@pytest.fixture(params=["http", "https"])
def scheme(request: pytest.FixtureRequest, certificate: Path) -> dict[str, Any]:
    """Options of a server and a client."""
    if request.param == "http":
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return {"context": context, "trusted": certificate}


# Kept connections.


def close(asked: Asked) -> None:
    asked.send(asked.good())
    asked.connection.shutdown(socket.SHUT_RDWR)


def reset(asked: Asked) -> None:
    asked.send(asked.good())
    asked.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.05)  # else the client may not receive all
    raise ConnectionResetError


def close_when_asked_again(asked: Asked) -> None:
    if asked.number % 2:
        raise ConnectionResetError
    asked.send(asked.good())


@pytest.mark.parametrize("answer", [close, reset, close_when_asked_again])
def test_servers_that_close_kept_connections(
    answer: Callable[[Asked], Any], scheme: dict[str, Any]
) -> None:
    with RawServer(answer, **scheme) as server:
        client = client_of(server)
        for start in range(0, 50_000, 10_000):
            if start:
                time.sleep(0.1)
            data = client.get(server.url, start, start + 10_000, SECONDS)
            assert bytes(data) == DATA[start : start + 10_000]
        assert server.connections == 5


@pytest.mark.parametrize("junk", [b"more", b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n"])
def test_bytes_after_a_response_are_no_part_of_the_next(junk: bytes) -> None:
    def answer(asked: Asked) -> None:
        asked.send(asked.good())
        if not asked.number:
            time.sleep(0.05)
            asked.send(junk)

    with RawServer(answer) as server:
        client = client_of(server)
        assert bytes(client.get(server.url, 0, 1000, SECONDS)) == DATA[:1000]
        time.sleep(0.1)
        with suppress(ConnectionError, StatusError):
            assert bytes(client.get(server.url, 5, 9, SECONDS)) == DATA[5:9]
        assert bytes(client.get(server.url, 7, 9, SECONDS)) == DATA[7:9]


def test_a_connection_for_each_thread(scheme: dict[str, Any]) -> None:
    with RawServer(lambda asked: asked.send(asked.good()), **scheme) as server:
        client = client_of(server)
        with ThreadPoolExecutor(4) as threads:
            starts = range(0, 900_000, 10_007)
            found = threads.map(
                lambda at: bytes(client.get(server.url, at, at + 50_000, HANG)), starts
            )
            assert list(found) == [DATA[at : at + 50_000] for at in starts]
        assert server.connections <= 4
        assert server.hung_up.wait(HANG)  # as the threads have ended


# Cancelled requests.


@pytest.mark.parametrize("answer", STALLED.values(), ids=STALLED)
@pytest.mark.parametrize("kept", [False, True])
def test_cancelled_requests(
    answer: Callable[[Asked], Any], kept: bool, scheme: dict[str, Any]
) -> None:
    def answer_first(asked: Asked) -> None:
        if kept and not asked.number:
            asked.send(asked.good())
            server.received.clear()
        else:
            answer(asked)

    with RawServer(answer_first, **scheme) as server, ThreadPoolExecutor(1) as threads:
        client, group = client_of(server), Group()
        if kept:
            threads.submit(client.get, server.url, 0, 10, SECONDS).result()
        request = threads.submit(group.run, client.get, server.url, 0, 2000, 2 * HANG)
        assert server.received.wait(HANG)
        time.sleep(0.05)
        group.cancel()
        with pytest.raises(CancelledError):
            request.result(HANG)
        assert server.connections == 1


def test_a_handshake_that_stalls(certificate: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        url = f"https://127.0.0.1:{server.getsockname()[1]}/file"
        client, group = HttpClient(lambda url: Place(url, {})), Group()
        with pytest.raises(TimeoutError):
            client.get(url, 0, 2000, SHORT)
        server.accept()[0].close()
        request = threads.submit(group.run, client.get, url, 0, 2000, 2 * HANG)
        connection, _ = server.accept()
        assert connection.recv(1)
        group.cancel()
        with pytest.raises(CancelledError):
            request.result(HANG)
        connection.close()


def test_a_child_does_not_cancel_the_requests_of_its_parent() -> None:
    go = threading.Event()

    def answer(asked: Asked) -> None:
        go.wait(HANG)
        asked.send(asked.good())

    with RawServer(answer) as server, ThreadPoolExecutor(1) as threads:
        group = Group()
        request = threads.submit(group.run, client_of(server).get, server.url, 0, 2000, HANG)
        assert server.received.wait(HANG)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads
            child = os.fork()
        if not child:
            group.cancel()
            os._exit(0)
        os.waitpid(child, 0)
        go.set()
        assert bytes(request.result(HANG)) == DATA[:2000]


# Buffers.


def test_bytes_stay_as_they_are() -> None:
    sizes = [1, 5000, 17_000, 300_000, 1_030_000, 1_048_576]
    with RawServer(lambda asked: asked.send(asked.good())) as server:
        client = client_of(server)

        def read(number: int) -> tuple[int, int, Any]:
            size = sizes[number % len(sizes)]
            start = number * 37 % (len(DATA) - size + 1)
            return start, size, client.get(server.url, start, start + size, HANG)

        with ThreadPoolExecutor(4) as threads:
            held: list[tuple[int, int, Any]] = []
            for number, (start, size, data) in enumerate(threads.map(read, range(200))):
                # Views alone have to keep the memory.
                data = [data, np.frombuffer(data, np.uint8)[:size], data[:size].cast("b")][
                    number % 3
                ]
                held = [*held, (start, size, data)][number % 2 :][-40:]
                for start, size, data in held:
                    assert bytes(data) == DATA[start : start + size]


def test_memory_after_many_reads() -> None:
    """Each read's memory is used again, or freed."""
    with RawServer(lambda asked: asked.send(asked.good())) as server:
        client = client_of(server)
        tracemalloc.start()
        held = [client.get(server.url, at, at + 1000, HANG) for at in range(100)]
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
        held = [client.get(server.url, 0, 1 << 20, HANG) for _ in range(100)]
        del held
        assert tracemalloc.get_traced_memory()[0] < 100 << 20
        del client
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
        tracemalloc.stop()

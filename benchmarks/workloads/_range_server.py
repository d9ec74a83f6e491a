"""HTTP servers of byte ranges in their own process: nginx, or a slow link.

All answers of a slow link together get no more than its rate. A server serves until its input ends.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

_CHUNK = 64 << 10
#: Size and number of the ranges under way that show what a server can do.
_RANGE, _CONNECTIONS = 1 << 20, 8
_NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
    {temporary}
    access_log off; sendfile on; keepalive_requests 1000000;
    server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    root, latency, rate = Path(), 0.0, 0.0
    link, free = threading.Lock(), 0.0

    def do_GET(self) -> None:
        time.sleep(self.latency)
        path = self.root / Path(self.path).name
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start, stop = (int(found[1]), int(found[2] or size - 1) + 1) if found else (0, size)
        stop = min(stop, size)
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        if self.command == "HEAD":
            return
        with path.open("rb") as file:
            file.seek(start)
            while data := file.read(min(_CHUNK, stop - file.tell())):
                self.wait_for(len(data))
                self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815

    def wait_for(self, size: int) -> None:
        """Wait until so many bytes may be sent; a sleep that was too long may be made up for."""
        with self.link:
            begin = max(_Handler.free, time.monotonic() - 0.01)
            _Handler.free = begin + size / self.rate
        time.sleep(max(0.0, _Handler.free - time.monotonic()))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def range_server(root: Path, latency: float = 0.0, rate: float = 0.0) -> Iterator[str]:
    """Start a server in its own process, nginx without a rate; yield its URL."""
    command = [sys.executable, __file__, str(root.absolute()), str(latency), str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


def bytes_a_second(url: str, size: int, seconds: float = 0.5) -> float:
    """Return how fast sockets receive random ranges of a file of a known size."""
    address, received = urlsplit(url), list[int]()
    end = time.perf_counter() + seconds

    def receive(number: int) -> None:
        drawn, buffer = random.Random(number), bytearray(min(_RANGE, size))
        connection = http.client.HTTPConnection(address.netloc)
        while not received or time.perf_counter() < end:
            start = drawn.randint(0, size - len(buffer))
            wanted = {"Range": f"bytes={start}-{start + len(buffer) - 1}"}
            connection.request("GET", address.path, headers=wanted)
            received.append(connection.getresponse().readinto(buffer))
        connection.close()

    threads = [threading.Thread(target=receive, args=(one,)) for one in range(_CONNECTIONS)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(received) / (time.perf_counter() - begun)


def _serve_slowly(root: Path, latency: float, rate: float) -> None:
    """Serve files over a link, until the input ends."""
    _Handler.root, _Handler.latency, _Handler.rate = root, latency, rate
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


def _serve_with_nginx(root: Path) -> None:
    """Serve files with nginx, until the input ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{name}_temp_path {folder}/{name};" for name in names)
        settings = Path(folder, "nginx.conf")
        text = _NGINX.format(folder=folder, root=root, port=port, temporary=temporary)
        settings.write_text(text)
        with subprocess.Popen(["nginx", "-e", "stderr", "-c", str(settings)]) as nginx:
            while nginx.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.01)
            print(port, flush=True)
            sys.stdin.read()
            nginx.terminate()


if __name__ == "__main__":
    ROOT, LATENCY, RATE = Path(sys.argv[1]), *map(float, sys.argv[2:])
    if RATE:
        _serve_slowly(ROOT, LATENCY, RATE)
    else:
        _serve_with_nginx(ROOT)

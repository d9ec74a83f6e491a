"""HTTP server of byte ranges over a slow link, in its own process.

All answers together get no more than the rate of the link. It serves until its input ends.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_CHUNK = 64 << 10


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
def range_server(root: Path, latency: float, rate: float) -> Iterator[str]:
    """Start a server in its own process; yield its URL."""
    command = [sys.executable, __file__, str(root), str(latency), str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


if __name__ == "__main__":
    _Handler.root = Path(sys.argv[1])
    _Handler.latency, _Handler.rate = map(float, sys.argv[2:])
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()

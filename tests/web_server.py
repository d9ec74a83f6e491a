"""A folder behind HTTP: a server that may not know ranges, or that wants a token."""

from __future__ import annotations

import http.server
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Quiet:
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # beyond, a connection waits for seconds

    def __init__(self, handler: Any) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Any:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        pass  # who has hung up, has


@contextmanager
def serving(handler: Any) -> Iterator[str]:
    with Server(handler) as server:
        yield server.url


@dataclass
class Request:
    """A request, the token that it came with, and how many bytes of a body it was sent."""

    path: str
    range: str
    token: str | None
    sent: int = 0


class WebServer(Server):
    """Serves a folder.

    Args:
        folder: The folder.
        ranges: Whether it answers Range; else it sends the whole file, as HTTP lets it.
        query: The query that each request must have; others are refused.
        state: The header by which answers name a file's state; none by default.
        stalls: Requests whose path has it are not answered until the server ends.
        lists: Whether a folder's URL is answered with a page of links.

    Attributes:
        url: Where it is, with no slash at its end.
        requests: Each request so far.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ranges: bool = True,
        query: str = "",
        state: str = "",
        stalls: str | None = None,
        lists: bool = False,
    ) -> None:
        self.requests: list[Request] = []
        self._ends = threading.Event()
        server = self

        class Files(Quiet, http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, given = self.path.partition("?")
                file = folder / urllib.parse.unquote(path).lstrip("/")
                asked = self.headers.get("Range") or ""
                request = Request(path, asked, self.headers.get("Authorization"))
                server.requests.append(request)
                if stalls is not None and stalls in path:
                    server._ends.wait()
                status, data = 200, b""
                if given != query:
                    status = 403
                elif lists and file.is_dir():
                    names = [one.name + "/" * one.is_dir() for one in file.iterdir()]
                    links = (f'<a href="{urllib.parse.quote(name)}">{name}</a>' for name in names)
                    data = "".join(links).encode()
                elif not file.is_file():
                    status = 404
                else:
                    data = file.read_bytes()
                    found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked) if ranges else None
                    if found:
                        first, last = int(found[1]), int(found[2])
                        whole, data, status = len(data), data[first : last + 1], 206
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                if status == 206:
                    self.send_header("Content-Range", f"bytes {first}-{last}/{whole}")
                if status in (200, 206) and state:
                    self.send_header(state, f'"{file.stat().st_mtime_ns}"')
                self.end_headers()
                if self.command == "GET":
                    for at in range(0, len(data), 1 << 16):
                        request.sent += self.wfile.write(data[at : at + (1 << 16)])

            do_HEAD = do_GET  # noqa: N815 - http.server's name

        super().__init__(Files)

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        super().__exit__()

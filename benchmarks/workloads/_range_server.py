"""HTTP server of byte ranges over a slow link, in its own process.

Each answer begins after a latency; all answers together get no more than a rate, as on a link
that they share. It prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK = 64 << 10
#: Seconds of the link that may be made up for when a sleep was too long.
_SLACK = 0.01
_RANGE = re.compile(rb"^range: bytes=(\d+)-(\d*)\r?$", re.I | re.M)


class Link:
    """Rate in bytes a second, shared by all answers."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0

    async def pass_on(self, size: int) -> None:
        """Wait until so many bytes may be sent."""
        now = asyncio.get_running_loop().time()
        self._free = max(self._free, now - _SLACK) + size / self._rate
        if self._free > now:
            await asyncio.sleep(self._free - now)


async def serve(root: Path, latency: float, rate: float) -> None:
    """Serve the files of a folder."""
    link = Link(rate)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(latency)
                await _answer(head, root, writer, link)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()  # it has gone, or the server ends

    server = await asyncio.start_server(client, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def _answer(head: bytes, root: Path, writer: asyncio.StreamWriter, link: Link) -> None:
    method, target, _ = head.split(b"\r\n", 1)[0].split(b" ")
    path = root / os.path.basename(target.decode())
    if not path.is_file():
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return
    size = path.stat().st_size
    start, stop, status = 0, size, b"200 OK"
    if found := _RANGE.search(head):
        start = int(found[1])
        stop = min(int(found[2]) + 1, size) if found[2] else size
        status = b"206 Partial Content"
    writer.write(
        b"HTTP/1.1 %s\r\nContent-Length: %d\r\nAccept-Ranges: bytes\r\n"
        b"Content-Range: bytes %d-%d/%d\r\n\r\n" % (status, stop - start, start, stop - 1, size)
    )
    if method == b"HEAD":
        return
    with path.open("rb") as file:
        file.seek(start)
        while start < stop:
            chunk = file.read(min(_CHUNK, stop - start))
            await link.pass_on(len(chunk))
            writer.write(chunk)
            await writer.drain()
            start += len(chunk)


@contextmanager
def range_server(root: Path, latency: float, rate: float) -> Iterator[str]:
    """Start a server in its own process; yield its URL.

    Each answer begins after ``latency`` seconds; together they get ``rate`` bytes a second.
    """
    command = [sys.executable, __file__, str(root), str(latency), str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), *map(float, sys.argv[2:])))

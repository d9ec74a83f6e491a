"""nginx, and a slow link to it, in their own process.

All answers over the link together get no more than its rate. They serve until the input ends.
"""

from __future__ import annotations

import asyncio
import http.client
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

_CHUNK = 64 << 10
#: Size and number of the ranges under way that show what a server can do.
_RANGE, _CONNECTIONS = 1 << 20, 8
_NGINX = """
daemon off; master_process off; pid {folder}/pid;
events {{}}
http {{
    client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
    uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
    access_log off; sendfile on; keepalive_requests 1000000;
    server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


@contextmanager
def range_server(root: Path, latency: float, rate: float) -> Iterator[str]:
    """Serve files in another process, over a slow link if it has a rate; yield the URL."""
    command = [sys.executable, __file__, str(root.absolute()), str(latency), str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


def bytes_a_second(url: str, size: int) -> float:
    """Return how fast sockets receive random ranges of a file of a known size."""
    address, begun = urlsplit(url), time.perf_counter()

    def receive(seed: int) -> int:
        drawn, buffer, received = random.Random(seed), bytearray(min(_RANGE, size)), 0
        connection = http.client.HTTPConnection(address.netloc)
        while not received or time.perf_counter() < begun + 0.5:
            start = drawn.randint(0, size - len(buffer))
            wanted = {"Range": f"bytes={start}-{start + len(buffer) - 1}"}
            connection.request("GET", address.path, headers=wanted)
            received += connection.getresponse().readinto(buffer)
        return received

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        return sum(pool.map(receive, range(_CONNECTIONS))) / (time.perf_counter() - begun)


class _Link:
    """Relay of connections to a server, which delays requests and limits the rate of answers."""

    def __init__(self, port: int, latency: float, rate: float) -> None:
        self._port, self._latency, self._rate = port, latency, rate
        self._free = 0.0

    async def relay(self, requests: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        """Relay a connection until its end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)

        async def forward() -> None:
            while data := await requests.read(_CHUNK):
                await asyncio.sleep(self._latency)
                writer.write(data)
            writer.close()

        forwarding = asyncio.create_task(forward())
        while data := await reader.read(_CHUNK):
            # A sleep that was too long may be made up for.
            self._free = max(self._free, time.monotonic() - 0.01) + len(data) / self._rate
            await asyncio.sleep(self._free - time.monotonic())
            answers.write(data)
            await answers.drain()
        await forwarding
        answers.close()


async def _serve(root: Path, latency: float, rate: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "nginx.conf")
        settings.write_text(_NGINX.format(folder=folder, root=root, port=port))
        with subprocess.Popen(["nginx", "-e", "stderr", "-c", str(settings)]) as nginx:
            while nginx.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                await asyncio.sleep(0.01)
            if rate:
                link = await asyncio.start_server(_Link(port, latency, rate).relay, "127.0.0.1", 0)
                port = link.sockets[0].getsockname()[1]
            print(port, flush=True)
            await asyncio.to_thread(sys.stdin.read)
            nginx.terminate()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), *map(float, sys.argv[2:])))

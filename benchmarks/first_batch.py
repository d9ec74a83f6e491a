"""Time from a URL to the first batch, from emulators of Google's and Amazon's stores.

    python -m fastdata.benchmarks.first_batch TREE [--out docs/results/first-batch.json]

Each store stands behind a link that delays each request, and once more the first one of a
connection, as a handshake does. The tree's images are packed as shards, and the same shards are
indexed in place as anyone's tars. A fresh process opens the dataset by its URL and takes the first
batch of a shuffled epoch, then the rest. Its imports of torch and fastdata are not counted, those
of the store's driver are. The index was fetched before, as from the second run on a machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
from fastdata.benchmarks.measure import Figures, Spread, interleave, machine, out_option, report
from fastdata.converters import ImageFolder, index, pack

from fastdata.remote.filesystem import upload

_BATCH = 64
_SIZE = 224
_BUCKET = "first-batch"
#: The emulators copy the whole file for each range of it.
_SHARD = 4 << 20
_LENGTH = re.compile(rb"^content-length: *(\d+)", re.I | re.M)
#: Without it, gcsfs looks for gRPC and for the metadata server, which emulators lack.
_ENVIRONMENT = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false", "NO_GCE_CHECK": "true"}
#: The emulator lets five connections wait; Linux delays the others by seconds.
_GS = """
import socketserver
socketserver.TCPServer.request_queue_size = 256
from gcp_storage_emulator.__main__ import main
main()
"""
_SERVERS = {
    "gs": ["-c", _GS, "start", "--host=127.0.0.1", "--port={}", "--in-memory", "-q"],
    "s3": ["-m", "moto.server", "-H", "127.0.0.1", "-p", "{}"],
}
_KINDS = ("shards", "tars in place")
#: Run in a fresh process; the arguments are JSON: URL, options of the driver.
_CHILD = """
import json, sys, time
import torch
from fastdata import DataLoader, ImageDataset
from fastdata.transforms import RandomResizedCrop

url, options, batch, size = json.loads(sys.argv[1])
began = time.perf_counter()
of = ImageDataset(url, RandomResizedCrop(size), storage_options=options)
opened = time.perf_counter()
loader = DataLoader(of, batch, shuffle=True, seed=0, num_workers=2)
batches = iter(loader)
images = len(next(batches)[1])
first = time.perf_counter()
images += sum(len(labels) for _, labels in batches)
remote = loader.stats().remote
print(json.dumps({
    "open_s": opened - began, "first_batch_s": first - began, "images": images,
    "requests": remote.requests, "bytes_requested": remote.bytes_requested,
    "bytes_needed": remote.bytes_needed,
}))
"""


async def _relay(upstream: int, delay: float) -> None:
    """Pass HTTP requests on after a delay; print the port.

    Connections are kept, as stores keep theirs and the emulators do not.
    """

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await asyncio.sleep(delay)  # the handshake
            while True:
                request = await _message(reader)
                await asyncio.sleep(delay)
                there, sending = await asyncio.open_connection("127.0.0.1", upstream)
                sending.write(_with_connection(request, b"close"))
                writer.write(_with_connection(await _message(there), b"keep-alive"))
                sending.close()
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Read a request or an answer whose head says how long it is."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return head + await reader.readexactly(int(length[1]) if length else 0)


def _with_connection(message: bytes, value: bytes) -> bytes:
    """Return a message with another Connection header."""
    head, body = message.split(b"\r\n\r\n", 1)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    lines[0] = lines[0].replace(b"HTTP/1.0", b"HTTP/1.1")
    return b"\r\n".join([*lines, b"Connection: " + value]) + b"\r\n\r\n" + body


@contextmanager
def _link(upstream: int, delay: float) -> Iterator[int]:
    command = [sys.executable, "-m", __spec__.name, "--relay", str(upstream), str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as link:
        assert link.stdout is not None
        assert link.stdin is not None
        yield int(link.stdout.readline())
        link.stdin.close()


@contextmanager
def _store(kind: str) -> Iterator[int]:
    """Start an emulator with an empty bucket; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, *(word.replace("{}", str(port)) for word in _SERVERS[kind])]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _make_bucket(kind, port, time.monotonic() + 60)
            yield port
        finally:
            server.kill()
            server.wait()


def _make_bucket(kind: str, port: int, end: float) -> None:
    place = f"http://127.0.0.1:{port}"
    request = urllib.request.Request(f"{place}/{_BUCKET}", method="PUT")
    if kind == "gs":
        about = json.dumps({"name": _BUCKET}).encode()
        where, headers = f"{place}/storage/v1/b?project=test", {"Content-Type": "application/json"}
        request = urllib.request.Request(where, about, headers)
    while True:
        try:
            with urllib.request.urlopen(request):
                return
        except OSError:  # it is starting
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def _options(kind: str, port: int) -> dict[str, Any]:
    """Return the options of a store's driver."""
    endpoint = {"endpoint_url": f"http://127.0.0.1:{port}"}
    if kind == "gs":
        return {**endpoint, "token": "anon"}
    return {
        **endpoint,
        "key": "testing",
        "secret": "testing",
        "client_kwargs": {"region_name": "us-east-1"},
    }


def _fill(packed: Path, kind: str, port: int) -> dict[str, str]:
    """Upload the shards and index them in place; return the URL of each kind of dataset."""
    url, options = f"{kind}://{_BUCKET}", _options(kind, port)
    for path in packed.iterdir():
        upload(path, f"{url}/shards/{path.name}", storage_options=options)
        if path.suffix == ".tar":
            upload(path, f"{url}/tars/{path.name}", storage_options=options)
    index(f"{url}/tars", f"{url}/index", storage_options=options, workers=1)
    return dict(zip(_KINDS, (f"{url}/shards", f"{url}/index"), strict=True))


def _run(url: str, options: dict[str, Any], cache: Path) -> dict[str, Any]:
    """Open a dataset and read an epoch in a fresh process."""
    environment = {**os.environ, **_ENVIRONMENT, "FASTDATA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", _CHILD, json.dumps([url, options, _BATCH, _SIZE])]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(tree: Path, rounds: int, delay: float, stores: tuple[str, ...]) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    os.environ.update(_ENVIRONMENT)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        packed, cache = Path(made, "shards"), Path(made, "cache")
        pack(ImageFolder(tree), packed, container="shards", shard_size=_SHARD)
        for store in stores:
            with _store(store) as port, _link(port, delay) as far:
                urls = _fill(packed, store, port)
                for url in urls.values():  # so that the index is on this machine
                    _run(url, _options(store, far), cache)
                found[store] = interleave(
                    {
                        kind: partial(_run, url, _options(store, far), cache)
                        for kind, url in urls.items()
                    },
                    rounds,
                )
    return {
        "machine": machine(),
        "delay_s": delay,
        "batch_size": _BATCH,
        "decode_threads": 2,
        "stores": found,
    }


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results."""
    rows = []
    for store, kinds in result["stores"].items():
        for kind, runs in kinds.items():
            seconds = (Spread.of([run[n] for run in runs]) for n in ("open_s", "first_batch_s"))
            images, run = runs[0]["images"], runs[0]
            rows.append(
                [
                    f"{store}, {kind}",
                    *(f"{one:.2f}" for one in seconds),
                    f"{run['requests'] / images:.2f}",
                    f"{run['bytes_requested'] / images:,.0f}",
                    f"{run['bytes_needed'] / images:,.0f}",
                ]
            )
    columns = ["", "open, s", "first batch, s", "requests an image", "bytes an image", "of needed"]
    return Figures(f"First batch, {result['delay_s'] * 1000:.0f} ms away", columns, rows)


@click.command()
@click.argument("tree", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--rounds", default=3, show_default=True)
@click.option("--delay", default=0.05, show_default=True, help="Seconds of a round trip.")
@click.option(
    "--store", "stores", multiple=True, default=("gs", "s3"), type=click.Choice(["gs", "s3"])
)
@out_option
def main(
    tree: Path, rounds: int, delay: float, stores: tuple[str, ...], out_path: Path | None
) -> None:
    """Measure the first batch of the images of TREE from emulated buckets."""
    result = measure(tree, rounds, delay, stores)
    report(result, out_path, figures(result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--relay"]:
        asyncio.run(_relay(int(sys.argv[2]), float(sys.argv[3])))
    else:
        main()

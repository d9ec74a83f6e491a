"""Object stores and a web server on loopback, and a bucket for each test."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flaky_proxy import FlakyProxy, wait_until
from hangs import HANG
from tiers import slow
from web_server import WebServer

from fastdata.remote.drivers import open_filesystem

# Read when gcsfs is imported, here and in every process that tests start: zonal buckets speak
# gRPC, and the metadata server is looked for by a request that times out.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
os.environ["NO_GCE_CHECK"] = "true"


#: Options of each scheme with which fsspec reads.
ONLY_FSSPEC: dict[str, dict[str, Any]] = {
    "http": {"size_policy": "head"},
    "gs": {"session_kwargs": {"trust_env": False}},
    "s3": {"cache_regions": False},
}


class Bucket(NamedTuple):
    """A bucket of this test's own."""

    url: str
    storage_options: dict[str, Any]
    endpoint: str

    @property
    def arguments(self) -> list[str]:
        found = []
        for name, value in self.storage_options.items():
            text = value if isinstance(value, str) else json.dumps(value)
            found += ["--storage-option", f"{name}={text}"]
        return found

    @contextmanager
    def through_proxy(self) -> Iterator[tuple[Bucket, FlakyProxy]]:
        with FlakyProxy(self.endpoint) as proxy:
            options = {**self.storage_options, "endpoint_url": proxy.url}
            yield Bucket(self.url, options, proxy.url), proxy


def _request(endpoint: str, method: str, path: str, body: str = "") -> int:
    parts = urllib.parse.urlsplit(endpoint)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=HANG)
    try:
        connection.request(method, path, body or None, {"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


def _answers(endpoint: str) -> bool:
    try:
        return _request(endpoint, "GET", "/") > 0
    except OSError:
        return False


@contextmanager
def _server(log: Path, *command: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", *(part.format(port=port) for part in command)],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
        try:
            endpoint = f"http://127.0.0.1:{port}"
            wait_until(lambda: server.poll() is not None or _answers(endpoint), 60)
            assert server.poll() is None, log.read_text("utf-8", "replace")
            yield endpoint
        finally:
            server.kill()
            server.wait()


@pytest.fixture(scope="session")
def gcs_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """gcp-storage-emulator, which speaks Google's JSON protocol and keeps all in memory."""
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    log = tmp_path_factory.mktemp("gcs") / "log"
    # Its host name goes into the places of resumable uploads, so a proxy keeps seeing them.
    start = ["start", "--host=127.0.0.1", "--port={port}", "--in-memory", "-q"]
    with _server(log, "gcp_storage_emulator", *start) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Moto's server, which speaks the S3 protocol and keeps all in memory."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    pytest.importorskip("flask")
    with _server(
        tmp_path_factory.mktemp("s3") / "log", "moto.server", "-H", "127.0.0.1", "-p", "{port}"
    ) as endpoint:
        yield endpoint


def make_bucket(gcs_endpoint: str, name: str) -> None:
    body = json.dumps({"name": name})
    assert _request(gcs_endpoint, "POST", "/storage/v1/b?project=test", body) in (200, 409)


@pytest.fixture
def gcs(gcs_endpoint: str) -> Bucket:
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    make_bucket(gcs_endpoint, name)
    return Bucket(f"gs://{name}", {"endpoint_url": gcs_endpoint, "token": "anon"}, gcs_endpoint)


@pytest.fixture
def s3(s3_endpoint: str) -> Bucket:
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    assert _request(s3_endpoint, "PUT", f"/{name}") == 200
    options = {
        "key": "testing",
        "secret": "testing-secret",
        "endpoint_url": s3_endpoint,
        "client_kwargs": {"region_name": "us-east-1"},
    }
    return Bucket(f"s3://{name}", options, s3_endpoint)


def send_tree(bucket: Bucket, folder: Path, name: str) -> str:
    url = f"{bucket.url}/{name}"
    fs, path = open_filesystem(url, bucket.storage_options)
    fs.put(f"{folder}/", path, recursive=True)
    return url


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    (tmp_path / "web").mkdir()
    with WebServer(tmp_path / "web", lists=True) as server:
        yield server.url


class Store(NamedTuple):
    """A folder behind a proxy."""

    url: str
    options: dict[str, Any]
    proxy: FlakyProxy


@contextmanager
def web_store(folder: Path) -> Iterator[Store]:
    aiohttp = pytest.importorskip("aiohttp")
    times = aiohttp.ClientTimeout(total=None, sock_read=2)
    with WebServer(folder) as server, FlakyProxy(server.url) as proxy:
        yield Store(proxy.url, {"client_kwargs": {"timeout": times}}, proxy)


@contextmanager
def bucket_store(bucket: Bucket, folder: Path) -> Iterator[Store]:
    send_tree(bucket, folder, "data")
    with bucket.through_proxy() as (behind, proxy):
        options = dict(behind.storage_options)
        if bucket.url.startswith("gs"):
            options["requests_timeout"] = 2
        else:
            options["config_kwargs"] = {"read_timeout": 2}
        yield Store(f"{bucket.url}/data", options, proxy)


@pytest.fixture(params=["gcs", slow("s3")])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["web", slow("gcs"), slow("s3")])
def store(request: pytest.FixtureRequest) -> Callable[[Path], Any]:
    if request.param == "web":
        return web_store
    bucket = request.getfixturevalue(request.param)
    return lambda folder: bucket_store(bucket, folder)

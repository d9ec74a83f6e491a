"""Answers that are cut, garbled, of another range, compressed, endless: asked again, or refused."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest
from flaky_proxy import PASSING, Exchange, FlakyProxy
from loader_data import CROPS, SAMPLES, dataset, same
from object_stores import Store, web_store
from tiers import slow
from web_server import Quiet, serving

from fastdata import DataLoader, ImageDataset
from fastdata._native import crc32c
from fastdata.errors import OutageError, RemoteError
from fastdata.remote import RemoteOptions, answers
from fastdata.remote.files import archive_files, remote_path
from fastdata.remote.filesystem import download, file_info, list_files, read_bytes
from fastdata.remote.manifests import read_manifest
from fastdata.threads import AWAITED

pytest.importorskip("aiohttp")

#: Small requests, so that there are many.
OPTIONS = RemoteOptions(timeout=2.0, max_request=1, concurrency=8, piece_bytes=16 << 10)


def is_of(name: str) -> Callable[[Exchange], bool]:
    return lambda one: one.method == "GET" and name in one.path and "prefix" not in one.path


def open_loader(
    there: Store, options: RemoteOptions = OPTIONS, cache: Any = None, **more: Any
) -> DataLoader[Any]:
    far = ImageDataset(there.url, CROPS, storage_options=there.options, remote=options, cache=cache)
    return DataLoader(far, 8, seed=3, num_workers=1, order="random", **more)


def expected() -> list[Any]:
    near = ImageDataset(dataset("shards"), CROPS)
    return list(DataLoader(near, 8, seed=3, num_workers=1, order="random"))


@pytest.mark.parametrize("cached", [False, slow(True)])
def test_each_fault_in_samples(store: Callable[[Path], Any], cached: bool, tmp_path: Path) -> None:
    with store(dataset("shards")) as there:
        loader = open_loader(there, cache=tmp_path / "pieces" if cached else None)
        faults = {*PASSING, "corrupt"}
        for fault in faults:
            there.proxy.inject(fault, is_of(".tar"))
        assert same(list(loader), expected())
        assert {one.fault for one in there.proxy.exchanges} >= faults
        found = loader.stats().remote
        assert found.retries >= 2  # drivers try some again by themselves
        # A damaged piece of a cache may hold no byte of an image.
        assert cached or found.refetched >= 1


@pytest.mark.parametrize("name", ["_dataset.json", "_index.rows"])
def test_each_fault_in_the_manifest_and_the_index(
    store: Callable[[Path], Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No range of the manifest is asked for.
    faults = set(PASSING) - ({"shifted", "whole", "long"} if name == "_dataset.json" else set())
    with store(dataset("shards")) as there:
        for fault in sorted(faults):
            monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / fault))
            there.proxy.inject(fault, is_of(name))
            far = ImageDataset(there.url, storage_options=there.options)
            assert far.classes == ["class0", "class1", "class2"]
        assert {one.fault for one in there.proxy.exchanges} >= faults


def test_each_fault_in_a_download(store: Callable[[Path], Any], tmp_path: Path) -> None:
    source = tmp_path / "there"
    source.mkdir()
    data = os.urandom(3_000_000)
    (source / "file.tar").write_bytes(data)
    with store(source) as there:
        url, crc = f"{there.url}/file.tar", f"{crc32c(data):08x}"
        for fault in PASSING:
            there.proxy.inject(fault, is_of("file.tar"))
            download(url, tmp_path / "back", len(data), crc, there.options)
            assert (tmp_path / "back").read_bytes() == data
        there.proxy.inject("corrupt", is_of("file.tar"))
        download(url, tmp_path / "back", len(data), crc, there.options)
        assert (tmp_path / "back").read_bytes() == data
        path = remote_path(url, there.options)
        for number, fault in enumerate(PASSING):
            there.proxy.inject(fault, is_of("file.tar"))
            path.forget()
            assert path.read(100_000 * number + 1, 90_000) == data[100_000 * number + 1 :][:90_000]


def test_a_file_is_not_missing_because_its_server_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with web_store(tmp_path) as there:
        for fault in ("503", "reset"):
            there.proxy.inject(fault, times=2)
            assert file_info(f"{there.url}/file", there.options).size == 10
        there.proxy.inject("403", times=2)
        with pytest.raises(RemoteError, match=r"403(.|\n)*credentials"):
            file_info(f"{there.url}/file", there.options)
        with pytest.raises(FileNotFoundError):
            file_info(f"{there.url}/other", there.options)


def test_ranges_of_compressed_files_are_errors() -> None:
    with web_store(dataset("shards")) as there:
        far = ImageDataset(there.url, storage_options=there.options)
        there.proxy.more_headers = lambda one: [("Content-Encoding", "gzip")] * bool(one.range)
        there.proxy.inject("corrupt", is_of(".tar"), times=99)
        with pytest.raises(RemoteError, match=r"shard-\d+\.tar.*encoded \(gzip\)"):
            far.read([5])


def test_compressed_answers_are_refused_at_once(store: Callable[[Path], Any]) -> None:
    with store(dataset("shards")) as there:
        far = ImageDataset(there.url, storage_options=there.options)
        there.proxy.inject("gzip", is_of(".tar"), times=99)
        with pytest.raises(RemoteError, match=r"shard-\d+\.tar.*encoded \(gzip\)"):
            far.read([5])
        # A client that does not say why it failed, and fsspec's.
        assert sum(one.fault == "gzip" for one in there.proxy.exchanges) == 2
        there.proxy.clear()
        assert far.read([5])
        there.proxy.inject("gzip", is_of("_dataset.json"))
        with pytest.raises(RemoteError, match=r"_dataset.json.*encoded \(gzip\)"):
            ImageDataset(there.url, storage_options=there.options)
        assert sum(one.fault == "gzip" for one in there.proxy.exchanges) == 1


@pytest.mark.parametrize("on_error", ["raise", slow("skip"), slow("zero")])
def test_a_server_that_stalls_ends_a_pass(on_error: str) -> None:
    options = RemoteOptions(
        timeout=0.3, tries=1 if on_error != "raise" else 9, max_request=1, concurrency=2, patience=1
    )
    with web_store(dataset("shards")) as there:
        loader = open_loader(there, options, on_error=on_error)
        there.proxy.inject("stall", is_of(".tar"), times=999)
        with pytest.raises(OutageError, match=r"shard-\d+\.tar.*\d+ failures cost \d+ s"):
            list(loader)
        assert there.proxy.count("GET", ".tar") < SAMPLES // 2
        there.proxy.clear()
        assert same(list(open_loader(there)), expected())


class Endless(Quiet, BaseHTTPRequestHandler):
    """Answers each request with zeros without end; counts the bytes."""

    #: Says how long they are: 8 GB.
    says_length = False
    status = 200
    sent: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        self.send_response(self.status)
        if self.status == 206:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            self.send_header("Content-Range", f"bytes {first}-{last}/{1 << 33}")
        if self.says_length:
            self.send_header("Content-Length", str(1 << 33))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.sent.append(0)
        chunk = bytes(1 << 16)
        with suppress(OSError):
            while True:
                frame = chunk if self.says_length else b"10000\r\n" + chunk + b"\r\n"
                self.sent[-1] += self.wfile.write(frame)

    do_PUT = do_POST = do_GET  # noqa: N815 - http.server's names

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 33))
        self.end_headers()


@contextmanager
def endless(**attributes: Any) -> Iterator[tuple[str, list[int]]]:
    """A server whose answers do not end, and how many bytes each request got."""
    handler = type("Endlessly", (Endless,), {**attributes, "sent": []})
    with serving(handler) as url:
        yield url, handler.sent


def protocols(server: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """URLs of a server by each protocol, with what the drivers need."""
    amazon = {"key": "k3y-of-test", "secret": "s3cret-of-test", "endpoint_url": server}
    return {
        "http": (server, {}),
        "gs": ("gs://bucket/data", {"token": "anon", "endpoint_url": server}),
        "s3": ("s3://bucket/data", {**amazon, "client_kwargs": {"region_name": "us-east-1"}}),
    }


#: Bytes that the two sockets hold, and aiohttp, which reads on while a connection is closed.
_BUFFERS = 64 << 20


@pytest.mark.parametrize("protocol", ["http", "s3", slow("gs")])
def test_answers_without_end(protocol: str) -> None:
    with endless() as (server, sent):
        url, options = protocols(server)[protocol]
        ask = list_files if protocol == "s3" else read_manifest
        with pytest.raises(RemoteError, match="sends more than 64 MiB"):
            ask(url, options)
        assert len(sent) == 1 and sent[0] < (64 << 20) + _BUFFERS
    with endless(says_length=True) as (server, sent):
        url, options = protocols(server)[protocol]
        with pytest.raises(RemoteError, match=r"_dataset\.json.* sends more than 64 MiB"):
            ImageDataset(url, storage_options=options)
        assert max(sent, default=0) < _BUFFERS


@pytest.mark.parametrize(
    ("protocol", "status", "message"),
    [
        ("http", 206, "more than 1000 bytes"),
        slow("s3", 206, "more than 1000"),
        slow("gs", 503, "503"),
    ],
)
def test_ranges_without_end(protocol: str, status: int, message: str) -> None:
    with endless(status=status) as (server, sent):
        url, options = protocols(server)[protocol]
        with pytest.raises(RemoteError, match=f"failed .*{message}"):
            read_bytes(f"{url}/file", options, 5, 1005)
        assert max(sent, default=0) < _BUFFERS


def test_a_listing_that_comes_byte_by_byte(web: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(answers, "_SECONDS", 1.0)
    (tmp_path / "web" / "a.tar").write_bytes(b"no page")
    with FlakyProxy(web) as proxy:
        proxy.inject("drip")  # which would take half a day
        assert list_files(f"{proxy.url}/")["a.tar"].size == 7
        assert proxy.count("GET") >= 2


@pytest.mark.parametrize("fault", ["503", "reset", "truncate", "403"])
def test_no_folder_is_left_out_of_a_listing(web: str, tmp_path: Path, fault: str) -> None:
    for name in ("a/1.jpg", "a/b/2.jpg", "a/b/c/3.jpg"):
        path = tmp_path / "web" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    with FlakyProxy(web) as proxy:
        proxy.inject(fault, lambda one: one.path == "/a/b/")
        if fault == "403":
            with pytest.raises(RemoteError, match=r"/a: listing it.*403"):
                list_files(f"{proxy.url}/a")
        assert list(list_files(f"{proxy.url}/a")) == ["1.jpg", "b/2.jpg", "b/c/3.jpg"]


@pytest.mark.parametrize("kind", ["download", "listing", "pattern"])
def test_ctrl_c_ends_requests_that_stall(web: str, tmp_path: Path, kind: str) -> None:
    for number in range(3):
        (tmp_path / "web" / f"{number}.tar").write_bytes(b"12345")
    with FlakyProxy(web) as proxy:
        calls: dict[str, Callable[[], Any]] = {
            "download": lambda: download(f"{proxy.url}/0.tar", tmp_path / "0", 20 << 20, "0" * 8),
            "listing": lambda: list_files(f"{proxy.url}/"),
            "pattern": lambda: archive_files(f"{proxy.url}/{{0..2}}.tar", ".tar"),
        }
        proxy.inject("stall", times=99)
        timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            calls[kind]()
        # What had waited for its time limit would be asked for again.
        asked = Counter((one.method, one.path, one.range) for one in proxy.exchanges)
        assert asked and max(asked.values()) == 1
        assert not AWAITED and not (tmp_path / "0").exists()

"""Sources that change or break while they are read, redirects, servers that ask for patience."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flaky_proxy import PASSING, Exchange, FlakyProxy
from loader_data import CROPS, dataset
from object_stores import Bucket, send_tree, web_store
from sources import (
    contents_but_source,
    convert,
    encoded,
    make_archives,
    make_kaggle,
    make_tree,
    picture,
    require_said,
    tar_bytes,
)
from tiers import slow
from web_server import Quiet, WebServer, serving

from fastdata import ImageDataset
from fastdata.errors import OutageError, RemoteError
from fastdata.remote.answers import ChangedError
from fastdata.remote.drivers import open_filesystem
from fastdata.remote.failures import StatusError
from fastdata.remote.files import remote_path
from fastdata.remote.filesystem import file_info, read_bytes, upload
from fastdata.remote.retries import Patience, Retries

pytest.importorskip("aiohttp")

#: Images of a shard or a table; noise, so that several requests read them.
COUNT = 12


def images(first: int) -> list[bytes]:
    return [encoded(picture(first + number, (300, 200)), "BMP") for number in range(COUNT)]


def write_source(folder: Path, kind: str, first: int = 0) -> Path:
    """Writes a source of a kind; two of the same kind differ in pixels alone."""
    folder.mkdir(exist_ok=True)
    if kind == "parquet":
        table = pa.table({"image": images(first), "label": [n % 3 for n in range(COUNT)]})
        pq.write_table(table, folder / "a.parquet", compression="none", row_group_size=4)
        return folder / "a.parquet"
    members = [
        member
        for number, data in enumerate(images(first))
        for member in ((f"{number}.bmp", data), (f"{number}.cls", b"%d" % (number % 3)))
    ]
    (folder / "a.tar").write_bytes(tar_bytes(members))
    return folder / "a.tar"


@pytest.fixture(params=["ETag", slow("Last-Modified"), slow("gcs"), slow("s3")])
def place(request: pytest.FixtureRequest) -> Callable[[Path], Any]:
    """Puts a folder behind one of the protocols; its files have a state."""
    if request.param in ("ETag", "Last-Modified"):
        return lambda folder: _web_place(folder, request.param)
    bucket: Bucket = request.getfixturevalue(request.param)
    return lambda folder: _bucket_place(bucket, folder)


@contextmanager
def _web_place(folder: Path, state: str) -> Iterator[Place]:
    def replace(served: Path, other: Path) -> None:
        os.replace(other, served)

    with WebServer(folder, state=state) as server, FlakyProxy(server.url) as proxy:
        yield Place(Bucket(proxy.url, {}, proxy.url), proxy, replace)


@contextmanager
def _bucket_place(bucket: Bucket, folder: Path) -> Iterator[Place]:
    def replace(served: Path, other: Path) -> None:
        upload(other, f"{bucket.url}/{served.name}", storage_options=bucket.storage_options)

    def generation(one: Exchange) -> list[tuple[str, str]]:
        """As Google's answers have it, which the emulator's lack."""
        if not (bucket.url.startswith("gs") and one.range):
            return []
        (name,) = (path.name for path in folder.iterdir() if path.name in one.path)
        fs, path = open_filesystem(f"{bucket.url}/{name}", bucket.storage_options)
        return [("X-Goog-Generation", fs.info(path)["generation"])]

    for path in folder.iterdir():
        replace(path, path)
    with bucket.through_proxy() as (behind, proxy):
        proxy.more_headers = generation
        yield Place(behind, proxy, replace)


class Place(NamedTuple):
    """A folder behind a proxy."""

    bucket: Bucket
    proxy: FlakyProxy
    replace: Callable[[Path, Path], None]


def test_no_bytes_of_two_states_of_a_file(place: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    served, other = tmp_path / "in" / "file.bin", tmp_path / "other.bin"
    served.write_bytes(bytes(1_000_000))
    other.write_bytes(b"\1" * 1_000_000)
    with place(tmp_path / "in") as there:
        given = f"{there.bucket.url}/file.bin", there.bucket.storage_options
        with remote_path(*given).open() as file:
            assert file.read(1000) == bytes(1000)
            there.replace(served, other)
            asked = len(there.proxy.exchanges)
            with pytest.raises(ChangedError, match=r"file\.bin: it has changed since it was lis"):
                file.read(900_000)
        assert len(there.proxy.exchanges) == asked + 1  # that is final
        with remote_path(*given).open() as file:
            assert file.read() == b"\1" * 1_000_000


@pytest.mark.parametrize(("kind", "request_number"), [("parquet", 8), ("webdataset", 2)])
def test_a_source_that_changes_while_it_is_packed(
    kind: str, request_number: int, place: Callable[[Path], Any], tmp_path: Path
) -> None:
    served = write_source(tmp_path / "in", kind)
    other = write_source(tmp_path / "other", kind, first=100)
    assert served.stat().st_size == other.stat().st_size
    with place(tmp_path / "in") as there:
        seen: list[str] = []

        def exchange(one: Exchange) -> bool:
            if one.range and served.name in one.path:
                seen.append(one.range)
                if len(seen) == request_number:
                    there.replace(served, other)
            return False

        there.proxy.inject("503", exchange)
        given = ("--root", f"{there.bucket.url}/{served.name}", "--out", tmp_path / "out")
        result = convert(kind, *given, "--to", "shards", *there.bucket.arguments)
    assert len(seen) >= request_number
    require_said(result, 1, served.name, "changed since it was listed")
    assert not (tmp_path / "out" / "_dataset.json").exists()


class Redirecting(Quiet, BaseHTTPRequestHandler):
    status = 302
    target = ""
    seen: ClassVar[list[Message]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers)
        self.send_response(self.status)
        self.send_header("Location", self.target + self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815 - http.server's name


@contextmanager
def redirecting(**attributes: Any) -> Iterator[tuple[str, list[Message]]]:
    handler: Any = type("Redirects", (Redirecting,), {**attributes, "seen": []})
    with serving(handler) as url:
        yield url, handler.seen


@pytest.mark.parametrize("status", [302, slow(308)])
def test_redirects_to_another_host(status: int, tmp_path: Path) -> None:
    near = ImageDataset(dataset("shards"), CROPS)
    with (
        WebServer(dataset("shards")) as target,
        redirecting(status=status, target=target.url) as (url, seen),
    ):
        options = {"headers": {"Authorization": "Bearer s3cret-of-test"}}
        far = ImageDataset(url, CROPS, storage_options=options)
        assert far.read(range(8)) == near.read(range(8))
        assert all(one["Authorization"] == "Bearer s3cret-of-test" for one in seen)
        assert target.requests and all(one.token is None for one in target.requests)
    elsewhere = f"file://{dataset('shards')}"
    with (
        redirecting(status=status, target=elsewhere) as (url, _),
        pytest.raises(RemoteError, match=re.escape(url)),
    ):
        ImageDataset(url)


def test_redirects_in_a_circle(tmp_path: Path) -> None:
    with redirecting() as (url, seen):
        with pytest.raises(RemoteError, match=r"_dataset\.json: reading it: TooManyRedirects"):
            ImageDataset(url)
        assert len(seen) < 25
        with pytest.raises(RemoteError, match="TooManyRedirects"):
            file_info(f"{url}/a.tar")


def test_servers_that_ask_for_a_later_try(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with web_store(tmp_path) as there:

        def read(patience: float) -> float:
            there.proxy.inject("503")
            begun = time.monotonic()
            assert read_bytes(f"{there.url}/file", {}, 2, 5, patience=Patience(patience)) == b"234"
            return time.monotonic() - begun

        there.proxy.retry_after = "2"
        assert read(300) >= 2
        there.proxy.retry_after = formatdate(time.time() + 4, usegmt=True)
        assert read(300) >= 2  # dates have no fractions
        for asked in ("999999999", formatdate(time.time() + 9e8), "-7", "soon", "1e9", ""):
            there.proxy.retry_after = asked
            asked_wait = Retries("x", patience=Patience(0.5)).wait_after(
                StatusError(503, {"Retry-After": asked}, "")
            )
            assert asked_wait <= 0.5
        there.proxy.retry_after = "999999999"
        there.proxy.inject("429", times=99)
        with pytest.raises(OutageError, match=r"file: reading bytes 2.* \d+ failures cost \d+ s"):
            read_bytes(f"{there.url}/file", {}, 2, 5, patience=Patience(1))


#: Faults of answers that are no range of a file.
_OF_LISTINGS = ["503", "429", "reset", "truncate", "chunked", "stall", "garbled", "open", "short"]


def break_in_turn(proxy: FlakyProxy, without: set[str]) -> None:
    """Breaks every other answer, each in another way, until all ways were tried."""
    kinds = {"range": PASSING, "listing": _OF_LISTINGS}
    left = {name: [one for one in kinds[name] if one not in without] for name in kinds}
    chosen: dict[int, str | None] = {}

    def choose(one: Exchange) -> str | None:
        if id(one) not in chosen:
            kinds = left["range" if one.range else "listing"]
            breaks = one.method == "GET" and kinds and len(chosen) % 2 == 0
            chosen[id(one)] = kinds.pop(0) if breaks else None
        return chosen[id(one)]

    for kind in PASSING:
        proxy.inject(kind, lambda one, kind=kind: choose(one) == kind, times=99)


def write_any_source(kind: str, folder: Path) -> tuple[Path, list[str]]:
    """Writes a source that ``convert`` reads; what it is named by, and more arguments."""
    if kind in ("parquet", "webdataset"):
        write_source(folder, kind)
        return folder, []
    if kind.startswith("imagenet"):
        wnids = [f"n0000000{number}" for number in range(3)]
        names = [f"train/{wnid}/{wnid}_{number}.JPEG" for wnid in wnids for number in range(4)]
        names += [f"val/{wnid}/ILSVRC2012_val_0000000{n}.JPEG" for n, wnid in enumerate(wnids, 1)]
        tree = make_tree(folder.with_name("tree"), names)
        if "archives" in kind:
            make_archives(tree, folder)
        else:
            shutil.copytree(make_kaggle(tree, folder.with_name("links")), folder)
        return folder, ["--split", "val" if "val" in kind else "train"]
    make_tree(folder, [f"class{number % 3}/{number}.jpg" for number in range(COUNT)])
    return folder, []


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        ("web", "imagefolder"),
        ("gcs", "parquet"),
        slow("web", "parquet"),
        slow("s3", "webdataset"),
        slow("gcs", "imagenet archives"),
        slow("gcs", "imagenet archives val"),
        slow("gcs", "imagenet kaggle val"),
        slow("gcs", "imagefolder"),
        slow("s3", "imagefolder"),
    ],
)
def test_each_fault_in_each_source(
    protocol: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bucket = request.getfixturevalue(protocol)
    source, given = write_any_source(kind, tmp_path / "in")
    kind = kind.split()[0]
    if protocol == "web":
        shutil.copytree(source, tmp_path / "web" / "in")
        bucket = Bucket(bucket, {}, bucket)
    else:
        send_tree(bucket, source, "in")
    times = "requests_timeout=2" if protocol == "gcs" else 'config_kwargs={"read_timeout": 2}'
    with bucket.through_proxy() as (behind, proxy):
        # A web server's time-out is a minute, and no argument of the command line. Nothing shows
        # that half a page is no whole one, where its server says so.
        break_in_turn(proxy, {"stall", "short", "open"} if protocol == "web" else set())
        url = f"{proxy.url if protocol == 'web' else bucket.url}/in"
        options = [] if protocol == "web" else [*behind.arguments, "--storage-option", times]
        there = ["--root", url, *options]
        require_said(convert(kind, *there, *given, "--to", "shards", "--out", tmp_path / "far"), 0)
        assert sum(one.fault is not None for one in proxy.exchanges) >= 3
    here = ["--root", source, *given, "--to", "shards", "--out", tmp_path / "near"]
    require_said(convert(kind, *here), 0)
    assert contents_but_source(tmp_path / "far") == contents_but_source(tmp_path / "near")

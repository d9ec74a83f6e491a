"""Datasets on web servers: those that know no ranges, and URLs with a query."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastdata.converters import PackedDataset, ParquetImages, WebDataset, pack
from fastdata.converters.indexing import index
from flaky_proxy import FlakyProxy
from hangs import HANG
from loader_data import CROPS, SAMPLES, dataset, same, tree
from sources import require_said, run
from web_server import WebServer

from fastdata import DataLoader, ImageDataset
from fastdata.errors import DatasetError, RemoteError, UsageError
from fastdata.remote import RemoteOptions
from fastdata.remote.filesystem import download, list_files, read_bytes
from fastdata.remote.urls import redact_text
from fastdata.storage.manifest import with_root

pytest.importorskip("aiohttp")

SMALL = RemoteOptions(concurrency=4, piece_bytes=16 << 10)
NO_RANGES = r"shard-\d+\.tar: the server ignores .*whole file\n.*Range header"


@pytest.mark.parametrize("threads", [0, 1])
def test_a_pass_that_waits_is_closed_by_another_thread(threads: int) -> None:
    """The thread that waits ends, and does not ask why samples have no bytes."""
    packed = dataset("shards")
    with WebServer(packed.parent) as server, FlakyProxy(server.url) as proxy:
        for _ in range(4):
            far = ImageDataset(f"{proxy.url}/{packed.name}", CROPS, remote=SMALL)
            loader = DataLoader(far, 4, num_workers=threads, order="random")
            next(iter(loader))
            before, proxy.delay = len(proxy.exchanges), HANG
            batches: Any = iter(loader)
            thread = threading.Thread(target=list, args=(batches,), daemon=True)
            thread.start()
            while len(proxy.exchanges) == before:
                time.sleep(0.01)
            batches.close()
            thread.join(HANG)
            assert not thread.is_alive()
            assert not any("_dataset.json" in one.path for one in proxy.exchanges[before:])
            proxy.delay = 0


TOKEN = "token=s3cr3t-value&v=1"


@pytest.mark.parametrize("container", ["shards", "folder"])
def test_a_url_with_a_query(
    tmp_path: Path, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "site" / "packed"
    shutil.copytree(dataset(container), packed)
    manifest = packed / "_dataset.json"
    if json.loads(manifest.read_text())["root"] is not None:
        shutil.copytree(tree(), tmp_path / "site" / "tree")
        manifest.write_bytes(with_root(manifest.read_bytes(), "../tree"))
    near = ImageDataset(packed, CROPS)
    with WebServer(tmp_path / "site", query=TOKEN) as server:
        url = f"{server.url}/{packed.name}?{TOKEN}"
        for cache in (None, tmp_path / "pieces"):
            far = ImageDataset(url, CROPS, cache=cache, remote=SMALL)
            one, other = (DataLoader(of, 8, seed=3, num_workers=1) for of in (far, near))
            assert same(list(one), list(other))
            assert far.read([5]) == near.read([5])
            assert "s3cr3t" not in repr(far) + str(far.path)
        fast = run("verify", "--fast", url)
        require_said(fast, 0)
        require_said(run("verify", "--workers", 1, url), 0)
        staged = run("stage", url, "--to", tmp_path / "fast")
        require_said(staged, 0)
        copy = ImageDataset(staged.stdout.partition(": ")[0])
        assert copy.read([5]) == near.read([5])
        monkeypatch.setenv("FASTDATA_STAGE_ROOT", str(tmp_path / "fast"))
        assert Path(ImageDataset(url).location).is_relative_to(tmp_path / "fast")
        again = run("stage", url, "--unstage", "--to", tmp_path / "fast")
        require_said(again, 0)
        left = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert left and not any(b"s3cr3t" in data for data in left)
        for result in (fast, staged, again):
            assert "s3cr3t" not in result.output


def test_a_footer_of_parquet_is_read_once(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.parquet", 40
    images = [bytes(200_000)] * rows
    table = pa.table({"label": ["a", "b"] * (rows // 2), "n": range(rows), "image": images})
    pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=10)
    with WebServer(tmp_path) as server:
        source = ParquetImages(f"{server.url}/a.parquet", image_column="image")
        assert len(list(source.records())) == rows and source.classes == ["a", "b"]
        ends = [int(one.range.rpartition("-")[2]) for one in server.requests if one.range]
    assert sum(end >= path.stat().st_size - 1 for end in ends) == 1


def test_tars_behind_a_url_are_read_once_before_packing(tmp_path: Path) -> None:
    path, caption = tmp_path / "a.tar", "x" * 9
    with tarfile.open(path, "w") as tar:
        for at in range(40):
            for name, data in ((f"{at}.jpg", bytes(50_000)), (f"{at}.txt", caption.encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    with WebServer(tmp_path) as server:
        source = WebDataset(f"{server.url}/a.tar")
        for _ in range(2):
            found = [record.fields for shard in source.shards() for record in shard.records()]
            assert found == [(caption,)] * 40
        sent = sum(one.sent for one in server.requests)
    assert sent < 1.5 * path.stat().st_size


def test_an_index_here_of_files_elsewhere_is_packed(tmp_path: Path) -> None:
    near = ImageDataset(dataset("shards"))
    with WebServer(dataset("shards")) as server:
        urls = "::".join(f"{server.url}/{tar.name}" for tar in sorted(near.location.glob("*.tar")))
        index(urls, tmp_path / "index", workers=1)
        source = PackedDataset(tmp_path / "index")
        pack(source, tmp_path / "packed", container="lmdb", workers=1)
    assert ImageDataset(tmp_path / "packed").read(range(SAMPLES)) == near.read(range(SAMPLES))


def test_the_query_is_in_no_error(tmp_path: Path) -> None:
    with WebServer(dataset("shards"), query="token=other") as server:
        with pytest.raises(RemoteError, match="403") as refused:
            ImageDataset(f"{server.url}/?{TOKEN}")
        with pytest.raises(UsageError, match=r"cannot list .*query\n.*headers=") as listed:
            list_files(f"{server.url}/?{TOKEN}")
    with WebServer(tmp_path, query=TOKEN) as server:
        with pytest.raises(DatasetError, match="no dataset here") as missing:
            ImageDataset(f"{server.url}/?{TOKEN}")
        (tmp_path / "_dataset.json").write_text("{}")
        with pytest.raises(DatasetError, match=r"/_dataset\.json\?\*\*\*") as damaged:
            ImageDataset(f"{server.url}/?{TOKEN}")
    for found in (refused, listed, missing, damaged):
        assert "s3cr3t" not in str(found.value)
    assert "s3cr3t" not in redact_text(f"GET /ds/file?{TOKEN} failed: s3cr3t-value")


@pytest.mark.parametrize("kind", ["ranges", "cache"])
def test_a_server_that_knows_no_ranges_is_named_at_once(tmp_path: Path, kind: str) -> None:
    cache = None if kind == "ranges" else tmp_path / "pieces"
    with WebServer(dataset("shards"), ranges=False) as server:
        far = ImageDataset(server.url, CROPS, cache=cache, remote=SMALL)  # small files come whole
        server.requests.clear()
        with pytest.raises(RemoteError, match=NO_RANGES) as caught:
            far.read([SAMPLES // 2])
        assert "failed" not in str(caught.value)
        assert len(server.requests) == 2  # of a client that does not say why it failed, and fsspec
        with pytest.raises(RemoteError, match=NO_RANGES):
            next(iter(DataLoader(far, 8, num_workers=1)))


def test_a_whole_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(40_000_000))
    (tmp_path / "small").write_bytes(os.urandom(4_000_000))
    with WebServer(tmp_path, ranges=False) as server:
        url = f"{server.url}/large"
        with pytest.raises(RemoteError, match="sends the whole file"):
            read_bytes(url, None, 0, 1000)
        with pytest.raises(RemoteError, match="sends the whole file"):
            download(url, tmp_path / "back", 40_000_000, "0" * 8)
        # A range that is all of it.
        assert len(read_bytes(f"{server.url}/small", None, 0, 4_000_000)) == 4_000_000
    assert not (tmp_path / "back").exists()
    assert all(one.sent < 20_000_000 for one in server.requests)


def test_other_drivers_answers_are_measured(tmp_path: Path) -> None:
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.registry import register_implementation

    class Whole(LocalFileSystem):
        protocol = "wholefiles"

        def cat_file(
            self, path: str, start: object = None, end: object = None, **_: object
        ) -> bytes:
            return Path(path).read_bytes()

    register_implementation("wholefiles", Whole, clobber=True)
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_bytes(f"wholefiles://{tmp_path}/file", None, 0, 10) == b"0123456789"
    with pytest.raises(RemoteError, match="sends the whole file"):
        read_bytes(f"wholefiles://{tmp_path}/file", None, 2, 4)

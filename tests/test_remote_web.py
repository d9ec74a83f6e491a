"""Datasets on web servers: those that know no ranges, and URLs with a query."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from loader_data import CROPS, SAMPLES, dataset, same
from web_server import WebServer

from fastdata import DataLoader, ImageDataset, RemoteError
from fastdata.remote import RemoteOptions
from fastdata.remote.filesystem import download, read_bytes

pytest.importorskip("aiohttp")

SMALL = RemoteOptions(concurrency=4, piece_bytes=16 << 10, progress=False)
NO_RANGES = r"shard-\d+\.tar: a range of its bytes .*whole file\n.*Range header"


def test_a_dataset_on_a_web_server(tmp_path: Path) -> None:
    near = ImageDataset(dataset("shards"), CROPS, staged=False)
    with WebServer(dataset("shards")) as server:
        for cache in ("ranges", tmp_path / "pieces"):
            far = ImageDataset(server.url, CROPS, cache=cache, remote=SMALL)
            one, other = (DataLoader(of, 8, seed=3, num_workers=1) for of in (far, near))
            assert same(list(one), list(other))


@pytest.mark.parametrize("kind", ["ranges", "cache"])
def test_a_server_that_knows_no_ranges_is_named_at_once(tmp_path: Path, kind: str) -> None:
    cache = "ranges" if kind == "ranges" else tmp_path / "pieces"
    with WebServer(dataset("shards"), ranges=False) as server:
        far = ImageDataset(server.url, CROPS, cache=cache, remote=SMALL)  # small files come whole
        server.requests.clear()
        with pytest.raises(RemoteError, match=NO_RANGES) as caught:
            far.read([SAMPLES // 2])
        assert "failed" not in str(caught.value)
        assert len(server.requests) == 1
        with pytest.raises(RemoteError, match=NO_RANGES):
            next(iter(DataLoader(far, 8, num_workers=1)))


def test_a_whole_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(40_000_000))
    with WebServer(tmp_path, ranges=False) as server:
        url = f"{server.url}/large"
        with pytest.raises(RemoteError, match="sends the whole file"):
            read_bytes(url, None, 0, 1000)
        with pytest.raises(RemoteError, match="sends the whole file"):
            download(url, tmp_path / "back", size=40_000_000)
        assert len(read_bytes(url, None, 0, 40_000_000)) == 40_000_000  # a range that is all of it
    assert not (tmp_path / "back").exists()
    assert all(one.sent < 20_000_000 for one in server.requests if "-39999999" not in one.range)


def test_other_drivers_answers_are_measured(tmp_path: Path) -> None:
    """Where a driver tells nothing but bytes."""
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

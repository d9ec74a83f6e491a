"""Large JPEGs behind a URL, of which only the rows that a crop needs are fetched, and checked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from containers import pack_tree
from jpegs import encode, picture
from loader_data import WITH_INDEX, folder, same
from web_server import WebServer

from fastdata import DataLoader, ImageDataset
from fastdata.errors import CorruptionError
from fastdata.remote import RemoteOptions
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, Views

pytest.importorskip("aiohttp")

CROPS = Compose([RandomResizedCrop(48), RandomHorizontalFlip()])
#: Of these the last is small, and one is of another kind: they are fetched whole.
LARGE, SAMPLES = 4, 6


@cache
def dataset() -> Path:
    path = folder()
    sizes = [(1200, 900), (900, 1200), (1280, 853), (1200, 900), (1200, 900), (60, 50)]
    for number, (width, height) in enumerate(sizes):
        noise = np.random.default_rng(number).integers(-25, 25, (height, width, 1))
        pixels = picture(width, height, number).astype(int) + noise
        pixels = np.clip(pixels, 0, 255).astype(np.uint8)
        more: dict[str, Any] = {"progressive": True} if number == LARGE else {}
        blob = encode(pixels, "4:2:0" if number % 2 else "4:4:4", 90, **more)
        assert len(blob) >= 256 << 10 or number >= LARGE
        file = path / "tree" / "a" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(blob)
    pack_tree(path / "tree", path / "packed", "shards")
    return path / "packed"


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer(dataset()) as server:
        yield server


def remote(url: str, transform: Any = CROPS, cache: Any = None, **more: Any) -> ImageDataset:
    options = RemoteOptions(tries=2)
    return ImageDataset(url, transform, cache=cache, remote=options, **more)


def local(transform: Any = CROPS) -> ImageDataset:
    return ImageDataset(dataset(), transform)


def loader(of: Any, **options: Any) -> DataLoader[Any]:
    options = {"batch_size": 2, "order": "random", "seed": 3, "num_workers": 1} | options
    return DataLoader(of, **WITH_INDEX, **options)


def lengths() -> list[int]:
    return [local().row(i).length for i in range(SAMPLES)]


def test_bytes_and_requests(server: WebServer) -> None:
    """Over epochs, four fifths of the large ones' bytes at most, in two requests each at most."""
    numbers, epochs = range(LARGE), 6
    far, near = (
        loader(torch.utils.data.Subset(of, numbers)) for of in (remote(server.url), local())
    )
    asked = needed = requests = 0
    server.requests.clear()
    for epoch in range(epochs):
        for one in (far, near):
            one.set_epoch(epoch)
        assert same(list(far), list(near))
        stats = far.stats()
        assert stats.remote is not None and stats.kinds == {"jpeg": {"native": LARGE}}
        asked += stats.remote.bytes_requested
        needed += stats.remote.bytes_needed
        requests += stats.remote.requests
    tars = [request for request in server.requests if request.path.endswith(".tar")]
    assert asked == sum(request.sent for request in tars)
    assert 0.5 < needed / epochs / sum(lengths()[:LARGE]) < 0.8
    assert asked < 1.02 * needed
    assert requests == len(tars) <= 2 * LARGE * epochs


VIEWS = Views(
    RandomResizedCrop(32, scale=(0.05, 0.2)), (RandomResizedCrop(16, scale=(0.05, 0.1)), 2)
)


def test_equal_to_the_local_dataset(server: WebServer, tmp_path: Path) -> None:
    """Views, kinds that are fetched whole, samples that come again with another crop; a cache."""
    numbers = [0, 5, 0, 4, 0, 1, 0, 3, 2, 0, 1]
    options: dict[str, Any] = {"order": None, "sampler": numbers, "batch_size": 3}
    expected = list(loader(local(VIEWS), **options))
    for kept in (None, tmp_path / "cache"):
        far = loader(remote(server.url, VIEWS, kept), **options)
        assert same(list(far), expected)
        stats = far.stats().remote
        assert stats is not None
        whole = sum(lengths()[number] for number in numbers)
        assert (stats.bytes_needed < 0.9 * whole) == (kept is None)


def damage(tmp_path: Path, number: int, places: slice) -> Path:
    packed = tmp_path / "packed"
    shutil.copytree(dataset(), packed)
    with (packed / "shard-000000.tar").open("r+b") as file:
        row = local().row(number)
        for at in range(row.offset, row.offset + row.length)[places]:
            file.seek(at)
            flipped = file.read(1)[0] ^ 4
            file.seek(at)
            file.write(bytes([flipped]))
    return packed


@pytest.mark.parametrize("places", [slice(300, 301), slice(5000, None, 3000)])
def test_damaged_parts_are_asked_for_again_and_named(tmp_path: Path, places: slice) -> None:
    """In the header, and in the rows of MCUs."""
    with WebServer(damage(tmp_path, 1, places)) as server:
        far = remote(server.url)
        with pytest.raises(
            CorruptionError, match=r"sample 1 .*have changed.*fetching again did not help"
        ):
            list(loader(far, order="sequential"))
        skipping = loader(far, order="sequential", on_error="skip")
        with pytest.warns(UserWarning, match="1 sample could not be decoded"):
            found = [indices for _, _, indices in skipping]
        assert 1 not in torch.cat(found)
        stats = skipping.stats().remote
        assert stats is not None and stats.refetched == 1


def test_what_no_crop_needs_may_be_damaged(tmp_path: Path) -> None:
    """Nothing of it is fetched."""
    top = Compose([RandomResizedCrop(48, scale=(0.05, 0.1))])
    near = list(loader(local(top), order="sequential"))
    with WebServer(damage(tmp_path, 1, slice(-3, None))) as server:
        assert same(list(loader(remote(server.url, top), order="sequential")), near)
        with pytest.raises(CorruptionError, match="have changed"):
            remote(server.url).read([1])

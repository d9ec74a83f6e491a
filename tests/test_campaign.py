"""Damage to every file of every container, through every path: told, or without consequence.

A short form; ``make campaign`` runs it at length. What a loader delivers from a damaged dataset
must be what the sound one gives, or there must be an error of fastdata's, or a warning. Anything
else fails: another exception, a crash, a hang.
"""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from containers import load_manifest, pack_tree
from jpegs import encode, picture

from fastdata import DataLoader, ImageDataset
from fastdata.errors import FastdataError
from fastdata.transforms import CenterCrop

CONTAINERS = ["lmdb", "parquet", "shards", "folder"]
#: Bits flipped in each container, one at a time, each read through one of the paths.
FLIPS = int(os.environ.get("FASTDATA_CAMPAIGN_FLIPS", "240")) // len(CONTAINERS)
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))


class Dataset:
    """A packed dataset whose files a test may damage, and the trees that its images lie in."""

    def __init__(self, folder: Path, container: str) -> None:
        self.path = folder / container
        manifest = load_manifest(self.path)
        self.manifest = self.path / "_dataset.json"
        self.index = self.path / manifest["index"]["name"]
        self.blobs = [self.path / entry["name"] for entry in manifest["files"]]
        self.blobs = self.blobs or sorted(Path(manifest["root"]).rglob("*.jpg"))

    def draw(self, draw: random.Random) -> Path:
        """A file: of each kind as often."""
        return draw.choice([self.manifest, self.index, draw.choice(self.blobs)])


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    folder = tmp_path_factory.mktemp("campaign")
    for number in range(12):
        image = folder / "tree" / f"class {number % 3}" / f"{number}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        sampling = ["4:2:0", "4:4:4", "grey"][number % 3]
        image.write_bytes(encode(picture(300 + 7 * number, 280 - 5 * number, number), sampling))
    for container in CONTAINERS:
        if container == "folder":  # its images are damaged: they are its own
            shutil.copytree(folder / "tree", folder / "loose")
            pack_tree(folder / "loose", folder / container, container)
        else:
            pack_tree(folder / "tree", folder / container, container, unit_size=100_000)
    return {container: Dataset(folder, container) for container in CONTAINERS}


def by_loader(path: Path) -> Callable[[], Any]:
    dataset = ImageDataset(path, CenterCrop(96))
    loader = DataLoader(dataset, 5, fields=("image", "label", "key"))

    def read() -> list[Any]:
        found = [dataset.classes]
        for batch in loader:
            found += [batch["image"].numpy(), batch["label"].tolist(), batch["key"]]
        return found

    return read


def by_torch(path: Path) -> Callable[[], Any]:
    dataset = ImageDataset(path, CenterCrop(96))
    loader = torch.utils.data.DataLoader(dataset, 5)

    def read() -> list[Any]:
        batches = ((images.numpy(), labels.tolist()) for images, labels in loader)
        return [dataset.classes, *(part for batch in batches for part in batch)]

    return read


def by_items(path: Path) -> Callable[[], Any]:
    dataset = ImageDataset(path)

    def read() -> list[Any]:
        found = [dataset.classes, dataset.labels.tolist()]
        for number in range(len(dataset)):
            image, label = dataset[number]
            found += [np.asarray(image), label, dataset.row(number).key]
        return found

    return read


PATHS = [by_loader, by_torch, by_items]


def same(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(
        np.array_equal(one, other) if isinstance(other, np.ndarray) else one == other
        for one, other in zip(found, expected, strict=True)
    )


@contextmanager
def damaged(path: Path, change: Callable[[Any], None]) -> Iterator[None]:
    """Changes a file in place, so that who has it open reads the damage; mends it in the end.

    Its time is as before: checksums are to be what finds the damage.
    """
    data, before = path.read_bytes(), path.stat()
    try:
        with path.open("r+b") as file:
            change(file)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        yield
    finally:
        with path.open("r+b") as file:
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def outcome(read: Callable[[], list[Any]], expected: list[Any]) -> str:
    """How reading ends; whatever is no error of fastdata's is raised."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = read()
        except FastdataError as error:
            assert error.what and error.hint
            return "error"
    if same(found, expected):
        return "same"
    return "warning" if told else "silent"


@pytest.mark.parametrize("container", CONTAINERS)
def test_flipped_bits(datasets: dict[str, Dataset], container: str) -> None:
    dataset = datasets[container]
    expected = {path: path(dataset.path)() for path in PATHS}
    draw = random.Random(f"{SEED} {container}")
    found: dict[str, list[Any]] = {"same": [], "warning": [], "error": [], "silent": []}
    for _ in range(FLIPS):
        file, path = dataset.draw(draw), draw.choice(PATHS)
        at, bit = draw.randrange(file.stat().st_size), draw.randrange(8)

        def flip(opened: Any, at: int = at, bit: int = bit) -> None:
            opened.seek(at)
            byte = opened.read(1)[0]
            opened.seek(at)
            opened.write(bytes([byte ^ 1 << bit]))

        with damaged(file, flip):
            how = outcome(lambda path=path: path(dataset.path)(), expected[path])
        found[how].append((path.__name__, file.name, at, bit))
    print({how: len(places) for how, places in found.items()})
    assert found["silent"] == []
    assert len(found["error"]) > FLIPS // 3


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
@pytest.mark.parametrize("container", CONTAINERS)
def test_files_that_change_while_they_are_open(
    datasets: dict[str, Dataset], container: str, path: Callable[[Path], Callable[[], Any]]
) -> None:
    """Cut off, or overwritten, where they lie: an error that names the file, and no signal."""
    dataset = datasets[container]
    read = path(dataset.path)
    expected = read()
    for file in (dataset.index, dataset.blobs[0], dataset.blobs[-1]):
        size = file.stat().st_size
        noise = random.Random(size).randbytes(size)
        for change in (
            lambda opened: opened.truncate(0),
            lambda opened, size=size: opened.truncate(size // 2),
            lambda opened, size=size: opened.write(bytes(size)),
            lambda opened, noise=noise: opened.write(noise),
        ):
            with damaged(file, change), pytest.raises(FastdataError, match=file.name):
                read()
    assert same(read(), expected)

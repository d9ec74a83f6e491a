"""Damage to any file, through every path: sound results, or an error or warning of fastdata's."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import archives
import numpy as np
import pyarrow as pa
import pytest
import torch
from containers import load_manifest, pack_tree
from fastdata.converters import TableImages, index
from jpegs import encode, picture
from PIL import Image
from torch.utils.data import Subset

from fastdata import DataLoader, ImageDataset, Ragged, verify
from fastdata.errors import FastdataError
from fastdata.transforms import CenterCrop, Compose, SanitizeBoundingBoxes

pytestmark = pytest.mark.slow

#: Containers that packing writes, and archives of others in place.
PACKED = ["lmdb", "parquet", "shards", "folder"]
IN_PLACE = [f"{kind} in place" for kind in archives.KINDS]
CONTAINERS = [*PACKED, *IN_PLACE]
#: Bits flipped in each container, one at a time, each read through one of the paths.
FLIPS = int(os.environ.get("FASTDATA_CAMPAIGN_FLIPS", "540")) // len(CONTAINERS)
#: Files that are changed while they are read, likewise.
CHANGES = int(os.environ.get("FASTDATA_CAMPAIGN_CHANGES", "270")) // len(CONTAINERS)
#: File systems that are unmounted while they are read.
UNMOUNTS = int(os.environ.get("FASTDATA_CAMPAIGN_UNMOUNTS", "6"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))


class Dataset:
    """A dataset whose files a test may damage, and the trees or archives of its images."""

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest = load_manifest(path)
        self.manifest = path / "_dataset.json"
        self.index = path / manifest["index"]["name"]
        names = [entry["name"] for entry in manifest["files"]]
        root = Path(manifest.get("root") or path)
        self.fields = [path / name for name in names if name.startswith("_")]
        self.blobs = [root / name for name in names if not name.startswith("_")]
        self.blobs = self.blobs or sorted(root.rglob("*.*"))
        self.has = [entry["name"] for entry in manifest["fields"]]
        self.as_stored = {"boxes": ""} if "boxes" in self.has else None
        self.mask = next((name for name in ("mask", "png") if name in self.has), None)
        self.paths = [*PATHS, by_targets] if "boxes" in self.has else PATHS

    def having(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in (*self.has, "key"))

    def draw(self, draw: random.Random) -> Path:
        """A file: of each kind as often."""
        kinds = [self.blobs, self.fields, [self.manifest], [self.index]]
        return draw.choice(draw.choice([kind for kind in kinds if kind]))


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    folder = tmp_path_factory.mktemp("campaign")
    for number in range(12):
        image = folder / "tree" / f"class {number % 3}" / f"{number}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        sampling = ["4:2:0", "4:4:4", "grey"][number % 3]
        size = 300 + 7 * number, 280 - 5 * number
        image.write_bytes(encode(picture(*size, number), sampling))
        classes = Image.effect_noise((9, 9), number).resize(size, 0)
        (folder / "tree" / "class 1").mkdir(parents=True, exist_ok=True)
        classes.save(folder / "tree" / CLASSES.format(number))
        if number % 4:
            Image.effect_noise((40, 30), number).save(image.with_suffix(".png"))
        if number % 3:
            image.with_suffix(".bin").write_bytes(bytes([number]) * 300 * number)
    shutil.copytree(folder / "tree", folder / "loose")  # `folder` has its files there
    for container in PACKED:
        root = folder / ("loose" if container == "folder" else "tree")
        blobs: dict[str, Any] = {"files": ["mask", "note"], "masks": ["classes"]}
        source = TableImages(table_of(root), root, formats=FORMATS, **blobs)
        pack_tree(source, folder / container, container, unit_size=100_000)
    images = sorted((folder / "tree").rglob("*.jpg"))
    masks = [image.with_suffix(".png") for image in images]
    samples = [
        archives.Made(
            image.read_bytes(), n % 3, f"{n} ü", mask.read_bytes() if mask.exists() else None
        )
        for n, (image, mask) in enumerate(zip(images, masks, strict=True))
    ]
    for kind, name in zip(archives.KINDS, IN_PLACE, strict=True):
        written = archives.write(kind, folder / "archives" / kind, samples)
        index(written, folder / name, workers=1)
    return {container: Dataset(folder / container) for container in CONTAINERS}


def table_of(root: Path) -> pa.Table:
    rows = []
    for path in sorted(root.rglob("*.jpg")):
        number = int(path.stem)
        row = {"path": str(path.relative_to(root)), "label": path.parent.name}
        row |= {"text": f"caption {number} ü" if number % 5 else None, "score": number / 7}
        row |= {"vector": [number + 0.5] * 96, "boxes": [[number, 2, 90, 80]] * (number % 3)}
        row["polygons"] = [[[number, 2.5, 90, 3, 50, 80]]] * (number % 3)
        row["classes"] = CLASSES.format(number)
        for name, suffix in (("mask", ".png"), ("note", ".bin")):
            other = path.with_suffix(suffix)
            row[name] = str(other.relative_to(root)) if other.exists() else None
        rows.append(row)
    types = {"vector": pa.list_(pa.float32(), 96), "boxes": pa.list_(pa.list_(pa.int16(), 4))}
    types["polygons"] = pa.list_(pa.list_(pa.list_(pa.float64())))
    table = pa.Table.from_pylist(rows)
    fields = [pa.field(one.name, types.get(one.name, one.type)) for one in table.schema]
    return pa.Table.from_pylist(rows, pa.schema(fields))


COLUMNS = ("text", "score", "vector", "boxes", "txt")
FIELDS = ("image", "label", "mask", "png", "note", *COLUMNS)
FORMATS = {"boxes": "xywh", "polygons": "polygons"}
#: Place of a semantic mask in a tree.
CLASSES = "class 1/{}.classes.png"


def plain(value: Any) -> Any:
    if isinstance(value, Ragged):
        return [one.tolist() for one in value.list()]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, Image.Image):
        return np.asarray(value)
    return np.asarray(value) if isinstance(value, torch.Tensor) else value


def by_loader(of: Dataset) -> Callable[[], Any]:
    fields = of.having("image", "label", "note", *COLUMNS, "key")
    dataset = ImageDataset(of.path, CenterCrop(96), fields=fields, formats=of.as_stored)
    loaders = [DataLoader(dataset, 5)]
    if of.mask is not None:
        # A sample without a mask is no sample of a loader that asks for masks.
        found = ImageDataset(of.path, fields=[of.mask])
        masked = [row for row, sample in enumerate(found) if sample[of.mask]]
        names = ("image", of.mask)
        both = ImageDataset(of.path, {name: CenterCrop(32) for name in names}, fields=names)
        loaders.append(DataLoader(Subset(both, masked), 5))

    def read() -> list[Any]:
        found: list[Any] = [dataset.classes]
        for loader in loaders:
            for batch in loader:
                found += map(plain, batch.values())
        return found

    return read


def by_items(of: Dataset) -> Callable[[], Any]:
    dataset = ImageDataset(of.path, fields=of.having(*FIELDS))

    def read() -> list[Any]:
        found = [dataset.classes, dataset.labels.tolist() if "label" in of.has else []]
        for number in range(len(dataset)):
            found += [*map(plain, dataset[number].values()), dataset.row(number).key]
        return found

    return read


def by_targets(of: Dataset) -> Callable[[], Any]:
    fields = ("image", "label", "boxes", "masks", "classes")
    transforms = Compose([CenterCrop(96), SanitizeBoundingBoxes(labels_getter=None)])
    dataset = ImageDataset(of.path, transforms=transforms, fields=fields)
    loader = DataLoader(dataset, 5, num_workers=2, require_native=True)

    def read() -> list[Any]:
        found: list[Any] = [dataset.classes]
        for images, targets in loader:
            found += [plain(images), *map(plain, targets.values())]
        return found

    return read


PATHS = [by_loader, by_items]


def same(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(
        np.array_equal(one, other)
        if isinstance(other, np.ndarray)
        else type(one) is type(other) and one == other
        for one, other in zip(found, expected, strict=True)
    )


@contextmanager
def damaged(path: Path, change: Callable[[Any], None]) -> Iterator[None]:
    """Changes a file in place for a while; its time stays, so that checksums find the damage."""
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


def damage_is_found(path: Path) -> bool:
    try:
        return bool(verify(path, workers=1).problems)
    except FastdataError:
        return True


@pytest.mark.parametrize("container", CONTAINERS)
def test_flipped_bits(datasets: dict[str, Dataset], container: str) -> None:
    dataset = datasets[container]
    expected = {path: path(dataset)() for path in dataset.paths}
    draw = random.Random(f"{SEED} {container}")
    found: dict[str, list[Any]] = {"same": [], "warning": [], "error": [], "silent": []}
    for _ in range(FLIPS):
        file, path = dataset.draw(draw), draw.choice(dataset.paths)
        at, bit = draw.randrange(file.stat().st_size), draw.randrange(8)

        def flip(opened: Any, at: int = at, bit: int = bit) -> None:
            opened.seek(at)
            byte = opened.read(1)[0]
            opened.seek(at)
            opened.write(bytes([byte ^ 1 << bit]))

        with damaged(file, flip):
            how = outcome(lambda path=path: path(dataset)(), expected[path])
            assert how != "error" or damage_is_found(dataset.path), (file, at, bit)
        found[how].append((path.__name__, file.name, at, bit))
    print({how: len(places) for how, places in found.items()})
    assert found["silent"] == []
    assert len(found["error"]) > FLIPS // 3


def change(file: Path, draw: random.Random) -> str:
    size = file.stat().st_size
    at = draw.randrange(size)
    noise = draw.randbytes(draw.randint(1, size - at))
    how = draw.choice(["cut", "cleared", "overwritten", "extended", "exchanged", "unlinked"])
    if how == "unlinked":
        file.unlink()
    elif how == "exchanged":
        other = file.with_name("other")
        other.write_bytes(draw.choice([noise, bytes(size), file.read_bytes()[:at] + noise]))
        other.rename(file)
    else:
        with file.open("r+b") as opened:
            if how == "cut":
                opened.truncate(at)
            else:
                opened.seek(size if how == "extended" else at)
                opened.write(bytes(len(noise)) if how == "cleared" else noise)
    return how


def at_a_moment(draw: random.Random, within: float, function: Callable[[], Any]) -> threading.Timer:
    timer = threading.Timer(draw.uniform(0, within), function)
    timer.start()
    return timer


@pytest.mark.parametrize("container", CONTAINERS)
def test_files_that_change_while_they_are_read(
    datasets: dict[str, Dataset], container: str
) -> None:
    """At any moment: what was there, or an error; never a signal."""
    dataset = datasets[container]
    expected = {path: path(dataset)() for path in dataset.paths}
    draw = random.Random(f"{SEED} {container}")
    began = time.perf_counter()
    by_loader(dataset)()
    usual = time.perf_counter() - began
    found: dict[str, list[Any]] = {"same": [], "warning": [], "error": [], "silent": []}
    for _ in range(CHANGES):
        file, path = dataset.draw(draw), draw.choice(dataset.paths)
        data, before = file.read_bytes(), file.stat()
        how: list[str] = []
        read = path(dataset)
        timer = at_a_moment(draw, 1.2 * usual, lambda file=file: how.append(change(file, draw)))
        found[outcome(read, expected[path])].append((path.__name__, file.name, how))
        timer.join()
        assert how, "the change failed"
        file.with_name("whole").write_bytes(data)
        file.with_name("whole").rename(file)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    print({how: len(places) for how, places in found.items()})
    assert found["silent"] == []
    assert all(same(path(dataset)(), expected[path]) for path in dataset.paths)


def test_file_systems_that_are_unmounted_while_they_are_read(
    datasets: dict[str, Dataset], tmp_path: Path
) -> None:
    draw = random.Random(f"{SEED} unmounted")
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root and the right to mount")
    counts = {"same": 0, "error": 0}
    for number in range(UNMOUNTS):
        if number:
            subprocess.run(mount, check=True)
        unmount = ["umount", "-l", str(tmp_path)]
        timer = None
        try:
            dataset = datasets[draw.choice(["lmdb", "parquet", "shards"])]
            path = draw.choice(dataset.paths)
            shutil.copytree(dataset.path, tmp_path / "dataset")
            read = path(Dataset(tmp_path / "dataset"))
            expected = path(dataset)()
            timer = at_a_moment(draw, 0.03, lambda: subprocess.run(unmount, check=True))
            counts[outcome(read, expected)] += 1
        finally:
            if timer is None:
                subprocess.run(unmount, check=True)
            else:
                timer.join()
    print(counts)
    assert sum(counts.values()) == UNMOUNTS

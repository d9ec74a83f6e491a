"""ImageDataset: what a training loop and torch's own DataLoader need of it."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import Original, broken_jpeg, originals, pack_tree, png
from PIL import Image

from fastdata import ImageDataset
from fastdata.errors import CorruptionError, DatasetError, SampleError, UsageError
from fastdata.transforms import CenterCrop

CONTAINERS = ["lmdb", "parquet", "shards", "folder"]


@pytest.fixture(scope="module")
def tree(made_tree: Path) -> Path:
    return made_tree / "val"


@pytest.fixture(scope="module")
def images(tree: Path) -> list[Original]:
    return originals(tree)


@pytest.fixture(scope="module")
def packed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    for container in CONTAINERS:
        pack_tree(tree, folder / container, container)
    return folder


@pytest.fixture(params=CONTAINERS)
def path(request: pytest.FixtureRequest, packed: Path) -> Path:
    return packed / str(request.param)


def pixels(image: Image.Image) -> np.ndarray[Any, Any]:
    return np.array(image.resize((8, 8)))


def as_text(label: int) -> str:
    return f"class {label}"


def test_images_are_rgb_and_labels_whole_numbers(path: Path, images: list[Original]) -> None:
    dataset = ImageDataset(path)
    modes = set()
    for i, original in enumerate(images):
        image, label = dataset[i]
        assert isinstance(image, Image.Image)
        assert type(label) is int
        with Image.open(original.path) as source:
            modes.add(source.mode)
            assert (image.mode, image.size) == ("RGB", source.size)
    assert modes > {"RGB", "L"}  # not all of the sources were


def test_negative_indices_and_the_end(path: Path) -> None:
    dataset = ImageDataset(path)
    assert dataset[-1][0].tobytes() == dataset[49][0].tobytes()
    assert dataset.row(-50) == dataset.row(0)
    for index in (50, -51):
        with pytest.raises(IndexError, match=f"sample {index} of a dataset of 50"):
            dataset[index]
        with pytest.raises(IndexError):
            dataset.row(index)
        with pytest.raises(IndexError):
            dataset.read([0, index])
    assert dataset.read([]) == []


def test_what_is_no_sample_number(path: Path) -> None:
    plain, decoding = ImageDataset(path), ImageDataset(path, CenterCrop(4))
    for ask in (plain.__getitem__, plain.row, lambda one: decoding.__getitems__([one])):
        for wrong in (1.5, "1", slice(2)):
            with pytest.raises(UsageError, match="a sample's number is a whole one"):
                ask(wrong)
    with pytest.raises(UsageError, match=r"several samples' numbers\nFor one sample, give \[0\]"):
        plain.read(0)


def test_classes_and_labels(path: Path, images: list[Original]) -> None:
    dataset = ImageDataset(path)
    assert dataset.labels.dtype == np.int32
    assert dataset.labels.tolist() == [image.label for image in images]
    assert list(dataset.class_to_idx) == dataset.classes
    assert list(dataset.class_to_idx.values()) == [0, 1, 2, 3]
    for label, name in enumerate(dataset.classes):
        assert dataset.class_to_idx[name] == label
    dataset.labels[:] = -1  # a copy: nothing of the dataset's is changed
    assert dataset.labels.tolist() == [image.label for image in images]


def test_pickle(path: Path) -> None:
    dataset = ImageDataset(path, pixels, as_text)
    data = pickle.dumps(dataset)
    assert len(data) < 5_000
    again = pickle.loads(data)
    assert repr(again) == repr(dataset)
    assert np.array_equal(again[3][0], dataset[3][0])
    assert again[3][1] == dataset[3][1]


def test_a_folder_of_more_files_than_are_kept_open(tmp_path: Path) -> None:
    (tmp_path / "tree" / "class").mkdir(parents=True)
    blobs = [png(colour=(number, number // 256, 1)) for number in range(260)]
    for number, blob in enumerate(blobs):
        (tmp_path / "tree" / "class" / f"{number:04d}.png").write_bytes(blob)
    pack_tree(tmp_path / "tree", tmp_path / "index", "folder")
    dataset = ImageDataset(tmp_path / "index")
    assert dataset.read(range(260)) == blobs
    asked = [i * 37 % 260 for i in range(2_000)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: dataset.read([i])[0], asked))
    assert found == [blobs[i] for i in asked]


def damage(dataset: Path, number: int) -> str:
    opened = ImageDataset(dataset)
    row = opened.row(number)
    file = dataset / opened.manifest.files[row.file].name
    data = bytearray(file.read_bytes())
    data[row.offset + row.length // 2] ^= 1
    file.write_bytes(data)
    return row.key


def test_a_changed_blob_is_an_error_that_names_it(packed: Path, tmp_path: Path) -> None:
    path = shutil.copytree(packed / "shards", tmp_path / "copy")
    key = damage(path, 13)
    dataset = ImageDataset(path)
    with pytest.raises(CorruptionError, match="have changed since it was packed") as caught:
        dataset[13]
    for wanted in (str(path), "sample 13", key, "fastdata verify"):
        assert wanted in str(caught.value)
    with pytest.raises(CorruptionError):
        dataset.read([12, 13])
    dataset[12]
    dataset[14]


def test_a_blob_that_cannot_be_decoded_is_an_error_that_names_it(
    tree: Path, tmp_path: Path
) -> None:
    shutil.copytree(tree, tmp_path / "tree")
    image = originals(tmp_path / "tree")[13]
    image.path.write_bytes(broken_jpeg())
    pack_tree(tmp_path / "tree", tmp_path / "out", "lmdb")
    dataset = ImageDataset(tmp_path / "out")
    with pytest.raises(SampleError, match="cannot be decoded") as caught:
        dataset[13]
    for wanted in (str(tmp_path / "out"), "sample 13", image.key, "fastdata verify"):
        assert wanted in str(caught.value)
    assert dataset.read([13]) == [image.path.read_bytes()]


@pytest.mark.parametrize("container", ["lmdb", "parquet", "shards"])
def test_files_cut_short_or_missing(packed: Path, tmp_path: Path, container: str) -> None:
    path = shutil.copytree(packed / container, tmp_path / "copy")
    file = path / ImageDataset(path).manifest.files[0].name
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(CorruptionError, match="cut short"):
        ImageDataset(path)[0]
    file.unlink()
    with pytest.raises(DatasetError, match="no such file") as caught:
        ImageDataset(path)[0]
    assert str(file) in str(caught.value)


def test_what_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such folder"):
        ImageDataset(tmp_path / "missing")
    with pytest.raises(DatasetError, match="no dataset here"):
        ImageDataset(tmp_path)

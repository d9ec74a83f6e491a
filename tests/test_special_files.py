"""FIFOs and devices where a file should be: an error at once, where opening would wait for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from containers import pack_tree
from sources import convert, make_tree, require_said, run
from torchvision_stub import import_torchvision

from fastdata import DataLoader, ImageDataset, verify
from fastdata.errors import DatasetError, SampleError
from fastdata.transforms import RandomResizedCrop

NOT_A_FILE = "not a regular file"


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "in", ["a/1.jpg", "a/2.jpg", "b/1.jpg"])


@pytest.mark.parametrize("replace", [fifo, endless])
def test_a_manifest(tree: Path, tmp_path: Path, replace: Callable[[Path], None]) -> None:
    pack_tree(tree, tmp_path / "out", "shards")
    replace(tmp_path / "out" / "_dataset.json")
    with pytest.raises(DatasetError, match=f"_dataset.json: cannot be read: {NOT_A_FILE}"):
        ImageDataset(tmp_path / "out")
    for command in ("info", "verify", "stage"):
        require_said(run(command, tmp_path / "out"), 1, "_dataset.json", NOT_A_FILE)


@pytest.mark.parametrize("container", ["lmdb", "parquet", "shards"])
def test_a_container_file(tree: Path, tmp_path: Path, container: str) -> None:
    pack_tree(tree, tmp_path / "out", container)
    dataset = ImageDataset(tmp_path / "out")
    name = dataset.manifest.files[0].name
    fifo(tmp_path / "out" / name)
    with pytest.raises(DatasetError, match=f"{name}: cannot be read: {NOT_A_FILE}"):
        dataset[0]
    problem = verify(dataset.path, workers=1).problems[0]
    assert problem.what.startswith(NOT_A_FILE)


def test_an_image_of_an_indexed_folder(tree: Path, tmp_path: Path) -> None:
    pack_tree(tree, tmp_path / "out", "folder")
    fifo(tree / "a" / "2.jpg")
    dataset = ImageDataset(tmp_path / "out", RandomResizedCrop(8))
    with pytest.raises(DatasetError, match=f"2.jpg: cannot be read: {NOT_A_FILE}"):
        dataset[1]
    with pytest.raises(DatasetError, match=NOT_A_FILE):
        list(DataLoader(dataset, 3))
    assert [Path(problem.where).name for problem in verify(dataset.path, workers=1).problems] == [
        "2.jpg"
    ]


def test_an_image_of_torchvisions_folder(tree: Path) -> None:
    torchvision = import_torchvision()
    fifo(tree / "a" / "2.jpg")
    dataset = ImageDataset(torchvision.datasets.ImageFolder(tree))
    with pytest.raises(SampleError, match=f"2.jpg: sample 1: .*{NOT_A_FILE}"):
        dataset[1]


def test_an_image_that_is_to_be_packed(tree: Path, tmp_path: Path) -> None:
    fifo(tree / "a" / "2.jpg")
    arguments = ("imagefolder", "--root", tree, "--out", tmp_path / "out")
    require_said(convert(*arguments), 1, "2.jpg", NOT_A_FILE)
    require_said(convert(*arguments, "--skip-bad"), 0)
    assert ImageDataset(tmp_path / "out").labels.tolist() == [0, 1]


@pytest.mark.parametrize("source", ["webdataset", "parquet"])
def test_an_archive_that_is_to_be_packed(tmp_path: Path, source: str) -> None:
    name = "train.tar" if source == "webdataset" else "train.parquet"
    fifo(tmp_path / name)
    result = convert(source, "--root", tmp_path, "--out", tmp_path / "out")
    require_said(result, 1, name, NOT_A_FILE)

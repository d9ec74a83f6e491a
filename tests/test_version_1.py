"""Datasets of version 1 of the format: read as they are, and lifted to the present version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from containers import digests, index_rows, load_manifest, pack_tree
from fastdata.converters import ImageFolder, pack
from version1 import make_version_1

from fastdata import DataLoader, ImageDataset, stage, verify
from fastdata.cli import cli
from fastdata.maintenance.seek_points import add_seek_points
from fastdata.transforms import RandomResizedCrop

CONTAINERS = ["lmdb", "parquet", "shards", "folder"]


@pytest.fixture(scope="module")
def packed(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of the present version in each container, by name; not to be changed."""
    folder = tmp_path_factory.mktemp("packed")
    for container in CONTAINERS:
        pack_tree(made_tree / "val", folder / container, container)
    return folder


@pytest.fixture
def version_1(packed: Path, tmp_path: Path) -> Callable[..., Path]:
    """A container's dataset as version 1 had it."""

    def make(container: str, **options: Any) -> Path:
        copy = shutil.copytree(packed / container, tmp_path / container)
        return make_version_1(copy, **options)

    return make


def batches(folder: Path) -> list[Any]:
    dataset = ImageDataset(folder, RandomResizedCrop(16))
    loader = DataLoader(dataset, 8, shuffle=True, seed=1, fields=("image", "label", "key"))
    return list(loader)


def require_same(folder: Path, other: Path) -> None:
    """The same samples, by the loader and by single rows."""
    for batch, expected in zip(batches(folder), batches(other), strict=True):
        assert np.array_equal(batch["image"], expected["image"])
        assert batch["label"].tolist() == expected["label"].tolist()
        assert batch["key"] == expected["key"]
    one, two = ImageDataset(folder), ImageDataset(other)
    assert one.classes == two.classes
    assert [one.row(i) for i in range(len(one))] == [two.row(i) for i in range(len(two))]
    assert one.read(range(len(one))) == two.read(range(len(two)))


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("container", CONTAINERS)
def test_they_are_read(
    packed: Path, version_1: Callable[..., Path], container: str, checksum: bool
) -> None:
    folder = version_1(container, checksum=checksum)
    assert {"index.arrow", "dataset.json"} <= {path.name for path in folder.iterdir()}
    assert ImageDataset(folder).manifest.format_version == 1
    require_same(folder, packed / container)
    assert verify(folder, workers=1).problems == []
    about = [
        json.loads(CliRunner().invoke(cli, ["info", "--json", str(path)]).output)
        for path in (folder, packed / container)
    ]
    for one in about:
        assert one.pop("format_version") and one.pop("path") and one.pop("file_bytes")
    assert about[0] == about[1]


@pytest.mark.parametrize("container", ["shards", "folder"])
def test_they_are_staged(
    packed: Path,
    version_1: Callable[..., Path],
    container: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    folder = version_1(container)
    (folder / "bad-samples.jsonl").write_text("{}\n")
    copy = stage(folder, tmp_path / "place").path
    assert load_manifest(copy)["format_version"] == 1
    assert (copy / "bad-samples.jsonl").read_text() == "{}\n"
    assert ImageDataset(folder).location == copy
    require_same(folder, packed / container)


@pytest.mark.parametrize("container", CONTAINERS)
def test_they_are_lifted(packed: Path, version_1: Callable[..., Path], container: str) -> None:
    folder = version_1(container)
    (folder / "bad-samples.jsonl").write_text("{}\n")
    before = digests(folder)
    done = CliRunner().invoke(cli, ["index", str(folder), "--workers", "1"])
    assert done.exit_code == 0, done.output
    after = digests(folder)
    blobs = {entry["name"] for entry in load_manifest(folder)["files"]}
    assert after.keys() - {".huggingface.yaml"} == blobs | {
        "_index-1.rows",
        "_dataset.json",
        "_bad-samples.jsonl",
    }
    assert {name: after[name] for name in blobs} == {name: before[name] for name in blobs}
    assert load_manifest(folder)["format_version"] == 2
    assert index_rows(folder) == index_rows(packed / container)
    require_same(folder, packed / container)
    assert verify(folder, workers=1).problems == []


def test_lifting_that_was_killed_before_the_old_names_went(
    version_1: Callable[..., Path], packed: Path, tmp_path: Path
) -> None:
    folder = version_1("shards")
    old = shutil.copytree(folder, tmp_path / "old")
    add_seek_points(folder, workers=1)
    for name in ("dataset.json", "index.arrow"):
        shutil.copy(old / name, folder / name)
    require_same(folder, packed / "shards")
    assert ImageDataset(folder).manifest.format_version == 2


def test_packing_takes_them_for_what_they_are(
    version_1: Callable[..., Path], made_tree: Path, packed: Path
) -> None:
    """The same source and options: nothing to do; --force replaces them, by their names."""
    folder = version_1("parquet")
    before = digests(folder)
    pack_tree(made_tree / "val", folder, "parquet")
    assert digests(folder) == before
    pack_tree(made_tree / "val", folder, "parquet", force=True)
    assert digests(folder) == digests(packed / "parquet")
    pack(ImageFolder(made_tree / "val"), make_version_1(folder), workers=1, force=True)
    names = {path.name for path in folder.iterdir()}
    assert names == {"data.mdb", "_index.rows", "_dataset.json"}

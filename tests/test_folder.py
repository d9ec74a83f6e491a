"""The folder container: an index over a tree that stays where it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from containers import ContainerConformance, Made, digests, index_rows, originals, pack_tree
from fastdata.converters import ImageNet, WebDataset

from fastdata import ImageDataset, verify
from fastdata.errors import DatasetError, UsageError


class TestFolder(ContainerConformance):
    container = "folder"

    def test_nothing_is_copied(self, made: Made) -> None:
        assert set(digests(made.path)) == {"_dataset.json", "_index.rows"}
        rows = index_rows(made.path)
        assert [made.tree / row["path"] for row in rows] == [i.path for i in made.images]
        assert {(row["file"], row["offset"]) for row in rows} == {(-1, 0)}


def test_the_tree_is_left_as_it_was(made_tree: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made_tree.rglob("*")}
    pack_tree(ImageNet(made_tree, "train"), tmp_path / "index", "folder")
    assert {path: path.stat().st_mtime_ns for path in made_tree.rglob("*")} == before


def test_a_tree_that_moved_says_how_to_mend_it(made_tree: Path, tmp_path: Path) -> None:
    shutil.copytree(made_tree / "val", tmp_path / "tree")
    pack_tree(tmp_path / "tree", tmp_path / "index", "folder")
    (tmp_path / "tree").rename(tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match="index them there") as caught:
        ImageDataset(tmp_path / "index")[0]
    assert str(tmp_path / "tree") in str(caught.value)
    assert len(verify(tmp_path / "index", fast=True).problems) == len(
        originals(tmp_path / "elsewhere")
    )


def test_options_that_a_folder_cannot_have(made_tree: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--shard-size has no effect"):
        pack_tree(made_tree / "val", tmp_path / "out", "folder", shard_size=1)
    pack_tree(made_tree / "val", tmp_path / "shards", "shards")
    with pytest.raises(UsageError, match="--to folder cannot"):
        pack_tree(WebDataset(tmp_path / "shards"), tmp_path / "out", "folder")
    assert not (tmp_path / "out").exists()

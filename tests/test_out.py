"""Values of ``--out``, files that ``--force`` removes and when, and outputs of unforeseen size."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from containers import pack_tree
from fastdata.converters import Encoding, ImageFolder, WebDataset, pack
from fastdata.converters.options import PackOptions
from fastdata.converters.table import TableImages
from PIL import Image
from sources import contents
from tiers import first_of

from fastdata import ImageDataset, verify
from fastdata.errors import SourceError, UsageError
from fastdata.executors import Processes

FILES = ["parquet", "shards"]
CONTAINERS = ["lmdb", *FILES]


@pytest.fixture
def tree(made_tree: Path, tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for folder in sorted((made_tree / "train").iterdir())[:2]:
        (root / folder.name).mkdir(parents=True)
        for image in sorted(folder.iterdir())[:4]:
            shutil.copy(image, root / folder.name)
    return root


@pytest.mark.parametrize("container", first_of([*CONTAINERS, "folder"]))
def test_force_removes_nothing_before_listing(container: str, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(ImageFolder(tree), out, container=container, workers=1)
    before = contents(out)
    image = next(tree.rglob("*.JPEG"))
    others = image.with_suffix(".png"), image.with_name(f"{image.name}.png")
    for other in others:  # the second has the key of the image, as the first has its stem
        shutil.copy(image, other)
    with pytest.raises(SourceError, match="two images have the key"):
        pack(ImageFolder(tree), out, container=container, workers=1, force=True)
    assert contents(out) == before
    for other in others:
        other.unlink()
    pack(ImageFolder(tree), out, container=container, workers=1, force=True)
    assert contents(out) == before


@pytest.mark.parametrize("inside", ["", "out", "n01440000/out", ".."])
def test_out_must_not_touch_what_is_read(inside: str, tree: Path) -> None:
    before = contents(tree)
    with pytest.raises(UsageError, match="lies inside the source") as raised:
        pack(ImageFolder(tree), tree / inside, workers=1, force=True)
    assert "--out" in raised.value.hint
    assert contents(tree) == before


def test_shards_are_not_packed_over_themselves(tree: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    pack(ImageFolder(tree), shards, container="shards", workers=1)
    before = contents(shards)
    with pytest.raises(UsageError, match="lies inside the source"):
        pack(WebDataset(shards), shards, container="shards", workers=1, force=True)
    assert contents(shards) == before
    pack(WebDataset(shards), shards / "again", container="lmdb", workers=1)
    assert verify(shards / "again", workers=1).problems == []


@pytest.mark.parametrize("inside", ["", "n01440000", "n01440000/out", "table.csv", "top.jpg", ".."])
def test_the_files_of_a_table_are_not_packed_over(inside: str, tree: Path) -> None:
    make_table(tree)
    before = contents(tree)
    with pytest.raises(UsageError, match="lies inside the source"):
        pack(TableImages(tree / "table.csv"), tree / inside, workers=1, force=True)
    assert contents(tree) == before


def test_a_table_is_packed_beside_its_files(tree: Path) -> None:
    rows = make_table(tree)
    pack(TableImages(tree / "table.csv"), tree / "out", workers=1)
    assert len(ImageDataset(tree / "out")) == rows


def make_table(tree: Path) -> int:
    paths = [path.relative_to(tree).as_posix() for path in sorted(tree.rglob("*.JPEG"))]
    shutil.copy(tree / paths[0], tree / "top.jpg")
    (tree / "table.csv").write_text("\n".join(["path", *paths, "top.jpg"]))
    return len(paths) + 1


@pytest.mark.parametrize("container", first_of([*CONTAINERS, "folder"]))
@pytest.mark.parametrize("name", ["run:1", "file:out", "a b#c%d?e", "ü"])
def test_any_name_will_do(name: str, container: str, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / name / "x"
    packed = pack(ImageFolder(str(tree)), str(out), container=container, workers=1)
    assert packed.manifest.samples == 8
    assert verify(out, workers=1).problems == []


def test_a_path_that_is_not_utf8(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"o\\xff: this path is not UTF-8"):
        pack(ImageFolder(tree), tmp_path / "o\udcff", workers=1)


@pytest.fixture(scope="module")
def flat_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large pictures of one colour: as pixels they are 3,000 times their files' size."""
    root = tmp_path_factory.mktemp("flat") / "tree"
    (root / "a").mkdir(parents=True)
    for number in range(60):
        Image.new("RGB", (1500, 1500), (number, 0, 0)).save(root / "a" / f"{number:02d}.png")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("container", ["lmdb", "parquet"])
def test_memory_stays_bounded_where_pixels_outgrow_files(
    container: str, flat_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = 0
    run = Processes.run
    others = set(psutil.Process().children(recursive=True))  # servers of other tests

    def sample() -> None:
        nonlocal peak
        me = psutil.Process()
        total = 0
        for worker in set(me.children(recursive=True)) - others:
            try:
                total += worker.memory_full_info().uss
            except psutil.Error:
                continue
        peak = max(peak, total)

    def sampled(
        executor: Processes, function: Any, items: Any, tick: Any = lambda: None, ahead: int = 0
    ) -> Iterator[Any]:
        def both() -> None:
            sample()
            tick()

        return run(executor, function, items, both, ahead)

    monkeypatch.setattr(Processes, "run", sampled)
    out = tmp_path / "out"
    pack_tree(flat_tree, out, container, workers=2, unit_size=None, encoding=Encoding("raw"))
    assert 0 < peak < 220e6
    dataset = ImageDataset(out)
    assert [int(np.asarray(dataset[i][0])[0, 0, 0]) for i in range(60)] == list(range(60))


@pytest.mark.slow
def test_lmdb_takes_more_than_was_estimated(tmp_path: Path) -> None:
    folder = tmp_path / "tree" / "a"
    folder.mkdir(parents=True)
    for number in range(200):
        side = 3000 if number % 100 == 99 else 4
        Image.new("RGB", (side, side)).save(folder / f"{number:03d}.png")
    packed = pack(
        ImageFolder(tmp_path / "tree"),
        tmp_path / "out",
        options=PackOptions(encoding=Encoding("raw")),
        workers=1,
    )
    assert packed.manifest.blob_bytes > 2 * 27_000_000
    assert verify(tmp_path / "out", fast=True).problems == []

"""Seek points in datasets: made while packing, added later, true to the pixels."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fastdata.converters import ImageFolder, ImageNet, pack
from fastdata.converters.options import PackOptions
from PIL import Image
from tiers import slow

from fastdata import ImageDataset, verify
from fastdata.cli.commands import cli
from fastdata.decode import decode_jpeg, jpeg_info
from fastdata.errors import UsageError
from fastdata.maintenance.seek_points import add_seek_points

CONTAINERS = ["shards", *(slow(one) for one in ("lmdb", "folder"))]


@pytest.fixture(scope="module", params=CONTAINERS)
def packed(
    request: pytest.FixtureRequest, made_tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("seeking") / request.param
    pack(ImageNet(made_tree, "train"), out, container=request.param, workers=1)
    return out


def tables(dataset: ImageDataset) -> list[bytes | None]:
    return [dataset.row(i).seek_points for i in range(len(dataset))]


def test_every_jpeg_that_can_have_them_has_them_and_they_are_right(packed: Path) -> None:
    dataset, rng = ImageDataset(packed), random.Random(0)
    for number, table in enumerate(tables(dataset)):
        (data,) = dataset.read([number])
        info = jpeg_info(data)
        assert (table is not None) == (info.native and not info.progressive)
        if table is None:
            continue
        whole = np.asarray(dataset[number][0])
        height, width = whole.shape[:2]
        left, top = rng.randrange(width), rng.randrange(height)
        right, bottom = rng.randint(left + 1, width), rng.randint(top + 1, height)
        region = decode_jpeg(data, (left, top, right, bottom), seek_points=table, fallback="never")
        assert np.array_equal(region, whole[top:bottom, left:right])
    assert sum(table is not None for table in tables(dataset)) > 50
    assert verify(packed, workers=1).problems == []


def test_added_later_with_other_strides_and_removed(
    packed: Path, made_tree: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    source = ImageNet(made_tree, "train")
    pack(source, out, container=packed.name, workers=1, options=PackOptions(seek_points=False))
    assert tables(ImageDataset(out)) == [None] * 64
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    made = add_seek_points(out, workers=2)
    assert tables(ImageDataset(out)) == tables(ImageDataset(packed))
    assert made.with_seek_points == sum(table is not None for table in tables(ImageDataset(out)))
    assert ImageDataset(out).manifest.options["seek_points"] == 128
    assert verify(out, workers=1).problems == []
    sizes = [sum(len(table or b"") for table in tables(ImageDataset(out)))]
    for options in (("--stride", "64"), ("--stride", "256"), ("--remove",)):
        done = CliRunner().invoke(cli, ["seek-points", str(out), "--workers", "1", *options])
        assert done.exit_code == 0, done.output
        sizes.append(sum(len(table or b"") for table in tables(ImageDataset(out))))
    assert sizes[1] > 1.5 * sizes[0] > 2 * sizes[2] > sizes[3] == 0
    # Nothing but index and manifest was written.
    after = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    changed = {path.name for path, _ in before.items() ^ after.items()}
    assert {name.partition("-")[0] for name in changed} == {
        "_index.rows",
        "_index",
        "_dataset.json",
    }
    with pytest.raises(UsageError, match="--stride"):
        add_seek_points(out, stride=0)


def test_another_dataset_in_the_same_place(tmp_path: Path) -> None:
    """Nothing is used that this process knows of an earlier dataset in the same place."""
    image, out = tmp_path / "tree" / "a" / "0.jpg", tmp_path / "out"
    image.parent.mkdir(parents=True)
    for size in (160, 240):
        image.write_bytes(jpeg(size))
        pack(ImageFolder(tmp_path / "tree"), out, container="lmdb", workers=1, force=True)
        expected = tables(ImageDataset(out))
        add_seek_points(out, workers=1)
        assert tables(ImageDataset(out)) == expected != [None]


def jpeg(width: int = 160, **options: object) -> bytes:
    rng = np.random.default_rng(0)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (120, width, 3), np.uint8)).save(out, "JPEG", **options)
    return out.getvalue()


def test_images_that_the_core_does_not_decode_get_none(tmp_path: Path) -> None:
    folder = tmp_path / "tree" / "a"
    folder.mkdir(parents=True)
    whole = jpeg()
    middle = len(whole) // 2
    files = [whole, whole[:middle] + b"\xff\xd9", jpeg(progressive=True)]  # one ends early
    for number, data in enumerate(files):
        (folder / f"{number}.jpg").write_bytes(data)
    pack(ImageFolder(tmp_path / "tree"), tmp_path / "out", workers=1, skip_bad=True)
    dataset = ImageDataset(tmp_path / "out")
    found = {dataset.row(i).key: dataset.row(i).seek_points for i in range(len(dataset))}
    assert found["a/0"] is not None
    assert found.get("a/1") is None and found["a/2"] is None

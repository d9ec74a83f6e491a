"""Seek points in datasets: made while packing, added later, true to the pixels."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fastdata.converters import ImageFolder, ImageNet, pack
from PIL import Image

from fastdata import ImageDataset, verify
from fastdata.cli import cli
from fastdata.decode import decode_jpeg, jpeg_info
from fastdata.errors import BadSamplesError, UsageError
from fastdata.maintenance.seek_points import add_seek_points

CONTAINERS = ["lmdb", "parquet", "shards", "folder"]


@pytest.fixture(scope="module", params=CONTAINERS)
def packed(
    request: pytest.FixtureRequest, made_tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The made tree, packed with seek points."""
    out = tmp_path_factory.mktemp("seeking") / request.param
    pack(ImageNet(made_tree, "train"), out, container=request.param, workers=1)
    return out


def tables(dataset: ImageDataset) -> list[bytes | None]:
    return [dataset.row(i).seek_points for i in range(len(dataset))]


def state(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_every_jpeg_that_can_have_them_has_them(packed: Path) -> None:
    dataset = ImageDataset(packed)
    for number, table in enumerate(tables(dataset)):
        info = jpeg_info(dataset.read([number])[0])
        assert (table is not None) == (info.native and not info.progressive)
    assert sum(table is not None for table in tables(dataset)) > 50
    assert verify(packed, workers=1).problems == []


def test_regions_from_them_are_pillows(packed: Path) -> None:
    dataset = ImageDataset(packed)
    rng = random.Random(0)
    for number, table in enumerate(tables(dataset)):
        if table is None:
            continue
        data = dataset.read([number])[0]
        whole = np.asarray(dataset[number][0])
        height, width = whole.shape[:2]
        left, top = rng.randrange(width), rng.randrange(height)
        right, bottom = rng.randint(left + 1, width), rng.randint(top + 1, height)
        region = decode_jpeg(data, (left, top, right, bottom), seek_points=table, fallback="never")
        assert np.array_equal(region, whole[top:bottom, left:right])


def test_they_cost_little(imagenet_sample: Path, tmp_path: Path) -> None:
    pack(ImageNet(imagenet_sample, "train"), tmp_path / "out", container="folder", workers=2)
    dataset = ImageDataset(tmp_path / "out")
    assert all(tables(dataset))
    assert sum(map(len, filter(None, tables(dataset)))) < 0.012 * dataset.manifest.blob_bytes


def test_packed_without_and_added_later(packed: Path, made_tree: Path, tmp_path: Path) -> None:
    container = packed.name
    out = tmp_path / "out"
    source = ImageNet(made_tree, "train")
    pack(source, out, container=container, workers=1, seek_points=False)
    assert tables(ImageDataset(out)) == [None] * 64
    before = state(out)
    made = add_seek_points(out, workers=2)
    after = state(out)
    assert tables(ImageDataset(out)) == tables(ImageDataset(packed))
    assert made.with_seek_points == sum(table is not None for table in tables(ImageDataset(out)))
    # Nothing but index and manifest was written.
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed == {"_index.rows", "_index-1.rows", "_dataset.json"}
    assert "_index.rows" not in after
    assert verify(out, workers=1).problems == []
    assert ImageDataset(out).manifest.options["seek_points"] == 128


def test_another_stride_and_none(packed: Path, made_tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(ImageNet(made_tree, "train"), out, container="folder", workers=1)
    sizes = [sum(len(table or b"") for table in tables(ImageDataset(out)))]
    for stride in (64, 256, None):
        add_seek_points(out, stride=stride, workers=1)
        sizes.append(sum(len(table or b"") for table in tables(ImageDataset(out))))
    assert sizes[1] > 1.5 * sizes[0] > 2 * sizes[2] > sizes[3] == 0
    assert sorted(path.name for path in out.iterdir()) == ["_dataset.json", "_index-1.rows"]


@pytest.mark.parametrize("container", CONTAINERS)
def test_packed_anew_in_the_same_place(container: str, tmp_path: Path) -> None:
    """Nothing is used that this process knows of an earlier dataset in the same place."""
    image = tmp_path / "tree" / "a" / "0.jpg"
    image.parent.mkdir(parents=True)
    out = tmp_path / "out"
    for size in (160, 240):
        image.write_bytes(jpeg(size))
        pack(ImageFolder(tmp_path / "tree"), out, container=container, workers=1, force=True)
        expected = tables(ImageDataset(out))
        add_seek_points(out, workers=1)
        assert tables(ImageDataset(out)) == expected != [None]


@pytest.mark.parametrize(("stride", "workers"), [(0, 1), (128, 0)])
def test_arguments_out_of_range(packed: Path, stride: int, workers: int) -> None:
    with pytest.raises(UsageError) as raised:
        add_seek_points(packed, stride=stride, workers=workers)
    assert "--" in raised.value.what


def test_the_command(made_tree: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    run = CliRunner().invoke
    options = ["--root", str(made_tree), "--split", "val", "--out", out, "--no-seek-points"]
    assert run(cli, ["convert", "imagenet", *options]).exit_code == 0
    done = run(cli, ["seek-points", out])
    assert done.exit_code == 0
    assert "of 50 samples have seek points" in done.stdout
    assert "seek points removed" in run(cli, ["seek-points", out, "--remove"]).stdout


def jpeg(width: int = 160, **options: object) -> bytes:
    rng = np.random.default_rng(0)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (120, width, 3), np.uint8)).save(out, "JPEG", **options)
    return out.getvalue()


def test_damage_within_is_left_to_pillow(tmp_path: Path) -> None:
    """An image that only Pillow decodes gets no seek points; one that it rejects is bad."""
    folder = tmp_path / "tree" / "a"
    folder.mkdir(parents=True)
    whole = jpeg()
    (folder / "0.jpg").write_bytes(whole)
    middle = len(whole) // 2
    (folder / "1.jpg").write_bytes(whole[:middle] + b"\xff\xd9")  # ends early, with an end
    flipped = bytearray(whole)
    flipped[middle : middle + 8] = b"\x5a" * 8
    (folder / "2.jpg").write_bytes(flipped)
    (folder / "3.jpg").write_bytes(jpeg(progressive=True))
    try:
        pack(ImageFolder(tmp_path / "tree"), tmp_path / "out", workers=1)
    except BadSamplesError:
        pack(ImageFolder(tmp_path / "tree"), tmp_path / "out", workers=1, skip_bad=True)
    dataset = ImageDataset(tmp_path / "out")
    found = {dataset.row(i).key: dataset.row(i).seek_points for i in range(len(dataset))}
    assert found["a/0"] is not None
    assert found.get("a/1") is None
    assert found["a/3"] is None  # progressive
    # Whether flipped bits make a stream that ends where it should is chance.
    for number in range(len(dataset)):
        assert dataset[number][0].size == (160, 120)

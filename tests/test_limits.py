"""What an image may cost: max_pixels and max_scans, on every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from containers import pack_tree
from jpegs import encode, picture
from loader_data import as_file
from torchvision_stub import import_torchvision

from fastdata import DataLoader, ImageDataset
from fastdata.errors import FallbackWarning, SampleError, UsageError
from fastdata.transforms import RandomResizedCrop

SMALL = encode(picture(40, 40, 1))
LARGE = {
    "jpeg": encode(picture(90, 60, 2)),
    "progressive": as_file(picture(90, 60, 2), "JPEG", progressive=True),
    "png": as_file(picture(90, 60, 2), "PNG"),
    "tiff": as_file(picture(90, 60, 2), "TIFF"),
}
CROP = RandomResizedCrop(16)


def tree(root: Path, *files: bytes) -> Path:
    for number, data in enumerate(files):
        path = root / "tree" / "class" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root / "tree"


def opened(root: Path, kind: str, transform: Any = CROP, **limits: Any) -> ImageDataset:
    """The tree packed, or as torchvision's folder."""
    if kind == "folder":
        folder = import_torchvision().datasets.ImageFolder
        return ImageDataset(folder(str(root / "tree"), transform), **limits)
    pack_tree(root / "tree", root / "packed", "shards")
    return ImageDataset(root / "packed", transform, **limits)


def loaded(dataset: ImageDataset, **options: Any) -> list[int]:
    """The samples that a loader delivers."""
    options = {"batch_size": 2, "num_workers": 2, "fields": ("image", "index"), **options}
    return [index for batch in DataLoader(dataset, **options) for index in batch["index"].tolist()]


@pytest.mark.filterwarnings("ignore", category=FallbackWarning)
@pytest.mark.parametrize("source", ["packed", "folder"])
@pytest.mark.parametrize("kind", LARGE)
def test_max_pixels(tmp_path: Path, kind: str, source: str) -> None:
    tree(tmp_path, SMALL, LARGE[kind], SMALL)
    dataset = opened(tmp_path, source, max_pixels=90 * 60 - 1)
    what = r"sample 1\b.* has 90 x 60 pixels, more than max_pixels=5399\n.*larger max_pixels"
    with pytest.raises(SampleError, match=what):
        loaded(dataset)
    assert set(loaded(dataset, on_error="skip")) == {0, 2}
    with pytest.raises(SampleError, match=what):
        dataset.open_image(1)
    assert dataset.open_image(0).size == (40, 40)

    for enough in (90 * 60, None):
        dataset = opened(tmp_path, source, max_pixels=enough)
        assert loaded(dataset) == [0, 1, 2]
        assert dataset.open_image(1).size == (90, 60)


def test_raw_pixels_are_no_markers(tmp_path: Path) -> None:
    """Their first bytes may be those of a JPEG."""
    from fastdata.converters import Encoding

    tree(tmp_path, LARGE["png"])
    pack_tree(tmp_path / "tree", tmp_path / "raw", "shards", encoding=Encoding("raw"))
    assert ImageDataset(tmp_path / "raw", max_scans=1).open_image(0).size == (90, 60)
    with pytest.raises(SampleError, match="max_pixels=5399"):
        loaded(ImageDataset(tmp_path / "raw", CROP, max_pixels=5399))


def many_scans(count: int) -> bytes:
    """A progressive JPEG that repeats its last scan, which changes nothing that is drawn."""
    data = LARGE["progressive"]
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]


@pytest.mark.filterwarnings("ignore", category=FallbackWarning)
@pytest.mark.parametrize("source", ["packed", "folder"])
def test_max_scans(tmp_path: Path, source: str) -> None:
    tree(tmp_path, SMALL, many_scans(400), SMALL)
    dataset = opened(tmp_path, source)
    what = r"sample 1\b.* has 409 scans, more than max_scans=64\n.*larger max_scans"
    with pytest.raises(SampleError, match=what):
        loaded(dataset)
    with pytest.raises(SampleError, match=what):
        dataset.open_image(1)
    assert set(loaded(dataset, on_error="skip")) == {0, 2}
    assert loaded(opened(tmp_path, source, max_scans=None)) == [0, 1, 2]
    assert loaded(opened(tmp_path, source, max_scans=409)) == [0, 1, 2]
    with pytest.raises(SampleError, match="max_scans=408"):
        loaded(opened(tmp_path, source, max_scans=408))


@pytest.mark.filterwarnings("ignore", category=FallbackWarning)
def test_scans_of_a_thumbnail_do_not_count(tmp_path: Path) -> None:
    """What looks like one in a segment of text or EXIF is none, nor what follows the image."""
    data = LARGE["progressive"]
    comment = b"\xff\xfe" + (2 + 1000).to_bytes(2, "big") + b"\xff\xda" * 500
    tree(tmp_path, data[:2] + comment + data[2:] + b"\xff\xda" * 100)
    assert loaded(opened(tmp_path, "packed", max_scans=10)) == [0]
    with pytest.raises(SampleError, match="has 10 scans, more than max_scans=9"):
        loaded(opened(tmp_path, "packed", max_scans=9))


@pytest.mark.parametrize("name", ["max_pixels", "max_scans"])
@pytest.mark.parametrize("value", [0, -1, 1e6, "many", True])
def test_limits_that_are_none(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}={value!r}"):
        ImageDataset(tmp_path, **{name: value})

"""Small packed datasets for the loader's tests: every kind of image, in every container."""

from __future__ import annotations

import copy
import io
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from containers import pack_tree
from fastdata.converters import Encoding
from jpegs import encode, picture
from PIL import Image

from fastdata import ImageDataset
from fastdata.errors import FallbackWarning
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

CONTAINERS = ("lmdb", "parquet", "shards", "folder")

#: Samples of `dataset`.
SAMPLES = 53

_HELD: list[tempfile.TemporaryDirectory[str]] = []


def as_it_is(image: Any) -> Any:
    """Return the image in a way that fastdata cannot follow: a step that only Python can do."""
    return copy.copy(image)


def folder() -> Path:
    _HELD.append(tempfile.TemporaryDirectory())
    return Path(_HELD[-1].name)


def besides_fallback(warned: Any) -> list[Any]:
    """The recorded warnings that do not tell of Pillow's share, which every loader here has."""
    return [warning for warning in warned if warning.category is not FallbackWarning]


def as_file(pixels: Any, kind: str, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def image_file(number: int) -> tuple[str, bytes]:
    """Extension and bytes of an image: most are baseline JPEGs, every other kind occurs."""
    width, height = 60 + number * 37 % 90, 50 + number * 53 % 80
    pixels = picture(width, height, number, 25)
    match number % 13:
        case 1:
            return "jpg", encode(pixels, "grey")
        case 3:
            return "jpg", as_file(pixels, "JPEG", progressive=True)
        case 5:
            return "png", as_file(pixels, "PNG", "P" if number % 2 else "RGBA")
        case 7:
            return "jpg", as_file(pixels, "JPEG", "CMYK")
        case 9:
            return "jpg", encode(pixels[: 1 + number % 3, : 1 + number % 2])
        case 11:
            return "jpg", encode(pixels, "4:4:4", restart_marker_blocks=3)
        case _:
            return "jpg", encode(pixels, ("4:2:0", "4:2:2", "4:4:0")[number % 3])


@cache
def tree() -> Path:
    root = folder() / "tree"
    for number in range(SAMPLES):
        extension, data = image_file(number)
        path = root / f"class{number * 3 // SAMPLES}" / f"{number:03}.{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


@cache
def dataset(container: str = "lmdb", kind: str = "original", seek_points: bool = True) -> Path:
    """A packed dataset; do not change it."""
    out = folder() / container
    pack_tree(
        tree(), out, container, unit_size=100_000, encoding=Encoding(kind), seek_points=seek_points
    )
    return out


CROPS = Compose([RandomResizedCrop(24), RandomHorizontalFlip()])


def images(transform: Any = CROPS, container: str = "lmdb", **options: Any) -> ImageDataset:
    """An opened dataset, with crops to 24 x 24 unless told otherwise."""
    return ImageDataset(dataset(container, **options), transform)


def as_list(batch: dict[str, Any]) -> list[Any]:
    return list(batch.values())


#: Options for batches [images, labels, numbers], and [images, labels, numbers, names].
WITH_INDEX: dict[str, Any] = {"fields": ("image", "label", "index"), "batch_transform": as_list}
WITH_KEYS: dict[str, Any] = {**WITH_INDEX, "fields": ("image", "label", "index", "key")}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "numpy"):
        return one.dtype == other.dtype and bool((one == other).all())
    return bool(np.all(one == other))

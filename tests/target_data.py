"""Packed datasets with targets of every kind, in every container."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from containers import pack_tree
from fastdata.converters import TableImages
from jpegs import encode, picture
from loader_data import folder
from outline_data import POLYGONS, RLES, random_outline
from PIL import Image

from fastdata import ImageDataset, Ragged

ROWS = 26
FIELDS = ("image", "boxes", "labels", "keypoints", "mask", "masks", "name")
FORMATS = {"boxes": "xywh", "keypoints": "xyv", "polygons": "polygons", "rle": "rle"}
_BOXES = pa.list_(pa.list_(pa.float32(), 4))
_TYPES = {"boxes": _BOXES, "labels": pa.list_(pa.int32()), "polygons": POLYGONS, "rle": RLES}
_TYPES |= {"keypoints": pa.list_(pa.list_(pa.float32(), 15))}


def _objects(draw: np.random.Generator, count: int, width: int, height: int) -> dict[str, Any]:
    outlines = [random_outline(draw, width, height) for _ in range(count)]
    places = draw.uniform(0, 0.7, (count, 2)) * (width, height)
    boxes = np.concatenate([places, draw.uniform(1, 30, (count, 2))], 1)
    points = draw.uniform(0, 1, (count, 5, 3)) * (width, height, 1)
    points[..., 2] = draw.integers(0, 3, (count, 5))
    return {
        "boxes": boxes.tolist(),
        "labels": draw.integers(0, 90, count).tolist(),
        "keypoints": points.reshape(count, 15).tolist(),
        "polygons": [one if isinstance(one, list) else None for one in outlines],
        "rle": [None if isinstance(one, list) else one for one in outlines],
    }


def write(root: Path, rows: int = ROWS) -> pa.Table:
    """Write images and masks; return a table of them, with up to four objects each."""
    draw = np.random.default_rng(11)
    found = []
    for number in range(rows):
        width, height = (int(side) for side in draw.integers(40, 120, 2))
        image = encode(picture(width, height, number), ("4:2:0", "4:4:4")[number % 2])
        (root / f"{number}.jpg").write_bytes(image)
        classes = draw.integers(0, 20, (height // 4 + 1, width // 4 + 1), np.uint8)
        classes = classes.repeat(4, 0).repeat(4, 1)[:height, :width]
        Image.fromarray(classes).save(root / f"{number}.png")
        row = {"path": f"{number}.jpg", "mask": f"{number}.png", "name": f"sample {number}"}
        found.append(row | _objects(draw, number % 5, width, height))
    schema = pa.schema(
        [(name, _TYPES.get(name, pa.string())) for name in found[0]]  # the others are texts
    )
    return pa.Table.from_pylist(found, schema)


@cache
def _written() -> tuple[Path, pa.Table]:
    root = folder()
    return root, write(root)


def source() -> TableImages:
    root, table = _written()
    return TableImages(table, root, masks=["mask"], formats=FORMATS)


@cache
def dataset(container: str = "lmdb") -> Path:
    """A packed dataset; do not change it."""
    out = folder() / container
    pack_tree(source(), out, container, unit_size=20_000)
    return out


def training(v2: Any) -> Any:
    from torchvision import tv_tensors

    classes = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    return v2.Compose(
        [
            v2.RandomIoUCrop(),
            v2.RandomHorizontalFlip(),
            v2.Resize((48, 56)),
            v2.RandomAffine(10, (0.1, 0.1)),
            v2.ColorJitter(0.4, 0.4),
            v2.SanitizeBoundingBoxes(),
            v2.ToImage(),
            v2.ToDtype(classes, scale=True),
        ]
    )


def images(transforms: Any, container: str = "lmdb", **options: Any) -> ImageDataset:
    options = {"fields": FIELDS, **options}
    return ImageDataset(dataset(container), transforms=transforms, **options)


def plain(value: Any) -> Any:
    if isinstance(value, Ragged):
        return [plain(one) for one in value.list()]
    if isinstance(value, torch.Tensor):
        about = str(value.dtype), tuple(value.shape), getattr(value, "canvas_size", None)
        return type(value).__name__, *about, value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    return value

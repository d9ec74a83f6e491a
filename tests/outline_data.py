"""Outlines of objects as COCO has them, of every shape, and their masks by pycocotools."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from fastdata.converters.annotations import POLYGONS
from fastdata.converters.coco import RLES

from fastdata import _native
from fastdata.loading.fields.outlines import native_outlines
from fastdata.transforms.tree import native_program

#: A COCO segmentation: polygons, or run lengths.
Outline = Any
TEXTS = pa.list_(pa.struct([("size", pa.list_(pa.int64())), ("counts", pa.string())]))


def cocos_mask(outline: Outline, width: int, height: int) -> npt.NDArray[np.uint8]:
    masks = pytest.importorskip("pycocotools.mask")
    if isinstance(outline, list):
        outline = masks.merge(masks.frPyObjects(outline, height, width))
    elif not isinstance(outline["counts"], str):
        outline = masks.frPyObjects(outline, height, width)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it converts arrays as NumPy 1 did
        mask: npt.NDArray[np.uint8] = masks.decode(outline)
    return mask


def random_polygon(draw: np.random.Generator, width: int, height: int) -> list[float]:
    corners, sides = int(draw.integers(3, 20)), np.array([width, height])
    kind = draw.integers(6)
    if kind == 0:
        angles = np.sort(draw.random(corners) * 2 * np.pi)
        radius = draw.random((corners, 1)) * max(width, height) * draw.choice([0.02, 0.2, 0.7])
        points = draw.random(2) * sides + radius * np.stack([np.cos(angles), np.sin(angles)], 1)
    else:
        points = draw.random((corners, 2)) * (1 if kind == 1 else 2) * sides
        points -= 0 if kind == 1 else 0.5 * sides
        if kind > 2:
            grid = {3: 1, 4: 4, 5: 10}[int(kind)]
            points = np.round(points * grid) / grid
    if draw.random() < 0.3:
        points = np.clip(points, 0, sides)
    if draw.random() < 0.05:
        points = points * draw.choice([10, 300])
    return [float(number) for number in points.ravel()]


def random_outline(
    draw: np.random.Generator, width: int, height: int, text: bool = False
) -> Outline:
    if draw.random() < 0.75:
        count = int(draw.choice([1, 1, 1, 2, 3, 5]))
        return [random_polygon(draw, width, height) for _ in range(count)]
    mask = draw.random((height, width)) < draw.random()
    if draw.random() < 0.7:
        mask = cocos_mask([random_polygon(draw, width, height)], width, height) > 0
    pixels = np.concatenate([[False], mask.ravel("F"), [True]])
    counts = np.diff(np.concatenate([[0], np.flatnonzero(np.diff(pixels[:-1])), [mask.size]]))
    size = [height, width]
    if not text:
        return {"size": size, "counts": [int(count) for count in counts]}
    masks = pytest.importorskip("pycocotools.mask")
    encoded = masks.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": size, "counts": encoded["counts"].decode()}


def columns(images: list[list[Outline]]) -> dict[str, pa.Array]:
    polygons = [[one if isinstance(one, list) else [] for one in image] for image in images]
    runs = [[None if isinstance(one, list) else one for one in image] for image in images]
    texts = any(one and isinstance(one["counts"], str) for image in runs for one in image)
    types = {"polygons": POLYGONS, "rle": TEXTS if texts else RLES}
    found = {"polygons": polygons, "rle": runs}
    return {name: pa.array(found[name], kind) for name, kind in types.items()}


def whole_cuts(sizes: list[tuple[int, int]]) -> npt.NDArray[np.void]:
    cuts = np.zeros(len(sizes), _native.CUT)
    cuts["whole"] = 1
    cuts["size"] = cuts["canvas"] = sizes
    return cuts


def painted(
    images: list[list[Outline]], sizes: list[tuple[int, int]]
) -> tuple[list[npt.NDArray[np.uint8]], list[tuple[int, str, str, int]]]:
    sides = np.array(sizes, np.int32).reshape(-1, 2)
    widths, heights = np.ascontiguousarray(sides.T)
    ends = np.cumsum([0, *map(len, images)], dtype=np.int64)
    boxes, no_ends = np.zeros((0, 4), np.float32), np.zeros(len(images) + 1, np.int64)
    targets = _native.Targets(widths, heights, boxes, no_ends, boxes[:, :2], no_ends)
    targets.move(native_program(()), np.zeros(len(images), np.uint64))
    areas = np.diff(ends) * np.prod(sides, axis=1, dtype=np.int64)
    guard = np.full(areas.sum() + 2, 77, np.uint8)
    job = _native.MaskJob(
        native_outlines(widths, heights, columns(images)),
        cuts=whole_cuts(sizes),
        sizes=sides,
        out=guard[1:-1],
        kept=(np.concatenate([np.arange(len(image)) for image in images]).astype(np.int32), ends),
        targets=targets,
        mask_fills={0: (0, 0, 0)},
    )
    job.run()
    assert guard[0] == guard[-1] == 77
    parts = np.split(guard[1:-1], np.cumsum(areas)[:-1])
    shapes = [
        (len(image), height, width) for image, (width, height) in zip(images, sizes, strict=True)
    ]
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)], job.failures()

"""Masks of drawn outlines: those of pycocotools, moved as torchvision moves them.

A short form; ``make campaign`` runs it at length.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from mask_calls import Oracle
from outline_data import cocos_mask, painted, random_outline
from torchvision_stub import import_torchvision

from fastdata import _native
from fastdata.transforms.tree import Builder

#: Objects whose masks are painted whole; a tenth of them after drawn operations.
OUTLINES = int(os.environ.get("FASTDATA_CAMPAIGN_OUTLINES", "2000"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))


def random_size(draw: np.random.Generator, least: int = 1) -> tuple[int, int]:
    """Return (width, height), of small images often."""
    width, height = draw.integers(least, draw.choice([least + 3, 50, 200]), 2)
    return int(width), int(height)


@pytest.mark.parametrize("text", [False, True])
def test_masks_are_those_of_pycocotools(text: bool) -> None:
    draw = np.random.default_rng(SEED)
    done = 0
    while done < OUTLINES // 2:
        sizes = [random_size(draw) for _ in range(4)]
        images = [
            [random_outline(draw, *size, text=text) for _ in range(draw.integers(0, 8))]
            for size in sizes
        ]
        masks, failures = painted(images, sizes)
        assert not failures
        for found, outlines, size in zip(masks, images, sizes, strict=True):
            for mask, outline in zip(found, outlines, strict=True):
                np.testing.assert_array_equal(mask, cocos_mask(outline, *size), str(outline))
                done += 1


class Moved:
    """Mask that drawn operations move, by torchvision, and the core's nodes for them."""

    def __init__(self, draw: np.random.Generator, masks: torch.Tensor) -> None:
        tv_tensors = import_torchvision().tv_tensors
        self._functional: Any = import_torchvision().transforms.v2.functional
        self._draw = draw
        self.masks = tv_tensors.Mask(masks)
        self.tree = Builder()

    @property
    def size(self) -> tuple[int, int]:
        """(Width, height)."""
        return self.masks.shape[-1], self.masks.shape[-2]

    def move(self, *, warps: bool) -> None:
        """Do one operation."""
        names = ["flip", "crop", "pad", "resize", *(["rotate", "affine"] if warps else [])]
        getattr(self, f"_{self._draw.choice(names)}")()

    def _flip(self) -> None:
        across = self._draw.random() < 0.5
        self.tree.call("flip_horizontal" if across else "flip_vertical")
        flip = self._functional.horizontal_flip if across else self._functional.vertical_flip
        self.masks = flip(self.masks)

    def _crop(self) -> None:
        width, height = (int(self._draw.integers(1, side + 1)) for side in self.size)
        right, lower = self._draw.integers(0, 2, 2).tolist()
        self.tree.leaf("corner_crop", width, height, right, lower, draws=1)
        left, top = right * (self.size[0] - width), lower * (self.size[1] - height)
        self.masks = self._functional.crop(self.masks, top, left, height, width)

    def _resize(self) -> None:
        width, height = random_size(self._draw)
        self.tree.call("resize", width, height, _native.FILTERS.index("nearest_floor"))
        self.masks = self._functional.resize(self.masks, [height, width])

    def _pad(self) -> None:
        modes = ["constant", "edge", "reflect", "symmetric"]
        mode, fill = int(self._draw.integers(4)), int(self._draw.choice([0, 1, 255]))
        most = 20 if mode < 2 else max(1, min(self.size) - 1) if min(self.size) > 1 else 0
        sides = self._draw.integers(0, most + 1, 4).tolist()
        self.tree.call("pad", *sides, mode, fill, fill, fill)
        self.masks = self._functional.pad(self.masks, sides, fill, modes[mode])

    def _rotate(self) -> None:
        angle, fill = float(self._draw.uniform(-180, 180)), int(self._draw.choice([0, 1, 255]))
        self.tree.leaf("rotate", angle, 0, fill, fill, fill, 0, 0, 0, 0, 1, draws=1)
        self.masks = self._functional.rotate(self.masks, angle, fill=fill)

    def _affine(self) -> None:
        angle, shear = float(self._draw.uniform(-90, 90)), float(self._draw.uniform(-30, 30))
        x, y = self._draw.integers(-9, 10, 2).tolist()
        scale = float(self._draw.uniform(0.3, 2))
        self.tree.leaf("affine", angle, x, y, scale, shear, 0, 0, 0, 0, 0, 0, 0, 0, 1, draws=1)
        self.masks = self._functional.affine(self.masks, angle, [x, y], scale, [shear, 0.0], fill=0)


def random_cut(
    draw: np.random.Generator, width: int, height: int, masks: torch.Tensor, fill: int
) -> tuple[npt.NDArray[np.void], torch.Tensor]:
    """Return a cut that may reach outside, and what it leaves of masks."""
    cut = np.zeros(1, _native.CUT)
    crop = int(draw.integers(1, width + 9)), int(draw.integers(1, height + 9))
    size, canvas = random_size(draw), random_size(draw)
    left, top = (
        int(draw.integers(-part, side)) for part, side in zip(crop, (width, height), strict=True)
    )
    window = tuple(int(draw.integers(-part, side)) for part, side in zip(canvas, size, strict=True))
    cut["box"], cut["size"] = (left, top, left + crop[0], top + crop[1]), size
    cut["canvas"], cut["window"], cut["padding"] = canvas, window, 2
    cut["flip"] = draw.integers(16)
    oracle = Oracle(masks)
    oracle.cut(cut[0], fill)
    return cut, oracle.mask


@pytest.mark.parametrize("warps", [False, True])
def test_masks_move_as_torchvision_moves_them(warps: bool) -> None:
    draw = np.random.default_rng(SEED)
    tv_tensors = import_torchvision().tv_tensors
    for _ in range(OUTLINES // 20):
        size = random_size(draw, 2)
        image = [random_outline(draw, *size) for _ in range(draw.integers(1, 4))]
        masks = np.stack([cocos_mask(outline, *size) for outline in image])
        fill = int(draw.integers(2))
        cut, cropped = random_cut(draw, *size, tv_tensors.Mask(torch.from_numpy(masks)), fill)
        moved = Moved(draw, cropped)
        with moved.tree.node("sequence"):
            for _ in range(draw.integers(0, 4)):
                moved.move(warps=warps)
        options = {"program": moved.tree.program(), "fill": fill}
        (found,), failures = painted([image], [size], cut, [moved.size], **options)
        assert not failures
        np.testing.assert_array_equal(found, moved.masks.numpy())

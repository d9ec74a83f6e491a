"""Compares what a random transform makes with what fastdata makes of it: in distribution."""

from __future__ import annotations

import os
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from containers import pack_tree
from fastdata.converters import Encoding
from loader_data import folder
from PIL import Image
from recipes_page import original, tensors

from fastdata import DataLoader, ImageDataset

#: Of each picture, with each loader; more of them find smaller differences.
DRAWS = int(os.environ.get("FASTDATA_RECIPE_DRAWS", 400))
#: Largest `evidence` that chance makes of many millions of thresholds.
BOUND = 20.0
#: Pictures in `pictures`.
_COUNT = 2


@cache
def pictures(side: int) -> Path:
    """Pictures in which all that is drawn shows: a grainy colour, and two slopes under waves."""
    root = folder()
    down, across = np.mgrid[0:side, 0:side] * (160 / side) + 45
    # Two channels agree, so that a flip shows in greys, too; a third differs, so that greys show.
    slopes = np.stack([across, across, down], -1)
    wave = 20 * np.sin(np.arange(side) * (2 * np.pi / 8))
    slopes += (wave[:, None] + wave)[..., None]
    grain = np.random.default_rng(1).uniform(-30, 30, (side, side, 1))
    colour = np.array((190, 120, 60)) + grain
    (root / "tree" / "a").mkdir(parents=True)
    for number, pixels in enumerate((colour, slopes)):
        image = Image.fromarray(pixels.astype(np.uint8))
        image.save(root / "tree" / "a" / f"{number}.png")
    pack_tree(root / "tree", root / "packed", "lmdb", encoding=Encoding("raw"))
    return root / "packed"


def native(transform: Any, side: int = 60, seed: int = 1) -> list[Any]:
    dataset = ImageDataset(pictures(side), transform)
    loader = DataLoader(dataset, DRAWS, sampler=_order(), seed=seed, require_native=True)
    batches = [tensors(batch) for batch, _ in loader]
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def originals(transform: Any, side: int = 60, seed: int = 1) -> list[Any]:
    """The tensors that the transform itself makes; as `native`."""
    dataset = ImageDataset(pictures(side))
    for start in (random.seed, np.random.seed, torch.manual_seed):
        start(seed)
    made = []
    for index in _order():
        image = dataset.open_image(index).convert("RGB")
        try:
            made.append(tensors(original(transform, image)))
        except ValueError as error:  # timm asks Pillow to keep no bits, now and then
            assert "bits must be" in str(error)
            made.append(tensors(original(transform, image)))
    return [torch.stack(parts) for parts in zip(*made, strict=True)]


def _order() -> list[int]:
    return [index for index in range(_COUNT) for _ in range(DRAWS)]


def differences(ours: list[Any], theirs: list[Any]) -> list[str]:
    assert [(one.shape, one.dtype) for one in ours] == [(one.shape, one.dtype) for one in theirs]
    found = []
    for number, (got, want) in enumerate(zip(ours, theirs, strict=True)):
        level = float(want.max() - want.min()) / 255 or 1.0
        # Values may be rounded otherwise, by a level: in pixels, and in what many images share.
        chance = torch.Generator().manual_seed(number)
        pair = [features(noisy(one.float() / level, chance)) for one in (got, want)]
        pair = [{name: noisy(value, chance) for name, value in one.items()} for one in pair]
        for name in pair[0]:
            for at in range(_COUNT):
                rows = slice(at * DRAWS, (at + 1) * DRAWS)
                strength = evidence(*(one[name][rows] for one in pair))
                if strength > BOUND:
                    found.append(f"view {number}, picture {at}, {name}: {strength:.0f}")
    return found


def noisy(values: Any, chance: Any) -> Any:
    return torch.empty_like(values).normal_(generator=chance).add_(values)


def features(images: Any) -> dict[str, Any]:
    """Numbers that tell augmentations of one image apart, in levels: a row for each image."""
    if images.ndim < 4:
        return {"mean": images.flatten(1).mean(1, keepdim=True)}
    images = images.flatten(1, -4) if images.ndim > 4 else images
    height, width = images.shape[-2] // 2, images.shape[-1] // 2
    grey = images.mean(-3)
    left, right = (part.mean((-2, -1)) for part in (grey[..., :width], grey[..., -width:]))
    top, bottom = (part.mean((-2, -1)) for part in (grey[..., :height, :], grey[..., -height:, :]))
    across, down = images.diff(dim=-1), images.diff(dim=-2)
    colours = images.mean((-2, -1))
    # How long the waves are: the size of a crop, whatever became of its colours.
    smooth = torch.nn.functional.avg_pool2d(grey, 3, 1)
    waves = [_fineness(one) for one in (smooth, smooth.transpose(-2, -1))]
    found = {
        "colour": colours,
        "difference of colours": colours - colours.roll(1, -1),
        "contrast": images.std((-2, -1)),
        "colourfulness": images.amax(-3).sub(images.amin(-3)).mean((-2, -1)),
        "slope across": right - left,
        "slope down": bottom - top,
        "steepness across": (right - left).abs(),
        "steepness down": (bottom - top).abs(),
        "fineness across": waves[0],
        "fineness down": waves[1],
        "fineness": (waves[0] * waves[1]).sqrt(),
        "edges across": across.abs().mean((-3, -2, -1)),
        "edges down": down.abs().mean((-3, -2, -1)),
        "bumps": across.diff(dim=-1).abs().amax((-3, -2, -1)),
        "flatness": 255 * (across.abs() < 4).float().mean((-3, -2, -1)),
        "brightest": images.amax((-2, -1)),
        "darkest": images.amin((-2, -1)),
        "middle": images[..., height, width],
    }
    return {name: value.reshape(len(images), -1) for name, value in found.items()}


def _fineness(grey: Any) -> Any:
    slopes = grey.diff(dim=-1)
    bends = slopes.diff(dim=-1).abs().mean((-2, -1))
    return 255 * bends / slopes.abs().mean((-2, -1)).clamp_min(0.5)


def evidence(one: Any, other: Any) -> float:
    """Return the largest log-likelihood ratio, which exceeds x by chance once in exp(x) tables."""
    count = len(one)
    values, order = torch.cat([one, other]).sort(0)
    below = (order < count).cumsum(0).double()
    both = torch.arange(1.0, 2 * count + 1, dtype=torch.float64)[:, None].expand_as(below)
    cells = (below, both - below, count - below, count - both + below)
    found = sum(torch.special.xlogy(cell, cell) for cell in cells)
    for margin in (both, 2 * count - both):
        found = found - torch.special.xlogy(margin, margin / 2)
    distinct = torch.cat([values[1:] > values[:-1], values[:1] < values[:1]])
    return float(found[distinct].max()) if distinct.any() else 0.0

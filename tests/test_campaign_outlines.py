"""Masks of drawn outlines: those of pycocotools, moved as torchvision moves them."""

from __future__ import annotations

import os

import numpy as np
import pytest
from outline_data import cocos_mask, painted, random_outline

#: Objects whose masks are painted.
OUTLINES = int(os.environ.get("FASTDATA_CAMPAIGN_OUTLINES", "2000"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))


def random_size(draw: np.random.Generator) -> tuple[int, int]:
    width, height = draw.integers(1, draw.choice([4, 50, 200]), 2)
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

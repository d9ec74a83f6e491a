"""People's own recipes: docs/recipes.md is what the compiler says of them, and each that is native
makes what its original makes (make test-recipes)."""

from __future__ import annotations

import math
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from containers import pack_tree
from fastdata.benchmarks import recipes
from fastdata.benchmarks.adapters._published import small
from fastdata.converters import Encoding
from jpegs import picture
from loader_data import folder
from PIL import Image
from recipe_packages import need
from recipes_page import compiled, levels, original, page, tensors, tiny

from fastdata import DataLoader, ImageDataset
from fastdata.transforms.compile import Recipe
from fastdata.transforms.pixels import is_random

need("timm", "open_clip", "transformers", "lightly", "dinov2")

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"

#: Of each picture, with each loader; more of them find smaller differences.
DRAWS = int(os.environ.get("FASTDATA_RECIPE_DRAWS", 60))
#: How probable it is that one comparison of many thousands fails by chance.
CHANCE = 1e-8

RECIPES = recipes.known()


def test_the_page_is_what_the_code_says() -> None:
    found = page()
    assert PAGE.read_text() == found, "run make recipes-page"
    assert found.count("| native |") >= 140


def features(images: Any) -> Any:
    """Numbers that tell augmentations of one image apart, a row for each."""
    images = images.float()
    if images.ndim < 4:
        return images.flatten(1).mean(1, keepdim=True)
    images = images.flatten(1, -4) if images.ndim > 4 else images
    halves = images.shape[-2] // 2, images.shape[-1] // 2
    numbers = [
        images.mean((-2, -1)),  # colours
        images.std((-3, -2, -1), keepdim=True).flatten(1),  # contrast
        images.std(-3).mean((-2, -1))[:, None] if images.shape[-3] > 1 else images[:, 0, :1, 0],
        images[..., halves[1] :].mean((-3, -2, -1))[:, None],  # flips, rotations
        images[..., halves[0] :, :].mean((-3, -2, -1))[:, None],
        images.diff(dim=-1).abs().mean((-3, -2, -1))[:, None],  # blur, sharpness, sizes of crops
        images.diff(dim=-2).abs().mean((-3, -2, -1))[:, None],
        images.amax((-2, -1)),  # solarisation
        images[..., halves[0], halves[1]],  # erasing
    ]
    return torch.cat([number.flatten(1) for number in numbers], 1)


@cache
def pictures() -> Path:
    """Pictures in which some of what is drawn shows: one colour, two slopes, a texture."""
    root = folder()
    down, across = np.mgrid[0:60, 0:60] * 4
    slopes = np.stack([across, down, 240 - across], -1).astype(np.uint8)
    flat = np.full((60, 60, 3), (180, 120, 60), np.uint8)
    (root / "tree" / "a").mkdir(parents=True)
    for number, pixels in enumerate((flat, slopes, picture(60, 60, 1, 40))):
        Image.fromarray(pixels).save(root / "tree" / "a" / f"{number}.png")
    pack_tree(root / "tree", root / "packed", "lmdb", encoding=Encoding("raw"))
    return root / "packed"


def shrink(held: Any, seen: set[int]) -> None:
    """Makes the sizes in a library's transforms a quarter of what they are, for speed."""
    if id(held) in seen or isinstance(held, (str, bytes, torch.Tensor, np.ndarray, type)):
        return
    seen.add(id(held))
    if isinstance(held, (list, tuple, dict)):
        for part in held.values() if isinstance(held, dict) else held:
            shrink(part, seen)
    elif hasattr(held, "__dict__"):
        size = vars(held).get("size")
        if isinstance(size, int):
            held.size = size // 4
        elif isinstance(size, (list, tuple)) and all(isinstance(side, int) for side in size):
            held.size = tuple(side // 4 for side in size)
        shrink(list(vars(held).values()), seen)


def drawn(transform: Any, ours: bool, tiny_ones: bool) -> list[Any]:
    """The tensors that are made of each picture, many times, one picture after the other."""
    dataset = ImageDataset(tiny() if tiny_ones else pictures(), transform if ours else None)
    order = [index for index in range(3) for _ in range(DRAWS)]
    if ours:
        loader = DataLoader(dataset, DRAWS, sampler=order, seed=1, require_native=True)
        batches = [tensors(batch) for batch, _ in loader]
        return [torch.cat(parts) for parts in zip(*batches, strict=True)]
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    made = []
    for index in order:
        image = dataset.open_image(index).convert("RGB")
        try:
            made.append(tensors(original(transform, image)))
        except ValueError as error:  # timm asks Pillow to keep no bits, now and then
            assert "bits must be" in str(error)
            made.append(tensors(original(transform, image)))
    return [torch.stack(parts) for parts in zip(*made, strict=True)]


def distance(one: Any, other: Any) -> float:
    """Kolmogorov's and Smirnov's, of two samples."""
    both = torch.cat([one, other]).sort().values
    shares = [
        torch.searchsorted(of.sort().values, both, right=True) / len(of) for of in (one, other)
    ]
    return float((shares[0] - shares[1]).abs().max())


@pytest.mark.parametrize("name", RECIPES)
def test_a_native_recipe_makes_what_its_original_makes(name: str) -> None:
    transform = RECIPES[name]()
    recipe = compiled(name, transform)
    if not isinstance(recipe, Recipe) or recipe.unknown:
        pytest.skip("the page says that it is not native")
    steps = [step for one in recipe.programs for step in (*one.steps, *one.pixels)]
    if not any(map(is_random, steps)):
        # Processors of torchvision's backend overshoot at edges, as the page says.
        assert int(levels(name, transform, recipe)) <= 1 + name.startswith("transformers")
        return
    if not small(name):
        shrink(transform, set())
    ours, theirs = (drawn(transform, which, small(name)) for which in (True, False))
    assert [(one.shape, one.dtype) for one in ours] == [(one.shape, one.dtype) for one in theirs]
    bound = math.sqrt(-math.log(CHANCE / 2) / DRAWS)
    for number, (got, want) in enumerate(zip(ours, theirs, strict=True)):
        # Values that many images share may differ by a level.
        level = (want.float().max() - want.float().min()) / 255
        pairs = [features(one) for one in (got, want)]
        pairs = [one + 2 * level * torch.randn(one.shape) for one in pairs]
        for at in range(0, 3 * DRAWS, DRAWS):
            for feature in range(pairs[0].shape[1]):
                apart = distance(*(one[at : at + DRAWS, feature] for one in pairs))
                where = f"view {number}, picture {at // DRAWS}, feature {feature}"
                assert apart <= bound, f"{where}: {apart:.3f}"

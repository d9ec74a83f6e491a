"""A program's pixels by the core, as the loader has them; and a drawn crop by Pillow alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from core_batches import decode_batch
from PIL import Image

from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.recipe import Program, Recipe


def recipe_of(transform: Any) -> Recipe:
    recipe = compile_recipe(transform)
    assert isinstance(recipe, Recipe), recipe
    return recipe


def whole_recipe(transform: Any) -> Recipe:
    """A recipe of which the core does everything."""
    recipe = recipe_of(transform)
    assert not recipe.tail, recipe
    return recipe


def by_core(program: Program, image: Image.Image, keys: npt.NDArray[np.uint64]) -> Any:
    cuts = program.draw([image.width], [image.height], keys)
    (size,) = program.sizes(cuts).tolist()
    form = program.output
    dtype = "uint16" if form.dtype == "bfloat16" else form.dtype
    out = np.empty((1, *size[::-1], form.channels), dtype)
    return decode_batch([np.asarray(image)], size, out=out, cuts=cuts, **program.batch_options())[0]


def by_pillow(image: Image.Image, cut: Any) -> Image.Image:
    """A crop that was drawn, by Pillow, which fills with zeros outside the image."""
    image = image.convert("RGB").crop(tuple(cut["box"].tolist()))
    number = int(cut["filter"])
    filters = ("NEAREST", "BILINEAR", "BICUBIC", "LANCZOS")
    flip = int(cut["flip"])
    image = _mirrored(image, flip >> 2)  # as the image that was resized
    image = image.resize(tuple(cut["size"].tolist()), Image.Resampling[filters[number]])
    image = _mirrored(image, flip >> 2)
    (x, y), (width, height) = cut["window"].tolist(), cut["canvas"].tolist()
    image = image.crop((x, y, x + width, y + height))
    return _mirrored(image, flip)


def _mirrored(image: Image.Image, bits: int) -> Image.Image:
    """An image mirrored left to right by bit 0, top to bottom by bit 1."""
    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if bits & 1 else image
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if bits & 2 else image

"""Recipes: independent draws, refusals and their reasons, and recipes in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from core_pixels import recipe_of
from PIL import Image

from fastdata.errors import UsageError
from fastdata.plan import draws
from fastdata.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    Resize,
    Views,
)
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.outcomes import Refusal
from fastdata.transforms.recipe import Program

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Keys = npt.NDArray[np.uint64]


def program_of(transform: Any) -> Program:
    (program,) = recipe_of(transform).programs
    return program


def reason_of(transform: Any) -> str:
    refusal = compile_recipe(transform)
    assert isinstance(refusal, Refusal), refusal
    return refusal.reason


def keys_of(count: int, seed: int = 0) -> Keys:
    return draws.sample_keys(seed, np.arange(count))


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    numbers = np.random.default_rng(seed)
    return Image.fromarray(numbers.integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_steps_draw_independently() -> None:
    count = 50_000
    program = program_of(
        Compose([RandomCrop(60), RandomCrop(50), RandomHorizontalFlip(0.3), RandomCrop(10)])
    )
    sizes = np.full(count, 70)
    got = program.draw(sizes, sizes, keys_of(count))
    assert abs(got["flip"].mean() - 0.3) < 0.01
    columns = np.stack([got["box"][:, 0], got["box"][:, 1], got["flip"]])
    correlation = np.corrcoef(columns) - np.eye(3)
    assert np.abs(correlation).max() < 0.03
    # A sum of three uniform variables on 11, 11 and 41 places has their variances' sum.
    for column in columns[:2]:
        expected = (11**2 - 1 + 11**2 - 1 + 41**2 - 1) / 12
        assert abs(column.var() / expected - 1) < 0.03


# --- what is refused, what becomes the tail --------------------------------------------------


def blur(image: Any) -> Any:
    return image.rotate(3)


class Odd(CenterCrop):
    pass


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (None, "CenterCrop"),
        (Resize(256), "after Resize(256) and cannot make a batch"),
        ([], "different sizes"),
        (RandomHorizontalFlip(), "different sizes and"),
        (blur, "blur comes before the images have one size"),
        ([Resize(9), blur, CenterCrop(3)], "blur comes before"),
        ([CenterCrop(9), blur, CenterCrop(3)], "CenterCrop((3, 3)) comes after blur"),
        (Odd(3), "Odd"),
        ([RandomGrayscale(1.0), Resize(8)], "Resize(8) and cannot make a batch"),
        ([CenterCrop(9), Normalize(MEAN, STD), RandomInvert()], "works on bytes"),
        ([CenterCrop(9), RandomApply([blur]), RandomInvert()], "it holds blur: it is not a"),
        ([CenterCrop(9), RandomApply([RandomErasing()]), blur], "it belongs to the output"),
        ([CenterCrop(9), RandomErasing(), RandomInvert()], "it comes after RandomErasing"),
        ([CenterCrop(9), RandomErasing(value="random")], "noise of floats into bytes"),
        ([CenterCrop(9), RandomErasing(value=300)], "not from 0 to 255"),
        ([RandomCrop(9), RandomCrop(10)], "larger than the images"),
        ([Normalize(MEAN, STD), CenterCrop(9)], "zeros what is normalised"),
        ([CenterCrop(9), Normalize(MEAN, STD), Normalize(MEAN, STD)], "already normalised"),
        ([RandomCrop(9), Views(CenterCrop(3), CenterCrop(4))], "RandomCrop((9, 9)) comes before"),
        ([Views(CenterCrop(3), count=2), Normalize(MEAN, STD)], "Normalize comes after Views"),
        (Views(CenterCrop(3), Resize(3)), "View 1: The images may have different sizes"),
        (Views(CenterCrop(3), Compose([blur, CenterCrop(4)])), "blur comes before the images"),
        (Views(CenterCrop(3), Views(CenterCrop(3), CenterCrop(4))), "View"),
    ],
)
def test_refusals_say_which_and_why(transform: Any, words: str) -> None:
    assert words in reason_of(transform)


class Preset:
    def __call__(self, image: Any) -> Any:
        return image


def test_the_first_step_that_is_not_known_has_a_hint() -> None:
    for call, words in ((blur, "blur.__fastdata__"), (Preset(), "test_recipe.Preset")):
        (unknown,) = recipe_of([RandomResizedCrop(8), call, len]).unknown
        assert words in unknown.hint
    (unknown,) = recipe_of([RandomResizedCrop(8), len]).unknown
    assert "len.__fastdata__" not in unknown.hint and "batch_transform" in unknown.hint
    typed = eval("lambda image: image.rotate(3)", {})  # of no module
    assert "__fastdata__" in recipe_of([RandomResizedCrop(8), typed]).unknown[0].hint
    assert recipe_of(RandomResizedCrop(8)).unknown == ()


def test_too_small_an_image_is_named() -> None:
    program = program_of(RandomCrop(20))
    with pytest.raises(UsageError, match="The image has 19 x 30 ") as caught:
        RandomCrop(20)(noise(30, 19))
    assert "pad_if_needed" in caught.value.hint
    # In a batch it does not disturb the others.
    drawn = program.draw([20, 30, 40], [20, 19, 40], keys_of(3))
    assert program.too_small(drawn) == {1: "19 x 30 (H x W) pixels, less than RandomCrop((20, 20))"}
    alone = program.draw([40], [40], keys_of(3)[2:])
    assert program.too_small(alone) == {} and np.array_equal(drawn["box"][2:], alone["box"])


def test_a_recipe_describes_itself() -> None:
    crop = RandomResizedCrop(96, scale=(0.25, 1.0))
    recipe = recipe_of(Compose([crop, RandomHorizontalFlip(), Normalize(MEAN, STD)]))
    words = "RandomResizedCrop((96, 96), scale=(0.25, 1.0)), RandomHorizontalFlip"
    assert recipe.describe() == f"{words}, float32 normalised"

"""Recipes: boxes as torchvision draws them, and geometry that Pillow's own operations confirm."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import numpy.typing as npt
import numpy_draws
import pytest
from core_pixels import by_core, by_pillow
from hypothesis import given
from hypothesis import strategies as st
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
    Transform,
    Views,
)
from fastdata.transforms.compile import Output, Program, Recipe, Refusal, compile_recipe
from fastdata.transforms.geometry import render

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILTERS = ["bilinear", "nearest", "bicubic", "lanczos"]
_RESAMPLING = {name: Image.Resampling[name.upper()] for name in FILTERS}

Keys = npt.NDArray[np.uint64]


def recipe_of(transform: Any) -> Recipe:
    recipe = compile_recipe(transform)
    assert isinstance(recipe, Recipe), recipe
    return recipe


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


def by_program(program: Program, image: Image.Image, keys: Keys) -> npt.NDArray[np.uint8]:
    pixels: npt.NDArray[np.uint8] = by_core(program, image, keys)
    assert pixels.dtype == np.uint8 and pixels.shape == (program.size[1], program.size[0], 3)
    return pixels


# --- RandomResizedCrop -----------------------------------------------------------------------


def torchvisions_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """torchvision.transforms.RandomResizedCrop.get_params, with Python's generator."""
    for _ in range(10):
        area = width * height * random.uniform(*scale)
        aspect = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    if width / height < min(ratio):
        w, h = width, round(width / min(ratio))
    elif width / height > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h


@given(
    sizes=st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=40),
    scale=st.tuples(st.floats(0.01, 1.2), st.floats(0.01, 1.2)).map(sorted).map(tuple),
    ratio=st.tuples(st.floats(0.2, 5.0), st.floats(0.2, 5.0)).map(sorted).map(tuple),
    seed=st.integers(0, 2**64 - 1),
)
def test_boxes_are_in_the_image_and_as_large_and_wide_as_asked(
    sizes: list[tuple[int, int]], scale: Any, ratio: Any, seed: int
) -> None:
    program = program_of(RandomResizedCrop(32, scale, ratio))
    width, height = np.array(sizes).T
    got = program.draw(width, height, keys_of(len(sizes), seed))
    assert (got["size"] == 32).all() and not got["window"].any()
    assert not got["padding"].any() and not got["flip"].any()
    for (left, upper, right, lower), (w, h) in zip(got["box"].tolist(), sizes, strict=True):
        assert 0 <= left < right <= w and 0 <= upper < lower <= h
        wide, high = right - left, lower - upper
        # Rounding moves each side by half a pixel at most.
        smallest, largest = (wide - 0.5) * (high - 0.5), (wide + 0.5) * (high + 0.5)
        drawn = smallest <= scale[1] * w * h * 1.0001 and largest >= scale[0] * w * h * 0.9999
        drawn &= (wide - 0.5) / (high + 0.5) <= ratio[1] * 1.0001
        drawn &= (wide + 0.5) / max(high - 0.5, 1e-9) >= ratio[0] * 0.9999
        central = (left, upper) == ((w - wide) // 2, (h - high) // 2)
        if w / h < ratio[0]:
            central &= (wide, high) == (w, max(round(w / ratio[0]), 1))
        elif w / h > ratio[1]:
            central &= (wide, high) == (max(round(h * ratio[1]), 1), h)
        else:
            central &= (wide, high) == (w, h)
        assert drawn or central


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [
        ((500, 375), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((375, 500), (0.35, 1.0), (3 / 4, 4 / 3)),
        ((640, 120), (0.08, 1.0), (3 / 4, 4 / 3)),  # attempts often fail
        ((2000, 100), (0.5, 1.0), (3 / 4, 4 / 3)),  # they always fail: too wide
        ((100, 1100), (0.5, 1.0), (3 / 4, 4 / 3)),  # too high
        ((33, 33), (1.0, 1.0), (0.1, 0.1)),
        ((64, 64), (0.9, 1.1), (0.5, 2.0)),
    ],
)
def test_boxes_are_distributed_as_torchvisions(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    count = 20_000
    program = program_of(RandomResizedCrop(8, scale, ratio))
    width, height = np.full(count, size[0]), np.full(count, size[1])
    left, upper, right, lower = program.draw(width, height, keys_of(count))["box"].T
    ours = np.stack([left, upper, right - left, lower - upper])
    random.seed(1)
    theirs = np.array([torchvisions_box(*size, scale, ratio) for _ in range(count)]).T
    for name, a, b in [
        *zip(("left", "upper", "width", "height"), ours, theirs, strict=True),
        ("area", ours[2] * ours[3], theirs[2] * theirs[3]),
        ("ratio", ours[2] / ours[3], theirs[2] / theirs[3]),
        ("centre", 2 * ours[0] + ours[2], 2 * theirs[0] + theirs[2]),
        ("joint", ours[0] * 7 + ours[1] * 3 - ours[2], theirs[0] * 7 + theirs[1] * 3 - theirs[2]),
    ]:
        both = np.sort(np.concatenate([a, b]))
        distance = np.abs(
            np.searchsorted(np.sort(a), both, "right") - np.searchsorted(np.sort(b), both, "right")
        ).max()
        # Kolmogorov and Smirnov's bound for one in a million.
        assert distance / count < 2.7 * math.sqrt(2 / count), name


# --- randomness ------------------------------------------------------------------------------


def test_a_samples_geometry_is_its_own_whatever_batch_it_is_in() -> None:
    program = program_of(Compose([RandomResizedCrop(8, (0.5, 1.0)), RandomHorizontalFlip()]))
    width, height = np.random.default_rng(1).integers(8, 500, (2, 300))
    whole = program.draw(width, height, keys_of(300))
    for part in (slice(0, 1), slice(7, 60), slice(100, 300)):
        got = program.draw(width[part], height[part], keys_of(300)[part])
        np.testing.assert_array_equal(got["box"], whole["box"][part])
        np.testing.assert_array_equal(got["flip"], whole["flip"][part])
    assert len(program.draw([], [], keys_of(0))["box"]) == 0


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


def test_a_flip_is_as_probable_as_asked() -> None:
    sizes = np.full(40_000, 9)
    for p in (0.0, 0.1, 0.5, 1.0):
        program = program_of([CenterCrop(9), RandomHorizontalFlip(p)])
        share = program.draw(sizes, sizes, keys_of(40_000))["flip"].mean()
        assert share == p if p in (0.0, 1.0) else abs(share - p) < 0.012


# --- composition, with Pillow as the oracle --------------------------------------------------


def step_by_step(steps: list[Transform], image: Image.Image, keys: Keys) -> Image.Image:
    """Each step by itself, with the numbers that it draws in a recipe."""
    draw = 0
    for step in steps:
        size: Any = getattr(step, "size", None)
        if isinstance(step, Resize):
            if isinstance(size, tuple):
                width, height = size[1], size[0]
            else:
                short, long = sorted(image.size)
                sides = size, int(size * long / short)
                if step.max_size is not None and sides[1] > step.max_size:
                    # torchvision fails at a side of 0.
                    sides = max(int(step.max_size * sides[0] / sides[1]), 1), step.max_size
                width, height = sides if image.width <= image.height else sides[::-1]
            image = image.resize((width, height), _RESAMPLING[step.interpolation])
        elif isinstance(step, RandomHorizontalFlip):
            if numpy_draws.uniforms(keys, draw)[0] < step.p:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            draw += 32
        elif isinstance(step, CenterCrop):
            wide, high = max(size[1] - image.width, 0), max(size[0] - image.height, 0)
            image = image.crop(
                (
                    -(wide // 2),
                    -(high // 2),
                    image.width + (wide + 1) // 2,
                    image.height + (high + 1) // 2,
                )
            )
            x = round((image.width - size[1]) / 2.0)
            y = round((image.height - size[0]) / 2.0)
            image = image.crop((x, y, x + size[1], y + size[0]))
        elif isinstance(step, RandomCrop):
            left, top, right, bottom = step.padding  # type: ignore[misc]
            image = image.crop((-left, -top, image.width + right, image.height + bottom))
            if step.pad_if_needed:
                x, y = max(size[1] - image.width, 0), max(size[0] - image.height, 0)
                image = image.crop((-x, -y, image.width + x, image.height + y))
            bounds = np.array([image.width - size[1] + 1, image.height - size[0] + 1])
            x = int(numpy_draws.integers(keys, draw, bounds[:1])[0])
            y = int(numpy_draws.integers(keys, draw + 1, bounds[1:])[0])
            image = image.crop((x, y, x + size[1], y + size[0]))
            draw += 32
        elif isinstance(step, RandomResizedCrop):
            shifted = keys + np.uint64(draw * draws.GAMMA & 0xFFFF_FFFF_FFFF_FFFF)
            box = program_of(step).draw([image.width], [image.height], shifted)["box"][0]
            image = image.crop(tuple(box.tolist()))
            image = image.resize((size[1], size[0]), _RESAMPLING[step.interpolation])
            draw += 32
    return image


sides = st.integers(1, 40)
pairs = st.tuples(sides, sides)
crops = st.one_of(
    pairs.map(CenterCrop),
    st.builds(
        RandomCrop,
        pairs,
        st.one_of(st.none(), st.integers(0, 9), st.tuples(*[st.integers(0, 9)] * 4)),
        st.just(True),
    ),
)
flips = st.sampled_from([0.0, 0.5, 1.0]).map(RandomHorizontalFlip)
filters = st.sampled_from(FILTERS)
resizes = st.one_of(
    st.builds(Resize, pairs, filters),
    st.builds(Resize, sides, filters),
    st.builds(Resize, st.integers(1, 20), filters, st.integers(21, 60)),
    st.builds(
        RandomResizedCrop,
        pairs,
        st.sampled_from([(0.08, 1.0), (0.9, 1.0)]),
        st.just((0.75, 4 / 3)),
        filters,
    ),
)
pipelines = st.tuples(
    st.lists(st.one_of(crops, flips), max_size=3),
    st.lists(resizes, max_size=1),
    st.lists(st.one_of(crops, flips), max_size=3),
).map(lambda three: [step for part in three for step in part])


@given(pipelines, pairs, st.integers(0, 2**64 - 1))
def test_composed_geometry_gives_the_pixels_of_its_steps(
    steps: list[Transform], size: tuple[int, int], seed: int
) -> None:
    recipe = compile_recipe(steps)
    if isinstance(recipe, Refusal):
        return  # which are refused, other tests say
    if any(step.is_random for step in recipe.programs[0].pixels):
        return  # they draw other numbers
    image, keys = noise(*size, seed % 1000), np.array([seed], np.uint64)
    got = by_program(recipe.programs[0], image, keys).astype(int)
    expected = np.asarray(step_by_step(steps, image, keys)).astype(int)
    before = [
        any(isinstance(s, RandomHorizontalFlip) for s in steps[:n])
        for n, step in enumerate(steps)
        if isinstance(step, (Resize, RandomResizedCrop))
    ]
    program = recipe.programs[0]
    # A pixel program's resize is within a level of Pillow's, as docs/benchmarks.md says; so is
    # a bilinear one of a crop.
    within = any(isinstance(s, (Resize, RandomResizedCrop)) for s in program.pixels)
    within |= program.filter == "bilinear" and any(step.resizes for step in program.steps)
    # Pillow's sums of a mirrored image are added in another order.
    assert np.abs(got - expected).max() <= (1 if any(before) or within else 0)
    if not program.pixels:  # what Pillow makes of the crop that was drawn
        cut = program.draw([image.width], [image.height], keys)[0]
        drawn = np.asarray(by_pillow(image, cut)).astype(int)
        assert np.abs(drawn - expected).max() <= (1 if any(before) else 0)
        np.testing.assert_array_equal(render(image, cut), drawn)


def test_few_compositions_are_refused() -> None:
    """The property above must not hold because everything was refused."""
    padded, fixed = RandomCrop(30, 2, True), CenterCrop(20)
    flip = RandomHorizontalFlip()
    for steps in (
        [fixed],
        [padded, fixed, flip],
        [flip, padded, RandomCrop(8), Resize(9)],
        [Resize(40, max_size=70), flip, padded, flip, fixed],
        [Resize((40, 50)), Resize((40, 50)), fixed],
        [fixed, RandomResizedCrop(9), RandomCrop(8), CenterCrop(7)],
        [RandomResizedCrop(9), RandomCrop(8, padding=3)],
        [fixed, Resize(20), RandomResizedCrop(9)],
    ):
        recipe_of(steps)


@given(
    width=st.integers(20, 60),
    crops=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    where=st.integers(0, 4),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_crop_after_a_flip_is_mirrored_exactly(
    width: int, crops: list[int], where: int, seed: int
) -> None:
    steps: list[Transform] = [RandomCrop(side) for side in sorted(crops, reverse=True)]
    steps.insert(min(where, len(steps)), RandomHorizontalFlip(1.0))
    image, keys = noise(width, 25), np.array([seed], np.uint64)
    expected = np.asarray(step_by_step(steps, image, keys))
    np.testing.assert_array_equal(by_program(program_of(steps), image, keys), expected)


def test_odd_samples_are_those_that_reach_outside() -> None:
    width, height = np.array([10, 30, 30]), np.array([30, 30, 10])
    got = program_of(CenterCrop(20)).draw(width, height, keys_of(3))
    assert got["padding"].tolist() == [1, 0, 1]
    assert got["box"].tolist() == [[0, 5, 10, 25], [5, 5, 25, 25], [5, 0, 25, 10]]
    assert got["window"].tolist() == [[-5, 0], [0, 0], [0, -5]]
    resized = program_of([CenterCrop(20), Resize((9, 9))]).draw(width, height, keys_of(3))
    assert resized["padding"].tolist() == [2, 0, 2]
    assert not program_of(CenterCrop(10)).draw(width, height, keys_of(3))["padding"].any()
    padded = program_of([Resize(20), CenterCrop((20, 40))])
    assert padded.pixels == ()
    got = padded.draw(width, height, keys_of(3))
    assert got["padding"].tolist() == [1, 1, 0]
    assert got["size"].tolist() == [[20, 60], [20, 20], [60, 20]]
    padded = program_of(RandomCrop(30, padding=1))
    assert padded.pixels == ()
    assert 40 < padded.draw([30] * 60, [30] * 60, keys_of(60))["padding"].sum() < 60


def test_the_usual_evaluation_is_a_resize_and_a_window() -> None:
    program = program_of(Compose([Resize(256), CenterCrop(224), Normalize(MEAN, STD)]))
    assert program.size == (224, 224) and program.filter == "bilinear"
    assert program.output == Output("float32", MEAN, STD, True, False)
    got = program.draw([500, 333], [375, 500], keys_of(2))
    assert got["box"].tolist() == [[0, 0, 500, 375], [0, 0, 333, 500]]
    assert got["size"].tolist() == [[341, 256], [256, 384]]
    assert got["window"].tolist() == [[58, 16], [16, 80]]


# --- what is refused, what becomes the tail --------------------------------------------------


def blur(image: Any) -> Any:
    return image.rotate(3)


class Odd(CenterCrop):
    pass


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (None, "RandomResizedCrop"),
        (Resize(256), "Resize(256) and cannot make a batch"),
        ([], "different sizes"),
        (RandomHorizontalFlip(), "different sizes and"),
        (blur, "blur comes before the images have one size"),
        ([Resize(9), blur, CenterCrop(3)], "blur comes before"),
        ([CenterCrop(9), blur, CenterCrop(3)], "CenterCrop(3 x 3) comes after blur"),
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
    ],
)
def test_refusals_say_which_and_why(transform: Any, words: str) -> None:
    assert words in reason_of(transform)


def test_the_tail_is_what_comes_after_the_first_unknown() -> None:
    recipe = recipe_of([RandomResizedCrop(8), blur, Compose([len, blur])])
    assert recipe.tail == (blur, len, blur)
    assert recipe.programs[0].output == Output("uint8", None, None, True, False)


class Preset:
    def __call__(self, image: Any) -> Any:
        return image


def test_steps_that_are_not_known_are_told_from_those_that_only_follow_them() -> None:
    recipe = recipe_of([RandomResizedCrop(8), blur, Preset(), len])
    first, second, third = recipe.unknown
    assert [unknown.name for unknown in recipe.unknown] == ["blur", "Preset", "len"]
    assert "blur.__fastdata__" in first.hint and "test_recipe.Preset" in second.hint
    assert "len.__fastdata__" not in third.hint and "batch_transform" in third.hint
    typed = eval("lambda image: image.rotate(3)", {})  # of no module
    assert "__fastdata__" in recipe_of([RandomResizedCrop(8), typed]).unknown[0].hint
    assert recipe_of(RandomResizedCrop(8)).unknown == ()


# --- views -----------------------------------------------------------------------------------


def test_each_view_is_a_program() -> None:
    large, small = (
        RandomResizedCrop(32, (0.4, 1.0)),
        Compose([RandomResizedCrop(9), Normalize(MEAN, STD)]),
    )
    recipe = recipe_of(Compose([Views(large, small, large), len]))
    assert [program.size for program in recipe.programs] == [(32, 32), (9, 9), (32, 32)]
    assert [program.output.dtype for program in recipe.programs] == ["uint8", "float32", "uint8"]
    assert recipe.tail == (len,)
    assert recipe.describe().startswith("3 views: random resized crop to 32 x 32")
    twice = recipe_of(Views(large, count=2))
    assert len(twice.programs) == 2
    assert twice.programs[0] == twice.programs[1] == program_of(large)
    assert twice.describe().startswith("2 views of: random resized crop")


def test_what_comes_before_views_belongs_to_each() -> None:
    recipe = recipe_of(Compose([CenterCrop(40), Views(RandomCrop(9), RandomResizedCrop(8))]))
    assert [len(program.steps) for program in recipe.programs] == [2, 2]
    assert [program.size for program in recipe.programs] == [(9, 9), (8, 8)]


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        ([RandomCrop(9), Views(CenterCrop(3), CenterCrop(4))], "RandomCrop(9 x 9) stands before"),
        ([Views(CenterCrop(3), count=2), Normalize(MEAN, STD)], "Normalize comes after Views"),
        (Views(CenterCrop(3), Resize(3)), "View 1: The images may have different sizes"),
        (
            Views(CenterCrop(3), Compose([blur, CenterCrop(4)])),
            "blur comes before the images have one size",
        ),
        (Views(CenterCrop(3), Views(CenterCrop(3), CenterCrop(4))), "View"),
    ],
)
def test_views_that_cannot_be_composed_say_why(transform: Any, words: str) -> None:
    assert words in reason_of(transform)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_normalize_says_of_what_type_the_result_is(dtype: str) -> None:
    program = program_of([CenterCrop(9), Normalize(MEAN, STD, dtype=dtype)])
    assert program.output == Output(dtype, MEAN, STD, True, False)


def test_too_small_an_image_is_named() -> None:
    program = program_of(RandomCrop(20))
    with pytest.raises(UsageError, match="The image has 30 x 19 pixels") as caught:
        RandomCrop(20)(noise(30, 19))
    assert "pad_if_needed" in caught.value.hint
    # In a batch it does not disturb the others.
    drawn = program.draw([20, 30, 40], [20, 19, 40], keys_of(3))
    assert program.too_small(drawn) == {1: "30 x 19 pixels, less than RandomCrop's 20 x 20"}
    alone = program.draw([40], [40], keys_of(3)[2:])
    assert program.too_small(alone) == {} and np.array_equal(drawn["box"][2:], alone["box"])


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (
            Compose([RandomResizedCrop(224), RandomHorizontalFlip(), Normalize(MEAN, STD)]),
            "random resized crop to 224 x 224 (bilinear), flip with p 0.5, float32 normalised",
        ),
        (
            [Resize(256, "bicubic"), CenterCrop((200, 224)), blur],
            "resize to shorter side 256 (bicubic), centre crop of 224 x 200, uint8; then, one "
            "sample at a time, blur",
        ),
        (
            [Resize(64, max_size=99), RandomCrop(32, padding=4)],
            "resize to shorter side 64 (bilinear), longer side at most 99, random crop of 32 x "
            "32, padded, uint8",
        ),
        (
            RandomResizedCrop(96, scale=(0.25, 1.0)),
            "random resized crop to 96 x 96 (bilinear) of 0.25 to 1 of the area, uint8",
        ),
    ],
)
def test_a_recipe_describes_itself(transform: Any, words: str) -> None:
    assert recipe_of(transform).describe() == words
    assert str(recipe_of(transform)) == words

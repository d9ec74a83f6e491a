"""Pads, random sizes and vertical flips as geometry: one cut has the pixels of all steps."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from core_batches import decode_batch
from core_pixels import by_core
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jpegs import picture
from PIL import Image
from torchvision_stub import import_torchvision

from fastdata import _native
from fastdata import transforms as ours
from fastdata.plan.draws import sample_keys
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.recipe import Program, Recipe

NEAREST, BICUBIC = Image.Resampling.NEAREST, Image.Resampling.BICUBIC
SIZES = [(90, 60), (41, 77), (33, 32), (8, 50), (130, 9)]
RED = (200, 3, 50)


def program_of(*steps: Any) -> Program:
    found = compile_recipe(list(steps))
    recipe = found if isinstance(found, Recipe) else found.unequal
    assert isinstance(recipe, Recipe), found
    return recipe.programs[0]


# --- a cut's pixels are Pillow's -----------------------------------------------------------------


@st.composite
def cuts(draw: Any) -> Any:
    width, height = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    cut = np.zeros(1, _native.CUT)
    left, upper = draw(st.integers(-60, width + 20)), draw(st.integers(-60, height + 20))
    box = (left, upper, left + draw(st.integers(1, 120)), upper + draw(st.integers(1, 120)))
    cut["box"], cut["padding"] = box, 2
    own = (box[2] - box[0], box[3] - box[1])
    cut["size"] = draw(st.one_of(st.tuples(st.integers(1, 90), st.integers(1, 90)), st.just(own)))
    cut["window"] = draw(st.integers(-40, 60)), draw(st.integers(-40, 60))
    cut["canvas"] = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    cut["filter"] = draw(st.integers(0, len(_native.FILTERS) - 1))
    cut["flip"] = draw(st.integers(0, 15))
    return (width, height), cut


def by_pillow(pixels: Any, cut: np.void, fill: Any) -> Any:
    """The pixels of a cut: crop, resize and window, in the order that the core folds."""

    def cropped(image: Any, left: int, upper: int, size: Any) -> Any:
        canvas = Image.new("RGB", tuple(size), fill)
        canvas.paste(image, (-left, -upper))
        return canvas

    def mirrored(image: Any, bits: int) -> Any:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if bits & 1 else image
        return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if bits & 2 else image

    left, upper, right, lower = cut["box"].tolist()
    image = Image.fromarray(pixels).convert("RGB")
    image = cropped(image, left, upper, (right - left, lower - upper))
    name, size = _native.FILTERS[cut["filter"]], cut["size"].tolist()
    before = int(cut["flip"]) >> 2
    if image.size != tuple(size) and name == "nearest_floor":
        array = np.asarray(mirrored(image, before))
        columns, rows = (
            (np.arange(to, dtype="f4") * (np.float32(have) / np.float32(to))).astype(int)
            for have, to in zip(image.size, size, strict=True)
        )
        array = array[rows.clip(max=image.height - 1)][:, columns.clip(max=image.width - 1)]
        image = mirrored(Image.fromarray(array), before)
    elif image.size != tuple(size):
        resized = mirrored(image, before).resize(size, Image.Resampling[name.upper()])
        image = mirrored(resized, before)
    image = cropped(image, *cut["window"].tolist(), cut["canvas"].tolist())
    return np.asarray(mirrored(image, int(cut["flip"])))


_SETTINGS = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
_FILLS = st.sampled_from([(0, 0, 0), (7, 7, 7), RED])


@_SETTINGS
@given(drawn=cuts(), fill=_FILLS, grey=st.booleans())
def test_any_cut_has_pillows_pixels(simd: Any, drawn: Any, fill: Any, grey: bool) -> None:
    (width, height), cut = drawn
    pixels = picture(width, height, width + height, 255)
    if grey:
        pixels = np.ascontiguousarray(pixels[:, :, 0])
    size = tuple(cut["canvas"][0].tolist())
    got = decode_batch([pixels], size, cuts=cut, fill=fill)[0]
    want = by_pillow(pixels, cut[0], fill)
    off = np.abs(got.astype(int) - want)
    assert off.max() <= int(_native.FILTERS[cut["filter"][0]] == "bilinear")


# --- steps in turn -------------------------------------------------------------------------------

CHAINS: dict[str, Any] = {
    "pad": lambda v2: [v2.Pad((1, 2, 3, 4), fill=RED)],
    "pad, crop": lambda v2: [v2.Pad(9), v2.CenterCrop((30, 20))],
    "pad twice": lambda v2: [
        *(v2.Pad(3, fill=9), v2.RandomHorizontalFlip(1.0), v2.Pad((4, 0), fill=9))
    ],
    "pad, resize": lambda v2: [v2.Pad((9, 2), fill=RED), v2.Resize((31, 20), BICUBIC)],
    "resize, pad": lambda v2: [v2.Resize(20, BICUBIC), v2.Pad(2), v2.CenterCrop((24, 64))],
    "mirrored": lambda v2: [
        *(v2.RandomHorizontalFlip(1.0), v2.Pad((1, 2, 3, 4), fill=9), v2.RandomVerticalFlip(1.0)),
        *(v2.Resize((17, 29), NEAREST), v2.RandomHorizontalFlip(1.0)),
        *(v2.Pad((4, 0, 0, 1), fill=9), v2.CenterCrop((15, 30))),
    ],
    "upside down": lambda v2: [
        *(v2.RandomVerticalFlip(1.0), v2.Resize(30, BICUBIC), v2.CenterCrop(9))
    ],
    "jitter": lambda v2: [v2.ScaleJitter((50, 70), (0.7, 0.7), BICUBIC), v2.CenterCrop(40)],
    # In single precision, 57 / 41 * 41 is 57; in doubles it is less.
    "rounded": lambda v2: [
        *(v2.CenterCrop((41, 14)), v2.ScaleJitter((30, 57), (1, 1), BICUBIC), v2.CenterCrop(9))
    ],
    "shortest": lambda v2: [v2.RandomShortestSize([29], 66, BICUBIC), v2.RandomHorizontalFlip(1.0)],
    "shortest, unbounded": lambda v2: [v2.RandomShortestSize(29, interpolation=BICUBIC)],
    "random": lambda v2: [v2.RandomResize(29, 30, BICUBIC), v2.Pad(3)],
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_one_cut_with_the_pixels_of_its_steps(name: str) -> None:
    v2 = import_torchvision().transforms.v2
    steps = CHAINS[name](v2)
    program = program_of(*steps)
    assert program.pixels == ()
    for width, height in SIZES:
        image = Image.fromarray(picture(width, height, 3, 255))
        want = v2.Compose(steps)(image)
        got = by_core(program, image, sample_keys(0, np.arange(1)))
        assert np.array_equal(got, np.asarray(want)), (width, height)


def test_padding_after_a_crop_shows_nothing_that_was_cut_off() -> None:
    crop = ours.RandomCrop((8, 7))
    program = program_of(crop, ours.Pad((1, 2, 3, 4), fill=RED))
    assert program.pixels == () and program.size == (11, 14)
    for width, height in SIZES:
        image = Image.fromarray(picture(width, height, 3, 255))
        want = np.full((14, 11, 3), RED, np.uint8)
        want[2:10, 1:8] = by_core(program_of(crop), image, sample_keys(0, np.arange(1)))
        got = by_core(program, image, sample_keys(0, np.arange(1)))
        assert np.array_equal(got, want)


# --- what is drawn -------------------------------------------------------------------------------


def test_sizes_are_drawn_uniformly() -> None:
    keys = sample_keys(0, np.arange(3000))
    widths = np.full(3000, 200)

    def drawn(step: Any) -> Any:
        return program_of(step).draw(widths, widths // 2, keys)["size"][:, 1]

    several = Counter(drawn(ours.RandomShortestSize((10, 20, 30, 40))).tolist())
    assert sorted(several) == [10, 20, 30, 40] and min(several.values()) > 680
    between = Counter(drawn(ours.RandomResize(20, 30)).tolist())
    assert sorted(between) == list(range(20, 30)) and min(between.values()) > 240
    scaled = drawn(ours.ScaleJitter((100, 200), (0.5, 2.0)))
    assert 25 <= scaled.min() < 27 and 98 <= scaled.max() < 100
    assert 600 < np.count_nonzero(scaled < 40) < 600 * 1.1
    flips = program_of(ours.RandomVerticalFlip(0.3)).draw(widths, widths, keys)["flip"]
    assert set(flips.tolist()) == {0, 2} and 810 < np.count_nonzero(flips) < 990


# --- steps of torchvision's references -----------------------------------------------------------


def padded_if_smaller(image: Image.Image, size: int, fill: Any) -> Any:
    functional = import_torchvision().transforms.v2.functional
    more = [max(size - side, 0) for side in image.size]
    return functional.pad(image, [0, 0, *more], fill=fill)


@pytest.mark.parametrize("resizes", [True, False])
@pytest.mark.parametrize("in_program", [True, False])
def test_pad_if_smaller(resizes: bool, in_program: bool) -> None:
    before = [ours.RandomInvert(1.0)] if in_program else []
    resize = [ours.Resize(30, BICUBIC)] if resizes else []
    crop = ours.CenterCrop(33, fill=RED)
    program = program_of(*before, *resize, ours.PadToSize(40, fill=RED), crop)
    assert (program.pixels == ()) != in_program
    v2 = import_torchvision().transforms.v2
    for width, height in SIZES:
        image = Image.fromarray(picture(width, height, 3, 255))
        want = v2.RandomInvert(1.0)(image) if in_program else image
        want = v2.Resize(30, BICUBIC)(want) if resizes else want
        want = v2.CenterCrop(33)(padded_if_smaller(want, 40, list(RED)))
        got = by_core(program, image, sample_keys(0, np.arange(1)))
        assert np.array_equal(got, np.asarray(want)), (width, height)


@pytest.mark.parametrize("in_program", [True, False])
def test_fixed_size_crop(in_program: bool) -> None:
    """One number places the crop on both axes; what is missing is filled right and below."""
    before = [ours.RandomInvert(1.0)] if in_program else []
    program = program_of(*before, ours.FixedSizeCrop((30, 40), fill=RED))
    assert (program.pixels == ()) != in_program and program.size == (40, 30)
    for width, height in SIZES:
        image = Image.fromarray(picture(width, height, 3, 255))
        pixels = 255 - np.asarray(image) if in_program else np.asarray(image)
        across, down, places = max(width - 40, 0), max(height - 30, 0), set()
        wide, high = min(width, 40), min(height, 30)
        for key in sample_keys(0, np.arange(60)):
            got = by_core(program, image, np.array([key]))
            assert (got[high:] == RED).all() and (got[:, wide:] == RED).all()
            found = [
                (x, y)
                for x, y in itertools.product(range(across + 1), range(down + 1))
                if np.array_equal(got[:high, :wide], pixels[y : y + high, x : x + wide])
            ]
            assert len(found) == 1
            (x, y) = found[0]
            assert across == 0 or down == 0 or abs(x / across - y / down) <= 1 / min(across, down)
            places.add(found[0])
        assert len(places) >= min(max(across, down), 20)


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_a_mode_of_padding_where_nothing_is_padded(mode: str) -> None:
    plain = [ours.Resize((48, 48)), ours.RandomCrop(32)]
    moded = [ours.Resize((48, 48)), ours.RandomCrop(32, pad_if_needed=True, padding_mode=mode)]
    sides, keys = np.array([90], np.int32), np.array([7], np.uint64)
    cuts = [program_of(*steps).draw(sides, sides, keys) for steps in (plain, moded)]
    assert cuts[0]["window"].tolist() == cuts[1]["window"].tolist()
    program_of(ours.RandomCrop(32, padding_mode=mode)).draw(sides, sides, keys)

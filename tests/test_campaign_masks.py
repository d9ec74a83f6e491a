"""Masks follow their images: bit for bit as torchvision's v2 moves ``tv_tensors.Mask``."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from mask_calls import KINDS, Oracle, as_png, mask_of, photograph

from fastdata import _native
from fastdata import transforms as t
from fastdata.decode.codecs import Encoded
from fastdata.loading.fields.draw import SlotDraw
from fastdata.loading.fields.masks import moved_mask
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.nodes import OnTensors
from fastdata.transforms.outcomes import without_fixed_size
from fastdata.transforms.recipe import Program

PIPELINES = int(os.environ.get("FASTDATA_CAMPAIGN_MASKS", "80"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))


def _any_step(random: Any, width: int, height: int) -> Any:
    side = int(random.integers(20, 160))
    # The core draws in single precision, as torch does.
    angle, scale, shear = map(float, random.uniform((-180, 0.4, -30), (180, 2, 30)).astype("f4"))
    if random.random() < 0.3:
        angle = float(random.choice([0, 90, 180, 270, 45]))
    fill = int(random.choice([0, 0, 1, 255]))
    mode = str(random.choice(["constant", "edge", "reflect", "symmetric"]))
    center = [None, (3.0, 50.0)][int(random.integers(2))]
    padding = tuple(random.integers(0, 9, 4).tolist())
    choices = [
        lambda: t.RandomHorizontalFlip(0.5),
        lambda: t.RandomVerticalFlip(0.5),
        lambda: OnTensors(t.RandomRotation((angle, angle), fill=fill), 2),
        lambda: OnTensors(t.RandomRotation((angle, angle), center=center, mask_fill=7), 2),
        lambda: OnTensors(
            t.RandomAffine((angle, angle), scale=(scale, scale), shear=(shear, shear), fill=fill), 2
        ),
        lambda: t.RandomRotation((angle, angle), interpolation="bilinear", fill=fill),
        lambda: t.RandomAffine(
            (angle, angle), scale=(scale, scale), shear=(shear, shear), mask_fill=fill
        ),
        lambda: OnTensors(t.RandomAffine(30, (0.2, 0.3), (0.5, 1.5), 10, fill=fill), 2),
        lambda: OnTensors(t.RandomPerspective(0.5, 0.8, fill=fill), 2),
        lambda: t.Pad(padding, fill, mode),
        lambda: t.Pad(padding, mask_fill=fill),
        lambda: t.CenterCrop((side, 100)),
        lambda: t.RandomCrop((side, 70), pad_if_needed=True, fill=fill),
        lambda: t.RandomCrop(side, padding, pad_if_needed=True, mask_fill=fill),
        lambda: t.RandomResizedCrop((side, 50), interpolation=("bilinear", "bicubic")),
        lambda: t.Resize((side, 91)),
        lambda: t.Resize(side, max_size=200),
        lambda: t.RandomResize(40, 200),
        lambda: t.RandomShortestSize((64, 100), 150),
        lambda: t.ScaleJitter((128, 128)),
        lambda: t.ColorJitter(0.4, 0.4, 0.4, 0.1),
        lambda: t.RandomPhotometricDistort(),
        lambda: t.RandomGrayscale(0.5),
        lambda: t.GaussianBlur(3),
        lambda: t.RandomErasing(0.9),
        lambda: t.RandomApply((t.RandomCrop(30, pad_if_needed=True), t.RandomInvert()), 0.5),
        lambda: t.RandomChoice((t.RandomVerticalFlip(), t.Resize(60), t.RandomSolarize(99))),
        lambda: t.RandomOrder((t.RandomVerticalFlip(), t.RandomEqualize(), t.Pad(3))),
    ]
    return choices[int(random.integers(len(choices)))]()


def _program(random: Any, width: int, height: int) -> Program:
    while True:
        steps = [_any_step(random, width, height) for _ in range(random.integers(1, 6))]
        erasing = [step for step in steps if isinstance(step, t.RandomErasing)]
        steps = [step for step in steps if not isinstance(step, t.RandomErasing)]
        recipe = without_fixed_size(compile_recipe(t.Compose([*steps, *erasing])))
        program = recipe.programs[0] if getattr(recipe, "programs", ()) else None
        if program is not None and not recipe.unknown:
            return program


def _check(number: int) -> None:
    random = np.random.default_rng((SEED, number))
    pixels = photograph(number % 40, int(random.integers(30, 250)))
    height, width = pixels.shape[:2]
    kind = KINDS[number % len(KINDS)]
    mask = mask_of(pixels, kind)
    found = _program(random, width, height)
    steps, program = found.steps, found.pixels
    key = random.integers(0, 1 << 63, 1, np.uint64)
    boxes, no_offsets = np.zeros((0, 4), np.float32), np.zeros(2, np.int64)
    sides = np.array([width], np.int32), np.array([height], np.int32)
    targets = _native.Targets(*sides, boxes, no_offsets, boxes[:, :2], no_offsets)
    cut, moved = found.move(targets, key)
    if cut["too_small"][0]:
        return
    size = cut["canvas"][0].tolist()
    key = int(cut["key"][0])
    oracle = Oracle(mask)
    oracle.cut(cut[0], found.mask_fill)
    try:
        oracle.steps(program, key, *size)
    except ValueError:  # an image that a step cannot be done to
        return
    want = oracle.result()
    encoded = Encoded(as_png(mask), trusted=True, numbers=True)
    drawn = SlotDraw((width, height), [found], [cut], targets, moved, moved.sizes)
    got = moved_mask(encoded, drawn)
    assert got.dtype == want.dtype, (number, kind)
    assert np.array_equal(got, want), (number, kind, steps, program, cut)


def test_masks_are_torchvisions() -> None:
    before = _native.simd()
    levels = _native.simd_levels()
    try:
        for number in range(PIPELINES):
            _native.set_simd(levels[number % len(levels)])
            _check(number)
    finally:
        _native.set_simd(before)

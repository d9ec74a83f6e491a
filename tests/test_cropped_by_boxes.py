"""RandomIoUCrop and RandomZoomOut as geometry: one cut, drawn with the boxes of its image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core_batches import decode_batch
from jpegs import picture
from PIL import Image

from fastdata import _native
from fastdata import transforms as ours
from fastdata.plan.draws import sample_keys
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.joint import Joint, Target
from fastdata.transforms.outcomes import without_fixed_size
from fastdata.transforms.recipe import Program
from fastdata.transforms.targets import RandomIoUCrop, RandomZoomOut
from fastdata.transforms.tree import native_program

WIDTH, HEIGHT = 120, 90
NO_POINTS = np.zeros((0, 2), np.float32)


def program_of(*steps: Any) -> Program:
    joint = Joint(("image", {"boxes": "boxes"}), {"boxes": Target("boxes", "xyxy")})
    return without_fixed_size(compile_recipe(list(steps), None, joint)).programs[0]


def cut(steps: Any, boxes: Any, key: Any) -> tuple[Any, Any]:
    sides = [np.array([side], np.int32) for side in (WIDTH, HEIGHT)]
    offsets = np.array([0, len(boxes)])
    targets = _native.Targets(*sides, boxes, offsets, NO_POINTS, np.zeros(2, np.int64))
    keys = np.array([key], np.uint64)
    cuts, moved, *_ = targets.move(native_program((), leading=tuple(steps)), keys)
    return cuts, moved


def test_a_probability_of_a_crop_is_its_own() -> None:
    program = program_of(ours.RandomApply([RandomIoUCrop()], p=0.3))
    assert program.pixels == () and program.steps == (RandomIoUCrop(p=0.3),)
    assert "RandomIoUCrop(p=0.3)" in program.describe()
    cropped = 0
    for key in sample_keys(0, np.arange(400)):
        cuts, _ = cut(program.steps, np.array([[20, 10, 80, 70]], np.float32), key)
        cropped += cuts["box"][0].tolist() != [0, 0, WIDTH, HEIGHT]
    assert 70 < cropped < 130  # 6 of 7 options crop


def test_a_crop_on_pixels_needs_the_boxes() -> None:
    """Left out by mistake, they would give another crop."""
    with pytest.raises(ValueError, match="depends on boxes"):
        native_program((RandomIoUCrop(),)).draw(1, WIDTH, HEIGHT)


@pytest.mark.parametrize("resizes", [False, True])
def test_zoomed_out_then_cropped_is_one_cut(resizes: bool) -> None:
    """Its pixels are those of a pad, a crop and a resize."""
    fill = (123, 117, 104)
    more = (ours.Resize((40, 50), "bicubic"),) if resizes else ()
    steps = (RandomZoomOut(fill, p=0.8), RandomIoUCrop(), *more)
    program = program_of(*steps)
    assert program.pixels == () and program.fill == fill
    pixels = picture(WIDTH, HEIGHT, 3, 255)
    canvas = np.full((7 * HEIGHT, 7 * WIDTH, 3), fill, np.uint8)
    canvas[3 * HEIGHT : 4 * HEIGHT, 3 * WIDTH : 4 * WIDTH] = pixels
    padded = 0
    for key in sample_keys(0, np.arange(60)):
        cuts, _ = cut(steps, np.array([[20, 10, 80, 70]], np.float32), key)
        left, upper = (cuts["box"][0, :2] + (0 if resizes else cuts["window"][0])).tolist()
        wide, high = cuts["canvas"][0].tolist()
        if resizes:
            wide, high = (cuts["box"][0, 2:] - cuts["box"][0, :2]).tolist()
        x, y = left + 3 * WIDTH, upper + 3 * HEIGHT
        want = Image.fromarray(canvas).crop((x, y, x + wide, y + high))
        want = want.resize((50, 40), Image.Resampling.BICUBIC) if resizes else want
        size = tuple(cuts["canvas"][0].tolist())
        got = decode_batch([pixels], size, cuts=cuts, **program.batch_options())[0]
        assert np.array_equal(got, np.asarray(want))
        padded += int(cuts["padding"][0] > 0)
    assert padded > 20

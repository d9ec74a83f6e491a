"""RandomIoUCrop and RandomZoomOut as geometry: one cut, drawn with the boxes of its image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core_pixels import by_core
from jpegs import picture
from PIL import Image
from torchvision_stub import import_torchvision

from fastdata import _native
from fastdata import transforms as ours
from fastdata.decode import decode_batch
from fastdata.plan.draws import sample_keys
from fastdata.transforms import geometry
from fastdata.transforms.compile import Program, compile_recipe
from fastdata.transforms.joint import Joint, Target
from fastdata.transforms.outcomes import of_any_size
from fastdata.transforms.targets import RandomIoUCrop, RandomZoomOut

WIDTH, HEIGHT = 120, 90
NO_POINTS, NOT_WHOLE = np.zeros((0, 2), np.float32), np.zeros(0, np.bool_)


def program_of(*steps: Any) -> Program:
    joint = Joint(("image", {"boxes": "boxes"}), {"boxes": Target("boxes", "xyxy")})
    return of_any_size(compile_recipe(list(steps), None, joint)).programs[0]


def cut(steps: Any, boxes: Any, key: Any) -> tuple[Any, Any]:
    """Return the cut of an image with these boxes, and where they go."""
    sides = [np.array([side], np.int32) for side in (WIDTH, HEIGHT)]
    offsets = np.array([0, len(boxes)])
    targets = _native.Targets(*sides, boxes, offsets, NO_POINTS, np.zeros(2, np.int64), NOT_WHOLE)
    keys = np.array([key], np.uint64)
    cuts = targets.cut(geometry.compiled(tuple(steps)), keys)
    return cuts, targets.after(keys)[0]


def boxes_of(random: Any, count: int) -> Any:
    corners = random.uniform(0, (WIDTH, HEIGHT), (count, 2, 2)).astype("f4")
    return np.concatenate([corners.min(1), corners.max(1)], 1)


def test_a_crop_by_boxes_moves_pixels_and_boxes_as_torchvision() -> None:
    tv = import_torchvision()
    v2, tensors = tv.transforms.v2, tv.tv_tensors
    crop = v2.RandomIoUCrop()
    steps = (RandomIoUCrop(), ours.RandomHorizontalFlip(1.0))
    program = program_of(*steps)
    assert program.pixels == () and program.steps == steps
    random, whole = np.random.default_rng(1), 0
    for key in sample_keys(3, np.arange(200)):
        boxes = boxes_of(random, int(random.integers(1, 5)))
        cuts, moved = cut(steps, boxes, key)
        left, upper, right, lower = cuts["box"][0].tolist()
        want = tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(HEIGHT, WIDTH))
        if (left, upper, right, lower) == (0, 0, WIDTH, HEIGHT):
            whole += 1
        else:
            middle = (boxes[:, :2] + boxes[:, 2:]) / 2
            inside = ((middle > (left, upper)) & (middle < (right, lower))).all(1)
            assert inside.any()
            sides = {"left": left, "top": upper, "width": right - left, "height": lower - upper}
            params = {**sides, "is_within_crop_area": want.new_tensor(inside).bool().as_subclass(
                type(want.data))}  # fmt: skip
            want = crop.transform(want, params)
        want = v2.functional.horizontal_flip(want)
        np.testing.assert_allclose(moved, want.numpy(), atol=1e-4)
    assert 20 < whole < 70  # one of seven options, and crops of nearly all of it


def test_the_overlap_is_what_was_drawn() -> None:
    """With one option, some box within the crop has it."""
    box = np.array([[20, 10, 80, 70]], np.float32)
    for least in (0.3, 0.7):
        for key in sample_keys(0, np.arange(50)):
            cuts, moved = cut((RandomIoUCrop(sampler_options=(least,)),), box, key)
            left, upper, right, lower = cuts["box"][0].tolist()
            both = np.prod(moved[0, 2:] - moved[0, :2])
            union = 3600 + (right - left) * (lower - upper) - both
            assert both / union >= least - 1e-5


def test_no_crop_is_an_error_of_its_image() -> None:
    step = RandomIoUCrop(0.1, 0.2, sampler_options=(0.9,))
    box = np.array([[0, 0, WIDTH, HEIGHT]], np.float32)
    cuts, _ = cut((step,), box, 5)
    (words,) = geometry.too_small((step,), cuts).values()
    assert "120 x 90 pixels, in which RandomIoUCrop finds no crop" in words


def test_a_probability_of_a_crop_is_its_own() -> None:
    program = program_of(ours.RandomApply([RandomIoUCrop()], p=0.3))
    assert program.pixels == () and program.steps == (RandomIoUCrop(p=0.3),)
    assert "with p 0.3 (random crop that a box overlaps)" in program.describe()
    cropped = 0
    for key in sample_keys(0, np.arange(400)):
        cuts, _ = cut(program.steps, np.array([[20, 10, 80, 70]], np.float32), key)
        cropped += cuts["box"][0].tolist() != [0, 0, WIDTH, HEIGHT]
    assert 70 < cropped < 130  # 6 of 7 options crop


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
        got = decode_batch([pixels], size, **program.batch_options(cuts))[0]
        assert np.array_equal(got, np.asarray(want))
        padded += int(cuts["padding"][0] > 0)
    assert padded > 20


def test_zooming_out_has_torchvisions_range() -> None:
    program = program_of(RandomZoomOut(9, (1.5, 3.0), 0.4))
    image = Image.fromarray(picture(40, 30, 3, 255))
    kept, sizes = 0, []
    for key in sample_keys(0, np.arange(400)):
        got = by_core(program, image, np.array([key]))
        if got.shape == (30, 40, 3):
            kept += 1
            continue
        sizes.append(got.shape[1] / 40)
        assert abs(got.shape[0] / 30 - sizes[-1]) < 0.05
        assert np.count_nonzero((got != 9).any(2)) <= 1200
    assert 200 < kept < 280 and 1.49 < min(sizes) < 1.6 and 2.9 < max(sizes) < 3.01

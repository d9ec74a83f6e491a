"""The matrix of a cut takes boxes to where torchvision takes them."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torchvision_stub import import_torchvision

from fastdata.plan.draws import sample_keys
from fastdata.transforms import (
    CenterCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Transform,
    geometry,
)

FLIP = RandomHorizontalFlip(1.0)
BOXES = np.array([[0, 0, 1, 1], [10, 20, 90, 70], [3.5, 7.25, 30, 31]])
# Where an odd number of pixels is padded, torchvision's boxes are one pixel off its images.
SIZES = [(500, 375), (375, 500), (42, 204), (98, 96)]

# torchvision's factors of a resize have single precision.
ROUNDED: dict[str, Any] = {"rtol": 2e-7, "atol": 1e-4}

Boxes = npt.NDArray[np.float64]


def by_torchvision(calls: list[tuple[Any, ...]], size: tuple[int, int]) -> Boxes:
    """Where functions of torchvision take the boxes of an image of that (width, height)."""
    import_torchvision()
    functional = importlib.import_module("torchvision.transforms.v2.functional")
    corners = importlib.import_module("torchvision.tv_tensors").BoundingBoxFormat.XYXY
    options = {"format": corners, "clamping_mode": None}
    boxes, canvas = torch.from_numpy(BOXES), (size[1], size[0])
    for name, *arguments in calls:
        if name == "crop":
            boxes, canvas = functional.crop_bounding_boxes(
                boxes,
                top=arguments[0],
                left=arguments[1],
                height=arguments[2],
                width=arguments[3],
                **options,
            )
        elif name == "resize":
            boxes, canvas = functional.resize_bounding_boxes(boxes, canvas, *arguments, **options)
        elif name == "centre":
            boxes, canvas = functional.center_crop_bounding_boxes(
                boxes, canvas_size=canvas, output_size=arguments[0], **options
            )
        else:
            boxes = functional.horizontal_flip_bounding_boxes(boxes, corners, canvas)
    return boxes.numpy()


def by_matrix(cut: np.void) -> Boxes:
    """Where a cut's matrix takes the boxes."""
    corners = np.concatenate((BOXES.reshape(-1, 2), np.ones((2 * len(BOXES), 1))), axis=1)
    moved = corners @ cut["matrix"].reshape(3, 3).T
    assert (moved[:, 2] == 1).all()
    x, y = moved[:, 0].reshape(-1, 2), moved[:, 1].reshape(-1, 2)
    return np.stack((x.min(1), y.min(1), x.max(1), y.max(1)), axis=1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("steps", "calls"),
    [
        ([FLIP], [("flip",)]),
        ([Resize((30, 50))], [("resize", [30, 50])]),
        ([Resize(64, max_size=80), FLIP], [("resize", [64], 80), ("flip",)]),
        ([Resize(64), CenterCrop((33, 52))], [("resize", [64]), ("centre", [33, 52])]),
        ([CenterCrop(60), Resize((90, 31))], [("centre", [60, 60]), ("resize", [90, 31])]),
        (
            [FLIP, CenterCrop((300, 220)), FLIP, Resize(50), FLIP, CenterCrop(41)],
            [("flip",), ("centre", [300, 220]), ("flip",), ("resize", [50]), ("flip",),
             ("centre", [41, 41])],
        ),
    ],
)  # fmt: skip
def test_boxes_go_where_torchvision_takes_them(
    steps: list[Transform], calls: list[tuple[Any, ...]], size: tuple[int, int]
) -> None:
    (cut,) = geometry.draw(tuple(steps), [size[0]], [size[1]], np.zeros(1, np.uint64))
    np.testing.assert_allclose(by_matrix(cut), by_torchvision(calls, size), **ROUNDED)


def test_boxes_go_where_a_drawn_crop_takes_them() -> None:
    steps = (RandomHorizontalFlip(), RandomResizedCrop((48, 36)), RandomHorizontalFlip())
    widths, heights = np.array(SIZES * 20).T
    flips = 0
    drawn = geometry.draw(steps, widths, heights, sample_keys(0, np.arange(80)))
    for cut, size in zip(drawn, SIZES * 20, strict=True):
        left, upper, right, lower = cut["box"].tolist()
        calls = [("crop", upper, left, lower - upper, right - left), ("resize", [48, 36])]
        mirrored = int(cut["flip"]) & 1
        calls += [("flip",)] * mirrored
        flips += mirrored
        expected = by_torchvision(calls, size)
        np.testing.assert_allclose(by_matrix(cut), expected, **ROUNDED)
    assert 20 < flips < 60

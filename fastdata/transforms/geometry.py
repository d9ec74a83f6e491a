"""Crops, a resize and flips of a pipeline's beginning, drawn by the core: one cut for each image.

`draw` describes the steps to the core once; the core composes them for each image
(``native/geometry``) and returns one structured array (`_native.CUT`) for a batch. A row of it:

- ``box``: left, upper, right, lower in the source image.
- ``size``: (width, height) that the box is resized to.
- ``window``: (left, upper) of the canvas in the resized box.
- ``canvas``: (width, height) of the output, or of the image that a pixel program begins with.
- ``filter``: the number in `FILTERS` of what it is resized with.
- ``flip``: 1 where the canvas is mirrored left to right, last of all.
- ``whole``: 1 where the box is all of the image, whatever its size; never of what is drawn.
- ``needs_padding``: whether a box reaches outside the image, or a window outside the resized box:
  zeros fill what is missing.
- ``too_small``, ``found``: see `too_small`.
- ``key``: what a pixel program draws from.
- ``matrix``: float64, 3 x 3 row by row: from the source image to the canvas. It maps (x, y, 1) in
  pixels, where (0, 0) is the upper left corner of the image, not the middle of its first pixel. So
  corners of boxes map by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.transforms.descriptions import (
    CenterCrop,
    CornerCrop,
    FlooredCenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ResizeKeepRatio,
    Transform,
)

#: The structured array of a batch, (N,).
Cuts: TypeAlias = "npt.NDArray[np.void]"

# Draw numbers that each random step has for itself.
_DRAWS = 32

#: The filters' names; a filter's number is its place here.
FILTERS = _native.FILTERS


def is_random(step: Transform) -> bool:
    """Whether a step of :func:`draw` draws numbers."""
    if isinstance(step, ResizeKeepRatio):
        changed = step.random_scale_prob > 0 or step.random_aspect_prob > 0
        return changed or not isinstance(step.interpolation, str)
    return isinstance(step, (RandomResizedCrop, RandomCrop, RandomHorizontalFlip))


def draw(
    steps: tuple[Transform, ...], widths: Any, heights: Any, keys: npt.NDArray[np.uint64]
) -> Cuts:
    """Draw and compose the steps for each image.

    Args:
        steps: Crops, at most one resize, flips. After a crop, none may reach outside what it left.
        widths: Of the source images, (N,).
        heights: Of the source images, (N,).
        keys: uint64 (N,): what the steps' random numbers are drawn from.

    Returns:
        A row for each image, which depends on its size and key alone.
    """
    return compiled(steps).draw(widths, heights, keys)


def too_small(steps: Sequence[Transform], cuts: Cuts) -> dict[int, str]:
    """Describe the images that are too small for a crop that may not pad, by their row.

    ``too_small`` is the number of that crop among the steps, from 1; 0: the image is large enough.
    ``found`` is the image's (width, height) there. The row's other values mean nothing.
    """
    described = {}
    if np.count_nonzero(cuts["too_small"]):
        for row in np.flatnonzero(cuts["too_small"]).tolist():
            step: Any = steps[int(cuts["too_small"][row]) - 1]
            (width, height), (high, wide) = cuts["found"][row].tolist(), step.size
            crop = "a corner's" if isinstance(step, CornerCrop) else "RandomCrop's"
            described[row] = f"{width} x {height} pixels, less than {crop} {wide} x {high}"
    return described


def resized_size(step: Resize, width: int, height: int) -> tuple[int, int]:
    """(width, height) after a resize."""
    if isinstance(step.size, tuple):
        return step.size[1], step.size[0]
    size: Any = step.size
    return _native.resized_shorter(width, height, size, step.max_size or 0)


@lru_cache(maxsize=64)
def compiled(steps: tuple[Transform, ...]) -> _native.Geometry:
    """Return the steps as the core has them; the same object for equal steps."""
    described = []
    first_draw = 0
    for step in steps:
        kind, values = _described(step)
        filters = getattr(step, "interpolation", ())
        names = (filters,) if isinstance(filters, str) else filters
        numbers = [FILTERS.index(name) for name in names]
        described.append((kind, first_draw, list(map(float, values)), numbers))
        first_draw += _DRAWS * is_random(step)
    return _native.Geometry(described)


def _described(step: Any) -> tuple[str, Sequence[float]]:
    """A step's name and values (``native/geometry/geometry.h``)."""
    if isinstance(step, RandomHorizontalFlip):
        return "flip", (step.p,)
    if isinstance(step, Resize) and not isinstance(step.size, tuple):
        return "resize_shorter", (step.size, step.max_size or 0)  # type: ignore[return-value]
    if not isinstance(
        step, (Resize, ResizeKeepRatio, RandomResizedCrop, CenterCrop, CornerCrop, RandomCrop)
    ):
        raise TypeError(f"{step!r} is not geometry")
    size = step.size[::-1]  # type: ignore[index]
    if isinstance(step, Resize):
        return "resize", size
    if isinstance(step, ResizeKeepRatio):
        scale = step.random_scale_prob, *step.random_scale_range, step.random_scale_area
        aspect = step.random_aspect_prob, *step.random_aspect_range
        return "resize_keeping_ratio", (*size, step.longest, *scale, *aspect)
    if isinstance(step, RandomResizedCrop):
        return "resized_crop", (*size, *step.scale, *step.ratio, step.in_double)
    if isinstance(step, CenterCrop):
        return "centre_crop", (*size, isinstance(step, FlooredCenterCrop))
    if isinstance(step, CornerCrop):
        return "corner_crop", (*size, step.right, step.bottom)
    return "random_crop", (*size, step.pad_if_needed)

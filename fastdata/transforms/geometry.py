"""Crops, a resize and flips composed to one box, size, window and flip for each image of a batch.

Arithmetic is torchvision's (0.28): ``RandomResizedCrop.get_params``, ``RandomCrop.get_params``,
``functional._compute_resized_output_size`` and ``functional.center_crop``, so that rounding agrees.
Everything is computed for a whole batch at once: this runs in the loader's one Python thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.plan import draws
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

_Ints: TypeAlias = "npt.NDArray[np.int64] | int"

# Draw numbers that a random step has for itself; RandomResizedCrop takes 22, and one for a filter.
_DRAWS = 32
_FILTER_DRAW = 22

#: In the order of enum class Filter of native/resample/resample.h.
FILTERS = ("nearest", "bilinear", "bicubic", "lanczos")


class Geometry(NamedTuple):
    """What is cut from each image of a batch, and what becomes of it.

    Attributes:
        boxes: int32 (N, 4): left, upper, right, lower in the source image.
        sizes: int32 (N, 2): the (width, height) that each box is resized to; None: the output's.
        windows: int32 (N, 2): (left, upper) of the output in the resized box; None: (0, 0).
        flips: uint8 (N,): 1 where the output is mirrored left to right, last of all.
        needs_padding: bool (N,): True where a box reaches outside the image, or a window outside
            the resized box, and zeros stand for what is missing; None: nowhere.
        canvases: int32 (N, 2): the outputs' (width, height), where a pixel program makes others of
            them; None: what the program's output has.
        keys: uint64 (N,): what a pixel program draws from; None: there is none.
        filters: uint8 (N,): the number in :data:`FILTERS` of what each is resized with, where that
            was drawn; None: the program's.
        too_small: Images that are smaller than a random crop that may not pad, by their row, and
            in words what is wrong; their other values mean nothing.
    """

    boxes: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int32] | None
    windows: npt.NDArray[np.int32] | None
    flips: npt.NDArray[np.uint8]
    needs_padding: npt.NDArray[np.bool_] | None
    canvases: npt.NDArray[np.int32] | None = None
    keys: npt.NDArray[np.uint64] | None = None
    filters: npt.NDArray[np.uint8] | None = None
    too_small: Mapping[int, str] = MappingProxyType({})


class _Frame(NamedTuple):
    """The current image as a part of its stage: the source image, or the resized box."""

    left: _Ints
    top: _Ints
    width: _Ints
    height: _Ints


def is_random(step: Transform) -> bool:
    """Whether a step of :func:`compose` draws numbers."""
    if isinstance(step, ResizeKeepRatio):
        changed = step.random_scale_prob > 0 or step.random_aspect_prob > 0
        return changed or not isinstance(step.interpolation, str)
    return isinstance(step, (RandomResizedCrop, RandomCrop, RandomHorizontalFlip))


def compose(
    steps: Sequence[Transform], widths: Any, heights: Any, keys: npt.NDArray[np.uint64]
) -> tuple[Geometry, _Ints, _Ints]:
    """Compose the steps for each image.

    Args:
        steps: Crops, at most one resize, flips. After a crop, none may reach outside what it left.
        widths: Of the source images, (N,).
        heights: Of the source images, (N,).
        keys: uint64 (N,): what the steps' random numbers are drawn from.

    Returns:
        The geometry, and the outputs' widths and heights: ints, or int64 (N,).
    """
    keys = np.asarray(keys, dtype=np.uint64)
    source_width = np.asarray(widths, dtype=np.int64)
    source_height = np.asarray(heights, dtype=np.int64)
    count = len(keys)
    frame = _Frame(0, 0, source_width, source_height)
    box: _Frame | None = None
    resized: tuple[_Ints, _Ints] = (0, 0)
    flips: npt.NDArray[np.bool_] | None = None
    filters: npt.NDArray[np.uint8] | None = None
    cut = False  # since the resize
    may_pad = False
    too_small: dict[int, str] = {}
    draw = 0
    for step in steps:
        if isinstance(step, RandomHorizontalFlip):
            flip = draws.uniforms(keys, draw) < step.p
            flips = flip if flips is None else flips ^ flip
        elif isinstance(step, Resize):
            box, resized, cut = frame, resized_size(step, frame.width, frame.height), False
            frame = _Frame(0, 0, *resized)
        elif isinstance(step, ResizeKeepRatio):
            box, resized, cut = frame, _keeping_ratio(step, frame, keys, draw), False
            filters = _random_filters(step, keys, draw)
            frame = _Frame(0, 0, *resized)
        elif isinstance(step, RandomResizedCrop):
            filters = _random_filters(step, keys, draw)
            box = _crop(frame, flips, *_random_boxes(step, frame.width, frame.height, keys, draw))
            resized, cut = (_wide(step), _high(step)), False
            frame = _Frame(0, 0, *resized)
        elif isinstance(step, CenterCrop):
            width, height = _wide(step), _high(step)
            rounded = np.floor if isinstance(step, FlooredCenterCrop) else np.rint
            left = _centre(frame.width, width, rounded)
            top = _centre(frame.height, height, rounded)
            frame = _crop(frame, flips, left, top, width, height)
            cut = may_pad = True
        elif isinstance(step, CornerCrop):
            frame = _crop(frame, flips, *_corner(step, frame, count, too_small))
            cut = True
        elif isinstance(step, RandomCrop):
            frame = _crop(frame, flips, *_random_places(step, frame, keys, draw, too_small))
            cut = may_pad = True
        else:
            raise TypeError(f"{step!r} is not geometry")
        draw += _DRAWS * is_random(step)

    sizes = windows = None
    if box is None:
        box = frame
    elif cut or not (isinstance(frame.width, int) and isinstance(frame.height, int)):
        sizes = columns(count, *resized)
        windows = columns(count, frame.left, frame.top) if cut else None
    boxes = columns(count, box.left, box.top, box.left + box.width, box.top + box.height)
    needs_padding = None
    if may_pad:
        needs_padding = (boxes[:, 0] < 0) | (boxes[:, 1] < 0)
        needs_padding |= (boxes[:, 2] > source_width) | (boxes[:, 3] > source_height)
        if windows is not None and sizes is not None:
            needs_padding |= (windows < 0).any(axis=1)
            needs_padding |= windows[:, 0] + frame.width > sizes[:, 0]
            needs_padding |= windows[:, 1] + frame.height > sizes[:, 1]
        needs_padding = needs_padding if needs_padding.any() else None
    flipped = np.zeros(count, np.uint8) if flips is None else flips.view(np.uint8)
    found = Geometry(
        boxes, sizes, windows, flipped, needs_padding, filters=filters, too_small=too_small
    )
    return found, frame.width, frame.height


def resized_size(step: Resize, width: _Ints, height: _Ints) -> tuple[_Ints, _Ints]:
    """(width, height) after a resize."""
    if isinstance(step.size, tuple):
        return step.size[1], step.size[0]
    size: Any = step.size
    wide, high = np.asarray(width, dtype=np.int64), np.asarray(height, dtype=np.int64)
    short, long = np.minimum(wide, high), np.maximum(wide, high)
    new_short = np.full_like(short, size)
    new_long = (size * long / short).astype(np.int64)
    if step.max_size is not None:
        over = new_long > step.max_size
        less = np.maximum((step.max_size * new_short / new_long).astype(np.int64), 1)
        new_short = np.where(over, less, new_short)
        new_long = np.where(over, step.max_size, new_long)
    upright = wide <= high
    new_wide = np.where(upright, new_short, new_long)
    new_high = np.where(upright, new_long, new_short)
    if new_wide.ndim == 0:
        return int(new_wide), int(new_high)
    return new_wide, new_high


def _keeping_ratio(
    step: ResizeKeepRatio, frame: _Frame, keys: npt.NDArray[np.uint64], draw: int
) -> tuple[_Ints, _Ints]:
    """(width, height) after timm's ``ResizeKeepRatio.get_params``, in its order of operations."""
    wide = np.asarray(frame.width, np.float64)
    high = np.asarray(frame.height, np.float64)
    down, across = high / _high(step), wide / _wide(step)
    ratio = np.maximum(down, across) * step.longest + np.minimum(down, across) * (
        1.0 - step.longest
    )
    ones = np.ones(len(keys))
    by_height, by_width = ones, ones
    if step.random_scale_prob > 0:
        factor = _uniform(keys, draw + 1, *step.random_scale_range)
        if step.random_scale_area:
            factor = 1.0 / np.sqrt(factor)
        scaled = np.where(draws.uniforms(keys, draw) < step.random_scale_prob, factor, ones)
        by_height, by_width = scaled, scaled
    if step.random_aspect_prob > 0:
        low, high_log = (math.log(value) for value in step.random_aspect_range)
        factor = np.sqrt(np.exp(_uniform(keys, draw + 3, low, high_log)))
        changed = np.where(draws.uniforms(keys, draw + 2) < step.random_aspect_prob, factor, ones)
        by_height, by_width = by_height / changed, by_width * changed
    # Nothing of an image is less than a pixel: timm's own call fails there.
    new_wide = np.maximum(np.rint(wide * by_width / ratio), 1).astype(np.int64)
    new_high = np.maximum(np.rint(high * by_height / ratio), 1).astype(np.int64)
    return new_wide, new_high


def _uniform(
    keys: npt.NDArray[np.uint64], draw: int, low: float, high: float
) -> npt.NDArray[np.float64]:
    return low + (high - low) * draws.uniforms(keys, draw)


def _random_filters(
    step: RandomResizedCrop | ResizeKeepRatio, keys: npt.NDArray[np.uint64], draw: int
) -> npt.NDArray[np.uint8] | None:
    if isinstance(step.interpolation, str):
        return None
    numbers = np.array([FILTERS.index(name) for name in step.interpolation], np.uint8)
    chosen: npt.NDArray[np.uint8] = numbers[
        draws.integers(keys, draw + _FILTER_DRAW, np.array(len(numbers)))
    ]
    return chosen


def _wide(step: Any) -> int:
    return int(step.size[1])


def _high(step: Any) -> int:
    return int(step.size[0])


def _per_image(values: _Ints, count: int) -> npt.NDArray[np.int64]:
    found = np.asarray(values, np.int64)
    if found.shape != (count,):  # broadcasting costs several times the rest
        found = np.broadcast_to(found, (count,))
    return np.ascontiguousarray(found)


def columns(count: int, *values: _Ints) -> npt.NDArray[np.int32]:
    """Values as columns of a table, int32 (``count``, number of values); an int fills its own."""
    table = np.empty((count, len(values)), np.int32)
    for number, column in enumerate(values):
        table[:, number] = column
    return table


def _crop(
    frame: _Frame,
    flips: npt.NDArray[np.bool_] | None,
    left: _Ints,
    top: _Ints,
    width: _Ints,
    height: _Ints,
) -> _Frame:
    """A crop of the frame as it is seen, flipped or not, in the coordinates of its stage."""
    if flips is not None:
        left = np.where(flips, frame.width - (left + width), left)
    return _Frame(frame.left + left, frame.top + top, width, height)


def _centre(have: _Ints, want: int, rounded: Callable[[Any], Any]) -> _Ints:
    # What is missing is padded first, and the smaller half of it lies at the left.
    missing = -((want - np.asarray(have)) // 2)
    offset = np.where(want > np.asarray(have), missing, rounded((np.asarray(have) - want) / 2.0))
    return offset.astype(np.int64)


def _corner(
    step: CornerCrop, frame: _Frame, count: int, too_small: dict[int, str]
) -> tuple[_Ints, _Ints, int, int]:
    """Left, top, width, height of a corner; adds to ``too_small``."""
    width, height = _wide(step), _high(step)
    have = np.stack([_per_image(frame.width, count), _per_image(frame.height, count)])
    missing = have < [[width], [height]]
    for row in np.flatnonzero(missing.any(axis=0)).tolist():
        size = f"{have[0, row]} x {have[1, row]} pixels"
        too_small.setdefault(row, f"{size}, less than a corner's {width} x {height}")
    have = np.maximum(have, [[width], [height]])
    return (
        have[0] - width if step.right else 0,
        have[1] - height if step.bottom else 0,
        width,
        height,
    )


def _random_places(
    step: RandomCrop,
    frame: _Frame,
    keys: npt.NDArray[np.uint64],
    draw: int,
    too_small: dict[int, str],
) -> tuple[_Ints, _Ints, int, int]:
    """Left, top, width, height of random crops that have no padding; adds to ``too_small``."""
    width, height = _wide(step), _high(step)
    want = np.array([[width], [height]])
    have = np.stack(np.broadcast_arrays(frame.width, frame.height, keys.view(np.int64))[:2])
    before: npt.NDArray[np.int64] | int = 0
    padded = have
    if step.pad_if_needed:
        before = np.maximum(want - have, 0)
        padded = have + 2 * before
    elif (padded < want).any():
        for row in np.flatnonzero((padded < want).any(axis=0)).tolist():
            too_small.setdefault(
                row,
                f"{have[0, row]} x {have[1, row]} pixels, "
                f"less than RandomCrop's {width} x {height}",
            )
        padded = np.maximum(padded, want)
    places = draws.integers(_rows(keys, 2), draw, padded - want + 1) - before
    return places[0], places[1], width, height


def _rows(keys: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.uint64]:
    """Keys whose draw ``d`` is draw ``d + row`` of those given: one call for several draws."""
    steps = np.arange(count, dtype=np.uint64) * np.uint64(draws.GAMMA)
    rows: npt.NDArray[np.uint64] = keys + steps[:, None]
    return rows


def _random_boxes(
    step: RandomResizedCrop,
    frame_width: _Ints,
    frame_height: _Ints,
    keys: npt.NDArray[np.uint64],
    draw: int,
) -> tuple[_Ints, _Ints, _Ints, _Ints]:
    """Left, top, width, height of boxes drawn as torchvision draws them."""
    count = len(keys)
    boxes = np.empty((4, count), np.int64)
    _native.random_resized_crops(
        np.ascontiguousarray(keys),
        _per_image(frame_width, count),
        _per_image(frame_height, count),
        draw,
        step.scale,
        step.ratio,
        step.in_double,
        boxes,
    )
    return boxes[0], boxes[1], boxes[2], boxes[3]

"""Random resized crops of the core, against the same drawing written in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import numpy_draws
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata import _native
from fastdata.plan import draws
from fastdata.transforms import RandomResizedCrop

_ATTEMPTS = 10


def boxes(step: RandomResizedCrop, width: Any, height: Any, keys: Any, draw: int = 0) -> Any:
    """Left, top, width, height: int32 (4, N)."""
    values = [*step.size, *step.scale, *step.ratio, step.in_double]  # type: ignore[misc]
    drawing = _native.Geometry([("resized_crop", draw, list(map(float, values)), [1])])
    left, upper, right, lower = drawing.draw(width, height, keys)["box"].T
    return np.stack((left, upper, right - left, lower - upper))


@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.integers(0, 2**64 - 1),
    st.integers(0, 100),
    st.tuples(st.floats(1e-4, 1), st.floats(1e-4, 1)).map(lambda pair: tuple(sorted(pair))),
    st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)).map(lambda pair: tuple(sorted(pair))),
    st.booleans(),
)
def test_boxes_are_those_of_numpy(
    width: int, height: int, seed: int, draw: int, scale: Any, ratio: Any, in_double: bool
) -> None:
    step = RandomResizedCrop(224, scale, ratio, in_double=in_double)
    keys = draws.sample_keys(seed, np.arange(64))
    widths, heights = np.full(64, width), np.full(64, height)
    found = boxes(step, widths, heights, keys, draw)
    expected = np.stack(boxes_by_numpy(step, widths, heights, keys, draw))
    # exp() may differ in its last bit, and then a side that lies on one half is rounded
    # otherwise, by one pixel: rarely, but all of them where no area and ratio is drawn.
    assert np.abs(found - expected).max() <= 1
    if scale[1] - scale[0] > 0.01 or ratio[1] - ratio[0] > 0.01:
        assert (found != expected).any(axis=0).mean() <= 2 / 64
    assert (found[2:] >= 1).all()
    assert (found[:2] >= 0).all()
    assert (found[0] + found[2] <= width).all()
    assert (found[1] + found[3] <= height).all()


@pytest.mark.parametrize("in_double", [False, True])
def test_a_million_boxes_differ_in_none_but_a_few(in_double: bool) -> None:
    step = RandomResizedCrop(224, in_double=in_double)
    keys = draws.sample_keys(7, np.arange(1_000_000))
    widths, heights = 300 + np.arange(1_000_000) % 400, 200 + np.arange(1_000_000) % 700
    found = boxes(step, widths, heights, keys)
    expected = np.stack(boxes_by_numpy(step, widths, heights, keys, 0))
    assert (found != expected).any(axis=0).sum() < 10


@pytest.mark.parametrize("wrong", ["keys", "widths", "heights"])
def test_arrays_of_other_lengths_are_refused(wrong: str) -> None:
    given = {"widths": np.ones(4), "heights": np.ones(4), "keys": np.zeros(4, np.uint64)}
    given[wrong] = given[wrong][:3]
    with pytest.raises(ValueError, match="equally long"):
        _native.Geometry([]).draw(**given)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (("squeeze", 0, [], []), "squeeze"),
        (("flip", 0, [], []), "values"),
        (("resize", 0, [1.0, 2.0**31], [1]), "beyond"),
        (("pad", 0, [0.0, 0.0, 0.0, 1e300], []), "beyond"),
        (("random_crop", 0, [1.0, 1.0, 0.0, 0.0, 0.0, -1e300, 0.0], []), "beyond"),
        (("iou_crop", 0, [0.3, 1.0, 0.5, 2.0, 1e300, 1.0, 0.0], []), "beyond"),
        (("resize", 0, [1.0, 1.0], []), "filters"),
        (("flip", 0, [1.0], [1]), "filters"),
        (("resize", 0, [1.0, 1.0], [5]), "filter"),
    ],
)
def test_a_step_that_there_is_not_is_refused(step: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _native.Geometry([step])


def _rows(keys: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.uint64]:
    """Keys whose draw ``d`` is draw ``d + row`` of those given."""
    steps = np.arange(count, dtype=np.uint64) * np.uint64(draws.GAMMA)
    rows: npt.NDArray[np.uint64] = keys + steps[:, None]
    return rows


def boxes_by_numpy(
    step: RandomResizedCrop,
    frame_width: Any,
    frame_height: Any,
    keys: npt.NDArray[np.uint64],
    draw: int,
) -> tuple[Any, Any, Any, Any]:
    """Left, top, width, height of boxes drawn as torchvision draws them."""
    count, lost = len(keys), None
    frame_width = np.broadcast_to(np.asarray(frame_width), (count,))
    frame_height = np.broadcast_to(np.asarray(frame_height), (count,))
    width, height, fits = _attempts(
        step, frame_width, frame_height, numpy_draws.uniforms(_rows(keys, 2), draw)
    )
    if not fits.all():
        # All further attempts of those that failed at once: for some forty samples of 256 one
        # call of numpy costs about the same for nine attempts as for one.
        failed = np.flatnonzero(~fits)
        wide, high = frame_width[failed], frame_height[failed]
        numbers = numpy_draws.uniforms(_rows(keys[failed], 2 * _ATTEMPTS - 2), draw + 2)
        numbers = numbers.reshape(_ATTEMPTS - 1, 2, len(failed)).swapaxes(0, 1)
        widths, heights, fit = _attempts(step, wide, high, numbers)
        first = fit.argmax(axis=0)
        column = np.arange(len(failed))
        none = ~fit[first, column]
        width[failed], height[failed] = widths[first, column], heights[first, column]
        if none.any():
            lost = failed[none]
            width[lost], height[lost] = _central(step, wide[none], high[none])
    box_width, box_height = width.astype(np.int64), height.astype(np.int64)
    room = np.stack((frame_width - box_width, frame_height - box_height))
    places = numpy_draws.integers(_rows(keys, 2), draw + 2 * _ATTEMPTS, room + 1)
    if lost is not None:
        places[:, lost] = room[:, lost] // 2
    return places[0], places[1], box_width, box_height


def _attempts(
    step: RandomResizedCrop,
    frame_width: npt.NDArray[np.int64],
    frame_height: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Widths and heights by uniform numbers for (area, ratio), and whether they fit."""
    (least, most), (low, high) = step.scale, np.log(step.ratio)
    if step.in_double:
        part = least + (most - least) * numbers[0]
        ratio = np.exp(low + (high - low) * numbers[1])
    else:
        part = _single(*step.scale, numbers[0])
        low, high = np.log(np.float32(step.ratio).astype(float))
        ratio = np.float32(np.exp(_single(low, high, numbers[1]))).astype(float)
    area = (frame_width * frame_height) * part
    width, height = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (width <= frame_width) & (height <= frame_height) & (width > 0) & (height > 0)
    return width, height, fits


def _single(low: float, high: float, numbers: npt.NDArray[np.float64]) -> Any:
    """Numbers from low to high of 24 bits each, rounded once to single precision."""
    first, last = np.float32([low, high])
    units = np.floor(numbers * 2**24) / 2**24
    return np.float32(float(first) + float(last - first) * units).astype(float)


def _central(
    step: RandomResizedCrop, width: npt.NDArray[np.int64], height: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The largest box within the ratios, for images that no attempt has fitted."""
    least, most = step.ratio
    narrow, broad = width / height < least, width / height > most
    wide = np.where(broad, np.maximum(np.rint(height * most), 1), width)
    high = np.where(narrow, np.maximum(np.rint(width / least), 1), height)
    return wide, high

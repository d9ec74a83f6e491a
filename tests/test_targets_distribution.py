"""Crops by boxes and zooms out are distributed as torchvision's own draws."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from test_targets import packed  # noqa: F401

from fastdata import ImageDataset

_DRAWS = int(os.environ.get("FASTDATA_CAMPAIGN_DISTRIBUTIONS", "500"))
#: Of both samples; a distance beyond it has a probability of 1 in 100,000 (Kolmogorov, Smirnov).
_MOST = 2.5 * (2 / _DRAWS) ** 0.5
_ROW = 3  # has three boxes


def _ours(packed: Path, transform: Any) -> npt.NDArray[np.float64]:  # noqa: F811
    """Return left, upper, width, height of the result, in the source image, of each draw."""
    dataset = ImageDataset(packed, transforms=transform, fields=("image", "boxes", "geometry"))
    torch.manual_seed(5)
    found = []
    for _, target in dataset.__getitems__([_ROW] * _DRAWS):
        geometry = target["geometry"]
        left, upper = -geometry.matrix[0, 2], -geometry.matrix[1, 2]
        found.append([float(left), float(upper), *map(float, geometry.size)])
    return np.array(found)


def _theirs(
    packed: Path,  # noqa: F811
    transform: Any,
    place: Callable[[dict[str, Any], int, int], list[float]],
) -> npt.NDArray[np.float64]:
    """Return the same of torchvision's own draws."""
    from torchvision import tv_tensors

    image, boxes = ImageDataset(packed, fields=("image", "boxes"))[_ROW]
    size = image.height, image.width
    given = torch.tensor(np.array(boxes), dtype=torch.float32)
    target = tv_tensors.BoundingBoxes(given, format="XYWH", canvas_size=size)
    torch.manual_seed(6)
    make = [transform.make_params([image, target]) for _ in range(_DRAWS)]
    return np.array([place(params, image.width, image.height) for params in make])


def _distance(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    values = np.concatenate([one, other])
    shares = [np.searchsorted(np.sort(x), values, side="right") / len(x) for x in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())


def _assert_alike(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> None:
    for column in range(4):
        assert len(set(ours[:, column])) > 20
        assert _distance(ours[:, column], theirs[:, column]) < _MOST
    assert _distance(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]) < _MOST


@pytest.mark.parametrize("options", [{}, {"sampler_options": [0.2]}, {"min_scale": 0.6}])
def test_crops_by_boxes(packed: Path, v2: Any, options: dict[str, Any]) -> None:  # noqa: F811
    transform = v2.RandomIoUCrop(**options)

    def place(params: dict[str, Any], width: int, height: int) -> list[float]:
        if not params:
            return [0, 0, width, height]
        return [params[name] for name in ("left", "top", "width", "height")]

    ours = _ours(packed, v2.Compose([transform, v2.ToImage()]))
    _assert_alike(ours, _theirs(packed, transform, place))


def test_zooms_out(packed: Path, v2: Any) -> None:  # noqa: F811
    transform = v2.RandomZoomOut(p=1.0)

    def place(params: dict[str, Any], width: int, height: int) -> list[float]:
        left, top, right, bottom = params["padding"]
        return [-left, -top, width + left + right, height + top + bottom]

    ours = _ours(packed, v2.Compose([transform, v2.ToImage()]))
    _assert_alike(ours, _theirs(packed, transform, place))

"""The field ``geometry`` says where each place has gone, as torchvision moves boxes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from test_targets import packed  # noqa: F401

from fastdata import DataLoader, ImageDataset
from fastdata.errors import UsageError
from fastdata.transforms import Compose, RandomHorizontalFlip, Resize

_FIELDS = ("image", "boxes", "geometry")


def _corners(boxes: Any) -> Any:
    x0, y0, x1, y1 = boxes.double().unbind(-1)
    return torch.stack([x0, y0, x1, y0, x1, y1, x0, y1], -1).reshape(-1, 4, 2)


def _moved(geometry: Any, points: Any) -> Any:
    ones = torch.ones(*points.shape[:-1], 1, dtype=torch.float64)
    found = torch.cat([points, ones], -1) @ geometry.matrix.T
    return found[..., :2] / found[..., 2:]


def _around(points: Any, size: Any) -> Any:
    boxes = torch.cat([points.amin(1), points.amax(1)], 1)
    return boxes.clamp(min=0).minimum(size.repeat(2).double())


def _pipelines(v2: Any) -> dict[str, Any]:
    resize = v2.Resize((70, 80))
    return {
        "cut": [v2.RandomResizedCrop(48), v2.RandomHorizontalFlip(1.0)],
        "crop": [v2.Resize(90), v2.RandomCrop(40), v2.RandomHorizontalFlip(0.5)],
        "pad": [v2.Pad((3, 5, 7, 9)), v2.RandomVerticalFlip(1.0)],
        "rotate": [resize, v2.RandomRotation(40, expand=True)],
        "affine": [resize, v2.RandomAffine(30, (0.2, 0.2), (0.7, 1.3), 10)],
        "perspective": [resize, v2.RandomPerspective(0.4, p=1.0)],
        "zoom": [v2.RandomZoomOut(p=1.0), v2.RandomHorizontalFlip(), v2.CenterCrop(40)],
    }


@pytest.mark.parametrize("name", ["cut", "crop", "pad", "rotate", "affine", "perspective", "zoom"])
def test_boxes_follow_the_matrix(packed: Path, v2: Any, name: str) -> None:  # noqa: F811
    transform = v2.Compose([*_pipelines(v2)[name], v2.ToImage()])
    plain = ImageDataset(packed, fields=("image", "boxes"))
    dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
    loader = DataLoader(dataset, 5, num_workers=2, collate_fn=list, require_native=True)
    samples = [sample for batch in loader for sample in batch]
    for row, (image, target) in enumerate(samples):
        stored, boxes = plain[row].values()
        geometry = target["geometry"]
        assert geometry.matrix.dtype == torch.float64
        assert geometry.source_size.tolist() == list(stored.size)
        assert geometry.size.tolist() == [image.shape[2], image.shape[1]]
        whole = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
        whole[:, 2:] += whole[:, :2]
        expected = _around(_moved(geometry, _corners(whole)), geometry.size)
        found = target["boxes"].as_subclass(torch.Tensor).double()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_a_batch_has_one_tensor_of_each(packed: Path) -> None:  # noqa: F811
    transform = Compose([Resize((50, 60)), RandomHorizontalFlip(1.0)])
    dataset = ImageDataset(packed, transforms=transform, fields=("image", "name", "geometry"))
    images, target = next(iter(DataLoader(dataset, 4)))
    matrices, before, after = target["geometry"]
    assert (matrices.shape, before.shape, after.shape) == ((4, 3, 3), (4, 2), (4, 2))
    assert after.tolist() == [[60, 50]] * 4
    assert images.shape == (4, 3, 50, 60)
    for matrix, (width, height) in zip(matrices, before, strict=True):
        expected = [[-60 / width, 0, 60], [0, 50 / height, 0], [0, 0, 1]]
        torch.testing.assert_close(matrix, torch.tensor(expected, dtype=torch.float64))
    one = dataset[0][1]["geometry"]
    torch.testing.assert_close(one.matrix, matrices[0])


def test_mistakes_are_named(packed: Path, v2: Any) -> None:  # noqa: F811
    with pytest.raises(UsageError, match="geometry"):
        ImageDataset(packed, fields=("image", "geometry"))
    transform = v2.Compose([v2.Resize((50, 60)), lambda image, target: (image, target)[::-1]])
    dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
    with pytest.raises(UsageError, match="not known after"):
        dataset[0]


# --- crops by boxes and zooms out: distributed as torchvision's own draws ---------------------

_DRAWS = 400
#: Of both samples; a distance beyond it has a probability of 1 in 100,000 (Kolmogorov, Smirnov).
_MOST = 2.5 * (2 / _DRAWS) ** 0.5
_ROW = 3  # has three boxes


def _ours(packed: Path, transform: Any) -> npt.NDArray[np.float64]:  # noqa: F811
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
    from torchvision import tv_tensors

    image, boxes = ImageDataset(packed, fields=("image", "boxes"))[_ROW].values()
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

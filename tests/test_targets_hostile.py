"""Impossible boxes and labels: torchvision's result, or an error of their sample."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from fastdata.converters import TableImages, pack
from fastdata.converters.options import PackOptions
from PIL import Image

from fastdata import DataLoader, ImageDataset
from fastdata.errors import SampleError

_SIZE = (40, 30)
_NAN, _INF = math.nan, math.inf
#: Boxes that any file may have.
_BOXES: list[Any] = [
    [[_NAN, 1, 20, 20], [1, 1, 20, 20], [1, _NAN, 3, _NAN]],
    [[_INF, 1, _INF, 20], [-_INF, -_INF, _INF, _INF], [1, 1, 20, 20]],
    [],
    [[100, 100, 120, 130], [-50, -50, -10, -10], [1, 1, 5, 5]],
    [[20, 20, 1, 1], [3, 9, 9, 3], [1, 1, 9, 9]],
    [[1e30, 1, 1e38, 20], [1, 1, 2.0**53, 2.0**60], [1, 1, 5, 5]],
    None,
    [[1, 2, 30, 20]],
]


def _packed(folder: Path, boxes: list[Any], labels: list[list[int]]) -> Path:
    for number in range(len(boxes)):
        Image.new("RGB", _SIZE, (number, 0, 0)).save(folder / f"{number}.png")
    table = pa.table(
        {
            "path": [f"{number}.png" for number in range(len(boxes))],
            "boxes": pa.array(boxes, pa.list_(pa.list_(pa.float64()))),
            "labels": pa.array(labels, pa.list_(pa.int64())),
        }
    )
    pack(
        TableImages(table, folder), folder / "packed", workers=1, options=PackOptions(shuffle=False)
    )
    return folder / "packed"


def _dataset(packed: Path, transform: Any) -> ImageDataset:
    fields = ("image", "boxes", "labels")
    return ImageDataset(packed, transforms=transform, fields=fields, formats={"boxes": "xyxy"})


def _samples(dataset: ImageDataset, **options: Any) -> list[Any]:
    loader: Any = DataLoader(dataset, 3, collate_fn=list, require_native=True, **options)
    return [sample for batch in loader for sample in batch]


def _labels() -> list[list[int]]:
    return [list(range(10 * at, 10 * at + len(one or []))) for at, one in enumerate(_BOXES)]


@pytest.fixture(scope="module")
def impossible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _packed(tmp_path_factory.mktemp("impossible"), _BOXES, _labels())


@pytest.mark.parametrize("name", ["resize", "crop", "flip", "rotate", "sanitize", "format"])
def test_impossible_boxes_are_what_torchvision_makes_of_them(
    v2: Any, impossible: Path, name: str
) -> None:
    from torchvision import tv_tensors

    steps = {
        "resize": [v2.Resize((50, 60))],
        "crop": [v2.CenterCrop((20, 20)), v2.SanitizeBoundingBoxes()],
        "flip": [v2.RandomHorizontalFlip(1.0), v2.Pad(3), v2.ClampBoundingBoxes()],
        "rotate": [v2.RandomRotation((30, 30)), v2.SanitizeBoundingBoxes()],
        "sanitize": [v2.SanitizeBoundingBoxes()],
        "format": [v2.ConvertBoundingBoxFormat("CXCYWH")],
    }
    transform = v2.Compose([*steps[name], v2.ToImage()])
    samples = _samples(_dataset(impossible, transform))
    for (_, found), boxes, labels in zip(samples, _BOXES, _labels(), strict=True):
        given = torch.tensor(boxes or [], dtype=torch.float32).reshape(-1, 4)
        target = {
            "boxes": tv_tensors.BoundingBoxes(given, format="XYXY", canvas_size=_SIZE[::-1]),
            "labels": torch.tensor(labels, dtype=torch.int64),
        }
        _, wanted = transform(Image.new("RGB", _SIZE), target)
        pair = (one["boxes"].as_subclass(torch.Tensor) for one in (found, wanted))
        torch.testing.assert_close(*pair, rtol=1e-6, atol=1e-4, equal_nan=True)
        assert torch.equal(found["labels"], wanted["labels"])


_GOOD = [[1.0, 1.0, 9.0, 9.0], [2.0, 2.0, 8.0, 8.0]]


@pytest.mark.parametrize(
    ("boxes", "labels", "words"),
    [
        (_GOOD, [1], "labels has 1 entries for 2 boxes of boxes"),
        (_GOOD, [1, 2, 3], "labels has 3 entries for 2 boxes of boxes"),
        (
            [[1.0, 1.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0]],
            [1, 2],
            "boxes: a list has 3 numbers, not 4",
        ),
        ([None, [1.0, 2.0, 3.0, 4.0]], [1, 2], "boxes: a list has 0 numbers, not 4"),
    ],
)
def test_a_sample_whose_targets_do_not_fit_together_is_bad(
    v2: Any, tmp_path: Path, boxes: list[Any], labels: list[int], words: str
) -> None:
    """The others keep their own boxes and labels, in the same batch and in others."""
    rows = [_GOOD, boxes, _GOOD, _GOOD[:1]]
    packed = _packed(tmp_path, rows, [[10, 11], labels, [30, 31], [40]])
    dataset = _dataset(packed, v2.Compose([v2.SanitizeBoundingBoxes(), v2.ToImage()]))
    with pytest.raises(SampleError, match=f"1.*{words}"):
        _samples(dataset)
    loader: Any = DataLoader(dataset, 1, collate_fn=list, require_native=True)
    alone = iter(loader)
    next(alone)
    with pytest.raises(SampleError, match=f"1.*{words}"):  # a batch of bad samples only
        next(alone)
    assert len(list(alone)) == len(rows) - 2
    with pytest.warns(UserWarning, match=words):
        samples = _samples(dataset, on_error="drop")
    assert len(samples) == len(rows) - 1
    expected = {0: (_GOOD, [10, 11]), 2: (_GOOD, [30, 31]), 3: (_GOOD[:1], [40])}
    for image, target in samples:
        pair = target["boxes"].tolist(), target["labels"].tolist()
        assert pair == expected[int(image[0, 0, 0])]


@pytest.mark.parametrize("size", [(), (20, 20)])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_no_crop_fits_is_bad(
    v2: Any, tmp_path: Path, size: tuple[int, ...], workers: int
) -> None:
    """torchvision's loop does not end there."""
    rows = [[[0.0, 0.0, 40.0, 30.0]], [[1.0, 1.0, 3.0, 3.0]], [[0.0, 0.0, 40.0, 30.0]]]
    packed = _packed(tmp_path, rows, [[0], [1], [2]])
    steps = [v2.RandomAutocontrast(1.0), v2.RandomIoUCrop(0.8, sampler_options=[0.6], trials=9)]
    resize = [v2.Resize(size)] if size else []
    dataset = _dataset(packed, v2.Compose([*steps, *resize, v2.ToImage()]))
    loader: Any = DataLoader(dataset, 1, collate_fn=list, require_native=True, num_workers=workers)
    batches = iter(loader)
    assert next(batches)[0][1]["labels"].tolist() == [0]
    with pytest.raises(SampleError, match="sample 1 "):
        next(batches)
    assert next(batches)[0][1]["labels"].tolist() == [2]
    with pytest.raises(StopIteration):
        next(batches)
    with pytest.raises(SampleError, match="sample 1 "):
        dataset.__getitems__([1])
    with pytest.warns(UserWarning, match="could not be decoded"):
        samples = _samples(dataset, on_error="drop", num_workers=workers)
    assert [target["labels"].item() for _, target in samples] == [0, 2]


def test_key_points_of_another_form_cost_their_sample(v2: Any, tmp_path: Path) -> None:
    good = [[1.0, 2.0, 1.0] * 3] * 2
    rows = [[[]] * 9 + [[1.0, 2.0]], [good[0], [1.0] * 6], good, [[1.0, 2.0]] * 2, good]
    for number in range(len(rows)):
        Image.new("RGB", _SIZE, (number, 0, 0)).save(tmp_path / f"{number}.png")
    paths = [f"{number}.png" for number in range(len(rows))]
    table = pa.table({"path": paths, "points": pa.array(rows, pa.list_(pa.list_(pa.float32())))})
    pack(
        TableImages(table, tmp_path),
        tmp_path / "packed",
        workers=1,
        options=PackOptions(shuffle=False),
    )
    dataset = ImageDataset(
        tmp_path / "packed",
        transforms=v2.Compose([v2.Pad(1), v2.ToImage()]),
        fields=("image", "points"),
        formats={"points": "xyv"},
    )
    for size in (1, 5):
        batches = iter(DataLoader(dataset, size, collate_fn=list, require_native=True))
        for row in range(0, len(rows), size):
            if row in (0, 1, 3):
                with pytest.raises(SampleError, match=f"sample {row} .*points"):
                    next(batches)
            else:
                ((_, target),) = next(batches)
                assert target["points"].tolist() == [[[2.0, 3.0]] * 3] * 2
    with pytest.warns(UserWarning, match="could not be decoded"):
        samples = _samples(dataset, on_error="drop")
    assert [int(image[0, 1, 1]) for image, _ in samples] == [2, 4]
    for row in (0, 1, 3):
        with pytest.raises(SampleError, match=f"sample {row} .*points"):
            dataset[row]
    assert dataset[2][1]["points"].tolist() == [[[2.0, 3.0]] * 3] * 2

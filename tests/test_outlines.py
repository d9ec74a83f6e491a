"""Masks of objects, painted from polygons and run lengths after their image's geometry."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from containers import edit_manifest
from fastdata.converters import TableImages, pack
from outline_data import cocos_mask, columns, painted, random_outline
from PIL import Image

from fastdata import DataLoader, ImageDataset
from fastdata.errors import SampleError, UsageError

_FIELDS = ("image", "boxes", "labels", "masks")
_ROWS = 12


@cache
def _images() -> list[tuple[tuple[int, int], list[Any]]]:
    """Sizes and outlines; a mask has some pixels, so that it has a box."""
    draw = np.random.default_rng(3)
    found = []
    for number in range(_ROWS):
        width, height = (int(side) for side in draw.integers(40, 90, 2))
        outlines: list[Any] = []
        while len(outlines) < number % 4:
            outline = random_outline(draw, width, height)
            if cocos_mask(outline, width, height).any():
                outlines.append(outline)
        found.append(((width, height), outlines))
    return found


@cache
def _masks(row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    (width, height), outlines = _images()[row]
    empty = np.empty((0, height, width), np.uint8)
    return np.stack([cocos_mask(one, width, height) for one in outlines]) if outlines else empty


def _box(mask: Any) -> list[float]:
    rows, columns_ = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    left, top = columns_[0], rows[0]
    return [left, top, columns_[-1] + 1 - left, rows[-1] + 1 - top]


def _packed(folder: Path, change: Callable[[dict[str, list[Any]]], None] | None = None) -> Path:
    values: dict[str, list[Any]] = {"path": [], "boxes": [], "labels": []}
    for row in range(_ROWS):
        masks = _masks(row)
        Image.fromarray(masks.any(0) * np.uint8(255)).convert("RGB").save(folder / f"{row}.png")
        values["path"].append(f"{row}.png")
        values["boxes"].append([[float(side) for side in _box(mask)] for mask in masks])
        values["labels"].append([10 * row + number for number in range(len(masks))])
    lists = columns([outlines for _, outlines in _images()])
    values |= {name: column.to_pylist() for name, column in lists.items()}
    if change is not None:
        change(values)
    types = {name: column.type for name, column in lists.items()}
    types |= {"boxes": pa.list_(pa.list_(pa.float32(), 4)), "labels": pa.list_(pa.int32())}
    types |= {"path": pa.string()}
    table = pa.table({name: pa.array(column, types[name]) for name, column in values.items()})
    out = folder / "packed"
    pack(TableImages(table, folder), out, workers=1)

    def mean(fields: dict[str, Any]) -> None:
        formats = {"boxes": "xywh", "polygons": "polygons", "rle": "rle"}
        for field in fields["fields"]:
            if field["name"] in formats:
                field["format"] = formats[field["name"]]

    edit_manifest(out, mean)
    return out


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _packed(tmp_path_factory.mktemp("outlines"))


def _as_torchvision(packed: Path, row: int, transform: Any) -> Any:
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional

    plain = ImageDataset(packed, fields=("image", "boxes", "labels"))
    image, boxes, labels = plain[row].values()
    given = torch.tensor(np.array(boxes), dtype=torch.float32).reshape(-1, 4)
    about: dict[str, Any] = {"format": "XYWH", "canvas_size": (image.height, image.width)}
    found = tv_tensors.BoundingBoxes(given, **about)
    target = {
        "boxes": functional.convert_bounding_box_format(found, new_format="XYXY"),
        "labels": torch.tensor(np.array(labels), dtype=torch.int64),
        "masks": tv_tensors.Mask(torch.from_numpy(_masks(row))),
    }
    return transform(image, target)


def _pipelines(v2: Any) -> dict[str, Any]:
    from torchvision.tv_tensors import Mask

    resize, tail = v2.Resize((50, 60)), [v2.ToImage()]
    return {
        "shorter": [v2.Resize(30, max_size=50), *tail],
        "crop": [v2.CenterCrop(48), v2.SanitizeBoundingBoxes(9, 200), v2.Resize((30, 30)), *tail],
        "flip": [v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0), v2.Resize(33), *tail],
        "pads": [v2.Pad((3, 5, 7, 9), fill={Mask: 1, "others": 0}), resize, *tail],
        "rotate": [resize, v2.RandomRotation((30, 30)), *tail],
        "warp": [v2.RandomAffine((20, 20), scale=(0.7, 0.7)), resize, *tail],
        "pure": [resize, *tail, v2.ToPureTensor()],
    }


@pytest.mark.parametrize("name", ["shorter", "crop", "flip", "pads", "rotate", "warp", "pure"])
def test_masks_are_what_torchvision_makes_of_them(v2: Any, packed: Path, name: str) -> None:
    transform = v2.Compose(_pipelines(v2)[name])
    dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
    loader = DataLoader(dataset, 5, num_workers=2, collate_fn=list, require_native=True)
    samples = [sample for batch in loader for sample in batch]
    assert len(samples) == _ROWS
    copied = pickle.loads(pickle.dumps(dataset))
    for row, sample in enumerate(samples):
        _, wanted = _as_torchvision(packed, row, transform)
        for _, target in (sample, copied[row], dataset.__getitems__([row])[0]):
            assert list(target) == list(wanted)
            assert type(target["masks"]) is type(wanted["masks"])
            assert target["masks"].dtype == torch.uint8
            assert torch.equal(
                *(one["masks"].as_subclass(torch.Tensor) for one in (target, wanted))
            )
            assert torch.equal(target["labels"], wanted["labels"])


def test_masks_follow_what_is_drawn_for_their_image(v2: Any, packed: Path) -> None:
    """Images are white where an object is, and no step mixes pixels."""
    steps = [
        [v2.RandomZoomOut(), v2.RandomIoUCrop(), v2.RandomHorizontalFlip()],
        [v2.RandomCrop(40, padding=9, pad_if_needed=True), v2.RandomVerticalFlip()],
        [v2.RandomPhotometricDistort(p=0), v2.RandomZoomOut(), v2.CenterCrop(70)],
    ]
    for some in steps:
        transform = v2.Compose([*some, v2.ToImage()])
        dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
        about: dict[str, Any] = {"seed": 5, "shuffle": True, "collate_fn": list}
        loader = DataLoader(dataset, 5, num_workers=2, require_native=True, **about)
        seen = set()
        for epoch in range(3):
            loader.set_epoch(epoch)
            for image, target in (sample for batch in loader for sample in batch):
                masks = target["masks"]
                assert masks.shape == (len(target["labels"]), *image.shape[1:])
                assert torch.equal(image[0], masks.sum(0).clamp(max=1).to(torch.uint8) * 255)
                seen.add(tuple(masks.shape[1:]))
        assert len(seen) > 9 or isinstance(some[-1], v2.CenterCrop | v2.RandomVerticalFlip)


def _short(polygon: list[float]) -> Any:
    def change(values: dict[str, list[Any]]) -> None:
        values["polygons"][3][1], values["rle"][3][1] = [polygon], None

    return change


def _run(**changes: Any) -> Any:
    def change(values: dict[str, list[Any]]) -> None:
        width, height = _images()[3][0]
        run = {"size": [height, width], "counts": [0, width * height]}
        values["polygons"][3][1], values["rle"][3][1] = [], {**run, **changes}

    return change


def _fewer(values: dict[str, list[Any]]) -> None:
    values["polygons"][3].pop()


def _other_boxes(values: dict[str, list[Any]]) -> None:
    values["boxes"][3].pop()
    values["labels"][3].pop()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_short([1.0, 2.0, 30.0, 40.0]), "object 1 has a polygon of fewer than three corners"),
        (_short([]), "object 1 has a polygon of fewer than three corners"),
        (_short([1.0, 2.0, 30.0, 40.0, float("nan"), 9.0]), "object 1 has a coordinate"),
        (_short([1.0, 2.0, float("inf"), 40.0, 5.0, 9.0]), "object 1 has a coordinate"),
        (_short([1.0, 2.0, 1e9, 40.0, 5.0, 9.0]), "object 1 has a coordinate"),
        (_run(counts=[5, 6]), "object 1 has run lengths that do not sum"),
        (_run(counts=[1 << 31, 1 << 31]), "object 1 has run lengths that do not sum"),
        (_run(size=[3, 4]), "object 1 has run lengths for an image of another size"),
        (_fewer, "it has 2 polygons, and 3 rle"),
        (_other_boxes, "it has 3 polygons, and 2 boxes"),
    ],
)
def test_outlines_that_are_no_masks_are_errors_of_their_sample(
    v2: Any, tmp_path: Path, change: Any, message: str
) -> None:
    out = _packed(tmp_path, change)
    transform = v2.Compose([v2.Resize((50, 60)), v2.SanitizeBoundingBoxes(), v2.ToImage()])
    dataset = ImageDataset(out, transforms=transform, fields=_FIELDS)
    with pytest.raises(SampleError, match=f"3.*{message}"):
        list(DataLoader(dataset, 5, num_workers=2, collate_fn=list))
    if change is not _other_boxes:  # which only the transform notices
        with pytest.raises(SampleError, match=f"3.*{message}"):
            dataset[3]
    loader = DataLoader(dataset, 5, num_workers=2, collate_fn=list, on_error="drop")
    with pytest.warns(match=message):
        samples = [sample for batch in loader for sample in batch]
    assert len(samples) == _ROWS - 1
    for _, target in samples:
        assert len(target["masks"]) == len(target["labels"])


def test_masks_need_transforms_and_outlines(v2: Any, packed: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="transforms="):
        ImageDataset(packed, fields=("image", "masks"))
    plain = tmp_path / "plain.png"
    Image.new("RGB", (5, 5)).save(plain)
    pack(TableImages(pa.table({"path": ["plain.png"]}), tmp_path), tmp_path / "out")
    with pytest.raises(UsageError, match="no field 'masks'"):
        ImageDataset(tmp_path / "out", transforms=v2.ToImage(), fields=("image", "masks"))


def test_thin_images_many_objects_and_sides_beyond_the_cores() -> None:
    for width, height in [(1, 1), (1, 7), (7, 1), (640, 2)]:
        outline = [[0.0, 0.0, float(width), 0.0, float(width), float(height), 0.0, float(height)]]
        ((mask,),), failures = painted([[outline]], [(width, height)])
        assert not failures
        np.testing.assert_array_equal(mask, cocos_mask(outline, width, height))
    outline = [[0.0, 0.0, 3.0, 0.0, 3.0, 3.0]]
    (masks,), failures = painted([[outline] * 100_000], [(5, 4)])
    assert not failures and (masks == cocos_mask(outline, 5, 4)).all()
    _, failures = painted([[outline]], [((1 << 24) + 1, 1)])
    assert [(place, code) for place, code, *_ in failures] == [(0, "too_large")]

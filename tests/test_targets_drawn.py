"""Boxes and key points follow drawn transforms as torchvision's functions move them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from fastdata.converters import TableImages, pack
from PIL import Image

from fastdata import DataLoader, ImageDataset, _native
from fastdata.errors import UsageError
from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.transforms import CenterCrop, RandomCrop
from fastdata.transforms.outcomes import without_fixed_size
from fastdata.transforms.targets import ClampBoundingBoxes, RandomIoUCrop, SanitizeBoundingBoxes
from fastdata.transforms.tree import native_program

SAMPLES = int(os.environ.get("FASTDATA_CAMPAIGN_TARGETS", "640"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))
_ROWS = 32
_FORMATS = ("xyxy", "xywh", "cxcywh", "relative xyxy")
_POINTS = 3


def _boxes(rng: Any, count: int, width: int, height: int) -> Any:
    """Boxes anywhere: within the image, at and beyond its edges, of no size."""
    size = np.array([width, height])
    one, other = (rng.uniform(-0.2, 1.2, (count, 2)) * size for _ in range(2))
    boxes = np.concatenate([np.minimum(one, other), np.maximum(one, other)], 1)
    inside = boxes.clip(0, np.tile(size, 2))
    for box in range(count):
        kind = rng.integers(5)
        if kind < 3:
            boxes[box] = inside[box].round() if kind == 1 else inside[box]
        elif kind == 3:
            boxes[box, 2:] = boxes[box, :2] + rng.integers(0, 2, 2) * rng.uniform(0, 9, 2)
    return boxes.astype(np.float32)


def _in_format(boxes: Any, meaning: str, width: int, height: int) -> Any:
    sides = boxes[:, 2:] - boxes[:, :2]
    if meaning.startswith("relative"):
        return boxes / np.tile(np.array([width, height], np.float32), 2)
    first = {"xyxy": boxes[:, :2], "xywh": boxes[:, :2], "cxcywh": boxes[:, :2] + sides / 2}
    return np.concatenate([first[meaning], boxes[:, 2:] if meaning == "xyxy" else sides], 1)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    rng = np.random.default_rng(SEED)
    rows = []
    for number in range(_ROWS):
        width, height = (int(side) for side in rng.integers(24, 160, 2))
        Image.new("RGB", (width, height), (number, 0, 0)).save(folder / f"{number}.png")
        boxes = _boxes(rng, number % 5, width, height)
        points = rng.uniform(-0.1, 1.1, (len(boxes), _POINTS, 2)) * (width, height)
        formats = {one: _in_format(boxes, one, width, height).tolist() for one in _FORMATS}
        row = {one.replace(" ", "_"): found for one, found in formats.items()}
        labels = (np.arange(len(boxes)) + 100 * number).tolist()
        points = points.astype(np.float32).reshape(-1, 2 * _POINTS).tolist()
        rows.append({"path": f"{number}.png", **row, "labels": labels, "points": points})
    table = pa.Table.from_pylist(rows)
    at = table.column_names.index("points")
    fixed = table["points"].cast(pa.list_(pa.list_(pa.float32(), 2 * _POINTS)))
    table = table.set_column(at, "points", fixed)
    meanings = {"points": "xy", **{one.replace(" ", "_"): one for one in _FORMATS}}
    pack(TableImages(table, folder, formats=meanings), folder / "packed", workers=1)
    return folder / "packed"


# --- pipelines -------------------------------------------------------------------------------


def _padding(rng: Any, most: int = 20) -> list[int]:
    return [int(side) for side in rng.integers(0, most, 4)]


def _fixed(v2: Any, rng: Any) -> list[Callable[[], Any]]:
    """Transforms that draw nothing: their parameters are drawn here."""
    side = lambda least=20, most=150: int(rng.integers(least, most))  # noqa: E731
    angle = lambda: float(rng.choice([rng.uniform(-180, 180), 90, 180, -90, 0]))  # noqa: E731
    centre = lambda: rng.choice([None, 1]) and rng.uniform(0, 80, 2).tolist()  # noqa: E731

    def rotation() -> Any:
        degrees, expand = angle(), bool(rng.integers(2))
        return v2.RandomRotation((degrees, degrees), expand=expand, center=centre())

    def affine() -> Any:
        degrees, scale, shear = angle(), rng.uniform(0.4, 2), rng.uniform(-40, 40, 2).tolist()
        shear = [shear[0], shear[0], shear[1], shear[1]]
        return v2.RandomAffine((degrees, degrees), None, (scale, scale), shear, center=centre())

    def shorter() -> Any:
        size = side()
        return v2.Resize(size, max_size=size + side(1, 60) if rng.integers(2) else None)

    def jitter() -> Any:
        factor = rng.uniform(0.3, 2)
        return v2.ScaleJitter((side(), side()), (factor, factor))

    return [
        lambda: v2.RandomHorizontalFlip(1.0),
        lambda: v2.RandomVerticalFlip(1.0),
        lambda: v2.Resize((side(), side())),
        shorter,
        lambda: v2.CenterCrop((side(), side())),
        lambda: v2.Pad(_padding(rng), fill=7),
        rotation,
        affine,
        jitter,
        lambda: v2.RandomShortestSize([side()], max_size=side(100, 200)),
        lambda: v2.ClampBoundingBoxes(),
        lambda: v2.SanitizeBoundingBoxes(float(rng.uniform(1, 9)), float(rng.uniform(1, 60))),
        lambda: v2.SanitizeBoundingBoxes(),
    ]


def _random(v2: Any, rng: Any) -> list[Callable[[], Any]]:
    fixed = _fixed(v2, rng)
    side = lambda least=20, most=150: int(rng.integers(least, most))  # noqa: E731

    def crop() -> Any:
        padding = _padding(rng) if rng.integers(2) else None
        return v2.RandomCrop((side(), side()), padding, pad_if_needed=True)

    def resize() -> Any:
        least = side()
        return v2.RandomResize(least, least + side(2, 80))

    inner = (
        lambda: v2.RandomHorizontalFlip(0.5),
        lambda: v2.RandomVerticalFlip(0.5),
        lambda: v2.Pad(_padding(rng, 9)),
        lambda: v2.RandomRotation(40),
    )
    some = lambda: [inner[one]() for one in rng.integers(0, len(inner), 2)]  # noqa: E731
    return [
        lambda: v2.RandomHorizontalFlip(0.5),
        lambda: v2.RandomVerticalFlip(0.5),
        crop,
        lambda: v2.RandomResizedCrop((side(), side())),
        lambda: v2.RandomRotation(60, expand=bool(rng.integers(2))),
        lambda: v2.RandomAffine(30, (0.1, 0.2), (0.5, 1.5), 20),
        lambda: v2.RandomPerspective(0.5, 1.0),
        lambda: v2.ScaleJitter((side(), side())),
        lambda: v2.RandomShortestSize([side(), side(), side()], max_size=160),
        resize,
        lambda: v2.RandomIoUCrop(),
        lambda: v2.RandomIoUCrop(0.1, 0.9, 0.3, 3, [0.0, 0.2, 1.0], 5),
        lambda: v2.RandomZoomOut(fill=3, side_range=(1.0, 2.0), p=0.7),
        lambda: v2.RandomApply(some(), p=0.5),
        lambda: v2.RandomChoice(some()),
        lambda: v2.RandomOrder(some()),
        lambda: v2.ColorJitter(0.2, 0.2),
        *(fixed[at] for at in (2, 3, 4, 5, 10, 11)),
    ]


def _pipeline(v2: Any, rng: Any, makers: list[Callable[[], Any]], number: int) -> list[Any]:
    chosen = [number % len(makers), *rng.integers(0, len(makers), rng.integers(0, 4))]
    found = [makers[at]() for at in rng.permutation(chosen)]
    # Tensors expand to other sizes than PIL images: the core does the latter.
    first = max((at for at, one in enumerate(found, 1) if getattr(one, "expand", False)), default=0)
    at = int(rng.integers(first, len(found) + 1))
    return [*found[:at], v2.ToImage(), *found[at:]]


# --- what is right ---------------------------------------------------------------------------


class Oracle:
    def __init__(self, v2: Any, target: dict[str, Any], size: tuple[int, int]) -> None:
        self._v2, self._functional = v2, v2.functional
        self.boxes, self.points = target["boxes"], target["points"]
        self.labels, self.size = target["labels"], size
        #: Conversions and moves so far, and the longest side that the image had.
        self.moves, self.side = 1, max(size)
        #: Whether torchvision expands targets to another size than a PIL image, by a pixel.
        self.differs = False

    def both(self, name: str, *args: Any, **options: Any) -> None:
        function = getattr(self._functional, name)
        self.boxes = function(self.boxes, *args, **options)
        self.points = function(self.points, *args, **options)
        height, width = self.points.canvas_size
        self.size = width, height
        self.moves, self.side = self.moves + 1, max(self.side, *self.size)

    def sanitize(self, min_size: float, min_area: float) -> None:
        step = self._v2.SanitizeBoundingBoxes(min_size, min_area)
        found = step({"boxes": self.boxes, "labels": self.labels})
        self.boxes, self.labels = found["boxes"], found["labels"]

    def _shift(self, by: list[float]) -> None:
        from torchvision.tv_tensors import wrap

        self.boxes = wrap(
            self.boxes.as_subclass(torch.Tensor) + torch.tensor(2 * by), like=self.boxes
        )
        self.points = wrap(
            self.points.as_subclass(torch.Tensor) + torch.tensor(by), like=self.points
        )

    def clamp(self) -> None:
        self.boxes = self._functional.clamp_bounding_boxes(self.boxes)

    def iou_crop(self, left: int, top: int, width: int, height: int) -> None:
        x, y = ((self.boxes[:, at] + self.boxes[:, at + 2]) * 0.5 for at in (0, 1))
        kept = (left < x) & (x < left + width) & (top < y) & (y < top + height)
        where = {"left": left, "top": top, "width": width, "height": height}
        self.boxes = self._v2.RandomIoUCrop().transform(
            self.boxes, {**where, "is_within_crop_area": kept}
        )
        self.points = self._functional.crop(self.points, top, left, height, width)
        self.size = width, height

    def called(self, name: str, values: list[float]) -> None:
        whole = [int(value) for value in values[:4]]
        match name:
            case "flip_horizontal" | "flip_vertical":
                self.both("_".join(reversed(name.split("_"))))
            case "resize":
                self.both("resize", whole[1::-1])
            case "pad":
                self.both("pad", whole)
            case "crop":
                self.both("crop", whole[1], whole[0], whole[3], whole[2])
            case "iou_crop":
                self.iou_crop(*whole)
            case "shift_targets":  # before a pad: torchvision's center_crop, for images
                self._shift(values)
            case "clamp_boxes":
                self.clamp()
            case "sanitize_boxes":
                self.sanitize(*values[:2])
            case "perspective" | "tensor_perspective":
                self.both("perspective", None, None, coefficients=values[:8])
            case "affine" | "tensor_affine":
                self._affine(name, values)
            case _:
                assert name in ("brightness", "contrast", "tensor_contrast", "warp_masks"), name

    def _affine(self, name: str, values: list[float]) -> None:
        """Move by the inverse of a map: that of a rotation, a scale, a shear along x, a move."""
        a, b, c, d, e, f = values[:6]
        if name == "affine" and tuple(values[10:]) != self.size:
            self.both("rotate", math.degrees(math.atan2(d, a)), expand=True)
            self.differs |= self.size != tuple(values[10:])
            return
        (a, b, c), (d, e, f), _ = np.linalg.inv([[a, b, c], [d, e, f], [0, 0, 1]]).tolist()
        scale, angle = math.hypot(a, d), math.atan2(d, a)
        assert math.isclose(a * e - b * d, scale**2), "it has another shear"
        shear = -math.atan((a * b + d * e) / scale**2)
        centre = None if name == "tensor_affine" else [0.0, 0.0]
        about = math.degrees(angle), [c, f], scale, [math.degrees(shear), 0.0]
        self.both("affine", *about, center=centre)

    def cut(self, step: Any, matrix: Any, canvas: tuple[int, int]) -> None:
        """Do a step of the geometry, which the matrix describes; ``canvas``: its result's size."""
        if isinstance(step, CenterCrop):
            return self.both("center_crop", list(canvas[::-1]))
        if isinstance(step, ClampBoundingBoxes):
            return self.clamp()
        if isinstance(step, SanitizeBoundingBoxes):
            return self.sanitize(step.min_size, step.min_area)
        if matrix[0, 0] < 0:
            return self.both("horizontal_flip")
        if matrix[1, 1] < 0:
            return self.both("vertical_flip")
        across, down = matrix[0, 0], matrix[1, 1]
        exact = -matrix[0, 2] / across, -matrix[1, 2] / down, canvas[0] / across, canvas[1] / down
        part = [round(value) for value in exact]
        np.testing.assert_allclose(part, exact, rtol=0, atol=1e-6)
        if isinstance(step, RandomCrop):
            left, top = self._pad_for(step)
            part = [part[0] + left, part[1] + top, *part[2:]]
        if isinstance(step, RandomIoUCrop) and part != [0, 0, *self.size]:
            return self.iou_crop(*part)
        if part != [0, 0, *self.size]:
            self.both("crop", part[1], part[0], part[3], part[2])
        if canvas != self.size:
            self.both("resize", list(canvas[::-1]))
        return None

    def _pad_for(self, step: Any) -> tuple[int, int]:
        """Pad before a random crop; return the pixels at the left and at the top."""
        left, top, right, bottom = step.padding
        width, height = self.size
        if step.pad_if_needed:
            missing = max(step.target[0] - width - left - right, 0)
            left, right = left + missing, right + missing
            missing = max(step.target[1] - height - top - bottom, 0)
            top, bottom = top + missing, bottom + missing
        if left or top or right or bottom:
            self.both("pad", [left, top, right, bottom])
        return left, top


def _do_as_drawn(oracle: Oracle, program: Any, key: Any) -> None:
    boxes, points = oracle.boxes.numpy(), oracle.points.numpy().reshape(-1, 2)
    ends = [np.array([0, len(one)]) for one in (boxes, points)]
    wide, high = (np.array([side], np.int32) for side in oracle.size)

    def cut(steps: Any) -> tuple[Any, Any, Any]:
        targets = _native.Targets(wide, high, boxes, ends[0], points, ends[1])
        (drawn,), *_, (matrix,) = targets.move(native_program((), leading=steps), key)
        return drawn, matrix, targets

    before = np.eye(3)
    for number, step in enumerate(program.steps, 1):
        drawn, matrix, _ = cut(program.steps[:number])
        oracle.cut(step, matrix @ np.linalg.inv(before), tuple(drawn["canvas"].tolist()))
        before = matrix
    drawn, _, targets = cut(program.steps)
    calls, *_ = native_program(program.pixels).draw(int(key[0]), *drawn["canvas"].tolist(), targets)
    for name, values in calls:
        oracle.called(name, values)


# --- tests -----------------------------------------------------------------------------------


def _given(v2: Any, packed: Path) -> list[tuple[Any, dict[str, Any]]]:
    from torchvision import tv_tensors

    plain: Any = ImageDataset(packed, fields=("image", "xyxy", "labels", "points"))
    found = []
    for image, boxes, labels, points in (sample.values() for sample in plain):
        about = {"canvas_size": (image.height, image.width)}
        corners = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
        places = torch.tensor(points, dtype=torch.float32).reshape(-1, _POINTS, 2)
        target = {
            "boxes": tv_tensors.BoundingBoxes(corners, format="XYXY", **about),
            "labels": torch.tensor(labels, dtype=torch.int64),
            "points": tv_tensors.KeyPoints(places, **about),
        }
        found.append((image, target))
    return found


def _delivered(packed: Path, transform: Any, meaning: str, seed: int) -> tuple[Any, list[Any]]:
    boxes = meaning.replace(" ", "_")
    names = ("image", boxes, "labels", "points")
    dataset = ImageDataset(packed, transforms=transform, fields=names)
    loader: Any = DataLoader(
        dataset, _ROWS, seed=seed, num_workers=0, collate_fn=list, require_native=True
    )
    (samples,) = loader
    for _, target in samples:
        target["boxes"] = target.pop(boxes)
    return dataset, samples


def _assert_near(found: Any, wanted: Any, moves: int, side: int, about: str) -> None:
    """Compare within what single precision rounds.

    A move is a sum of three products with rounded factors: five roundings in torchvision, which
    ``expand`` doubles, and two in the core, so 12 of 2**-24 at most. Boxes are converted from their
    format in four. Rounded numbers are as large as the image or, outside of it, as coordinates. A
    perspective divides by a number that is as much smaller as its result is larger: that magnifies
    roundings by the distance in images.
    """
    assert type(found) is type(wanted), about
    assert found.shape == wanted.shape, about
    if found.numel():  # torchvision's sizes of no boxes may be those before
        assert found.canvas_size == wanted.canvas_size, about
    one, other = (value.as_subclass(torch.Tensor) for value in (found, wanted))
    reach = other.abs().nan_to_num(0, 0, 0)
    if reach.numel():
        reach = reach.amax(-1, keepdim=True).clamp(min=side)
    near = 12 * 2**-24 * moves * reach * (reach / side)
    off = ((one - other).abs() > near) | (one.isnan() != other.isnan())
    assert not off.any(), f"{about}: {one[off]} for {other[off]}"


def _compare(
    sample: Any, wanted: dict[str, Any], size: Any, moves: int, side: int, about: str
) -> None:
    image, target = sample
    assert tuple(image.shape[-2:]) == tuple(size[::-1]), about
    assert torch.equal(target["labels"], wanted["labels"]), about
    for name in ("boxes", "points"):
        _assert_near(target[name], wanted[name], moves, side, about)


def _tries(share: float) -> range:
    return range(max(1, round(SAMPLES * share / _ROWS)))


def test_transforms_that_draw_nothing_are_torchvisions_own(v2: Any, packed: Path) -> None:
    rng = np.random.default_rng((SEED, 1))
    makers, given = _fixed(v2, rng), _given(v2, packed)
    for number in _tries(0.5):
        steps = _pipeline(v2, rng, makers, number)
        transform = v2.Compose(steps)
        meaning = _FORMATS[number % len(_FORMATS)]
        _, samples = _delivered(packed, transform, meaning, number)
        for row, (sample, (image, target)) in enumerate(zip(samples, given, strict=True)):
            about = f"pipeline {number}, row {row}, {meaning}: {steps}"
            wanted, moved, side = image, target, max(image.size)
            try:
                for step in steps:
                    wanted, moved = step(wanted, moved)
                    side = max(side, *v2.functional.get_size(wanted))
            except ValueError as error:  # torchvision expands targets to sizes of their own
                assert "multiple HxW" in str(error), about
                assert any(getattr(step, "expand", False) for step in steps), about
                continue
            points = moved["points"]
            if points.numel() and points.canvas_size != wanted.shape[-2:]:
                assert any(getattr(step, "expand", False) for step in steps)
                continue  # torchvision expands boxes to another size than a PIL image
            size = wanted.shape[-1], wanted.shape[-2]
            _compare(sample, moved, size, 1 + len(steps), side, about)


def test_what_is_drawn_is_done_as_torchvision_does_it(v2: Any, packed: Path) -> None:
    rng = np.random.default_rng((SEED, 2))
    makers, given = _random(v2, rng), _given(v2, packed)
    for number in _tries(0.5):
        steps = _pipeline(v2, rng, makers, number)
        meaning = _FORMATS[number % len(_FORMATS)]
        dataset, samples = _delivered(packed, v2.Compose(steps), meaning, number)
        keys = sample_keys(epoch_key(number, 0), np.arange(_ROWS))
        (program,) = without_fixed_size(dataset._compiled()).programs
        for row, (sample, (image, target)) in enumerate(zip(samples, given, strict=True)):
            oracle = Oracle(v2, target, image.size)
            _do_as_drawn(oracle, program, keys[row : row + 1])
            about = f"pipeline {number}, row {row}, {meaning}: {steps}"
            if oracle.differs:
                continue
            found = {"boxes": oracle.boxes, "labels": oracle.labels, "points": oracle.points}
            _compare(sample, found, oracle.size, oracle.moves, oracle.side, about)


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_boxes_are_not_padded_by_pixels(v2: Any, packed: Path, mode: str) -> None:
    pads = v2.Pad(4, padding_mode=mode), v2.RandomCrop(30, 4, padding_mode=mode)
    for pad in pads:
        transform = v2.Compose([v2.Resize((40, 40)), pad, v2.ToImage()])
        dataset = ImageDataset(packed, transforms=transform, fields=("image", "xyxy"))
        with pytest.raises(ValueError, match="not supported with bounding boxes"):
            dataset[1]
        with pytest.raises(UsageError, match=f"does not pad boxes and key points by '{mode}'"):
            DataLoader(dataset, 4, require_native=True)

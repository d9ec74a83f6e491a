"""Published detection and segmentation scripts run natively, as torchvision runs them."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import published_targets as published
import pytest
import torch
from published_targets import BoundingBoxes, F, Mask, T, tv_tensors
from test_targets import _as_torchvision, _assert_same, packed  # noqa: F401

from fastdata import DataLoader, ImageDataset
from fastdata.errors import SlowPathWarning
from fastdata.transforms import FixedSizeCrop
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.joint import Joint, Target
from fastdata.transforms.outcomes import Refusal

_FIELDS = ("image", "boxes", "labels", "keypoints", "name")


def _ops(*augmentations: Any) -> list[Any]:
    return [
        *augmentations,
        T.SanitizeBoundingBoxes(min_size=1),
        T.Resize((64, 48)),
        T.SanitizeBoundingBoxes(min_size=1),
        published.ConvertPILImage(),
        published.ConvertBoxes("cxcywh", normalize=True),
    ]


def _samples(dataset: Any, workers: int = 0) -> list[Any]:
    loader = DataLoader(dataset, 5, num_workers=workers, collate_fn=list, require_native=True)
    return [sample for batch in loader for sample in batch]


def _assert_floats(found: Any, expected: Any) -> None:
    (image, target), (other, wanted) = found[:2], expected[:2]
    assert (type(image), image.dtype) == (type(other), other.dtype)
    assert (image - other).abs().max() <= 1.01 / 255
    _assert_same((image.mul(0), target), (other.mul(0), wanted))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pipeline_of_detection_scripts(packed: Path, workers: int) -> None:  # noqa: F811
    flip = T.RandomHorizontalFlip(1.0)
    crop = published.RandomIoUCrop(p=0.0)
    transform = published.Policy(_ops(crop, flip, published.EmptyTransform()))
    dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
    for row, sample in enumerate(_samples(dataset, workers)):
        _assert_floats(sample, _as_torchvision(packed, row, transform))
        assert type(sample[1]["boxes"]) is torch.Tensor


def test_the_epoch_switches_augmentations_off(packed: Path) -> None:  # noqa: F811
    policy = {"name": "stop_epoch", "ops": ["RandomHorizontalFlip"], "epoch": 2}
    compose = published.Policy(_ops(T.RandomHorizontalFlip(1.0)), policy)
    epochs = published.Epochs()

    def transform(image: Any, target: Any) -> Any:
        return compose(image, target, epochs)[:2]

    dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
    loader = DataLoader(dataset, 5, collate_fn=list, require_native=True)
    for epoch in range(4):
        epochs.set_epoch(epoch)
        samples = [sample for batch in loader for sample in batch]
        for row, sample in enumerate(samples):
            _assert_floats(sample, _as_torchvision(packed, row, transform))
        assert ("flip" in loader.explain()) == (epoch < 2)


def test_a_preset_of_segmentation_scripts(packed: Path) -> None:  # noqa: F811
    pads = published.PadIfSmaller(100, fill={Mask: 255, "others": 7})
    to_floats = T.ToDtype({torch.Tensor: torch.float32, "others": None}, scale=True)
    steps = [T.Resize(60), pads, T.CenterCrop(96), T.PILToTensor(), to_floats, T.ToPureTensor()]
    transform = published.Preset(T.Compose(steps))
    dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
    for row, sample in enumerate(_samples(dataset)):
        _assert_floats(sample, _as_torchvision(packed, row, transform))


def _compiled(transform: Any, kind: str = "boxes") -> Any:
    targets = {"boxes": Target(kind, "xyxy" if kind == "boxes" else "")}
    joint = Joint(("image", {"boxes": "boxes"}), targets)
    found = compile_recipe(transform, None, joint)
    return found.unequal or found if isinstance(found, Refusal) else found


def test_masks_have_a_fill_of_their_own() -> None:
    fills: Any = {Mask: 255, "others": 3}
    for transform in (published.PadIfSmaller(100, fill=fills), T.Pad(2, fill=fills)):
        (step,) = _compiled(transform, "mask").programs[0].steps
        assert (step.fill, step.mask_fill) == ((3, 3, 3), 255)
    # torchvision does not ask a defaultdict for its default, and fills with 0.
    fills = defaultdict(lambda: 9, {Mask: 4})
    (step,) = _compiled(T.Pad(2, fill=fills), "mask").programs[0].steps
    assert (step.fill, step.mask_fill) == ((0, 0, 0), 4)


def test_a_crop_has_the_probability_of_its_class() -> None:
    recipe = _compiled(T.Compose([published.RandomIoUCrop(p=0.8), T.ToImage()]))
    assert not recipe.unknown
    assert "with p 0.8 (random crop that a box overlaps)" in str(recipe)


class _Halves(published.ConvertPILImage):
    def transform(self, inpt: Any, params: Any) -> Any:
        return tv_tensors.Image(F.pil_to_tensor(inpt).float() / 127.5)


class _Levels(published.ConvertPILImage):
    def transform(self, inpt: Any, params: Any) -> Any:
        return tv_tensors.Image(F.pil_to_tensor(inpt).float())


class _OtherSides(published.ConvertBoxes):
    def transform(self, inpt: Any, params: Any) -> Any:
        return inpt / torch.tensor(inpt.canvas_size).tile(2)[None]


class _Relabelled(published.ConvertBoxes):
    def transform(self, inpt: Any, params: Any) -> Any:
        return BoundingBoxes(inpt, format="XYWH", canvas_size=inpt.canvas_size)


class _Twice(published.ConvertBoxes):
    def transform(self, inpt: Any, params: Any) -> Any:
        return self._convert(self._convert(inpt))


class _ImageAlone(T.Transform):  # type: ignore[name-defined,misc]
    _transformed_types = (published.PIL.Image.Image,)

    def transform(self, inpt: Any, params: Any) -> Any:
        return F.horizontal_flip(inpt)


class _Centred(published.PadIfSmaller):
    def make_params(self, flat_inputs: Any) -> Any:
        _, height, width = T._utils.query_chw(flat_inputs)
        padding = [max(self.size - width, 0), 0, 0, max(self.size - height, 0)]
        return {"padding": padding, "needs_padding": any(padding)}


class _Swapped(published.PadIfSmaller):
    def make_params(self, flat_inputs: Any) -> Any:
        _, width, height = T._utils.query_chw(flat_inputs)
        padding = [0, 0, max(self.size - width, 0), max(self.size - height, 0)]
        return {"padding": padding, "needs_padding": any(padding)}


class _Sometimes(published.PadIfSmaller):
    def make_params(self, flat_inputs: Any) -> Any:
        _, height, width = T._utils.query_chw(flat_inputs)
        padding = [0, 0, max(self.size - width, 0), max(self.size - height, 0)]
        return {"padding": padding, "needs_padding": any(padding[:3])}


class _Coin(published.PadIfSmaller):
    def make_params(self, flat_inputs: Any) -> Any:
        return {"padding": [0, 0, 1, 1], "needs_padding": torch.rand(1) < 0.5}


class _OwnBoxes(published.RandomIoUCrop):
    def make_params(self, flat_inputs: Any) -> Any:
        return {"is_within_crop_area": None}


class _Target(published.Preset):
    def __call__(self, img: Any, target: Any) -> Any:
        target["size"] = 3
        return self.transforms(img, target)


class _Swap(published.Preset):
    def __call__(self, img: Any, target: Any) -> Any:
        return tuple(reversed(self.transforms(img, target)))


@pytest.mark.parametrize(
    "transform",
    [
        _Halves(),
        _Levels(),
        _OtherSides(),
        _Relabelled(),
        _Twice("cxcywh", normalize=True),
        _ImageAlone(),
        _Centred(100),
        _Swapped(100),
        _Sometimes(100),
        _Coin(100),
        _OwnBoxes(p=0.5),
        _Target(T.Compose([T.Identity()])),
        _Swap(T.Compose([T.Identity()])),
        published.Policy([T.Identity()], {"name": "stop_sample"}),
        T.Compose([T.Lambda(lambda value: value)]),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_code_that_does_something_else_is_not_known(transform: Any) -> None:
    recipe = _compiled(T.Compose([T.Resize((50, 50)), transform]))
    assert [one.name for one in recipe.unknown]
    assert recipe.tail
    assert recipe.unknown[0].reason


def test_a_class_that_fastdata_has_a_step_for(packed: Path) -> None:  # noqa: F811
    ending = [T.RandomHorizontalFlip(1.0), T.ToImage(), T.SanitizeBoundingBoxes()]
    jitter = T.ScaleJitter((80, 80), (0.5, 2.0))

    def opened(crop: Any) -> Any:
        transform = T.Compose([jitter, crop, *ending])
        return ImageDataset(packed, transforms=transform, fields=("image", "boxes", "labels"))

    words = "published_targets.py calls .*fastdata.transforms.FixedSizeCrop does it natively"
    with pytest.warns(SlowPathWarning, match=words):
        DataLoader(opened(published.FixedSizeCrop(64)), 5, collate_fn=list)
    samples = _samples(opened(FixedSizeCrop((64, 64), (123, 117, 104))))
    assert {image.shape for image, _ in samples} == {(3, 64, 64)}


def test_functions_that_were_replaced_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def pad(inpt: Any, padding: Any, fill: Any = None, padding_mode: str = "constant") -> Any:
        return inpt

    functional: ModuleType = sys.modules["torchvision.transforms.v2.functional"]
    monkeypatch.setattr(functional, "pad", pad)
    recipe = _compiled(T.Compose([T.Resize((50, 50)), published.PadIfSmaller(100)]))
    assert recipe.tail


def test_plain_boxes_do_not_follow_the_image() -> None:
    convert = published.ConvertBoxes("cxcywh", normalize=True)
    recipe = _compiled(T.Compose([T.Resize((50, 50)), convert, T.RandomHorizontalFlip()]))
    assert [one.name for one in recipe.unknown] == ["RandomHorizontalFlip"]

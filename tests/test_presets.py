"""Presets of detection and segmentation scripts: native with ``__fastdata__``, else in workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_targets import _as_torchvision, _assert_same, packed  # noqa: F401
from torchvision_stub import import_torchvision
from vision_datasets import ROWS, make_voc

from fastdata import DataLoader, ImageDataset, transforms
from fastdata.errors import SlowPathWarning

tv: Any = import_torchvision()
v2 = tv.transforms.v2


class DetectionPresetTrain:
    def __init__(self, *steps: Any) -> None:
        self.transforms = v2.Compose([*steps, v2.SanitizeBoundingBoxes(), v2.ToImage()])

    def __call__(self, img: Any, target: Any) -> Any:
        return self.transforms(img, target)


class NativeDetection(DetectionPresetTrain):
    def __fastdata__(self) -> Any:
        return transforms.Compose([self.transforms])


class NativeSegmentation:
    def __init__(self, size: int) -> None:
        to_floats = v2.ToDtype({torch.Tensor: torch.float32, "others": None}, scale=True)
        steps = [v2.Resize((size, size)), v2.RandomHorizontalFlip(1.0), v2.PILToTensor()]
        self.transforms = v2.Compose([*steps, to_floats, v2.ToPureTensor()])

    def __call__(self, img: Any, target: Any) -> Any:
        return self.transforms(img, target)

    def __fastdata__(self) -> Any:
        return transforms.Compose([self.transforms])


class Inverted(v2.Transform):  # type: ignore[name-defined,misc]
    """A step that fastdata does not know."""

    def transform(self, inpt: Any, params: Any) -> Any:
        is_image = isinstance(inpt, tv.tv_tensors.Image)
        return tv.tv_tensors.Image(255 - inpt) if is_image else inpt


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voc(tmp_path_factory.mktemp("voc"))


def _samples(dataset: Any, **options: Any) -> list[Any]:
    return [
        sample for batch in DataLoader(dataset, 5, collate_fn=list, **options) for sample in batch
    ]


def test_a_detection_preset_is_native(packed: Path) -> None:  # noqa: F811
    preset = NativeDetection(v2.RandomHorizontalFlip(1.0), v2.Resize((64, 48)))
    fields = ("image", "boxes", "labels", "keypoints", "name")
    dataset = ImageDataset(packed, transforms=preset, fields=fields)
    for row, sample in enumerate(_samples(dataset, num_workers=2, require_native=True)):
        _assert_same(sample, _as_torchvision(packed, row, preset))


@pytest.mark.parametrize("where", ["preset", "step"])
def test_a_detection_preset_of_unknown_classes(packed: Path, where: str) -> None:  # noqa: F811
    flip = v2.RandomHorizontalFlip(1.0)
    preset: Any = DetectionPresetTrain(flip, v2.Resize((64, 48)))
    line = (
        r"Add this method to test_presets.DetectionPresetTrain: def __fastdata__\(self\): return "
    )
    if where == "step":
        preset = v2.Compose([flip, v2.Resize((64, 48)), v2.ToImage(), Inverted()])
        line = "__fastdata__ to test_presets.Inverted"
    fields = ("image", "boxes", "labels", "keypoints", "name")
    with pytest.warns(SlowPathWarning, match=line):
        samples = _samples(ImageDataset(packed, transforms=preset, fields=fields))
    for row, sample in enumerate(samples):
        _assert_same(sample, _as_torchvision(packed, row, preset))


def test_a_segmentation_preset_is_native(voc: Path) -> None:
    plain = tv.datasets.VOCSegmentation(voc, "2007", transforms=NativeSegmentation(48))
    dataset = tv.datasets.wrap_dataset_for_transforms_v2(plain)
    batches = [
        next(iter(loader(dataset, ROWS, **options)))
        for loader, options in (
            (torch.utils.data.DataLoader, {}),
            (DataLoader, {"require_native": True}),
        )
    ]
    (images, masks), (found, own) = batches
    assert (found - images).abs().max() <= 1.01 / 255
    assert torch.equal(own, masks)

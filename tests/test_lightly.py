"""lightly's and DINOv2's transforms to several views, of the real packages (make test-recipes)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from core_pixels import whole_recipe
from loader_data import images
from PIL import Image
from recipe_packages import need
from script_lines import lines_added
from torchvision_stub import import_torchvision

from fastdata import DataLoader
from fastdata.transforms.tree import native_program

need("lightly", "dinov2")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(scope="module")
def lightly() -> Any:
    import_torchvision()
    import lightly.transforms

    return lightly.transforms


@pytest.fixture(scope="module")
def dinov2() -> Any:
    import_torchvision()
    import dinov2.data.augmentations

    return dinov2.data.augmentations


def test_lightlys_blur_and_solarisation_are_pillows(lightly: Any) -> None:
    views = [
        lightly.torchvision_transforms.Compose(
            [lightly.torchvision_transforms.CenterCrop(40), step, lightly.ToTensor()]
        )
        for step in (
            lightly.GaussianBlur(prob=1.0, sigmas=(1.3, 1.3)),
            lightly.RandomSolarization(prob=1.0, threshold=100),
            lightly.RandomRotate(prob=1.0, angle=90),
            lightly.GaussianBlur(prob=0.0),
        )
    ]
    from lightly.transforms.multi_view_transform import MultiViewTransform

    transform = MultiViewTransform(views)
    dataset = images(transform)
    batch, _ = next(iter(DataLoader(dataset, 8, require_native=True)))
    for place in range(8):
        for got, want in zip(batch, transform(dataset.open_image(place)), strict=True):
            assert torch.allclose(got[place], want, atol=1e-6)


def test_what_lightly_makes_one_view_of_is_a_list_of_one(lightly: Any) -> None:
    transform = lightly.MAETransform()
    assert len(transform(Image.new("RGB", (300, 200)))) == 1
    views, _ = next(iter(DataLoader(images(transform), 2, require_native=True)))
    assert [view.shape for view in views] == [(2, 3, 224, 224)]


def test_dinov2s_augmentation_is_a_dict_and_native_with_lines(dinov2: Any) -> None:
    transform = dinov2.DataAugmentationDINO((0.32, 1.0), (0.05, 0.32), 3, 40, 20)
    with lines_added(transform):
        _compare_dinov2s(transform)


def _compare_dinov2s(transform: Any) -> None:
    loader = DataLoader(images(transform), 4, require_native=True, num_workers=2)
    assert "5 views (2 global_crops, 2 global_crops_teacher, 3 local_crops)" in loader.explain()
    views, _ = next(iter(loader))
    theirs = torch.utils.data.default_collate([transform(Image.new("RGB", (99, 88)))] * 4)
    assert list(views) == list(theirs) and views["offsets"] == theirs["offsets"] == []
    for name, group in theirs.items():
        assert [(view.shape, view.dtype) for view in views[name]] == [
            (view.shape, view.dtype) for view in group
        ]
    assert views["global_crops"][1] is views["global_crops_teacher"][1]
    # As published: GaussianBlur(p) blurs with probability 1 - p.
    blurred = []
    for program in whole_recipe(transform).programs[:3]:
        drawn = native_program(program.pixels)
        calls = [drawn.draw(key, 40, 40)[0] for key in range(400)]
        blurred.append(np.mean([any(name == "gaussian_blur" for name, _ in one) for one in calls]))
    assert blurred[0] == 0 and abs(blurred[1] - 0.9) < 0.06 and abs(blurred[2] - 0.5) < 0.1

"""open_clip's ``image_transform``, that of the real package (make test-recipes)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from loader_data import SAMPLES, WITH_INDEX, images
from recipe_packages import need
from test_pixel_programs import COUNT, SIZE, assert_same_distribution, ours, theirs
from torchvision_stub import import_torchvision

from fastdata import DataLoader
from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.transforms.compile import Recipe, compile_recipe

need("open_clip")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unused augmentation cfg:UserWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning"),
]

LEVEL = 1.001 / 255 / 0.26130258  # open_clip's least standard deviation


@pytest.fixture(scope="module")
def module() -> Any:
    import_torchvision()
    import open_clip.transform

    return open_clip.transform


EVALUATION: dict[str, dict[str, Any]] = {
    "shortest": {},
    "longest": {"resize_mode": "longest", "fill_color": 99},
    "squash": {"resize_mode": "squash", "interpolation": "bilinear"},
    "oblong": {"image_size": (40, 56)},
}


@pytest.mark.parametrize("name", EVALUATION)
def test_evaluation_gives_open_clips_pixels(module: Any, name: str) -> None:
    options = {"image_size": 48, "is_train": False, **EVALUATION[name]}
    transform = module.image_transform(**options)
    dataset = images(transform)
    loader = DataLoader(dataset, batch_size=10, require_native=True, **WITH_INDEX)
    seen = 0
    for batch, _, indices in loader:
        for got, index in zip(batch, indices.tolist(), strict=True):
            want = transform(dataset.open_image(index).convert("RGB"))
            assert got.dtype == want.dtype and got.shape == want.shape
            assert (got - want).abs().max() <= LEVEL, index
            seen += 1
    assert seen == SAMPLES


def test_training_crops_as_torchvision_does(module: Any) -> None:
    tv = import_torchvision().transforms
    transform = module.image_transform(64, is_train=True)
    wanted = tv.RandomResizedCrop(64, (0.9, 1.0), interpolation=tv.InterpolationMode.BICUBIC)
    keys = sample_keys(epoch_key(0, 0), np.arange(1000))
    drawn = []
    for pipeline in (transform, tv.Compose([wanted, tv.ToTensor()])):
        recipe = compile_recipe(pipeline)
        assert isinstance(recipe, Recipe) and not recipe.tail
        assert recipe.programs[0].filter == "bicubic"
        drawn.append(recipe.programs[0].draw([500] * 1000, [333] * 1000, keys)["box"])
    assert (drawn[0] == drawn[1]).all()


def test_jitter_and_grey_are_drawn_as_open_clip_does(module: Any) -> None:
    tv = import_torchvision().transforms
    aug_cfg = {
        "color_jitter": (0.4, 0.3, 0.2, 0.1),
        "color_jitter_prob": 0.8,
        "gray_scale_prob": 0.2,
    }
    steps = module.image_transform(64, is_train=True, aug_cfg=aug_cfg).transforms
    names = [type(step).__name__ for step in steps]
    assert names[1:4] == ["MaybeConvertMode", "color_jitter", "gray_scale"]
    transform = tv.Compose(steps[1:4])
    pipeline = tv.Compose([tv.Resize(SIZE[::-1]), transform])
    assert_same_distribution(ours(pipeline, COUNT), theirs(transform, COUNT))


def test_a_function_of_open_clips_is_known_by_what_it_is(module: Any) -> None:
    tv = import_torchvision().transforms
    crop = tv.CenterCrop(32)
    recipe = compile_recipe(tv.Compose([crop, module._convert_to_rgb, tv.ToTensor()]))
    assert isinstance(recipe, Recipe) and not recipe.tail
    recipe = compile_recipe(tv.Compose([crop, lambda image: image.rotate(3), tv.ToTensor()]))
    assert isinstance(recipe, Recipe) and len(recipe.tail) == 2


def test_with_timm_all_of_training_is_native(module: Any) -> None:
    aug_cfg = {"use_timm": True, "color_jitter": 0.4, "re_prob": 0.5, "re_count": 2}
    transform = module.image_transform(48, is_train=True, aug_cfg=aug_cfg)
    loader = DataLoader(images(transform), batch_size=10, require_native=True)
    (batch, _), *_ = loader
    assert batch.shape == (10, 3, 48, 48) and batch.dtype == torch.float32

"""open_clip's ``image_transform``, that of the real package (make test-recipes)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from loader_data import images
from recipe_packages import need
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


@pytest.fixture(scope="module")
def module() -> Any:
    import_torchvision()
    import open_clip.transform

    return open_clip.transform


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


def test_with_timm_all_of_training_is_native(module: Any) -> None:
    aug_cfg = {"use_timm": True, "color_jitter": 0.4, "re_prob": 0.5, "re_count": 2}
    transform = module.image_transform(48, is_train=True, aug_cfg=aug_cfg)
    loader = DataLoader(images(transform), batch_size=10, require_native=True)
    (batch, _), *_ = loader
    assert batch.shape == (10, 3, 48, 48) and batch.dtype == torch.float32

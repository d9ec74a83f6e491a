"""open_clip's ``image_transform``, that of the real package (make test-recipes)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core_pixels import whole_recipe
from recipe_packages import need
from torchvision_stub import import_torchvision

from fastdata.plan.draws import epoch_key, sample_keys

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
        recipe = whole_recipe(pipeline)
        assert recipe.programs[0].filter == "bicubic"
        drawn.append(recipe.programs[0].draw([500] * 1000, [333] * 1000, keys)["box"])
    assert (drawn[0] == drawn[1]).all()

"""Classes of published scripts are native with a line in ``__fastdata__``."""

from __future__ import annotations

import numpy as np
import published
import pytest
from PIL import Image
from recipe_makers import recipes, small
from script_lines import lines_added
from torchvision_stub import import_torchvision

tv = import_torchvision().transforms

from fastdata.transforms.compile import compile_recipe  # noqa: E402
from fastdata.transforms.recipe import Recipe  # noqa: E402

#: The recipes of `recipe_libraries` are tested in an environment of their own.
OF_SCRIPTS = [
    name
    for name in recipes()
    if not name.startswith(("timm,", "open_clip,", "transformers,", "lightly,", "dinov2,"))
]
#: Transforms that fastdata has no equivalent of, by recipe.
UNKNOWN = {
    "torchvision, tensors without antialiasing": "Resize",
    "MAE, linear probing": "RandomResizedCrop",
    "SimMIM": "SimMIMTransform",
    "BEiT, pretraining": "DataAugmentationForBEiT",
    "CutMix, training on ImageNet": "Lighting",
    "AlexNet, lighting": "Lighting",
    "CIFAR, Cutout": "Cutout",
    "CIFAR, AutoAugment and Cutout": "Cutout",
    "CIFAR, FixMatch, 2 views": "RandAugmentMC",
}


@pytest.mark.parametrize("name", OF_SCRIPTS)
def test_a_recipe_is_native_with_the_lines_of_its_classes(name: str) -> None:
    transform = recipes()[name]()
    with lines_added(transform):
        recipe = compile_recipe(transform, (32, 32) if small(name) else None)
    assert {one.name for one in recipe.unknown} == {*filter(None, [UNKNOWN.get(name)])}
    assert isinstance(recipe, Recipe) or name in UNKNOWN


def test_simclrs_blur_gets_torchvisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pixels differ by a level at most, as it rounds down."""
    monkeypatch.setattr(np.random, "uniform", lambda *_: 1.3)
    noise = np.random.default_rng(3).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    blur, image = published.SimCLR.GaussianBlur(9), Image.fromarray(noise)
    same = tv.GaussianBlur(blur.k, 1.3)(image)
    assert abs(np.asarray(blur(image), int) - np.asarray(same, int)).max() <= 1
    with lines_added(blur) as lines:
        recipe = compile_recipe(tv.Compose([blur, tv.ToTensor()]), (24, 24))
    assert isinstance(recipe, Recipe) and "GaussianBlur((9, 9))" in recipe.describe()
    assert lines == ["fastdata.transforms.GaussianBlur(self.k, (0.1, 2.0))"]

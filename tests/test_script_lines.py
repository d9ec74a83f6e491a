"""Classes of published scripts: what a warning says to add to them makes them native."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import published
import pytest
from loader_data import tree
from PIL import Image
from recipe_makers import LINES, recipes, small
from script_lines import lines_added
from torchvision_stub import import_torchvision

from fastdata import DataLoader
from fastdata.errors import SlowPathWarning

tv = import_torchvision().transforms

from fastdata.transforms.compile import compile_recipe  # noqa: E402
from fastdata.transforms.recipe import Recipe  # noqa: E402
from fastdata.transforms.scripts import _LINES, imports_of  # noqa: E402

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
def test_a_recipe_is_native_with_the_lines_of_its_warnings(name: str) -> None:
    transform = recipes()[name]()
    with lines_added(transform, LINES):
        recipe = compile_recipe(transform, (32, 32) if small(name) else None)
    assert {one.name for one in recipe.unknown} == {*filter(None, [UNKNOWN.get(name)])}
    assert isinstance(recipe, Recipe) or name in UNKNOWN


def of_a_script(kind: str, base: Any = object, **attributes: Any) -> Any:
    made = type(kind, (base,), {"__call__": lambda self, image: image})
    globals()[kind] = made  # by which the class is found
    transform = base.__new__(made)
    vars(transform).update(attributes)
    return transform


VIEW = tv.Compose([tv.RandomResizedCrop(24), tv.ToTensor()])
FLIP = tv.RandomHorizontalFlip(1.0)


@pytest.mark.parametrize(
    ("kind", "attributes", "words"),
    [
        ("TransformTwice", {"transform": VIEW}, "2 views of: "),
        ("TwoCropTransform", {"base_transform": VIEW}, "2 views of: "),
        ("MultiViewDataInjector", {"transforms": [VIEW] * 3}, "3 views of: "),
        ("Solarize", {}, "solarise from 128 with p 1"),
        ("Solarization", {}, "solarise from 128 with p 1"),
        ("Compose", {"transforms": [VIEW]}, "random resized crop"),
        ("SegmentationPresetEval", {"transforms": VIEW}, "random resized crop"),
        ("horizontal_flip", {"p": 0.3, "transf": FLIP}, "with p 0.3 (flip with p 1)"),
    ],
)
def test_more_classes_with_a_line(kind: str, attributes: dict[str, Any], words: str) -> None:
    transform = of_a_script(kind, **attributes)
    with lines_added(transform) as lines:
        recipe = compile_recipe(transform, (24, 24))
    assert len(lines) == 1 and isinstance(recipe, Recipe) and words in recipe.describe()


def test_simclrs_blur_gets_torchvisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pixels differ by a level at most, as it rounds down."""
    monkeypatch.setattr(np.random, "uniform", lambda *_: 1.3)
    noise = np.random.default_rng(3).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    blur, image = published.SimCLR.GaussianBlur(9), Image.fromarray(noise)
    same = tv.GaussianBlur(blur.k, 1.3)(image)
    assert abs(np.asarray(blur(image), int) - np.asarray(same, int)).max() <= 1
    with lines_added(blur) as lines:
        recipe = compile_recipe(tv.Compose([blur, tv.ToTensor()]), (24, 24))
    assert isinstance(recipe, Recipe) and "blur by 9 x 9, sigma 0.1 to 2" in recipe.describe()
    assert lines == ["fastdata.transforms.GaussianBlur(self.k, (0.1, 2.0))"]


def test_a_warning_has_the_lines_of_several_classes() -> None:
    blur, solarise = published.DINO.GaussianBlur(0.1), published.DINO.Solarization(0.2)
    steps = [tv.RandomResizedCrop(24), blur, solarise, tv.RandomApply([blur]), tv.ToTensor()]
    dataset = import_torchvision().datasets.ImageFolder(tree(), tv.Compose(steps))
    with pytest.warns(SlowPathWarning) as warned:
        DataLoader(dataset)
    words = str(warned.pop().message)
    assert words.count("Add this method to") == 2 and not warned.list
    assert "from fastdata.transforms import PillowBlur\n" in words
    assert words.endswith("from fastdata.transforms import RandomSolarize")


def test_the_import_of_a_line() -> None:
    line = "Views(Compose([self.Weak(), RandomApply([self.fn], self.p)]), Compose([]))"
    assert imports_of(line) == "from fastdata.transforms import Views, Compose, RandomApply"
    assert imports_of("fastdata.transforms.Compose(self.transforms)") == "import fastdata"


@pytest.mark.parametrize("kind", _LINES)
def test_no_line_calls_the_class_that_it_is_in(kind: str) -> None:
    assert not any(re.search(rf"(?<![.\w]){kind}\(", line) for line in _LINES[kind])


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("TwoCropsTransform", {"base_transform": VIEW, "strong_transform": VIEW}),
        ("TransformTwice", {"transform": VIEW, "transform2": VIEW}),
        ("ContrastiveLearningViewGenerator", {"base_transform": VIEW, "n_views": 2, "raw": VIEW}),
        ("MultiViewDataInjector", {"transforms": [VIEW], "random_flip": FLIP}),
        ("DataAugmentationDINO", {"global_transfo1": VIEW, "global_transfo2": VIEW}),
        ("GaussianBlur", {"p": 0.5, "kernel_size": 9}),
        ("GaussianBlur", {"kernel_size": 9, "min": 0.1, "max": 2.0}),
        ("Transform", {"transform": VIEW}),
        ("Solarization", {"p": 0.5, "threshold": 100}),
    ],
)
def test_a_class_with_other_attributes_gets_no_line(kind: str, attributes: dict[str, Any]) -> None:
    transform = of_a_script(kind, **attributes)
    with lines_added(transform) as lines:
        assert lines == [] and "__fastdata__" in compile_recipe(transform).unknown[0].hint


def test_dinov2s_blur_gets_no_line_of_another_scripts() -> None:
    """It blurs with probability 1 - p, and so keeps it as torchvision's RandomApply."""
    blur = of_a_script("GaussianBlur", tv.RandomApply)
    tv.RandomApply.__init__(blur, [tv.GaussianBlur(9)], p=1 - 0.9)
    with lines_added(blur) as lines:
        assert "with p 0.1 (blur" in str(compile_recipe(blur, (24, 24)))
    assert lines == ["RandomApply(self.transforms, self.p)"]

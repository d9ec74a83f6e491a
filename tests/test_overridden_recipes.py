"""Overridden transforms of timm, lightly, open_clip, transformers (make test-recipes)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from loader_data import images
from PIL import Image
from recipe_packages import need
from torchvision_stub import import_torchvision

need("timm", "lightly", "open_clip", "transformers")
import_torchvision()

from fastdata import DataLoader  # noqa: E402
from fastdata.transforms.compile import compile_recipe  # noqa: E402
from fastdata.transforms.recipe import Recipe  # noqa: E402

Patch = pytest.MonkeyPatch


def module(name: str) -> Any:
    return importlib.import_module(name)


def timm_train() -> Any:
    return module("timm.data").create_transform(
        32, is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.5
    )


def lightly_simclr() -> Any:
    return module("lightly.transforms").SimCLRTransform(input_size=32)


def vit() -> Any:
    size = {"height": 32, "width": 32}
    return module("transformers.models.vit.image_processing_vit").ViTImageProcessor(size=size)


def marked(*_: Any, **__: Any) -> Any:
    return Image.new("RGB", (32, 32), (7, 7, 7))


def negative(value: Any) -> Any:
    return -value


PATCHES: list[tuple[Callable[[], Any], str, Any]] = [
    (timm_train, "timm.data.auto_augment.AugmentOp.__call__", marked),
    (timm_train, "timm.data.auto_augment.RandAugment.__call__", marked),
    (timm_train, "timm.data.auto_augment.rotate", marked),
    (timm_train, "timm.data.auto_augment._randomly_negate", negative),
    (timm_train, "timm.data.random_erasing.RandomErasing._erase", marked),
    (timm_train, "timm.data.random_erasing._get_pixels", marked),
    (timm_train, "timm.data.transforms.RandomResizedCropAndInterpolation.get_params", marked),
    (lightly_simclr, "lightly.transforms.gaussian_blur.GaussianBlur.__call__", marked),
    (lightly_simclr, "lightly.transforms.multi_view_transform.MultiViewTransform.__call__", marked),
    (lightly_simclr, "lightly.transforms.simclr_transform.SimCLRViewTransform.__call__", marked),
    (vit, "transformers.image_processing_backends.TorchvisionBackend.rescale", marked),
    (vit, "transformers.image_processing_backends.TorchvisionBackend._preprocess", marked),
]


@pytest.mark.parametrize(("make", "path", "value"), PATCHES, ids=[path for _, path, _ in PATCHES])
def test_patches(make: Callable[[], Any], path: str, value: Any, monkeypatch: Patch) -> None:
    transform = make()
    assert isinstance(compile_recipe(transform), Recipe)
    monkeypatch.setattr(path, value)
    found = compile_recipe(transform)
    told = str(getattr(found, "reason", "")) + str(getattr(found, "unknown", ""))
    assert not isinstance(found, Recipe) or found.tail
    assert path.rpartition(".")[2] in told
    monkeypatch.undo()
    assert not compile_recipe(transform).tail  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["aug_fn", "level_fn", "__class__"])
def test_changed_operations_of_timms(name: str) -> None:
    transform = timm_train()
    augment = next(one for one in transform.transforms if hasattr(one, "ops"))
    if name == "__class__":
        augment.ops[0] = type("Op", (type(augment.ops[0]),), {"__call__": marked})("Rotate")
    else:
        setattr(augment.ops[0], name, marked)
    found: Any = compile_recipe(transform)
    words = "is not an AugmentOp" if name == "__class__" else f"the {name} of its"
    assert words in str(found.unknown)


def test_a_function_of_open_clips(monkeypatch: Patch) -> None:
    tv, transforms = import_torchvision().transforms, module("open_clip.transform")
    steps = [tv.RandomResizedCrop(8), transforms._convert_to_rgb, tv.ToTensor()]
    assert not compile_recipe(tv.Compose(steps)).tail  # type: ignore[union-attr]
    monkeypatch.setattr(transforms, "_convert_to_rgb", marked)
    steps[1] = marked
    found: Any = compile_recipe(tv.Compose(steps))
    assert "_convert_to_rgb is not what its library defines" in str(found.unknown)


def test_functions_of_timms_loader(monkeypatch: Patch) -> None:
    loader = module("timm.data.loader")
    dataset = images(module("timm.data").create_transform(32, use_prefetcher=True))
    assert DataLoader(dataset, 4, collate_fn=loader.fast_collate).explain().startswith("native")
    monkeypatch.setattr(loader, "fast_collate", marked)
    loader_of_marked = DataLoader(dataset, 4, collate_fn=marked)
    assert "the collate_fn is called" in loader_of_marked.explain()
    batches = [*loader_of_marked]
    assert all(batch == marked() for batch in batches), batches

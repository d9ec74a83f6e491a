"""Numbers that torchvision computes in single precision: strengths of policies, drawn factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_native_augment import picture
from test_pixel_programs import keys_of, program_of
from torchvision_stub import import_torchvision

from fastdata import _native
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.recipe import Recipe

SIZE = (64, 48)


def version_of(number: int) -> Any:
    transforms = import_torchvision().transforms
    return transforms if number == 1 else transforms.v2


def noise(kind: str) -> tuple[np.ndarray, Any]:
    pixels = picture("noise", *SIZE, 3, 1)
    if kind == "PIL":
        return pixels, Image.fromarray(pixels)
    return pixels, torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


# --- strengths -------------------------------------------------------------------------------


def policy(tv: Any, name: str) -> tuple[Any, list[tuple[str, float]]]:
    """A policy, and each of its operations with each strength that it may have."""
    words = name.split()
    if words[0] == "RandAugment":
        transform: Any = tv.RandAugment(magnitude=int(words[1]))
        return transform, strengths(transform, 31, lambda op: [int(words[1])])
    if words[0] == "TrivialAugmentWide":
        transform = tv.TrivialAugmentWide()
        return transform, strengths(transform, 31, lambda op: range(31))
    transform = tv.AutoAugment(tv.AutoAugmentPolicy(name))
    policies = transform.policies if hasattr(transform, "policies") else transform._policies
    steps = [(op, at) for pair in policies for op, _, at in pair]
    return transform, strengths(transform, 10, lambda op: [at for name, at in steps if name == op])


def strengths(
    transform: Any, bins: int, chosen: Callable[[str], Iterable[int]]
) -> list[tuple[str, float]]:
    width, height = SIZE
    if hasattr(transform, "_AUGMENTATION_SPACE"):  # v2
        named = transform._AUGMENTATION_SPACE.items()
        space = {op: (make(bins, height, width), signed) for op, (make, signed) in named}
    elif type(transform).__name__ == "TrivialAugmentWide":
        space = transform._augmentation_space(bins)
    else:
        space = transform._augmentation_space(bins, (height, width))
    if hasattr(transform, "policies"):
        space["Invert"] = (torch.tensor(0.0), False)
    found = []
    for op, (values, signed) in space.items():
        has_none = values is None or values.ndim == 0
        for strength in [0.0] if has_none else [float(values[at]) for at in chosen(op)]:
            found += [(op, strength), (op, -strength)] if signed else [(op, strength)]
    return found


def results(
    version: int, transform: Any, steps: list[tuple[str, float]], image: Any
) -> Iterator[np.ndarray]:
    interpolation = transform.interpolation
    if version == 1:
        apply, fill = import_torchvision().transforms.autoaugment._apply_op, None
    else:
        apply, fill = transform._apply_image_or_video_transform, transform._fill
    for operation, strength in steps:
        made = apply(image, operation, strength, interpolation, fill)
        yield np.asarray(made) if isinstance(made, Image.Image) else made.permute(1, 2, 0).numpy()


@pytest.mark.parametrize("kind", ["PIL", "tensor"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "name",
    [
        *("TrivialAugmentWide", "RandAugment 9", "imagenet"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("RandAugment 6", "cifar10", "svhn")
        ),
    ],
)
def test_policies_do_what_torchvision_does_at_each_strength(
    name: str, version: int, kind: str
) -> None:
    tv = version_of(version)
    transform, steps = policy(tv, name)
    first = [] if kind == "PIL" else [tv.PILToTensor()]
    program = program_of(tv.Compose([*first, tv.Resize(SIZE[::-1], antialias=True), transform]))
    calls = {
        (operation, tuple(values))
        for key in keys_of(3000 if name == "TrivialAugmentWide" else 600)
        for operation, values in program.draw(key, *SIZE)[0]
    }
    pixels, image = noise(kind)
    wanted = list(results(version, transform, steps, image))
    exact = {one.tobytes() for one in wanted}
    for operation, values in calls:
        found = _native.augment(pixels, operation, values)
        if operation == "tensor_sharpness":  # torch does not fuse products at the ends of rows
            assert min((one != found).mean() for one in wanted) < 0.01
        else:
            assert found.tobytes() in exact, (operation, values)


# --- factors ---------------------------------------------------------------------------------

#: Of one value each: torchvision's are drawn in single precision all the same.
FIXED: dict[str, Callable[[Any, float], Any]] = {
    "brightness": lambda tv, v: tv.ColorJitter(brightness=(v, v)),
    "contrast": lambda tv, v: tv.ColorJitter(contrast=(v, v)),
    "saturation": lambda tv, v: tv.ColorJitter(saturation=(v, v)),
    "hue": lambda tv, v: tv.ColorJitter(hue=(v / 10, v / 10)),
    "rotation": lambda tv, v: tv.RandomRotation((20 * v, 20 * v)),
    "affine": lambda tv, v: tv.RandomAffine((9 * v, 9 * v), scale=(v, v), shear=(v, v, -v, -v)),
}


@pytest.mark.parametrize("kind", ["PIL", "tensor"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_factor_gives_torchvisions_pixels(name: str, version: int, kind: str) -> None:
    tv = version_of(version)
    pixels, image = noise(kind)
    first = [] if kind == "PIL" else [tv.PILToTensor()]
    for value in (0.3, 0.55, 0.8, 0.9, 1.1, 1.3, 1.4, 1.7, 2.3):
        transform = FIXED[name](tv, value)
        made = transform(image)
        wanted = np.asarray(made) if kind == "PIL" else made.permute(1, 2, 0).numpy()
        program = program_of(tv.Compose([*first, tv.Resize(SIZE[::-1], antialias=True), transform]))
        ((operation, values),) = program.draw(7, *SIZE)[0]
        np.testing.assert_array_equal(_native.augment(pixels, operation, values), wanted)


@pytest.mark.parametrize("version", [1, 2])
def test_crops_and_erasures_of_one_area_and_ratio_are_torchvisions(version: int) -> None:
    tv = version_of(version)
    ranges = [(area, ratio) for area in (0.09, 0.2025, 0.36, 0.5) for ratio in (1.0, 0.75, 4 / 3)]
    for area, ratio in ranges:
        crop = tv.RandomResizedCrop(32, (area, area), (ratio, ratio))
        erasing = tv.RandomErasing(1.0, (area, area), (ratio, ratio))
        recipe = compile_recipe(crop)
        assert isinstance(recipe, Recipe)
        for width, height in ((10, 10), (100, 100), (50, 200), (333, 500), (224, 224)):
            image = torch.zeros((3, height, width), dtype=torch.uint8)
            keys = np.array([1], np.uint64)
            left, upper, right, lower = recipe.programs[0].draw([width], [height], keys)["box"][0]
            assert (right - left, lower - upper) == size_of(crop, image)
            resized = tv.Resize((height, width), antialias=True)
            program = program_of(tv.Compose([tv.PILToTensor(), resized, erasing]))
            ((_, _, wide, high),) = program.draw(1, width, height)[1] or [(0, 0, width, height)]
            assert (wide, high) == size_of(erasing, image)


def size_of(transform: Any, image: torch.Tensor) -> tuple[int, int]:
    """(width, height) of a rectangle that torchvision draws; the image's where none fits."""
    if hasattr(transform, "make_params"):
        found = transform.make_params([image])
        if "v" in found:
            return (found["w"], found["h"]) if found["v"] is not None else image.shape[:0:-1]
        return found["width"], found["height"]
    _, _, height, width, *_ = transform.get_params(image, transform.scale, transform.ratio)
    return width, height

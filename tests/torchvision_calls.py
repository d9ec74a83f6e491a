"""Augmentations as lists of calls (an operation of ``_native.OPERATIONS`` and its values)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pillow_operations
import pytest
from PIL import Image
from torchvision_stub import import_torchvision

Call = tuple[str, tuple[float, ...]]


def noise(width: int, height: int) -> Image.Image:
    numbers = np.random.default_rng(width * 7 + height)
    return Image.fromarray(numbers.integers(0, 256, (height, width, 3), dtype=np.uint8))


def apply(image: Image.Image, call: Call) -> Image.Image:
    return Image.fromarray(pillow_operations.apply(np.asarray(image), *call))


@contextmanager
def recording() -> Iterator[list[Call]]:
    """torchvision's transforms of PIL images only note what they would do."""
    torchvision = import_torchvision()
    pil = torchvision.transforms._functional_pil
    calls: list[Call] = []

    def note(name: str) -> Callable[..., Any]:
        def call(image: Any, *values: Any) -> Any:
            calls.append((name, tuple(float(value) for value in values)))
            return image

        return call

    def transform(self: Any, size: Any, method: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        name = "affine" if method == Image.Transform.AFFINE else "perspective"
        calls.append((name, tuple(float(value) for value in data)))
        return self

    def erase(image: Any, i: int, j: int, h: int, w: int, v: Any, inplace: bool = False) -> Any:
        if v is not image:  # what it erases with where no rectangle was found
            calls.append(("erase", (j, i, w, h)))
        return image

    def blur(image: Any, kernel_size: Any, sigma: Any) -> Any:
        return note("gaussian_blur")(image, *kernel_size, *sigma)

    def call_kernel(self: Any, functional: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
        name = functional.__name__.removeprefix("adjust_").removesuffix("_channels")
        (value,) = (*args, *kwargs.values())
        return note(name)(image, *(value if name == "permute" else [value]))

    def crop(image: Any, top: int, left: int, height: int, width: int) -> Any:
        calls.append(("crop", (left, top, width, height)))
        return image

    with pytest.MonkeyPatch.context() as patch:
        for name in ("brightness", "contrast", "saturation", "sharpness", "hue"):
            patch.setattr(pil, f"adjust_{name}", note(name))
        for name, ours in (("to_grayscale", "grayscale"), ("hflip", "flip_horizontal")):
            patch.setattr(pil, name, note(ours))
        patch.setattr(pil, "vflip", note("flip_vertical"))
        for name in ("posterize", "solarize", "autocontrast", "equalize", "invert"):
            patch.setattr(pil, name, note(name))
        patch.setattr(Image.Image, "transform", transform)
        patch.setattr(torchvision.transforms.functional, "gaussian_blur", blur)
        patch.setattr(torchvision.transforms.functional, "erase", erase)
        patch.setattr(torchvision.transforms.functional, "crop", crop)
        patch.setattr(torchvision.transforms.v2.Transform, "_call_kernel", call_kernel)
        yield calls

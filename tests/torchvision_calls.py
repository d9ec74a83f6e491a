"""Augmentations as lists of calls: what torchvision draws, and what it makes of an image.

A call is an operation of the core (``_native.OPERATIONS``) and its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from PIL import Image
from torchvision_stub import import_torchvision

Call = tuple[str, tuple[float, ...]]

_RESAMPLING = (Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
_FILTERS = (
    Image.Resampling.NEAREST,
    Image.Resampling.BILINEAR,
    Image.Resampling.BICUBIC,
    Image.Resampling.LANCZOS,
)
_MODES = ("constant", "edge", "reflect", "symmetric")


def apply(image: Image.Image, call: Call) -> Image.Image:
    """Apply an operation of torchvision, with these values, to a PIL image."""
    functional = import_torchvision().transforms.functional
    name, values = call
    match name:
        case "brightness" | "contrast" | "saturation" | "sharpness" | "hue":
            return getattr(functional, f"adjust_{name}")(image, values[0])
        case "grayscale":
            return functional.to_grayscale(image, int(values[0]))
        case "posterize":
            return functional.posterize(image, int(values[0]))
        case "solarize":
            return functional.solarize(image, values[0])
        case "autocontrast" | "equalize" | "invert":
            return getattr(functional, name)(image)
        case "permute":
            bands = image.split()
            return Image.merge("RGB", [bands[int(value)] for value in values])
        case "gaussian_blur":
            kernel = [int(value) for value in values[:2]]
            return functional.gaussian_blur(image, kernel, list(values[2:]))
        case "affine":
            fill = tuple(int(value) for value in values[7:10])
            size = int(values[10]), int(values[11])
            resample = _RESAMPLING[int(values[6])]
            return image.transform(
                size, Image.Transform.AFFINE, values[:6], resample, fillcolor=fill
            )
        case "perspective":
            fill = tuple(int(value) for value in values[9:12])
            resample = _RESAMPLING[int(values[8])]
            return image.transform(
                image.size, Image.Transform.PERSPECTIVE, values[:8], resample, fillcolor=fill
            )
        case "flip_horizontal":
            return functional.hflip(image)
        case "flip_vertical":
            return functional.vflip(image)
        case "crop":
            left, top, width, height = (int(value) for value in values)
            return image.crop((left, top, left + width, top + height))
        case "resize":
            return image.resize((int(values[0]), int(values[1])), _FILTERS[int(values[2])])
        case "pad":
            padding = [int(value) for value in values[:4]]
            fill = tuple(int(value) for value in values[5:])
            return functional.pad(image, padding, fill, _MODES[int(values[4])])
    raise AssertionError(name)


@contextmanager
def recording() -> Iterator[list[Call]]:
    """torchvision's transforms of PIL images only note what they would do.

    ``erase`` is noted as left, top, width, height.
    """
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
        """Of v2's transforms."""
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


@contextmanager
def recording_tensors(size: tuple[int, int]) -> Iterator[list[Call]]:
    """torchvision's AugMix, v1 and v2, only notes what it would do to a tensor of (width, height).

    The tensors themselves may be smaller, so that mixing them takes no time.
    """
    transforms = import_torchvision().transforms
    first, second = transforms._functional_tensor, transforms.v2.functional
    policies = transforms.v2._auto_augment
    calls: list[Call] = []
    width, height = size

    def note(name: str, version: int) -> Callable[..., Any]:
        named = name if name in ("brightness", "posterize", "solarize", "equalize") else None
        rest = () if named else (float(version),)

        def call(image: Any, *values: Any, **named_values: Any) -> Any:
            numbers = (*values, *named_values.values())
            calls.append((named or f"tensor_{name}", (*map(float, numbers), *rest)))
            return image

        return call

    def affine(image: Any, matrix: Any, *_: Any, **__: Any) -> Any:
        calls.append(("tensor_affine", tuple(matrix)))
        return image

    def affine_of(
        image: Any,
        angle: float,
        translate: Any,
        scale: float,
        shear: Any,
        interpolation: Any,
        fill: Any = None,
        center: Any = None,
    ) -> Any:
        middle = [0.0, 0.0] if center is None else [-width * 0.5, -height * 0.5]
        assert center in (None, [0, 0])
        inverse = transforms.functional._get_inverse_affine_matrix
        return affine(image, inverse(middle, angle, [1.0 * t for t in translate], scale, shear))

    def rotate(image: Any, angle: float, *_: Any, **__: Any) -> Any:
        return affine_of(image, -angle, [0, 0], 1.0, [0.0, 0.0], None)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("brightness", "contrast", "saturation", "sharpness"):
            patch.setattr(first, f"adjust_{name}", note(name, 1))
            patch.setattr(second, f"adjust_{name}", note(name, 2))
        for name in ("posterize", "solarize", "autocontrast", "equalize"):
            patch.setattr(first, name, note(name, 1))
            patch.setattr(second, name, note(name, 2))
        for module in (transforms.functional, second):
            patch.setattr(module, "affine", affine_of)
            patch.setattr(module, "rotate", rotate)
        patch.setattr(transforms.functional, "get_dimensions", lambda image: [3, height, width])
        patch.setattr(policies, "get_size", lambda image: [height, width])
        yield calls

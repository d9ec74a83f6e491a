"""Call torchvision on tensors of bytes, with the core's operations and values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torchvision_stub import import_torchvision

Call = tuple[str, tuple[float, ...]]

_MODES = ("nearest", "bilinear")


def _fill(values: Any) -> Any:
    return None if min(values) < 0 else [float(value) for value in values]


def apply(image: torch.Tensor, call: Call) -> torch.Tensor:
    """One call, on an image uint8, (3 or 1, height, width)."""
    transforms = import_torchvision().transforms
    first = transforms._functional_tensor
    second = transforms.v2.functional
    name, values = call
    match name.removeprefix("tensor_"):
        case "affine":
            if name == "tensor_affine":
                mode, fill = _MODES[int(values[6])], _fill(values[7:])
                return first.affine(image, list(values[:6]), mode, fill)
        case "perspective":
            mode, fill = _MODES[int(values[8])], _fill(values[9:])
            return first.perspective(image, list(values[:8]), mode, fill)
        case "contrast" | "saturation" | "sharpness" | "hue" as kind:
            functional = first if values[-1] == 1 else second
            return getattr(functional, f"adjust_{kind}")(image, values[0])
        case "grayscale":
            functional = first if values[-1] == 1 else second
            return functional.rgb_to_grayscale(image, int(values[0])).contiguous()
        case "autocontrast":
            return (first if values[-1] == 1 else second).autocontrast(image)
        case "brightness":
            return first.adjust_brightness(image, values[0])
        case "posterize":
            return first.posterize(image, int(values[0]))
        case "solarize":
            return first.solarize(image, values[0])
        case "equalize" | "invert" as kind:
            return getattr(first, kind)(image)
        case "flip_horizontal":
            return first.hflip(image)
        case "flip_vertical":
            return first.vflip(image)
        case "permute":
            return image[[int(value) for value in values]]
        case "gaussian_blur":
            return second.gaussian_blur(image, [int(v) for v in values[:2]], list(values[2:]))
        case "crop":
            left, top, width, height = (int(value) for value in values)
            return image[:, top : top + height, left : left + width]
        case "pad":
            mode = ("constant", "edge", "reflect", "symmetric")[int(values[4])]
            return first.pad(image, [int(value) for value in values[:4]], values[5], mode)
    raise AssertionError(name)


def apply_all(image: torch.Tensor, calls: Iterable[Call]) -> torch.Tensor:
    for name, values in calls:
        image = apply(image, (name, tuple(values)))
    return image

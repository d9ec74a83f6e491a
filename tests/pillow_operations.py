"""Expected pixels of the core's augmentations, by Pillow, as torchvision calls it, and numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

Values = Sequence[float]

INTERPOLATIONS = (
    Image.Resampling.NEAREST,
    Image.Resampling.BILINEAR,
    Image.Resampling.BICUBIC,
)
FILTERS = (*INTERPOLATIONS, Image.Resampling.LANCZOS)
PAD_MODES = ("constant", "edge", "reflect", "symmetric")


def _enhanced(enhancer: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, values: enhancer(image).enhance(values[0])


def _hue(image: Image.Image, values: Values) -> Image.Image:
    if image.mode == "L":
        return image
    h, s, v = image.convert("HSV").split()
    turned = (np.asarray(h).astype(int) + int(values[0] * 255)) % 256
    h = Image.fromarray(turned.astype(np.uint8))
    return Image.merge("HSV", (h, s, v)).convert("RGB")


def _grayscale(image: Image.Image, values: Values) -> Image.Image:
    grey = image.convert("L")
    return grey if values[0] == 1 else Image.merge("RGB", (grey, grey, grey))


def _permute(image: Image.Image, values: Values) -> Image.Image:
    return Image.merge("RGB", [image.getchannel(int(channel)) for channel in values])


def _fill(image: Image.Image, fill: Values) -> Any:
    return int(fill[0]) if image.mode == "L" else tuple(int(value) for value in fill)


def _affine(image: Image.Image, values: Values) -> Image.Image:
    *matrix, interpolation, _, _, _, width, height = values
    fill = _fill(image, values[7:10])
    size = (int(width), int(height))
    return image.transform(
        size, Image.Transform.AFFINE, matrix, INTERPOLATIONS[int(interpolation)], fillcolor=fill
    )


def _perspective(image: Image.Image, values: Values) -> Image.Image:
    fill = _fill(image, values[9:12])
    method = Image.Transform.PERSPECTIVE
    interpolation = INTERPOLATIONS[int(values[8])]
    return image.transform(image.size, method, values[:8], interpolation, fillcolor=fill)


def blurred(image: np.ndarray, values: Values) -> np.ndarray:
    """Exact pixels of a Gaussian blur, not rounded."""
    pixels = image.astype(float)
    for axis, (kernel, sigma) in enumerate([(values[1], values[3]), (values[0], values[2])]):
        half = int(kernel) // 2
        weights = np.exp(-0.5 * (np.arange(-half, half + 1) / sigma) ** 2)
        margins = [(half, half) if i == axis else (0, 0) for i in range(pixels.ndim)]
        windows = np.lib.stride_tricks.sliding_window_view(
            np.pad(pixels, margins, "reflect"), 2 * half + 1, axis
        )
        pixels = windows @ (weights / weights.sum())
    return pixels


def _blur(image: Image.Image, values: Values) -> Image.Image:
    return Image.fromarray(blurred(np.asarray(image), values).round().astype(np.uint8))


def _pad(image: Image.Image, values: Values) -> Image.Image:
    left, top, right, bottom = (int(value) for value in values[:4])
    mode = PAD_MODES[int(values[4])]
    if mode == "constant":
        fill = _fill(image, values[5:])
        return ImageOps.expand(image, (left, top, right, bottom), fill)
    margins = [(top, bottom), (left, right), (0, 0)]
    pixels = np.asarray(image)
    return Image.fromarray(np.pad(pixels, margins[: pixels.ndim], mode))


def _crop(image: Image.Image, values: Values) -> Image.Image:
    left, top, width, height = (int(value) for value in values)
    return image.crop((left, top, left + width, top + height))


def _resize(image: Image.Image, values: Values) -> Image.Image:
    width, height, kind = (int(value) for value in values)
    return image.resize((width, height), FILTERS[kind])


def _solarize_add(image: Image.Image, values: Values) -> Image.Image:
    added, threshold = (int(value) for value in values)
    table = [min(value + added, 255) if value < threshold else value for value in range(256)]
    return image.point(table * len(image.getbands()))


Operation = Callable[[Image.Image, Values], Image.Image]

OPERATIONS: dict[str, Operation] = {
    "brightness": _enhanced(ImageEnhance.Brightness),
    "contrast": _enhanced(ImageEnhance.Contrast),
    "saturation": _enhanced(ImageEnhance.Color),
    "sharpness": _enhanced(ImageEnhance.Sharpness),
    "hue": _hue,
    "grayscale": _grayscale,
    "posterize": lambda image, values: ImageOps.posterize(image, int(values[0])),
    "solarize": lambda image, values: ImageOps.solarize(image, values[0]),
    "solarize_add": _solarize_add,
    "autocontrast": lambda image, values: ImageOps.autocontrast(image),
    "equalize": lambda image, values: ImageOps.equalize(image),
    "invert": lambda image, values: ImageOps.invert(image),
    "permute": _permute,
    "box_blur": lambda image, values: image.filter(ImageFilter.GaussianBlur(values[0])),
    "gaussian_blur": _blur,
    "pad": _pad,
    "crop": _crop,
    "resize": _resize,
    "affine": _affine,
    "perspective": _perspective,
    "flip_horizontal": lambda image, values: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "flip_vertical": lambda image, values: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
}


def apply(pixels: np.ndarray, operation: str, values: Values) -> np.ndarray:
    """The operation's pixels: uint8, (H, W, 3) or (H, W), as ``_native.augment`` gives them."""
    return np.asarray(OPERATIONS[operation](Image.fromarray(pixels), values))

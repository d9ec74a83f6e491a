"""Each augmentation of the core, beside torchvision on Pillow, pillow-simd and tensors."""

from __future__ import annotations

import importlib
import statistics
import timeit
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from _workload import Workload, contenders
from fastdata.benchmarks.adapters._serve import Request, serve
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from PIL import Image, ImageFilter

from fastdata import _native

SIZE = 224
_NAMES = dict.fromkeys(("Pillow", *_native.simd_levels()), "")

WORKLOAD = Workload(
    "Augmentations",
    contenders(__file__, _NAMES, folder="tree", tolerance=None),
    options={"rounds": 7, "threads": (1,), "timeout": 900.0},
    transposed=True,
)


class Case(NamedTuple):
    """Operation of the core with its values, and torchvision's function of a PIL image."""

    operation: str
    values: Sequence[float]
    run: Callable[[Any], Any]
    within: int = 0  # levels that pixels may be from Pillow's


#: The core's values, torchvision's function and its arguments.
_SIMPLE: dict[str, tuple[list[float], str, dict[str, Any]]] = {
    "brightness": ([1.3], "adjust_brightness", {"brightness_factor": 1.3}),
    "contrast": ([1.3], "adjust_contrast", {"contrast_factor": 1.3}),
    "saturation": ([1.3], "adjust_saturation", {"saturation_factor": 1.3}),
    "hue": ([0.1], "adjust_hue", {"hue_factor": 0.1}),
    "sharpness": ([1.7], "adjust_sharpness", {"sharpness_factor": 1.7}),
    "grayscale": ([3], "rgb_to_grayscale", {"num_output_channels": 3}),
    "posterize": ([4], "posterize", {"bits": 4}),
    "solarize": ([128], "solarize", {"threshold": 128}),
    "autocontrast": ([], "autocontrast", {}),
    "equalize": ([], "equalize", {}),
    "invert": ([], "invert", {}),
    "permute": ([2, 0, 1], "permute_channels", {"permutation": [2, 0, 1]}),
    "gaussian_blur": ([23, 23, 1.2, 1.2], "gaussian_blur", {"kernel_size": 23, "sigma": 1.2}),
    "flip_horizontal": ([], "horizontal_flip", {}),
    "flip_vertical": ([], "vertical_flip", {}),
    "pad": ([4, 4, 4, 4, 2, 0, 0, 0], "pad", {"padding": [4] * 4, "padding_mode": "reflect"}),
}


def operations(size: int = SIZE) -> dict[str, Case]:
    """Return operations of the core by name; needs torchvision imported."""
    functional = importlib.import_module("torchvision.transforms.v2.functional")
    matrices = importlib.import_module("torchvision.transforms.functional")
    found: dict[str, Case] = {}
    for operation, (values, name, about) in _SIMPLE.items():
        run, within = partial(getattr(functional, name), **about), int("blur" in name)
        found[operation.replace("_", " ")] = Case(operation, values, run, within)
    inner, shrunk, last = size - 24, size * 5 // 7, size - 1
    box = {"top": 12, "left": 10, "height": inner, "width": inner}
    found["crop"] = Case("crop", [10, 12, inner, inner], partial(functional.crop, **box))
    run = partial(functional.resize, size=[shrunk, shrunk])
    found["resize"] = Case("resize", [shrunk, shrunk, 1], run, 1)
    # timm's and Pillow's, which torchvision does not have.
    brighter = [min(value + 60, 255) if value < 128 else value for value in range(256)] * 3
    found["solarize add"] = Case("solarize_add", [60, 128], lambda image: image.point(brighter))
    kernel = ImageFilter.GaussianBlur(1.2)
    found["box blur"] = Case("box_blur", [1.2], lambda image: image.filter(kernel))
    corners = [[0, 0], [last, 0], [last, last], [0, last]]
    moved = [[12, 20], [last - 30, 5], [last - 4, last - 18], [25, last - 9]]
    seen = matrices._get_perspective_coeffs(corners, moved)
    placed = {"angle": 17.0, "translate": [9, 5], "scale": 1.0, "shear": [0.0, 0.0]}
    turned = matrices._get_inverse_affine_matrix([size * 0.5] * 2, **placed)
    shifted = {**placed, "angle": 0.0}
    matrix = matrices._get_inverse_affine_matrix([size * 0.5] * 2, **shifted)
    for number, name in enumerate(("nearest", "bilinear", "bicubic")):
        about = {"interpolation": functional.InterpolationMode(name)}
        end, most = [number, 0.0, 0.0, 0.0], int(number > 0)
        if number == 0:
            run = partial(functional.affine, **shifted, **about)
            found["translate, nearest"] = Case("affine", [*matrix, *end, size, size], run)
        run = partial(functional.affine, **placed, **about)
        found[f"affine, {name}"] = Case("affine", [*turned, *end, size, size], run, most)
        run = partial(functional.perspective, startpoints=corners, endpoints=moved, **about)
        found[f"perspective, {name}"] = Case("perspective", [*seen, *end], run, most)
    return found


def picture(size: int = SIZE) -> Any:
    """Return waves under noise, without the darkest and the lightest values."""
    y, x = np.mgrid[:size, :size]
    waves = [np.sin(x / a + y / b) * 90 + 128 for a, b in ((9, 20), (30, 7), (15, 16))]
    noise = np.random.default_rng(0).normal(0, 8, (size, size, 3))
    return np.asarray((np.stack(waves, -1) + noise).clip(8, 240), np.uint8)


def check(level: str, pixels: Any, found: dict[str, Case]) -> None:
    """Raise a RuntimeError if the core's pixels on a SIMD level are not Pillow's."""
    _native.set_simd(level)
    for name, case in found.items():
        wanted = np.asarray(case.run(Image.fromarray(pixels))).astype(int)
        made = _native.augment(pixels, case.operation, case.values).astype(int)
        if (worst := int(np.abs(made - wanted).max())) > case.within:
            raise RuntimeError(f"{name}, {level}: {worst} levels from Pillow's")


def figures(request: Request) -> dict[str, Any]:
    """Return the microseconds of each operation: the median of some calls in a row."""
    import_torchvision()
    pixels, found, native = picture(), {}, request.variant in _native.simd_levels()
    image = Image.fromarray(pixels)
    if native:
        _native.set_simd(request.variant)
    for name, case in operations().items():
        if native:
            seconds = _native.time_augment(pixels, case.operation, case.values, 28)
        else:
            seconds = timeit.repeat(partial(case.run, image), number=1, repeat=7)
        found[name] = statistics.median(seconds) * 1e6
    return found


def open_loader(request: Request) -> Iterator[Any]:
    """Check the core before it is timed."""
    import_torchvision()
    if request.variant in _native.simd_levels():
        check(request.variant, picture(), operations())
    yield np.zeros(1), [0] * request.check


if __name__ == "__main__":
    serve(open_loader, figures=figures, packages=["fastdata", "torchvision"])

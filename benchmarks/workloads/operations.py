"""Each augmentation of the core, beside torchvision on Pillow, pillow-simd and tensors."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from _workload import Workload, contenders
from fastdata.benchmarks.adapters._serve import Request, serve
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from PIL import Image, ImageFilter

from fastdata import _native

SIZE = 224
_CALLS = 7

WORKLOAD = Workload(
    "Augmentations",
    contenders(
        __file__,
        dict.fromkeys(("Pillow", *_native.simd_levels()), ""),
        folder="tree",
        tolerance=None,
    ),
    options={"rounds": 7, "threads": (1,), "timeout": 900.0},
    transposed=True,
)


class Case(NamedTuple):
    """Operation with its parameters.

    Attributes:
        operation: The core's name of it.
        values: The core's values.
        run: torchvision's function with the same parameters, of a PIL image.
        within: How far pixels may be from Pillow's, in levels.
    """

    operation: str
    values: Sequence[float]
    run: Callable[[Any], Any]
    within: int = 0


def operations(size: int = SIZE) -> dict[str, Case]:
    """Return every operation of the core, by its name in the table; needs torchvision imported."""
    functional = importlib.import_module("torchvision.transforms.v2.functional")
    matrices = importlib.import_module("torchvision.transforms.functional")
    modes = functional.InterpolationMode
    interpolations = (modes.NEAREST, modes.BILINEAR, modes.BICUBIC)
    flat = [0.0, 0.0, 0.0]
    found: dict[str, Case] = {}

    def add(
        operation: str, values: Sequence[float], name: str, within: int = 0, **arguments: Any
    ) -> None:
        function = getattr(functional, name)
        label = operation.replace("_", " ")
        if "interpolation" in arguments:
            label += f", {arguments['interpolation'].value}"
        if arguments.get("angle") == 0:
            label = f"translate, {arguments['interpolation'].value}"
        run = lambda image: function(image, **arguments)  # noqa: E731
        found[label] = Case(operation, values, run, within)

    add("brightness", [1.3], "adjust_brightness", brightness_factor=1.3)
    add("contrast", [1.3], "adjust_contrast", contrast_factor=1.3)
    add("saturation", [1.3], "adjust_saturation", saturation_factor=1.3)
    add("hue", [0.1], "adjust_hue", hue_factor=0.1)
    add("sharpness", [1.7], "adjust_sharpness", sharpness_factor=1.7)
    add("grayscale", [3], "rgb_to_grayscale", num_output_channels=3)
    add("posterize", [4], "posterize", bits=4)
    add("solarize", [128], "solarize", threshold=128)
    add("autocontrast", [], "autocontrast")
    add("equalize", [], "equalize")
    add("invert", [], "invert")
    add("permute", [2, 0, 1], "permute_channels", permutation=[2, 0, 1])
    blur: dict[str, Any] = {"kernel_size": [23, 23], "sigma": [1.2, 1.2]}
    add("gaussian_blur", [23, 23, 1.2, 1.2], "gaussian_blur", 1, **blur)
    # What timm calls of Pillow's, and torchvision does not have.
    brighter = [min(value + 60, 255) if value < 128 else value for value in range(256)] * 3
    found["solarize add"] = Case("solarize_add", [60, 128], lambda image: image.point(brighter), 0)
    kernel = ImageFilter.GaussianBlur(1.2)
    found["box blur"] = Case("box_blur", [1.2], lambda image: image.filter(kernel))
    centre = [size * 0.5, size * 0.5]
    for number, interpolation in enumerate(interpolations):
        for angle in (0.0, 17.0) if number == 0 else (17.0,):
            placed: dict[str, Any] = {"angle": angle, "scale": 1.0, "shear": [0.0, 0.0]}
            placed["translate"] = [9, 5]
            matrix = matrices._get_inverse_affine_matrix(centre, **placed)
            values = [*matrix, number, *flat, size, size]
            add("affine", values, "affine", number and 1, interpolation=interpolation, **placed)
    last = size - 1
    corners = [[0, 0], [last, 0], [last, last], [0, last]]
    moved = [[12, 20], [last - 30, 5], [last - 4, last - 18], [25, last - 9]]
    matrix = matrices._get_perspective_coeffs(corners, moved)
    for number, interpolation in enumerate(interpolations):
        points = {"startpoints": corners, "endpoints": moved, "interpolation": interpolation}
        add("perspective", [*matrix, number, *flat], "perspective", number and 1, **points)
    add("flip_horizontal", [], "horizontal_flip")
    add("flip_vertical", [], "vertical_flip")
    box = {"top": 12, "left": 10, "height": size - 24, "width": size - 24}
    add("crop", [10, 12, size - 24, size - 24], "crop", **box)
    shrunk = size * 5 // 7
    add("resize", [shrunk, shrunk, 1], "resize", 1, size=[shrunk, shrunk])
    add("pad", [4, 4, 4, 4, 2, *flat], "pad", padding=[4, 4, 4, 4], padding_mode="reflect")
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
    """Return the microseconds of each operation."""
    import_torchvision()
    pixels, variant, found = picture(), request.variant, operations()
    image = Image.fromarray(pixels)
    if variant in _native.simd_levels():
        check(variant, pixels, found)
        return {
            name: statistics.median(
                _native.time_augment(pixels, case.operation, case.values, 4 * _CALLS)
            )
            * 1e6
            for name, case in found.items()
        }
    return {name: _timed(one.run, image) for name, one in found.items()}


def _timed(run: Callable[[Any], object], image: Any) -> float:
    seconds = []
    for _ in range(_CALLS):
        begun = time.perf_counter()
        run(image)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds) * 1e6


def open_loader(request: Request) -> Iterator[Any]:
    """Check the core before it is timed."""
    import_torchvision()
    if request.variant in _native.simd_levels():
        check(request.variant, picture(), operations())
    yield np.zeros(1), [0] * request.check


if __name__ == "__main__":
    serve(open_loader, figures=figures, packages=["fastdata", "torchvision"])

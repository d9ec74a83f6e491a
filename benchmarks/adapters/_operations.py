"""torchvision's equivalents of the core's augmentations; also a script that times them.

    python _operations.py pixels.npy

For each line of JSON on stdin, ``[name, path or null]``, it runs that operation on a PIL image of
the pixels, saves what comes out under the path, and prints the microseconds that it takes.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from PIL import Image, ImageFilter

SIZE = 224
CALLS = 7  # of a contender in a row; the round's figure is their median


class Case(NamedTuple):
    """Operation with its parameters.

    Attributes:
        operation: The core's name of it.
        values: The core's values.
        run: torchvision's function with the same parameters, of a PIL image or a tensor.
        within: How far pixels may be from Pillow's, in levels; None where torchvision has no
            such function of a PIL image.
        tensors: Whether it has one of tensors.
    """

    operation: str
    values: Sequence[float]
    run: Callable[[Any], Any]
    within: int | None = 0
    tensors: bool = True


def operations(size: int = SIZE) -> dict[str, Case]:
    """Return every operation of the core, by its name in the table; needs torchvision imported."""
    functional = importlib.import_module("torchvision.transforms.v2.functional")
    matrices = importlib.import_module("torchvision.transforms.functional")
    modes = functional.InterpolationMode
    interpolations = (modes.NEAREST, modes.BILINEAR, modes.BICUBIC)
    flat = [0.0, 0.0, 0.0]
    found: dict[str, Case] = {}

    def add(
        operation: str, values: Sequence[float], name: str, within: int | None = 0, **arguments: Any
    ) -> None:
        function = getattr(functional, name)
        label = operation.replace("_", " ")
        if "interpolation" in arguments:
            label += f", {arguments['interpolation'].value}"
        if arguments.get("angle") == 0:
            label = f"translate, {arguments['interpolation'].value}"
        run = lambda image: function(image, **arguments)  # noqa: E731
        tensors = arguments.get("interpolation") is not modes.BICUBIC
        found[label] = Case(operation, values, run, within, tensors)

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
    add("gaussian_noise", [0, 0.1, 1], "gaussian_noise", None, mean=0.0, sigma=0.1, clip=True)
    # What timm calls of Pillow's, and torchvision does not have.
    brighter = [min(value + 60, 255) if value < 128 else value for value in range(256)] * 3
    found["solarize add"] = Case(
        "solarize_add", [60, 128], lambda image: image.point(brighter), 0, False
    )
    kernel = ImageFilter.GaussianBlur(1.2)
    found["box blur"] = Case("box_blur", [1.2], lambda image: image.filter(kernel), 0, False)
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
    _add_tensors(found, functional, matrix)
    return found


def _add_tensors(found: dict[str, Case], functional: Any, matrix: list[float]) -> None:
    """Add operations that differ on tensors; tests/test_tensor_augment.py checks their pixels."""

    def add(operation: str, values: Sequence[float], name: str, *arguments: Any) -> None:
        function = getattr(functional, name)
        label = f"of tensors: {operation.removeprefix('tensor_')}"
        found[label] = Case(operation, values, lambda image: function(image, *arguments), None)

    for name, factor in (("contrast", 1.3), ("saturation", 1.3), ("sharpness", 1.7), ("hue", 0.1)):
        add(f"tensor_{name}", [factor, 2], f"adjust_{name}", factor)
    add("tensor_grayscale", [3, 2], "rgb_to_grayscale", 3)
    add("tensor_autocontrast", [2], "autocontrast")
    bilinear = functional.InterpolationMode.BILINEAR
    moved = [0.95, 0.3, 9.0, -0.3, 0.95, 5.0, 1, 0, 0, 0]
    turned = (17.0, [9, 5], 1.0, [0.0, 0.0], bilinear, [0.0] * 3)
    add("tensor_affine", moved, "affine", *turned)
    seen = (None, None, bilinear, [0.0] * 3, matrix)
    add("tensor_perspective", [*matrix, 1, 0, 0, 0], "perspective", *seen)
    found["of tensors: begin a mixture"] = Case("mix_begin", [0.5], lambda image: 0.5 * image, None)


def timed(run: Callable[[Any], object], image: Any) -> float:
    """Return the microseconds of a call."""
    seconds = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        run(image)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds) * 1e6


def main() -> None:
    """Run the script."""
    import numpy as np
    from _torchvision import import_torchvision

    import_torchvision()
    image = Image.fromarray(np.load(sys.argv[1]))
    found = operations(image.width)
    for line in sys.stdin:
        name, path = json.loads(line)
        if path:
            np.save(path, np.asarray(found[name].run(image)))
        print(timed(found[name].run, image), flush=True)


if __name__ == "__main__":
    main()

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
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from PIL import Image, ImageFilter

from fastdata import _native

SIZE = 224
_PLACED = "angle", "translate", "scale", "shear"
_NAMES = dict.fromkeys(("Pillow", *_native.simd_levels()), "")

WORKLOAD = Workload(
    "Augmentations",
    contenders(__file__, _NAMES, folder="tree", tolerance=None, needs="torchvision"),
    options={"rounds": 7, "threads": (1,), "timeout": 900.0},
    transposed=True,
)


class Case(NamedTuple):
    """Operation of the core with its values, and a function of a PIL image that does the same."""

    operation: str
    values: Sequence[float]
    run: Callable[[Any], Any]
    within: int = 0  # levels that pixels may be from Pillow's


def operations(size: int = SIZE) -> dict[str, Case]:
    """Return operations of the core by name; needs torchvision imported."""
    f: Any = importlib.import_module("torchvision.transforms.v2.functional")
    old: Any = importlib.import_module("torchvision.transforms.functional")
    inner, less, last = size - 24, size * 5 // 7, size - 1
    # timm's and Pillow's, which torchvision does not have.
    brighter = [min(value + 60, 255) if value < 128 else value for value in range(256)] * 3
    blur = ImageFilter.GaussianBlur(1.2)
    cases = [
        Case("brightness", [1.3], lambda image: f.adjust_brightness(image, 1.3)),
        Case("contrast", [1.3], lambda image: f.adjust_contrast(image, 1.3)),
        Case("saturation", [1.3], lambda image: f.adjust_saturation(image, 1.3)),
        Case("hue", [0.1], lambda image: f.adjust_hue(image, 0.1)),
        Case("sharpness", [1.7], lambda image: f.adjust_sharpness(image, 1.7)),
        Case("grayscale", [3], lambda image: f.rgb_to_grayscale(image, 3)),
        Case("posterize", [4], lambda image: f.posterize(image, 4)),
        Case("solarize", [128], lambda image: f.solarize(image, 128)),
        Case("autocontrast", [], f.autocontrast),
        Case("equalize", [], f.equalize),
        Case("invert", [], f.invert),
        Case("permute", [2, 0, 1], lambda image: f.permute_channels(image, [2, 0, 1])),
        Case("gaussian_blur", [23, 23, 1.2, 1.2], lambda im: f.gaussian_blur(im, 23, 1.2), 1),
        Case("solarize_add", [60, 128], lambda image: image.point(brighter)),
        Case("box_blur", [1.2], lambda image: image.filter(blur)),
        Case("flip_horizontal", [], f.horizontal_flip),
        Case("flip_vertical", [], f.vertical_flip),
        Case("crop", [10, 12, inner, inner], lambda image: f.crop(image, 12, 10, inner, inner)),
        Case("resize", [less, less, 1], lambda image: f.resize(image, [less, less]), 1),
        Case("pad", [4, 4, 4, 4, 2, 0, 0, 0], lambda image: f.pad(image, [4] * 4, 0, "reflect")),
    ]
    found = {case.operation.replace("_", " "): case for case in cases}
    corners = [[0, 0], [last, 0], [last, last], [0, last]]
    moved = [[12, 20], [last - 30, 5], [last - 4, last - 18], [25, last - 9]]
    seen = old._get_perspective_coeffs(corners, moved)
    for number, name in enumerate(("nearest", "bilinear", "bicubic")):
        mode, end = {"interpolation": f.InterpolationMode(name)}, [number, 0.0, 0.0, 0.0]
        for title, angle in (("translate", 0.0), ("affine", 17.0))[number > 0 :]:
            placed = angle, [9, 5], 1.0, [0.0, 0.0]
            matrix = old._get_inverse_affine_matrix([size * 0.5] * 2, *placed)
            run = partial(f.affine, **dict(zip(_PLACED, placed, strict=True)), **mode)
            values = [*matrix, *end, size, size]
            found[f"{title}, {name}"] = Case("affine", values, run, int(number > 0))
        run = partial(f.perspective, startpoints=corners, endpoints=moved, **mode)
        found[f"perspective, {name}"] = Case("perspective", [*seen, *end], run, int(number > 0))
    return found


def picture(size: int = SIZE) -> Any:
    """Return noise without the darkest and the lightest values."""
    return np.random.default_rng(0).integers(8, 240, (size, size, 3), np.uint8)


def check(level: str, pixels: Any, found: dict[str, Case]) -> None:
    """Raise a RuntimeError if the core's pixels on a SIMD level are not Pillow's."""
    _native.set_simd(level)
    for name, case in found.items():
        wanted = np.asarray(case.run(Image.fromarray(pixels))).astype(int)
        made = _native.augment(pixels, case.operation, case.values).astype(int)
        if (worst := int(np.abs(made - wanted).max())) > case.within:
            raise RuntimeError(f"{name}, {level}: {worst} levels from Pillow's")


def figures(request: ContenderRequest) -> dict[str, Any]:
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


def open_loader(request: ContenderRequest) -> Iterator[Any]:
    """Check the core before it is timed."""
    import_torchvision()
    if request.variant in _native.simd_levels():
        check(request.variant, picture(), operations())
    yield np.zeros(1), [0] * request.check


if __name__ == "__main__":
    serve(open_loader, figures=figures, packages=["fastdata", "torchvision"])

"""Each augmentation of the core, beside torchvision on Pillow images and on tensors.

    python -m fastdata.benchmarks.augment --image photo.jpg --json augment.json

One image of 224 x 224, uint8, in one thread (pin it: ``taskset -c 1``). The core's time is that in
planes, as augmentations run between decoding and output; Pillow's is torchvision's function on a
PIL image, the tensors' the same function on a (3, 224, 224) tensor. Pixels are compared with
Pillow's on every SIMD level before anything is timed; contenders take turns; figures are medians
of rounds, with the spread (smallest to largest) beside them.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.measure import Figures, Spread, machine
from PIL import Image, ImageFilter

from fastdata import _native

SIZE = 224
CALLS = 7  # of a contender in a row; the round's figure is their median

Pixels = npt.NDArray[np.uint8]


class Case(NamedTuple):
    """One operation with its parameters.

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


def cases(size: int = SIZE) -> dict[str, Case]:
    """Every operation of the core, by what the table calls it."""
    import_torchvision()
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
    return found


def picture(size: int = SIZE) -> Pixels:
    """Waves under noise, without the darkest and the lightest values."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    waves = [np.sin(x / a + y / b) * 90 + 128 for a, b in ((9, 20), (30, 7), (15, 16))]
    pixels = np.stack(waves, -1) + rng.normal(0, 8, (size, size, 3))
    return np.asarray(pixels.clip(8, 240), np.uint8)


def load(image: Path | None) -> Pixels:
    """The image's largest square, resized."""
    if image is None:
        return picture()
    with Image.open(image) as opened:
        side = min(opened.size)
        left, top = (opened.width - side) // 2, (opened.height - side) // 2
        square = opened.convert("RGB").crop((left, top, left + side, top + side))
    return np.array(square.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def verify(pixels: Pixels, wanted: Mapping[str, Case]) -> None:
    """Compares the core's pixels with Pillow's, on every level, before anything is timed."""
    image = Image.fromarray(pixels)
    for name, case in wanted.items():
        if case.within is None:
            continue
        expected = np.asarray(case.run(image)).astype(int)
        for level in _native.simd_levels():
            _native.set_simd(level)
            found = _native.augment(pixels, case.operation, case.values)
            worst = int(np.abs(found.astype(int) - expected).max())
            if worst > case.within:
                sys.exit(f"{name}, {level}: {worst} levels from Pillow's: nothing was timed")


def measure(pixels: Pixels, rounds: int) -> dict[str, Any]:
    """Runs the benchmark; returns all figures, in microseconds, as JSON values."""
    import torch

    torch.set_num_threads(1)
    wanted = cases()
    before = _native.simd()
    verify(pixels, wanted)
    image = Image.fromarray(pixels)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    times: dict[str, dict[str, list[float]]] = {name: {} for name in wanted}
    for number in range(rounds):
        for name, case in wanted.items():
            found = times[name]
            for level in _native.simd_levels():
                _native.set_simd(level)
                seconds = _native.time_augment(pixels, case.operation, case.values, 4 * CALLS)
                found.setdefault(level, []).append(statistics.median(seconds) * 1e6)
            if case.within is not None:
                found.setdefault("Pillow", []).append(_timed(case.run, image))
            if case.tensors:
                found.setdefault("tensor", []).append(_timed(case.run, tensor))
        print(f"round {number + 1}/{rounds}", file=sys.stderr)
    _native.set_simd(before)
    about = machine()
    about["packages"] |= {"torch": torch.__version__}
    about["packages"] |= {"torchvision": import_torchvision().__version__}
    return {"benchmark": "augment", "machine": about, "size": SIZE, "microseconds": times}


def _timed(run: Callable[[Any], object], image: Any) -> float:
    seconds = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        run(image)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds) * 1e6


def figures(result: dict[str, Any]) -> Figures:
    """The results as people read them; ratios to Pillow are taken round by round."""
    times = result["microseconds"]
    levels = [name for name in next(iter(times.values())) if name not in ("Pillow", "tensor")]
    vectors = levels[1:]
    rows = []
    for name, found in times.items():
        cells = [_cell(found.get(contender)) for contender in (*levels, "Pillow", "tensor")]
        rows.append([name, *cells, *(_ratio(found.get("Pillow"), found[one]) for one in vectors)])
    side = result["size"]
    return Figures(
        f"An image of {side} x {side}, microseconds, one thread",
        ["", *levels, "Pillow", "tensor", *(f"{one}: times Pillow's speed" for one in vectors)],
        rows,
    )


def _cell(values: list[float] | None) -> str:
    if values is None:
        return "-"
    spread = Spread.of(values)
    return f"{spread.median:,.1f} ({spread.low:,.1f} to {spread.high:,.1f})"


def _ratio(theirs: list[float] | None, ours: list[float]) -> str:
    if theirs is None:
        return "-"
    return f"{statistics.median(a / b for a, b in zip(theirs, ours, strict=True)):.1f}"


@click.command()
@click.option(
    "--image",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A photograph; a made image if there is none.",
)
@click.option("--rounds", default=7, show_default=True)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here."
)
def main(image: Path | None, rounds: int, json_path: Path | None) -> None:
    """Measure each augmentation against torchvision on Pillow images and on tensors."""
    result = measure(load(image), rounds)
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1) + "\n")
    figures(result).show()


if __name__ == "__main__":
    main()

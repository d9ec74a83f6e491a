"""Augmentations of colours and single pixels, with torchvision's pixels on PIL images (0.28)."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from fastdata.errors import UsageError
from fastdata.transforms import checks
from fastdata.transforms.base import ByChance, Transform
from fastdata.transforms.checks import Probability, Range, number_from, range_from, whole_from
from fastdata.transforms.nodes import DrawnNumber
from fastdata.transforms.tree import Builder

_FACTORS = ("brightness", "contrast", "saturation")
_PARAMETERS = {**dict.fromkeys(_FACTORS, "factor"), "hue": "turns"}
_Jitter: TypeAlias = Annotated["float | Range | None", checks.around(1.0, 0.0, checks.MOST_FACTOR)]
_Factors: TypeAlias = Annotated[Range, range_from(0.0, checks.MOST_FACTOR)]


def _kernel_size(title: str, name: str, value: Any) -> tuple[int, ...]:
    size = checks.as_values(value)
    size = size * 2 if len(size) == 1 else size
    if len(size) != 2 or not all(
        isinstance(side, numbers.Integral) and 0 < int(side) < 256 and side % 2 for side in size
    ):
        raise UsageError(
            f"{title}: {name} {value!r} is not one or two odd ints from 1 to 255.",
            f"Give for example {name}=23.",
        )
    return tuple(map(int, size))


def _sigma(title: str, name: str, value: Any) -> Range:
    ends = (value, value) if isinstance(value, numbers.Real) else value
    return checks.above_zero(title, name, ends)


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue, in a random order.

    Attributes:
        brightness: The factor is uniform in (from, to), 0 to 1e6; a number b means
            (max(0, 1 - b), 1 + b). (1, 1) changes nothing.
        contrast: As ``brightness``.
        saturation: As ``brightness``.
        hue: Turns of the hue, uniform in (from, to), from -0.5 to 0.5; a number h means
            (-h, h). (0, 0) changes nothing.
    """

    otherwise_on_tensors = True
    floats_as_bytes = True

    brightness: _Jitter = 0
    contrast: _Jitter = 0
    saturation: _Jitter = 0
    hue: Annotated[float | Range | None, checks.around(0.0, -0.5, 0.5)] = 0

    @property
    def _used(self) -> dict[str, Range]:
        values = {name: getattr(self, name) for name in (*_FACTORS, "hue")}
        nothing = {"hue": (0.0, 0.0)}
        return {
            name: value for name, value in values.items() if value != nothing.get(name, (1.0, 1.0))
        }

    def emit(self, tree: Builder) -> None:
        with tree.node("order", len(self._used)):
            for name, values in self._used.items():
                tree.add(name, **{_PARAMETERS[name]: tree.uniform(*values)})


@dataclass(frozen=True)
class RandomPhotometricDistort(Transform):
    """Change brightness, contrast, saturation, hue and channels' order, each with p, as SSD does.

    Attributes:
        brightness: The factor is uniform in (from, to), 0 to 1e6.
        contrast: As ``brightness``; before or after saturation and hue.
        saturation: As ``brightness``.
        hue: Turns of the hue, uniform in (from, to), from -0.5 to 0.5.
        p: Probability of each of the five.
    """

    otherwise_on_tensors = True

    brightness: _Factors = (0.875, 1.125)
    contrast: _Factors = (0.5, 1.5)
    saturation: _Factors = (0.5, 1.5)
    hue: Annotated[Range, range_from(-0.5, 0.5)] = (-0.05, 0.05)
    p: Probability = 0.5

    def emit(self, tree: Builder) -> None:

        def one(name: str) -> None:
            with tree.maybe(self.p):
                tree.add(name, **{_PARAMETERS[name]: tree.uniform(*getattr(self, name))})

        one("brightness")
        # Contrast changes before the colours or after them.
        with tree.node("choice", sums=()):
            for order in (("contrast", "saturation", "hue"), ("saturation", "hue", "contrast")):
                with tree.node("sequence"):
                    for name in order:
                        one(name)
        with tree.maybe(self.p):
            tree.shuffle_channels()


@dataclass(frozen=True)
class Grayscale(Transform):
    """Make the image grey, by the weights of ITU-R 601-2: 0.299, 0.587, 0.114.

    Attributes:
        num_output_channels: 1; or 3, all equal.
    """

    otherwise_on_tensors = True
    floats_as_bytes = True

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        if self.num_output_channels not in (1, 3):
            raise UsageError(
                f"Grayscale: num_output_channels {self.num_output_channels!r} is not 1 or 3.",
                "Give 1, or 3 for images of three equal channels.",
            )

    def channels_after(self, channels: int) -> int | None:
        return self.num_output_channels

    def emit(self, tree: Builder) -> None:
        tree.grayscale(self.num_output_channels)


@dataclass(frozen=True)
class RandomGrayscale(ByChance):
    """Make the image grey with probability p; it keeps its number of channels."""

    otherwise_on_tensors = True
    floats_as_bytes = True

    p: Probability = 0.1

    def emit_always(self, tree: Builder) -> None:
        tree.grayscale()


@dataclass(frozen=True)
class RandomInvert(ByChance):
    """Subtract every value from 255, with probability p."""

    floats_as_bytes = True
    operation = "invert"

    p: Probability = 0.5


@dataclass(frozen=True)
class RandomPosterize(ByChance):
    """Keep the highest bits of every value.

    Attributes:
        bits: Their number, 0 to 8.
        p: Probability.
    """

    bits: Annotated[int, whole_from(0, 8)]
    p: Probability = 0.5

    def emit_always(self, tree: Builder) -> None:
        tree.add("posterize", bits=self.bits)


@dataclass(frozen=True)
class RandomSolarize(ByChance):
    """Invert values from a threshold on.

    Attributes:
        threshold: 0 to 256.
        p: Probability.
    """

    otherwise_on_tensors = True

    threshold: Annotated[float, number_from(0, 256)]
    p: Probability = 0.5

    def emit_always(self, tree: Builder) -> None:
        tree.add("solarize", threshold=tree.threshold(self.threshold))


@dataclass(frozen=True)
class RandomAdjustSharpness(ByChance):
    """Blur or sharpen the image.

    Attributes:
        sharpness_factor: 0 blurs, 1 changes nothing, 2 sharpens; 0 to 1e6.
        p: Probability.
    """

    otherwise_on_tensors = True

    sharpness_factor: Annotated[float, number_from(0, checks.MOST_FACTOR)]
    p: Probability = 0.5

    def emit_always(self, tree: Builder) -> None:
        tree.add("sharpness", factor=self.sharpness_factor)


@dataclass(frozen=True)
class RandomAutocontrast(ByChance):
    """Stretch each channel's values to 0 to 255, with probability p."""

    otherwise_on_tensors = True
    operation = "autocontrast"

    p: Probability = 0.5


@dataclass(frozen=True)
class RandomEqualize(ByChance):
    """Equalise each channel's histogram, with probability p."""

    operation = "equalize"

    p: Probability = 0.5


@dataclass(frozen=True)
class RandomChannelPermutation(Transform):
    """Put the channels into a random order."""

    def emit(self, tree: Builder) -> None:
        tree.shuffle_channels()


@dataclass(frozen=True)
class GaussianBlur(Transform):
    """Blur the image. Images must be more than half a kernel wide and high.

    Attributes:
        kernel_size: Of the kernel: an odd int up to 255, or (width, height).
        sigma: The standard deviation is uniform in (from, to), above 0; or a number.
    """

    floats_as_bytes = True

    kernel_size: Annotated[int | Sequence[int], _kernel_size]
    sigma: Annotated[float | Range, _sigma] = (0.1, 2.0)

    def emit(self, tree: Builder) -> None:
        sigma = tree.uniform(*self.sigma)  # type: ignore[misc]
        width, height = self.kernel_size  # type: ignore[misc]
        tree.add("gaussian_blur", width=width, height=height, sigma_x=sigma, sigma_y=sigma)


@dataclass(frozen=True)
class PillowBlur(ByChance):
    """Blur the image as ``PIL.ImageFilter.GaussianBlur``, as MoCo, DINO and others do.

    Attributes:
        radius: In pixels, uniform in (from, to), above 0; or a number.
        p: Probability.
    """

    radius: Annotated[float | Range, _sigma] = (0.1, 2.0)
    p: Probability = 1.0

    def emit_always(self, tree: Builder) -> None:
        tree.add("box_blur", sigma=DrawnNumber("uniform_double", *self.radius).number(tree))  # type: ignore[misc]


@dataclass(frozen=True)
class GaussianNoise(Transform):
    """Add normally distributed noise, another to each value.

    Attributes:
        mean: In units of 0 to 1; -10 to 10.
        sigma: The standard deviation, in units of 0 to 1; 0 to 10.
        clip: Hold values within 0 to 255; otherwise they wrap around.
    """

    tensors_only = (1, 2)

    mean: Annotated[float, number_from(-10, 10)] = 0.0
    sigma: Annotated[float, number_from(0, 10)] = 0.1
    clip: bool = True

    def emit(self, tree: Builder) -> None:
        values = {"mean": self.mean, "sigma": self.sigma, "clip": bool(self.clip)}
        tree.add("gaussian_noise", 1, **values)

"""Augmentations that the native core does: descriptions, under torchvision's names and arguments.

As in `fastdata.transforms.descriptions`, they are no code: `fastdata.transforms.pixels` makes of
them what the core runs. Pixels are those of torchvision (0.28) on PIL images, and so is the
distribution of what is random::

    train = Compose([
        RandomResizedCrop(176),
        RandomHorizontalFlip(),
        TrivialAugmentWide(),
        Normalize(MEAN, STD),
        RandomErasing(p=0.1),
    ])
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fastdata.errors import UsageError
from fastdata.transforms.descriptions import (
    INTERPOLATIONS,
    Interpolation,
    Transform,
    check_padding_mode,
    check_probability,
    check_switch,
    interpolation_name,
    paddings,
    pixel_fill,
)

_Range: TypeAlias = tuple[float, float]

#: What an image can be rotated and warped with.
WARPS = ("nearest", "bilinear", "bicubic")

# Of brightness and the like, at most: what the core takes.
_FACTOR = 1e6

POLICIES = ("imagenet", "cifar10", "svhn")


# --- colour ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue, in a random order.

    Attributes:
        brightness: The factor is uniform in (from, to), 0 to 1e6; a number b stands for
            (max(0, 1 - b), 1 + b). (1, 1): it is left alone.
        contrast: Likewise.
        saturation: Likewise.
        hue: Turns of the hue, uniform in (from, to), from -0.5 to 0.5; a number h stands for
            (-h, h). (0, 0): it is left alone.
    """

    brightness: float | _Range | None = 0
    contrast: float | _Range | None = 0
    saturation: float | _Range | None = 0
    hue: float | _Range | None = 0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            given = _around("ColorJitter", name, getattr(self, name), 1.0, 0.0, _FACTOR)
            object.__setattr__(self, name, given)
        hue = _around("ColorJitter", "hue", self.hue, 0.0, -0.5, 0.5)
        object.__setattr__(self, "hue", hue)


@dataclass(frozen=True)
class RandomPhotometricDistort(Transform):
    """Change brightness, contrast, saturation, hue and channels' order, each with p, as SSD does.

    Attributes:
        brightness: The factor is uniform in (from, to), 0 to 1e6.
        contrast: Likewise; before or after saturation and hue.
        saturation: Likewise.
        hue: Turns of the hue, uniform in (from, to), from -0.5 to 0.5.
        p: How probable each of the five is, 0 to 1.
    """

    brightness: _Range = (0.875, 1.125)
    contrast: _Range = (0.5, 1.5)
    saturation: _Range = (0.5, 1.5)
    hue: _Range = (-0.05, 0.05)
    p: float = 0.5

    def __post_init__(self) -> None:
        who = "RandomPhotometricDistort"
        for name in ("brightness", "contrast", "saturation"):
            found = _range(who, name, getattr(self, name), 0.0, _FACTOR)
            object.__setattr__(self, name, found)
        object.__setattr__(self, "hue", _range(who, "hue", self.hue, -0.5, 0.5))
        check_probability(who, self.p)


@dataclass(frozen=True)
class Grayscale(Transform):
    """Make the image grey, by the weights of ITU-R 601-2: 0.299, 0.587, 0.114.

    Attributes:
        num_output_channels: 1; or 3, all equal.
    """

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        if self.num_output_channels not in (1, 3):
            raise UsageError(
                f"Grayscale: num_output_channels {self.num_output_channels!r} is not 1 or 3.",
                "Give 1, or 3 for images of three equal channels.",
            )


@dataclass(frozen=True)
class RandomGrayscale(Transform):
    """Make the image grey, of as many equal channels as it has.

    Attributes:
        p: How probable that is, 0 to 1.
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        check_probability("RandomGrayscale", self.p)


@dataclass(frozen=True)
class RandomInvert(Transform):
    """Take every value from 255.

    Attributes:
        p: How probable that is, 0 to 1.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability("RandomInvert", self.p)


@dataclass(frozen=True)
class RandomPosterize(Transform):
    """Keep the highest bits of every value.

    Attributes:
        bits: How many, 0 to 8.
        p: How probable that is, 0 to 1.
    """

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.bits, numbers.Integral) or not 0 <= self.bits <= 8:
            raise UsageError(
                f"RandomPosterize: bits {self.bits!r} is not an int from 0 to 8.",
                "Give for example bits=4.",
            )
        check_probability("RandomPosterize", self.p)


@dataclass(frozen=True)
class RandomSolarize(Transform):
    """Invert values from a threshold on.

    Attributes:
        threshold: 0 to 256.
        p: How probable that is, 0 to 1.
    """

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        _check_number("RandomSolarize", "threshold", self.threshold, 0, 256)
        check_probability("RandomSolarize", self.p)


@dataclass(frozen=True)
class RandomAdjustSharpness(Transform):
    """Blur or sharpen the image.

    Attributes:
        sharpness_factor: 0 is blurred, 1 the image itself, 2 sharpened; 0 to 1e6.
        p: How probable that is, 0 to 1.
    """

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        _check_number(
            "RandomAdjustSharpness", "sharpness_factor", self.sharpness_factor, 0, _FACTOR
        )
        check_probability("RandomAdjustSharpness", self.p)


@dataclass(frozen=True)
class RandomAutocontrast(Transform):
    """Stretch each channel's values to 0 to 255.

    Attributes:
        p: How probable that is, 0 to 1.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability("RandomAutocontrast", self.p)


@dataclass(frozen=True)
class RandomEqualize(Transform):
    """Equalise each channel's histogram.

    Attributes:
        p: How probable that is, 0 to 1.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability("RandomEqualize", self.p)


@dataclass(frozen=True)
class RandomChannelPermutation(Transform):
    """Put the channels into a random order."""


@dataclass(frozen=True)
class GaussianBlur(Transform):
    """Blur the image. Images must be more than half a kernel wide and high.

    Attributes:
        kernel_size: Of the kernel: an odd int up to 255, or (width, height).
        sigma: The standard deviation is uniform in (from, to), above 0; or a number.
    """

    kernel_size: int | tuple[int, int]
    sigma: float | _Range = (0.1, 2.0)

    def __post_init__(self) -> None:
        given = self.kernel_size
        size = tuple(given) if isinstance(given, Sequence) else (given, given)
        size = size * 2 if len(size) == 1 else size
        if len(size) != 2 or not all(
            isinstance(side, numbers.Integral) and 0 < side < 256 and side % 2 for side in size
        ):
            raise UsageError(
                f"GaussianBlur: kernel_size {given!r} is not one or two odd ints from 1 to 255.",
                "Give for example kernel_size=23.",
            )
        object.__setattr__(self, "kernel_size", (int(size[0]), int(size[1])))
        sigma = self.sigma
        pair = (sigma, sigma) if isinstance(sigma, numbers.Real) else sigma
        found = _range("GaussianBlur", "sigma", pair, 0.0, math.inf)
        if found[0] <= 0:
            raise UsageError(f"GaussianBlur: sigma {sigma!r} is not above 0.", "Give (0.1, 2).")
        object.__setattr__(self, "sigma", found)


@dataclass(frozen=True)
class GaussianNoise(Transform):
    """Add normally distributed noise, another to each value.

    Attributes:
        mean: In units of 0 to 1; -10 to 10.
        sigma: The standard deviation, in units of 0 to 1; 0 to 10.
        clip: Hold values within 0 to 255; otherwise they wrap around.
    """

    mean: float = 0.0
    sigma: float = 0.1
    clip: bool = True

    def __post_init__(self) -> None:
        _check_number("GaussianNoise", "mean", self.mean, -10, 10)
        _check_number("GaussianNoise", "sigma", self.sigma, 0, 10)


# --- geometry on pixels ----------------------------------------------------------------------


@dataclass(frozen=True)
class RandomRotation(Transform):
    """Rotate the image.

    Attributes:
        degrees: The angle, counter-clockwise, is uniform in (from, to); a number d stands for
            (-d, d).
        interpolation: ``nearest``, ``bilinear`` or ``bicubic``.
        expand: Make the result large enough for all of the rotated image.
        center: (x, y) from the upper left, in pixels; None: the image's centre.
        fill: What stands where there is no image: a value of 0 to 255, or one a channel.
    """

    degrees: float | _Range
    interpolation: Interpolation = "nearest"
    expand: bool = False
    center: tuple[float, float] | None = None
    fill: float | Sequence[float] | None = 0

    def __post_init__(self) -> None:
        who = "RandomRotation"
        object.__setattr__(self, "degrees", _angles(who, "degrees", self.degrees))
        _set_interpolation(who, self, WARPS)
        object.__setattr__(self, "center", _center(who, self.center))
        object.__setattr__(self, "fill", pixel_fill(who, self.fill))


@dataclass(frozen=True)
class RandomAffine(Transform):
    """Rotate, move, scale and shear the image about its centre.

    Attributes:
        degrees: As :class:`RandomRotation` has them.
        translate: Parts of the width and height, 0 to 1, by which it is moved at most; None: not.
        scale: The factor is uniform in (from, to), above 0; None: 1.
        shear: Degrees along x, uniform in (from, to); four numbers: along y, too; a number s
            stands for (-s, s); None: 0.
        interpolation: ``nearest``, ``bilinear`` or ``bicubic``.
        fill: As :class:`RandomRotation` has it.
        center: As :class:`RandomRotation` has it.
    """

    degrees: float | _Range
    translate: tuple[float, float] | None = None
    scale: _Range | None = None
    shear: float | Sequence[float] | None = None
    interpolation: Interpolation = "nearest"
    fill: float | Sequence[float] | None = 0
    center: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        who = "RandomAffine"
        object.__setattr__(self, "degrees", _angles(who, "degrees", self.degrees))
        if self.translate is not None:
            moved = _numbers(who, "translate", self.translate, 2)
            if not all(0 <= part <= 1 for part in moved):
                raise UsageError(
                    f"RandomAffine: translate {moved} has a part that is not from 0 to 1.",
                    "Give for example translate=(0.1, 0.1).",
                )
            object.__setattr__(self, "translate", moved)
        if self.scale is not None:
            scale = _numbers(who, "scale", self.scale, 2)
            if not (scale[0] > 0 and scale[1] > 0):
                raise UsageError(
                    f"RandomAffine: scale {scale} is not above 0.",
                    "Give for example scale=(0.8, 1.2).",
                )
            object.__setattr__(self, "scale", scale)
        if self.shear is not None:
            object.__setattr__(self, "shear", _angles(who, "shear", self.shear, (2, 4)))
        _set_interpolation(who, self, WARPS)
        object.__setattr__(self, "fill", pixel_fill(who, self.fill))
        object.__setattr__(self, "center", _center(who, self.center))


@dataclass(frozen=True)
class RandomPerspective(Transform):
    """Move the image's corners inwards, as a change of perspective does.

    Attributes:
        distortion_scale: By how much of half the image's sides at most, 0 to 1.
        p: How probable that is, 0 to 1.
        interpolation: ``nearest``, ``bilinear`` or ``bicubic``.
        fill: As :class:`RandomRotation` has it.
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: Interpolation = "bilinear"
    fill: float | Sequence[float] | None = 0

    def __post_init__(self) -> None:
        who = "RandomPerspective"
        _check_number(who, "distortion_scale", self.distortion_scale, 0, 1)
        check_probability(who, self.p)
        _set_interpolation(who, self, WARPS)
        object.__setattr__(self, "fill", pixel_fill(who, self.fill))


@dataclass(frozen=True)
class Pad(Transform):
    """Put pixels around the image.

    Attributes:
        padding: An int; (left and right, top and bottom); or (left, top, right, bottom).
        fill: Of ``constant`` padding, as :class:`RandomRotation` has it.
        padding_mode: ``constant``; ``edge``, the pixels there; ``reflect``, the image without its
            edge; ``symmetric``, the image with it.
    """

    padding: int | Sequence[int]
    fill: float | Sequence[float] | None = 0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        object.__setattr__(self, "padding", paddings("Pad", self.padding))
        object.__setattr__(self, "fill", pixel_fill("Pad", self.fill))
        check_padding_mode("Pad", self.padding_mode)


# --- containers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomApply(Transform):
    """Do several transforms, one after the other, or none of them.

    Attributes:
        transforms: Those of this package, or torchvision's.
        p: How probable it is that they are done, 0 to 1.
    """

    transforms: tuple[Callable[[Any], Any], ...]
    p: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _parts("RandomApply", self.transforms))
        check_probability("RandomApply", self.p)


@dataclass(frozen=True)
class RandomChoice(Transform):
    """Do one of several transforms.

    Attributes:
        transforms: Those of this package, or torchvision's.
        p: Their weights, 0 or more, not all 0; None: all the same.
    """

    transforms: tuple[Callable[[Any], Any], ...]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _parts("RandomChoice", self.transforms))
        if self.p is None:
            return
        weights = _numbers("RandomChoice", "p", self.p, len(self.transforms))
        if min(weights) < 0 or sum(weights) <= 0:
            raise UsageError(
                f"RandomChoice: p {weights} are no weights.", "Give weights of 0 or more."
            )
        object.__setattr__(self, "p", weights)


@dataclass(frozen=True)
class RandomOrder(Transform):
    """Do several transforms in a random order.

    Attributes:
        transforms: Those of this package, or torchvision's.
    """

    transforms: tuple[Callable[[Any], Any], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", _parts("RandomOrder", self.transforms))


# --- policies --------------------------------------------------------------------------------


@dataclass(frozen=True)
class AutoAugment(Transform):
    """Do one of 25 learned pairs of augmentations (Cubuk et al., 2019).

    Attributes:
        policy: ``imagenet``, ``cifar10`` or ``svhn``.
        interpolation: ``nearest``, ``bilinear`` or ``bicubic``.
        fill: As :class:`RandomRotation` has it.
        version: 1 or 2: solarise's thresholds are those of torchvision's v1 or v2, which round
            some of them otherwise.
    """

    policy: str = "imagenet"
    interpolation: Interpolation = "nearest"
    fill: float | Sequence[float] | None = None
    version: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        policy = getattr(self.policy, "value", self.policy)
        if policy not in POLICIES:
            raise UsageError(
                f"AutoAugment: policy {self.policy!r} is not one.",
                f"Give one of {', '.join(POLICIES)}.",
            )
        object.__setattr__(self, "policy", policy)
        _check_policy("AutoAugment", self)


@dataclass(frozen=True)
class RandAugment(Transform):
    """Do several of 14 augmentations, each as likely (Cubuk et al., 2020).

    Attributes:
        num_ops: How many, one after the other; 0 or more.
        magnitude: How strong they are, 0 to ``num_magnitude_bins`` - 1.
        num_magnitude_bins: How many strengths there are.
        interpolation: As :class:`AutoAugment` has it.
        fill: As :class:`RandomRotation` has it.
        version: As :class:`AutoAugment` has it.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: float | Sequence[float] | None = None
    version: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        _check_whole("RandAugment", "num_ops", self.num_ops, 0, 1000)
        _check_whole("RandAugment", "num_magnitude_bins", self.num_magnitude_bins, 2, 10_000)
        _check_whole("RandAugment", "magnitude", self.magnitude, 0, self.num_magnitude_bins - 1)
        _check_policy("RandAugment", self)


@dataclass(frozen=True)
class TrivialAugmentWide(Transform):
    """Do one of 14 augmentations, as strong as chance will have it (Müller, Hutter, 2021).

    Attributes:
        num_magnitude_bins: How many strengths there are.
        interpolation: As :class:`AutoAugment` has it.
        fill: As :class:`RandomRotation` has it.
        version: As :class:`AutoAugment` has it.
    """

    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: float | Sequence[float] | None = None
    version: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        bins = self.num_magnitude_bins
        _check_whole("TrivialAugmentWide", "num_magnitude_bins", bins, 2, 10_000)
        _check_policy("TrivialAugmentWide", self)


@dataclass(frozen=True)
class AugMix(Transform):
    """Mix the image with what chains of augmentations make of it (Hendrycks et al., 2020).

    Pixels are torchvision's, which does it to tensors, whatever it is given. Weights are of a
    Dirichlet distribution: of the image and of all chains together, then of each chain.

    Attributes:
        severity: How strong they are at most, 1 to 10.
        mixture_width: How many chains there are; 1 to 100.
        chain_depth: How many augmentations a chain has, up to 100; 0 or less: 1 to 3, each as
            likely.
        alpha: The distributions' concentration, above 0.
        all_ops: With brightness, contrast, colour and sharpness.
        interpolation: ``nearest`` or ``bilinear``.
        fill: As :class:`RandomRotation` has it; None: 0, without a blend along the edge.
        version: 1 or 2: the arithmetic is that of torchvision's v1 or v2.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Interpolation = "bilinear"
    fill: float | Sequence[float] | None = None
    version: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        _check_whole("AugMix", "severity", self.severity, 1, 10)
        _check_whole("AugMix", "mixture_width", self.mixture_width, 1, 100)
        _check_whole("AugMix", "chain_depth", self.chain_depth, -100, 100)
        _check_number("AugMix", "alpha", self.alpha, 1e-6, 1e6)
        fill = self.fill
        _check_policy("AugMix", self)
        if fill is None:
            object.__setattr__(self, "fill", None)
        if self.interpolation == "bicubic":
            raise UsageError(
                "AugMix: interpolation 'bicubic' is not one of tensors'.", "Give 'bilinear'."
            )


# --- sizes that are random -------------------------------------------------------------------


@dataclass(frozen=True)
class ScaleJitter(Transform):
    """Resize the image by a random factor of what brings it within a target.

    Attributes:
        target_size: (height, width); as torchvision has it, the image's height is compared with
            the width, and its width with the height.
        scale_range: The factor is uniform in (from, to).
        interpolation: As :class:`fastdata.transforms.Resize` has it.
        antialias: Likewise.
    """

    target_size: tuple[int, int]
    scale_range: _Range = (0.1, 2.0)
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = field(default=True, compare=False)

    def __post_init__(self) -> None:
        size = _numbers("ScaleJitter", "target_size", self.target_size, 2)
        for side in size:
            _check_number("ScaleJitter", "target_size", side, 1, 1 << 24)
        object.__setattr__(self, "target_size", size)
        found = _range("ScaleJitter", "scale_range", self.scale_range, 0.0, math.inf)
        object.__setattr__(self, "scale_range", found)
        _set_interpolation("ScaleJitter", self, INTERPOLATIONS)
        check_switch("ScaleJitter", "antialias", self.antialias, none=True)


@dataclass(frozen=True)
class RandomShortestSize(Transform):
    """Resize the image to one of several sizes of the shorter side.

    Attributes:
        min_size: The sizes, in pixels; an int or several.
        max_size: The longer side's bound; None: none.
        interpolation: As :class:`fastdata.transforms.Resize` has it.
        antialias: Likewise.
    """

    min_size: int | Sequence[int]
    max_size: int | None = None
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = field(default=True, compare=False)

    def __post_init__(self) -> None:
        given = self.min_size
        sizes = tuple(given) if isinstance(given, Sequence) else (given,)
        for size in sizes or (0,):
            _check_whole("RandomShortestSize", "min_size", size, 1, 1 << 24)
        object.__setattr__(self, "min_size", sizes)
        if self.max_size is not None:
            _check_whole("RandomShortestSize", "max_size", self.max_size, 1, 1 << 24)
        _set_interpolation("RandomShortestSize", self, INTERPOLATIONS)
        check_switch("RandomShortestSize", "antialias", self.antialias, none=True)


@dataclass(frozen=True)
class RandomResize(Transform):
    """Resize the image's shorter side to a random size.

    Attributes:
        min_size: The least size, in pixels.
        max_size: One more than the greatest.
        interpolation: As :class:`fastdata.transforms.Resize` has it.
        antialias: Likewise.
    """

    min_size: int
    max_size: int
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = field(default=True, compare=False)

    def __post_init__(self) -> None:
        _check_whole("RandomResize", "min_size", self.min_size, 1, 1 << 24)
        _check_whole("RandomResize", "max_size", self.max_size, self.min_size + 1, 1 << 24)
        _set_interpolation("RandomResize", self, INTERPOLATIONS)
        check_switch("RandomResize", "antialias", self.antialias, none=True)


# --- the output ------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomErasing(Transform):
    """Write over a random rectangle of the result (Zhong et al., 2017).

    It is the last but for a :class:`Normalize`. Values are in the units of what it is given: of 0
    to 255, or of normalised values after :class:`Normalize`.

    Attributes:
        p: How probable that is, 0 to 1.
        scale: Least and greatest part of the area, 0 to 1.
        ratio: Least and greatest height / width.
        value: A number, or one a channel; of normalised values only "random", normally distributed
            noise, or "color", a colour of such noise for each rectangle.
        inplace: Has no effect: the image is a PIL image, which is never changed.
        count: How many rectangles share the area; or (least, most), each number as likely.
        in_double: Draw in double precision, as timm does; torchvision draws in single.
    """

    p: float = 0.5
    scale: _Range = (0.02, 0.33)
    ratio: _Range = (0.3, 3.3)
    value: float | Sequence[float] | str = 0
    inplace: bool = field(default=False, compare=False)
    count: int | tuple[int, int] = field(default=1, kw_only=True)
    in_double: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        who = "RandomErasing"
        check_probability(who, self.p)
        object.__setattr__(self, "scale", _range(who, "scale", self.scale, 0.0, 1.0))
        ratio = _range(who, "ratio", self.ratio, 0.0, math.inf)
        if ratio[0] <= 0:
            raise UsageError(f"RandomErasing: ratio {ratio} is not above 0.", "Give (0.3, 3.3).")
        object.__setattr__(self, "ratio", ratio)
        several: Any = self.count
        least, most = (several, several) if isinstance(several, numbers.Integral) else several
        _check_whole(who, "count", least, 1, 1000)
        _check_whole(who, "count", most, int(least), 1000)
        object.__setattr__(self, "count", (int(least), int(most)))
        check_switch(who, "inplace", self.inplace)
        if self.value in ("random", "color"):
            return
        given: Any = self.value
        values = (given,) * 3 if isinstance(given, numbers.Real) else given
        if isinstance(values, Sequence) and len(values) == 1:
            values = tuple(values) * 3
        object.__setattr__(self, "value", _numbers(who, "value", values, 3))


# --- checks ----------------------------------------------------------------------------------


def _check_policy(who: str, policy: Any) -> None:
    _set_interpolation(who, policy, WARPS)
    object.__setattr__(policy, "fill", pixel_fill(who, policy.fill))
    if policy.version not in (1, 2):
        raise UsageError(f"{who}: version {policy.version!r} is not 1 or 2.", "Leave it out.")


def _parts(who: str, given: Any) -> tuple[Callable[[Any], Any], ...]:
    parts = tuple(given) if isinstance(given, Iterable) else ()
    if not parts or not all(map(callable, parts)):
        raise UsageError(
            f"{who}: {given!r} is not a list of transforms.",
            f"Give for example {who}([RandomGrayscale()]).",
        )
    return parts


def _check_number(who: str, name: str, value: Any, least: float, most: float) -> None:
    good = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or not least <= value <= most:
        bounds = f"of {least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
        bounds = "that is finite" if least == -math.inf else bounds
        raise UsageError(
            f"{who}: {name} {value!r} is not a number {bounds}.", f"Give {name} a number {bounds}."
        )


def _check_whole(who: str, name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, numbers.Integral) or not least <= int(value) <= most:
        raise UsageError(
            f"{who}: {name} {value!r} is not an int from {least} to {most}.",
            f"Give {name} an int from {least} to {most}.",
        )


def _numbers(who: str, name: str, values: Any, count: int) -> tuple[float, ...]:
    try:
        found = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        found = ()
    if len(found) != count or not all(map(math.isfinite, found)):
        raise UsageError(
            f"{who}: {name} {values!r} is not {count} finite numbers.",
            f"Give {count} numbers in a tuple.",
        )
    return found


def _range(who: str, name: str, values: Any, least: float, most: float) -> _Range:
    low, high = _numbers(who, name, values, 2)
    if not least <= low <= high <= most:
        bounds = f"from {least:g} to {most:g}" if most < math.inf else f"of {least:g} or more"
        raise UsageError(
            f"{who}: {name} {(low, high)} is not (from, to) {bounds}.",
            f"Give {name} two numbers {bounds}, the lower one first.",
        )
    return low, high


def _around(who: str, name: str, given: Any, middle: float, least: float, most: float) -> _Range:
    """A range as ColorJitter takes it; (middle, middle) where nothing is to be done."""
    if given is None:
        return middle, middle
    if isinstance(given, numbers.Real) and not isinstance(given, bool):
        _check_number(who, name, given, 0, math.inf)
        low = middle - float(given)
        given = (low if least < 0 else max(low, least), middle + float(given))
    return _range(who, name, given, least, most)


def _angles(who: str, name: str, given: Any, counts: tuple[int, ...] = (2,)) -> tuple[float, ...]:
    if isinstance(given, numbers.Real):
        _check_number(who, name, given, 0, math.inf)
        return -float(given), float(given)
    count = len(given) if isinstance(given, Sequence) and len(given) in counts else counts[0]
    return _numbers(who, name, given, count)


def _center(who: str, given: Any) -> tuple[float, ...] | None:
    return None if given is None else _numbers(who, "center", given, 2)


def _set_interpolation(who: str, transform: Any, known: Sequence[str]) -> None:
    name = interpolation_name(who, transform.interpolation, known)
    object.__setattr__(transform, "interpolation", name)

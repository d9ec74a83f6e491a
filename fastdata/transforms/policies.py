"""Learned and random policies of augmentations, as torchvision (0.28) has them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeAlias

import numpy as np

from fastdata import _native
from fastdata.errors import UsageError
from fastdata.transforms.base import Transform
from fastdata.transforms.checks import Fill, Warp, choice, number_from, optional, whole, whole_from
from fastdata.transforms.checks import fill as check_fill
from fastdata.transforms.outcomes import Declined
from fastdata.transforms.reading import Reading
from fastdata.transforms.tree import (
    HEIGHT,
    NO_CENTER,
    NO_MOVE,
    SUM,
    TO_ZERO,
    WIDTH,
    Builder,
    Number,
    Values,
    center_values,
)

POLICIES = ("imagenet", "cifar10", "svhn")
_Bins: TypeAlias = Annotated[int, whole_from(2, 10_000)]


def _version(title: str, name: str, value: Any) -> int:
    if value not in (1, 2):
        raise UsageError(f"{title}: {name} {value!r} is not 1 or 2.", "Leave it out.")
    return value  # type: ignore[no-any-return]


_Version: TypeAlias = Annotated[int, _version]


_IMAGES_ALONE = Declined("it changes images alone, and would leave targets behind", raises=True)


class _Policy(Transform):
    """Base of policies: each warps with one interpolation and fill, as one version does."""

    otherwise_on_tensors = True
    moves_pixels = True

    interpolation: Any
    fill: Any
    version: int

    def declines(self, reading: Reading) -> Declined | None:
        return None if reading.joint is None else _IMAGES_ALONE


@dataclass(frozen=True)
class AutoAugment(_Policy):
    """Do one of 25 learned pairs of augmentations (Cubuk et al., 2019).

    Attributes:
        policy: ``imagenet``, ``cifar10`` or ``svhn``, or torchvision's ``AutoAugmentPolicy``.
        interpolation: ``nearest``, ``bilinear`` or ``bicubic``, torchvision's
            ``InterpolationMode`` of that name or Pillow's number.
        fill: Value of pixels outside the image: 0 to 255, or one a channel.
        version: 1 or 2, of torchvision: v1 and v2 round some thresholds of solarise differently.
    """

    policy: Annotated[str, partial(choice, known=POLICIES)] = "imagenet"
    interpolation: Warp = "nearest"
    fill: Fill = None
    version: _Version = field(default=1, kw_only=True)

    def emit(self, tree: Builder) -> None:
        with tree.node("choice", sums=()):
            for pair in _policy(self.policy):
                with tree.node("sequence"):
                    for name, p, at in pair:
                        with tree.maybe(p):
                            _augmentation(tree, self, name, _SPACE, 10, range(at, at + 1))


@dataclass(frozen=True)
class RandAugment(_Policy):
    """Do several of 14 augmentations, drawn uniformly (Cubuk et al., 2020).

    Attributes:
        num_ops: Number of augmentations, one after the other; 0 or more.
        magnitude: Strength, 0 to ``num_magnitude_bins`` - 1.
        num_magnitude_bins: Number of strengths.
        interpolation: As in :class:`AutoAugment`.
        fill: As in :class:`AutoAugment`.
        version: As in :class:`AutoAugment`.
    """

    num_ops: Annotated[int, whole_from(0, 1000)] = 2
    magnitude: int = 9
    num_magnitude_bins: _Bins = 31
    interpolation: Warp = "nearest"
    fill: Fill = None
    version: _Version = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("RandAugment", "magnitude", self.magnitude, 0, self.num_magnitude_bins - 1)

    def emit(self, tree: Builder) -> None:
        at = range(self.magnitude, self.magnitude + 1)
        for _ in range(self.num_ops):
            with tree.node("choice", sums=()):
                for name in _CHOICES:
                    _augmentation(tree, self, name, _SPACE, self.num_magnitude_bins, at)


@dataclass(frozen=True)
class TrivialAugmentWide(_Policy):
    """Do one of 14 augmentations, of random strength (Müller, Hutter, 2021).

    Attributes:
        num_magnitude_bins: Number of strengths.
        interpolation: As in :class:`AutoAugment`.
        fill: As in :class:`AutoAugment`.
        version: As in :class:`AutoAugment`.
    """

    num_magnitude_bins: _Bins = 31
    interpolation: Warp = "nearest"
    fill: Fill = None
    version: _Version = field(default=1, kw_only=True)

    def emit(self, tree: Builder) -> None:
        bins = self.num_magnitude_bins
        with tree.node("choice", sums=()):
            for name in _CHOICES:
                _augmentation(tree, self, name, _WIDE_SPACE, bins, range(bins))


@dataclass(frozen=True)
class AugMix(_Policy):
    """Mix the image with the results of chains of augmentations (Hendrycks et al., 2020).

    Pixels are those that torchvision computes on tensors, for PIL images, too. Weights are of a
    Dirichlet distribution: of the image and of all chains together, then of each chain.

    Attributes:
        severity: Greatest strength, 1 to 10.
        mixture_width: Number of chains, 1 to 100.
        chain_depth: Number of augmentations in a chain, up to 100; 0 or less: 1 to 3, each as
            likely.
        alpha: The distributions' concentration, above 0.
        all_ops: With brightness, contrast, colour and sharpness.
        interpolation: ``nearest`` or ``bilinear``; otherwise as in :class:`AutoAugment`.
        fill: As in :class:`AutoAugment`; None: 0, without a blend along the edge.
        version: 1 or 2: computes as torchvision's v1 or v2.
    """

    otherwise_on_tensors = False

    severity: Annotated[int, whole_from(1, 10)] = 3
    mixture_width: Annotated[int, whole_from(1, 100)] = 3
    chain_depth: Annotated[int, whole_from(-100, 100)] = -1
    alpha: Annotated[float, number_from(1e-6, 1e6)] = 1.0
    all_ops: bool = True
    interpolation: Warp = "bilinear"
    fill: Annotated[Fill, optional(check_fill)] = None
    version: _Version = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interpolation == "bicubic":
            raise UsageError(
                "AugMix: interpolation 'bicubic' is not one for tensors.", "Give 'bilinear'."
            )

    def emit(self, tree: Builder) -> None:
        depths = [self.chain_depth] if self.chain_depth > 0 else [1, 2, 3]
        with (
            tree.on_tensors(self.version, self.fill is not None),
            tree.node("mix", concentration=self.alpha, mixing=SUM),
        ):
            for _ in range(self.mixture_width):
                with tree.node("choice", int(len(depths) > 1), sums=()):
                    for depth in depths:
                        with tree.node("sequence"):
                            for _ in range(depth):
                                self._emit_one(tree)

    def _emit_one(self, tree: Builder) -> None:
        at = range(self.severity)
        with tree.node("choice", sums=()):
            for name in _MIXED if self.all_ops else _MIXED_FEW:
                if name == "Posterize":  # from 4 bits on
                    kept = _strengths(name, _MIX_SPACE, _MIX_BINS, self.version)
                    bits = tree.table([bits - 4 for bits in kept[: self.severity]])
                    tree.add("posterize", bits=bits)
                else:
                    _augmentation(tree, self, name, _MIX_SPACE, _MIX_BINS, at)


# --- augmentations of policies -----------------------------------------------------------------

# torchvision's ``_augmentation_space``: strengths are evenly spaced from 0 to these; those of
# translations are parts of the image's side, but for TrivialAugment's, in pixels.
_NAMES = (
    *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness", "Posterize"),
)
_SPACE = dict(zip(_NAMES, (0.3, 0.3, *(150 / 331,) * 2, 30.0, *(0.9,) * 4, 4.0), strict=True))
_WIDE_SPACE = dict(zip(_NAMES, (0.99, 0.99, 32.0, 32.0, 135.0, *(0.99,) * 4, 6.0), strict=True))
_MIX_SPACE = {**_SPACE, "TranslateX": 1.0 / 3.0, "TranslateY": 1.0 / 3.0}
_MIX_BINS = 10
_CHOICES = ("Identity", *_SPACE, "Solarize", "AutoContrast", "Equalize")

_MIXED = _CHOICES[1:]

_FACTORS = {
    "Brightness": "brightness",
    "Color": "saturation",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
}
_MIXED_FEW = tuple(name for name in _MIXED if name not in _FACTORS)
_PLAIN = {"AutoContrast": "autocontrast", "Equalize": "equalize", "Invert": "invert"}


def _strengths(name: str, space: dict[str, float], bins: int, version: int) -> list[float]:
    """Return an operation's values at each strength, without signs."""
    if name == "Solarize":
        if version == 1:
            return _native.linspace(255.0, 0.0, bins)
        return [255.0 * value for value in _native.linspace(1.0, 0.0, bins)]
    if name == "Posterize":
        kept = 8 - np.rint(np.arange(bins, dtype=np.float32) / np.float32((bins - 1) / space[name]))
        return kept.tolist()  # type: ignore[no-any-return]
    strengths = _native.linspace(0.0, space[name], bins)
    if name.startswith("Shear"):
        return [math.degrees(math.atan(value)) for value in strengths]
    return strengths


def _augmentation(
    tree: Builder,
    step: Any,
    name: str,
    space: dict[str, float],
    bins: int,
    at: range,
) -> None:
    """Emit an augmentation of a policy, at one of the strengths ``at``, drawn uniformly."""
    if name == "Identity":
        tree.add("sequence")
        return
    if name in _PLAIN:
        tree.add(_PLAIN[name])
        return
    values = _strengths(name, space, bins, step.version)[at.start : at.stop]
    if name in _FACTORS:
        tree.add(_FACTORS[name], factor=tree.table(values, signed=True, plus=1.0))
    elif name == "Posterize":
        tree.add("posterize", bits=tree.table(values))
    elif name == "Solarize":
        tree.add("solarize", threshold=tree.table([tree.threshold(value) for value in values]))
    elif name == "Rotate":
        tree.warp("rotate", step, angle=tree.table(values, signed=True), expand=False, **NO_CENTER)
    elif name.startswith("Shear"):
        shear: dict[str, Values] = {f"shear_{name[-1].lower()}": tree.table(values, signed=True)}
        # About the upper left corner.
        tree.warp("affine", step, **{**NO_MOVE, **shear, **center_values((0, 0))})
    elif space is _WIDE_SPACE:  # a translation in pixels
        moved = tree.table(values, signed=True, rounding=TO_ZERO)
        _translate(tree, step, name, moved)
    else:
        unit = WIDTH if name == "TranslateX" else HEIGHT
        with tree.node("choice", int(len(at) > 1), sums=()):
            for entry in at:
                moved = Number("linspace", 0, space[name], entry, 0, bins, unit)
                moved = moved._replace(sign_draw=tree.draw(), rounding=TO_ZERO)
                _translate(tree, step, name, moved)


def _translate(tree: Builder, step: Any, name: str, moved: Number) -> None:
    move: dict[str, Values] = {f"move_{name[-1].lower()}": moved}
    tree.warp("affine", step, **{**NO_MOVE, **move, **NO_CENTER})


def _policy(name: str) -> Iterator[list[tuple[str, float, int]]]:
    """Yield the pairs of an AutoAugment policy: (operation, probability, strength) of each."""
    for line in _POLICIES[name].split(","):
        words = line.split()
        yield [
            (words[at], float(words[at + 1]), int(words[at + 2])) for at in range(0, len(words), 3)
        ]


# Of Cubuk et al., AutoAugment, as torchvision (0.28) has them: operation, probability, strength,
# which is 0 where an operation has none.
_POLICIES = {
    "imagenet": """
        Posterize 0.4 8 Rotate 0.6 9, Solarize 0.6 5 AutoContrast 0.6 0,
        Equalize 0.8 0 Equalize 0.6 0, Posterize 0.6 7 Posterize 0.6 6,
        Equalize 0.4 0 Solarize 0.2 4, Equalize 0.4 0 Rotate 0.8 8,
        Solarize 0.6 3 Equalize 0.6 0, Posterize 0.8 5 Equalize 1.0 0,
        Rotate 0.2 3 Solarize 0.6 8, Equalize 0.6 0 Posterize 0.4 6,
        Rotate 0.8 8 Color 0.4 0, Rotate 0.4 9 Equalize 0.6 0,
        Equalize 0.0 0 Equalize 0.8 0, Invert 0.6 0 Equalize 1.0 0,
        Color 0.6 4 Contrast 1.0 8, Rotate 0.8 8 Color 1.0 2,
        Color 0.8 8 Solarize 0.8 7, Sharpness 0.4 7 Invert 0.6 0,
        ShearX 0.6 5 Equalize 1.0 0, Color 0.4 0 Equalize 0.6 0,
        Equalize 0.4 0 Solarize 0.2 4, Solarize 0.6 5 AutoContrast 0.6 0,
        Invert 0.6 0 Equalize 1.0 0, Color 0.6 4 Contrast 1.0 8,
        Equalize 0.8 0 Equalize 0.6 0""",
    "cifar10": """
        Invert 0.1 0 Contrast 0.2 6, Rotate 0.7 2 TranslateX 0.3 9,
        Sharpness 0.8 1 Sharpness 0.9 3, ShearY 0.5 8 TranslateY 0.7 9,
        AutoContrast 0.5 0 Equalize 0.9 0, ShearY 0.2 7 Posterize 0.3 7,
        Color 0.4 3 Brightness 0.6 7, Sharpness 0.3 9 Brightness 0.7 9,
        Equalize 0.6 0 Equalize 0.5 0, Contrast 0.6 7 Sharpness 0.6 5,
        Color 0.7 7 TranslateX 0.5 8, Equalize 0.3 0 AutoContrast 0.4 0,
        TranslateY 0.4 3 Sharpness 0.2 6, Brightness 0.9 6 Color 0.2 8,
        Solarize 0.5 2 Invert 0.0 0, Equalize 0.2 0 AutoContrast 0.6 0,
        Equalize 0.2 0 Equalize 0.6 0, Color 0.9 9 Equalize 0.6 0,
        AutoContrast 0.8 0 Solarize 0.2 8, Brightness 0.1 3 Color 0.7 0,
        Solarize 0.4 5 AutoContrast 0.9 0, TranslateY 0.9 9 TranslateY 0.7 9,
        AutoContrast 0.9 0 Solarize 0.8 3, Equalize 0.8 0 Invert 0.1 0,
        TranslateY 0.7 9 AutoContrast 0.9 0""",
    "svhn": """
        ShearX 0.9 4 Invert 0.2 0, ShearY 0.9 8 Invert 0.7 0,
        Equalize 0.6 0 Solarize 0.6 6, Invert 0.9 0 Equalize 0.6 0,
        Equalize 0.6 0 Rotate 0.9 3, ShearX 0.9 4 AutoContrast 0.8 0,
        ShearY 0.9 8 Invert 0.4 0, ShearY 0.9 5 Solarize 0.2 6,
        Invert 0.9 0 AutoContrast 0.8 0, Equalize 0.6 0 Rotate 0.9 3,
        ShearX 0.9 4 Solarize 0.3 3, ShearY 0.8 8 Invert 0.7 0,
        Equalize 0.9 0 TranslateY 0.6 6, Invert 0.9 0 Equalize 0.6 0,
        Contrast 0.3 3 Rotate 0.8 4, Invert 0.8 0 TranslateY 0.0 2,
        ShearY 0.7 6 Solarize 0.4 8, Invert 0.6 0 Rotate 0.8 4,
        ShearY 0.3 7 TranslateX 0.9 3, ShearX 0.1 6 Invert 0.6 0,
        Solarize 0.7 2 TranslateY 0.6 7, ShearY 0.8 4 Invert 0.8 0,
        ShearX 0.7 9 TranslateY 0.8 3, ShearY 0.8 5 AutoContrast 0.7 0,
        ShearX 0.7 2 Invert 0.1 0""",
}

"""Pixel programs: augmentations as a tree that the native core draws and runs for each sample.

The tree's form is that of ``native/augment/program.h``: nodes in pre-order, their values, and
tables that values are taken from. Each node has draws of its own, so that what it draws depends on
the sample's key alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fastdata import _native
from fastdata.transforms import geometry
from fastdata.transforms.augmentations import (
    WARPS,
    AugMix,
    AutoAugment,
    ColorJitter,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    Pad,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomChoice,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomResize,
    RandomRotation,
    RandomShortestSize,
    RandomSolarize,
    ScaleJitter,
    TrivialAugmentWide,
)
from fastdata.transforms.descriptions import (
    PADDING_MODES,
    CenterCrop,
    Compose,
    CornerCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ResizeKeepRatio,
    Transform,
)
from fastdata.transforms.geometry import FILTERS

#: (width, height); None: it depends on the image, or on what is drawn.
Fixed: TypeAlias = "tuple[int, int] | None"

# The first draw of a program: geometry has those before it (`fastdata.transforms.geometry`).
_FIRST_DRAW = 1 << 16

# Enum classes Unit, Rounding and Mixing of native/augment/program.h.
WIDTH, HEIGHT = 1, 2
TO_ZERO, TO_EVEN, UP = 1, 2, 3
SUM, BLENDED_SUM, BLENDS = 0, 1, 2


# Nodes that only lead to others.
_WITH_CHILDREN = ("sequence", "apply", "choice", "order", "sample", "mix")

# Operations that torchvision does otherwise to tensors of bytes than to PIL images.
_ON_TENSORS = ("contrast", "saturation", "sharpness", "hue", "grayscale", "autocontrast")


class Number(NamedTuple):
    """A value of a node, as ``struct Value`` of native/augment/program.h has it."""

    kind: str
    draw: int = 0
    a: float = 0.0
    b: float = 0.0
    first: int = 0
    entries: int = 0
    unit: int = 0
    least: float = -math.inf
    greatest: float = math.inf
    sign_draw: int = -1
    plus: float = 0.0
    rounding: int = 0


@dataclass(frozen=True)
class Nothing(Transform):
    """What a choice may come to."""


@dataclass(frozen=True)
class Random:
    """A value of an :class:`Operation`: a `Number` that has no draws yet.

    Attributes:
        kind: ``constant``, ``uniform_double``, ``normal``: of a and b as struct Value has them.
        a: In terms of `kind`.
        b: Likewise.
        signed: Negated half of the time.
        options: Others of `Number`'s fields.
        entries: With kind ``table``: the numbers, each as likely.
    """

    kind: str
    a: float = 0.0
    b: float = 0.0
    signed: bool = False
    options: tuple[tuple[str, float], ...] = ()
    entries: tuple[float, ...] = ()


@dataclass(frozen=True)
class Operation(Transform):
    """One node of the tree: what policies of other libraries are made of.

    Attributes:
        name: Of an operation of the core, or of a kind of leaf.
        values: Its values.
    """

    name: str
    values: tuple[float | Random, ...] = ()


@dataclass(frozen=True)
class Sample(Transform):
    """Some of several transforms, none of them twice.

    Attributes:
        transforms: Known to the core.
        count: How many, one after the other.
        weights: How likely each is, 0 or more; at least ``count`` of them above 0.
    """

    transforms: tuple[Transform, ...]
    count: int
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Mixture(Transform):
    """The image mixed with what several transforms make of it, with random weights.

    Attributes:
        transforms: Known to the core; none changes the size.
        concentration: Of the weights' Dirichlet distributions, above 0, at most 1e6.
        how: `SUM`, `BLENDED_SUM` or `BLENDS`.
    """

    transforms: tuple[Transform, ...]
    concentration: float
    how: int


@dataclass(frozen=True)
class Policy(Transform):
    """Transforms, one after the other, that ``explain()`` need not list.

    Attributes:
        words: What to say instead.
        transforms: Known to the core.
    """

    words: str
    transforms: tuple[Transform, ...]


@dataclass(frozen=True)
class OnTensors(Transform):
    """What torchvision does to a tensor of bytes, by its arithmetic on those.

    Attributes:
        transform: As it would be of a PIL image.
        version: 1 or 2: torchvision's v1 or v2.
        filled: Whether it has a fill; on tensors, none is not the same as 0.
    """

    transform: Transform
    version: int
    filled: bool = True


@dataclass(frozen=True)
class Erase(Transform):
    """A RandomErasing in the units of the output.

    Attributes:
        p: How probable it is.
        scale: As RandomErasing has it.
        ratio: Likewise.
        values: One a channel.
        deviations: The standard deviations of noise that is added; None: none.
        noise: "random", each pixel has its own; "color", each rectangle has its own.
        counts: Least and greatest number of rectangles, which share the area.
        in_double: As RandomErasing has it.
    """

    p: float
    scale: tuple[float, float]
    ratio: tuple[float, float]
    values: tuple[float, float, float]
    deviations: tuple[float, float, float] | None
    noise: str = "random"
    counts: tuple[int, int] = (1, 1)
    in_double: bool = False

    def scaled(self, mean: Sequence[float], std: Sequence[float]) -> Erase:
        """What it is after ``(value - mean) / std`` of each channel."""
        values = tuple((v - m) / s for v, m, s in zip(self.values, mean, std, strict=True))
        deviations = self.deviations
        if deviations is not None:
            deviations = tuple(d / s for d, s in zip(deviations, std, strict=True))  # type: ignore[assignment]
        return replace(self, values=values, deviations=deviations)  # type: ignore[arg-type]


class Builder:
    """Makes the parts of a program, node by node."""

    def __init__(self) -> None:
        self._nodes: list[tuple[str, str, int, int, int, int]] = []
        self._values: list[Number] = []
        self._tables: list[float] = []
        self._draws = _FIRST_DRAW
        self._channels = 3  # of the image so far
        self._tensors = 0  # 1 or 2: as torchvision's v1 or v2 does it to tensors
        self._filled = True

    @property
    def is_random(self) -> bool:
        """Whether anything in it draws."""
        return self._draws > _FIRST_DRAW

    @property
    def is_empty(self) -> bool:
        """Whether it does nothing, whatever is drawn."""
        return all(kind in _WITH_CHILDREN for kind, *_ in self._nodes)

    def program(self) -> _native.PixelProgram:
        """What was built, for the core."""
        return _native.PixelProgram(self._nodes, self._values, self._tables)

    @contextmanager
    def node(self, kind: str, *values: Number | float, draws: int = 0) -> Iterator[None]:
        """A node whose children are built within."""
        at = len(self._nodes)
        self.leaf(kind, *values, draws=draws)
        yield
        kind, operation, _, first, count, draw = self._nodes[at]
        self._nodes[at] = (kind, operation, len(self._nodes), first, count, draw)

    def leaf(self, kind: str, *values: Number | float, draws: int = 0, operation: str = "") -> None:
        """A node without children."""
        first = len(self._values)
        self._values += [
            value if isinstance(value, Number) else Number("constant", a=float(value))
            for value in values
        ]
        end = len(self._nodes) + 1
        self._nodes.append((kind, operation, end, first, len(values), self.draw(draws)))

    def call(self, operation: str, *values: Number | float, draws: int = 0) -> None:
        """A leaf that calls an operation."""
        if self._tensors and operation in _ON_TENSORS:
            operation, values = f"tensor_{operation}", (*values, self._tensors)
        self.leaf("call", *values, draws=draws, operation=operation)

    def grayscale(self, channels: int | None = None) -> None:
        """A leaf that makes the image grey, of so many channels; None: of as many as it has."""
        self._channels = channels or self._channels
        self.call("grayscale", self._channels)

    def shuffle_channels(self) -> None:
        """A leaf that puts the channels into a random order."""
        if self._channels == 3:
            self.leaf("shuffle_channels", draws=2)

    def threshold(self, value: float) -> float:
        """What bytes are compared with: tensors in single precision."""
        return float(np.float32(value)) if self._tensors else value

    def warp(
        self,
        kind: str,
        values: Sequence[Number | float],
        step: Any,
        rest: Sequence[float] = (),
        draws: int = 0,
    ) -> None:
        """A leaf that warps by what a step has for an interpolation and a fill."""
        fill = step.fill if self._filled else (-1, -1, -1)
        interpolation = WARPS.index(step.interpolation)
        self.leaf(kind, *values, interpolation, *fill, *rest, self._tensors > 0, draws=draws)

    @contextmanager
    def on_tensors(self, version: int, filled: bool) -> Iterator[None]:
        """What is built within is done as torchvision does it to tensors."""
        before = self._tensors, self._filled
        self._tensors, self._filled = version, filled
        yield
        self._tensors, self._filled = before

    def draw(self, count: int = 1) -> int:
        """The first of so many draws that nothing else has."""
        first, self._draws = self._draws, self._draws + count
        return first

    def uniform(self, a: float, b: float, **rest: Any) -> Number:
        """A number between a and b, in single precision; no draw where they are the same."""
        if a == b:
            return Number("constant", a=float(np.float32(a)), **rest)
        return Number("uniform", self.draw(), a, b, **rest)

    def table(self, entries: Sequence[float], signed: bool = False, **rest: Any) -> Number:
        """One of several numbers, each as likely; and as likely with either sign."""
        sign = {"sign_draw": self.draw()} if signed else {}
        if len(entries) == 1:
            return Number("constant", a=entries[0], **sign, **rest)
        first = len(self._tables)
        self._tables += entries
        return Number("table", self.draw(), first=first, entries=len(entries), **sign, **rest)

    def random(self, value: float | Random) -> Number | float:
        """A value with draws of its own."""
        if not isinstance(value, Random):
            return value
        options: dict[str, Any] = dict(value.options)
        if value.signed:
            options["sign_draw"] = self.draw()
        if value.kind == "table":
            return self.table(value.entries, **options)
        draws = {"constant": 0, "uniform_double": 1, "normal": 2}[value.kind]
        return Number(value.kind, self.draw(draws), value.a, value.b, **options)

    @contextmanager
    def maybe(self, p: float) -> Iterator[None]:
        """What is built within is done with probability p."""
        if p >= 1:
            with self.node("sequence"):
                yield
        else:
            with self.node("apply", p, draws=1):
                yield


def is_known(transform: Any) -> bool:
    """Whether a program can have a transform of this type."""
    return type(transform) in _EMIT


def tree_of(steps: Sequence[Transform]) -> Builder:
    """The tree of several transforms, one after the other.

    Raises:
        UsageError: Arguments that the core does not take.
    """
    builder = Builder()
    with builder.node("sequence"):
        for step in steps:
            _emit(builder, step)
    return builder


@lru_cache(maxsize=64)
def native_program(steps: tuple[Transform, ...]) -> _native.PixelProgram:
    """The core's program of several transforms, one after the other; the same for the same ones."""
    return tree_of(steps).program()


@lru_cache(maxsize=256)
def is_random(step: Transform) -> bool:
    """Whether a transform draws numbers."""
    return tree_of((step,)).is_random if is_known(step) else geometry.is_random(step)


def does_nothing(step: Transform) -> bool:
    """Whether a transform leaves every image as it is."""
    return tree_of((step,)).is_empty


def size_after(step: Transform, size: Fixed) -> Fixed:
    """(width, height) of every image after a step, before which all were ``size``."""
    if isinstance(step, OnTensors):
        return size_after(step.transform, size)
    if isinstance(step, Pad):
        left, top, right, bottom = step.padding  # type: ignore[misc]
        return size and (size[0] + left + right, size[1] + top + bottom)
    if isinstance(step, (RandomResizedCrop, CenterCrop, CornerCrop, RandomCrop)):
        return step.size[1], step.size[0]  # type: ignore[index]
    if isinstance(step, Resize):
        if isinstance(step.size, tuple):
            return step.size[1], step.size[0]
        return size and geometry.resized_size(step, *size)
    if isinstance(step, RandomRotation):
        return None if step.expand else size
    if isinstance(step, (ScaleJitter, RandomShortestSize, RandomResize, ResizeKeepRatio)):
        return None
    if isinstance(step, Compose):
        for part in step.transforms:
            size = size_after(part, size)  # type: ignore[arg-type]
        return size
    if isinstance(step, (RandomApply, RandomOrder)):
        parts = step.transforms
        kept = all(size_after(part, size) == size for part in parts)  # type: ignore[arg-type]
        return size if kept else None
    if isinstance(step, RandomChoice):
        sizes = {size_after(part, size) for part in step.transforms}  # type: ignore[arg-type]
        return sizes.pop() if len(sizes) == 1 else None
    return size


def channels_after(step: Transform, channels: int) -> int | None:
    """Channels of every image after a step; None: it depends on what is drawn."""
    if isinstance(step, OnTensors):
        return channels_after(step.transform, channels)
    if isinstance(step, Grayscale):
        return step.num_output_channels
    if isinstance(step, (Compose, Policy)):
        found: int | None = channels
        for part in step.transforms:
            found = found and channels_after(part, found)  # type: ignore[arg-type]
        return found
    if isinstance(step, (RandomApply, RandomOrder, RandomChoice, Sample, Mixture)):
        parts = {channels_after(part, channels) for part in step.transforms}  # type: ignore[arg-type]
        parts |= {channels} if isinstance(step, RandomApply) else set()
        return parts.pop() if len(parts) == 1 else None
    return channels


def has_colours(step: Transform) -> bool:
    """Whether a step fills with other than a grey, which an image of one channel does not have."""
    if isinstance(step, OnTensors):
        return has_colours(step.transform)
    if isinstance(step, (Compose, RandomApply, RandomOrder, RandomChoice)):
        return any(map(has_colours, step.transforms))  # type: ignore[arg-type]
    return len(set(getattr(step, "fill", None) or (0,))) > 1


# --- what each transform is in the tree ------------------------------------------------------


def _emit(tree: Builder, step: Any) -> None:
    _EMIT[type(step)](tree, step)


def _emit_all(tree: Builder, steps: Sequence[Any]) -> None:
    for step in steps:
        _emit(tree, step)


def _emit_apart(tree: Builder, steps: Sequence[Any]) -> None:
    """A node each, whatever several it is made of."""
    for step in steps:
        with tree.node("sequence"):
            _emit(tree, step)


def _with_p(operation: str) -> Callable[[Builder, Any], None]:
    """Of a transform that calls an operation without values, or does not."""

    def emit(tree: Builder, step: Any) -> None:
        with tree.maybe(step.p):
            tree.call(operation)

    return emit


def _grayscale(tree: Builder, step: Grayscale) -> None:
    tree.grayscale(step.num_output_channels)


def _random_grayscale(tree: Builder, step: RandomGrayscale) -> None:
    with tree.maybe(step.p):
        tree.grayscale()


def _posterize(tree: Builder, step: RandomPosterize) -> None:
    with tree.maybe(step.p):
        tree.call("posterize", step.bits)


def _solarize(tree: Builder, step: RandomSolarize) -> None:
    with tree.maybe(step.p):
        tree.call("solarize", tree.threshold(step.threshold))


def _sharpness(tree: Builder, step: RandomAdjustSharpness) -> None:
    with tree.maybe(step.p):
        tree.call("sharpness", step.sharpness_factor)


_COLOURS = ("brightness", "contrast", "saturation", "hue")


def _jitter(tree: Builder, step: ColorJitter) -> None:
    nothing = {"hue": (0.0, 0.0)}
    used = [name for name in _COLOURS if getattr(step, name) != nothing.get(name, (1.0, 1.0))]
    with tree.node("order", draws=len(used)):
        for name in used:
            tree.call(name, tree.uniform(*getattr(step, name)))


def _distort(tree: Builder, step: RandomPhotometricDistort) -> None:
    # Contrast is changed before the colours or after them: the same numbers, in two places.
    def one(name: str) -> None:
        with tree.maybe(step.p):
            tree.call(name, tree.uniform(*getattr(step, name)))

    one("brightness")
    with tree.node("choice", draws=1):
        for order in (("contrast", "saturation", "hue"), ("saturation", "hue", "contrast")):
            with tree.node("sequence"):
                for name in order:
                    one(name)
    with tree.maybe(step.p):
        tree.shuffle_channels()


def _permutation(tree: Builder, step: RandomChannelPermutation) -> None:
    tree.shuffle_channels()


def _blur(tree: Builder, step: GaussianBlur) -> None:
    sigma = tree.uniform(*step.sigma)  # type: ignore[misc]
    tree.call("gaussian_blur", *step.kernel_size, sigma, sigma)  # type: ignore[misc]


def _noise(tree: Builder, step: GaussianNoise) -> None:
    tree.call("gaussian_noise", step.mean, step.sigma, step.clip, draws=1)


def _center_values(center: Any) -> tuple[float, float, float]:
    return (0, 0, 0) if center is None else (1, *center)


def _rotation(tree: Builder, step: RandomRotation) -> None:
    angle = tree.uniform(*step.degrees)  # type: ignore[misc]
    tree.warp("rotate", [angle], step, (step.expand, *_center_values(step.center)))


def _affine(tree: Builder, step: RandomAffine) -> None:
    degrees: Any = step.degrees
    shear: Any = step.shear or (0.0, 0.0)
    x, y = step.translate or (0.0, 0.0)
    values: list[Number | float] = [
        tree.uniform(*degrees),
        tree.uniform(-x, x, unit=WIDTH, rounding=TO_EVEN),
        tree.uniform(-y, y, unit=HEIGHT, rounding=TO_EVEN),
        tree.uniform(*(step.scale or (1.0, 1.0))),
        tree.uniform(*shear[:2]),
        tree.uniform(*shear[2:]) if len(shear) == 4 else 0.0,
    ]
    tree.warp("affine", values, step, _center_values(step.center))


def _perspective(tree: Builder, step: RandomPerspective) -> None:
    with tree.maybe(step.p):
        tree.warp("perspective", [step.distortion_scale], step, draws=8)


def _pad(tree: Builder, step: Pad) -> None:
    padding: Any = step.padding
    fill: Any = step.fill
    tree.call("pad", *padding, PADDING_MODES.index(step.padding_mode), *fill)


def _apply(tree: Builder, step: RandomApply) -> None:
    with tree.maybe(step.p):
        _emit_all(tree, step.transforms)


def _choice(tree: Builder, step: RandomChoice) -> None:
    sums = np.cumsum(step.p).tolist() if step.p is not None else ()
    with tree.node("choice", *sums, draws=1):
        _emit_apart(tree, step.transforms)


def _order(tree: Builder, step: RandomOrder) -> None:
    with tree.node("order", draws=len(step.transforms)):
        _emit_apart(tree, step.transforms)


def _compose(tree: Builder, step: Compose) -> None:
    with tree.node("sequence"):
        _emit_all(tree, step.transforms)


def _filter(tree: Builder, step: Any) -> Number | float:
    """The number of a transform's filter, or one of several."""
    if isinstance(step.interpolation, str):
        return float(FILTERS.index(step.interpolation))
    return tree.table([float(FILTERS.index(name)) for name in step.interpolation])


def _resized_crop(tree: Builder, step: RandomResizedCrop) -> None:
    height, width = step.size  # type: ignore[misc]
    which = _filter(tree, step)
    ranges = (*step.scale, *step.ratio, step.in_double)
    tree.leaf("resized_crop", width, height, which, *ranges, draws=22)


def _resize(tree: Builder, step: Resize) -> None:
    which = FILTERS.index(step.interpolation)
    if isinstance(step.size, tuple):
        tree.call("resize", step.size[1], step.size[0], which)
    else:
        tree.leaf("resize_shorter", step.size, step.max_size or 0, which)  # type: ignore[arg-type]


def _center_crop(tree: Builder, step: CenterCrop) -> None:
    height, width = step.size  # type: ignore[misc]
    fill: Any = step.fill
    tree.leaf("centre_crop", width, height, PADDING_MODES.index(step.padding_mode), *fill)


def _corner_crop(tree: Builder, step: CornerCrop) -> None:
    height, width = step.size  # type: ignore[misc]
    tree.leaf("corner_crop", width, height, step.right, step.bottom)


def _random_crop(tree: Builder, step: RandomCrop) -> None:
    height, width = step.size  # type: ignore[misc]
    padding: Any = step.padding
    fill: Any = step.fill
    mode = PADDING_MODES.index(step.padding_mode)
    tree.leaf("random_crop", width, height, *padding, step.pad_if_needed, mode, *fill, draws=2)


def _scale_jitter(tree: Builder, step: ScaleJitter) -> None:
    height, width = step.target_size
    factor = tree.uniform(*step.scale_range)
    which = FILTERS.index(step.interpolation)
    tree.leaf("scale_jitter", height, width, factor, which)


def _shortest_size(tree: Builder, step: RandomShortestSize) -> None:
    sizes: Any = step.min_size
    which = FILTERS.index(step.interpolation)
    tree.leaf("shortest_size", tree.table(sizes), step.max_size or 0, which)


def _random_resize(tree: Builder, step: RandomResize) -> None:
    low, high = step.min_size, step.max_size
    size = Number("uniform_double", tree.draw(), low, high, rounding=TO_ZERO)
    which = FILTERS.index(step.interpolation)
    tree.leaf("resize_shorter", size, 0, which)


def _erase(tree: Builder, step: Erase) -> None:
    noise = 0 if step.deviations is None else 1 + (step.noise == "color")
    with tree.maybe(step.p), tree.node("choice", draws=1):
        for count in range(step.counts[0], step.counts[1] + 1):
            scale = [part / count for part in step.scale]
            deviations = step.deviations or (0, 0, 0)
            values = (*scale, *step.ratio, *step.values, noise, *deviations, step.in_double)
            with tree.node("sequence"):
                for _ in range(count):
                    tree.leaf("erase", *values, draws=23)


def _operation(tree: Builder, step: Operation) -> None:
    values = [tree.random(value) for value in step.values]
    if step.name in _native.OPERATIONS:
        tree.call(step.name, *values)
    else:
        tree.leaf(step.name, *values)


def _sample(tree: Builder, step: Sample) -> None:
    with tree.node("sample", step.count, *step.weights, draws=step.count):
        _emit_all(tree, step.transforms)


def _mixture(tree: Builder, step: Mixture) -> None:
    with tree.node("mix", step.concentration, step.how, draws=1):
        _emit_apart(tree, step.transforms)


def _policy_steps(tree: Builder, step: Policy) -> None:
    with tree.node("sequence"):
        _emit_all(tree, step.transforms)


def _on_tensors(tree: Builder, step: OnTensors) -> None:
    with tree.on_tensors(step.version, step.filled):
        _emit(tree, step.transform)


def _nothing(tree: Builder, step: Nothing) -> None:
    tree.leaf("sequence")


# --- policies --------------------------------------------------------------------------------

# What torchvision's ``_augmentation_space`` has: strengths are evenly spaced from 0 to these; those
# of translations are parts of the image's side, but for TrivialAugment's, in pixels.
_SPACE = {
    "ShearX": 0.3,
    "ShearY": 0.3,
    "TranslateX": 150.0 / 331.0,
    "TranslateY": 150.0 / 331.0,
    "Rotate": 30.0,
    "Brightness": 0.9,
    "Color": 0.9,
    "Contrast": 0.9,
    "Sharpness": 0.9,
    "Posterize": 4.0,
}
_WIDE_SPACE = {
    "ShearX": 0.99,
    "ShearY": 0.99,
    "TranslateX": 32.0,
    "TranslateY": 32.0,
    "Rotate": 135.0,
    "Brightness": 0.99,
    "Color": 0.99,
    "Contrast": 0.99,
    "Sharpness": 0.99,
    "Posterize": 6.0,
}
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
    """An operation's values at each strength, but for its sign."""
    if name == "Solarize":
        if version == 1:
            return _native.linspace(255.0, 0.0, bins)
        return [255.0 * value for value in _native.linspace(1.0, 0.0, bins)]
    if name == "Posterize":
        kept = 8 - np.rint(np.arange(bins, dtype=np.float32) / np.float32((bins - 1) / space[name]))
        return kept.tolist()  # type: ignore[no-any-return]
    found = _native.linspace(0.0, space[name], bins)
    if name.startswith("Shear"):
        return [math.degrees(math.atan(value)) for value in found]
    return found


def _augmentation(
    tree: Builder,
    step: Any,
    name: str,
    space: dict[str, float],
    bins: int,
    at: range,
) -> None:
    """One of a policy's augmentations, at one of the strengths ``at``, each as likely."""
    if name == "Identity":
        tree.leaf("sequence")
        return
    if name in _PLAIN:
        tree.call(_PLAIN[name])
        return
    values = _strengths(name, space, bins, step.version)
    values = values[at.start : at.stop]
    if name in _FACTORS:
        tree.call(_FACTORS[name], tree.table(values, signed=True, plus=1.0))
    elif name == "Posterize":
        tree.call("posterize", tree.table(values))
    elif name == "Solarize":
        tree.call("solarize", tree.table([tree.threshold(value) for value in values]))
    elif name == "Rotate":
        tree.warp("rotate", [tree.table(values, signed=True)], step, (0, 0, 0, 0))
    elif name.startswith("Shear"):
        shear = tree.table(values, signed=True)
        pair = (shear, 0.0) if name == "ShearX" else (0.0, shear)
        # About the upper left corner.
        tree.warp("affine", (0.0, 0.0, 0.0, 1.0, *pair), step, (1, 0, 0))
    elif space is _WIDE_SPACE:  # a translation in pixels
        moved = tree.table(values, signed=True, rounding=TO_ZERO)
        _translate(tree, step, name, moved)
    else:
        unit = WIDTH if name == "TranslateX" else HEIGHT
        with tree.node("choice", draws=int(len(at) > 1)):
            for entry in at:
                moved = Number("linspace", 0, space[name], entry, 0, bins, unit)
                moved = moved._replace(sign_draw=tree.draw(), rounding=TO_ZERO)
                _translate(tree, step, name, moved)


def _translate(tree: Builder, step: Any, name: str, moved: Number) -> None:
    pair = (moved, 0.0) if name == "TranslateX" else (0.0, moved)
    tree.warp("affine", (0.0, *pair, 1.0, 0.0, 0.0), step, (0, 0, 0))


def _rand_augment(tree: Builder, step: RandAugment) -> None:
    at = range(step.magnitude, step.magnitude + 1)
    for _ in range(step.num_ops):
        with tree.node("choice", draws=1):
            for name in _CHOICES:
                _augmentation(tree, step, name, _SPACE, step.num_magnitude_bins, at)


def _trivial_augment(tree: Builder, step: TrivialAugmentWide) -> None:
    bins = step.num_magnitude_bins
    with tree.node("choice", draws=1):
        for name in _CHOICES:
            _augmentation(tree, step, name, _WIDE_SPACE, bins, range(bins))


def _auto_augment(tree: Builder, step: AutoAugment) -> None:
    with tree.node("choice", draws=1):
        for pair in _policy(step.policy):
            with tree.node("sequence"):
                for name, p, at in pair:
                    with tree.maybe(p):
                        _augmentation(tree, step, name, _SPACE, 10, range(at, at + 1))


def _aug_mix(tree: Builder, step: AugMix) -> None:
    with (
        tree.on_tensors(step.version, step.fill is not None),
        tree.node("mix", step.alpha, SUM, draws=1),
    ):
        for _ in range(step.mixture_width):
            depths = [step.chain_depth] if step.chain_depth > 0 else [1, 2, 3]
            with tree.node("choice", draws=int(len(depths) > 1)):
                for depth in depths:
                    with tree.node("sequence"):
                        for _ in range(depth):
                            _mixed_augmentation(tree, step)


def _mixed_augmentation(tree: Builder, step: AugMix) -> None:
    with tree.node("choice", draws=1):
        for name in _MIXED if step.all_ops else _MIXED_FEW:
            at = range(step.severity)
            if name == "Posterize":  # from 4 bits on
                kept = _strengths(name, _MIX_SPACE, _MIX_BINS, step.version)
                tree.call("posterize", tree.table([bits - 4 for bits in kept[: step.severity]]))
            else:
                _augmentation(tree, step, name, _MIX_SPACE, _MIX_BINS, at)


def _policy(name: str) -> Iterator[list[tuple[str, float, int]]]:
    """The pairs of a policy of AutoAugment: (operation, probability, strength)."""
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

_EMIT: dict[type, Callable[[Builder, Any], None]] = {
    AugMix: _aug_mix,
    AutoAugment: _auto_augment,
    CenterCrop: _center_crop,
    ColorJitter: _jitter,
    Compose: _compose,
    CornerCrop: _corner_crop,
    Erase: _erase,
    GaussianBlur: _blur,
    GaussianNoise: _noise,
    Grayscale: _grayscale,
    Mixture: _mixture,
    Nothing: _nothing,
    Operation: _operation,
    OnTensors: _on_tensors,
    Pad: _pad,
    Policy: _policy_steps,
    RandAugment: _rand_augment,
    RandomAdjustSharpness: _sharpness,
    RandomAffine: _affine,
    RandomApply: _apply,
    RandomAutocontrast: _with_p("autocontrast"),
    RandomChannelPermutation: _permutation,
    RandomChoice: _choice,
    RandomCrop: _random_crop,
    RandomEqualize: _with_p("equalize"),
    RandomGrayscale: _random_grayscale,
    RandomHorizontalFlip: _with_p("flip_horizontal"),
    RandomInvert: _with_p("invert"),
    RandomOrder: _order,
    RandomPerspective: _perspective,
    RandomPhotometricDistort: _distort,
    RandomPosterize: _posterize,
    RandomResize: _random_resize,
    RandomResizedCrop: _resized_crop,
    RandomRotation: _rotation,
    RandomShortestSize: _shortest_size,
    RandomSolarize: _solarize,
    RandomVerticalFlip: _with_p("flip_vertical"),
    Resize: _resize,
    Sample: _sample,
    ScaleJitter: _scale_jitter,
    TrivialAugmentWide: _trivial_augment,
}

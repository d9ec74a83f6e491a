"""Resizes, with the arithmetic of sizes and boxes of torchvision (0.28), or of timm (1.0)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.errors import UsageError
from fastdata.transforms import checks
from fastdata.transforms.base import Sized, Transform
from fastdata.transforms.checks import Filter, Filters, Probability, Range, Size
from fastdata.transforms.reading import Fixed, Reading
from fastdata.transforms.tree import TO_ZERO, Builder, Number, native_program


class _Resizing(Transform):
    """Resizes that the core does while it decodes."""

    is_geometry = True
    resizes = True
    interpolation: Any

    @property
    def filters(self) -> tuple[str, ...]:
        """The names of its filters."""
        several = self.interpolation
        return (several,) if isinstance(several, str) else several

    def size_after(self, size: Fixed) -> Fixed:
        return None  # it depends on draws, or on the image

    def cut(self, reading: Reading) -> Reading | None:
        if reading.filter is not None or reading.reveals:
            return None
        size = self.size_after(reading.fixed)
        return reading.resized(self, size, filter=self.filters[0], cropped=False)

    def works_on_floats(self, normalised: bool) -> bool:
        return True


@dataclass(frozen=True)
class RandomResizedCrop(Sized, _Resizing):
    """Crop a random part of the image and resize it, as Inception was trained.

    Boxes are drawn as ``torchvision.transforms.RandomResizedCrop.get_params`` draws them: up to
    ten attempts at an area and a ratio, then a central crop.

    Attributes:
        size: Of the result: an int for a square, or (height, width).
        scale: Least and greatest part of the image's area that a crop has.
        ratio: Least and greatest width / height of a crop.
        interpolation: ``bilinear``, ``nearest``, ``bicubic`` or ``lanczos``, torchvision's
            ``InterpolationMode`` of that name or Pillow's number. Several of them: each image gets
            one, with equal probabilities.
        antialias: Has no effect, as on torchvision's PIL images: all filters but nearest antialias.
        in_double: Draw in double precision, as timm does; torchvision draws in single.
    """

    size: Size
    scale: checks.AboveZero = (0.08, 1.0)
    ratio: checks.AboveZero = (3 / 4, 4 / 3)
    interpolation: Filters = "bilinear"
    antialias: checks.Antialias = field(default=True, compare=False)
    in_double: bool = field(default=False, kw_only=True)

    def emit(self, tree: Builder) -> None:
        scale = {"least_area": self.scale[0], "most_area": self.scale[1]}
        ratio = {"least_ratio": self.ratio[0], "most_ratio": self.ratio[1]}
        which = tree.filter(self.filters)
        values = {**self.sides, "filter": which, **scale, **ratio, "in_double": self.in_double}
        tree.add("resized_crop", **values)


def _side_or_size(title: str, name: str, value: Any) -> int | tuple[int, int]:
    single = isinstance(value, Sequence) and len(value) == 1
    height, width = checks.pair(title, name, value)
    return (height, width) if isinstance(value, Sequence) and not single else height


_Bound: TypeAlias = Annotated[int | None, checks.optional(checks.whole)]


@dataclass(frozen=True)
class Resize(_Resizing, Sized):
    """Resize the image, with the sizes that ``torchvision.transforms.functional.resize`` computes.

    Attributes:
        size: An int for the shorter side, keeping the ratio; or (height, width).
        interpolation: As in :class:`RandomResizedCrop`, one.
        max_size: With an int: where the longer side would exceed this, it becomes this, and
            the shorter side less than ``size``.
        antialias: As in :class:`RandomResizedCrop`.
    """

    size: Annotated[int | Sequence[int], _side_or_size]
    interpolation: Filter = "bilinear"
    max_size: _Bound = None
    antialias: checks.Antialias = field(default=True, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_size is None:
            return
        if isinstance(self.size, tuple):
            raise UsageError(
                f"Resize: max_size {self.max_size} is for a size that is the shorter side.",
                "Leave it out, or give an int as size.",
            )
        if self.max_size <= self.size:  # type: ignore[operator]
            raise UsageError(
                f"Resize: max_size {self.max_size} is not greater than size {self.size}.",
                "It bounds the longer side; size is the shorter one.",
            )

    def size_after(self, size: Fixed) -> Fixed:
        if isinstance(self.size, tuple):
            return self.target
        shorter: Any = self.size
        return size and _native.resized_shorter(*size, shorter, self.max_size or 0)

    def cut(self, reading: Reading) -> Reading | None:
        size = self.size_after(reading.fixed)
        kept = size is not None and size == reading.fixed
        return reading if kept else super().cut(reading)

    def emit(self, tree: Builder) -> None:
        which = tree.filter(self.filters)
        if isinstance(self.size, tuple):
            tree.add("resize", **self.sides, filter=which)
        else:
            shorter: Any = self.size
            tree.add("resize_shorter", size=shorter, bound=self.max_size or 0, filter=which)


@dataclass(frozen=True)
class ResizeKeepRatio(_Resizing, Sized):
    """Resize the image to a target's size, keeping its ratio but for random changes.

    Names, arguments and arithmetic are timm's (``timm.data.transforms``, version 1.0).

    Attributes:
        size: Of the target: an int for a square, or (height, width).
        longest: 0: the image covers the target; 1: it lies within it; or something in between.
        interpolation: As in :class:`RandomResizedCrop`.
        random_scale_prob: Probability that the image is scaled.
        random_scale_range: By a factor that is uniform in (from, to), above 0.
        random_scale_area: Scale by one over the factor's square root instead.
        random_aspect_prob: Probability that the image's ratio changes.
        random_aspect_range: Height by width changes by one over a factor whose logarithm is
            uniform between those of (from, to), above 0.
    """

    size: Size
    longest: Annotated[float, checks.number_from(-math.inf, math.inf)] = 0.0
    interpolation: Filters = "bilinear"
    random_scale_prob: Probability = 0.0
    random_scale_range: Annotated[Range, checks.above_zero] = (0.85, 1.05)
    random_scale_area: bool = False
    random_aspect_prob: Probability = 0.0
    random_aspect_range: Annotated[Range, checks.above_zero] = (0.9, 1.11)

    def emit(self, tree: Builder) -> None:
        low_scale, high_scale = self.random_scale_range
        low_ratio, high_ratio = self.random_aspect_range
        changes = self.random_scale_prob > 0 or self.random_aspect_prob > 0
        tree.add(
            "resize_keeping_ratio",
            None if changes else 0,
            **self.sides,
            longest=self.longest,
            scale_p=self.random_scale_prob,
            least_scale=low_scale,
            most_scale=high_scale,
            scale_is_area=self.random_scale_area,
            ratio_p=self.random_aspect_prob,
            least_ratio=low_ratio,
            most_ratio=high_ratio,
            filter=tree.filter(self.filters),
        )


_Ratio: TypeAlias = Annotated[float | None, checks.optional(checks.number_from(1e-4, 100))]


@dataclass(frozen=True)
class ResizeToSequence(_Resizing):
    """Resize the image to whole patches, as many as a sequence may have, keeping its ratio.

    Sizes are those of timm (``timm.data.naflex_transforms``, version 1.0) and of SigLIP 2: the
    largest whose sides are rounded up to patches and that has at most ``max_seq_len`` of them.
    `fastdata.collate.collate_patches` makes patches of such images.

    Attributes:
        patch_size: Side of a patch, in pixels.
        max_seq_len: The most patches of an image.
        max_ratio: The most that an image is enlarged by, before its sides are rounded up to
            patches; None: without bound. 1.0 leaves small images small.
        interpolation: As in :class:`RandomResizedCrop`.
    """

    patch_size: checks.Whole
    max_seq_len: checks.Whole = 1024
    max_ratio: _Ratio = field(default=None, kw_only=True)
    interpolation: Filters = field(default="bicubic", kw_only=True)

    def patches(self, width: npt.ArrayLike, height: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the number of patches of images of these sizes, (N,)."""
        wide, high = (np.atleast_1d(side).astype(np.int32) for side in (width, height))
        cuts = native_program((), leading=(self,)).cuts(wide, high, np.zeros(len(wide), np.uint64))
        sides = cuts["size"].astype(np.int64) // self.patch_size
        counts: npt.NDArray[np.int64] = sides.prod(1)
        return counts

    def emit(self, tree: Builder) -> None:
        tree.add(
            "resize_to_sequence",
            patch=self.patch_size,
            most_patches=self.max_seq_len,
            greatest_ratio=self.max_ratio or 100,
            filter=tree.filter(self.filters),
        )


def _target_size(title: str, name: str, value: Any) -> tuple[float, ...]:
    sides = checks.numbers(title, name, value, 2)
    return tuple(checks.number(title, name, side, 1, 1 << 24) for side in sides)


@dataclass(frozen=True)
class ScaleJitter(_Resizing):
    """Resize the image by a random factor of the one that brings it within a target.

    Attributes:
        target_size: (height, width); as in torchvision, the image's height is compared with
            the width, and its width with the height.
        scale_range: The factor is uniform in (from, to).
        interpolation: As in :class:`Resize`.
        antialias: As in :class:`Resize`.
    """

    target_size: Annotated[tuple[int, int], _target_size]
    scale_range: Annotated[Range, checks.interval] = (0.1, 2.0)
    interpolation: Filter = "bilinear"
    antialias: checks.Antialias = field(default=True, compare=False)

    def emit(self, tree: Builder) -> None:
        # As torchvision, which takes the height for the width.
        width, height = self.target_size
        factor, which = tree.uniform(*self.scale_range), tree.filter(self.filters)
        tree.add("scale_jitter", width=width, height=height, factor=factor, filter=which)


def _sizes(title: str, name: str, value: Any) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    return tuple(checks.whole(title, name, size) for size in sizes or (0,))


@dataclass(frozen=True)
class RandomShortestSize(_Resizing):
    """Resize the image to one of several sizes of the shorter side.

    Attributes:
        min_size: The sizes, in pixels; an int or several.
        max_size: Bound of the longer side; None: none.
        interpolation: As in :class:`Resize`.
        antialias: As in :class:`Resize`.
    """

    min_size: Annotated[int | Sequence[int], _sizes]
    max_size: _Bound = None
    interpolation: Filter = "bilinear"
    antialias: checks.Antialias = field(default=True, compare=False)

    def emit(self, tree: Builder) -> None:
        size, which = tree.table(self.min_size), tree.filter(self.filters)  # type: ignore[arg-type]
        tree.add("shortest_size", size=size, bound=self.max_size or 0, filter=which)


@dataclass(frozen=True)
class RandomResize(_Resizing):
    """Resize the image's shorter side to a random size.

    Attributes:
        min_size: The least size, in pixels.
        max_size: One more than the greatest.
        interpolation: As in :class:`Resize`.
        antialias: As in :class:`Resize`.
    """

    min_size: checks.Whole
    max_size: int
    interpolation: Filter = "bilinear"
    antialias: checks.Antialias = field(default=True, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("RandomResize", "max_size", self.max_size, self.min_size + 1)

    def emit(self, tree: Builder) -> None:
        ends = self.min_size, self.max_size
        size = Number("uniform_double", tree.draw(), *ends, rounding=TO_ZERO)
        tree.add("resize_shorter", size=size, bound=0, filter=tree.filter(self.filters))

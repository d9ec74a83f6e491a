"""Rotations, affine and perspective warps, with torchvision's pixels on PIL images (0.28)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastdata.errors import UsageError
from fastdata.transforms import checks
from fastdata.transforms.base import ByChance, Filling
from fastdata.transforms.checks import Angles, Center, Fill, Probability, Warp
from fastdata.transforms.outcomes import Declined
from fastdata.transforms.reading import Fixed, Reading
from fastdata.transforms.tree import HEIGHT, TO_EVEN, WIDTH, Builder, Values, center_values


def _parts(title: str, name: str, value: Any) -> tuple[float, ...]:
    parts = checks.numbers(title, name, value, 2)
    if not all(0 <= part <= 1 for part in parts):
        raise UsageError(
            f"{title}: {name} {parts} has a part that is not from 0 to 1.",
            f"Give for example {name}=(0.1, 0.1).",
        )
    return parts


@dataclass(frozen=True)
class RandomRotation(Filling):
    """Rotate the image.

    Attributes:
        degrees: The angle, counter-clockwise, is uniform in (from, to); a number d means
            (-d, d).
        interpolation: ``nearest``, ``bilinear`` or ``bicubic``, torchvision's
            ``InterpolationMode`` of that name or Pillow's number.
        expand: Make the result large enough for all of the rotated image.
        center: (x, y) from the upper left, in pixels; None: the image's centre.
        fill: Value of pixels outside the image: 0 to 255, or one a channel.
        mask_fill: Value of such pixels of masks, 0 to 65535; None: as ``fill``.
    """

    otherwise_on_tensors = True
    floats_as_bytes = True

    degrees: Angles
    interpolation: Warp = "nearest"
    expand: bool = False
    center: Center = None
    fill: Fill = 0

    def size_after(self, size: Fixed) -> Fixed:
        return None if self.expand else size

    def declines(self, reading: Reading) -> Declined | None:
        if self.expand and reading.masks:
            return Declined("torchvision expands masks unlike PIL images", "take expand=False")
        return super().declines(reading)

    def emit(self, tree: Builder) -> None:
        angle = tree.uniform(*self.degrees)  # type: ignore[misc]
        center = center_values(self.center)
        tree.warp("rotate", self, angle=angle, expand=self.expand, **center)


@dataclass(frozen=True)
class RandomAffine(Filling):
    """Rotate, move, scale and shear the image about its centre.

    Attributes:
        degrees: As in :class:`RandomRotation`.
        translate: Parts of the width and height, 0 to 1, by which it is moved at most; None: not.
        scale: The factor is uniform in (from, to), above 0; None: 1.
        shear: Degrees along x, uniform in (from, to); four numbers: along y, too; a number s
            means (-s, s); None: 0.
        interpolation: As in :class:`RandomRotation`.
        fill: As in :class:`RandomRotation`.
        mask_fill: As in :class:`RandomRotation`.
        center: As in :class:`RandomRotation`.
    """

    otherwise_on_tensors = True
    floats_as_bytes = True

    degrees: Angles
    translate: Annotated[Sequence[float] | None, checks.optional(_parts)] = None
    scale: Annotated[Sequence[float] | None, checks.optional(checks.above_zero)] = None
    shear: Annotated[
        float | Sequence[float] | None, checks.optional(partial(checks.angles, counts=(2, 4)))
    ] = None
    interpolation: Warp = "nearest"
    fill: Fill = 0
    center: Center = None

    def emit(self, tree: Builder) -> None:
        degrees: Any = self.degrees
        shear: Any = self.shear or (0.0, 0.0)
        x, y = self.translate or (0.0, 0.0)
        values: dict[str, Values] = {
            "angle": tree.uniform(*degrees),
            "move_x": tree.uniform(-x, x, unit=WIDTH, rounding=TO_EVEN),
            "move_y": tree.uniform(-y, y, unit=HEIGHT, rounding=TO_EVEN),
            "scale": tree.uniform(*(self.scale or (1.0, 1.0))),
            "shear_x": tree.uniform(*shear[:2]),
            "shear_y": tree.uniform(*shear[2:]) if len(shear) == 4 else 0.0,
        }
        tree.warp("affine", self, **values, **center_values(self.center))


@dataclass(frozen=True)
class RandomPerspective(Filling, ByChance):
    """Move the image's corners inwards, as a change of perspective does.

    Attributes:
        distortion_scale: Greatest move, in parts of half the image's sides, 0 to 1.
        p: Probability.
        interpolation: As in :class:`RandomRotation`.
        fill: As in :class:`RandomRotation`.
        mask_fill: As in :class:`RandomRotation`.
    """

    otherwise_on_tensors = True
    floats_as_bytes = True

    distortion_scale: Annotated[float, checks.number_from(0, 1)] = 0.5
    p: Probability = 0.5
    interpolation: Warp = "bilinear"
    fill: Fill = 0

    def emit_always(self, tree: Builder) -> None:
        tree.warp("perspective", self, distortion=self.distortion_scale)

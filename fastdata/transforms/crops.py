"""Crops, flips and padding, with torchvision's arithmetic (0.28)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from fastdata.transforms import checks
from fastdata.transforms.base import ByChance, Filling, Sized
from fastdata.transforms.checks import Fill, Padding, PaddingMode, Probability, Size
from fastdata.transforms.outcomes import Declined
from fastdata.transforms.reading import Fixed, Reading, Step
from fastdata.transforms.tree import Builder, Values


class _Cropping(Sized):
    """Crops that the core does while it decodes."""

    is_geometry = True
    any_floats = True
    fill: Any = (0, 0, 0)
    padding_mode: Any = "constant"

    @property
    def pads(self) -> bool:
        """Whether it pads smaller images; otherwise it raises."""
        return True

    @property
    def adds_zeros(self) -> bool:
        """Whether it pads with zeros."""
        return (self.fill, self.padding_mode) == ((0, 0, 0), "constant")

    def exceeds(self, size: tuple[int, int]) -> bool:
        """Return whether it is larger than images of a size."""
        return self.target[0] > size[0] or self.target[1] > size[1]

    def works_on_floats(self, normalised: bool) -> bool:
        return not self.pads or self.adds_zeros

    def may_pad(self, size: Fixed) -> bool:
        return self.pads and (size is None or self.exceeds(size))

    @property
    def size_reason(self) -> str:
        return f"less than {self.title}"

    def too_small(self, size: tuple[int, int]) -> str:
        too_large = not self.pads and self.exceeds(size)
        return "it is larger than the images, and may not pad them" if too_large else ""

    def cut(self, reading: Reading) -> Reading | None:
        if reading.fixed is not None and self.too_small(reading.fixed):
            return None
        padded = _padded(self, reading)
        return padded and padded.resized(self, self.target, cropped=True)


def _padded(step: Any, reading: Reading) -> Reading | None:
    """Return the reading where a step may pad; None if the geometry cannot."""
    if not step.may_pad(reading.fixed):
        return reading
    return reading.padded(step.fills, step.padding_mode)


def _margins(padding: Any) -> dict[str, Values]:
    return dict(zip(("left", "top", "right", "bottom"), padding, strict=True))


@dataclass(frozen=True)
class CenterCrop(Filling, _Cropping):
    """Crop the middle; smaller images are padded, with zeros as torchvision does it.

    Attributes:
        size: An int for a square, or (height, width).
        fill: Value of the padding: 0 to 255, or one a channel.
        padding_mode: As in :class:`Pad`.
        mask_fill: Value of the padding of masks, 0 to 65535; None: as ``fill``.
    """

    size: Size
    fill: Fill = field(default=0, kw_only=True)
    padding_mode: PaddingMode = field(default="constant", kw_only=True)

    floored: ClassVar[bool] = False

    def emit(self, tree: Builder) -> None:
        padding = tree.padding_of(self)
        tree.add("centre_crop", **self.sides, floored=self.floored, **padding)


@dataclass(frozen=True)
class FlooredCenterCrop(CenterCrop):
    """A CenterCrop that lies half a pixel up or left where torchvision's is rounded to even."""

    floored = True


def _padding_or_none(title: str, name: str, value: Any) -> tuple[int, ...]:
    return checks.padding(title, name, 0 if value is None else value)


def _leaves_places(step: Pad | RandomCrop, reading: Reading) -> Declined | None:
    """Decline to pad by pixels of the image where boxes or points say what is in it."""
    joint = reading.joint
    if step.padding_mode == "constant" or joint is None or not joint.names("boxes", "points"):
        return None
    why = f"torchvision does not pad boxes and key points by {step.padding_mode!r}"
    return Declined(why, 'take padding_mode="constant"', raises=True)


@dataclass(frozen=True)
class RandomCrop(Filling, _Cropping):
    """Crop at a position that is drawn uniformly.

    Attributes:
        size: An int for a square, or (height, width).
        padding: Pixels around every image before it is cropped: an int; (left and right, top and
            bottom); or (left, top, right, bottom). None: none.
        pad_if_needed: Pad smaller images, on both sides by the missing pixels, so that they lie
            anywhere in the crop. Otherwise they are errors.
        fill: Value of the padding: 0 to 255, or one a channel.
        padding_mode: As in :class:`Pad`.
        mask_fill: Value of the padding of masks, 0 to 65535; None: as ``fill``.
    """

    size: Size
    padding: Annotated[int | Sequence[int] | None, _padding_or_none] = None
    pad_if_needed: checks.Switch = False
    fill: Fill = 0
    padding_mode: PaddingMode = "constant"

    @property
    def pads(self) -> bool:
        return self.pad_if_needed

    @property
    def pads_all(self) -> bool:
        """Whether it pads every image."""
        return any(self.padding)  # type: ignore[arg-type]

    def works_on_floats(self, normalised: bool) -> bool:
        return self.adds_zeros or not (self.pads or self.pads_all)

    def declines(self, reading: Reading) -> Declined | None:
        if not (self.pads or self.pads_all):
            return None
        return _leaves_places(self, reading) or super().declines(reading)

    def may_pad(self, size: Fixed) -> bool:
        return self.pads_all or super().may_pad(size)

    def too_small(self, size: tuple[int, int]) -> str:
        left, top, right, bottom = self.padding  # type: ignore[misc]
        return super().too_small((size[0] + left + right, size[1] + top + bottom))

    def emit(self, tree: Builder) -> None:
        values = {**self.sides, **_margins(self.padding), **tree.padding_of(self)}
        tree.add("random_crop", **values, pads_smaller=self.pad_if_needed)

    @classmethod
    def from_torchvision(cls, transform: Any, version: int) -> Step | Declined:
        padding, mode = transform.padding, transform.padding_mode
        if version == 2 and padding is not None:
            left, right, top, bottom = padding  # its constructor has put them in this order
            padding = (left, top, right, bottom)
            if transform.pad_if_needed and any(padding) and mode in ("reflect", "symmetric"):
                return Declined(f"padding twice by {mode!r} is not known")
        return cls(transform.size, padding, bool(transform.pad_if_needed), transform.fill, mode)


@dataclass(frozen=True)
class _Flip(ByChance):
    is_geometry = True
    any_floats = True

    p: Probability = 0.5


@dataclass(frozen=True)
class RandomHorizontalFlip(_Flip):
    """Mirror left to right, with probability p."""

    operation = "flip_horizontal"


@dataclass(frozen=True)
class RandomVerticalFlip(_Flip):
    """Mirror top to bottom, with probability p."""

    operation = "flip_vertical"


@dataclass(frozen=True)
class Pad(Filling):
    """Put pixels around the image.

    Attributes:
        padding: An int; (left and right, top and bottom); or (left, top, right, bottom).
        fill: Value of ``constant`` padding: 0 to 255, or one a channel.
        padding_mode: ``constant``; ``edge``, the pixels there; ``reflect``, the image without its
            edge; ``symmetric``, the image with it.
        mask_fill: Value of the padding of masks, 0 to 65535; None: as ``fill``.
    """

    is_geometry = True

    padding: Padding
    fill: Fill = 0
    padding_mode: PaddingMode = "constant"

    def declines(self, reading: Reading) -> Declined | None:
        return _leaves_places(self, reading) or super().declines(reading)

    def size_after(self, size: Fixed) -> Fixed:
        left, top, right, bottom = self.padding  # type: ignore[misc]
        return size and (size[0] + left + right, size[1] + top + bottom)

    def cut(self, reading: Reading) -> Reading | None:
        if not any(self.padding):  # type: ignore[arg-type]
            return reading
        padded = reading.padded(self.fills, self.padding_mode)
        return padded and padded.resized(self, self.size_after(reading.fixed))

    def emit(self, tree: Builder) -> None:
        tree.add("pad", **_margins(self.padding), **tree.padding_of(self))


@dataclass(frozen=True)
class _ToSize(Filling, _Cropping):
    """Steps that fill what an image lacks of a size, right of it and below."""

    #: The core's name for it.
    kind: ClassVar[str]

    size: Size
    fill: Fill = 0
    padding_mode: PaddingMode = "constant"

    def emit(self, tree: Builder) -> None:
        tree.add(self.kind, **self.sides, **tree.padding_of(self))


@dataclass(frozen=True)
class PadToSize(_ToSize):
    """Put pixels on the right of smaller images and below them.

    Attributes:
        size: Of the result at least: an int for a square, or (height, width).
        fill: Value of the padding: 0 to 255, or one a channel.
        padding_mode: As in :class:`Pad`.
        mask_fill: Value of the padding of masks, 0 to 65535; None: as ``fill``.
    """

    kind: ClassVar[str] = "pad_to"

    def cut(self, reading: Reading) -> Reading | None:
        padded = _padded(self, reading)
        return padded and padded.resized(self, self.size_after(reading.fixed))

    def size_after(self, size: Fixed) -> Fixed:
        return size and (max(size[0], self.target[0]), max(size[1], self.target[1]))


@dataclass(frozen=True)
class FixedSizeCrop(_ToSize):
    """Crop at a random position, and pad smaller images right and below.

    Names, arguments and arithmetic are those of torchvision's detection reference.

    Attributes:
        size: An int for a square, or (height, width).
        fill: Value of the padding: 0 to 255, or one a channel.
        padding_mode: As in :class:`Pad`.
        mask_fill: Value of the padding of masks, 0 to 65535; None: as ``fill``.
    """

    kind: ClassVar[str] = "fixed_size_crop"

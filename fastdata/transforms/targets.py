"""Transforms of boxes beside an image, with torchvision's arithmetic (0.28).

They need a joint transform: ``ImageDataset(transforms=…)``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from fastdata.errors import UsageError
from fastdata.storage.fields import BOXES, RELATIVE
from fastdata.transforms import checks
from fastdata.transforms.base import ByChance, Filling, Transform
from fastdata.transforms.checks import Fill, Range
from fastdata.transforms.joint import CONVERTED, by_heuristic
from fastdata.transforms.outcomes import Declined
from fastdata.transforms.reading import Fixed, Reading, Step
from fastdata.transforms.tree import Builder

_ALONE = Declined("it is for boxes, and images have none here", "give transforms= with targets")


def _without_boxes(reading: Reading) -> Declined | None:
    if reading.joint is None or reading.joint.still:
        return _ALONE
    count = len(reading.joint.names("boxes"))
    return None if count == 1 else Declined(f"it needs one field of boxes, and there are {count}")


class _OfBoxes(Transform):
    """Transforms that leave the image alone."""

    any_floats = True
    of_targets = True
    is_geometry = True

    def declines(self, reading: Reading) -> Declined | None:
        return _without_boxes(reading)


@dataclass(frozen=True)
class ClampBoundingBoxes(_OfBoxes):
    """Clamp boxes to the image.

    Attributes:
        clamping_mode: ``auto``, ``soft`` or ``hard``: they differ for rotated boxes alone.
    """

    clamping_mode: Annotated[str, partial(checks.choice, known=("auto", "soft", "hard"))] = "auto"

    def emit(self, tree: Builder) -> None:
        tree.add("clamp_boxes")


_LEFT = "its labels_getter takes labels that another SanitizeBoundingBoxes before it leaves whole"


def _at_least_one(title: str, name: str, value: Any) -> float:
    return checks.number(title, name, value, 1, 1 << 24)


@dataclass(frozen=True)
class SanitizeBoundingBoxes(_OfBoxes):
    """Leave out boxes that are too small, or that reach outside the image; and their labels.

    Attributes:
        min_size: Least width and height, in pixels, from 1.
        min_area: Least area, in pixels, from 1.
        labels_getter: A function of a sample that returns what belongs to its boxes, entry by
            entry: one field, or several in a tuple. ``default``: the target's "labels", or the
            first with "label" in its name. None: nothing.
    """

    min_size: Annotated[float, _at_least_one] = 1.0
    min_area: Annotated[float, _at_least_one] = 1.0
    labels_getter: Callable[[Any], Any] | str | None = "default"

    def read(self, reading: Reading) -> Reading | Declined:
        getter, joint = self.labels_getter, reading.joint
        names: list[str] | str = []
        if getter is not None and joint is not None:
            names = joint.chosen(by_heuristic if isinstance(getter, str) else getter)
        if isinstance(names, str):
            return Declined(f"labels_getter: {names}", "give labels_getter=None for boxes alone")
        # Its function has done its part: programs with the same draws are equal.
        after = reading.add_step(replace(self, labels_getter=None))
        if isinstance(after, Declined) or joint is None:
            return after
        outlines, before = joint.names("outlines"), joint.sanitised
        values = [name for name in names if name in joint.names("values")]
        if len(values) < len(names):
            return Declined("its labels_getter takes what is no list of values")
        if any(joint.targets[name].sanitised < before for name in values):
            return Declined(_LEFT, "name the same labels in both")
        joint = joint.changed([*values, *outlines], sanitised=before + 1)
        return replace(after, joint=replace(joint, sanitised=before + 1))

    def emit(self, tree: Builder) -> None:
        tree.add("sanitize_boxes", min_size=self.min_size, min_area=self.min_area)


def _format(title: str, name: str, value: Any) -> str:
    box_format = str(getattr(value, "value", value)).lower()
    if box_format not in BOXES:
        raise UsageError(
            f"{title}: {name} {value!r} is not one of {', '.join(BOXES)}.",
            "Rotated boxes are not supported.",
        )
    return box_format


@dataclass(frozen=True)
class ConvertBoundingBoxFormat(_OfBoxes):
    """Deliver boxes in a format.

    Attributes:
        format: ``xyxy``, ``xywh`` or ``cxcywh``, or torchvision's ``BoundingBoxFormat``.
        relative: Whether they are shares of the image's sides, 0 to 1, in plain tensors.
    """

    format: Annotated[Any, _format]
    relative: checks.Switch = field(default=False, kw_only=True)

    def read(self, reading: Reading) -> Reading | Declined:
        joint = reading.joint
        if joint is None or joint.still:
            return _ALONE
        if joint.settled:
            return Declined(CONVERTED)
        meaning = RELATIVE * self.relative + str(self.format)
        joint = joint.changed(joint.names("boxes"), format=meaning, pure=self.relative)
        return replace(reading, joint=joint)


@dataclass(frozen=True)
class Delivery(Step):
    """Dtypes and classes of targets: a part of torchvision's ToDtype, or ToPureTensor.

    Attributes:
        dtypes: By kind of target.
        pure: Whether targets become plain tensors.
    """

    dtypes: tuple[tuple[str, str], ...] = ()
    pure: bool = False

    def read(self, reading: Reading) -> Reading | Declined:
        joint = reading.joint
        if joint is None or joint.pure:
            return reading
        for kind, dtype in self.dtypes:
            names = joint.names(kind)
            if any(joint.targets[name].dtype not in ("", dtype) for name in names):
                return Declined("targets have been converted to another dtype before it")
            joint = joint.changed(names, dtype=dtype)
        return replace(reading, joint=replace(joint, pure=self.pure))


def dtypes_of(by_class: Mapping[Any, Any]) -> tuple[tuple[str, str], ...]:
    """Return the dtypes that a ToDtype with a dict gives targets, by their kind."""
    classes = sys.modules["torchvision.tv_tensors"]
    kinds = {
        "boxes": classes.BoundingBoxes,
        "points": classes.KeyPoints,
        "mask": classes.Mask,
        "outlines": classes.Mask,
    }
    by_kind = {kind: by_class.get(one, by_class.get("others")) for kind, one in kinds.items()}
    return tuple(
        (kind, str(dtype).removeprefix("torch.")) for kind, dtype in by_kind.items() if dtype
    )


def _options(title: str, name: str, value: Any) -> tuple[float, ...]:
    values = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if value is None else value
    return checks.numbers(title, name, values, len(values))


@dataclass(frozen=True)
class RandomIoUCrop(Transform):
    """Crop a part that some box overlaps enough (Liu et al., 2015: SSD).

    A box whose middle is outside becomes zeros, so :class:`SanitizeBoundingBoxes` has to follow.

    Attributes:
        min_scale: Least part of the width and of the height, above 0.
        max_scale: Greatest such part, at most 1.
        min_aspect_ratio: Least width / height of the crop.
        max_aspect_ratio: Greatest such ratio.
        sampler_options: Least overlaps (intersection over union) that one is drawn of; 1 or more
            leaves the image whole. None: 0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.
        trials: Attempts before another overlap is drawn.
        p: Probability.
    """

    any_floats = True
    is_geometry = True
    needs_boxes = True

    min_scale: Annotated[float, checks.number_from(1e-6, 1.0)] = 0.3
    max_scale: Annotated[float, checks.number_from(1e-6, 1.0)] = 1.0
    min_aspect_ratio: Annotated[float, checks.number_from(1e-6, 1e6)] = 0.5
    max_aspect_ratio: Annotated[float, checks.number_from(1e-6, 1e6)] = 2.0
    sampler_options: Annotated[Sequence[float] | None, _options] = None
    trials: checks.Whole = 40
    p: checks.Probability = field(default=1.0, kw_only=True)

    @property
    def size_reason(self) -> str:
        return "in which RandomIoUCrop finds no crop that a box overlaps enough"

    def cut(self, reading: Reading) -> Reading | None:
        return reading.resized(self, None, cropped=True)

    def declines(self, reading: Reading) -> Declined | None:
        return _without_boxes(reading)

    def size_after(self, size: Fixed) -> Fixed:
        return None

    def emit(self, tree: Builder) -> None:
        options: Any = self.sampler_options
        with tree.maybe(self.p):
            tree.add(
                "iou_crop",
                least_part=self.min_scale,
                most_part=self.max_scale,
                least_ratio=self.min_aspect_ratio,
                most_ratio=self.max_aspect_ratio,
                trials=self.trials,
                options=options,
            )

    @classmethod
    def from_torchvision(cls, transform: Any, version: int) -> Step | Declined:
        ratios = transform.min_aspect_ratio, transform.max_aspect_ratio
        scales = transform.min_scale, transform.max_scale
        return cls(*scales, *ratios, tuple(transform.options), transform.trials)


@dataclass(frozen=True)
class RandomZoomOut(Filling, ByChance):
    """Put the image onto a larger canvas, at a random place.

    Attributes:
        fill: Value of the canvas: 0 to 255, or one a channel.
        side_range: Its sides are those of the image by a factor that is uniform in (from, to), from
            1.
        p: Probability.
    """

    is_geometry = True

    fill: Fill = 0
    side_range: Annotated[Range, checks.range_from(1.0, checks.MOST_FACTOR)] = (1.0, 4.0)
    p: checks.Probability = 0.5

    def size_after(self, size: Fixed) -> Fixed:
        return None

    def cut(self, reading: Reading) -> Reading | None:
        padded = reading.padded(self.fills, "constant")
        return padded and padded.resized(self, None)

    def emit_always(self, tree: Builder) -> None:
        least, most = self.side_range
        tree.add("zoom_out", least=least, most=most, mode=0, **tree.fill_of(self))

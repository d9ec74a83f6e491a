"""The interface of a step, and `Reading`, which folds steps into programs for the core.

A step returns the reading after it, so neither needs the other's classes: steps are in `crops`,
`colours` and other files, and transforms of other libraries come in through `Libraries`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np

from fastdata.transforms.checks import checked, defaults_of
from fastdata.transforms.forms import Form
from fastdata.transforms.identity import is_ours, name_of, offered
from fastdata.transforms.joint import CONVERTED, Joint, Target
from fastdata.transforms.outcomes import (
    HAS_TENSOR,
    IN_OUR_COMPOSE,
    NOT_KNOWN,
    Conversion,
    Declined,
    Libraries,
    Output,
    Values,
    as_tuple,
    tensor_image,
)
from fastdata.transforms.tree import Builder, tree_of

#: (width, height) of all images; None: it depends on the image, or on draws.
Fixed: TypeAlias = "tuple[int, int] | None"

#: Colour outside an image, R, G, B, 0 to 255; and value outside a mask.
Fills: TypeAlias = tuple[tuple[int, int, int], int]

#: Mark of a nested Compose's end, where it returns a tensor.
RETURNED = object()

#: A transform of a pipeline, or `RETURNED`; and whether the innermost Compose is fastdata's or a
#: list, rather than torchvision's.
Item: TypeAlias = tuple[Any, bool]

_SOME_SIZE = (12345, 6789)  # no step makes it


class Step:
    """One step of a pipeline, in the core's terms.

    A subclass is a frozen dataclass. It has to have `emit`, its nodes in the program.
    It overrides `size_after` and `channels_after` if it changes these; `declines` and `too_small`
    if it may be impossible; `cut` and ``is_geometry`` if the core can do it while decoding; `read`
    if it adds no node. Its positional fields have the names of torchvision's attributes, from which
    `from_torchvision` makes it.
    """

    #: torchvision computes otherwise on tensors of bytes than on PIL images.
    otherwise_on_tensors: ClassVar[bool] = False
    #: Allowed after ToTensor; applied to the bytes before it.
    floats_as_bytes: ClassVar[bool] = False
    #: Versions of torchvision whose transform refuses PIL images.
    tensors_only: ClassVar[tuple[int, ...]] = ()
    #: torchvision computes the same on floats, or the reading checks that.
    any_floats: ClassVar[bool] = False
    #: Written over the output, after a conversion to floats.
    erases: ClassVar[bool] = False
    #: Resizes the image while the core decodes it.
    resizes: ClassVar[bool] = False
    #: The core may draw it while it decodes.
    is_geometry: ClassVar[bool] = False
    #: As geometry, it depends on the image's boxes.
    needs_boxes: ClassVar[bool] = False
    #: Its name in words, if not that of its class.
    label: ClassVar[str] = ""
    #: Changes targets alone, and leaves the image as it is.
    of_targets: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._keep(**checked(self))

    def _keep(self, **values: Any) -> None:
        """Set fields of a frozen dataclass."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def words(self) -> str:
        """Its name, and its arguments but for defaults."""
        kind: Any = type(self)
        defaults, shown = defaults_of(kind), []
        for field in fields(kind):
            value = getattr(self, field.name)
            if field.name not in defaults:
                shown.append(_words_of(value))
            elif field.compare and value != defaults[field.name]:
                shown.append(f"{field.name}={_words_of(value)}")
        name = self.label or type(self).__name__
        return f"{name}({', '.join(shown)})" if shown else name

    @property
    def title(self) -> str:
        """Its name in a message."""
        return type(self).__name__

    def emit(self, tree: Builder) -> None:
        """Build its nodes in a pixel program."""
        raise NotImplementedError

    def read(self, reading: Reading) -> Reading | Declined:
        """Return the reading after it, or the reason why it cannot be done there."""
        return reading.add_step(self)

    @property
    def in_program(self) -> bool:
        """Whether a pixel program can have it."""
        return type(self).emit is not Step.emit

    @property
    def is_random(self) -> bool:
        """Whether it draws."""
        return _tree_of_one(self).is_random

    def size_after(self, size: Fixed) -> Fixed:
        """Return the size of every image after it; ``size`` is the size before it."""
        return size

    def channels_after(self, channels: int) -> int | None:
        """Return the channels of every image after it; None: they depend on draws."""
        return channels

    @property
    def colours(self) -> bool:
        """Whether it fills with a colour, which an image of one channel does not have."""
        fill = getattr(self, "fill", None)
        return isinstance(fill, tuple) and len(set(fill)) > 1

    @property
    def moves_pixels(self) -> bool:
        """Whether pixels change places, so that boxes and masks have to follow them."""
        if self.is_geometry or not self.in_program:
            return self.is_geometry and not self.of_targets
        return _tree_of_one(self).moves_pixels

    def works_on_floats(self, normalised: bool) -> bool:
        """Return whether it may precede the conversion to floats, within a level or so.

        A step that moves values and adds only zeros may.
        """
        return self.any_floats and self.is_geometry

    def may_pad(self, size: Fixed) -> bool:
        """Return whether it would pad images of a size, or of unknown sizes."""
        return False

    def declines(self, reading: Reading) -> Declined | None:
        """Return why it cannot be done to the sample of a reading; None if it can."""
        return None

    def too_small(self, size: tuple[int, int]) -> str:
        """Say why images of a size are too small for it; "" if they are not."""
        return ""

    # --- geometry ----------------------------------------------------------------------------

    @property
    def size_reason(self) -> str:
        """The end of a message about an image of an unsuitable size: a clause."""
        return f"which {self.title} cannot resize"

    def cut(self, reading: Reading) -> Reading | None:
        """Return the reading with it in the geometry; None if it has to run on pixels."""
        return reading.with_geometry(self)

    # --- other libraries ---------------------------------------------------------------------

    @classmethod
    def from_torchvision(cls, transform: Any, version: int) -> Step | Declined:
        """Return torchvision's transform of the same name, v1 or v2, in terms of this class."""
        fields = getattr(cls, "__dataclass_fields__", {})
        arguments = {
            name: getattr(transform, name) for name, field in fields.items() if not field.kw_only
        }
        if "version" in fields:
            arguments["version"] = version
        return cls(**arguments)


def _words_of(value: Any) -> str:
    if isinstance(value, Step):
        return value.words
    if isinstance(value, (list, tuple)) and any(isinstance(one, Step) for one in value):
        return f"[{', '.join(map(_words_of, value))}]"
    return f"{value!r}"


@lru_cache(maxsize=256)
def _tree_of_one(step: Step) -> Builder:
    return tree_of((step,))


class Holder(Step):
    """Base of steps that hold other steps, of which they do some."""

    any_floats = True
    transforms: tuple[Any, ...]

    def size_after(self, size: Fixed) -> Fixed:
        kept = all(step.size_after(size) == size for step in self.transforms)
        return size if kept else None

    def channels_after(self, channels: int) -> int | None:
        counts = {step.channels_after(channels) for step in self.transforms}
        return counts.pop() if len(counts) == 1 else None

    @property
    def colours(self) -> bool:
        return any(step.colours for step in self.transforms)

    def works_on_floats(self, normalised: bool) -> bool:
        return all(step.works_on_floats(normalised) for step in self.transforms)

    def may_pad(self, size: Fixed) -> bool:
        return any(step.may_pad(size) for step in self.transforms)


@dataclass(frozen=True)
class Chain(Holder):
    """Steps, one after the other; before they are read, transforms of any library."""

    transforms: tuple[Any, ...]

    def emit(self, tree: Builder) -> None:
        with tree.node("sequence"):
            for step in self.transforms:
                step.emit(tree)

    def size_after(self, size: Fixed) -> Fixed:
        for step in self.transforms:
            size = step.size_after(size)
        return size

    def channels_after(self, channels: int) -> int | None:
        count: int | None = channels
        for step in self.transforms:
            count = count and step.channels_after(count)
        return count

    def may_pad(self, size: Fixed) -> bool:
        for step in self.transforms:
            if step.may_pad(size):
                return True
            size = step.size_after(size)
        return False


@dataclass(frozen=True)
class Several(Step):
    """Views of each image in any form, each a pipeline; see `Views`."""

    transforms: tuple[Any, ...]
    form: Form


@dataclass(frozen=True)
class Reading:
    """Steps, output and tail of a sequence of transforms; never changes: steps return the next.

    Attributes:
        libraries: Transforms of other libraries.
        joint: The sample's form and targets; None: the image alone.
        kind: The image at this point: ``pil``, a ``tensor``, torchvision's tensor ``image``, an
            ``array``; or ``own``: the result of a fastdata step, which serves as any.
        fixed: (width, height) of every image, None: they may differ.
        steps: The geometry, done while decoding.
        pixels: The steps of the pixel program, after it.
        erasures: The rectangles written over the output.
        shared: The steps before Views, which all views have.
        tail: The transforms from the first on that the core does not do.
        why: Why it does not do that one.
        last: The step that determined the size last, for messages.
        filter: Of the resize in the geometry.
        cropped: Whether it crops after the resize, or before it.
        fills: Of images and masks, once the geometry pads.
        reveals: Whether a resize now would show pixels that crops have cut off.
        returned: Whether a fastdata step in torchvision's Compose has returned a tensor.
        offered: Whether the last step was offered in the place of one of PIL images.
    """

    libraries: Libraries
    joint: Joint | None = None
    kind: str = "pil"
    fixed: Fixed = None
    steps: tuple[Step, ...] = ()
    pixels: tuple[Step, ...] = ()
    erasures: tuple[Any, ...] = ()
    shared: tuple[Step, ...] = ()
    tail: tuple[Any, ...] = ()
    why: Declined | None = None
    last: str = ""
    channels: int = 3
    filter: str | None = None
    cropped: bool = False
    fills: Fills | None = None
    reveals: bool = False
    dtype: str = "uint8"
    mean: Values | None = None
    std: Values | None = None
    channels_last: bool = True
    returned: bool = False
    offered: bool = False

    @property
    def misplaced(self) -> Step | None:
        """The tail's first fastdata step: called there, it would fail."""
        return next((call for call in self.tail if isinstance(call, Step)), None)

    @property
    def fails(self) -> bool:
        """Whether the first transform of the tail raises on every path."""
        return self.why is not None and self.why.raises

    @property
    def masks(self) -> list[Target]:
        """The masks that follow the image."""
        targets = self.joint.targets.values() if self.joint is not None else ()
        return [one for one in targets if one.kind in ("mask", "outlines")]

    @property
    def has_tensor(self) -> bool:
        """Whether another library's transform would get a tensor, or an array."""
        return self.kind not in ("pil", "own")

    def output(self) -> Output:
        """Return the format before the tail."""
        as_pil = self.kind == "pil"
        if self.tail and self.offered:
            as_pil = self.kind == "own" and self.dtype == "uint8" and not self.erasures
        return Output(self.dtype, self.mean, self.std, self.channels_last, as_pil, self.channels)

    def tail_calls(self) -> tuple[Callable[[Any], Any], ...]:
        """Return the functions to call after the core."""
        # torchvision's transforms may tell its image tensors from others.
        first = {"image": tensor_image(), "array": np.asarray}.get(self.kind)
        return (first, *self.tail) if self.tail and first is not None else self.tail

    # --- one transform after the other ---------------------------------------------------------

    def after(self, items: Sequence[Item]) -> Reading:
        """Return the reading after some items; its tail begins with the first that is declined."""
        reading = self
        for at, (transform, in_fastdata) in enumerate(items):
            outcome = reading._add(transform, in_fastdata)
            if isinstance(outcome, Declined):
                if outcome is HAS_TENSOR and reading.returned:
                    outcome = IN_OUR_COMPOSE
                return replace(reading, tail=calls_of(items[at:]), why=outcome)
            reading = outcome
        return reading

    def _add(self, transform: Any, in_fastdata: bool) -> Reading | Declined:
        """Return the reading after one transform, or why the core cannot do it."""
        if isinstance(transform, Offered):
            return self._add_offered(transform)
        if transform is RETURNED:
            return self if self.has_tensor else self._returning(in_fastdata)
        if views_of(transform, self.libraries) is not None:
            if self.joint is not None:
                return Declined("it makes several views, and a target follows one", "take one crop")
            return Declined("it is inside another transform: name all views in one Views")
        if is_ours(transform):
            if self.has_tensor and not transform.of_targets:
                return HAS_TENSOR
            after: Reading | Declined = transform.read(self)
            if isinstance(after, Declined) or transform.of_targets:
                return after
            return replace(after._returning(in_fastdata), offered=False)
        translation = self.libraries.translate(transform, self.kind, self.dtype)
        reading: Reading | Declined = self
        for one in as_tuple(translation):
            if isinstance(reading, Declined):
                break
            reading = one if isinstance(one, Declined) else reading._take(one)
        return reading

    def _returning(self, in_fastdata: bool) -> Reading:
        """Return a tensor, as fastdata's steps do where other libraries call them."""
        kind = "own" if in_fastdata else "tensor"
        return replace(self, kind=kind, returned=self.returned or not in_fastdata)

    def _add_offered(self, transform: Offered) -> Reading | Declined:
        """Return the reading after all that replaces a script's transform."""
        reading = self
        for one, in_fastdata in transform.items:
            after = reading._add(one, in_fastdata)
            if isinstance(after, Declined):
                part = one.original if isinstance(one, Offered) else one
                reason = after if after.known else replace(after, culprit=part)
                name = title_of(part)
                return reason.within(f"its __fastdata__ returned {name}")
            reading = after
        return replace(reading, offered=self.kind == "pil" or self.offered)

    def _take(self, part: Step | Conversion) -> Reading | Declined:
        """Return the reading after a step or a conversion that was translated."""
        if isinstance(part, Step):
            return part.read(self)
        if part.kind == "array" and self.channels == 1:
            return Declined("it makes arrays of three channels, and the image has one")
        reading = self if part.dtype is None else self.converted(part.dtype)
        if part.kind is None:
            return reading
        return replace(reading, kind=part.kind, channels_last=False)

    def converted(self, dtype: str) -> Reading:
        """Return the reading after a conversion to floats of 0 to 1."""
        reading = self._scaled((0.0,) * 3, (255.0,) * 3) if self.dtype == "uint8" else self
        return replace(reading, dtype=dtype)

    def _scaled(self, mean: Values, std: Values) -> Reading:
        return replace(self, erasures=tuple(one.scaled(mean, std) for one in self.erasures))

    def normalised(self, mean: Values, std: Values, dtype: str) -> Reading | Declined:
        """Return the reading after a normalisation of the output."""
        if self.mean is not None:
            return Declined("the values are already normalised")
        if max(len(mean), len(std)) > self.channels:
            return Declined("it has three values, and the image has one channel")
        mean, std = mean * (3 // len(mean)), std * (3 // len(std))
        reading = self.converted(dtype) if self.dtype == "uint8" else self
        count = self.channels
        return replace(reading._scaled(mean, std), mean=mean[:count], std=std[:count])

    def add_step(self, step: Step) -> Reading | Declined:
        """Return the reading with a step in the geometry, or else in the pixel program."""
        if self.erasures:
            return Declined("it comes after RandomErasing")
        if self.joint is not None and (self.joint.still or self.joint.settled):
            plain_targets = "targets are plain tensors here, which it leaves as they are"
            return Declined(plain_targets if self.joint.still else CONVERTED)
        if (reason := step.declines(self)) is not None:
            return reason
        if not self.pixels and step.is_geometry and (cut := step.cut(self)) is not None:
            return cut
        resolved = self._resolved(step)
        if isinstance(resolved, Declined):
            return resolved
        return self if _tree_of_one(resolved).is_empty else self._augmented(resolved, step.title)

    def _augmented(self, step: Step, title: str) -> Reading | Declined:
        """Return the reading with a step in the pixel program."""
        channels = step.channels_after(self.channels)
        if channels is None:
            return Declined("it makes some of the images grey, of one channel, and not all")
        if self.channels == 1 and step.colours:
            return Declined("it has a colour, and the image one channel")
        if self.dtype != "uint8":
            if not step.works_on_floats(self.mean is not None):
                return Declined("it works on bytes, and has floats here")
            if self.mean is not None and step.may_pad(self.fixed):
                return Declined("it would pad with zeros what is normalised")
        if self.fixed and (reason := step.too_small(self.fixed)):
            return Declined(reason)
        pixels, size = (*self.pixels, step), step.size_after(self.fixed)
        last = self.last if step.size_after(_SOME_SIZE) == _SOME_SIZE else title
        return replace(self, pixels=pixels, fixed=size, channels=channels, last=last)

    def padded(self, fills: Fills, mode: str) -> Reading | None:
        """Return the reading where the geometry pads here; None if it cannot.

        It has one fill. Before a resize, it knows where the image ends, or where a crop has ended;
        after it, only where the resized image ends.
        """
        zeros = not any(fills[0])
        if mode != "constant" or self.mean is not None or not (zeros or self.dtype == "uint8"):
            return None
        again = self.filter is not None or self.fills is not None
        if self.fills not in (None, fills) or (self.cropped and again):
            return None
        return replace(self, fills=fills, reveals=self.cropped)

    def with_geometry(self, step: Step) -> Reading:
        """Return the reading with a step in the geometry that keeps the size."""
        return replace(self, steps=(*self.steps, step))

    def resized(self, step: Step, size: Fixed, **changes: Any) -> Reading:
        """Return the reading with a step in the geometry that makes images of a size."""
        return replace(self.with_geometry(step), fixed=size, last=step.title, **changes)

    # --- parts of a container ------------------------------------------------------------------

    def _resolved(self, step: Step) -> Step | Declined:
        """Return a step of a pixel program, with all steps inside it translated."""
        if (reason := step.declines(self)) is not None:
            return reason
        if not step.in_program:
            return Declined("it belongs to the output, and is inside another transform")
        if not isinstance(step, Holder):
            return step
        steps = []
        for part in step.transforms:
            inner = self._part(part)
            if isinstance(inner, Declined):
                return inner.within(f"it holds {title_of(part)}")
            steps.append(inner)
        return replace(step, transforms=tuple(steps))  # type: ignore[type-var]

    def _part(self, part: Any) -> Step | Declined:
        """Return the step that does what a part of a container does."""
        if (instead := offered(part)) is not None:
            return self._part(instead)
        if (parts := self.libraries.parts(part)) is not None:
            return self._resolved(Chain(tuple(parts)))
        if isinstance(part, Step) and (self.has_tensor or not is_ours(part)):
            return HAS_TENSOR if self.has_tensor else NOT_KNOWN
        translation: Any = part
        if not isinstance(part, Step):
            translation = self.libraries.translate(part, self.kind, self.dtype)
        if isinstance(translation, Declined):
            return translation if translation.known else replace(translation, culprit=part)
        steps: list[Step] = []
        for one in as_tuple(translation):
            if isinstance(one, Conversion):
                if one.kind not in (None, self.kind) or one.dtype not in (None, self.dtype):
                    return Declined("it converts some of the images only")
                continue
            if one.of_targets:
                return Declined("it is for targets, and is inside another transform")
            step = self._resolved(one)
            if isinstance(step, Declined):
                return step
            steps.append(step)
        return steps[0] if len(steps) == 1 else Chain(tuple(steps))


# --- items of a pipeline -----------------------------------------------------------------------


@dataclass(frozen=True)
class Offered:
    """An object of a script, and the items of the transform that its ``__fastdata__`` returns.

    Workers call the object where the core cannot do all of the items.
    """

    original: Any
    items: tuple[Item, ...]


def flat(transform: Any, in_fastdata: bool, libraries: Libraries) -> Iterator[Item]:
    """Yield the items of a pipeline; ``in_fastdata``: it is in a Compose of fastdata."""
    if (instead := offered(transform)) is not None:
        pipelines = instead.transforms if isinstance(instead, Chain) else (instead,)
        items = tuple(item for one in pipelines for item in flat(one, True, libraries))
        steps = [one for one, _ in plain(items)]
        if any(map(is_ours, steps)) and not any(views_of(one, libraries) for one in steps):
            yield Offered(transform, items), in_fastdata
        else:
            yield from items
        return
    composed = isinstance(transform, Chain) and is_ours(transform)
    parts = transform.transforms if composed else libraries.parts(transform)
    if parts is None:
        yield transform, in_fastdata
        return
    for part in parts:
        yield from flat(part, composed or parts is transform, libraries)
    if composed:
        yield RETURNED, in_fastdata


def plain(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items of `flat`, with each `Offered` replaced by its items."""
    for one, in_fastdata in items:
        yield from plain(one.items) if isinstance(one, Offered) else ((one, in_fastdata),)


def title_of(transform: Any) -> str:
    """Return a transform's name for a message."""
    return transform.title if isinstance(transform, Step) else name_of(transform)


def calls_of(items: Sequence[Item]) -> tuple[Any, ...]:
    """Return the transforms to call where the core does none of the items."""
    calls = (one for one, _ in items if one is not RETURNED)
    return tuple(one.original if isinstance(one, Offered) else one for one in calls)


def views_of(transform: Any, libraries: Libraries) -> Several | None:
    """Return the step that makes several views; None for anything else."""
    step = transform if isinstance(transform, Step) else libraries.views(transform)
    return step if isinstance(step, Several) and is_ours(step) else None

"""The interface of a step, and `Reading`, which collects steps into programs for the core.

A step tells the reading what it does; the reading keeps what the pipeline would have in hand. So
neither knows the other's classes: steps are in `crops`, `colours` and others, and transforms of
other libraries come in through `Libraries`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import getattr_static, isroutine
from itertools import starmap
from types import MethodType
from typing import Any, ClassVar, TypeAlias

import numpy as np

from fastdata.errors import UsageError
from fastdata.text import class_name
from fastdata.transforms.checks import checked
from fastdata.transforms.forms import Form
from fastdata.transforms.identity import override
from fastdata.transforms.joint import CONVERTED, Joint
from fastdata.transforms.outcomes import (
    HAS_TENSOR,
    IN_OUR_COMPOSE,
    NOT_KNOWN,
    Conversion,
    Declined,
    Found,
    Output,
    Values,
)
from fastdata.transforms.tree import Builder, Bytes, tree_of

#: (width, height) of all images; None: it depends on the image, or on draws.
Fixed: TypeAlias = "tuple[int, int] | None"

#: What lies outside an image, R, G, B, 0 to 255; and outside a mask.
Fills: TypeAlias = tuple[tuple[int, int, int], int]

#: Mark of a nested Compose's end, where it returns a tensor.
RETURNED = object()

_SOME_SIZE = (12345, 6789)  # no step makes it
#: Methods that decide what an object of a script, or of a class of torchvision's, does.
_CALLED = frozenset(
    ("__call__", "_get_params", "_transform", "forward", "get_params", "make_params")
)


class Step:
    """One step of a pipeline, in the core's terms.

    A subclass owns its fields and checks, the size it leaves, its nodes in the program, and its
    words in ``explain()``. Its positional fields have the names of torchvision's attributes, from
    which `from_torchvision` makes it.
    """

    #: torchvision computes otherwise on tensors of bytes than on PIL images.
    otherwise_on_tensors: ClassVar[bool] = False
    #: May stand behind a conversion to floats, and is then done to bytes before it.
    floats_as_bytes: ClassVar[bool] = False
    #: Versions of torchvision whose transform refuses PIL images.
    tensors_only: ClassVar[tuple[int, ...]] = ()
    #: torchvision does the same to floats, or the reading finds out.
    any_floats: ClassVar[bool] = False
    #: Written over the output, behind a conversion to floats.
    erases: ClassVar[bool] = False
    #: Resizes the image while the core decodes it.
    resizes: ClassVar[bool] = False
    #: May stand beside a geometry: the core draws it while it decodes.
    is_geometry: ClassVar[bool] = False
    #: As geometry, it depends on the image's boxes.
    needs_boxes: ClassVar[bool] = False
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
        """Its effect, in a few words."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """Its name in a message."""
        return type(self).__name__

    def emit(self, tree: Builder) -> None:
        """Build its nodes in a pixel program."""
        raise NotImplementedError

    def read(self, reading: Reading) -> Declined | None:
        """Add it to a reading, or say why that is not possible."""
        return reading.add_step(self)

    @property
    def parts(self) -> tuple[Any, ...]:
        """The transforms that it holds."""
        return ()

    def holding(self, transforms: tuple[Step, ...]) -> Step:
        """Return the same transform, holding these steps."""
        return self

    @property
    def in_program(self) -> bool:
        """Whether a pixel program can have it."""
        return type(self).emit is not Step.emit

    @property
    def is_random(self) -> bool:
        """Whether it draws."""
        return _tree_of_one(self).is_random

    def size_after(self, size: Fixed) -> Fixed:
        """Return the size of every image after it, given that of every image before."""
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
        """Whether pixels come to other places, where boxes and masks have to follow them."""
        if self.is_geometry or not self.in_program:
            return self.is_geometry and not self.of_targets
        return not tree_of((self,), Bytes("f8", 0, 3)).is_empty

    @property
    def moves(self) -> bool:
        """Whether it moves values and adds only zeros, so that floats are moved as bytes are."""
        return False

    def works_on_floats(self, normalised: bool) -> bool:
        """Return whether it may precede the conversion to floats, within a level or so."""
        return self.moves

    def may_pad(self, size: Fixed) -> bool:
        """Return whether it would pad images; of one size, if that is given."""
        return False

    def unfit(self, reading: Reading) -> Declined | None:
        """Say why it cannot be done to the sample of a reading."""
        return None

    def misfit(self, size: tuple[int, int]) -> str:
        """Say why images of a size are too small for it; "" if they are not."""
        return ""

    # --- geometry ----------------------------------------------------------------------------

    @property
    def refusal(self) -> str:
        """The end of a message about an image that it cannot be done to: a clause on its size."""
        return f"which {self.title} cannot resize"

    def cut(self, reading: Reading) -> bool:
        """Add it to a reading's geometry, if it can stand there."""
        return False

    def by_chance(self, p: float) -> Step | None:
        """Return the geometry that does it with a probability; None if there is none."""
        return None

    # --- other libraries ---------------------------------------------------------------------

    @classmethod
    def from_torchvision(cls, transform: Any, version: int) -> Step | Declined:
        """Return torchvision's transform of the same name, v1 or v2, in terms of this class."""
        names = getattr(cls, "__dataclass_fields__", {})
        given = {
            name: getattr(transform, name) for name, field in names.items() if not field.kw_only
        }
        if "version" in names:
            given["version"] = version
        return cls(**given)


@lru_cache(maxsize=256)
def _tree_of_one(step: Step) -> Builder:
    return tree_of((step,))


class Holder(Step):
    """Base of steps that hold several others, of which they do some."""

    any_floats = True
    transforms: tuple[Any, ...]

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.transforms

    def holding(self, transforms: tuple[Step, ...]) -> Step:
        return replace(self, transforms=transforms)  # type: ignore[type-var]

    def either(self, separator: str) -> str:
        """Return the words of its steps."""
        return f"({separator.join(step.words for step in self.transforms)})"

    def size_after(self, size: Fixed) -> Fixed:
        kept = all(step.size_after(size) == size for step in self.transforms)
        return size if kept else None

    def channels_after(self, channels: int) -> int | None:
        found = {step.channels_after(channels) for step in self.transforms}
        return found.pop() if len(found) == 1 else None

    @property
    def colours(self) -> bool:
        return any(step.colours for step in self.transforms)

    @property
    def moves(self) -> bool:
        return all(step.moves for step in self.transforms)

    def works_on_floats(self, normalised: bool) -> bool:
        return all(step.works_on_floats(normalised) for step in self.transforms)

    def may_pad(self, size: Fixed) -> bool:
        return any(step.may_pad(size) for step in self.transforms)


@dataclass(frozen=True)
class Chain(Holder):
    """Steps, one after the other; before they are read, transforms of any library."""

    transforms: tuple[Any, ...]

    @property
    def words(self) -> str:
        return self.either(", ") if self.transforms else "nothing"

    def emit(self, tree: Builder) -> None:
        with tree.node("sequence"):
            for step in self.transforms:
                step.emit(tree)

    def size_after(self, size: Fixed) -> Fixed:
        for step in self.transforms:
            size = step.size_after(size)
        return size

    def channels_after(self, channels: int) -> int | None:
        found: int | None = channels
        for step in self.transforms:
            found = found and step.channels_after(found)
        return found

    def may_pad(self, size: Fixed) -> bool:
        for step in self.transforms:
            if step.may_pad(size):
                return True
            size = step.size_after(size)
        return False


class Several(Step):
    """Several views of each image, one transform for each; or the steps of one."""

    #: The views are crops that torchvision makes, too: a tuple, of images without random steps.
    crops: ClassVar[bool] = False
    transforms: tuple[Any, ...]
    form: Form


class Libraries:
    """Transforms of other libraries; here there is none, as a single step needs no other."""

    def parts(self, transform: Any) -> Sequence[Any] | None:
        """Return the transforms that one calls one after the other; None: it is no such thing."""
        return None

    def views(self, transform: Any) -> Several | None:
        """Return a transform that makes several views; None for others."""
        return None

    def translate(self, transform: Any, kind: str, dtype: str) -> Found:
        """Translate a transform; its argument is of a kind, as in `Reading`, and dtype."""
        return NOT_KNOWN

    def follow(self, transform: Any, form: Form) -> tuple[list[tuple[int, list[Any]]], Form] | None:
        """Translate a transform that takes views in a form, each view by itself.

        Return for each view of the result the view it is made of, and its steps; and the result's
        form. None: that is not known.
        """
        return None

    def name_of(self, transform: Any) -> str:
        """Return a transform's name for a message."""
        return transform.title if isinstance(transform, Step) else type(transform).__name__


def is_ours(transform: Any) -> bool:
    """Return whether it is a step; a class that a script derives from one may do anything."""
    return isinstance(transform, Step) and type(transform).__module__.startswith("fastdata.")


class Reading:
    """Steps, output and tail of a sequence of transforms.

    ``kind`` is what the pipeline has in hand: ``pil``, a ``tensor``, torchvision's tensor
    ``image``, an ``array``; or ``own``: the result of a fastdata step, which serves as any. Each
    item says whether the innermost Compose is ours or a list, rather than torchvision's; None: one
    of ours instead of torchvision's. ``own``: the whole is a transform of fastdata. ``size`` is
    (width, height) of every image, None: they may differ.
    """

    def __init__(
        self,
        items: Sequence[tuple[Any, bool | None]],
        own: bool,
        size: Fixed,
        libraries: Libraries,
        joint: Joint | None = None,
    ) -> None:
        self.libraries, self.joint = libraries, joint
        self.steps: list[Step] = []
        self.pixels: list[Step] = []
        self.erasures: list[Any] = []
        self.shared: Sequence[Step] = ()  # those before Views
        self.tail: list[Any] = []
        self.why: Declined | None = None  # why the core does not do the first of the tail
        self.last = ""  # what determined the size last, for messages
        self.fixed = size
        self.channels = 3
        self.filter: str | None = None
        self.cropped = False  # since the resize, or before it
        self.fills: Fills | None = None  # of images and masks, once the geometry pads
        self.reveals = False  # a resize now would show what crops have cut off
        self.kind = "own" if own else "pil"
        self.dtype = "uint8"
        self.mean: Values | None = None
        self.std: Values | None = None
        self.channels_last = True
        self.returned = False  # a fastdata step in torchvision's Compose has returned a tensor
        self.offered = False  # the last step was offered in the place of one of PIL images
        for one, ours in items:
            if not self.tail:
                self.why = self._add(one, ours)
                if self.why is None:
                    continue
                if self.why is HAS_TENSOR and self.returned:
                    self.why = IN_OUR_COMPOSE
            if one is not RETURNED:
                self.tail.append(one.original if isinstance(one, Offered) else one)

    @property
    def misplaced(self) -> Step | None:
        """The tail's first fastdata step: called there, it would fail."""
        return next((call for call in self.tail if isinstance(call, Step)), None)

    @property
    def fails(self) -> bool:
        """Whether the first transform of the tail raises on every path."""
        return self.why is not None and self.why.raises

    @property
    def has_masks(self) -> bool:
        """Whether masks follow the image."""
        return self.joint is not None and bool(self.joint.names("mask", "outlines"))

    @property
    def converts_masks(self) -> bool:
        """Whether masks have another dtype here than in the core."""
        if self.joint is None:
            return False
        return any(self.joint.targets[name].dtype for name in self.joint.names("mask", "outlines"))

    @property
    def has_tensor(self) -> bool:
        """Whether another library's transform would get a tensor, or an array."""
        return self.kind not in ("pil", "own")

    def misplacement(self) -> str:
        """Say which fastdata step cannot stand where it does, and why; "" if all can."""
        step = self.misplaced
        if step is None or self.why is None:
            return ""
        if step is self.tail[0]:
            return f"{step.title} cannot be done here: {self.why}."
        unknown = self.libraries.name_of(self.tail[0])
        return (
            f"{step.title} comes after {unknown}, which the core cannot do: {self.why}. Put it "
            "before."
        )

    def output(self) -> Output:
        """Return the format before the tail."""
        as_pil = self.kind == "pil"
        if self.tail and self.offered:
            as_pil = self.kind == "own" and self.dtype == "uint8" and not self.erasures
        form = (self.dtype, self.mean, self.std, self.channels_last, as_pil, self.channels)
        return Output(*form)

    def tail_calls(self) -> tuple[Callable[[Any], Any], ...]:
        """Return what to call after the core."""
        if self.tail and self.kind == "image":
            # torchvision's transforms may tell its image tensors from others.
            return (tensor_image(), *self.tail)
        if self.tail and self.kind == "array":
            return (np.asarray, *self.tail)
        return tuple(self.tail)

    # --- one transform after the other ---------------------------------------------------------

    def _add(self, transform: Any, ours: bool | None) -> Declined | None:
        """Take the next transform for the core, or say why it cannot be done."""
        if isinstance(transform, Offered):
            return self._add_offered(transform)
        if transform is RETURNED:
            if not self.has_tensor:
                self._return(ours)
            return None
        if (views := views_of(transform, self.libraries)) is not None:
            if self.joint is not None:
                return Declined("it makes several views, and a target follows one", "take one crop")
            if views.crops:
                return Declined("what is random before it would differ from view to view")
            return Declined("it stands in another transform: name all views in one Views")
        if is_ours(transform):
            if self.has_tensor and ours is not None and not transform.of_targets:
                return HAS_TENSOR
            reason: Declined | None = transform.read(self)
            if reason is None and ours is not None and not transform.of_targets:
                self._return(ours)
                self.offered = False
            return reason
        found = self.libraries.translate(transform, self.kind, self.dtype)
        if isinstance(found, Declined):
            return found
        return self._add_all(map(self._take, found if isinstance(found, tuple) else (found,)))

    def _return(self, ours: bool | None) -> None:
        """Return a tensor, as fastdata's steps do where other libraries call them."""
        self.kind, self.returned = "own" if ours else "tensor", self.returned or not ours

    def _add_all(self, reasons: Iterable[Declined | None]) -> Declined | None:
        """Take several steps, each as its reason is asked for: all of them, or none."""
        before = {name: copy(value) for name, value in vars(self).items()}
        reason = next((one for one in reasons if one is not None), None)
        if reason is not None:
            vars(self).update(before)
        return reason

    def _add_offered(self, transform: Offered) -> Declined | None:
        """Take all that stands in the place of a script's transform, or nothing of it."""
        of_pil = self.kind == "pil" or self.offered

        def add(one: Any, ours: bool | None) -> Declined | None:
            reason = self._add(one, ours)
            if reason is None:
                return None
            whose = one.original if isinstance(one, Offered) else one
            name = "" if one is RETURNED else self.libraries.name_of(whose)
            if not reason.known:
                reason = replace(reason, culprit=whose)
            return reason.within(f"its __fastdata__ returned {name}")

        reason = self._add_all(starmap(add, transform.items))
        if reason is None:
            self.offered = of_pil
        return reason

    def _take(self, found: Any) -> Declined | None:
        """Take a step or a conversion that was translated."""
        if isinstance(found, Step):
            return found.read(self)
        if found.kind == "array" and self.channels == 1:
            return Declined("it makes arrays of three channels, and the image has one")
        if found.kind is not None:
            self.kind = found.kind
            self.channels_last = False
        if found.dtype is not None:
            self.become(found.dtype)
        return None

    def become(self, dtype: str) -> None:
        """Convert to floats of 0 to 1."""
        if self.dtype == "uint8":
            self._scale((0.0,) * 3, (255.0,) * 3)
        self.dtype = dtype

    def _scale(self, mean: Values, std: Values) -> None:
        self.erasures = [erasure.scaled(mean, std) for erasure in self.erasures]

    def normalise(self, mean: Values, std: Values, dtype: str) -> Declined | None:
        """Normalise the output."""
        if self.mean is not None:
            return Declined("the values are already normalised")
        if max(len(mean), len(std)) > self.channels:
            return Declined("it has three values, and the image has one channel")
        if self.dtype == "uint8":
            self.become(dtype)
        mean, std = mean * (3 // len(mean)), std * (3 // len(std))
        self._scale(mean, std)
        self.mean, self.std = mean[: self.channels], std[: self.channels]
        return None

    def add_step(self, step: Step) -> Declined | None:
        """Add a step to the geometry; or to the pixel program, if it cannot stand there."""
        if self.erasures:
            return Declined("it comes after RandomErasing")
        if self.joint is not None and self.joint.still:
            return Declined("targets are plain tensors here, which it leaves as they are")
        if self.joint is not None and self.joint.settled:
            return Declined(CONVERTED)
        if (reason := step.unfit(self)) is not None:
            return reason
        if not self.pixels and step.is_geometry and step.cut(self):
            return None
        resolved = self.resolved(step)
        if isinstance(resolved, Declined):
            return resolved
        if _tree_of_one(resolved).is_empty:
            return None
        return self._augment(step, resolved)

    def _augment(self, step: Step, resolved: Step) -> Declined | None:
        """Add a step to the pixel program."""
        channels = resolved.channels_after(self.channels)
        if channels is None:
            return Declined("it makes some of the images grey, of one channel, and not all")
        if self.channels == 1 and resolved.colours:
            return Declined("it has a colour, and the image one channel")
        if self.dtype != "uint8":
            if not resolved.works_on_floats(self.mean is not None):
                return Declined("it works on bytes, and has floats here")
            if self.mean is not None and resolved.may_pad(self.fixed):
                return Declined("it would pad with zeros what is normalised")
        if self.fixed and (reason := resolved.misfit(self.fixed)):
            return Declined(reason)
        self.pixels.append(resolved)
        self.fixed, self.channels = resolved.size_after(self.fixed), channels
        if resolved.size_after(_SOME_SIZE) != _SOME_SIZE:
            self.last = step.title
        return None

    def pad(self, fills: Fills, mode: str) -> bool:
        """Let the geometry pad here, if it can.

        It has one fill. Before a resize, it knows where the image ends, or where a crop has ended;
        after it, only where the resized image ends.
        """
        zeros = not any(fills[0])
        if mode != "constant" or self.mean is not None or not (zeros or self.dtype == "uint8"):
            return False
        again = self.filter is not None or self.fills is not None
        if self.fills not in (None, fills) or (self.cropped and again):
            return False
        self.fills, self.reveals = fills, self.cropped
        return True

    def add_geometry(self, step: Step) -> None:
        """Add a crop or a resize to the geometry."""
        self.steps.append(step)
        self.last = step.title

    # --- what a container holds ----------------------------------------------------------------

    def resolved(self, step: Step) -> Step | Declined:
        """Return a step of a pixel program, with all that it holds translated."""
        if (reason := step.unfit(self)) is not None:
            return reason
        if step.in_program:
            held = []
            for part in step.parts:
                found = self._part(part)
                if isinstance(found, Declined):
                    return found.within(f"it holds {self.libraries.name_of(part)}")
                held.append(found)
            return step.holding(tuple(held)) if held else step
        if step.is_geometry:
            return Declined("it can only come first, before augmentations")
        return Declined("it belongs to the output, and stands in another transform")

    def _part(self, part: Any) -> Step | Declined:
        if (instead := offered(part)) is not None:
            with expanding(part):
                return self._part(instead)
        inner = part if _is_list(part) else self.libraries.parts(part)
        if inner is not None:
            return self.resolved(Chain(tuple(inner)))
        if isinstance(part, Step):
            if self.has_tensor:
                return HAS_TENSOR
            return self._held(part) if is_ours(part) else NOT_KNOWN
        found = self.libraries.translate(part, self.kind, self.dtype)
        if isinstance(found, Declined):
            return found if found.known else replace(found, culprit=part)
        steps: list[Step] = []
        for one in found if isinstance(found, tuple) else (found,):
            if isinstance(one, Conversion):
                same = one.kind in (None, self.kind) and one.dtype in (None, self.dtype)
                if not same:
                    return Declined("it converts some of the images only")
                continue
            step = self._held(one)
            if isinstance(step, Declined):
                return step
            steps.append(step)
        return steps[0] if len(steps) == 1 else Chain(tuple(steps))

    def _held(self, step: Step) -> Step | Declined:
        if step.of_targets:
            return Declined("it is for targets, and stands in another transform")
        return self.resolved(step)


@dataclass(frozen=True)
class Offered:
    """An object of a script, and what its ``__fastdata__`` returns, as `flat` yields it.

    Workers call the object where the core cannot do all of the items.
    """

    original: Any
    items: tuple[tuple[Any, bool | None], ...]


def offers(transform: Any) -> bool:
    """Return whether an object of a script has ``__fastdata__``.

    One that ``__getattr__`` delegates or ``functools.wraps`` copied does not count, nor one that is
    inherited past an override of the call.
    """
    function = transform.__func__ if isinstance(transform, MethodType) else transform
    found = getattr_static(function, "__fastdata__", None)
    wrapped = getattr_static(function, "__wrapped__", None)
    if found is None or found is getattr_static(wrapped, "__fastdata__", None):
        return False
    kinds = (transform if isinstance(transform, type) else type(transform)).__mro__
    if "__fastdata__" in getattr(transform, "__dict__", {}):
        return True
    if override(transform):
        return False
    for names in map(vars, kinds):
        # A class may keep its pipeline under the name transform.
        own = _CALLED.intersection(names) or isroutine(names.get("transform"))
        if own or "__fastdata__" in names:
            return "__fastdata__" in names
    return True


def _name_of(transform: Any) -> str:
    """Return the name of a script's function, or of an object's class."""
    return getattr(transform, "__qualname__", type(transform).__qualname__)


def offered(transform: Any) -> Any:
    """Return what a transform's ``__fastdata__`` returns; None if it has none.

    Raise UsageError if that is no transform of fastdata.
    """
    if not offers(transform):
        return None
    name = _name_of(transform)
    if isinstance(transform, type):
        raise UsageError(f"{name} is a class, not a transform", f"Give an object: {name}(…).")
    if is_ours(transform.__fastdata__) or not callable(transform.__fastdata__):
        kind = type(transform.__fastdata__).__name__
        raise UsageError(
            f"{name}.__fastdata__ is a {kind}, not a function",
            "Make it a method or a function without arguments that returns a transform.",
        )
    found = transform.__fastdata__()
    if not is_ours(found):
        raise UsageError(
            f"{name}.__fastdata__() returned a {class_name(found)}",
            "Return one of fastdata.transforms, such as fastdata.transforms.Compose([…]), which "
            "may hold others.",
        )
    return found


@contextmanager
def expanding(transform: Any) -> Iterator[None]:
    """Report a transform that holds itself."""
    try:
        yield
    except RecursionError:
        name = _name_of(transform)
        raise UsageError(
            f"{name}.__fastdata__() returned a transform that holds this {name} itself",
            "Return the steps that do the same.",
        ) from None


def plain(items: Iterable[tuple[Any, bool | None]]) -> Iterator[tuple[Any, bool | None]]:
    """Yield the items of `flat`, and those that scripts' objects offer in their place."""
    for one, ours in items:
        yield from plain(one.items) if isinstance(one, Offered) else ((one, ours),)


def flat(transform: Any, ours: bool, libraries: Libraries) -> Iterator[tuple[Any, bool | None]]:
    """Yield each transform, and whether it stands in a Compose of fastdata."""
    parts: Sequence[Any] | None
    if (instead := offered(transform)) is not None:
        parts = instead.transforms if isinstance(instead, Chain) else (instead,)
        with expanding(transform):
            items = tuple(item for part in parts for item in flat(part, True, libraries))
        steps = [one for one, _ in plain(items)]
        if any(map(is_ours, steps)) and not any(views_of(one, libraries) for one in steps):
            yield Offered(transform, items), ours
        else:
            yield from items
        return
    composed = is_ours(transform) and isinstance(transform, Chain)
    several = _is_list(transform)
    parts = None
    if composed:
        parts = transform.transforms
    elif several:
        parts = transform
    elif not isinstance(transform, Step):
        parts = libraries.parts(transform)
    if parts is None:
        yield transform, ours
        return
    for part in parts:
        yield from flat(part, composed or several, libraries)
    if composed:
        yield RETURNED, ours


def _is_list(transform: Any) -> bool:
    """Return whether it is a pipeline in a list or tuple, without a ``__call__`` of its own."""
    return isinstance(transform, (list, tuple)) and not callable(transform)


def views_of(transform: Any, libraries: Libraries) -> Several | None:
    """Return what makes several views; None for anything else."""
    found = transform if isinstance(transform, Step) else libraries.views(transform)
    return found if isinstance(found, Several) and is_ours(found) else None


def tensor_image() -> Any:
    """Return the class of torchvision's image tensors; None where torchvision is not in use."""
    return getattr(sys.modules.get("torchvision.tv_tensors"), "Image", None)

"""Compiling a pipeline: what the native core does of it, and what is left to call.

``compile_recipe`` reads a pipeline (ours, torchvision's, or both) once and makes a `Recipe` of it:
a `Program` for the core (geometry and an output format), one a view where the pipeline has `Views`,
and a tail of callables that the core cannot do. Where that is impossible it returns a `Refusal`,
whose reason is for the user.

    recipe = compile_recipe(transform)
    for number, program in enumerate(recipe.programs):
        cuts = program.draw(widths, heights, sample_keys(key, indices, number))
        # ... the core decodes to program.output
    # ... recipe.tail is called for each sample

Whether steps can be composed depends on their arguments alone, so it is decided once, here;
the core then composes without asking (`fastdata.transforms.geometry`).
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.errors import UsageError
from fastdata.text import human_count
from fastdata.transforms import geometry, pixels
from fastdata.transforms import libraries as translation
from fastdata.transforms.augmentations import (
    RandomApply,
    RandomChoice,
    RandomErasing,
    RandomOrder,
)
from fastdata.transforms.describing import describe, dimensions
from fastdata.transforms.descriptions import (
    CenterCrop,
    Compose,
    CornerCrop,
    FiveCrop,
    Form,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ResizeKeepRatio,
    Schedule,
    Stack,
    TenCrop,
    Transform,
    Views,
    in_form,
)
from fastdata.transforms.geometry import Cuts
from fastdata.transforms.originals import settled
from fastdata.transforms.symbols import package

_Pair: TypeAlias = tuple[int, int]
_Values: TypeAlias = tuple[float, ...]  # one a channel

# Stands after each Compose of ours: what it is in gets a tensor from it.
_RETURNED = object()
_GEOMETRY = (
    RandomResizedCrop,
    Resize,
    ResizeKeepRatio,
    CenterCrop,
    CornerCrop,
    RandomCrop,
    RandomHorizontalFlip,
)
_CONTAINERS = (RandomApply, RandomChoice, RandomOrder)
_OWN = (Normalize, RandomErasing, ResizeKeepRatio, *_CONTAINERS)
_SOME_SIZE = (12345, 6789)  # that no step makes
_ZEROS = ((0, 0, 0), "constant")  # what geometry pads with
# What may come after a conversion to floats: it moves values, and makes none but zeros.
_MOVES = (CenterCrop, CornerCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip)


class Output(NamedTuple):
    """The format of what a program makes.

    Attributes:
        dtype: ``uint8``, 0 to 255; or ``float32``, ``float16``, ``bfloat16``: then
            ``(value / 255 - mean) / std``.
        mean: A value a channel in units of 0 to 1; None: 0.
        std: A value a channel in units of 0 to 1; None: 1.
        channels_last: Whether a batch's pixels, rather than its planes, are contiguous.
        as_pil: The pipeline has not made tensors: the tail wants PIL images, and without a tail
            they are the result.
        channels: 3, or 1 of grey images.
    """

    dtype: str
    mean: _Values | None
    std: _Values | None
    channels_last: bool
    as_pil: bool
    channels: int = 3


class Unknown(NamedTuple):
    """A step of a pipeline that the core cannot do.

    Attributes:
        name: Of the transform.
        reason: Why not; a clause that goes on after "name: ".
        hint: What the user can do about it; a sentence.
    """

    name: str
    reason: str
    hint: str


class Refusal(NamedTuple):
    """Why a pipeline cannot be done natively.

    Attributes:
        reason: In words for the user: which transform, why, and what to do about it.
        unknown: The steps that the core cannot do, if those stand in the way.
        impossible: Whether the pipeline fails for every image, whoever calls it.
    """

    reason: str
    unknown: tuple[Unknown, ...] = ()
    impossible: bool = False


@dataclass(frozen=True)
class Program:
    """What the core does for one view of a sample.

    Attributes:
        size: (width, height) of every output.
        filter: ``bilinear``, ``nearest``, ``bicubic`` or ``lanczos``; where one is drawn for each
            image, the first of them.
        output: The format of the output.
        steps: The geometry, in the pipeline's order.
        pixels: What comes after it: augmentations, and whatever follows them.
    """

    size: _Pair
    filter: str
    output: Output
    steps: tuple[Transform, ...]
    pixels: tuple[Transform, ...] = ()

    def draw(self, widths: Any, heights: Any, keys: npt.NDArray[np.uint64]) -> Cuts:
        """Draw and compose the geometry of a batch.

        Args:
            widths: Of the source images in pixels, ints, (N,).
            heights: Of the source images in pixels, ints, (N,).
            keys: uint64 (N,), a sample each: from which `fastdata.plan.draws` makes its numbers.

        Returns:
            A row for each sample; the same whatever else is in the batch.
        """
        return geometry.draw(self.steps, widths, heights, keys)

    def too_small(self, cuts: Cuts) -> dict[int, str]:
        """Describe the images that are too small for a crop that may not pad, by their row."""
        return geometry.too_small(self.steps, cuts)

    def batch_options(self, cuts: Cuts) -> dict[str, Any]:
        """Keyword arguments of `fastdata.decode.decode_batch` that do this to some images.

        Args:
            cuts: Rows of what :meth:`draw` returned.
        """
        output = self.output
        return {
            "dtype": output.dtype,
            "mean": output.mean,
            "std": output.std,
            "cuts": cuts,
            "program": pixels.native_program(self.pixels) if self.pixels else None,
        }

    @property
    def erases(self) -> bool:
        """Whether the output is written over after it was normalised."""
        return any(isinstance(step, pixels.Erase) for step in self.pixels)

    def describe(self) -> str:
        """The program in one line of words."""
        kind = "PIL images" if self.output.as_pil else self.output.dtype
        if self.output.channels == 1:
            kind = f"{kind} of one channel"
        normalised = " normalised" if self.output.mean is not None else ""
        steps = [describe(step) for step in (*self.steps, *self.pixels)]
        # Erasing comes last, whatever it was converted from.
        at = len(steps) - sum(isinstance(step, pixels.Erase) for step in self.pixels)
        return ", ".join([*steps[:at], kind + normalised, *steps[at:]])


@dataclass(frozen=True)
class Recipe:
    """A compiled pipeline, made by :func:`compile_recipe`.

    Attributes:
        programs: One for each view of a sample; one alone unless the pipeline has `Views`.
        tail: What is to be called for each sample, in order, after that; with its tensor, or with
            what its `Views` make.
        calls: What is to be called for each sample and view, in order, before `tail`.
        form: As `Views` have it; None where there are no Views.
        unknown: The steps that the core cannot do; `calls` and `tail` hold what follows them, too.
    """

    programs: tuple[Program, ...]
    tail: tuple[Callable[[Any], Any], ...] = ()
    unknown: tuple[Unknown, ...] = ()
    form: Form | None = None
    calls: tuple[tuple[Callable[[Any], Any], ...], ...] = ()

    def image(self, views: list[Any], batched: bool = False) -> Any:
        """What stands in an image's place: its one view, or several in their form.

        Args:
            views: Of a sample, or of a batch.
            batched: Whether they are of a batch.
        """
        return views[0] if self.form is None else in_form(views, self.form, batched)

    def finish(self, views: Sequence[Any]) -> Any:
        """Call for one sample what the core does not do; return what the pipeline makes of it."""
        made = list(views)
        for number, calls in enumerate(self.calls):
            for call in calls:
                made[number] = call(made[number])
        image = self.image(made)
        for call in self.tail:
            image = call(image)
        return image

    def describe(self) -> str:
        """The pipeline in one line of words."""
        views = [program.describe() for program in self.programs]
        alike = [(view, len(list(same))) for view, same in groupby(views)]
        line = " | ".join(view if count == 1 else f"{count} of {view}" for view, count in alike)
        if self.form is not None:
            named = self.form.items() if isinstance(self.form, dict) else ()
            names = ", ".join(f"{_count(which)} {name}" for name, which in named if _count(which))
            head = f"{human_count(len(views), 'view')}{f' ({names})' if names else ''}"
            line = f"{head} of: {views[0]}" if len(alike) == 1 else f"{head}: {line}"
        calls = [
            call
            for several in (*self.calls, self.tail)
            for call in several
            if call is not _tensor_image()
        ]
        if calls:
            line += "; then, one sample at a time, " + ", ".join(map(name_of, calls))
        return line

    def __str__(self) -> str:
        return self.describe()


def compile_recipe(transform: Any, size: _Pair | None = None) -> Recipe | Refusal:
    """Compile a pipeline.

    Args:
        transform: One of `fastdata.transforms`; a torchvision transform, v1 or v2; a Compose of
            either, a ``torch.nn.Sequential``, a list or a tuple of them and of any callables; a
            Schedule, which stands for its epoch's; or None.
        size: (width, height) of every image; None: they may differ.

    Returns:
        The recipe, or why there is none: the images do not come to one size, or a transform
        that the core does not know comes before they do.
    """
    if transform is None:
        return Refusal(
            "There is no transform, and images of different sizes cannot make a batch: give one "
            "that brings them to one size, such as fastdata.transforms.RandomResizedCrop(224)."
        )
    if isinstance(transform, Schedule):
        transform = transform.current
    with settled():
        return _compile(transform, size)


def _compile(transform: Any, size: _Pair | None) -> Recipe | Refusal:
    views, tail, form = read(transform, size)
    several = form is not None
    if reason := misplaced(views, tail):
        # Ours ask the same when they are called; torchvision's Compose calls them one by one.
        fails = package(type(transform)) == "fastdata" or any(view.fails for view in views)
        return Refusal(reason, views[0].unknown(), impossible=fails)
    if failing := next((view for view in views if view.fails), None):
        return Refusal(failing.refusal(), failing.unknown(), impossible=True)
    programs = []
    for number, view in enumerate(views):
        where = f"View {number}: " if several else ""
        if view.fixed is None:
            return Refusal(where + view.refusal(), view.unknown())
        programs.append(
            Program(
                view.fixed,
                view.filter or "bilinear",
                view.output(),
                tuple(view.steps),
                (*view.pixels, *view.erasures),
            )
        )
    if several:
        unknown = [one for view in views for one in view.unknown()]
        unknown += [_unknown(call) for call in tail]
        calls = tuple(view.tail_calls() for view in views) if any(v.tail for v in views) else ()
        return Recipe(tuple(programs), tuple(tail), tuple(dict.fromkeys(unknown)), form, calls)
    return Recipe(tuple(programs), view.tail_calls(), view.unknown())


def read(
    transform: Any, size: _Pair | None = None
) -> tuple[list[Reading], list[Callable[[Any], Any]], Form | None]:
    """A pipeline as far as it can be composed, for images of one size or of any.

    Returns:
        What becomes of each view; what comes after `Views` and is called with what they make; and
        their form, or None if the pipeline has no `Views`.
    """
    items = list(_flat(transform, True))
    own = isinstance(transform, Transform)
    at = next((n for n, (one, _) in enumerate(items) if _views(one) is not None), None)
    if at is None:
        return [Reading(items, own, size)], [], None
    makes = _views(items[at][0])
    before = Reading(items[:at], own, size)
    shared = [*before.steps, *before.pixels, *before.erasures]
    form: Form
    if isinstance(makes, (FiveCrop, TenCrop)):
        if any(map(pixels.is_random, shared)):
            return [Reading(items, own, size)], [], None
        # Those of torchvision's are still what it was given: a PIL image, or a tensor.
        ours = True if makes is items[at][0] else None
        pipelines = [[(step, ours) for step in steps] for steps in makes.views]
        kept = [own or makes is transform] * len(pipelines)
        form = list(range(len(pipelines))) if ours else tuple(range(len(pipelines)))
    else:
        assert makes is not None
        pipelines = [list(_flat(view, True)) for view in makes.transforms]
        given = type(transform) is Views
        kept = [isinstance(view, Transform) if given else own for view in makes.transforms]
        form = makes.form

    def readings(pipelines: list[list[Any]], kept: list[bool]) -> list[Reading]:
        found = [
            Reading([*items[:at], *pipeline], own, size)
            for pipeline, own in zip(pipelines, kept, strict=True)
        ]
        for reading in found:
            reading.shared = shared
        return found

    views = readings(pipelines, kept)
    tail = [one for one, _ in items[at + 1 :] if one is not _RETURNED]
    while tail and (followed := translation.follow(tail[0], form)) is not None:
        made, after = followed
        longer = [[*pipelines[number], *_flat(steps, False)] for number, steps in made]
        whose = [kept[number] for number, _ in made]
        further = readings(longer, whose)
        if any(view.tail for view in further):
            break
        views, pipelines, kept, form, tail = further, longer, whose, after, tail[1:]
    return views, tail, form


def _views(one: Any) -> Views | FiveCrop | TenCrop | None:
    """What makes views, in ours."""
    found = one if isinstance(one, Transform) else translation.views(one)
    if isinstance(found, (Views, FiveCrop, TenCrop)) and package(type(found)) == "fastdata":
        return found
    return None


def misplaced(views: Sequence[Reading], tail: Sequence[Any]) -> str:
    """Why transforms of ours cannot stand where they do, in words for the user; "" if they can."""
    for view in views:
        if view.misplaced is not None:
            return view.refusal()
        if random := next((step for step in view.shared if pixels.is_random(step)), None):
            return f"{name_of(random)} stands before Views. Put it into each of them."
    late = next((call for call in tail if isinstance(call, Transform)), None)
    if late is not None:
        return f"{name_of(late)} comes after Views. Put it into each of them."
    return ""


def _count(form: Form) -> int:
    """How many views a form has."""
    if isinstance(form, int):
        return 1
    several = form.images if isinstance(form, Stack) else form
    return sum(map(_count, several.values() if isinstance(several, dict) else several))


class Reading:
    """What a sequence of transforms amounts to.

    ``kind`` is what the pipeline would have in hand: ``pil``, a ``tensor``, torchvision's tensor
    ``image``, an ``array``; or ``own``: the result of ours, which stands for any.

    Args:
        items: The transforms, each with whether the innermost Compose is ours or a list, rather
            than torchvision's; None: one of ours in a transform of torchvision's place.
        own: Whether the whole is a transform of ours.
        size: (width, height) of every image; None: they may differ.
    """

    def __init__(
        self, items: Sequence[tuple[Any, bool | None]], own: bool, size: _Pair | None = None
    ) -> None:
        self.steps: list[Transform] = []
        self.pixels: list[Transform] = []
        self.erasures: list[pixels.Erase] = []
        self.shared: Sequence[Transform] = ()  # those before Views
        self.tail: list[Callable[[Any], Any]] = []
        self.why = ""  # the first of the tail cannot be done by the core
        self.last = ""  # what determined the size last, for messages
        self.fixed = size
        self.channels = 3
        self.filter: str | None = None
        self.cropped = False  # in this stage: since the resize, or before it
        self.flipped = False
        self.kind = "own" if own else "pil"
        self.dtype = "uint8"
        self.mean: _Values | None = None
        self.std: _Values | None = None
        self.channels_last = True
        for one, ours in items:
            if not self.tail:
                reason = self._add(one, ours)
                if reason is None:
                    continue
                self.why = reason
            if one is not _RETURNED:
                self.tail.append(one)

    @property
    def misplaced(self) -> Transform | None:
        """The first of our transforms in the tail: called there, it would fail."""
        return next((call for call in self.tail if isinstance(call, Transform)), None)

    @property
    def fails(self) -> bool:
        """Whether the first transform of the tail raises, whoever calls it."""
        return self.why in translation.FAILS

    def output(self) -> Output:
        """The format before the tail."""
        as_pil = self.kind == "pil"
        form = (self.dtype, self.mean, self.std, self.channels_last, as_pil, self.channels)
        return Output(*form)

    def tail_calls(self) -> tuple[Callable[[Any], Any], ...]:
        """What to call after the core."""
        if self.tail and self.kind == "image":
            # torchvision's own transforms may tell its image tensors from others.
            return (_tensor_image(), *self.tail)
        if self.tail and self.kind == "array":
            return (np.asarray, *self.tail)
        return tuple(self.tail)

    def unknown(self) -> tuple[Unknown, ...]:
        """The steps that the core cannot do: where the tail begins, and what nobody knows."""
        tensors = self.kind in ("tensor", "image")
        found = [_unknown(call, self.why, len(self.tail) * tensors) for call in self.tail[:1]]
        found += [_unknown(call) for call in self.tail[1:] if not translation.is_known(call)]
        return tuple(found)

    def refusal(self) -> str:
        """Why there is no recipe, or one of ours is misplaced."""
        misplaced = self.misplaced
        if self.tail and (self.fixed is None or self.fails or misplaced is self.tail[0]):
            name = name_of(self.tail[0])
            if self.fails or misplaced is self.tail[0]:
                return f"{name} cannot be done here: {self.why}."
            words = f"{name} comes before the images have one size: {self.why}."
            hint = _hint(self.tail[0])
            # A resize of torchvision's would do it, if it were written so.
            resizes = type(self.tail[0]).__module__.startswith("torchvision.")
            if not hint and not (resizes and _advice(self.why)):
                hint = (
                    "Put it after what brings them to one size, such as RandomResizedCrop or "
                    "CenterCrop."
                )
            return f"{words} {hint}".rstrip()
        if self.tail:
            unknown = name_of(self.tail[0])
            return (
                f"{name_of(misplaced)} comes after {unknown}, which the core cannot do: "
                f"{self.why}. Put it before."
            )
        after = f" after {self.last}" if self.last else ""
        return (
            f"The images may have different sizes{after} and cannot make a batch: add "
            "fastdata.transforms.CenterCrop(224), which leaves images of that size as they are, "
            "or use a Resize to (height, width)."
        )

    def _add(self, transform: Any, ours: bool | None) -> str | None:
        """Take the next transform for the core; return why it cannot be done, or None."""
        if transform is _RETURNED:
            if self.kind in ("pil", "own"):
                self.kind = "own" if ours else "tensor"
            return None
        if type(transform) in _OWN or pixels.is_known(transform):
            if self.kind not in ("pil", "own") and ours is not None:
                return translation.HAS_TENSOR
            if isinstance(transform, Normalize):
                reason = self._normalise(transform)
            else:
                reason = self._compose(transform)
            if reason is None and ours is not None:
                # Each of ours returns a tensor, when it is called by somebody else.
                self.kind = "own" if ours else "tensor"
            return reason
        if type(transform) is Views:
            return "it stands in another transform: name all views in one Views"
        if _views(transform) is not None:
            return "what is random before it would differ from view to view"
        found = translation.translate(transform, self.kind, self.dtype)
        if isinstance(found, str):
            return found
        before = {name: copy(value) for name, value in vars(self).items()}
        for step in found if isinstance(found, tuple) else (found,):
            reason = self._take(step)
            if reason is not None:
                vars(self).update(before)  # all of it, or nothing
                return reason
        return None

    def _take(self, found: Any) -> str | None:
        """Take a step that was translated, or a transform that a user's function calls."""
        if isinstance(found, Normalize):
            return self._normalise(found)
        if isinstance(found, Transform):
            return self._compose(found)
        if not isinstance(found, translation.Conversion):
            for one, ours in _flat(found, False):
                reason = self._add(one, ours)
                if reason is not None:
                    return f"it calls {name_of(one)}: {reason}"
            return None
        if found.only == "pil" and self.kind not in ("pil", "own"):
            return "what it does is known of PIL images, and it has a tensor here"
        if found.kind == "array" and self.channels == 1:
            return "it makes arrays of three channels, and the image has one"
        if found.kind is not None:
            self.kind = found.kind
            self.channels_last = False
        if found.dtype is not None:
            if self.dtype == "uint8":
                self._rescale((0.0,) * 3, (255.0,) * 3)
            self.dtype = found.dtype
        return None

    def _rescale(self, mean: _Values, std: _Values) -> None:
        self.erasures = [erasure.scaled(mean, std) for erasure in self.erasures]

    def _normalise(self, step: Normalize) -> str | None:
        if self.mean is not None:
            return "the values are already normalised"
        if max(len(step.mean), len(step.std)) > self.channels:
            return "it has three values, and the image has one channel"
        if self.dtype == "uint8":
            self._rescale((0.0,) * 3, (255.0,) * 3)
            self.dtype = step.dtype
        mean, std = (tuple(values) * (3 // len(values)) for values in (step.mean, step.std))
        self._rescale(mean, std)
        self.mean, self.std = mean[: self.channels], std[: self.channels]
        return None

    def _compose(self, step: Transform) -> str | None:
        if isinstance(step, RandomErasing):
            return self._erase(step)
        if self.erasures:
            return "it comes after RandomErasing"
        if not self.pixels and isinstance(step, _GEOMETRY) and self._cut(step) is None:
            return None
        return self._augment(step)

    def _augment(self, step: Transform) -> str | None:
        """Take a step for the pixel program."""
        resolved = self._resolved(step)
        if isinstance(resolved, str):
            return resolved
        if pixels.does_nothing(resolved):
            return None
        size = pixels.size_after(resolved, self.fixed)
        channels = pixels.channels_after(resolved, self.channels)
        if channels is None:
            return "it makes some of the images grey, of one channel, and not all"
        if self.channels == 1 and pixels.has_colours(resolved):
            return "it has a colour, and the image one channel"
        if self.dtype != "uint8":
            if not _works_on_floats(resolved, self.mean is not None):
                return "it works on bytes, and has floats here"
            if self.mean is not None and _may_pad(resolved, self.fixed):
                return "it would pad with zeros what is normalised"
        if isinstance(resolved, CornerCrop) and self.fixed:
            width, height = self.fixed
            if resolved.size[1] > width or resolved.size[0] > height:  # type: ignore[index]
                return "it is larger than the images"
        if isinstance(resolved, RandomCrop) and not resolved.pad_if_needed and self.fixed:
            left, top, right, bottom = resolved.padding  # type: ignore[misc]
            width, height = self.fixed[0] + left + right, self.fixed[1] + top + bottom
            if resolved.size[1] > width or resolved.size[0] > height:  # type: ignore[index]
                return "it is larger than the images, and may not pad them"
        self.pixels.append(resolved)
        self.fixed, self.channels = size, channels
        if pixels.size_after(resolved, _SOME_SIZE) != _SOME_SIZE:
            self.last = name_of(step)
        return None

    def _resolved(self, step: Any) -> Transform | str:
        """A step of a pixel program with all that it holds in ours; or why that is not possible."""
        if type(step) in (Compose, *_CONTAINERS):
            held = []
            for part in step.transforms:
                found = self._part(part)
                if isinstance(found, str):
                    return f"it holds {name_of(part)}: {found}"
                held.append(found)
            resolved: Transform = replace(step, transforms=tuple(held))
            return resolved
        if isinstance(step, (Normalize, RandomErasing)):
            return "it belongs to the output, and stands in another transform"
        if not pixels.is_known(step):
            return "it can only come first, before augmentations"
        return step  # type: ignore[no-any-return]

    def _part(self, part: Any) -> Transform | str:
        """The same of what a container holds."""
        inner = part if _is_list(part) else translation.parts(part)
        if inner is not None:
            return self._resolved(Compose(tuple(inner))) if inner else pixels.Nothing()
        if isinstance(part, Transform):
            if self.kind not in ("pil", "own"):
                return translation.HAS_TENSOR
            return self._resolved(part)
        found = translation.translate(part, self.kind, self.dtype)
        if isinstance(found, str):
            return found
        return self._held(found if isinstance(found, tuple) else (found,))

    def _held(self, found: Sequence[Any]) -> Transform | str:
        """Steps that were translated, of what a container holds."""
        steps: list[Transform] = []
        for one in found:
            if isinstance(one, translation.Conversion):
                same = one.kind in (None, self.kind) and one.dtype in (None, self.dtype)
                if not same or (one.only == "pil" and self.kind not in ("pil", "own")):
                    return "it converts some of the images only"
                continue
            step = self._resolved(one) if isinstance(one, Transform) else self._part(one)
            if isinstance(step, str):
                return step
            steps.append(step)
        if len(steps) == 1:
            return steps[0]
        return Compose(tuple(steps)) if steps else pixels.Nothing()

    def _erase(self, step: RandomErasing) -> str | None:
        values: Any = step.value
        if self.channels == 1 and not isinstance(values, str) and len(set(values)) > 1:
            return "its value is a colour, and the image has one channel"
        deviations, kind = None, values
        if isinstance(values, str):
            if self.dtype == "uint8":
                return "it puts noise of floats into bytes"
            values, deviations = (0.0,) * 3, (1.0,) * 3
        elif self.dtype == "uint8" and not all(0 <= value <= 255 for value in values):
            return "its values are not from 0 to 255"
        counts: Any = step.count
        options = (step.scale, step.ratio, values, deviations, kind, counts, step.in_double)
        self.erasures.append(pixels.Erase(step.p, *options))
        return None

    def _cut(self, step: Transform) -> str | None:
        """Take a step for the geometry."""
        size: _Pair | None
        if isinstance(step, RandomHorizontalFlip):
            self.flipped = True
        elif isinstance(step, (Resize, ResizeKeepRatio, RandomResizedCrop)):
            size = None
            if isinstance(step.size, tuple) and not isinstance(step, ResizeKeepRatio):
                size = (step.size[1], step.size[0])
            elif isinstance(step, Resize) and self.fixed is not None:
                wide, high = geometry.resized_size(step, *self.fixed)
                size = (int(wide), int(high))
            if isinstance(step, Resize) and size is not None and size == self.fixed:
                return None  # nothing changes
            if self.filter is not None:
                return "it would resize a second time"
            filters = (step.interpolation,)
            if not isinstance(step.interpolation, str):
                filters = step.interpolation  # type: ignore[assignment]
            if "nearest" in filters and self.flipped:
                return "resizing with 'nearest' after a flip gives other pixels than before it"
            self.fixed, self.filter, self.cropped = size, filters[0], False  # type: ignore[assignment]
        elif isinstance(step, (CenterCrop, CornerCrop, RandomCrop)):
            size = (step.size[1], step.size[0])  # type: ignore[index]
            larger = self.fixed is not None and (size[0] > self.fixed[0] or size[1] > self.fixed[1])
            pads = (larger or self.fixed is None) and not isinstance(step, CornerCrop)
            if isinstance(step, CornerCrop) and larger:
                return "it is larger than the images"
            if isinstance(step, RandomCrop):
                if any(step.padding):  # type: ignore[arg-type]
                    return "it pads every image"  # which a pixel program does, and not Pillow
                if larger and not step.pad_if_needed:
                    return "it is larger than the images, and may not pad them"
                pads = pads and step.pad_if_needed
                if pads and (step.fill, step.padding_mode) != _ZEROS:
                    return "it pads with others than zeros"
            if pads and isinstance(step, CenterCrop) and (step.fill, step.padding_mode) != _ZEROS:
                return "it pads with others than zeros"
            if pads and self.cropped:
                return "it would pad what was cropped"
            if pads and self.mean is not None:
                return "it would pad with zeros what is normalised"
            if larger or (pads and self._resized_within(size)):
                return "it pads most images"  # as above
            self.fixed, self.cropped = size, True
        self.steps.append(step)
        if not isinstance(step, RandomHorizontalFlip):
            self.last = name_of(step)
        return None

    def _resized_within(self, size: _Pair) -> bool:
        """Whether images were resized to sizes that differ, some of them less than ``size``."""
        for step in reversed(self.steps):
            if isinstance(step, ResizeKeepRatio):
                covered = (step.size[1], step.size[0])  # type: ignore[index]
                beyond = size[0] > covered[0] or size[1] > covered[1]
                return beyond or step.longest > 0 or geometry.is_random(step)
            if isinstance(step, Resize):
                return step.max_size is not None or max(size) > step.size  # type: ignore[operator]
        return False


def _moves(step: Transform) -> bool:
    """Whether a step only moves values, or puts zeros around them: floats as it would bytes."""
    if isinstance(step, (Compose, *_CONTAINERS)):
        return all(map(_moves, step.transforms))  # type: ignore[arg-type]
    if isinstance(step, (CenterCrop, RandomCrop)) and (step.fill, step.padding_mode) != _ZEROS:
        return isinstance(step, RandomCrop) and not (step.pad_if_needed or any(step.padding))  # type: ignore[arg-type]
    return isinstance(step, (*_MOVES, pixels.Nothing))


def _works_on_floats(step: Transform, normalised: bool) -> bool:
    """Whether doing a step to bytes, and converting then, is as good within a level or so."""
    if isinstance(step, (Compose, *_CONTAINERS)):
        return all(_works_on_floats(part, normalised) for part in step.transforms)  # type: ignore[arg-type]
    if isinstance(step, pixels.OnTensors):  # recognised as one that may
        return not normalised
    return _moves(step) or isinstance(step, (Resize, RandomResizedCrop))


def _may_pad(step: Transform, size: _Pair | None) -> bool:
    """Whether some image would be padded, of those that are all of one size before it."""
    if isinstance(step, (Compose, *_CONTAINERS)):
        for part in step.transforms:
            if _may_pad(part, size):  # type: ignore[arg-type]
                return True
            if isinstance(step, Compose):
                size = pixels.size_after(part, size)  # type: ignore[arg-type]
        return False
    if not isinstance(step, (CenterCrop, RandomCrop)):
        return False
    if isinstance(step, RandomCrop) and any(step.padding):  # type: ignore[arg-type]
        return True
    wanted = (step.size[1], step.size[0])  # type: ignore[index]
    return size is None or wanted[0] > size[0] or wanted[1] > size[1]


def _flat(transform: Any, ours: bool) -> Iterator[tuple[Any, bool]]:
    """The transforms one by one, each with whether it stands in a Compose of ours."""
    if isinstance(transform, Schedule):
        raise UsageError(
            "a Schedule stands in another transform, where no loader names its epoch",
            "Give it to the dataset itself, and make the others part of what it makes.",
        )
    if type(transform) is Compose:
        for part in transform.transforms:
            yield from _flat(part, True)
        yield _RETURNED, ours
        return
    if _is_list(transform):
        parts: Sequence[Any] = tuple(transform)
        ours = True
    else:
        inner = translation.parts(transform)
        if inner is None:
            yield transform, ours
            return
        parts, ours = inner, False
    for part in parts:
        yield from _flat(part, ours)


def _is_list(transform: Any) -> bool:
    """Whether it is a pipeline in a list or tuple; one with a ``__call__`` may do anything."""
    return isinstance(transform, (list, tuple)) and not callable(transform)


def _tensor_image() -> Any:
    """The class of torchvision's image tensors; None where torchvision is not in use."""
    return getattr(sys.modules.get("torchvision.tv_tensors"), "Image", None)


def _unknown(transform: Any, reason: str = "", last: int = 0) -> Unknown:
    """Describe a step that the core cannot do.

    Args:
        transform: The step.
        reason: Why not; "": ask.
        last: How many of the pipeline's last steps begin with it, if it is given a tensor.
    """
    found = "" if reason else translation.translate(transform, "pil", "uint8")
    if isinstance(found, str) and found.startswith(translation.NOT_KNOWN):
        reason = found
    reason = reason or translation.NOT_KNOWN
    hint = _hint(transform) or _advice(reason)
    if not hint:
        hint = "Leave it out, or do it to whole batches, with the loader's batch_transform"
        which = f"your {name_of(transform)}"
        if last > 1:
            which = f"a Compose of the {last} steps from {which} on"
        if last:
            hint += (
                ": end the pipeline before it, and give the loader batch_transform=lambda batch: "
                "(torch.stack([last(image) for image in batch[0]]), batch[1]), where last is "
                f"{which}"
            )
        hint += "."
    return Unknown(name_of(transform), reason, hint)


def _advice(reason: str) -> str:
    """The advice in a reason, as a sentence; "" if there is none."""
    advice = "" if reason.startswith(translation.NOT_KNOWN) else reason.partition("; ")[2]
    return f"{advice[:1].upper()}{advice[1:]}." if advice else ""


def _hint(transform: Any) -> str:
    """Advise on a step by its class; "" without advice."""
    if translation.override(transform):
        return "Undo that."
    return _wrapping_hint(transform) or _class_hint(transform)


def _class_hint(transform: Any) -> str:
    """The transform of torchvision's that stands in for one derived from it; "" for others."""
    for base in type(transform).__mro__[1:]:
        if base.__module__ != "torchvision.transforms.transforms":
            continue
        given = []
        for parameter in inspect.signature(base).parameters.values():
            value = getattr(transform, parameter.name, parameter.default)
            if isinstance(value, enum.Enum):
                value = f"{type(value).__name__}.{value.name}"
            elif value != parameter.default:
                value = repr(value)
            else:
                continue
            given.append(f"{parameter.name}={value}")
        return f"Where its draws will do, write {base.__name__}({', '.join(given)})."
    return ""


_SEVERAL_HINT = (
    "It makes several things of one image. Give the dataset one pipeline for the image, from "
    "RandomResizedCrop to ToTensor, and make the others of whole batches, with the loader's "
    "batch_transform."
)


def _wrapping_hint(transform: Any) -> str:
    """Advise on an object that holds pipelines, as recipes' classes do; "" for others."""
    attributes = getattr(transform, "__dict__", {})
    held: list[str] = []
    pipelines: list[Any] = []
    for name, value in {**attributes, **attributes.get("_modules", {})}.items():
        several = isinstance(value, (list, tuple)) and bool(value)
        if all(map(_is_pipeline, value)) if several else _is_pipeline(value):
            held.append(f"{'*' if several else ''}transform.{name}")
            pipelines += value if several else [value]
    if not held:
        return ""
    # Pipelines that do not bring images to one size are parts of views, not views.
    if any(view.fixed is None for one in pipelines for view in read(one)[0]):
        return _SEVERAL_HINT if len(held) > 1 else ""
    advice = "Give the dataset a pipeline for each view that it returns"
    whose = f"where transform is your {name_of(transform)}"
    if len(held) > 1 or held[0].startswith("*"):
        return f"{advice}, such as fastdata.transforms.Views({', '.join(held)}), {whose}."
    views = f"fastdata.transforms.Views({held[0]}, count=2)"
    return f"{advice}: {views} for two, or {held[0]} for one, {whose}."


def _is_pipeline(value: Any) -> bool:
    """Whether an object is a Compose, or stands for one."""
    return type(value) is Compose or translation.parts(value) is not None


def name_of(transform: Any) -> str:
    """What to call a transform in a message."""
    name = translation.name_of(transform)
    if isinstance(transform, (Resize, ResizeKeepRatio, CenterCrop, RandomCrop, RandomResizedCrop)):
        return f"{name}({dimensions(transform)})"
    return name

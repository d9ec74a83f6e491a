"""Compiling a pipeline to programs for the native core, and a tail of calls.

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

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.errors import UsageError
from fastdata.plan.draws import sample_keys
from fastdata.text import human_count, human_size
from fastdata.transforms import (
    functions,
    geometry,
    lightly,
    open_clip,
    timm,
    torchvision,
    transformers,
)
from fastdata.transforms.base import misplaced, read
from fastdata.transforms.checks import require_objects
from fastdata.transforms.forms import Form, Stack, in_form, leaves
from fastdata.transforms.geometry import Cuts
from fastdata.transforms.identity import (
    composed,
    derived,
    fresh_look,
    is_ours,
    name_in,
    name_of,
    offers,
    override,
)
from fastdata.transforms.joint import Joint, Moved
from fastdata.transforms.outcomes import (
    NOT_KNOWN,
    Declined,
    Libraries,
    Output,
    Refusal,
    Translation,
    Unknown,
    as_tuple,
    tensor_image,
)
from fastdata.transforms.output import Normalize
from fastdata.transforms.reading import (
    RETURNED,
    Holder,
    Reading,
    Several,
    Step,
    flat,
    plain,
    title_of,
    views_of,
)
from fastdata.transforms.schedule import Varying
from fastdata.transforms.scripts import imports_of, line_for
from fastdata.transforms.tree import native_program

#: Returns widths and heights of some images, int32, (N,); () if none are known.
GetSizes: TypeAlias = "Callable[[], tuple[Any, Any] | tuple[()]]"


@dataclass(frozen=True)
class Program:
    """The core's part of a pipeline, for one view of a sample.

    ``size`` is (width, height) of every output; (0, 0): they may differ. ``filter`` is
    ``bilinear``, ``nearest``, ``bicubic`` or ``lanczos``; where one is drawn for each image, the
    first of them. ``steps`` are the geometry, ``pixels`` all after it. ``fill``, R, G, B from 0 to
    255, and ``mask_fill`` are for what lies outside the image.
    """

    size: tuple[int, int]
    filter: str
    output: Output
    steps: tuple[Step, ...]
    pixels: tuple[Step, ...] = ()
    fill: tuple[int, int, int] = (0, 0, 0)
    mask_fill: int = 0

    def draw(self, widths: Any, heights: Any, keys: npt.NDArray[np.uint64]) -> Cuts:
        """Draw and compose the geometry of a batch, as `fastdata.transforms.geometry.draw`."""
        return geometry.draw(self.steps, widths, heights, keys)

    def too_small(self, cuts: Cuts) -> dict[int, str]:
        """Describe the images that are too small for a crop that may not pad, by their row."""
        return geometry.too_small(self.steps, cuts)

    @property
    def one_size(self) -> bool:
        """Whether all outputs have one size."""
        return self.size != (0, 0)

    def sizes(self, cuts: Cuts) -> npt.NDArray[np.int32]:
        """Return the (width, height) of each output, int32, (N, 2), for rows of :meth:`draw`.

        An image that its crops or augmentations cannot be done to has a size of 1 x 1.
        """
        sizes: npt.NDArray[np.int32] = cuts["canvas"]
        if self.changes_canvas:
            sizes = native_program(self.pixels).sizes(cuts)
        sizes = np.maximum(sizes, 1)
        sizes[cuts["too_small"] > 0] = 1
        return sizes

    def move(self, targets: _native.Targets, keys: npt.NDArray[np.uint64]) -> tuple[Cuts, Moved]:
        """Draw as :meth:`draw`, and move boxes and points with the images."""
        cuts = targets.cut(geometry.compiled(self.steps), keys)
        return cuts, Moved(*targets.after(keys, native_program(self.pixels)))

    def batch_options(self) -> dict[str, Any]:
        """Return keyword arguments of `_native.Rendering`, for ``cuts`` of :meth:`draw`."""
        return {
            "dtype": self.output.dtype,
            "mean": self.output.mean,
            "std": self.output.std,
            "program": native_program(self.pixels) if self.changes_canvas else None,
            "fill": self.fill,
        }

    @property
    def changes_canvas(self) -> bool:
        """Whether the pixel program does anything to the image."""
        return any(not step.of_targets for step in self.pixels)

    @property
    def erases(self) -> bool:
        """Whether it erases rectangles of the normalised output."""
        return any(step.erases for step in self.pixels)

    def describe(self) -> str:
        """Describe the program in one line."""
        kind = "PIL images" if self.output.as_pil else self.output.dtype
        if self.output.channels == 1:
            kind = f"{kind} of one channel"
        normalised = " normalised" if self.output.mean is not None else ""
        steps = [step.words for step in (*self.steps, *self.pixels)]
        # Erasing comes last, whatever it was converted from.
        at = len(steps) - sum(step.erases for step in self.pixels)
        return ", ".join([*steps[:at], kind + normalised, *steps[at:]])


@dataclass(frozen=True)
class Recipe:
    """A compiled pipeline, made by :func:`compile_recipe`.

    Attributes:
        programs: One for each view of a sample; one alone unless the pipeline has `Views`; none
            where no image is asked for.
        tail: Functions to call for each sample, in order, with its tensor or with its `Views`.
        calls: Functions to call for each sample and view, in order, before `tail`.
        form: As `Views` have it; None where there are no Views.
        unknown: The steps that the core cannot do; `calls` and `tail` hold what follows them, too.
        joint: Of a sample with targets, as they are before `tail`, whose functions take all of it.
        parts: Of several datasets' images, the recipe of each; (): this one is for all.
    """

    programs: tuple[Program, ...]
    tail: tuple[Callable[[Any], Any], ...] = ()
    unknown: tuple[Unknown, ...] = ()
    form: Form | None = None
    calls: tuple[tuple[Callable[[Any], Any], ...], ...] = ()
    joint: Joint | None = None
    parts: tuple[Recipe, ...] = ()

    def stacks_with(self, other: Recipe) -> bool:
        """Return whether a batch may have images of both: of one size, type and form."""
        ends = [(one.form, one.tail, one.calls, len(one.programs)) for one in (self, other)]
        if (
            any(one.unknown or one.joint or one.parts for one in (self, other))
            or ends[0] != ends[1]
        ):
            return False
        return all(
            mine.one_size
            and mine.size == theirs.size
            and mine.output._replace(mean=None, std=None)
            == theirs.output._replace(mean=None, std=None)
            for mine, theirs in zip(self.programs, other.programs, strict=True)
        )

    def image(self, views: list[Any], batched: bool = False) -> Any:
        """Return the one view of a sample, or of a batch; or several views in their form."""
        return views[0] if self.form is None else in_form(views, self.form, batched)

    def finish(self, views: Sequence[Any]) -> Any:
        """Call the functions of one sample that the core does not do; return the result."""
        made = list(views)
        for number, calls in enumerate(self.calls):
            for call in calls:
                made[number] = call(made[number])
        image = self.image(made)
        for call in self.tail:
            image = call(image)
        return image

    def finish_joint(self, sample: Any) -> Any:
        """Call the functions of one sample with targets that the core does not do."""
        for call in self.tail:
            sample = call(*sample) if isinstance(sample, tuple) else call(sample)
        return sample

    def describe(self) -> str:
        """Describe the pipeline in one line."""
        if not self.programs:
            return "no image is asked for"
        if self.parts:
            return "; or ".join(dict.fromkeys(part.describe() for part in self.parts))
        views = [program.describe() for program in self.programs]
        alike = [(view, len(list(same))) for view, same in groupby(views)]
        line = " | ".join(view if number == 1 else f"{number} of {view}" for view, number in alike)
        if self.form is not None:
            named = self.form.items() if isinstance(self.form, dict) else ()
            counts = [(name, len(list(leaves(which)))) for name, which in named]
            names = ", ".join(f"{number} {name}" for name, number in counts if number)
            head = f"{human_count(len(views), 'view')}{f' ({names})' if names else ''}"
            line = f"{head} of: {views[0]}" if len(alike) == 1 else f"{head}: {line}"
        calls = [
            call
            for several in (*self.calls, self.tail)
            for call in several
            if call is not tensor_image()
        ]
        if calls:
            line += "; then, one sample at a time, " + ", ".join(map(name_of, calls))
        return line

    def __str__(self) -> str:
        return self.describe()


#: Recipe of samples whose image is not asked for.
NO_IMAGE = Recipe(())


@dataclass(frozen=True)
class _Libraries(Libraries):
    """Transforms of other libraries, with targets (``joint``); see `reading.Libraries`."""

    joint: bool = False

    def parts(self, transform: Any) -> Sequence[Any] | None:
        if isinstance(transform, Varying):
            raise UsageError(
                f"a {type(transform).__name__} stands in another transform, where no loader names "
                f"its {transform.goes_by}",
                "Give it to the dataset itself, and make the others part of what it makes.",
            )
        found = composed(transform)
        # That of v2 calls its function with each view by itself.
        if name_in(transform, "torchvision.transforms") == "Lambda" and offers(transform.lambd):
            found = (transform.lambd,)
        if found is None:
            found = lightly.parts(transform)
        return super().parts(transform) if found is None else found

    def views(self, transform: Any) -> Several | None:
        return torchvision.views(transform) or lightly.views(transform)

    def translate(self, transform: Any, kind: str, dtype: str) -> Translation:
        if reason := override(transform):
            return Declined(reason)
        if type(transform).__module__.startswith("albumentations."):
            return _ALBUMENTATIONS
        found = _translated(transform, kind, dtype, (*self._others, torchvision.translate))
        if found is None and (reason := derived(transform)):
            return Declined(f"{NOT_KNOWN.reason}: {reason}", known=False)
        return NOT_KNOWN if found is None else found

    @property
    def _others(self) -> Sequence[_Translator]:
        # Those of other libraries take images alone.
        return () if self.joint else _OTHERS

    def follow(self, transform: Any, form: Form) -> tuple[list[tuple[int, list[Any]]], Form] | None:
        if isinstance(form, Stack) and isinstance(
            self.translate(transform, "tensor", "float32"), Normalize
        ):
            numbers = {number for number in form.images if isinstance(number, int)}
            return [(number, [transform]) for number in sorted(numbers)], form
        return functions.follow(transform, form)

    def knows(self, transform: Any) -> bool:
        """Return whether fastdata can translate a transform of this type."""
        found = _translated(transform, "pil", "uint8", self._others)
        known = found is not None and not (isinstance(found, Declined) and not found.known)
        return known or offers(transform) or torchvision.is_known(transform)


_Translator: TypeAlias = "Callable[[Any, str, str], Translation | None]"
_OTHERS: tuple[_Translator, ...] = (
    *(timm.translate, open_clip.translate, lightly.translate),
    *(transformers.translate, functions.translate),
)
_ALBUMENTATIONS = Declined(
    "it takes arrays by name, and a dataset hands over an image",
    "call it in a function, as lambda image: transform(image=numpy.array(image))['image']",
)


def _translated(
    transform: Any, kind: str, dtype: str, translators: Sequence[_Translator]
) -> Translation | None:
    """Return the first translation of a transform; None if no library has it."""
    try:
        for translate in translators:
            if (found := translate(transform, kind, dtype)) is not None:
                return found
    except (AttributeError, KeyError, TypeError, UsageError, ValueError) as error:
        # Another version's, or arguments that make no sense: the library says so when called.
        return Declined(f"its arguments are not known: {getattr(error, 'what', error)}")
    return None


LIBRARIES = _Libraries()
#: Packages whose classes users cannot extend by a method.
_LIBRARIES = {
    *("PIL", "albumentations", "builtins", "fastdata", "functools", "lightly", "numpy"),
    *("open_clip", "timm", "torch", "torchvision", "transformers"),
}


def read_pipeline(
    transform: Any, size: tuple[int, int] | None = None, joint: Joint | None = None
) -> tuple[list[Reading], list[Callable[[Any], Any]], Form | None]:
    """Read a pipeline of any library's transforms, as `fastdata.transforms.base.read`."""
    libraries = LIBRARIES if joint is None else _Libraries(joint=True)
    return read(transform, size, libraries, joint)


def compile_recipe(
    transform: Any,
    size: tuple[int, int] | None = None,
    joint: Joint | None = None,
    sizes: GetSizes | None = None,
) -> Recipe | Refusal:
    """Compile a pipeline; or say why it cannot be.

    That is if the images do not come to one size, or a transform that the core does not know comes
    before they do. The pipeline is one of `fastdata.transforms`; a torchvision transform, v1 or v2;
    a Compose of either, a ``torch.nn.Sequential``, a list or a tuple of them and of any callables;
    a Schedule or BySize, which serves as the one of now; or None. ``size`` is (width, height) of
    every image, None: they may differ. ``joint`` is a sample's with targets, which the transform is
    called with. ``sizes`` returns the sizes of some images, for advice.
    """
    if transform is None:
        differ, crops = _advised((), "", sizes)
        why = "to make tensors of images" if size else f"and the images {differ} batch"
        return Refusal(f"There is no transform, {why}: give {crops}.")
    if isinstance(transform, Varying):
        transform = transform.current
    require_objects("the transform", transform)
    with fresh_look():
        return _compile(transform, size, joint, sizes)


def _compile(
    transform: Any,
    size: tuple[int, int] | None,
    joint: Joint | None,
    sizes: GetSizes | None,
) -> Recipe | Refusal:
    views, tail, form = read_pipeline(transform, size, joint)
    several = form is not None
    if reason := misplaced(views, tail):
        first = next((view for view in views if view.misplaced is not None), None)
        if first is not None and first.fixed is None and first.misplaced is not first.tail[0]:
            reason = _refusal(first, sizes)
        # Ours ask the same when they are called; torchvision's Compose calls them one by one, which
        # works with an image alone.
        fails = is_ours(transform) or any(view.fails for view in views)
        fails = fails or (joint is not None and any(is_ours(view.misplaced) for view in views))
        return Refusal(reason, unknown_steps(views[0]), impossible=fails)
    if failing := next((view for view in views if view.fails), None):
        return Refusal(_refusal(failing, sizes), unknown_steps(failing), impossible=True)
    programs = []
    refusal = None
    for number, view in enumerate(views):
        if view.fixed is None and refusal is None:
            where = f"View {number}: " if several else ""
            refusal = Refusal(where + _refusal(view, sizes), unknown_steps(view))
        steps, pixels = tuple(view.steps), (*view.pixels, *view.erasures)
        filtered = view.filter or "bilinear"
        about = view.fixed or (0, 0), filtered, view.output()
        fill, mask_fill = view.fills or ((0, 0, 0), 0)
        programs.append(Program(*about, steps, pixels, fill, mask_fill))
    if refusal is not None and (tail or any(view.tail for view in views)):
        return refusal
    if several:
        unknown = [one for view in views for one in unknown_steps(view)]
        unknown += [_unknown(call) for call in tail]
        calls = tuple(view.tail_calls() for view in views) if any(v.tail for v in views) else ()
        recipe = Recipe(tuple(programs), tuple(tail), tuple(dict.fromkeys(unknown)), form, calls)
    else:
        calls_of, whole = view.tail_calls(), view.joint
        if whole is not None:
            calls_of, whole = tuple(view.tail), replace(whole, as_image=view.kind == "image")
        recipe = Recipe(tuple(programs), calls_of, unknown_steps(view), joint=whole)
    return recipe if refusal is None else refusal._replace(unequal=recipe)


def first_of_ours(transform: Any) -> Step | None:
    """Return the first of `fastdata.transforms` in a pipeline, also in torchvision's Compose."""
    if isinstance(transform, Varying):
        transform = transform.current if transform.is_chosen else None
    if isinstance(transform, Step):
        return transform
    return next(filter(None, map(first_of_ours, composed(transform) or ())), None)


def movements(transform: Any) -> list[tuple[str, bool | None]]:
    """Return the name of each step of a pipeline, and whether it moves pixels; None: not known."""
    if isinstance(transform, Varying):
        transform = transform.current if transform.is_chosen else ()
    with fresh_look():
        items = plain(flat(transform, True, LIBRARIES))
        steps = [one for one, _ in items if one is not RETURNED]
        return [(title_of(one), _moves(one)) for one in steps]


def _moves(transform: Any) -> bool | None:
    """Return whether a step, or any that it holds, moves pixels; None: that is not known."""
    found = transform if is_ours(transform) else views_of(transform, LIBRARIES)
    if found is None:
        for kind, dtype in (("pil", "uint8"), ("image", "uint8"), ("image", "float32")):
            found = LIBRARIES.translate(transform, kind, dtype)
            if not isinstance(found, Declined):
                break
    if isinstance(found, Declined):
        return found.moves
    several: list[bool | None] = []
    for step in as_tuple(found):
        if isinstance(step, (Holder, Several)):
            several += [moves for part in step.transforms for _, moves in movements(part)]
        elif isinstance(step, Step):
            several.append(step.moves_pixels)
    return True if True in several else None if None in several else False


# --- advice ------------------------------------------------------------------------------------


#: Widths and heights of photographs, in the place of unknown ones.
_PHOTOGRAPHS = (np.array([500, 375], np.int32), np.array([375, 500], np.int32))
#: Usual sizes of crops, and of images before them.
_CROP, _RESIZE = 224, 256


def _advised(steps: Sequence[Any], after: str, sizes: GetSizes | None) -> tuple[str, str]:
    """Say how images differ after some steps, and which crops suit them."""
    known = sizes() if sizes is not None else ()
    widths, heights = known or _PHOTOGRAPHS
    cuts = geometry.draw(tuple(steps), widths, heights, sample_keys(0, np.arange(len(widths)), 0))
    canvas = cuts["canvas"][cuts["too_small"] == 0]
    if not len(canvas):
        canvas = np.array([[_CROP, _CROP]])
    width, height = canvas[0].tolist()
    other = canvas[(canvas != canvas[0]).any(1)]
    differ = f"may have different sizes{after} and cannot make a"
    if known and not len(other):
        crop = height if height == width else (height, width)
        same = f"which leaves images of {human_size(width, height)} as they are"
        return differ, f"fastdata.transforms.CenterCrop({crop}), {same}"
    if known:
        both = f"{human_size(width, height)} and {human_size(*other[0].tolist())}"
        differ = f"have different sizes{after}, such as {both}, and cannot make a"
    shorter = canvas.min(1)
    side = int(np.median(shorter))
    if after and (shorter == side).all():
        return differ, f"fastdata.transforms.CenterCrop({side})"
    resize, side = (side, side) if side < _RESIZE else (_RESIZE, _CROP)
    return differ, f"fastdata.transforms.Resize({resize}) and CenterCrop({side})"


def _refusal(view: Reading, sizes: GetSizes | None = None) -> str:
    """Say why there is no recipe for a view."""
    if not view.tail or not (view.fails or view.fixed is None):
        after = f" after {view.last}" if view.last else ""
        targets = view.joint is not None
        lists = (
            "give a collate_fn, such as fastdata.collate.collate_padded(32); or " if targets else ""
        )
        differ, crops = _advised(view.steps, after, sizes)
        return f"The images {differ} batch: {lists}add {crops}, or use a Resize to (height, width)."
    first, why = view.tail[0], view.why
    name = title_of(first)
    if view.fails:
        return f"{name} cannot be done here: {why}."
    words = f"{name} comes before the images have one size: {why}."
    unknown = first if why is None or why.culprit is None else why.culprit
    hint = _hint(unknown) or own_hint(unknown)
    # A resize of torchvision's would do it, if it were written so.
    resizes = type(first).__module__.startswith("torchvision.")
    if not hint and not (resizes and why is not None and why.advice):
        hint = "Put it after what brings them to one size, such as RandomResizedCrop or CenterCrop."
    return f"{words} {hint}".rstrip()


def unknown_steps(view: Reading) -> tuple[Unknown, ...]:
    """Return the steps that the core cannot do: the first of the tail, and unknown ones."""
    tensors = view.kind in ("tensor", "image")
    steps, joint = len(view.tail) * tensors, view.joint is not None
    found = [_unknown(call, view.why, steps, joint) for call in view.tail[:1]]
    libraries = LIBRARIES if view.joint is None else _Libraries(joint=True)
    found += [_unknown(call, joint=joint) for call in view.tail[1:] if not libraries.knows(call)]
    return tuple(found)


def _unknown(
    transform: Any, why: Declined | None = None, last: int = 0, joint: bool = False
) -> Unknown:
    """Describe a step that the core cannot do, and why; without a reason, find one.

    Where it gets a tensor, ``last`` steps at the pipeline's end begin with it. A ``joint`` one
    takes samples with targets.
    """
    if why is None:
        found = LIBRARIES.translate(transform, "pil", "uint8")
        why = found if isinstance(found, Declined) and not found.known else NOT_KNOWN
    advice = f"{why.advice[:1].upper()}{why.advice[1:]}." if why.advice else ""
    name = title_of(transform)
    unknown = transform if why.culprit is None else why.culprit
    if hint := _hint(unknown) or advice:
        return Unknown(name, str(why), hint)
    which = f"your {name}"
    if last > 1:
        which = f"a Compose of the {last} steps from {which} on"
    if joint:
        end = "end the pipeline before it" if last else "put ToImage() in its place"
        hint = (
            f"leave it out; or {end}, and call it in your collate_fn, with each sample: "
            f"collate_fn=lambda samples: collate([last(*sample) for sample in samples]), where "
            f"last is {which} and collate the function that you give now."
        )
    else:
        hint = "leave it out, or do it to whole batches, with the loader's batch_transform"
        if last:
            hint += (
                ": end the pipeline before it, and give the loader batch_transform=lambda batch: "
                "(torch.stack([last(image) for image in batch[0]]), batch[1]), where last is "
                f"{which}"
            )
        hint += "."
    own = own_hint(unknown)
    hint = f"{own} If there is none, {hint}" if own else f"{hint[0].upper()}{hint[1:]}"
    return Unknown(name, str(why), hint)


def _hint(transform: Any) -> str:
    """Return the line of code that makes a published script's class native; "" for others."""
    if override(transform):
        return "Undo that."
    name = _own_name(transform)
    line = line_for(transform) if name else ""
    if not line:
        return ""
    method = f"def __fastdata__(self): return {line}"
    return f"Add this method to {name}: {method}  # if the class does the same; {imports_of(line)}"


def own_hint(transform: Any) -> str:
    """Say how to make a script's transform native; "" for a library's."""
    if offers(transform):
        return ""
    end = "takes no arguments and returns the transform of fastdata.transforms that does the same"
    named = isinstance(transform, FunctionType) and transform.__name__.isidentifier()
    if named and not _is_librarys(transform):
        return f"Write {transform.__name__}.__fastdata__ = f, where f {end}."
    calls = inspect.isroutine(transform) or isinstance(transform, partial)
    if calls or name_in(transform, *functions.MODULES) == "Lambda":
        return f"Put a function f in its place that has f.__fastdata__, which {end}."
    name = _own_name(transform)
    return f"Add a method __fastdata__ to {name}, which {end}." if name else ""


def _own_name(transform: Any) -> str:
    """Return the module and name of a script's class without a ``__fastdata__``; "" for others."""
    kind = type(transform)
    known = _is_librarys(kind) or offers(transform)
    return "" if known else f"{kind.__module__}.{kind.__qualname__}"


def _is_librarys(thing: Any) -> bool:
    # Code that exec runs may have no module.
    return str(thing.__module__).partition(".")[0] in _LIBRARIES

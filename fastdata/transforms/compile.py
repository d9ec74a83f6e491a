"""Compiling a pipeline to programs for the native core, and a tail of calls.

`compile_recipe` reads a pipeline of any library's transforms once and makes a `Recipe` of it: a
`Program` for the core, one a view where the pipeline has `Views`, and a tail of callables that the
core cannot do. Where that is impossible it returns a `Refusal`, whose reason is for the user.

Whether steps can be composed depends on their arguments alone, so it is decided once, here;
the core then composes without asking (`fastdata.transforms.geometry`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any

from PIL import Image

from fastdata.errors import UsageError
from fastdata.transforms import (
    functions,
    lightly,
    open_clip,
    timm,
    torchvision,
    transformers,
)
from fastdata.transforms.base import misplaced, read
from fastdata.transforms.checks import require_objects
from fastdata.transforms.forms import Form
from fastdata.transforms.identity import (
    PACKAGES,
    changed,
    composed,
    derived,
    fresh_look,
    is_ours,
    name_in,
    offers,
    override,
)
from fastdata.transforms.joint import Joint
from fastdata.transforms.outcomes import (
    NOT_KNOWN,
    TENSORS,
    Declined,
    Libraries,
    Refusal,
    Translation,
    Translator,
    Unknown,
    as_tuple,
)
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
from fastdata.transforms.recipe import Program, Recipe
from fastdata.transforms.schedule import Varying

#: Translators of images alone; only torchvision's transforms take targets, too.
_OF_IMAGES: tuple[Translator, ...] = (
    *(timm.TABLE.translate, open_clip.translate, lightly.TABLE.translate),
    *(transformers.translate, functions.translate),
)
_ALBUMENTATIONS = Declined(
    "it takes arrays by name, and a dataset hands over an image",
    "call it in a function, as lambda image: transform(image=numpy.array(image))['image']",
)
_AFTER_VIEWS = Declined("it is called with all views")
#: Packages whose classes users cannot extend by a method.
_PACKAGES = {"albumentations", "fastdata", *PACKAGES}


@dataclass(frozen=True)
class _AllLibraries(Libraries):
    """Transforms of all libraries that fastdata knows; ``joint`` ones take targets, too."""

    joint: bool = False

    def parts(self, transform: Any) -> Sequence[Any] | None:
        if isinstance(transform, Varying):
            raise UsageError(
                f"a {type(transform).__name__} is inside another transform, where no loader names "
                f"its {transform.goes_by}",
                "Give it to the dataset itself, and let its function add the other transforms.",
            )
        # v2's Lambda calls its function with each view by itself.
        if name_in(transform, "torchvision.transforms") == "Lambda" and offers(transform.lambd):
            return (transform.lambd,)
        for parts_of in (composed, lightly.parts, super().parts):
            if (parts := parts_of(transform)) is not None:
                return parts
        return None

    def views(self, transform: Any) -> Several | None:
        return lightly.views(transform)

    def translate(self, transform: Any, kind: str, dtype: str) -> Translation:
        if reason := override(transform):
            return Declined(reason)
        if type(transform).__module__.startswith("albumentations."):
            return _ALBUMENTATIONS
        translation = None if self.joint else _first(_OF_IMAGES, transform, kind, dtype)
        if translation is None:
            translation = _first((torchvision.translate,), transform, kind, dtype)
        if translation is None and (reason := derived(transform)):
            return Declined(f"{NOT_KNOWN.reason}: {reason}", known=False)
        return NOT_KNOWN if translation is None else translation


def _first(
    translators: Sequence[Translator], transform: Any, kind: str, dtype: str
) -> Translation | None:
    """Return the first translation of a transform; None if no library has it."""
    try:
        for translate in translators:
            if (translation := translate(transform, kind, dtype)) is not None:
                return translation
    except (AttributeError, KeyError, TypeError, UsageError, ValueError) as error:
        # Another version's, or arguments that make no sense: the library says so when called.
        return Declined(f"its arguments are not known: {getattr(error, 'what', error)}")
    return None


_LIBRARIES = {joint: _AllLibraries(joint) for joint in (False, True)}


def read_pipeline(
    transform: Any, size: tuple[int, int] | None = None, joint: Joint | None = None
) -> tuple[list[Reading], list[Callable[[Any], Any]], Form | None]:
    """Read a pipeline of any library's transforms, as `fastdata.transforms.base.read`."""
    with _no_cycle(transform):
        return read(transform, size, _LIBRARIES[joint is not None], joint)


@contextmanager
def _no_cycle(transform: Any) -> Iterator[None]:
    """Raise UsageError if what ``__fastdata__`` returns has it again, and so on."""
    try:
        yield
    except RecursionError:
        raise UsageError(
            f"{title_of(transform)} has no last step: it, or a transform in it, has a __fastdata__ "
            "that returns what holds it",
            "Leave it out there.",
        ) from None


def compile_for_images(
    transform: Any,
    joint: Joint | None = None,
    image_size: Callable[[], tuple[int, int] | None] = lambda: None,
) -> Recipe | Refusal:
    """Compile a pipeline for images of any size, else for their one size; or say why it cannot be.

    ``image_size`` returns (width, height) of every image; None: they may differ.
    """
    if transform is not None and (reason := changed(Image)):
        return Refusal(f"{reason}. Undo that.")
    recipe = compile_recipe(transform, joint=joint)
    size = image_size() if isinstance(recipe, Refusal) else None
    if not isinstance(recipe, Refusal) or size is None or min(size) == 0:
        return recipe
    sized = compile_recipe(transform, size, joint)
    if isinstance(sized, Refusal):
        return sized
    # Where all of it is a tail, torch's loader may as well do it.
    if any(not sized.unknown or one.steps or one.pixels for one in sized.programs):
        return sized
    first = sized.unknown[0]
    return recipe._replace(
        reason=f"the core does not do {first.name} ({first.reason}). {first.hint}"
    )


def compile_recipe(
    transform: Any, size: tuple[int, int] | None = None, joint: Joint | None = None
) -> Recipe | Refusal:
    """Compile a pipeline, or say why it cannot be compiled.

    It cannot if images do not come to one size, or if a transform that the core does not know comes
    before they do.

    Args:
        transform: One of `fastdata.transforms`; a torchvision transform, v1 or v2; a Compose of
            either, a ``torch.nn.Sequential``, a list or a tuple of them and of any callables; a
            Schedule or BySize, for its present transform; or None.
        size: (width, height) of every image, None: they may differ.
        joint: Form of a sample with targets, which the transform is called with.
    """
    if transform is None:
        if size is not None:
            crop = f"fastdata.transforms.CenterCrop({size[::-1]}), which leaves them as they are"
            return Refusal(f"There is no transform, to make tensors of images: give {crop}.")
        return Refusal(
            "There is no transform, and the images may have different sizes and cannot make a "
            f"batch: give {_CROPS}."
        )
    if isinstance(transform, Varying):
        transform = transform.current
    require_objects("the transform", transform)
    with fresh_look():
        views, tail, form = read_pipeline(transform, size, joint)
        if (refusal := _impossible(transform, views, tail)) is not None:
            return refusal
        unsized = next((at for at, view in enumerate(views) if view.fixed is None), None)
        if unsized is not None:
            where = f"View {unsized}: " if form is not None else ""
            view = views[unsized]
            refusal = Refusal(where + _refusal(view), unknown_steps(view))
            if tail or any(view.tail for view in views):
                return refusal
        recipe = _recipe(views, tail, form)
        return recipe if refusal is None else refusal._replace(unequal=recipe)


def _impossible(transform: Any, views: list[Reading], tail: Sequence[Any]) -> Refusal | None:
    """Return the refusal of a pipeline that fails, or whose steps are in wrong places."""
    if reason := misplaced(views, tail):
        first = next((view for view in views if view.misplaced is not None), None)
        if first is not None and first.fixed is None and first.misplaced is not first.tail[0]:
            reason = _refusal(first)
        # Ours ask the same when they are called; torchvision's Compose calls them one by one, which
        # works with an image alone.
        fails = is_ours(transform) or any(view.fails for view in views)
        fails = fails or any(view.joint and is_ours(view.misplaced) for view in views)
        return Refusal(reason, unknown_steps(views[0]), impossible=fails)
    if failing := next((view for view in views if view.fails), None):
        return Refusal(_refusal(failing), unknown_steps(failing), impossible=True)
    return None


def _recipe(views: list[Reading], tail: Sequence[Any], form: Form | None) -> Recipe:
    """Return the recipe of a pipeline as it was read."""
    programs = tuple(map(_program, views))
    if form is None:
        view = views[0]
        if view.joint is None:
            return Recipe(programs, view.tail_calls(), unknown_steps(view))
        whole = replace(view.joint, as_image=view.kind == "image")
        return Recipe(programs, view.tail, unknown_steps(view), joint=whole)
    unknown = [one for view in views for one in unknown_steps(view)]
    unknown += [_unknown(call, _AFTER_VIEWS) for call in tail[:1]]
    calls = tuple(view.tail_calls() for view in views) if any(v.tail for v in views) else ()
    return Recipe(programs, tuple(tail), tuple(dict.fromkeys(unknown)), form, calls)


def _program(view: Reading) -> Program:
    """Return the core's part of a view."""
    fill, mask_fill = view.fills or ((0, 0, 0), 0)
    return Program(
        view.fixed or (0, 0),
        view.filter or "bilinear",
        view.output(),
        view.steps,
        (*view.pixels, *view.erasures),
        fill,
        mask_fill,
    )


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
    with fresh_look(), _no_cycle(transform):
        items = plain(flat(transform, True, _LIBRARIES[False]))
        steps = [one for one, _ in items if one is not RETURNED]
        return [(title_of(one), _moves(one)) for one in steps]


def _moves(transform: Any) -> bool | None:
    """Return whether a step, or any that it holds, moves pixels; None: that is not known."""
    libraries = _LIBRARIES[False]
    translation = transform if is_ours(transform) else views_of(transform, libraries)
    if translation is None:
        for kind, dtype in (("pil", "uint8"), ("image", "uint8"), ("image", "float32")):
            translation = libraries.translate(transform, kind, dtype)
            if not isinstance(translation, Declined):
                break
    if isinstance(translation, Declined):
        return translation.moves
    moves: list[bool | None] = []
    for step in as_tuple(translation):
        if isinstance(step, (Holder, Several)):
            moves += [one for part in step.transforms for _, one in movements(part)]
        elif isinstance(step, Step):
            moves.append(step.moves_pixels)
    return True if True in moves else None if None in moves else False


# --- advice ------------------------------------------------------------------------------------


#: Steps of `fastdata.transforms` that bring images to one size.
_CROPS = "Resize(256) and CenterCrop(224), or a CenterCrop of the size that all of them have"


def _refusal(view: Reading) -> str:
    """Say why there is no recipe for a view."""
    if not view.tail or not (view.fails or view.fixed is None):
        after = f" after {view.last}" if view.last else ""
        targets = view.joint is not None
        lists = (
            "give a collate_fn, such as fastdata.collate.collate_padded(32); or " if targets else ""
        )
        return (
            f"The images may have different sizes{after} and cannot make a batch: {lists}add "
            f"{_CROPS}, or use a Resize to (height, width)."
        )
    first, why = view.tail[0], view.why
    name = title_of(first)
    if view.fails:
        return f"{name} cannot be done here: {why}."
    words = f"{name} comes before the images have one size: {why}."
    unknown = first if why is None or why.culprit is None else why.culprit
    hint = own_hint(unknown)
    # A resize of torchvision's would do it, if it were written so.
    resizes = type(first).__module__.startswith("torchvision.")
    if not hint and not (resizes and why is not None and why.advice):
        hint = "Put it after what brings them to one size, such as RandomResizedCrop or CenterCrop."
    return f"{words} {hint}".rstrip()


def unknown_steps(view: Reading) -> tuple[Unknown, ...]:
    """Return the first step that the core cannot do; () if it can do all."""
    if not view.tail or view.why is None:
        return ()
    last = len(view.tail) if view.kind in TENSORS else 0
    return (_unknown(view.tail[0], view.why, last, view.joint is not None),)


def _unknown(transform: Any, why: Declined, last: int = 0, joint: bool = False) -> Unknown:
    """Describe a step that the core cannot do, and why.

    Where it gets a tensor, ``last`` steps at the pipeline's end begin with it. A ``joint`` one
    takes samples with targets.
    """
    advice = f"{why.advice[:1].upper()}{why.advice[1:]}." if why.advice else ""
    name = title_of(transform)
    unknown = transform if why.culprit is None else why.culprit
    if hint := advice or ("Undo that." if override(unknown) else ""):
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


def own_hint(transform: Any) -> str:
    """Say how to make a script's transform native; "" for a library's."""
    if override(transform):
        return "Undo that."
    if offers(transform):
        return ""
    end = "takes no arguments and returns the transform of fastdata.transforms that does the same"
    named = isinstance(transform, FunctionType) and transform.__name__.isidentifier()
    if named and not _is_librarys(transform):
        return f"Write {transform.__name__}.__fastdata__ = f, where f {end}."
    calls = inspect.isroutine(transform) or isinstance(transform, partial)
    if calls or name_in(transform, *functions.MODULES) == "Lambda":
        return f"Put a function f in its place that has f.__fastdata__, which {end}."
    kind = type(transform)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return "" if _is_librarys(kind) else f"Add a method __fastdata__ to {name}, which {end}."


def _is_librarys(thing: Any) -> bool:
    # Code that exec runs may have no module.
    return str(thing.__module__).partition(".")[0] in _PACKAGES

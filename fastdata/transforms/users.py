"""Steps for the transforms of users' scripts, as `fastdata.transforms.tracing` records them.

A class that only calls other transforms becomes these, one that makes several views `Views`, and
one that calls Pillow the same operations. Pixels are Pillow's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from fastdata.errors import UsageError
from fastdata.transforms import tracing
from fastdata.transforms.colours import Grayscale
from fastdata.transforms.crops import (
    CenterCrop,
    Pad,
    PadToSize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
from fastdata.transforms.forms import Form, leaves, mapped
from fastdata.transforms.nodes import Apply, Arranged, Choice, Operation, Random
from fastdata.transforms.outcomes import Conversion, Declined, Found, not_known
from fastdata.transforms.pairs import Part, Whole
from fastdata.transforms.reading import Chain, Reading, Several, Step
from fastdata.transforms.resizes import RandomResize, Resize
from fastdata.transforms.symbols import ON_PIL, Call, Later, Node, Number, Path, Unknown, name_of
from fastdata.transforms.tracing import is_users
from fastdata.transforms.tracing_pairs import trace_pair

#: Returns the courses of a user's function.
Traced: TypeAlias = Callable[[Any], list[Path]]

_FLIPS = {"flip_horizontal": RandomHorizontalFlip(1.0), "flip_vertical": RandomVerticalFlip(1.0)}


@dataclass(frozen=True)
class Steps:
    """Effect of a part of a user's function on one image; only its type is used.

    Attributes:
        name: Of the function.
        steps: Steps and conversions, in their order.
    """

    name: str
    steps: tuple[Step | Conversion, ...]

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, image: Any) -> Any:
        """Raise TypeError; there to be taken for a transform."""
        raise TypeError(f"{self.name} is described here, and not called")


@dataclass(frozen=True)
class Assembly:
    """Assembly of a user's result from views, and from calls for each sample.

    Attributes:
        name: Of the user's function.
        form: The result, with a `View` in each view's place, a `Later` in that of a call.
    """

    name: str
    form: Any

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, views: Any) -> Any:
        """Return the user's result for one sample's views."""

        def made(leaf: Any) -> Any:
            if isinstance(leaf, Later):
                return leaf.function(*leaf.args, **dict(leaf.kwargs))
            return views[leaf.number] if isinstance(leaf, View) else leaf

        return mapped(self.form, made)


@dataclass(frozen=True)
class View:
    """The place of a view in an `Assembly`."""

    number: int


def parts(transform: Any, traced: Traced | None = None) -> Sequence[Any] | None:
    """Return the transforms that a user's function calls in turn, and the views it makes.

    Args:
        transform: The function.
        traced: As of `translate`.

    Returns:
        The transforms; None: it does more to an image than to call transforms, or is no such
        function.
    """
    if isinstance(transform, Steps):
        return None
    try:
        courses = (traced or _courses)(transform)
        if _makes_one(courses):
            steps = merged(courses)
            return None if any(map(_is_ours, steps)) else steps
        return _several(name_of(transform), courses) if courses else None
    except Unknown:
        return None


def translate(transform: Any, kind: str, dtype: str, traced: Traced | None = None) -> Found | None:
    """Translate a user's function of an image, as `Libraries.translate`; None for others.

    Args:
        transform: The function.
        kind: As of `Libraries.translate`.
        dtype: Likewise.
        traced: Returns its courses, or raises `Unknown`; None: it takes an image alone.
    """
    if isinstance(transform, Steps):
        return transform.steps
    if isinstance(transform, Assembly):
        called = (one for one in leaves(transform.form) if isinstance(one, Later))
        names = ", ".join(dict.fromkeys(name_of(one.function) for one in called))
        return not_known(f"it calls {names} for each sample")
    try:
        courses = (traced or _courses)(transform)
        if not courses:
            return None
        if not _makes_one(courses):
            _several(name_of(transform), courses)
            return Declined("it makes several views, and stands in another transform")
        return tuple(merged(courses))
    except Unknown as error:
        return not_known(str(error))


def follow(transform: Any, form: Form) -> tuple[list[tuple[int, list[Any]]], Form] | None:
    """Trace a user's function that takes several views, as `Libraries.follow`."""
    try:
        courses = _courses(transform, form)
        if len(courses) != 1:
            return None
        views = _Views(courses[0])
        if views.form is None:
            return None
        _check_apart(views.nodes, 1)
        name = name_of(transform)
        chains = [node.chain() for node in views.nodes]
        made = [(chain[0].step, _items(name, chain[1:], courses[0])) for chain in chains]
        return made, views.form
    except Unknown:
        return None


def _courses(transform: Any, given: Form = 0) -> list[Path]:
    """Return the courses of a user's function; none for anything else.

    Raises:
        Unknown: They are not known.
    """
    found = tracing.trace(transform, given)
    if isinstance(found, list):
        return found
    if found:
        raise Unknown(found)
    return []


def _makes_one(courses: Sequence[Path]) -> bool:
    """Return whether a function makes one image of one on every course."""
    return bool(courses) and all(isinstance(course.result, Node) for course in courses)


def _is_ours(step: Any) -> bool:
    return isinstance(step, Conversion) or (
        isinstance(step, Step) and not isinstance(step, Several)
    )


# --- one image -------------------------------------------------------------------------------


def merged(courses: Sequence[Path], made: Callable[[Any], Any] | None = None) -> list[Any]:
    """Return the steps of a function of one image that takes one of several courses.

    Args:
        courses: The courses.
        made: Returns the step of a node's; None: `Call`s and transforms are nodes' steps.

    Raises:
        Unknown: They are not known.
    """
    return _merged(courses, 0, made)


def _merged(courses: Sequence[Path], depth: int, made: Callable[[Any], Any] | None) -> list[Any]:
    if len(courses) == 1:
        course = courses[0]
        if course.result.mode == "L":
            raise Unknown("it returns images of mode L")
        nodes = course.result.chain()[1:]
        if made is not None:
            return [made(node.step) for node in nodes]
        _check_draws(nodes)
        return [_step(node.step, course) for node in nodes]
    weights = courses[0].decisions[depth][0]
    options = [
        _merged([one for one in courses if one.decisions[depth][1] == which], depth + 1, made)
        for which in range(len(weights))
    ]
    first, count = options[0], 0
    while all(len(one) > count and _same(one[count], first[count]) for one in options):
        count += 1
    rests = [option[count:] for option in options]
    # Conversions do not change pixels: they precede the choice.
    conversions = [one for rest in rests for one in rest if isinstance(one, Conversion)]
    rests = [[one for one in rest if not isinstance(one, Conversion)] for rest in rests]
    return [*first[:count], *conversions[:1], *_chosen(rests, weights)]


def _chosen(rests: list[list[Any]], weights: Sequence[float]) -> list[Step]:
    """Return the choice among several lists of transforms, with these weights."""
    if not any(rests):
        return []
    done = [(rest, weight) for rest, weight in zip(rests, weights, strict=True) if rest]
    if len(done) == 1:
        (steps, p), *_ = done
        if steps == [_FLIPS["flip_horizontal"]]:
            return [RandomHorizontalFlip(p)]
        return [Apply(tuple(steps), p)]
    several = (Chain(tuple(rest)) for rest in rests)
    return [Choice(tuple(several), tuple(weights))]


def _same(one: Any, other: Any) -> bool:
    ours = isinstance(one, (Step, Conversion)) and type(one) is type(other)
    return one is other or (ours and one == other)


def _step(step: Any, course: Path) -> Any:
    """Return a node's step for the core, or the transform that it calls."""
    if step is ON_PIL:
        return Conversion(only="pil")
    if not isinstance(step, Call):
        return step
    if step.name in _FLIPS:
        return _FLIPS[step.name]
    if step.name == "grayscale":
        return Grayscale(3)
    return Operation(step.name, tuple(_value(value, course) for value in step.values))


def _value(value: Any, course: Path) -> float | Random:
    if not isinstance(value, Number):
        return float(value)
    low, high = (value.times * end + value.plus for end in course.draws[value.draw])
    return Random("uniform_double", min(low, high), max(low, high))


def _check_draws(nodes: Sequence[Node]) -> None:
    """Raise Unknown if a draw is used twice."""
    calls = [node.step for node in nodes if isinstance(node.step, Call)]
    draws = [value.draw for call in calls for value in call.values if isinstance(value, Number)]
    if len(draws) > len(set(draws)):
        raise Unknown("it uses one random number twice")


# --- several views ---------------------------------------------------------------------------


class _Views:
    """The images in what a function returns.

    Attributes:
        nodes: Each of them, once.
        assembly: The result, with a `View` in each image's place.
        form: The result, with a number in each image's place; None: it holds more than images.
    """

    def __init__(self, course: Path) -> None:
        self.nodes: list[Node] = []
        self.assembly = mapped(course.result, self._place)
        images = all(isinstance(leaf, View) for leaf in leaves(self.assembly))
        self.form = mapped(self.assembly, lambda view: view.number) if images else None

    def _place(self, value: Any) -> Any:
        if not isinstance(value, Node):
            return value
        if value.mode == "L":
            raise Unknown("it returns images of mode L")
        if not any(node is value for node in self.nodes):
            self.nodes.append(value)
        return View(next(number for number, node in enumerate(self.nodes) if node is value))


def _several(name: str, courses: Sequence[Path]) -> list[Any]:
    """Return common steps of several views, the views, and the calls for each sample."""
    if len(courses) > 1:
        raise Unknown("it makes several views, and chance decides which")
    views = _Views(courses[0])
    if not views.nodes:
        raise Unknown("it returns no image")
    if views.form is None and "Stack" in repr(views.assembly):
        raise Unknown("it returns a stack of images and more")
    chains = [node.chain() for node in views.nodes]
    shared = 1
    if len(chains) > 1:
        while all(len(one) > shared and one[shared] is chains[0][shared] for one in chains):
            shared += 1
    _check_apart(views.nodes, shared)
    before = _items(name, chains[0][1:shared], courses[0])
    made = [_items(name, chain[shared:], courses[0]) for chain in chains]
    if views.form is not None:
        return [*before, Arranged(tuple(made), views.form)]
    numbers: Form = list(range(len(made)))
    return [*before, Arranged(tuple(made), numbers), Assembly(name, views.assembly)]


def _check_apart(nodes: Sequence[Node], shared: int) -> None:
    """Raise Unknown if some views, and not all of them, share a step that may be random."""
    once: dict[int, Node] = {}
    for node in nodes:
        for one in node.chain()[shared:]:
            fixed = one.step is ON_PIL or (isinstance(one.step, Call) and not _draws(one.step))
            if id(one) in once and not fixed:
                raise Unknown("some of its views share a step")
            once[id(one)] = one
    _check_draws(list(once.values()))


def _draws(call: Call) -> bool:
    return any(isinstance(value, Number) for value in call.values)


def items_of(name: str, nodes: Sequence[Node]) -> list[Any]:
    """Return the transforms that nodes call, and `Steps` for what Pillow does between them.

    Args:
        name: Of the function.
        nodes: What it does to one image; it draws nothing itself.

    Raises:
        Unknown: Others come after a transform of fastdata, which makes a tensor.
    """
    _check_draws(nodes)
    items: list[Any] = []
    ours = [isinstance(node.step, Step) for node in nodes]
    if ours != sorted(ours):
        raise Unknown("it does more after a transform of fastdata")
    for by_pillow, several in groupby(nodes, lambda node: _is_pillows(node.step)):
        steps = [node.step for node in several]
        found = [_step(step, Path(None, [], [])) for step in steps]
        items += [Steps(name, tuple(found))] if by_pillow else steps
    return items


def _is_pillows(step: Any) -> bool:
    return step is ON_PIL or isinstance(step, Call)


def _items(name: str, nodes: Sequence[Node], course: Path) -> list[Any]:
    """Return nodes as items of a pipeline: transforms, and `Steps` between them."""
    items: list[Any] = []
    steps = (_step(node.step, course) for node in nodes)
    for ours, several in groupby(steps, _is_ours):
        if ours:
            items.append(Steps(name, tuple(several)))
        else:
            items += several
    return items


def of_pairs(transform: Any, why: Declined) -> Step | None:
    """Return the step of a user's code that moves an image and its mask; None for others.

    Args:
        transform: The code.
        why: Why it is not known otherwise.
    """
    return _OfPairs(transform, why) if is_users(transform) else None


@dataclass(frozen=True)
class _OfPairs(Step):
    """A user's code that takes a PIL image and its mask, or the tensors of both.

    Attributes:
        transform: The code.
        why: Why it is not known of other samples.
    """

    takes_pil_masks = True

    transform: Any
    why: Declined

    @property
    def title(self) -> str:
        return name_of(self.transform)

    def read(self, reading: Reading) -> Declined | None:
        joint = reading.joint
        name = "" if joint is None or len(joint.form) != 2 else joint.form[1]
        target = joint.targets.get(name) if joint is not None and isinstance(name, str) else None
        if joint is None or target is None or target.kind != "mask":
            return self.why
        if not (target.as_pil or target.pure or joint.pure):
            return self.why
        forms = {"pil": "pil", "tensor": "tensor"}
        if reading.kind not in forms:
            return self.why
        mask = Part("mask", "pil" if target.as_pil else "tensor", target.dtype, target.flat)
        image = Part("image", forms[reading.kind], reading.dtype)
        found = trace_pair(self.transform, image, mask)
        if isinstance(found, str):
            return not_known(found)
        paths, after = found
        if after.form == "array":
            return not_known("it makes an array of the mask")
        # Its steps do to the mask what they do to the image.
        reading.joint = joint.changed([name], as_pil=False, pure=False)
        try:
            for step in merged(paths, _step_of_pair):
                if (declined := reading.take(step)) is not None:
                    return declined
        except Unknown as error:
            return not_known(str(error))
        except UsageError as error:
            return Declined(f"its arguments are not known: {error.what}")
        pil = after.form == "pil"
        about = {"as_pil": pil, "pure": not pil, "dtype": after.dtype if not pil else ""}
        reading.joint = reading.joint.changed([name], **about, flat=pil or after.flat)
        return None


def _step_of_pair(done: Any) -> Any:
    """Return the step of what is done to an image and its mask."""
    if not isinstance(done, tuple):
        return done
    move, other = done
    values = move.values
    if move.name == "hflip":
        return RandomHorizontalFlip(1.0)
    if move.name == "vflip":
        return RandomVerticalFlip(1.0)
    if move.name == "resize":
        if len(values) == 2:
            return Resize(values, move.own)
        if isinstance(values[0], Whole):
            return RandomResize(values[0].low, values[0].high + 1, move.own)
        return Resize(values[0], move.own)
    if move.name == "random_crop":
        return RandomCrop(values[1:])
    if move.name == "centre_crop":
        return CenterCrop(values)
    if move.name == "pad_to":
        return PadToSize(values[::-1], move.own, mask_fill=other.own)
    return Pad(values[:4], move.own, values[4], mask_fill=other.own)

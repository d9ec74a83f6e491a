"""Checks of arguments: each returns a value as its transform keeps it, or raises UsageError.

The type of a transform's parameter names its check: ``p: Probability``, or ``bits: Annotated[int,
whole_from(0, 8)]``. `checked` applies them. A check takes (transform's name, parameter, value).
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import numbers as kinds
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Annotated, Any, TypeAlias

from fastdata.errors import UsageError
from fastdata.transforms.forms import PADDING_MODES, WARPS

Check: TypeAlias = Callable[[str, str, Any], Any]

#: The lower and the upper end.
Range: TypeAlias = tuple[float, float]

#: Filters of resizes.
FILTERS = ("bilinear", "nearest", "bicubic", "lanczos")

#: Brightness and the like: the core takes no larger factor.
MOST_FACTOR = 1e6

_MOST_PIXELS = 1 << 24
#: Filters by Pillow's numbers.
PILLOW_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def checked(step: Any) -> dict[str, Any]:
    """Return the parameters of a transform that have a check, as it returns them."""
    kind: Any = type(step)
    checks = _checks_of(kind).items()
    return {name: check(kind.__name__, name, getattr(step, name)) for name, check in checks}


@cache
def defaults_of(kind: Any) -> dict[str, Any]:
    """Return the defaults of a transform's parameters, as it keeps them."""
    checks = _checks_of(kind)
    return {
        one.name: checks[one.name](kind.__name__, one.name, one.default)
        if one.name in checks
        else one.default
        for one in dataclasses.fields(kind)
        if one.default is not dataclasses.MISSING
    }


@cache
def _checks_of(kind: Any) -> dict[str, Check]:
    checks: dict[str, Check] = {}
    # Annotations of a script's subclass need not evaluate.
    own = [base for base in kind.__mro__ if base.__module__.startswith("fastdata.")]
    for base in reversed(own):
        for name, annotation in inspect.get_annotations(base, eval_str=True).items():
            checks.pop(name, None)
            for check in getattr(annotation, "__metadata__", ()):
                checks[name] = check
    return checks


def _wrong(title: str, name: str, value: Any, wanted: str, hint: str) -> UsageError:
    return UsageError(f"{title}: {name} {value!r} is not {wanted}.", hint)


def as_values(value: Any) -> tuple[Any, ...]:
    """Return one value, or several in a sequence, as a tuple."""
    return tuple(value) if isinstance(value, Sequence) else (value,)


def number(title: str, name: str, value: Any, least: float, most: float) -> float:
    """Check a finite number within bounds."""
    good = isinstance(value, kinds.Real) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or not least <= value <= most:
        bounds = _bounds(least, most)
        raise _wrong(title, name, value, f"a number {bounds}", f"Give {name} a number {bounds}.")
    return value  # type: ignore[no-any-return]


def _bounds(least: float, most: float) -> str:
    if least == -math.inf:
        return "that is finite"
    return f"of {least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"


def whole(title: str, name: str, value: Any, least: int = 1, most: int = _MOST_PIXELS) -> int:
    """Check a whole number within bounds."""
    good = isinstance(value, kinds.Integral) and not isinstance(value, bool)
    if not good or not least <= int(value) <= most:
        bounds = f"from {least} to {most}" if most < _MOST_PIXELS else f"of at least {least}"
        wanted = f"a whole number {bounds}"
        raise _wrong(title, name, value, wanted, f"Give {name} {wanted}.")
    return int(value)


def pair(title: str, name: str, size: Any) -> tuple[int, int]:
    """Check a size; return (height, width)."""
    if not isinstance(size, Sequence) or isinstance(size, str):
        size = (size, size)
    elif len(size) == 1:
        size = (size[0], size[0])
    if len(size) != 2:
        raise UsageError(
            f"{title}: {name} {size!r} has {len(size)} values.", "Give an int or (height, width)."
        )
    return whole(title, name, size[0]), whole(title, name, size[1])


def numbers(title: str, name: str, values: Any, count: int) -> tuple[float, ...]:
    """Check a number of finite numbers."""
    try:
        floats = tuple(map(float, values))
    except (TypeError, ValueError):
        floats = ()
    if len(floats) != count or not all(map(math.isfinite, floats)):
        hint = f"Give {count} numbers in a tuple."
        raise _wrong(title, name, values, f"{count} finite numbers", hint)
    return floats


def interval(
    title: str, name: str, values: Any, least: float = 0.0, most: float = math.inf
) -> tuple[float, float]:
    """Check (from, to) within bounds."""
    low, high = numbers(title, name, values, 2)
    if not least <= low <= high <= most:
        bounds = _bounds(least, most)
        hint = f"Give {name} two numbers {bounds}, the lower one first."
        raise _wrong(title, name, (low, high), f"(from, to) {bounds}", hint)
    return low, high


def above_zero(title: str, name: str, values: Any) -> tuple[float, float]:
    """Check (least, greatest) above 0."""
    least, greatest = numbers(title, name, values, 2)
    if not 0 < least <= greatest:
        hint = f"Give {name} two numbers above 0, the lower one first."
        raise _wrong(title, name, (least, greatest), "(least, greatest) above 0", hint)
    return least, greatest


def around(middle: float, least: float, most: float) -> Check:
    """Return the check of a range as ColorJitter takes it; (middle, middle) changes nothing."""

    def check(title: str, name: str, value: Any) -> tuple[float, float]:
        if value is None:
            return middle, middle
        if isinstance(value, kinds.Real) and not isinstance(value, bool):
            number(title, name, value, 0, math.inf)
            low = middle - float(value)
            value = (low if least < 0 else max(low, least), middle + float(value))
        return interval(title, name, value, least, most)

    return check


def angles(title: str, name: str, value: Any, counts: tuple[int, ...] = (2,)) -> tuple[float, ...]:
    """Check angles, from and to; a number d means (-d, d)."""
    if isinstance(value, kinds.Real):
        number(title, name, value, 0, math.inf)
        return -float(value), float(value)
    count = len(value) if isinstance(value, Sequence) and len(value) in counts else counts[0]
    values = numbers(title, name, value, count)
    pairs = [interval(title, name, values[at : at + 2], -math.inf) for at in range(0, count, 2)]
    return tuple(angle for pair in pairs for angle in pair)


def fill(title: str, name: str, value: Any) -> tuple[int, int, int]:
    """Check a fill; return three values of 0 to 255, whole as Pillow takes them."""
    values = (0,) if value is None else as_values(value)
    values = values * 3 if len(values) == 1 else values
    red, green, blue = map(int, numbers(title, name, values, 3))
    if min(red, green, blue) < 0 or max(red, green, blue) > 255:
        raise _wrong(title, name, value, "from 0 to 255", f"Give for example {name}=0.")
    return red, green, blue


def padding(title: str, name: str, value: Any) -> tuple[int, ...]:
    """Check padding as torchvision takes it; return (left, top, right, bottom)."""
    values = as_values(value)
    whole_ones = all(isinstance(one, kinds.Integral) and int(one) >= 0 for one in values)
    if len(values) not in (1, 2, 4) or not whole_ones:
        wanted = "1, 2 or 4 ints of 0 or more"
        raise _wrong(title, name, value, wanted, "Give for example padding=4.")
    return tuple(map(int, values)) * (4 // len(values))


def choice(title: str, name: str, value: Any, known: Sequence[str]) -> str:
    """Check one of several names, or an Enum of one."""
    value = getattr(value, "value", value)
    if value not in known:
        raise _wrong(title, name, value, "known", f"Give one of {', '.join(known)}.")
    return str(value)


def switch(title: str, name: str, value: Any) -> bool:
    """Check True or False."""
    if value not in (True, False):
        raise _wrong(title, name, value, "True or False", f"Leave {name} out.")
    return value  # type: ignore[no-any-return]


def interpolation(title: str, name: str, value: Any, known: Sequence[str] = FILTERS) -> str:
    """Check an interpolation that torchvision takes; return its name.

    On PIL images, torchvision's two nearest ones are the same.
    """
    mode = value
    if isinstance(value, int) and not isinstance(value, bool):
        mode = PILLOW_FILTERS.get(int(value))
    mode = getattr(mode, "value", mode)
    mode = "nearest" if mode == "nearest-exact" else mode
    if mode not in known:
        hint = f"Give one of {', '.join(known)}, or torchvision's InterpolationMode of that name."
        raise _wrong(title, name, value, "one that the core has", hint)
    return str(mode)


def interpolations(title: str, name: str, value: Any) -> str | tuple[str, ...]:
    """Check one filter of a resize, or several."""
    several = value if isinstance(value, (list, tuple)) and value else (value,)
    names = tuple(interpolation(title, name, one) for one in several)
    return names if len(names) > 1 else names[0]


def transforms(title: str, name: str, value: Any) -> tuple[Callable[[Any], Any], ...]:
    """Check a list of transforms, at least one."""
    parts = tuple(value) if isinstance(value, Iterable) else None
    if not parts:
        what = "no transforms" if parts == () else f"{value!r} is not a list of transforms"
        raise UsageError(
            f"{title}: {what}.",
            f"Give for example {title}([RandomResizedCrop(224), RandomHorizontalFlip()]).",
        )
    return callables(title, parts)


def callables(
    title: str, parts: Sequence[Any], *, classes: bool = False
) -> tuple[Callable[[Any], Any], ...]:
    """Check that all can be called, and that none is a class without its parentheses."""
    for at, transform in enumerate(parts):
        if not classes:
            require_objects(f"{title}: transform {at}", transform)
        if not callable(transform) and not hasattr(transform, "emit"):  # a step that was read
            raise UsageError(
                f"{title}: transform {at}, {transform!r}, cannot be called.",
                "Give transforms, not their results or names.",
            )
    return tuple(parts)


def require_objects(name: str, transform: Any, holders: Sequence[Any] = ()) -> None:
    """Raise UsageError for a class in a pipeline whose objects are transforms, and for a cycle.

    Classes such as torchvision's ``tv_tensors.Image`` are functions of an image.
    """
    if any(one is transform for one in holders):
        raise UsageError(
            f"{name} is a {type(transform).__name__} that holds it",
            "Leave it out there.",
        )
    if isinstance(transform, type) and any("__call__" in vars(one) for one in transform.__mro__):
        raise UsageError(
            f"{name} is the class {transform.__name__}, not a transform",
            f"Write its parentheses, with its arguments: {transform.__name__}(…).",
        )
    own = getattr(transform, "__dict__", {})
    parts = own.get("transforms", transform)
    modules = own.get("_modules", {}).values()
    for at, one in enumerate(parts if type(parts) in (list, tuple) else modules):
        require_objects(f"{name}: transform {at}", one, (*holders, transform))


# --- types of parameters -------------------------------------------------------------------------


def optional(check: Check) -> Check:
    """Return a check that lets None pass."""
    return lambda title, name, value: None if value is None else check(title, name, value)


def number_from(least: float, most: float) -> Check:
    """Return the check of a finite number within bounds."""
    return partial(number, least=least, most=most)


def whole_from(least: int, most: int = _MOST_PIXELS) -> Check:
    """Return the check of a whole number within bounds."""
    return partial(whole, least=least, most=most)


def range_from(least: float, most: float) -> Check:
    """Return the check of (from, to) within bounds."""
    return partial(interval, least=least, most=most)


#: An int, or (height, width), as in torchvision.
Size: TypeAlias = Annotated["int | Sequence[int]", pair]

#: torchvision's InterpolationMode, Pillow's number of one, or its name: of a resize, several to
#: draw from, or of a warp.
Filter: TypeAlias = Annotated["str | int | enum.Enum", interpolation]
Filters: TypeAlias = Annotated["Filter | Sequence[Filter]", interpolations]
Warp: TypeAlias = Annotated["str | int | enum.Enum", partial(interpolation, known=WARPS)]

#: A value for all channels, or one for each; None: 0.
Fill: TypeAlias = Annotated["float | Sequence[float] | None", fill]
#: A value for masks, which may have 16 bits; None: the images' value.
MaskFill: TypeAlias = Annotated["int | None", optional(whole_from(0, 65535))]

Padding: TypeAlias = Annotated["int | Sequence[int]", padding]
PaddingMode: TypeAlias = Annotated[str, partial(choice, known=PADDING_MODES)]
Probability: TypeAlias = Annotated[float, number_from(0, 1)]
Switch: TypeAlias = Annotated[bool, switch]
Antialias: TypeAlias = Annotated["bool | None", optional(switch)]
Angles: TypeAlias = Annotated["float | Sequence[float]", angles]
AboveZero: TypeAlias = Annotated[Range, above_zero]
Center: TypeAlias = Annotated["Sequence[float] | None", optional(partial(numbers, count=2))]
Transforms: TypeAlias = Annotated[tuple[Any, ...], transforms]
Whole: TypeAlias = Annotated[int, whole]

"""Forms of several views: lists, tuples and dicts of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

#: Views by their numbers, in lists, tuples, dicts.
Form: TypeAlias = "int | list[Form] | dict[Any, Form]"

#: Interpolations of warps, and padding modes, by their numbers in the core.
WARPS = ("nearest", "bilinear", "bicubic")
PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


def in_form(views: Sequence[Any], form: Form) -> Any:
    """Arrange views of a sample, or of a batch, in a form of their numbers."""
    return mapped(form, views.__getitem__)


def leaves(form: Any) -> Iterator[Any]:
    """Yield what the lists, tuples and dicts of a form hold."""
    if isinstance(form, (dict, list, tuple)):
        for one in form.values() if isinstance(form, dict) else form:
            yield from leaves(one)
    else:
        yield form


def mapped(form: Any, change: Callable[[Any], Any]) -> Any:
    """Return a form of the same lists, tuples and dicts, with each leaf changed."""
    if isinstance(form, dict):
        return {key: mapped(one, change) for key, one in form.items()}
    if isinstance(form, (list, tuple)):
        kind = list if isinstance(form, list) else tuple
        return kind(mapped(one, change) for one in form)
    return change(form)

"""Forms of several views: lists, tuples and dicts of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

#: Views by their numbers, in lists, tuples, dicts and `Stack`.
Form: TypeAlias = "int | list[Form] | tuple[Form, ...] | dict[Any, Form] | Stack"

#: Filter of masks: torch's nearest.
MASK_FILTER = "nearest_floor"

#: Interpolations of warps, and padding modes, by their numbers in the core.
WARPS = ("nearest", "bilinear", "bicubic")
PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


@dataclass(frozen=True)
class Stack:
    """Several views in one tensor, whose first dimension they are; by their numbers."""

    images: tuple[Form, ...]


def in_form(views: Sequence[Any], form: Form, batched: bool = False) -> Any:
    """Arrange views of a sample, or of a batch, in a form of their numbers.

    Of a batch (``batched``), tuples become lists, as torch collates them.
    """

    def stack(images: tuple[Any, ...]) -> Any:
        import torch

        return torch.stack(images, int(batched))

    return mapped(form, views.__getitem__, stack, list if batched else tuple)


def leaves(form: Any) -> Iterator[Any]:
    """Yield what the lists, tuples, dicts and stacks of a form hold."""
    if isinstance(form, (dict, list, tuple, Stack)):
        several = form.images if isinstance(form, Stack) else form
        for one in several.values() if isinstance(several, dict) else several:
            yield from leaves(one)
    else:
        yield form


def mapped(
    form: Any,
    change: Callable[[Any], Any],
    stack: Callable[[Any], Any] = Stack,
    several: type[Any] = tuple,
) -> Any:
    """Return a form of the same lists, tuples and dicts, with each leaf changed.

    ``stack`` gets a tuple of changed leaves for each `Stack`; ``several`` is what tuples become.
    """

    def inner(one: Any) -> Any:
        return mapped(one, change, stack, several)

    if isinstance(form, dict):
        return {key: inner(one) for key, one in form.items()}
    if isinstance(form, Stack):
        return stack(tuple(map(inner, form.images)))
    if isinstance(form, (list, tuple)):
        return (list if isinstance(form, list) else several)(map(inner, form))
    return change(form)

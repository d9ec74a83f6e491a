"""Forms of several views: lists, tuples and dicts of their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

#: Views by their numbers, in lists, tuples, dicts and `Stack`.
Form: TypeAlias = "int | list[Form] | tuple[Form, ...] | dict[Any, Form] | Stack"


@dataclass(frozen=True)
class Stack:
    """Several views in one tensor, whose first dimension they are.

    Attributes:
        images: Their numbers.
    """

    images: tuple[Form, ...]


def in_form(views: Sequence[Any], form: Form, batched: bool = False) -> Any:
    """Arrange views in a form.

    Args:
        views: Of a sample, or of a batch.
        form: Of their numbers.
        batched: Whether they are of a batch: then tuples become lists, as torch collates them.
    """
    if isinstance(form, int):
        return views[form]
    if isinstance(form, Stack):
        import torch

        return torch.stack([in_form(views, one) for one in form.images], int(batched))
    if isinstance(form, dict):
        return {name: in_form(views, one, batched) for name, one in form.items()}
    found = [in_form(views, one, batched) for one in form]
    return found if batched or isinstance(form, list) else tuple(found)


def count(form: Form) -> int:
    """Return the number of views in a form."""
    if isinstance(form, int):
        return 1
    several = form.images if isinstance(form, Stack) else form
    return sum(map(count, several.values() if isinstance(several, dict) else several))

"""Other libraries' transforms in the terms of `fastdata.transforms`: one file for each library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastdata.transforms import dinov2, lightly, open_clip, timm, torchvision, transformers, users
from fastdata.transforms.conversion import (
    FAILS,
    HAS_TENSOR,
    NOT_KNOWN,
    Conversion,
    Found,
    override,
)
from fastdata.transforms.descriptions import FiveCrop, Form, Normalize, Stack, TenCrop
from fastdata.transforms.symbols import name_of, package

__all__ = [
    "FAILS",
    "HAS_TENSOR",
    "NOT_KNOWN",
    "Conversion",
    "Found",
    "follow",
    "is_known",
    "name_of",
    "override",
    "parts",
    "translate",
    "views",
]


def _albumentations(transform: Any, kind: str, dtype: str) -> str | None:
    if package(type(transform)) != "albumentations":
        return None
    return (
        "it takes arrays by name, and a dataset hands over an image; call it in a function, as "
        "lambda image: transform(image=numpy.array(image))['image']"
    )


_OTHERS: tuple[Callable[[Any, str, str], Found | None], ...] = (
    timm.translate,
    open_clip.translate,
    transformers.translate,
    lightly.translate,
    dinov2.translate,
    _albumentations,
    users.translate,
)


def parts(transform: Any) -> Sequence[Any] | None:
    """The transforms that one calls one after the other, as a Compose does; None for others."""
    if override(transform):
        return None
    found = torchvision.parts(transform)
    return users.parts(transform) if found is None else found


def views(transform: Any) -> FiveCrop | TenCrop | None:
    """A FiveCrop or TenCrop, in ours; None for anything else."""
    return torchvision.views(transform)


def translate(transform: Any, kind: str, dtype: str) -> Found:
    """One transform that is not a Compose.

    Args:
        transform: Anything.
        kind: What it gets: ``pil``, ``tensor``, ``image``, ``array``, or ``own``, which is as good
            as any.
        dtype: What it gets, as ``Output.dtype`` has it.

    Returns:
        What it does; or why that is not known, in words.
    """
    if reason := override(transform):
        return reason
    for other in _OTHERS:
        found = other(transform, kind, dtype)
        if found is not None:
            return found
    return torchvision.translate(transform, kind, dtype)


def follow(transform: Any, form: Form) -> tuple[list[tuple[int, list[Any]]], Form] | None:
    """What a transform does to several views, each by itself; None: that is not known.

    As `fastdata.transforms.users.follow`.
    """
    if isinstance(form, Stack) and isinstance(translate(transform, "tensor", "float32"), Normalize):
        numbers = {number for number in form.images if isinstance(number, int)}
        return [(number, [transform]) for number in sorted(numbers)], form
    return users.follow(transform, form)


def is_known(transform: Any) -> bool:
    """Whether there is something in these files for a transform of this type."""
    others = (other(transform, "pil", "uint8") for other in _OTHERS)
    return torchvision.is_known(transform) or any(
        found is not None and not str(found).startswith(NOT_KNOWN) for found in others
    )

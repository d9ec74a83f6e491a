"""Containers of transforms: pipelines, views, and random choices among transforms.

They hold transforms of any library, so a call with one image compiles them first.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from PIL import Image

from fastdata.errors import UsageError
from fastdata.transforms import checks
from fastdata.transforms.base import Transform, call
from fastdata.transforms.checks import Transforms
from fastdata.transforms.compile import read_pipeline
from fastdata.transforms.forms import in_form
from fastdata.transforms.nodes import Apply, ChosenStep, ShuffledSteps
from fastdata.transforms.reading import Chain, Several


class _Container(Transform):
    """Base of transforms that hold other transforms."""

    def __call__(self, image: Image.Image) -> Any:
        """Transform one image; as :meth:`Transform.__call__`."""
        return call(self, image, *read_pipeline(self))


@dataclass(frozen=True)
class Compose(Chain, _Container):
    """Several transforms, one after the other.

    Attributes:
        transforms: Those of this package, or any callables. From the first callable that the core
            cannot do, each is called with the result before it, one sample at a time; the first
            gets a tensor, (3, height, width), uint8 or floats, or the list that Views make.
    """

    transforms: Transforms


@dataclass(frozen=True)
class RandomApply(Apply, _Container):
    """Do several transforms, one after the other, or none of them.

    Attributes:
        transforms: Those of this package, or torchvision's.
        p: Probability.
    """


@dataclass(frozen=True)
class RandomChoice(ChosenStep, _Container):
    """Do one of several transforms.

    Attributes:
        transforms: Those of this package, or torchvision's.
        p: Their weights, 0 or more, not all 0; None: all the same.
    """


@dataclass(frozen=True)
class RandomOrder(ShuffledSteps, _Container):
    """Do several transforms in a random order.

    Attributes:
        transforms: Those of this package, or torchvision's.
    """


@dataclass(frozen=True, init=False)
class Views(Several, Transform):
    """Several views of each image, of any sizes: a list of tensors, or a dict of lists.

    ::

        Views(first, second, (local, 8))
        Views(global_crops=[first, second], local_crops=(local, 8))

    A batch has the same form, of one tensor a view: (N, 3, height, width). On the native path an
    image is read once, and the views decode their common part once. A random step that all views
    would share has no place before it: steps before Views only prepare the image.

    Args:
        transforms: The views, each a transform or a pipeline of them, or (transform, count).
        count: Number of views of one transform, which differ by its draws.
        groups: Views by name, instead of ``transforms``: a list of them, or one; or the name of an
            earlier group, whose views it has, too.

    Attributes:
        transforms: One for each view.
        form: The views' numbers, in a list or a dict of lists.
    """

    def __init__(self, *transforms: Any, count: int | None = None, **groups: Any) -> None:
        if count is not None:
            if len(transforms) != 1:
                raise UsageError(
                    f"Views: count={count!r} is for one transform, and there are "
                    f"{len(transforms)}.",
                    "Leave it out, or give one transform.",
                )
            transforms *= checks.whole("Views", "count", count)
        if transforms and groups:
            raise UsageError(
                f"Views: there are transforms without a name beside {', '.join(groups)}.",
                "Give names to all of them, or to none.",
            )
        views = _repeated(transforms)
        named: dict[str, list[int]] = {}
        for name, group in groups.items():
            if isinstance(group, str) and group in named:
                named[name] = named[group]
                continue
            several = isinstance(group, (list, tuple)) and not _has_count(group)
            first = len(views)
            views += _repeated(group if several else [group])
            named[name] = list(range(first, len(views)))
        if len(views) < (1 if named else 2):
            raise UsageError(
                f"Views makes {len(views)}, which needs no list.",
                "Give at least two transforms, or one and count=2.",
            )
        form: Any = named or list(range(len(views)))
        self._keep(transforms=checks.callables("Views", views), form=form)

    def __call__(self, image: Image.Image) -> list[Any] | dict[str, list[Any]]:
        """Return each view of one image; as :meth:`Transform.__call__`."""
        views = [transform(image) for transform in self.transforms]
        return in_form(views, self.form)  # type: ignore[no-any-return]


def _has_count(view: Any) -> bool:
    return isinstance(view, tuple) and len(view) == 2 and isinstance(view[1], numbers.Integral)


def _repeated(transforms: Iterable[Any]) -> list[Any]:
    """Return one transform for each view, of transforms and (transform, count)."""
    views: list[Any] = []
    for view in transforms:
        one, count = view if _has_count(view) else (view, 1)
        views += [one] * checks.whole("Views", "count", count)
    return views

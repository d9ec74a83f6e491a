"""Samples of an image and its targets, which one transform takes together.

``torchvision.transforms.v2`` moves boxes, masks and key points with the image. It takes a sample of
any form, and knows targets by their class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastdata.transforms.forms import leaves, mapped

#: Kinds of targets that follow the image's geometry.
MOVED = ("boxes", "points", "mask", "outlines")

#: Why a step cannot follow a target that is `Target.settled`.
CONVERTED = "boxes or key points are converted before it, to other numbers than those in the core"


@dataclass(frozen=True)
class Target:
    """A target, and how it is delivered.

    Attributes:
        kind: One of `MOVED`; ``geometry``; or ``values``, tensors that no transform changes but for
            leaving out the entries of boxes.
        format: Of boxes: one of `fastdata.storage.fields.BOXES`; after `RELATIVE` of that module,
            shares of the sides.
        dtype: Name of the torch dtype that it is converted to; "": none.
        sanitised: How many `SanitizeBoundingBoxes`, from the first on, leave out its entries.
        pure: Whether it is a plain tensor, which transforms leave as it is.
    """

    kind: str
    format: str = ""
    dtype: str = ""
    sanitised: int = 0
    pure: bool = False

    @property
    def settled(self) -> bool:
        """Whether it is converted so that later steps would compute with other numbers."""
        return self.kind in ("boxes", "points") and self.dtype not in ("", "float32", "float64")

    def converted(self, tensor: Any) -> Any:
        """Return a tensor of it in the dtype that it is delivered in."""
        return tensor.to(getattr(sys.modules["torch"], self.dtype)) if self.dtype else tensor


@dataclass(frozen=True)
class Joint:
    """Form of a sample, and its targets, the fields beside the image, by name.

    A transform is called with ``form``: a tuple of names of fields, or of lists, tuples and dicts
    of these, ``image`` among them. ``pure``: targets are plain tensors. ``as_image``: the image is
    of torchvision's class. ``sanitised`` is the number of `SanitizeBoundingBoxes`.
    """

    form: tuple[Any, ...]
    targets: Mapping[str, Target]
    pure: bool = False
    as_image: bool = False
    sanitised: int = 0

    def names(self, *kinds: str) -> list[str]:
        """Return the targets of some kinds."""
        return [name for name, one in self.targets.items() if one.kind in kinds]

    @property
    def still(self) -> bool:
        """Whether targets that would follow the image are plain tensors, so that they do not."""
        return self.pure or any(one.pure for one in self.targets.values() if one.kind in MOVED)

    @property
    def settled(self) -> bool:
        """Whether a target is `Target.settled`."""
        return any(one.settled for one in self.targets.values())

    def changed(self, names: Iterable[str], **changes: Any) -> Joint:
        """Return the same with other attributes of some targets."""
        replaced = {name: replace(self.targets[name], **changes) for name in names}
        return replace(self, targets={**self.targets, **replaced})

    def chosen(self, getter: Callable[[Any], Any]) -> list[str] | str:
        """Return the fields that a function takes out of a sample, or why that is not known.

        It returns one field, several in a list or tuple, or None.
        """
        marks = {name: object() for name in leaves(self.form)}
        sample = mapped(self.form, marks.__getitem__)
        try:
            taken = getter(sample)
        except Exception as error:
            return f"it raises {type(error).__name__} for a sample: {error}"
        names = {id(mark): name for name, mark in marks.items()}
        several = taken if isinstance(taken, (list, tuple)) else [] if taken is None else [taken]
        if not all(id(one) in names for one in several):
            return "it does more than to take fields out of a sample"
        return [names[id(one)] for one in several]

    def sample(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a sample of this form, of its fields' values by name."""
        made: tuple[Any, ...] = mapped(self.form, values.__getitem__)
        return made


class Moved(NamedTuple):
    """Boxes and points of a batch that have followed their images.

    Attributes:
        boxes: float32, (M, 4): left, upper, right, lower, in pixels.
        offsets: int64, (N + 1,): sample i has ``boxes[offsets[i] : offsets[i + 1]]``.
        passed: int32, (B,): how many `SanitizeBoundingBoxes` left each box that there was.
        first: int64, (N + 1,): As ``offsets``, of these.
        points: float32, (K, 2): as many as there were.
        point_offsets: As ``offsets``, of the points.
        sizes: int32, (N, 2): width and height of each image; 1 where the program does not fit.
        source_sizes: int32, (N, 2): width and height of each image before.
        matrices: float64, (N, 3, 3): from coordinates before to those after.
    """

    boxes: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int64]
    passed: npt.NDArray[np.int32]
    first: npt.NDArray[np.int64]
    points: npt.NDArray[np.float32]
    point_offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    source_sizes: npt.NDArray[np.int32]
    matrices: npt.NDArray[np.float64]

    def kept(self, steps: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the boxes that so many `SanitizeBoundingBoxes` left, and their offsets."""
        places = np.flatnonzero(self.passed >= steps)
        return places, np.searchsorted(places, self.first)

    def patched(self, other: Moved, to: Sequence[int], good: Sequence[int]) -> Moved:
        """Return the same with samples ``good`` of another batch instead of ``to``."""
        order = np.arange(len(self.sizes))
        order[list(to)] = len(order) + np.array(good, np.int64)

        def taken(name: str, of: str) -> list[npt.NDArray[Any]]:
            parts = [np.split(getattr(one, name), getattr(one, of)[1:-1]) for one in (self, other)]
            return [(*parts[0], *parts[1])[at] for at in order]

        def offsets(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
            return np.cumsum([0, *map(len, parts)], dtype=np.int64)

        boxes, points = taken("boxes", "offsets"), taken("points", "point_offsets")
        passed = taken("passed", "first")
        return Moved(
            np.concatenate(boxes),
            offsets(boxes),
            np.concatenate(passed),
            offsets(passed),
            np.concatenate(points),
            offsets(points),
            np.concatenate([self.sizes, other.sizes])[order],
            np.concatenate([self.source_sizes, other.source_sizes])[order],
            np.concatenate([self.matrices, other.matrices])[order],
        )


def by_heuristic(sample: Any) -> Any:
    """Return the labels that torchvision's SanitizeBoundingBoxes finds; else raise LookupError."""
    if isinstance(sample, (list, tuple)):
        sample = sample[1] if len(sample) > 1 else None
    if not isinstance(sample, Mapping):
        raise LookupError("the target is no dict")
    exact = [key for key in sample if key.lower() == "labels"]
    keys = exact + [key for key in sample if "label" in key.lower()]
    if not keys:
        raise LookupError("no key has 'label' in it")
    return sample[keys[0]]

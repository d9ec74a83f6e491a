"""Steps for the code of scripts that takes samples with targets, as `tracing_samples` records it.

Presets and pipelines that only hand a sample on become the transforms that they call. A class
derived from ``torchvision.transforms.v2.Transform`` becomes what its ``transform`` does to each
part of a sample.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastdata.transforms.crops import (
    Pad,
    PadToSize,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
from fastdata.transforms.joint import MOVED
from fastdata.transforms.originals import is_copied, overridden, transform_class
from fastdata.transforms.outcomes import NOT_KNOWN, Declined, not_known
from fastdata.transforms.pairs import Lack, Move
from fastdata.transforms.reading import Reading, Step
from fastdata.transforms.symbols import Path, Unknown
from fastdata.transforms.tracing_leaves import (
    State,
    torch_class,
    trace_leaf,
)
from fastdata.transforms.tracing_samples import Leafwise, entry, trace_sample


def of_leaves(transform: Any) -> Step | None:
    """Return the step of an object of a class derived from ``Transform``; None for others."""
    if isinstance(transform, Leafwise):
        return _OfLeaves(transform.transform)
    return _OfLeaves(transform) if _is_leafwise(transform) else None


def courses(transform: Any, count: int) -> list[Path]:
    """Return the courses of a user's code that takes a sample; none for anything else.

    Args:
        transform: The code.
        count: Parts of a sample: the image, and the target if there is one.

    Raises:
        Unknown: They are not known.
    """
    if _is_leafwise(transform):
        return []
    found = trace_sample(transform, count)
    if isinstance(found, str) and found:
        raise Unknown(found)
    return [] if isinstance(found, str) else found


def _is_leafwise(transform: Any) -> bool:
    """Return whether torchvision's own ``forward`` calls a user's ``transform``."""
    base = transform_class()
    if base is None or not isinstance(transform, base):
        return False
    if is_copied(type(transform).__module__):
        return False
    return entry(transform) == (base, "forward")


@dataclass(frozen=True)
class _OfLeaves(Step):
    """A user's class derived from torchvision's ``Transform``.

    Attributes:
        transform: The object.
    """

    transform: Any

    @property
    def title(self) -> str:
        return type(self.transform).__name__

    def read(self, reading: Reading) -> Declined | None:
        try:
            return self._read(reading)
        except Unknown as error:
            return not_known(str(error))

    def _read(self, reading: Reading) -> Declined | None:
        transform, joint = self.transform, reading.joint
        if reason := overridden(transform, transform_class()):
            return Declined(reason)
        if joint is None or reading.kind == "own":
            return NOT_KNOWN
        given = _states(reading)
        chosen = [name for name in given if self._takes(given, name)]
        after = dict(given)
        for at, name in enumerate(chosen):
            after[name] = _one(trace_leaf(transform, [given[one] for one in chosen], at))
        moves = {name: [one for one in state.done if isinstance(one, Move)]
                 for name, state in after.items()}  # fmt: skip
        for name, several in moves.items():
            alike = [(one.name, one.values) for one in several]
            if alike != [(one.name, one.values) for one in moves["image"]]:
                return not_known_of(name)
        for at, one in enumerate(after["image"].done):
            step = one
            if isinstance(one, Move):
                number = sum(isinstance(other, Move) for other in after["image"].done[:at])
                masks = joint.names("mask", "outlines")
                step = _step(one, [moves[name][number] for name in masks])
            if (declined := reading.take(step)) is not None:
                return declined
        if after["image"].dtype == "levels":
            return Declined("it makes floats from 0 to 255")
        joint = reading.joint
        for name in joint.names("boxes") if joint is not None else ():
            state = after[name]
            words = f"{'relative ' if state.relative else ''}{state.format}"
            joint = joint.changed([name], format=words, pure=state.pure)  # type: ignore[union-attr]
        reading.joint = joint
        return None

    def _takes(self, given: dict[str, State], name: str) -> bool:
        """Return whether torchvision's Transform calls ``transform`` with a leaf."""
        types = self.transform._transformed_types
        if type(types) is not tuple or not all(isinstance(one, type) for one in types):
            raise Unknown("its _transformed_types are not known")
        state = given[name]
        if state.pure and name != "image":
            return False  # where there is an image, plain tensors stay
        if any(one is not state.cls and issubclass(one, state.cls) for one in types):
            raise Unknown("its _transformed_types tell images from others of their class")
        return issubclass(state.cls, types)


def not_known_of(name: str) -> Declined:
    """Return that a transform moves the image and a target differently."""
    return not_known(f"it moves the image and {name!r} differently")


def _states(reading: Reading) -> dict[str, State]:
    """Return the leaves of a sample that a transform has in hand, by name."""
    from PIL import Image

    joint: Any = reading.joint
    tensor = sys.modules["torch"].Tensor
    image = {"pil": Image.Image, "image": torch_class("Image"), "tensor": tensor}.get(reading.kind)
    if image is None:
        raise Unknown("it has an array in hand")
    found = {"image": State("image", image, dtype=reading.dtype)}
    classes = {"boxes": "BoundingBoxes", "points": "KeyPoints", "mask": "Mask", "outlines": "Mask"}
    for name in joint.names(*MOVED):
        target = joint.targets[name]
        pure = joint.pure or target.pure
        cls = tensor if pure else torch_class(classes[target.kind])
        meaning = target.format.removeprefix("relative ")
        found[name] = State(target.kind, cls, meaning, meaning != target.format)
    return found


def _one(courses: list[Path] | str) -> State:
    """Return the result of several courses, of which all but one do nothing to a leaf."""
    if isinstance(courses, str):
        raise Unknown(courses)
    results: list[State] = [path.result for path in courses]
    if len({replace(one, done=()) for one in results}) > 1:
        raise Unknown("its result depends on the image's size")
    moved = [one for one in results if one.done]
    if len(moved) > 1:
        raise Unknown("its result depends on the image's size")
    return moved[0] if moved else results[0]


def _step(move: Move, of_masks: Sequence[Move]) -> Any:
    """Return the step of a move of the image, and of masks as far as there are any."""
    if move.name == "horizontal_flip":
        return RandomHorizontalFlip(1.0)
    if move.name == "vertical_flip":
        return RandomVerticalFlip(1.0)
    *padding, mode = move.values
    fills = {one.own for one in of_masks if one.own != move.own}
    if len(fills) > 1 or any(isinstance(fill, (list, tuple)) for fill in fills):
        raise Unknown("it fills masks with other values")
    mask_fill = fills.pop() if fills else None
    if not any(isinstance(one, Lack) for one in padding):
        return Pad(tuple(padding), move.own, mode, mask_fill=mask_fill)
    *before, right, below = padding if len(padding) == 4 else (None, None, None)
    size = _least(below, "height"), _least(right, "width")
    if any(before):
        raise Unknown("it pads on the left or above by what is missing")
    return PadToSize(size, move.own, mode, mask_fill=mask_fill)


def _least(padding: Any, axis: str) -> int:
    """Return the least side that padding by what is missing leaves."""
    if padding == 0:
        return 1
    if not isinstance(padding, Lack) or padding.axis != axis:
        raise Unknown("it pads a side by other than what it is missing")
    return padding.size

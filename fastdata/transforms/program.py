"""Reading a pipeline of transforms: which of them can be composed, and where the tail starts.

Whether steps can be composed depends on their arguments alone, so it is decided once, here;
`fastdata.transforms.geometry` then composes without asking.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from fastdata.transforms import geometry
from fastdata.transforms import torchvision as torchvision_recipe
from fastdata.transforms.descriptions import (
    CenterCrop,
    Compose,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Transform,
)

_Pair: TypeAlias = tuple[int, int]

# Stands after each Compose of ours: what it is in gets a tensor from it.
_RETURNED = object()
_GEOMETRY = (RandomResizedCrop, Resize, CenterCrop, RandomCrop, RandomHorizontalFlip)


class Program:
    """What the transforms so far amount to; :meth:`add` takes the next one or says why not.

    ``kind`` is what the pipeline would have in hand: ``pil``, a ``tensor``, torchvision's tensor
    ``image``; or ``own``: the result of ours, which stands for either.
    """

    def __init__(self) -> None:
        self.steps: list[Transform] = []
        self.tail: list[Callable[[Any], Any]] = []
        self.why = ""  # the first of the tail is not in the head
        self.last = ""  # what determined the size last, for messages
        self.fixed: _Pair | None = None
        self.filter: str | None = None
        self.cropped = False  # in this stage: since the resize, or before it
        self.flipped = False
        self.kind = "pil"
        self.dtype = "uint8"
        self.mean: tuple[float, float, float] | None = None
        self.std: tuple[float, float, float] | None = None
        self.channels_last = True

    @property
    def misplaced(self) -> Transform | None:
        """The first of our transforms in the tail: called there, it would fail."""
        return next((call for call in self.tail if isinstance(call, Transform)), None)

    def tail_calls(self) -> tuple[Callable[[Any], Any], ...]:
        """What to call after the head."""
        if self.tail and self.kind == "image":
            # torchvision's own transforms may tell its image tensors from others.
            return (tensor_image(), *self.tail)
        return tuple(self.tail)

    def refusal(self) -> str:
        """Why there is no recipe, or one of ours is misplaced."""
        misplaced = self.misplaced
        if self.tail and (self.fixed is None or misplaced is self.tail[0]):
            name = name_of(self.tail[0])
            if misplaced is self.tail[0]:
                return f"{name} cannot be done here: {self.why}."
            return (
                f"{name} comes before the images have one size: {self.why}. Put it after what "
                "brings them to one size, such as RandomResizedCrop or CenterCrop."
            )
        if self.tail:
            unknown = name_of(self.tail[0])
            return (
                f"{name_of(misplaced)} comes after {unknown}, which the core cannot do: "
                f"{self.why}. Put it before."
            )
        after = f" after {self.last}" if self.last else ""
        return (
            f"The images have different sizes{after} and cannot make a batch: add "
            "fastdata.transforms.CenterCrop(224), or use a Resize to (height, width)."
        )

    def add(self, transform: Any, ours: bool) -> str | None:
        """Take the next transform into the head.

        Args:
            transform: One transform.
            ours: Whether the innermost Compose is ours or a list, rather than torchvision's.

        Returns:
            Why it cannot be done here; None if it can.
        """
        if type(transform) in (*_GEOMETRY, Normalize):
            if self.kind in ("tensor", "image"):
                return "it works on PIL images, and has a tensor here"
            if isinstance(transform, Normalize):
                reason = self.normalise(transform)
            else:
                reason = self.geometry(transform)
            if reason is None:
                # Each of ours returns a tensor, when it is called by somebody else.
                self.kind = "own" if ours else "tensor"
            return reason
        found = torchvision_recipe.translate(transform, self.kind, self.dtype)
        if isinstance(found, str):
            return found
        if isinstance(found, Normalize):
            return self.normalise(found)
        if isinstance(found, Transform):
            return self.geometry(found)
        if found.kind is not None:
            self.kind = found.kind
            self.channels_last = False
        if found.dtype is not None:
            self.dtype = found.dtype
        return None

    def normalise(self, step: Normalize) -> str | None:
        """Take a normalisation; return why it cannot be done, or None."""
        if self.mean is not None:
            return "the values are already normalised"
        if self.dtype == "uint8":
            self.dtype = "float32"
        self.mean, self.std = step.mean, step.std
        return None

    def geometry(self, step: Transform) -> str | None:
        """Take a step of geometry; return why it cannot be composed, or None."""
        size: _Pair | None
        if isinstance(step, RandomHorizontalFlip):
            self.flipped = True
        elif isinstance(step, (Resize, RandomResizedCrop)):
            size = None
            if isinstance(step.size, tuple):
                size = (step.size[1], step.size[0])
            elif isinstance(step, Resize) and self.fixed is not None:
                wide, high = geometry.resized_size(step, *self.fixed)
                size = (int(wide), int(high))
            if isinstance(step, Resize) and size is not None and size == self.fixed:
                return None  # nothing changes
            if self.filter is not None:
                return "it would resize a second time"
            if step.interpolation == "nearest" and self.flipped:
                return "resizing with 'nearest' after a flip gives other pixels than before it"
            self.fixed, self.filter, self.cropped = size, step.interpolation, False
        elif isinstance(step, (CenterCrop, RandomCrop)):
            size = (step.size[1], step.size[0])  # type: ignore[index]
            larger = self.fixed is not None and (size[0] > self.fixed[0] or size[1] > self.fixed[1])
            pads = larger or self.fixed is None
            if isinstance(step, RandomCrop):
                padded = any(step.padding)  # type: ignore[arg-type]
                if larger and not padded and not step.pad_if_needed:
                    return "it is larger than the images, and may not pad them"
                pads = padded or (pads and step.pad_if_needed)
            if pads and self.cropped:
                return "it would pad what was cropped"
            if pads and self.mean is not None:
                return "it would pad with zeros what is normalised"
            self.fixed, self.cropped = size, True
        self.steps.append(step)
        if not isinstance(step, RandomHorizontalFlip):
            self.last = name_of(step)
        return None


def read(transform: Any) -> Program:
    """The pipeline as far as it can be composed; the rest is its tail."""
    program = Program()
    if isinstance(transform, Transform):
        program.kind = "own"
    for one, ours in _flat(transform, True):
        if one is _RETURNED:
            if not program.tail and program.kind in ("pil", "own"):
                program.kind = "own" if ours else "tensor"
            continue
        if not program.tail:
            reason = program.add(one, ours)
            if reason is None:
                continue
            program.why = reason
        program.tail.append(one)
    return program


def _flat(transform: Any, ours: bool) -> Iterator[tuple[Any, bool]]:
    """The transforms one by one, each with whether it stands in a Compose of ours."""
    if type(transform) is Compose:
        for part in transform.transforms:
            yield from _flat(part, True)
        yield _RETURNED, ours
        return
    if isinstance(transform, (list, tuple)):
        parts: Sequence[Any] = tuple(transform)
        ours = True
    else:
        inner = torchvision_recipe.parts(transform)
        if inner is None:
            yield transform, ours
            return
        parts, ours = inner, False
    for part in parts:
        yield from _flat(part, ours)


def tensor_image() -> Any:
    """The class of torchvision's image tensors; None where torchvision is not in use."""
    return getattr(sys.modules.get("torchvision.tv_tensors"), "Image", None)


def name_of(transform: Any) -> str:
    """What to call a transform in a message."""
    name = getattr(transform, "__name__", None) or type(transform).__name__
    if isinstance(transform, (Resize, CenterCrop, RandomCrop, RandomResizedCrop)):
        return f"{name}({dimensions(transform)})"
    return str(name)


def dimensions(step: Any) -> str:
    """The size of a step in words."""
    return f"{step.size[1]} x {step.size[0]}" if isinstance(step.size, tuple) else str(step.size)

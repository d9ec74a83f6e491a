"""Pixel programs: augmentations as a tree that the core draws and runs for each sample.

The tree has the form of ``native/augment/program.h``: nodes in pre-order, their values, and tables
that values are taken from. Each node has draws of its own, so it draws by the sample's key alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from fastdata import _native
from fastdata.errors import UsageError
from fastdata.transforms.forms import MASK_FILTER, WARPS

# The first draw of a program; geometry has those before it (`fastdata.transforms.geometry`).
_FIRST_DRAW = 1 << 16

# Enum classes Unit, Rounding and Mixing of native/augment/program.h.
WIDTH, HEIGHT = 1, 2
TO_ZERO, TO_EVEN, UP = 1, 2, 3
SUM, BLENDED_SUM, BLENDS = 0, 1, 2

# Nodes that only lead to others.
_WITH_CHILDREN = ("sequence", "apply", "choice", "order", "sample", "mix")

# Operations and leaves that move pixels, or boxes. Masks keep their values in all others.
_MOVING_CALLS = (
    *("flip_horizontal", "flip_vertical", "crop", "resize", "pad"),
    *("clamp_boxes", "sanitize_boxes"),
)
_STILL_LEAVES = ("shuffle_channels", "erase")

# Operations that torchvision computes differently on tensors of bytes and on PIL images.
_ON_TENSORS = ("contrast", "saturation", "sharpness", "hue", "grayscale", "autocontrast")


class Number(NamedTuple):
    """A value of a node: ``struct Value`` of native/augment/program.h."""

    kind: str
    draw: int = 0
    a: float = 0.0
    b: float = 0.0
    first: int = 0
    entries: int = 0
    unit: int = 0
    least: float = -math.inf
    greatest: float = math.inf
    sign_draw: int = -1
    plus: float = 0.0
    rounding: int = 0


@dataclass(frozen=True)
class Bytes:
    """Bytes of a mask's pixels, as channels of an image that a program moves.

    From the ``first`` on, ``count`` (1 to 3) are those of ``dtype``'s values, in NumPy's words.
    """

    dtype: str
    first: int
    count: int

    def fill(self, value: float) -> tuple[int, ...]:
        """Return the bytes of a value; raise UsageError if the mask cannot have it."""
        found = np.array(value).astype(self.dtype)
        if found.dtype != np.bool_ and found != value:
            raise UsageError(
                f"a fill of {value:g} does not fit into a mask of {found.dtype}",
                "Give a smaller one.",
            )
        whole = found.tobytes()
        return tuple(whole[(self.first + at) % len(whole)] for at in range(3))


class Emits(Protocol):
    """A step that a tree can have."""

    def emit(self, tree: Builder) -> None:
        """Build the step's nodes."""


class Builder:
    """Builds a program node by node, for images or for the bytes of a mask.

    The program of a mask draws what that of its image does, and moves pixels as torchvision's v2
    moves those of masks.
    """

    def __init__(self, mask: Bytes | None = None) -> None:
        self._mask = mask
        self._nodes: list[tuple[str, str, int, int, int, int]] = []
        self._values: list[Number] = []
        self._tables: list[float] = []
        self._draws = _FIRST_DRAW
        self._channels = 3  # of the image so far
        self._tensors = 0  # 1 or 2: compute as torchvision's v1 or v2 does on tensors
        self._filled = True

    @property
    def is_random(self) -> bool:
        """Whether any node draws."""
        return self._draws > _FIRST_DRAW

    @property
    def is_empty(self) -> bool:
        """Whether no node changes an image."""
        return all(kind in _WITH_CHILDREN for kind, *_ in self._nodes)

    def program(self) -> _native.PixelProgram:
        """Return the core's program."""
        return _native.PixelProgram(self._nodes, self._values, self._tables)

    # --- nodes -------------------------------------------------------------------------------

    @contextmanager
    def node(self, kind: str, *values: Number | float, draws: int = 0) -> Iterator[None]:
        """Add a node; build its children inside."""
        at = len(self._nodes)
        self.leaf(kind, *values, draws=draws)
        yield
        kind, operation, _, first, count, draw = self._nodes[at]
        self._nodes[at] = (kind, operation, len(self._nodes), first, count, draw)

    def leaf(self, kind: str, *values: Number | float, draws: int = 0, operation: str = "") -> None:
        """Add a node without children."""
        if self._mask is not None and kind in _STILL_LEAVES:
            kind, values = "sequence", ()
        first = len(self._values)
        self._values += [
            value if isinstance(value, Number) else Number("constant", a=float(value))
            for value in values
        ]
        end = len(self._nodes) + 1
        self._nodes.append((kind, operation, end, first, len(values), self.draw(draws)))

    def call(self, operation: str, *values: Number | float, draws: int = 0) -> None:
        """Add a leaf that calls an operation."""
        if self._mask is not None and operation not in _MOVING_CALLS:
            self.leaf("sequence", draws=draws)
            return
        if self._tensors and operation in _ON_TENSORS:
            operation, values = f"tensor_{operation}", (*values, self._tensors)
        self.leaf("call", *values, draws=draws, operation=operation)

    def grayscale(self, channels: int | None = None) -> None:
        """Add a leaf that makes the image grey; without a number, its channels stay as many."""
        if self._tensors == 1 and self._channels == 1:
            return  # v1 leaves tensors of one channel as they are
        self._channels = channels or self._channels
        self.call("grayscale", self._channels)

    def shuffle_channels(self) -> None:
        """Add a leaf that puts the channels into a random order."""
        if self._channels == 3:
            self.leaf("shuffle_channels", draws=2)

    def warp(
        self,
        kind: str,
        values: Sequence[Number | float],
        step: Any,
        rest: Sequence[float] = (),
        draws: int = 0,
    ) -> None:
        """Add a leaf that warps with the step's interpolation and fill."""
        fill = self.fill_of(step) if self._filled or self._mask is not None else (-1, -1, -1)
        interpolation = WARPS.index(step.interpolation if self._mask is None else "nearest")
        on_tensors = self._tensors > 0 or self._mask is not None
        self.leaf(kind, *values, interpolation, *fill, *rest, on_tensors, draws=draws)

    def fill_of(self, step: Any) -> tuple[float, ...]:
        """Return the value of each channel that a step fills with."""
        fill: tuple[float, ...] = step.fill
        if self._mask is None:
            return fill
        return self._mask.fill(fill[0] if step.mask_fill is None else step.mask_fill)

    @contextmanager
    def maybe(self, p: float) -> Iterator[None]:
        """Do what is built inside with probability p."""
        if p >= 1:
            with self.node("sequence"):
                yield
        else:
            with self.node("apply", p, draws=1):
                yield

    @contextmanager
    def on_tensors(self, version: int, filled: bool) -> Iterator[None]:
        """Compute what is built inside as torchvision's version does on tensors."""
        before = self._tensors, self._filled
        self._tensors, self._filled = version, filled
        yield
        self._tensors, self._filled = before

    def apart(self, steps: Sequence[Emits]) -> None:
        """Add one node for each step, however many nodes it has."""
        for step in steps:
            with self.node("sequence"):
                step.emit(self)

    def one_channel(self) -> None:
        """Leave the first of three equal channels."""
        self.leaf("call", 1, operation="grayscale")

    # --- values ------------------------------------------------------------------------------

    def draw(self, count: int = 1) -> int:
        """Reserve draws; return the first."""
        first, self._draws = self._draws, self._draws + count
        return first

    def threshold(self, value: float) -> float:
        """Return the value that bytes are compared with; tensors have it in single precision."""
        return float(np.float32(value)) if self._tensors else value

    def uniform(self, a: float, b: float, **rest: Any) -> Number:
        """Draw between a and b in single precision; equal ends need no draw."""
        if a == b:
            return Number("constant", a=float(np.float32(a)), **rest)
        return Number("uniform", self.draw(), a, b, **rest)

    def table(self, entries: Sequence[float], signed: bool = False, **rest: Any) -> Number:
        """Draw one of several numbers uniformly; if signed, draw its sign, too."""
        sign = {"sign_draw": self.draw()} if signed else {}
        if len(entries) == 1:
            return Number("constant", a=entries[0], **sign, **rest)
        first = len(self._tables)
        self._tables += entries
        return Number("table", self.draw(), first=first, entries=len(entries), **sign, **rest)

    def filter(self, interpolation: str | Sequence[str]) -> Number | float:
        """Return the number of a resize's filter; draw one of several."""
        if self._mask is not None:
            one = isinstance(interpolation, str)
            name = MASK_FILTER
            interpolation = name if one else [name] * len(interpolation)
        if isinstance(interpolation, str):
            return float(_native.FILTERS.index(interpolation))
        return self.table([float(_native.FILTERS.index(name)) for name in interpolation])


def tree_of(steps: Sequence[Emits], mask: Bytes | None = None) -> Builder:
    """Build the tree of several steps, one after the other; see `Builder`."""
    builder = Builder(mask)
    with builder.node("sequence"):
        if mask is not None and mask.count == 1:
            builder.one_channel()
        for step in steps:
            step.emit(builder)
    return builder


@lru_cache(maxsize=64)
def native_program(steps: tuple[Emits, ...], mask: Bytes | None = None) -> _native.PixelProgram:
    """Return the core's program of several steps; equal steps share one."""
    return tree_of(steps, mask).program()

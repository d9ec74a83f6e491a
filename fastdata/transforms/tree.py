"""Programs: steps as a tree that the core draws and runs for each sample.

The tree has the form of ``native/augment/program.h``: nodes in pre-order, their values, and tables
that values are taken from. Each node has draws of its own, so it draws by the sample's key alone.
The core folds the leading steps into the region that it decodes; the others run on pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from fastdata import _native
from fastdata.errors import UsageError
from fastdata.transforms.forms import PADDING_MODES, WARPS

# Draws of each leading step that draws, of which the last chooses its filter; and the first draw of
# the others.
_LEADING_DRAWS, _FILTER_DRAW, _FIRST_DRAW = 32, 22, 1 << 16

# Enum classes Unit, Rounding and Mixing of native/augment/program.h.
WIDTH, HEIGHT = 1, 2
TO_ZERO, TO_EVEN, UP = 1, 2, 3
SUM, BLENDED_SUM, BLENDS = 0, 1, 2

# Nodes that only lead to others.
_WITH_CHILDREN = ("sequence", "apply", "choice", "order", "sample", "mix")

# Steps on pixels that leave them in their places, as operations do.
_STILL_STEPS = ("shuffle_channels", "erase")

# Operations that torchvision computes differently on tensors of bytes and on PIL images.
_ON_TENSORS = ("contrast", "saturation", "sharpness", "hue", "grayscale", "autocontrast")


class Number(NamedTuple):
    """A value of a step: ``struct Value`` of native/augment/program.h."""

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


#: What a parameter may be.
Values: TypeAlias = "Number | float | Sequence[float]"


class Emits(Protocol):
    """A step that a tree can have."""

    def emit(self, tree: Builder) -> None:
        """Build the step's nodes."""


class Builder:
    """Builds a program node by node.

    Attributes:
        mask_fills: Values that masks are filled with.
    """

    def __init__(self) -> None:
        self.mask_fills: set[float] = set()
        self._nodes: list[tuple[str, int, int, int]] = []  # kind, end, first value, first draw
        self._values: list[Number] = []
        self._tables: list[float] = []
        self._draws = _FIRST_DRAW
        self._leading = 0  # steps
        self._first: int | None = None  # draw of the leading step that is built
        self._drew = False  # that one, or could have
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

    @property
    def moves_pixels(self) -> bool:
        """Whether a node leaves pixels, or boxes, elsewhere."""
        moving = _native.STEPS.keys() - {*_WITH_CHILDREN, *_STILL_STEPS}
        return any(kind in moving for kind, *_ in self._nodes)

    def program(self) -> _native.StepProgram:
        """Return the core's program."""
        return _native.StepProgram(self._nodes, self._values, self._tables, self._leading)

    # --- nodes -------------------------------------------------------------------------------

    def lead(self, steps: Sequence[Emits]) -> None:
        """Add the leading steps, one node each, which the core folds."""
        later, first = self._draws, 0
        for step in steps:
            self._first, self._draws, self._drew = first, first, False
            step.emit(self)
            first += _LEADING_DRAWS * self._drew
        self._first, self._draws, self._leading = None, later, len(steps)

    @contextmanager
    def node(self, kind: str, draws: int | None = None, /, **values: Values) -> Iterator[None]:
        """Add a node; build its children inside."""
        at = len(self._nodes)
        self._append(kind, draws, values)
        yield
        kind, _, first, draw = self._nodes[at]
        self._nodes[at] = (kind, len(self._nodes), first, draw)

    def add(self, kind: str, draws: int | None = None, /, **values: Values) -> None:
        """Add a leaf: one of ``_native.STEPS``, or a call of one of ``_native.OPERATIONS``.

        ``values`` are its parameters by name, numbers or sequences of them; ``draws`` are as many
        as the kind has, if None.
        """
        if self._tensors and kind in _ON_TENSORS:
            kind, values = f"tensor_{kind}", {**values, "version": self._tensors}
        self._append(kind, draws, values)

    def _append(self, kind: str, draws: int | None, values: Mapping[str, Values]) -> None:
        names = _native.STEPS[kind][1] if kind in _native.STEPS else _native.OPERATIONS[kind]
        if values.keys() != set(names):
            raise TypeError(f"{kind} takes ({', '.join(names)}), not ({', '.join(values)})")
        first = len(self._values)
        self._values += [self._value(values[name]) for name in names]
        end = len(self._nodes) + 1
        if draws is None:
            draws = _native.STEPS[kind][0] if kind in _native.STEPS else 0
        self._nodes.append((kind, end, first, self.draw(draws)))

    def _value(self, value: Values) -> Number:
        if isinstance(value, Number):
            return value
        if isinstance(value, Sequence):
            return Number("entries", **self._listed([float(one) for one in value]))
        return Number("constant", a=float(value))

    def grayscale(self, channels: int | None = None) -> None:
        """Add a leaf that makes the image grey; without a number, its channels stay as many."""
        if self._tensors == 1 and self._channels == 1:
            return  # v1 leaves tensors of one channel as they are
        self._channels = channels or self._channels
        self.add("grayscale", channels=self._channels)

    def shuffle_channels(self) -> None:
        """Add a leaf that puts the channels into a random order."""
        if self._channels == 3:
            self.add("shuffle_channels")

    def warp(self, kind: str, step: Any, **values: Values) -> None:
        """Add a leaf that warps with the step's interpolation and fill."""
        fill = self.fill_of(step)
        if not self._filled:
            fill.update(dict.fromkeys(("red", "green", "blue"), -1.0))
        interpolation = WARPS.index(step.interpolation)
        rest = {"interpolation": interpolation, "on_tensors": self._tensors > 0}
        self.add(kind, **values, **fill, **rest)

    def fill_of(self, step: Any) -> dict[str, Values]:
        """Return the values that a step fills images and masks with, by their parameters."""
        red, green, blue = step.fill or (0, 0, 0)  # None: a policy's, on tensors
        mask_fill = getattr(step, "mask_fill", None)
        mask_fill = red if mask_fill is None else mask_fill
        self.mask_fills.add(mask_fill)
        return {"red": red, "green": green, "blue": blue, "mask_fill": mask_fill}

    def padding_of(self, step: Any) -> dict[str, Values]:
        """Return the mode and fill of a step that pads, by their parameters."""
        # Leading steps pad with a colour; another mode only stands where nothing is padded.
        mode = 0 if self._first is not None else PADDING_MODES.index(step.padding_mode)
        return {"mode": mode, **self.fill_of(step)}

    @contextmanager
    def maybe(self, p: float) -> Iterator[None]:
        """Do what is built inside with probability p."""
        if p >= 1:
            self._spare()
            with self.node("sequence"):
                yield
        else:
            with self.node("apply", p=p):
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

    # --- values ------------------------------------------------------------------------------

    def draw(self, count: int = 1) -> int:
        """Reserve draws; return the first."""
        first, self._draws = self._draws, self._draws + count
        self._drew = self._drew or count > 0
        return first

    def _spare(self) -> None:
        """Reserve the draw of a constant: leading steps have it, whatever their values."""
        if self._first is not None:
            self.draw()

    def threshold(self, value: float) -> float:
        """Return the value that bytes are compared with; tensors have it in single precision."""
        return float(np.float32(value)) if self._tensors else value

    def uniform(self, a: float, b: float, **rest: Any) -> Number:
        """Draw between a and b in single precision; equal ends need no draw."""
        if a == b:
            self._spare()
            return Number("constant", a=float(np.float32(a)), **rest)
        return Number("uniform", self.draw(), a, b, **rest)

    def table(self, entries: Sequence[float], signed: bool = False, **rest: Any) -> Number:
        """Draw one of several numbers uniformly; if signed, draw its sign, too."""
        sign = {"sign_draw": self.draw()} if signed else {}
        if len(entries) == 1:
            self._spare()
            return Number("constant", a=entries[0], **sign, **rest)
        return Number("table", self.draw(), **self._listed(entries), **sign, **rest)

    def _listed(self, entries: Sequence[float]) -> dict[str, Any]:
        """Add a table; return where it is."""
        first = len(self._tables)
        self._tables += entries
        return {"first": first, "entries": len(entries)}

    def filter(self, interpolation: str | Sequence[str]) -> Number | float:
        """Return the number of a resize's filter; draw one of several."""
        names = (interpolation,) if isinstance(interpolation, str) else tuple(interpolation)
        numbers = [float(_native.FILTERS.index(name)) for name in names]
        if len(numbers) == 1:
            return numbers[0]
        if self._first is None:
            return self.table(numbers)
        self._drew = True
        return Number("table", self._first + _FILTER_DRAW, **self._listed(numbers))


def center_values(center: Any) -> dict[str, float]:
    """Return the parameters of a centre, (x, y); None: the image's."""
    x, y = (0, 0) if center is None else center
    return {"centred": center is not None, "x": x, "y": y}


NO_CENTER = center_values(None)
#: Parameters of an affine warp that moves nothing.
NO_MOVE = {"angle": 0.0, "move_x": 0.0, "move_y": 0.0, "scale": 1.0, "shear_x": 0.0, "shear_y": 0.0}


def tree_of(steps: Sequence[Emits], leading: Sequence[Emits] = ()) -> Builder:
    """Build the tree of several steps, one after the other; see `Builder`."""
    builder = Builder()
    with builder.node("sequence"):
        builder.lead(leading)
        for step in steps:
            step.emit(builder)
    return builder


@lru_cache(maxsize=128)
def native_program(
    steps: tuple[Emits, ...], leading: tuple[Emits, ...] = ()
) -> _native.StepProgram:
    """Return the core's program of leading steps and others; equal ones share it."""
    return tree_of(steps, leading).program()


@lru_cache(maxsize=128)
def mask_fills(
    steps: tuple[Emits, ...], fill: float, dtype: str, first: int = 0
) -> dict[Any, tuple[int, ...]]:
    """Return three bytes of each value that masks of a dtype are filled with, from a byte on.

    The values are 0, ``fill`` and those of the steps. Raise UsageError if a mask cannot have one.
    """
    found = {}
    for value in {0, fill, *tree_of(steps).mask_fills}:
        stored = np.array(value).astype(dtype)
        if stored.dtype != np.bool_ and stored != value:
            raise UsageError(
                f"a fill of {value:g} does not fit into a mask of {stored.dtype}",
                "Give a smaller one.",
            )
        whole = stored.tobytes()
        found[value] = tuple(whole[(first + at) % len(whole)] for at in range(3))
    return found

"""Steps that have no public class: parts of policies and scripts, and containers of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastdata.errors import UsageError
from fastdata.transforms.checks import Probability, Transforms, numbers
from fastdata.transforms.identity import is_ours
from fastdata.transforms.outcomes import Declined
from fastdata.transforms.reading import Chain, Fixed, Holder, Reading, Step
from fastdata.transforms.tree import Builder, Number


@dataclass(frozen=True)
class DrawnNumber:
    """A value of an `Operation` that is drawn: a `Number` without its draws.

    ``kind`` is ``constant``, ``uniform_double``, ``normal``, of a and b as struct Value has them;
    or ``table``, of ``entries`` with equal probabilities. ``signed``: negated half of the time.
    ``options`` are others of `Number`'s fields.
    """

    kind: str
    a: float = 0.0
    b: float = 0.0
    signed: bool = False
    options: tuple[tuple[str, float], ...] = ()
    entries: tuple[float, ...] = ()

    def number(self, tree: Builder) -> Number:
        """Return the value with draws of its own."""
        options: dict[str, Any] = dict(self.options)
        if self.signed:
            options["sign_draw"] = tree.draw()
        if self.kind == "table":
            return tree.table(self.entries, **options)
        draws = {"constant": 0, "uniform_double": 1, "normal": 2}[self.kind]
        return Number(self.kind, tree.draw(draws), self.a, self.b, **options)


@dataclass(frozen=True)
class Operation(Step):
    """One leaf of the tree, of ``_native.STEPS`` or ``_native.OPERATIONS``.

    ``values`` are its parameters, (name, value); drawn ones draw in this order.
    """

    name: str
    values: tuple[tuple[str, float | DrawnNumber], ...] = ()

    @property
    def words(self) -> str:
        return self.name.replace("_", " ")

    def emit(self, tree: Builder) -> None:
        values = {
            name: one.number(tree) if isinstance(one, DrawnNumber) else one
            for name, one in self.values
        }
        tree.add(self.name, **values)


def operation(name: str, /, **values: float | DrawnNumber) -> Operation:
    """Return an operation with these parameters."""
    return Operation(name, tuple(values.items()))


@dataclass(frozen=True)
class Policy(Chain):
    """Steps, one after the other, that ``explain()`` need not list, and words for all."""

    named: str = ""

    @property
    def words(self) -> str:
        return self.named


@dataclass(frozen=True)
class Apply(Holder):
    """Several steps, one after the other, or none of them; see `RandomApply`."""

    label = "RandomApply"
    is_geometry = True

    transforms: Transforms
    p: Probability = 0.5

    def cut(self, reading: Reading) -> Reading | None:
        only: Any = self.transforms[0] if len(self.transforms) == 1 else None
        if not is_ours(only) or not only.needs_boxes or only.declines(reading) is not None:
            return None
        step: Step = replace(only, p=only.p * self.p)
        return step.cut(reading)

    def channels_after(self, channels: int) -> int | None:
        return channels if super().channels_after(channels) == channels else None

    def emit(self, tree: Builder) -> None:
        with tree.maybe(self.p):
            for step in self.transforms:
                step.emit(tree)


@dataclass(frozen=True)
class ChosenStep(Holder):
    """One of several steps; see `RandomChoice`."""

    label = "RandomChoice"

    transforms: Transforms
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p is None:
            return
        title = type(self).__name__
        weights = numbers(title, "p", self.p, len(self.transforms))
        if min(weights) < 0 or sum(weights) <= 0:
            raise UsageError(f"{title}: p {weights} are no weights.", "Give weights of 0 or more.")
        self._keep(p=weights)

    def size_after(self, size: Fixed) -> Fixed:
        sizes = {step.size_after(size) for step in self.transforms}
        return sizes.pop() if len(sizes) == 1 else None

    def emit(self, tree: Builder) -> None:
        sums = np.cumsum(self.p).tolist() if self.p is not None else ()
        with tree.node("choice", sums=sums):
            tree.apart(self.transforms)


@dataclass(frozen=True)
class ShuffledSteps(Holder):
    """Several steps in a random order; see `RandomOrder`."""

    label = "RandomOrder"

    transforms: Transforms

    def emit(self, tree: Builder) -> None:
        with tree.node("order", len(self.transforms)):
            tree.apart(self.transforms)


@dataclass(frozen=True)
class SampledSteps(Holder):
    """``count`` of several steps, none of them twice, one after the other; each is one node.

    At least ``count`` weights are above 0, none below.
    """

    transforms: tuple[Step, ...]
    count: int
    weights: tuple[float, ...]

    def emit(self, tree: Builder) -> None:
        with tree.node("sample", self.count, count=self.count, weights=self.weights):
            for step in self.transforms:
                step.emit(tree)


@dataclass(frozen=True)
class MixedSteps(Holder):
    """The image mixed with the results of several steps, with random weights.

    No step changes the size. ``concentration`` of the weights' Dirichlet distributions is above 0,
    at most 1e6. ``how`` is `SUM`, `BLENDED_SUM` or `BLENDS` of `fastdata.transforms.tree`.
    """

    transforms: tuple[Step, ...]
    concentration: float
    how: int

    def emit(self, tree: Builder) -> None:
        with tree.node("mix", concentration=self.concentration, mixing=self.how):
            tree.apart(self.transforms)


@dataclass(frozen=True)
class OnTensors(Step):
    """Step on a tensor of bytes, with the arithmetic of torchvision's v1 or v2 there.

    ``filled``: it has a fill; on tensors, none is not the same as 0.
    """

    transform: Step
    version: int
    filled: bool = True

    @property
    def words(self) -> str:
        return self.transform.words

    @property
    def title(self) -> str:
        return self.transform.title

    @property
    def colours(self) -> bool:
        return self.transform.colours

    def size_after(self, size: Fixed) -> Fixed:
        return self.transform.size_after(size)

    def channels_after(self, channels: int) -> int | None:
        kept = self.version == 1 and channels == 1  # see `Builder.grayscale`
        return 1 if kept else self.transform.channels_after(channels)

    def works_on_floats(self, normalised: bool) -> bool:
        return not normalised

    def declines(self, reading: Reading) -> Declined | None:
        return self.transform.declines(reading)

    def emit(self, tree: Builder) -> None:
        with tree.on_tensors(self.version, self.filled):
            self.transform.emit(tree)

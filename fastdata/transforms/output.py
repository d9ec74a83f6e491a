"""Steps of the output: normalisation, and rectangles that are written over it."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastdata.errors import UsageError
from fastdata.transforms import checks
from fastdata.transforms.base import Transform
from fastdata.transforms.checks import AboveZero, Probability, Range, Switch, range_from
from fastdata.transforms.outcomes import FLOATS, Declined, Values
from fastdata.transforms.reading import Reading, Step
from fastdata.transforms.tree import Builder


@dataclass(frozen=True)
class Normalize(Transform):
    """``(value / 255 - mean) / std`` for each channel, in floats.

    Attributes:
        mean: A value for each channel, or one for all, in units of 0 to 1.
        std: As ``mean``, above 0.
        inplace: Has no effect: the image is a PIL image, which never changes.
        dtype: Of the result: "float32", "float16" or "bfloat16", or torch's of that name. Rounding
            comes last.
    """

    any_floats = True

    mean: Sequence[float]
    std: Sequence[float]
    inplace: Switch = field(default=False, compare=False)
    dtype: str = field(default="float32", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mean", "std"):
            values: Any = getattr(self, name)
            try:
                values = tuple(values)
            except TypeError:
                values = (values,)
            count = 1 if len(values) == 1 else 3
            self._keep(**{name: checks.numbers("Normalize", name, values, count)})
        if not all(value > 1e-6 for value in self.std):
            raise UsageError(
                f"Normalize: std {self.std} has a value that is not above 0.",
                "Give the channels' standard deviations in units of 0 to 1.",
            )
        dtype = str(self.dtype).removeprefix("torch.")
        if dtype not in FLOATS:
            raise UsageError(
                f"Normalize: dtype {self.dtype!r} is not one that the result can have.",
                f"Give one of {', '.join(FLOATS)}.",
            )
        self._keep(dtype=dtype)

    def read(self, reading: Reading) -> Reading | Declined:
        return reading.normalised(tuple(self.mean), tuple(self.std), self.dtype)


def _value(title: str, name: str, value: Any) -> Any:
    if value in ("random", "color"):
        return value
    values = (value,) if isinstance(value, numbers.Real) else value
    if isinstance(values, Sequence) and len(values) == 1:
        values = tuple(values) * 3
    return checks.numbers(title, name, values, 3)


def _count(title: str, name: str, value: Any) -> tuple[int, int]:
    least, most = (value, value) if isinstance(value, numbers.Integral) else value
    least = checks.whole(title, name, least, 1, 1000)
    return least, checks.whole(title, name, most, least, 1000)


@dataclass(frozen=True)
class RandomErasing(Transform):
    """Write over a random rectangle of the result (Zhong et al., 2017).

    Only :class:`Normalize` may follow. Values are in the units of the image before it: of 0 to 255,
    or of normalised values after :class:`Normalize`.

    Attributes:
        p: Probability.
        scale: Least and greatest part of the area, 0 to 1.
        ratio: Least and greatest height / width.
        value: A number, or one a channel; of normalised values only "random", normally distributed
            noise, or "color", a colour of such noise for each rectangle.
        inplace: Has no effect: the image is a PIL image, which never changes.
        count: Number of rectangles that share the area; or (least, most), with equal probabilities.
        in_double: Draw in double precision, as timm does; torchvision draws in single.
    """

    any_floats = True
    tensors_only = (1,)

    p: Probability = 0.5
    scale: Annotated[Range, range_from(0.0, 1.0)] = (0.02, 0.33)
    ratio: AboveZero = (0.3, 3.3)
    value: Annotated[float | Sequence[float] | str, _value] = 0
    inplace: Switch = field(default=False, compare=False)
    count: Annotated[int | tuple[int, int], _count] = field(default=1, kw_only=True)
    in_double: bool = field(default=False, kw_only=True)

    def read(self, reading: Reading) -> Reading | Declined:
        values: Any = self.value
        noise, deviations = "", None
        if isinstance(values, str):
            if reading.dtype == "uint8":
                return Declined("it puts noise of floats into bytes")
            noise, values, deviations = values, (0.0,) * 3, (1.0,) * 3
        elif reading.dtype == "uint8" and not all(0 <= value <= 255 for value in values):
            return Declined("its values are not from 0 to 255")
        if reading.channels == 1 and len(set(values)) > 1:
            return Declined("its value is a colour, and the image has one channel")
        erasure = Erasure(self, values, deviations, noise)
        return replace(reading, erasures=(*reading.erasures, erasure))

    @classmethod
    def from_torchvision(cls, transform: Any, version: int) -> Step | Declined:
        value = "random" if transform.value is None else transform.value
        return cls(transform.p, tuple(transform.scale), tuple(transform.ratio), value)


@dataclass(frozen=True)
class Erasure(Step):
    """A RandomErasing in the units of the output.

    Attributes:
        of: The transform.
        values: One a channel.
        deviations: The standard deviations of noise that is added; None: none.
        noise: "random", each pixel has its own; "color", each rectangle has its own.
    """

    erases = True

    of: RandomErasing
    values: Values
    deviations: Values | None
    noise: str

    def scaled(self, mean: Values, std: Values) -> Erasure:
        """Return the same after ``(value - mean) / std`` of each channel."""
        values = tuple((v - m) / s for v, m, s in zip(self.values, mean, std, strict=True))
        deviations = self.deviations
        if deviations is not None:
            deviations = tuple(d / s for d, s in zip(deviations, std, strict=True))
        return replace(self, values=values, deviations=deviations)

    @property
    def words(self) -> str:
        return self.of.words

    def emit(self, tree: Builder) -> None:
        of, noise = self.of, 0 if self.deviations is None else 1 + (self.noise == "color")
        least, most = of.count  # type: ignore[misc]
        with tree.maybe(of.p), tree.node("choice", sums=()):
            for count in range(least, most + 1):
                with tree.node("sequence"):
                    for _ in range(count):
                        tree.add(
                            "erase",
                            least_area=of.scale[0] / count,
                            most_area=of.scale[1] / count,
                            least_ratio=of.ratio[0],
                            most_ratio=of.ratio[1],
                            in_double=of.in_double,
                            values=self.values,
                            noise=noise,
                            deviations=self.deviations or (0, 0, 0),
                        )

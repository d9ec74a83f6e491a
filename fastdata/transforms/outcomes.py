"""Outcomes of reading transforms, and the interface of the libraries that they are from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

#: One value a channel.
Values: TypeAlias = tuple[float, ...]

#: Dtypes of normalised values.
FLOATS = ("float32", "float16", "bfloat16")

#: Kinds of a `Reading` that are tensors.
TENSORS = ("tensor", "image")


@dataclass(frozen=True)
class Declined:
    """Why the core does not do a transform: clauses with a reason and a remedy.

    ``raises``: it fails on every path. ``known``: fastdata knows it. ``moves``: it moves pixels;
    None: that is not known. ``culprit`` is the unknown transform that it holds.
    """

    reason: str
    advice: str = ""
    raises: bool = False
    known: bool = True
    moves: bool | None = None
    culprit: Any = None

    def __str__(self) -> str:
        return f"{self.reason}; {self.advice}" if self.advice else self.reason

    def within(self, words: str) -> Declined:
        """Return the same of a transform that another one holds."""
        return Declined(f"{words}: {self.reason}", self.advice, culprit=self.culprit)


#: No library's file has the transform.
NOT_KNOWN = Declined("it is not a transform that fastdata knows", known=False)


#: The transform raises on every path.
HAS_TENSOR = Declined(
    "it works on PIL images, and has a tensor here",
    "put it before what makes tensors of them",
    raises=True,
)
IN_OUR_COMPOSE = replace(
    HAS_TENSOR, advice="write fastdata.transforms.Compose in place of torchvision's"
)
HAS_NO_FLOATS = Declined(
    "it normalises floats, and has none here",
    "put ToTensor(), or ToDtype(torch.float32, scale=True), before it",
    raises=True,
)

#: Only tensors of another library's transform would raise here.
ON_PIL_ONLY = Declined("it works on PIL images, and has a tensor here")

#: Floats are resized and warped as bytes are; other steps belong before the conversion.
BEFORE_FLOATS = "put it before the conversion"


@dataclass(frozen=True)
class Conversion:
    """A change of what the pipeline has in hand; None: as before.

    ``kind`` is ``tensor``, ``image`` (torchvision's tensor image) or ``array``.
    """

    kind: str | None = None
    dtype: str | None = None


#: A `Step`, a `Conversion`, a tuple of these in their order; or `Declined`.
Translation: TypeAlias = "Any"


#: Translates a transform whose argument is of a kind, as in `Reading`, and dtype.
Translator: TypeAlias = Callable[[Any, str, str], Translation]


def as_tuple(translation: Translation) -> tuple[Any, ...]:
    """Return the parts of a translation."""
    return translation if isinstance(translation, tuple) else (translation,)


class Libraries:
    """Transforms of other libraries; here there is none, as a single step needs no other."""

    def parts(self, transform: Any) -> Sequence[Any] | None:
        """Return the transforms that one calls one after the other; None: it is no such thing."""
        # A class of lists may have a __call__ of its own.
        listed = isinstance(transform, (list, tuple)) and not callable(transform)
        return transform if listed else None

    def views(self, transform: Any) -> Any:
        """Return the `Several` that does what a transform does; None: it makes one view."""
        return None

    def translate(self, transform: Any, kind: str, dtype: str) -> Translation:
        """Translate a transform; its argument is of a kind, as in `Reading`, and dtype."""
        return NOT_KNOWN


def tensor_image() -> Any:
    """Return the class of torchvision's image tensors; None where torchvision is not in use."""
    return getattr(sys.modules.get("torchvision.tv_tensors"), "Image", None)


def default_floats() -> Conversion | Declined:
    """Return the conversion of PIL images to tensors of torch's default dtype."""
    name = str(sys.modules["torch"].get_default_dtype()).removeprefix("torch.")
    return Conversion("tensor", name) if name in FLOATS else Declined(f"it makes {name}")


def to_tensor(transform: Any, kind: str, dtype: str) -> Conversion | Declined:
    """Translate a ToTensor that leaves tensors alone."""
    return Conversion() if kind in TENSORS else default_floats()


def on_pil(make: Callable[[Any], Translation]) -> Translator:
    """Return a translator that declines tensors: the arithmetic is known for PIL images only."""

    def translator(transform: Any, kind: str, dtype: str) -> Translation:
        return make(transform) if kind in ("pil", "own") else ON_PIL_ONLY

    return translator


class Output(NamedTuple):
    """Format of a program's results.

    ``dtype`` is ``uint8``, 0 to 255; or ``float32``, ``float16``, ``bfloat16``: then ``(value / 255
    - mean) / std``, a value a channel in units of 0 to 1; None: 0 and 1. ``channels_last``: a
    batch's pixels, rather than its planes, are contiguous. ``as_pil``: the tail gets PIL images;
    without a tail they are the result. ``channels`` is 3, or 1 of grey images.
    """

    dtype: str
    mean: Values | None
    std: Values | None
    channels_last: bool
    as_pil: bool
    channels: int = 3


class Unknown(NamedTuple):
    """A step of a pipeline that the core cannot do: a reason (clause), a remedy (sentence)."""

    name: str
    reason: str
    hint: str


class Refusal(NamedTuple):
    """Why a pipeline cannot be done natively, in words for the user.

    The core cannot do the ``unknown`` steps. ``impossible``: it fails for every image on every
    path. ``unequal`` is the `Recipe` if images of a batch might have different sizes.
    """

    reason: str
    unknown: tuple[Unknown, ...] = ()
    impossible: bool = False
    unequal: Any = None


def without_fixed_size(recipe: Any) -> Any:
    """Return a recipe, or its refusal, where images of a batch may have different sizes."""
    return recipe.unequal or recipe if isinstance(recipe, Refusal) else recipe

"""What a library's file makes of its transforms, besides those of `fastdata.transforms`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TypeAlias

from fastdata.transforms import originals
from fastdata.transforms.descriptions import Transform

#: Why the core cannot do what no library's file has.
NOT_KNOWN = "it is not a transform that fastdata knows"

#: Why a transform raises, whoever calls it.
HAS_TENSOR = "it works on PIL images, and has a tensor here"
HAS_NO_FLOATS = "it normalises floats, and has none here"
FAILS = (HAS_TENSOR, HAS_NO_FLOATS)


@dataclass(frozen=True)
class Conversion:
    """A change of what the pipeline has in hand.

    Attributes:
        kind: ``tensor``, ``image`` (torchvision's tensor image) or ``array``; None: as before.
        dtype: As ``Output.dtype`` has it; None: as before.
        only: ``pil``: what follows is known of PIL images alone; None: of anything.
    """

    kind: str | None = None
    dtype: str | None = None
    only: str | None = None


#: What a transform does, in order; or why that is not known, in words.
Found: TypeAlias = "Transform | Conversion | str | tuple[Transform | Conversion, ...]"


#: What a class has of its own that has nothing but another constructor, in any version of Python.
_CONSTRUCTED = frozenset(
    {
        "__annotate__",
        "__annotations__",
        "__doc__",
        "__firstlineno__",
        "__init__",
        "__module__",
        "__static_attributes__",
    }
)


def kind_of(transform: Any) -> type[Any]:
    """A transform's type; or what that derives from, if it has no more than another constructor."""
    kind: type[Any] = type(transform)
    while len(kind.__bases__) == 1 and vars(kind).keys() <= _CONSTRUCTED:
        if type(kind) is not type(kind.__bases__[0]):
            break
        kind = kind.__bases__[0]
    return kind


def name_in(transform: Any, *modules: str) -> str:
    """The name under which one of the modules has exactly a transform's type.

    "" if none has, or if it was overridden (`override`).
    """
    kinds: tuple[type[Any], ...] = (type(transform), kind_of(transform))
    for kind in kinds:
        name: str = kind.__name__
        for module in modules:
            if getattr(sys.modules.get(module), name, None) is kind:
                return "" if originals.overridden(transform, kind) else name
    return ""


def override(transform: Any) -> str:
    """Say in a clause what of a library's transform was overridden; "" if nothing was."""
    for kind in (type(transform), kind_of(transform)):
        if originals.is_copied(kind.__module__):
            return originals.overridden(transform, kind)
    return ""

"""Steps for lightly's transforms (version 1.6), by their exact type.

lightly is never imported here. Its blur and solarisation call Pillow, and pixels are Pillow's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fastdata.transforms.colours import PillowBlur, RandomSolarize
from fastdata.transforms.identity import Translators, is_code, name_in, override
from fastdata.transforms.nodes import Apply, operation
from fastdata.transforms.outcomes import Conversion, Translation, Translator, on_pil
from fastdata.transforms.reading import Several
from fastdata.transforms.tree import NO_CENTER

_PACKAGE = "lightly.transforms"


def parts(transform: Any) -> tuple[Any, ...] | None:
    """Return the transform that one of lightly's classes calls; None for anything else."""
    known = name_in(transform, *_CALLERS) and hasattr(transform, "transform")
    return (transform.transform,) if known else None


def views(transform: Any) -> Several | None:
    """Translate one of lightly's transforms that makes several views; None for anything else."""
    if name_in(transform, f"{_PACKAGE}.mae_transform"):
        return Several((transform.transform,), [0])
    base = getattr(sys.modules.get(f"{_PACKAGE}.multi_view_transform"), "MultiViewTransform", None)
    if base is None or not isinstance(transform, base) or override(transform):
        return None
    if not is_code(type(transform).__module__) or type(transform).__call__ is not base.__call__:
        return None
    return Several(tuple(transform.transforms), list(range(len(transform.transforms))))


_OF_VIEWS = ("byol", "dino", "ibot", "msn", "simclr", "simsiam", "swav", "vicreg")
#: Files of lightly's whose classes call their ``transform``, and do no more.
_CALLERS = [f"{_PACKAGE}.{name}_transform" for name in _OF_VIEWS]
_CALLERS.append(f"{_PACKAGE}.torchvision_v2_compatibility")


def _rotation(transform: Any) -> Translation:
    # Nearest, of the same size, about the centre, black around it.
    black = {"red": 0, "green": 0, "blue": 0, "mask_fill": 0}
    still: dict[str, Any] = {"expand": False, "on_tensors": False, **NO_CENTER}
    rotation = operation("rotate", angle=float(transform.angle), interpolation=0, **black, **still)
    return Apply((rotation,), transform.prob)


def _by_chance(make: Callable[[Any], Translation]) -> Translator:
    """Return a translator of lightly's transforms; with probability 0, they do nothing."""
    on_images = on_pil(make)

    def translator(transform: Any, kind: str, dtype: str) -> Translation:
        return Conversion() if transform.prob <= 0 else on_images(transform, kind, dtype)

    return translator


TABLE = Translators(
    (_PACKAGE,),
    {
        "GaussianBlur": _by_chance(lambda one: PillowBlur(tuple(one.sigmas), one.prob)),
        "RandomRotate": _by_chance(_rotation),
        "RandomSolarization": _by_chance(lambda one: RandomSolarize(one.threshold, one.prob)),
    },
)

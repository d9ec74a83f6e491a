"""lightly's transforms (version 1.6) in our terms: several views, and what they are made of.

They are known by their exact type, those of several views by the method that makes these; lightly
is never imported here. Its blur and its solarisation call Pillow, and pixels are Pillow's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastdata.errors import UsageError
from fastdata.transforms.colours import RandomSolarize
from fastdata.transforms.nodes import Apply, Operation, Random
from fastdata.transforms.originals import name_in
from fastdata.transforms.outcomes import ON_PIL_ONLY, Conversion, Declined, Found
from fastdata.transforms.reading import Step

_MODULE = "lightly.transforms"


def translate(transform: Any, kind: str, dtype: str) -> Found | None:
    """One of lightly's transforms; None for anything else.

    As `Libraries.translate` of `fastdata.transforms.reading`.
    """
    name = name_in(transform, _MODULE)
    if name not in _TRANSLATORS:
        return None
    if transform.prob <= 0:
        return Conversion()
    if kind not in ("pil", "own"):
        return ON_PIL_ONLY
    try:
        return _TRANSLATORS[name](transform)
    except UsageError as error:
        return Declined(f"its arguments are not known: {error.what}")


def _blur(transform: Any) -> Step:
    least, greatest = transform.sigmas
    radius = Random("uniform_double", float(least), float(greatest))
    return Apply((Operation("box_blur", (radius,)),), transform.prob)


def _rotation(transform: Any) -> Step:
    # Nearest, of the same size, about the centre, black around it.
    rotation = Operation("rotate", (float(transform.angle), *(0,) * 9))
    return Apply((rotation,), transform.prob)


def _solarisation(transform: Any) -> Step:
    return RandomSolarize(transform.threshold, transform.prob)


_TRANSLATORS: dict[str, Callable[[Any], Step]] = {
    "GaussianBlur": _blur,
    "RandomRotate": _rotation,
    "RandomSolarization": _solarisation,
}

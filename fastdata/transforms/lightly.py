"""lightly's transforms (version 1.6) in our terms: several views, and what they are made of.

They are known by their exact type, those of several views by the method that makes these; lightly
is never imported here. Its blur and its solarisation call Pillow, and pixels are Pillow's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastdata.errors import UsageError
from fastdata.transforms.augmentations import RandomApply, RandomSolarize
from fastdata.transforms.conversion import Conversion, Found, name_in
from fastdata.transforms.descriptions import Transform
from fastdata.transforms.pixels import Operation, Random

_MODULE = "lightly.transforms"


def translate(transform: Any, kind: str, dtype: str) -> Found | None:
    """One of lightly's transforms; None for anything else.

    As `fastdata.transforms.libraries.translate`.
    """
    name = name_in(transform, _MODULE)
    if name not in _TRANSLATORS:
        return None
    if transform.prob <= 0:
        return Conversion()
    if kind not in ("pil", "own"):
        return "it works on PIL images, and has a tensor here"
    try:
        return _TRANSLATORS[name](transform)
    except UsageError as error:
        return f"its arguments are not known: {error.what}"


def _blur(transform: Any) -> Transform:
    least, greatest = transform.sigmas
    radius = Random("uniform_double", float(least), float(greatest))
    return RandomApply((Operation("box_blur", (radius,)),), transform.prob)


def _rotation(transform: Any) -> Transform:
    # Nearest, of the same size, about the centre, black around it.
    rotation = Operation("rotate", (float(transform.angle), *(0,) * 9))
    return RandomApply((rotation,), transform.prob)


def _solarisation(transform: Any) -> Transform:
    return RandomSolarize(transform.threshold, transform.prob)


_TRANSLATORS: dict[str, Callable[[Any], Transform]] = {
    "GaussianBlur": _blur,
    "RandomRotate": _rotation,
    "RandomSolarization": _solarisation,
}

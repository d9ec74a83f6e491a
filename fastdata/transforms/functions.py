"""Small functions of scripts, recognised by equal code.

This file has scripts' usual functions. A script's function with the same code, constants and names
does the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from fastdata.transforms.identity import name_in
from fastdata.transforms.outcomes import Conversion, Translation, on_pil


def _convert_others(image: Any) -> Any:
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image


#: Functions that convert an image to RGB.
_TO_RGB: Sequence[Callable[[Any], Any]] = (
    lambda image: image.convert("RGB"),
    lambda image: image.convert("RGB") if image.mode != "RGB" else image,
    _convert_others,
)
#: Function that returns an image as it is.
_NOTHING: Callable[[Any], Any] = lambda image: image  # noqa: E731
#: Attributes of code that decide what it does.
_COMPARED = ("co_code", "co_names", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount")
#: The types that torchvision's Lambda changes by default.
_ALL = (object,)
MODULES = ("torchvision.transforms", "torchvision.transforms.v2")


def translate(transform: Any, kind: str, dtype: str) -> Translation | None:
    """Translate a script's function of one image, as `Libraries.translate`; None if unknown."""
    if name_in(transform, *MODULES) == "Lambda" and getattr(transform, "types", _ALL) == _ALL:
        transform = transform.lambd
    if not isinstance(transform, FunctionType):
        return None
    if any(_is_same(transform, one) for one in _TO_RGB):
        return on_pil(lambda _: Conversion())(transform, kind, dtype)
    return Conversion() if _is_same(transform, _NOTHING) else None


def _is_same(function: FunctionType, known: Any) -> bool:
    """Return whether a function has a known one's code."""
    code = function.__code__
    if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        return False
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return False
    constants = list(code.co_consts)
    if function.__doc__ is not None and constants[:1] == [function.__doc__]:
        constants[0] = None  # as in functions without one
    same = all(getattr(code, name) == getattr(known.__code__, name) for name in _COMPARED)
    return same and constants == list(known.__code__.co_consts)

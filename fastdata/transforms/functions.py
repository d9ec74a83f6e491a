"""Small functions of scripts, recognised by equal code.

This file has the source of scripts' usual functions. The interpreter compiles both, so a script's
function with the same code, constants and names does the same, if its names are bound to the same
things.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

from fastdata.transforms.forms import Form, Stack, leaves
from fastdata.transforms.identity import name_in
from fastdata.transforms.outcomes import Conversion, Translation, on_pil

#: Imports that change how the interpreter compiles ``torch.stack`` in the same file, or in the same
#: cell of a notebook.
_IMPORTS = ("import torch\n", "from torchvision import transforms\n")


def _codes(*sources: str) -> list[CodeType]:
    """Return the code of functions, as it is with and without imports beside them."""
    codes = []
    for source, first, second in itertools.product(sources, *(("", one) for one in _IMPORTS)):
        module = compile(first + second + source, __file__, "exec")
        codes += [one for one in module.co_consts if isinstance(one, CodeType)]
    return codes


#: Functions that convert an image to RGB.
_TO_RGB = _codes(
    'lambda image: image.convert("RGB")',
    'lambda image: image.convert("RGB") if image.mode != "RGB" else image',
    'def convert(image):\n    return image.convert("RGB")',
    'def convert(image):\n    if image.mode != "RGB":\n        image = image.convert("RGB")\n'
    "    return image",
)
#: Functions that return an image as it is.
_NOTHING = _codes("lambda image: image", "def identity(image):\n    return image")
#: Functions that stack views, by the transform that they give each view to.
_STACKS = {
    "": _codes(
        "lambda views: torch.stack(views)", "def stack(views):\n    return torch.stack(views)"
    )
} | {
    name: _codes(
        f"lambda views: torch.stack([{name}()(view) for view in views])",
        f"lambda views: torch.stack([transforms.{name}()(view) for view in views])",
    )
    for name in ("ToTensor", "PILToTensor")
}
#: Attributes of code that decide what it does.
_COMPARED = ("co_code", "co_names", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount")
#: The types that torchvision's Lambda changes by default.
_ALL = (object,)
MODULES = ("torchvision.transforms", "torchvision.transforms.v2")


def translate(transform: Any, kind: str, dtype: str) -> Translation | None:
    """Translate a script's function of one image, as `Libraries.translate`; None if unknown."""
    function = _function(transform)
    if function is None:
        return None
    if _is_one_of(function, _TO_RGB):
        return on_pil(lambda _: Conversion())(function, kind, dtype)
    return Conversion() if _is_one_of(function, _NOTHING) else None


def follow(transform: Any, form: Form) -> tuple[list[tuple[int, list[Any]]], Form] | None:
    """Translate a script's function that stacks views, as `Libraries.follow`."""
    function, numbers = _function(transform), list(leaves(form))
    if function is None or not isinstance(form, (list, tuple)) or numbers != list(form):
        return None
    for name, known in _STACKS.items():
        if _is_one_of(function, known):
            bound = function.__globals__
            steps = [(bound.get(name) or getattr(bound["transforms"], name))()] if name else []
            return [(number, steps) for number in numbers], Stack(tuple(range(len(numbers))))
    return None


def _function(transform: Any) -> FunctionType | None:
    """Return a script's function, also out of torchvision's Lambda; None for anything else."""
    if name_in(transform, *MODULES) == "Lambda" and getattr(transform, "types", _ALL) == _ALL:
        transform = transform.lambd
    return transform if isinstance(transform, FunctionType) else None


def _is_one_of(function: FunctionType, known: list[CodeType]) -> bool:
    """Return whether a function has known code, and means the same by its names."""
    if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        return False
    return any(
        _is_same(function.__code__, one, function.__doc__)
        and all(_means(function.__globals__, name) for name in _names(one))
        for one in known
    )


def _is_same(code: Any, known: Any, words: str | None = None) -> bool:
    """Return whether code, or one of its constants, equals a known function's.

    Its docstring, ``words``, is its first constant, in the place of a None.
    """
    if not isinstance(known, CodeType):
        return type(code) is type(known) and bool(code == known)
    starred = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    if (
        not isinstance(code, CodeType)
        or code.co_flags & starred
        or any(getattr(code, name) != getattr(known, name) for name in _COMPARED)
    ):
        return False
    # Python 3.10 has the names of inner functions among the constants.
    mine, theirs = (
        [one for one in each.co_consts if not str(one).endswith("<listcomp>")]
        for each in (code, known)
    )
    if words is not None and mine[:1] == [words]:
        mine[0] = None
    return len(mine) == len(theirs) and all(map(_is_same, mine, theirs))


def _names(code: CodeType) -> set[str]:
    """Return the globals that a known function uses."""
    inner = (_names(one) for one in code.co_consts if isinstance(one, CodeType))
    return {"torch", "transforms", *_STACKS}.intersection(code.co_names).union(*inner)


def _means(bound: dict[str, Any], name: str) -> bool:
    """Return whether a function's globals bind a name as a known function means it."""
    if name == "torch":
        torch: Any = sys.modules.get(name)
        known = torch is not None and isinstance(torch.stack, BuiltinFunctionType)
        return known and bound.get(name) is torch
    modules = [module for module in map(sys.modules.get, MODULES) if module is not None]
    if name == "transforms":
        return any(bound.get(name) is module for module in modules)
    if name in bound:
        return any(bound[name] is vars(module).get(name) for module in modules)
    return "transforms" in bound

"""Code of scripts that makes a sample's target and leaves its image alone, such as COCO's masks.

Such code begins a pipeline. It is called for each sample with a stand-in that has the image's size
and no pixels, so it may do anything with the target. What it must not do is checked where it can be
known before: use the image's pixels, draw random numbers, keep a state.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import numpy as np
from PIL import Image

from fastdata.errors import SampleError
from fastdata.transforms import tracing
from fastdata.transforms.joint import Target
from fastdata.transforms.symbols import name_of

#: Attributes of an image that are its size, and functions of torchvision's that return it.
_SIZES = frozenset({"size", "width", "height"})
_SIZE_OF = frozenset({"get_size", "get_dimensions", "get_image_size", "query_size"})
#: Names that draw random numbers, or tell the time.
_CHANCE = frozenset(
    {
        *("Generator", "RandomState", "bernoulli", "bernoulli_", "betavariate", "choice"),
        *("choices", "default_rng", "exponential_", "gauss", "getrandbits", "multinomial"),
        *("normal", "normal_", "perf_counter", "permutation", "rand", "rand_like", "randint"),
        *("randint_like", "randn", "randn_like", "random", "random_sample", "randperm"),
        *("sample", "secrets", "seed", "shuffle", "time", "triangular", "uniform"),
        *("uniform_", "uuid4"),
    }
)
_STATE = ("STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL", "IMPORT_NAME")


def _stub(size: tuple[int, int]) -> Any:
    """Return an image of Pillow's class that has a size, and no pixels: their use raises."""
    found = Image.Image()
    vars(found).update(_size=size, _mode="RGB", mode="RGB")
    return found


_HINT = "Give it a transform that uses the image's size alone, or torch's DataLoader."


class Annotating:
    """Code that makes a sample's target, one after the other.

    Args:
        steps: Functions of (image, target), for which `may_annotate` holds.
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        self._steps = steps

    def __call__(self, size: tuple[int, int], wrapper: Any, target: Any) -> Any:
        """Return the target of a sample.

        Args:
            size: Of its image: (width, height).
            wrapper: Makes a sample of the image and the target; None: it is these.
            target: The dataset's.

        Raises:
            SampleError: A step uses the image's pixels, or returns another image.
        """
        stub = _stub(size)
        image, made = (stub, target) if wrapper is None else wrapper((stub, target))
        for step in self._steps:
            image, made = step(image, made)
            if image is not stub:
                raise SampleError(f"{name_of(step)} returns another image than it is given", _HINT)
        return made


def mask_like(value: Any) -> Target | None:
    """Return the form of a made target, if it is a mask of bytes; None for others."""
    if isinstance(value, Image.Image):
        known = value.mode in ("L", "P")
        return Target("mask", as_pil=True, flat=True, filter="nearest") if known else None
    mask = getattr(sys.modules.get("torchvision.tv_tensors"), "Mask", None)
    if mask is None or type(value) is not mask or str(value.dtype) != "torch.uint8":
        return None
    one = value.ndim == 3 and len(value) == 1
    return Target("mask", flat=value.ndim == 2) if value.ndim == 2 or one else None


def encoded_mask(value: Any, target: Target) -> bytes:
    """Return a made mask as an image file.

    Raises:
        SampleError: It is none, or of another form than those of other samples.
    """
    if mask_like(value) != target:
        raise SampleError(f"its transforms make a {type(value).__name__} of another form", _HINT)
    pixels = np.asarray(value)
    height, width = pixels.shape[-2:]
    return b"P5 %d %d 255\n" % (width, height) + pixels.tobytes()


def may_annotate(step: Any) -> str:
    """Say in a clause why a step may do more than to make a target; "" if it does not."""
    found = tracing.code_of(step)
    if found is None:
        return "it is no code of a script"
    function, before = found
    code = function.__code__
    whole = code.co_argcount == len(before) + 2 and not code.co_flags & (4 | 8)
    if not whole or code.co_kwonlyargcount:
        return "it does not take an image and a target"
    if reason := _uses_pixels(code, code.co_varnames[len(before)]):
        return reason
    for holder in before:
        held = vars(holder) if hasattr(holder, "__dict__") else {}
        if any(map(_acts, held.values())):
            return "it holds other transforms"
    return _depends(function, before, set())


def _acts(value: Any) -> bool:
    """Return whether an attribute does something, or holds what does."""
    if isinstance(value, (list, tuple)):
        return any(map(_acts, value))
    if isinstance(value, dict):
        return any(map(_acts, value.values()))
    return callable(value) and not isinstance(value, type)


def _uses_pixels(code: types.CodeType, image: str) -> str:
    """Say why code may use more than an image's size; calls raise on the stand-in, too."""
    if image in code.co_cellvars:
        return "it hands the image to another function"
    steps = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "PRECALL")]
    line, callee = code.co_firstlineno, ""
    for at, (one, after) in enumerate(pairwise(steps)):
        line = getattr(one, "line_number", None) or (
            one.starts_line if type(one.starts_line) is int else line
        )
        where = f"line {line} of {PurePath(code.co_filename).name}"
        names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        if one.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL")):
            callee = str(one.argval)
        if image not in names or "FAST" not in one.opname:
            continue
        if "STORE" in one.opname or "DELETE" in one.opname:
            return f"{where} sets {image!r}"
        if names[-1] == image and after.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            if after.argval not in _SIZES:
                return f"{where} takes {after.argval!r} of the image"
        elif (use := _use(steps[at + 1 :], names[::-1].index(image))) == "call":
            if callee not in _SIZE_OF:
                return f"{where} gives the image to {callee}"
        elif use:
            return f"{where} uses the image in a way that is not known ({use})"
    return ""


def _use(steps: Sequence[dis.Instruction], above: int) -> str:
    """Return how code uses a value on its stack: ``call``, "" for the result or a part, or how.

    Args:
        steps: The code after the value is put there.
        above: How many values are above it.
    """
    for one in steps:
        given = one.arg or 0
        calls = one.opname.startswith("CALL")
        if calls and given + (one.opname == "CALL_KW") > above:
            return "call"
        if one.opname in ("BUILD_TUPLE", "RETURN_VALUE") and max(given, 1) > above:
            return ""
        if one.opname == "CALL":  # as of 3.12
            above -= given + 1
        else:
            argument = one.arg if one.opcode >= dis.HAVE_ARGUMENT else None
            above += dis.stack_effect(one.opcode, argument, jump=False)
        if above < 0:
            return one.opname
    return "end"


def _depends(function: types.FunctionType, before: Sequence[Any], seen: set[Any]) -> str:
    """Say why a function, or one it calls, may depend on more than its arguments."""
    if function.__code__ in seen:
        return ""
    seen.add(function.__code__)
    for code in tracing.codes_in(function.__code__):
        if drawn := _CHANCE & set(code.co_names):
            return f"it uses {min(drawn)}, and may be random"
        for one in dis.get_instructions(code):
            if one.opname in _STATE:
                return f"{code.co_name} keeps a state or imports"
    for inner, holders in _called(function, before):
        if reason := _depends(inner, holders, seen):
            return reason
    return ""


def _called(
    function: types.FunctionType, before: Sequence[Any]
) -> Iterator[tuple[types.FunctionType, Sequence[Any]]]:
    """Yield the functions of a script that a function may call, and what they are bound to."""
    names = {name for code in tracing.codes_in(function.__code__) for name in code.co_names}
    for name in names:
        found = function.__globals__.get(name)
        if isinstance(found, types.FunctionType):
            yield found, ()
        for holder in before:
            method = getattr(type(holder), name, None)
            if isinstance(method, types.FunctionType) and not _is_library(method):
                yield method, before


def _is_library(function: types.FunctionType) -> bool:
    return function.__module__.partition(".")[0] in ("torch", "torchvision")

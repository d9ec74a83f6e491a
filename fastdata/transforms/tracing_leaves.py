"""Tracing of the methods of classes derived from ``torchvision.transforms.v2.Transform``.

It is `fastdata.transforms.tracing`, with a symbol for each part of a sample: an image, boxes,
points or a mask, of which the class is known and the size is not.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastdata.transforms import symbols, tracing
from fastdata.transforms.forms import leaves
from fastdata.transforms.originals import own_function, transform_class
from fastdata.transforms.outcomes import Conversion
from fastdata.transforms.pairs import Lack, Move
from fastdata.transforms.symbols import (
    MISSING,
    Held,
    Kind,
    Path,
    Symbol,
    Unknown,
    held_by,
    name_of,
    plain,
)

#: The modules whose functions and classes are known here.
_V2 = "torchvision.transforms.v2"
_FUNCTIONAL = f"{_V2}.functional"
_UTILS = f"{_V2}._utils"
_CLASSES = "torchvision.tv_tensors"


def torch_class(name: str) -> Any:
    """Return one of torchvision's classes of tensors."""
    return getattr(sys.modules[_CLASSES], name)


@dataclass(frozen=True)
class State:
    """A leaf of a sample, as code has it in hand.

    Attributes:
        kind: ``image``, or a target's.
        cls: Its class.
        format: Of boxes.
        relative: Whether boxes are shares of the sides.
        dtype: Of an image; ``levels``: floats from 0 to 255.
        done: Conversions of the image, and `Move` of all.
    """

    kind: str
    cls: Any
    format: str = ""
    relative: bool = False
    dtype: str = "uint8"
    done: tuple[Any, ...] = ()

    @property
    def pure(self) -> bool:
        """Whether it is a plain tensor."""
        return self.cls is sys.modules["torch"].Tensor


class _Leaf(Held):
    def __init__(self, run: Any, state: State) -> None:
        super().__init__(run, {"image": "the image"}.get(state.kind, f"the {state.kind}"))
        self.state = state

    def then(self, *done: Any, **changes: Any) -> Any:
        state = replace(self.state, done=(*self.state.done, *done), **changes)
        return Symbol(_Leaf(self.run, state))

    def attribute(self, name: str) -> Any:
        state = self.state
        if name == "format" and state.kind == "boxes" and not state.pure:
            return torch_class("BoundingBoxFormat")[state.format.upper()]
        if name == "canvas_size" and state.kind in ("boxes", "points") and not state.pure:
            return _size(self.run)
        if name == "float" and state.kind == "image" and state.pure and state.dtype == "uint8":
            return lambda: self.then(dtype="levels")
        return super().attribute(name)

    def compute(self, name: str, other: Any) -> Any:
        state, torch = self.state, sys.modules["torch"]
        held = held_by(other) if isinstance(other, Symbol) else None
        if name != "truediv":
            return super().compute(name, other)
        sides = [side.axis for side in held.sides] if isinstance(held, _Vector) else []
        if state.kind == "boxes" and not state.relative and sides == ["width", "height"] * 2:
            return self.then(cls=torch.Tensor, relative=True)
        levels = state.kind == "image" and state.pure and state.dtype in ("uint8", "levels")
        if levels and torch.get_default_dtype() is torch.float32 and other == 255:
            return self.then(Conversion("tensor", "float32"), dtype="float32")
        return super().compute(name, other)

    def type(self) -> Any:
        return self.state.cls

    def is_a(self, kinds: tuple[Any, ...]) -> bool:
        cls = self.state.cls
        if any(kind is not cls and issubclass(kind, cls) for kind in kinds):
            self.refuse("asks for the type of {}")
        return issubclass(cls, kinds)

    def returned(self) -> Any:
        return self.state


class _Side(Held):
    """A side of the image, in pixels."""

    def __init__(self, run: Any, axis: str) -> None:
        super().__init__(run, f"the image's {axis}")
        self.axis = axis

    def compute(self, name: str, other: Any) -> Any:
        if name == "rsub" and type(other) is int:
            return Symbol(_Short(self.run, self.axis, other))
        return super().compute(name, other)


class _Short(Held):
    """Pixels that a side is short of a size; less than 0 if it is larger."""

    def __init__(self, run: Any, axis: str, size: int) -> None:
        super().__init__(run, "a number of pixels")
        self.missing = Lack(axis, size)


class _Missing(Held):
    """A `Lack` as a number; or several, as the question whether there is any."""

    def __init__(self, run: Any, *missing: Lack) -> None:
        super().__init__(run, "a number of pixels")
        self.missing = missing

    def returned(self) -> Any:
        return self.missing[0] if len(self.missing) == 1 else super().returned()

    def truth(self) -> bool:
        return bool(self.run.is_short(self.missing))


class _Vector(Held):
    """A tensor of sides of the image."""

    def __init__(self, run: Any, sides: Sequence[_Side]) -> None:
        super().__init__(run, "a tensor of sides")
        self.sides = list(sides)

    def attribute(self, name: str) -> Any:
        if name in ("tile", "repeat"):
            return lambda times: Symbol(_Vector(self.run, self.sides * int(plain(times))))
        return super().attribute(name)

    def item(self, key: Any) -> Any:
        return Symbol(self) if key is None else super().item(key)


class _TvClass(Kind):
    """One of torchvision's classes of tensors."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return symbols.apply_known(self._made, self.words, *args, **kwargs)

    def _made(self, data: Any, *, format: Any = None, canvas_size: Any = None) -> Any:  # noqa: A002
        leaf = _leaf(data)
        state, name = leaf.state, self.real.__name__
        if name == "Image" and state.kind == "image" and state.pure and state.dtype != "levels":
            return leaf.then(Conversion("image", None), cls=self.real)
        if name == "Mask" and state.kind == "mask":
            return leaf.then(cls=self.real)
        if name == "BoundingBoxes" and state.kind == "boxes" and not state.relative:
            given = str(getattr(format, "value", format)).lower()
            if given == state.format and _is_size(canvas_size):
                return leaf.then(cls=self.real)
        return self.refuse("makes {} of what is none")


def _size(run: Any) -> tuple[Any, ...]:
    return Symbol(_Side(run, "height")), Symbol(_Side(run, "width"))


def _is_size(value: Any) -> bool:
    held = [held_by(one) if isinstance(one, Symbol) else None for one in value or ()]
    return [getattr(one, "axis", "") for one in held] == ["height", "width"]


def _leaf(value: Any) -> _Leaf:
    held = held_by(value) if isinstance(value, Symbol) else None
    if not isinstance(held, _Leaf):
        raise Unknown("gives what is no part of the sample to a function of torchvision's")
    return held


class LeafRun(tracing.Run):
    """A course of the methods of a class derived from torchvision's Transform."""

    def __init__(self, script: list[int]) -> None:
        super().__init__(script)
        self.short: dict[tuple[Lack, ...], bool] = {}

    def is_short(self, several: tuple[Lack, ...]) -> bool:
        """Return whether any is above 0, which is one of two courses."""
        if several not in self.short:
            self.short[several] = self.choose((0.5, 0.5)) == 0
        return self.short[several]

    def doubt(self, result: Any) -> str:
        # A pad of nothing is no pad: so a course that pads by what is missing is all of them.
        found = {
            value for one in result.done if isinstance(one, Move)
            for value in one.values if isinstance(value, Lack)
        } if isinstance(result, State) else set()  # fmt: skip
        for several, short in self.short.items():
            pads = len(self.short) == 1 and found and found <= set(several)
            if not pads if short else bool(result.done):
                return "its result depends on the image's size"
        return super().doubt(result)

    def wrap(self, value: Any, words: str) -> Any:
        if isinstance(value, type) and value is own_function(_CLASSES, value.__name__):
            return Symbol(_TvClass(self, words, value))
        if (does := _known(value)) is not None:
            return Symbol(symbols.Known(self, words, does))
        if type(value) is dict and any(isinstance(key, type) for key in value):
            return Symbol(Held(self, words, dict(value)))
        return super().wrap(value, words)

    def call(self, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (does := _known(real)) is not None:
            return symbols.apply_known(does, name_of(real), self, *args, **kwargs)
        if not isinstance(real, (types.FunctionType, types.MethodType)):
            raise Unknown(f"calls {name_of(real)}, which is not known")
        return super().call(real, args, kwargs)


def trace_leaf(transform: Any, given: Sequence[State], which: int) -> list[Path] | str:
    """Return the courses of a transform for one leaf; a path's result is a `State`.

    Args:
        transform: An object of a class derived from torchvision's ``Transform``.
        given: The leaves of a sample that it transforms.
        which: The leaf that its ``transform`` is called with.
    """
    base = transform_class()

    def start(run: Any) -> Any:
        several = [Symbol(_Leaf(run, state)) for state in given]
        # An inner call, as torchvision makes it.
        run.depth = 1
        params: Any = {}
        if type(transform).make_params is not base.make_params:
            params = run.call(transform.make_params, (several,), {})
        one = Symbol(_Leaf(run, given[which]))
        return run.call(transform.transform, (one, params), {})

    found = tracing.courses(LeafRun, start)
    if isinstance(found, str):
        return found
    if any(not isinstance(path.result, State) or path.draws for path in found):
        return "it returns other than what it was given"
    return found


# --- functions ---------------------------------------------------------------------------------


def _known(value: Any) -> Callable[..., Any] | None:
    """Return the known effect of a function on a leaf."""
    name = getattr(value, "__name__", "")
    if isinstance(value, types.BuiltinFunctionType):
        torch = sys.modules["torch"]
        return _tensor if value is torch.tensor and name == "tensor" else None
    if not isinstance(value, types.FunctionType) or name not in _KNOWN:
        return None
    module, does = _KNOWN[name]
    return does if value is own_function(module, name) else None


def _tensor(run: Any, data: Any) -> Any:
    held = [held_by(one) if isinstance(one, Symbol) else None for one in data]
    sides = [one for one in held if isinstance(one, _Side)]
    if len(sides) < len(held):
        raise Unknown("makes a tensor of what is not known")
    return Symbol(_Vector(run, sides))


def _box_convert(run: Any, boxes: Any, in_fmt: Any, out_fmt: Any) -> Any:
    leaf = _leaf(boxes)
    known = leaf.state.kind == "boxes" and in_fmt == leaf.state.format
    if not known or out_fmt not in ("xyxy", "xywh", "cxcywh"):
        raise Unknown("converts what are no boxes of that format")
    if in_fmt == out_fmt:
        return boxes
    return leaf.then(cls=sys.modules["torch"].Tensor, format=out_fmt)


def _to_tensor(kind: str, run: Any, image: Any) -> Any:
    leaf = _leaf(image)
    if leaf.state.kind != "image" or not hasattr(leaf.state.cls, "convert"):
        raise Unknown("converts what is no PIL image")
    cls = torch_class("Image") if kind == "image" else sys.modules["torch"].Tensor
    return leaf.then(Conversion(kind, None), cls=cls)


def _to_dtype(run: Any, inpt: Any, dtype: Any = None, scale: Any = False) -> Any:
    leaf = _leaf(inpt)
    tensor = leaf.state.kind == "image" and not hasattr(leaf.state.cls, "convert")
    floats = plain(dtype) is sys.modules["torch"].float32
    if not tensor or not floats or scale is not True or leaf.state.dtype != "uint8":
        raise Unknown("converts to a dtype in a way that is not known")
    return leaf.then(Conversion(None, "float32"), dtype="float32")


def _moved(leaf: _Leaf) -> _Leaf:
    """Return a leaf that torchvision's functions move."""
    if leaf.state.pure and leaf.state.kind != "image":
        raise Unknown("moves a plain tensor")
    return leaf


def _moves(name: str, run: Any, inpt: Any) -> Any:
    return _moved(_leaf(inpt)).then(Move(name))


def _pad(
    run: Any, inpt: Any, padding: Any, fill: Any = None, padding_mode: Any = "constant"
) -> Any:
    leaf = _moved(_leaf(inpt))
    several = symbols.returned(padding)
    values = tuple(several) if isinstance(several, (list, tuple)) else (several,)
    return leaf.then(Move("pad", (*values, plain(padding_mode)), plain(fill)))


def _get_fill(run: Any, fill_dict: Any, inpt_type: Any) -> Any:
    fills, cls = plain(fill_dict), plain(inpt_type)
    found = fills.get(cls, fills.get("others", MISSING))
    if found is MISSING:
        raise Unknown("has no fill for a type")
    return run.wrap(found, "a fill")


def _query_size(channels: bool, run: Any, flat_inputs: Any) -> Any:
    if not any(_leaf(one).state.kind == "image" for one in flat_inputs):
        raise Unknown("asks for the size of what is no image")
    return (3, *_size(run)) if channels else _size(run)


#: Where each function is, and its effect.
_KNOWN: dict[str, tuple[str, Callable[..., Any]]] = {
    "_convert_fill_arg": (_UTILS, lambda run, fill: fill),
    "_get_fill": (_UTILS, _get_fill),
    "box_convert": ("torchvision.ops", _box_convert),
    "get_size": (_FUNCTIONAL, lambda run, inpt: list(_query_size(False, run, [inpt]))),
    "horizontal_flip": (_FUNCTIONAL, partial(_moves, "horizontal_flip")),
    "pad": (_FUNCTIONAL, _pad),
    "pil_to_tensor": (_FUNCTIONAL, partial(_to_tensor, "tensor")),
    "query_chw": (_UTILS, partial(_query_size, True)),
    "query_size": (_UTILS, partial(_query_size, False)),
    "to_dtype": (_FUNCTIONAL, _to_dtype),
    "to_image": (_FUNCTIONAL, partial(_to_tensor, "image")),
    "vertical_flip": (_FUNCTIONAL, partial(_moves, "vertical_flip")),
}


def _any(several: Any) -> bool | Any:
    values = list(several)
    missing = [held_by(one) for one in values if isinstance(one, Symbol)]
    if not missing:
        return any(values)
    if not all(isinstance(one, _Missing) for one in missing):
        raise Unknown("asks for the truth of what is not known")
    if any(one for one in values if not isinstance(one, Symbol)):
        return True
    found = dict.fromkeys(lack for one in missing for lack in one.missing)
    return Symbol(_Missing(missing[0].run, *found))


def _max(*args: Any, **kwargs: Any) -> Any:
    held = [held_by(one) for one in args if isinstance(one, Symbol)]
    if len(held) == 1 and len(args) == 2 and isinstance(held[0], _Short):
        other = args[1] if isinstance(args[0], Symbol) else args[0]
        if other == 0 and not kwargs:
            return Symbol(_Missing(held[0].run, held[0].missing))
    if any(isinstance(one, Symbol) for one in leaves(args)):
        raise Unknown("takes the maximum of what is not known")
    return max(*args, **kwargs)


LeafRun.replaced = {**tracing.Run.replaced, "any": _any, "max": _max}

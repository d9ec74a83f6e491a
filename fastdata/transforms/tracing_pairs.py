"""Tracing of code that moves a PIL image and its mask by functions, as scripts before v2 do.

It is `fastdata.transforms.tracing`, with a symbol for the image and one for the mask. Both have the
same size for as long as the same is done to them.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fastdata.transforms import symbols, tracing
from fastdata.transforms.originals import changed, name_in, own_function
from fastdata.transforms.outcomes import Conversion, default_floats
from fastdata.transforms.pairs import Lack, Move, Part, Place, Whole, merged
from fastdata.transforms.symbols import Held, Kind, Path, Symbol, Unknown, held_by, name_of, plain

_FUNCTIONAL = "torchvision.transforms.functional"


class _PartSymbol(Held):
    def __init__(self, run: Any, part: Part) -> None:
        super().__init__(run, f"the {part.name}")
        self.part = part

    def then(self, *done: Any, **changes: Any) -> Any:
        part = replace(self.part, done=(*self.part.done, *done), **changes)
        return Symbol(_PartSymbol(self.run, part))

    def attribute(self, name: str) -> Any:
        part = self.part
        if part.form == "pil" and name in ("size", "width", "height"):
            width, height = _sides(self)
            return {"size": (width, height), "width": width, "height": height}[name]
        if part.form == "tensor" and name == "long":
            return lambda: _to(self, sys.modules["torch"].int64)
        if part.form == "tensor" and name == "to":
            return partial(_to, self)
        return super().attribute(name)

    def is_a(self, kinds: tuple[Any, ...]) -> bool:
        from PIL import Image

        known = {"pil": Image.Image, "array": np.ndarray, "tensor": sys.modules["torch"].Tensor}
        return any(issubclass(known[self.part.form], kind) for kind in kinds)

    def returned(self) -> Any:
        return self.part


class _Side(Held):
    """A side of both parts, at one place."""

    def __init__(self, run: Any, place: Place, axis: str) -> None:
        super().__init__(run, f"the image's {axis}")
        self.place, self.axis = place, axis

    def is_short(self, size: int) -> bool:
        return bool(self.run.is_short(self, size))

    def compute(self, name: str, other: Any) -> Any:
        if type(other) is not int:
            return super().compute(name, other)
        if name == "rsub":
            return Symbol(_LackSymbol(self, other))
        if name in ("lt", "ge"):
            return self.is_short(other) == (name == "lt")
        if name in ("le", "gt"):
            return self.is_short(other + 1) == (name == "le")
        return super().compute(name, other)


class _Least(_Side):
    """The shorter side."""

    def __init__(self, sides: list[_Side]) -> None:
        super().__init__(sides[0].run, sides[0].place, "shorter side")
        self.sides = sides

    def is_short(self, size: int) -> bool:
        return any(side.is_short(size) for side in self.sides)

    def compute(self, name: str, other: Any) -> Any:
        return Held.compute(self, name, other) if name == "rsub" else super().compute(name, other)


class _LackSymbol(Held):
    """A number of pixels minus a side."""

    def __init__(self, side: _Side, size: int) -> None:
        super().__init__(side.run, "a number of pixels")
        self.side, self.size = side, size

    def compute(self, name: str, other: Any) -> Any:
        if name in ("gt", "le") and type(other) is int and other == 0:
            return self.truth() == (name == "gt")
        return super().compute(name, other)

    def truth(self) -> bool:
        """Return whether it is above 0; it might be below, which is no lack."""
        return self.side.is_short(self.size)


class _Random(Held):
    """A whole number that is drawn."""

    def __init__(self, run: Any, whole: Whole) -> None:
        super().__init__(run, "a random number")
        self.whole = whole


class _Box(Held):
    """One of the four numbers of a crop that is drawn."""

    def __init__(self, run: Any, crop: tuple[Any, ...], at: int) -> None:
        super().__init__(run, "a place of a crop")
        self.crop, self.at = crop, at


class _CropClass(Kind):
    """torchvision's RandomCrop."""

    def attribute(self, name: str) -> Any:
        if name != "get_params" or changed(self.real):
            return super().attribute(name)
        return partial(symbols.apply_known, self._drawn, name)

    def _drawn(self, img: Any, output_size: Any) -> Any:
        height, width = (_number(side) for side in output_size)
        run = self.run
        crop = (run.drawn(), _part(img).part.place, height, width)
        return tuple(Symbol(_Box(run, crop, at)) for at in range(4))


@dataclass
class PairRun(tracing.Run):
    """A course of code that takes an image and its mask."""

    #: Whether a side at a place is shorter than a size, as far as it was asked for.
    short: dict[tuple[Place, str, int], bool] = field(default_factory=dict)
    #: Decisions that are about sizes.
    about_sizes: list[int] = field(default_factory=list)
    drawn_numbers: int = 0

    def is_short(self, side: _Side, size: int) -> bool:
        """Return whether a side is shorter than a size, which is one of two courses."""
        asked = side.place, side.axis, size
        if asked not in self.short:
            self.about_sizes.append(len(self.decisions))
            self.short[asked] = self.choose((0.5, 0.5)) == 0
        return self.short[asked]

    def drawn(self) -> int:
        """Return the number of another draw."""
        self.drawn_numbers += 1
        return self.drawn_numbers

    def wrap(self, value: Any, words: str) -> Any:
        crop = getattr(sys.modules.get("torchvision.transforms.transforms"), "RandomCrop", None)
        if crop is not None and value is crop:
            return Symbol(_CropClass(self, words, value))
        if (does := _known(value)) is not None:
            return Symbol(symbols.Known(self, words, does))
        return super().wrap(value, words)

    def call(self, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (does := _known(real)) is not None:
            return symbols.apply_known(does, name_of(real), self, *args, **kwargs)
        held = held_by(args[0]) if len(args) == 1 and isinstance(args[0], Symbol) else None
        if isinstance(held, _PartSymbol) and name_in(real, "torchvision.transforms") in _COLOURS:
            return _coloured(held, real)
        return super().call(real, args, kwargs)

    def doubt(self, result: Any) -> str:
        parts = result if isinstance(result, tuple) and len(result) == 2 else ()
        if [getattr(one, "name", "") for one in parts] != ["image", "mask"]:
            return "it returns other than the image and its mask"
        return super().doubt(result)


#: Transforms of torchvision's that leave places alone.
_COLOURS = frozenset(
    {
        *("ColorJitter", "GaussianBlur", "Normalize", "RandomAdjustSharpness"),
        *("RandomAutocontrast", "RandomEqualize", "RandomGrayscale", "RandomInvert"),
        *("RandomPosterize", "RandomSolarize"),
    }
)


def trace_pair(transform: Any, image: Part, mask: Part) -> tuple[list[Path], Part] | str:
    """Return the courses of a user's code for an image and its mask, and the mask after it.

    Args:
        transform: The function, or an object of a class that has a ``__call__`` or ``forward``.
        image: The image before it.
        mask: The mask before it.

    Returns:
        The courses that chance decides among, each with a `Node` for what is done to the image; of
        a `Move`, a pair of those of the image and the mask. Or a reason in words.
    """
    runs: list[PairRun] = []

    def begun(script: list[int]) -> PairRun:
        runs.append(PairRun(script))
        return runs[-1]

    def start(run: Any) -> Any:
        parts = (Symbol(_PartSymbol(run, one)) for one in (image, mask))
        return run.call(transform, tuple(parts), {})

    found = tracing.courses(begun, start)
    if isinstance(found, str):
        return found
    try:
        return merged(runs, found)
    except Unknown as error:
        return str(error)


# --- functions ---------------------------------------------------------------------------------


def _part(value: Any, *forms: str) -> _PartSymbol:
    held = held_by(value) if isinstance(value, Symbol) else None
    if not isinstance(held, _PartSymbol) or held.part.form not in (forms or ("pil",)):
        raise Unknown("gives what is no PIL image to a function of torchvision's")
    return held


def _sides(held: _PartSymbol) -> tuple[Any, Any]:
    run, place = held.run, held.part.place
    return Symbol(_Side(run, place, "width")), Symbol(_Side(run, place, "height"))


def _number(value: Any) -> Any:
    """Return a number of pixels: a constant, a `Whole` or a `Lack`."""
    held = held_by(value) if isinstance(value, Symbol) else None
    if isinstance(held, _Random):
        return held.whole
    if isinstance(held, _LackSymbol) and held.truth():
        return Lack(held.side.axis, held.size)
    if held is not None or type(value) is not int:
        raise Unknown("takes what is no known number of pixels")
    return value


def _resize(
    run: Any,
    img: Any,
    size: Any,
    interpolation: Any = None,
    max_size: Any = None,
    antialias: Any = True,
) -> Any:
    part = _part(img)
    several = isinstance(size, (list, tuple))
    values = tuple(map(_number, size)) if several else (_number(size),)
    kind = "bilinear" if interpolation is None else str(getattr(interpolation, "value", ""))
    if max_size is not None or (part.part.name == "mask" and kind != "nearest"):
        raise Unknown("resizes by other than torchvision's references")
    return part.then(Move("resize", values, kind))


def _moves(name: str, run: Any, img: Any) -> Any:
    return _part(img).then(Move(name))


def _crop(run: Any, img: Any, *box: Any) -> Any:
    part = _part(img)
    held = [held_by(one) if isinstance(one, Symbol) else None for one in box]
    places = [(one.crop, one.at) for one in held if isinstance(one, _Box)]
    crops = {crop for crop, _ in places}
    if len(crops) != 1 or len(held) != 4 or [at for _, at in places] != [0, 1, 2, 3]:
        raise Unknown("crops at a place that is not known")
    draw, place, *size = crops.pop()
    if place != part.part.place:
        raise Unknown("crops at a place that was drawn for another size")
    return part.then(Move("random_crop", (draw, *size)))


def _centre_crop(run: Any, img: Any, output_size: Any) -> Any:
    several = isinstance(output_size, (list, tuple))
    values = tuple(map(_number, output_size if several else (output_size,) * 2))
    return _part(img).then(Move("centre_crop", values))


def _pad(run: Any, img: Any, padding: Any, fill: Any = 0, padding_mode: Any = "constant") -> Any:
    part = _part(img)
    several = tuple(padding) if isinstance(padding, (list, tuple)) else (padding,)
    left, top, *rest = several * (2 if len(several) == 1 else 1)
    right, below = rest or (left, top)
    values = tuple(map(_number, (left, top, right, below)))
    return part.then(Move("pad", (*values, plain(padding_mode)), plain(fill)))


def _to_tensor(run: Any, pic: Any) -> Any:
    part = _part(pic)
    if part.part.name == "image":
        return part.then(Conversion("tensor"), form="tensor")
    return part.then(form="tensor", dtype="")


def _scaled(run: Any, pic: Any) -> Any:
    part, floats = _part(pic), default_floats()
    if part.part.name == "mask" or not isinstance(floats, Conversion):
        raise Unknown("scales a mask")
    return part.then(floats, form="tensor", dtype=floats.dtype)


def _convert(run: Any, image: Any, dtype: Any = None) -> Any:
    part = _part(image, "tensor")
    wanted = plain(dtype) or sys.modules["torch"].float32
    floats = wanted is sys.modules["torch"].float32
    if part.part.name == "mask" or not floats or part.part.dtype != "uint8":
        raise Unknown("converts to a dtype in a way that is not known")
    return part.then(Conversion(None, "float32"), dtype="float32")


def _normalize(run: Any, tensor: Any, mean: Any, std: Any, inplace: Any = False) -> Any:
    part = _part(tensor, "tensor")
    real = sys.modules["torchvision.transforms"].Normalize
    return _coloured(part, real(plain(mean), plain(std), plain(inplace)))


def _coloured(part: _PartSymbol, real: Any) -> Any:
    if part.part.name == "mask":
        raise Unknown("changes the values of a mask")
    return part.then(real)


def _array(run: Any, image: Any, **options: Any) -> Any:
    part = _part(image)
    if part.part.name == "image" or options:
        raise Unknown("makes an array of the image")
    return part.then(form="array", dtype="", flat=True)


def _as_tensor(run: Any, array: Any, dtype: Any = None) -> Any:
    part = _part(array, "array")
    return _to(held_by(part.then(form="tensor")), dtype)


def _to(part: _PartSymbol, dtype: Any = None) -> Any:
    wanted = plain(dtype)
    if wanted is None:
        return Symbol(part)
    if part.part.name == "image" or not isinstance(wanted, sys.modules["torch"].dtype):
        raise Unknown("converts to a dtype in a way that is not known")
    if part.part.dtype:
        raise Unknown("converts a mask twice")
    return part.then(dtype=str(wanted).removeprefix("torch."))


def _whole(run: Any, low: Any, high: Any) -> Any:
    low, high = plain(low), plain(high)
    if type(low) is not int or type(high) is not int or low > high:
        raise Unknown("draws what is no whole number")
    return low if low == high else Symbol(_Random(run, Whole(run.drawn(), low, high)))


def _below(run: Any, low: Any, high: Any = None) -> Any:
    return _whole(run, 0, plain(low) - 1) if high is None else _whole(run, low, plain(high) - 1)


_KNOWN: dict[str, Callable[..., Any]] = {
    "center_crop": _centre_crop,
    "convert_image_dtype": _convert,
    "crop": _crop,
    "get_dimensions": lambda run, img: [3, *reversed(_sides(_part(img)))],
    "get_image_size": lambda run, img: [*_sides(_part(img))],
    "hflip": partial(_moves, "hflip"),
    "normalize": _normalize,
    "pad": _pad,
    "pil_to_tensor": _to_tensor,
    "resize": _resize,
    "to_tensor": _scaled,
    "vflip": partial(_moves, "vflip"),
}


# As these modules were when fastdata was imported.
_ALWAYS: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (random.randint, _whole),
    (np.random.randint, _below),
    (np.array, _array),
    (np.asarray, _array),
)


def _known(value: Any) -> Callable[..., Any] | None:
    """Return the known effect of a function on a part."""
    name = getattr(value, "__name__", "")
    if isinstance(value, types.FunctionType):
        return _KNOWN.get(name) if value is own_function(_FUNCTIONAL, name) else None
    if not isinstance(value, (types.BuiltinFunctionType, types.MethodType)):
        return None
    torch = sys.modules["torch"]
    of_torch = ((torch.as_tensor, _as_tensor), (torch.from_numpy, _as_tensor))
    return next((does for one, does in (*_ALWAYS, *of_torch) if value == one), None)


def _min(*args: Any) -> Any:
    several = list(args[0]) if len(args) == 1 else list(args)
    held = [held_by(one) if isinstance(one, Symbol) else None for one in several]
    sides = [one for one in held if isinstance(one, _Side)]
    if sides and len(sides) == len(held) and len({one.place for one in sides}) == 1:
        return Symbol(_Least(sides))
    if any(one is not None for one in held):
        raise Unknown("takes the least of what is not known")
    return min(several)


def _max(*args: Any) -> Any:
    several = list(args[0]) if len(args) == 1 else list(args)
    held = [held_by(one) if isinstance(one, Symbol) else None for one in several]
    lack = next((one for one in held if isinstance(one, _LackSymbol)), None)
    if lack is not None and len(several) == 2 and 0 in [one for one in several if type(one) is int]:
        return Symbol(lack) if lack.truth() else 0
    if any(one is not None for one in held):
        raise Unknown("takes the maximum of what is not known")
    return max(several)


PairRun.replaced = {**tracing.Run.replaced, "max": _max, "min": _min}

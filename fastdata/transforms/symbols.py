"""Symbols: values in code that `fastdata.transforms.tracing` runs.

Every operation on a `Symbol` is one of its `Held`, which records it or raises `Unknown`. So code
learns nothing of a symbol's value that is not recorded.
"""

from __future__ import annotations

import enum
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from PIL.Image import Image as PILImage

from fastdata.transforms.forms import Stack, leaves
from fastdata.transforms.originals import composed


class Unknown(BaseException):
    """Error where the effect of code is not known. Traced code cannot catch it: no Exception.

    Attributes:
        place: The line; "" for the one that raises.
    """

    def __init__(self, words: str, place: str = "") -> None:
        super().__init__(words)
        self.place = place


@dataclass(frozen=True)
class Call:
    """An operation on an image that Pillow does: of the core's, with its values."""

    name: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Later:
    """A call that has nothing to do with the image: to be made for each sample."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()


class Node:
    """An image: one of those that were given, or what a step makes of another.

    Attributes:
        before: The other; None: it was given.
        step: A `Call`, any other callable, or `ON_PIL`; of one that was given its place.
        mode: RGB or L; None: it is no PIL image, or one of a mode that is not known.
    """

    def __init__(self, before: Node | None, step: Any, mode: str | None = "RGB") -> None:
        self.before = before
        self.step = step
        self.mode = mode

    def chain(self) -> list[Node]:
        """Return the nodes from the given image to this one."""
        return [self] if self.before is None else [*self.before.chain(), self]


#: In the place of an attribute that is not there.
MISSING = object()

#: A step that does nothing: the code takes what it has here for a PIL image.
ON_PIL = object()


@dataclass
class Path:
    """One course that code can take.

    Attributes:
        result: Its result: a `Node`, a `Later`, a constant, a `Stack`, or lists, tuples and
            dicts of them.
        decisions: The weights of each choice, and which was taken.
        draws: The interval that each draw is uniform in, on this course.
    """

    result: Any
    decisions: list[tuple[tuple[float, ...], int]]
    draws: list[tuple[float, float]]


class Symbol:
    """Value in code that is traced: its `Held` handles every operation."""

    __slots__ = ("_held",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, held: Held) -> None:
        object.__setattr__(self, "_held", held)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":  # isinstance() asks for it; traced code cannot
            return Symbol
        return held_by(self).attribute(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return held_by(self).call(args, kwargs)

    def __iter__(self) -> Any:
        return iter(held_by(self).several())

    def __getitem__(self, key: Any) -> Any:
        return held_by(self).item(key)

    def __bool__(self) -> bool:
        return bool(held_by(self).truth())

    def __len__(self) -> int:
        return len(held_by(self).several())


def held_by(symbol: Symbol) -> Any:
    """Return the record behind a symbol."""
    return object.__getattribute__(symbol, "_held")


def _computing(name: str) -> Callable[..., Any]:
    def compute(self: Symbol, other: Any = None) -> Any:
        return held_by(self).compute(name, other)

    return compute


def _refusing(words: str) -> Callable[..., Any]:
    def refuse(self: Symbol, *args: Any, **kwargs: Any) -> Any:
        held_by(self).refuse(words)

    return refuse


for _name in ("add", "sub", "mul", "truediv", "radd", "rsub", "rmul", "neg", "pos"):
    setattr(Symbol, f"__{_name}__", _computing(_name))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Symbol, f"__{_name}__", _computing(_name))
for _name in (
    *("eq", "ne", "hash", "contains", "reversed", "length_hint"),
    *("int", "float", "complex", "index", "round", "trunc", "floor", "ceil", "abs", "invert"),
    *("floordiv", "mod", "divmod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"),
    *("rfloordiv", "rmod", "rdivmod", "rpow", "rmatmul", "rtruediv"),
    *("rand", "ror", "rxor", "rlshift", "rrshift"),
    *("ifloordiv", "imod", "ipow", "imatmul"),
    *("iand", "ior", "ixor", "ilshift", "irshift"),
    *("str", "repr", "bytes", "format", "next", "await", "enter", "exit"),
    *("setattr", "delattr", "setitem", "delitem", "reduce", "reduce_ex", "array", "fspath"),
):
    setattr(Symbol, f"__{_name}__", _refusing(f"uses {{}} in a way that is not known ({_name})"))


class Held:
    """Record of a symbol; by default, nothing is known of its value.

    Args:
        run: The course that it belongs to.
        words: Its name in a reason.
        real: The object itself, where there is one.
    """

    def __init__(self, run: Any, words: str, real: Any = None) -> None:
        self.run = run
        self.words = words
        self.real = real

    def refuse(self, words: str) -> NoReturn:
        """Raise `Unknown`, in words that have a place for what this is."""
        raise Unknown(words.format(self.words))

    def attribute(self, name: str) -> Any:
        self.refuse(f"takes {name!r} of {{}}")

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.refuse("calls {}")

    def several(self) -> Sequence[Any]:
        self.refuse("takes {} for a sequence")

    def item(self, key: Any) -> Any:
        return self.several()[key]

    def truth(self) -> bool:
        self.refuse("uses {} in a way that is not known (bool)")

    def compute(self, name: str, other: Any) -> Any:
        self.refuse("computes with {}")

    def returned(self) -> Any:
        self.refuse("returns {}")

    def is_a(self, kinds: tuple[Any, ...]) -> bool:
        self.refuse("asks for the type of {}")

    def type(self) -> Any:
        self.refuse("asks for the type of {}")

    def has(self, name: str) -> bool:
        self.refuse(f"asks {{}} for an attribute {name!r}")


class Image(Held):
    """An image."""

    def __init__(self, run: Any, node: Node) -> None:
        super().__init__(run, "the image")
        self.node = node

    def then(self, step: Any, mode: str | None) -> Any:
        """Return the result of a step."""
        return Symbol(Image(self.run, Node(self.node, step, mode)))

    def attribute(self, name: str) -> Any:
        if name == "mode":
            self.on_pil()
            return self.node.mode
        return self.run.method(self, name) or super().attribute(name)

    def on_pil(self) -> None:
        """Note that the code takes it for a PIL image, which it is if it has a mode."""
        if self.node.mode is None:
            self.refuse("asks for the type of {}")
        if self.node.step is not ON_PIL and not isinstance(self.node.step, Call):
            self.node = Node(self.node, ON_PIL, self.node.mode)

    def is_a(self, kinds: tuple[Any, ...]) -> bool:
        self.on_pil()
        return any(issubclass(PILImage, kind) for kind in kinds)

    def returned(self) -> Any:
        return self.node


class Number(Held):
    """A uniform draw times a factor, plus a number."""

    def __init__(self, run: Any, draw: int, times: float = 1.0, plus: float = 0.0) -> None:
        super().__init__(run, "a random number")
        self.draw = draw
        self.times = times
        self.plus = plus

    def ends(self) -> tuple[float, float]:
        """Return the interval that it lies in."""
        low, high = (self.times * end + self.plus for end in self.run.draws[self.draw])
        return min(low, high), max(low, high)

    def is_a(self, kinds: tuple[Any, ...]) -> bool:
        return any(issubclass(float, kind) for kind in kinds)

    def compute(self, name: str, other: Any) -> Any:
        if name == "neg":
            return self.scaled(-1.0, 0.0)
        if name == "pos":
            return self.scaled(1.0, 0.0)
        if not isinstance(other, (int, float, np.integer, np.floating)):
            self.refuse("computes with {} and what is no constant")
        other = float(other)
        if name in ("lt", "le", "gt", "ge"):
            return self.run.below(self, other, name in ("le", "gt")) == (name in ("lt", "le"))
        times, plus = {
            "add": (1.0, other),
            "radd": (1.0, other),
            "sub": (1.0, -other),
            "rsub": (-1.0, other),
            "mul": (other, 0.0),
            "rmul": (other, 0.0),
            "truediv": (1 / (other if name == "truediv" else 1.0), 0.0),
        }[name]
        return self.scaled(times, plus)

    def scaled(self, times: float, plus: float) -> Any:
        """Return it times a factor, plus a number."""
        values = self.times * times, self.plus * times + plus
        return Symbol(Number(self.run, self.draw, *map(float, values)))


class SingleNumber(Number):
    """A draw of torch's, of single precision: known where it is compared, as 2**-24 is little."""

    def attribute(self, name: str) -> Any:
        if name == "item":
            return lambda: Symbol(SingleNumber(self.run, self.draw))
        return super().attribute(name)

    def is_a(self, kinds: tuple[Any, ...]) -> bool:
        self.refuse("asks for the type of {}")

    def scaled(self, times: float, plus: float) -> Any:
        self.refuse("computes with {} of torch's")


class Awaited(Held):
    """The result of a call that has nothing to do with the image."""

    def __init__(self, run: Any, later: Later) -> None:
        super().__init__(run, f"what {name_of(later.function)} returns")
        self.later = later

    def returned(self) -> Any:
        return self.later


class Stacked(Held):
    """A stack of images."""

    def __init__(self, run: Any, images: tuple[Any, ...]) -> None:
        super().__init__(run, "a stack of images")
        self.images = images

    def several(self) -> Sequence[Any]:
        return self.images

    def returned(self) -> Any:
        return Stack(tuple(map(returned, self.images)))


class Module(Held):
    """A module, whose attributes are looked up."""

    def attribute(self, name: str) -> Any:
        found = getattr(self.real, name, self)
        if found is self:
            self.refuse(f"takes {name!r} of {{}}, which has none")
        return self.run.wrap(found, f"{self.words}.{name}")


class Known(Held):
    """A library's function, whose effect is known."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return apply_known(self.real, self.words, self.run, *args, **kwargs)


class Kind(Held):
    """A class, to call or to ask for."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if package(self.real) not in ("torchvision", "fastdata"):
            return super().call(args, kwargs)
        named = {name: plain(value) for name, value in kwargs.items()}
        return self.run.wrap(self.real(*map(plain, args), **named), self.words)

    def attribute(self, name: str) -> Any:
        if name == "__name__":
            return self.real.__name__
        if isinstance(self.real, enum.EnumMeta):
            return self.run.wrap(getattr(self.real, name), f"{self.words}.{name}")
        return super().attribute(name)


class Object(Held):
    """An object of the script's, to call or to take attributes of."""

    def attribute(self, name: str) -> Any:
        words = f"{self.words}.{name}"
        self.run.read.append(self.real)
        found = self._found(name)
        if found is MISSING:
            self.refuse(f"takes {name!r} of {{}}, which has none")
        if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
            return self.run.inline(found.fget, (self.real,), (), {})
        if isinstance(found, staticmethod):
            found = found.__func__
        elif isinstance(found, classmethod):
            found = types.MethodType(found.__func__, type(self.real))
        elif isinstance(found, types.FunctionType) and name not in vars(self.real):
            found = types.MethodType(found, self.real)
        elif hasattr(type(found), "__get__") and not isinstance(found, types.FunctionType):
            self.refuse(f"takes {name!r} of {{}}, which computes it")
        return self.run.wrap(found, words)

    def _found(self, name: str) -> Any:
        """Return an attribute as the object or its class holds it."""
        kind = type(self.real)
        torch = sys.modules.get("torch")
        parent = torch.nn.Module if torch is not None else object
        for hook in ("__getattribute__", "__getattr__"):
            own = inspect.getattr_static(kind, hook, None)
            if own not in (getattr(object, hook, None), getattr(parent, hook, None)):
                self.refuse(f"takes {name!r} of {{}}, whose class has a {hook}")
        if not hasattr(self.real, "__dict__") or isinstance(self.real, types.FunctionType):
            self.refuse(f"takes {name!r} of {{}}")
        modules = vars(self.real).get("_modules", {}) if issubclass(kind, parent) else {}
        found = inspect.getattr_static(self.real, name, MISSING)
        return modules.get(name, MISSING) if found is MISSING else found

    def has(self, name: str) -> bool:
        """Return whether it has an attribute."""
        self.run.read.append(self.real)
        return self._found(name) is not MISSING

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.run.call(self.real, args, kwargs)

    def several(self) -> Sequence[Any]:
        found = composed(self.real)
        torch = sys.modules.get("torch")
        if torch is not None and type(self.real) is torch.nn.ModuleList:
            found = tuple(self.real)
        if found is None:
            return super().several()
        return [self.run.wrap(one, "a transform") for one in found]

    def is_a(self, kinds: tuple[Any, ...]) -> bool:
        return isinstance(self.real, kinds)

    def type(self) -> Any:
        return type(self.real)


def plain(value: Any) -> Any:
    """Return a value as code that is not traced takes it."""

    def real(symbol: Symbol) -> Any:
        held = held_by(symbol)
        if held.real is None or isinstance(held, Known):
            held.refuse("hands over {}")
        return held.real

    return _replaced(value, real, "hands over")


def returned(value: Any) -> Any:
    """Replace the symbols in a returned value by their records."""
    return _replaced(value, lambda symbol: held_by(symbol).returned(), "returns")


def _replaced(value: Any, change: Callable[[Symbol], Any], verb: str) -> Any:
    """Replace the symbols in constants, lists, tuples and dicts."""
    if isinstance(value, Symbol):
        return change(value)
    kind = _CONTAINERS.get(type(value))
    if kind is dict:
        return {key: _replaced(one, change, verb) for key, one in value.items()}
    if kind is not None:
        return kind(_replaced(one, change, verb) for one in value)
    if isinstance(value, CONSTANTS):
        return value
    raise Unknown(f"{verb} a {type(value).__name__}")


CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice),
    *(np.generic, enum.Enum),
)


def _unchangeable(kind: type[Any], *names: str) -> type[Any]:
    """Return a container type whose methods that change it raise Unknown."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise Unknown(f"changes a {kind.__name__} that it has not made")

    return type(f"Fixed{kind.__name__.title()}", (kind,), dict.fromkeys(names, refuse))


FixedList = _unchangeable(
    list,
    *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse"),
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
)
FixedDict = _unchangeable(
    dict,
    *("update", "pop", "popitem", "clear", "setdefault", "__setitem__", "__delitem__", "__ior__"),
)


#: The kinds of containers that code makes, or gets in a copy that cannot change.
_CONTAINERS: dict[Any, Any] = dict.fromkeys((list, FixedList), list)
_CONTAINERS |= {tuple: tuple, dict: dict, FixedDict: dict}


def has_symbols(values: Any) -> bool:
    """Return whether there is an image or a random number in some values."""
    found = (one for one in leaves(values) if isinstance(one, Symbol))
    return any(held_by(symbol).real is None for symbol in found)


def package(kind: type[Any]) -> str:
    """Return the name of the package that defines a class."""
    return kind.__module__.partition(".")[0]


def apply_known(function: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
    """Call what is known of a library's function; raise `Unknown` for arguments that are not."""
    try:
        return function(*args, **kwargs)
    except TypeError:
        raise Unknown(f"calls {name} with arguments that are not known") from None


def name_of(real: Any) -> str:
    """Return the name of a function or transform for a message."""
    name = str(getattr(real, "__name__", None) or type(real).__name__)
    # Others have a Compose, too.
    whose = package(type(real))
    return f"{whose}.{name}" if whose == "albumentations" else name

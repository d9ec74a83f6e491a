"""Tracing: run a user's function on symbols to learn its effect on an image.

A small class or function of a training script runs once for each course it can take, with a symbol
for the image. Its calls are recorded: methods of Pillow's images, functions of Pillow and
torchvision, other transforms. A comparison with a random number takes each branch in turn, with its
probability. Views of one image, made by several transforms, are recorded as such.

The record is complete. The function is rebuilt from its own code with other globals and no
builtins, so each value it meets is one of

- a constant; a copy of one that a global, a closure, a default or an attribute holds;
- a container that the code itself has made, or an unchangeable copy of one that it reads;
- a symbol, whose every operation is recorded or raises `Unknown`;
- one of the builtins in `_BUILTINS`, which compute with what they are given and do no more.

Code that could go around this is refused before it runs: names with two underscores, imports,
classes, handlers of exceptions, generators, ``while``, assignments to globals and outer variables,
``is`` with anything but None. Setting an attribute or an item of another object raises. So by
induction the code changes nothing, reads nothing else, and ends. Its result depends on the image
and on the recorded draws alone. Functions of libraries are known by identity, while they belong to
their module: a replaced one is the user's.

Limits of the proof: attributes and globals are read when a pipeline is compiled, which a loader
does again before each epoch; changes in between are not seen. Transforms that the code calls are
not proved here: the compiler knows them, or traces them in turn.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePath
from typing import Any, ClassVar

import numpy as np

from fastdata.transforms import symbols, tracing_calls
from fastdata.transforms.forms import leaves, mapped
from fastdata.transforms.originals import changed, composed, hooked, name_in, pillow_changed
from fastdata.transforms.reading import Step
from fastdata.transforms.symbols import (
    Call,
    Image,
    Later,
    Node,
    Number,
    Path,
    Symbol,
    Unknown,
    held_by,
)

_PATHS = 64  # of one function, at most
_DEPTH = 20  # of calls in calls
_LENGTH = 10_000  # of a range


def trace(function: Any, given: Any = 0) -> list[Path] | str:
    """Return every course that a user's function can take, or why they are not known.

    Args:
        function: A function, or an object of a class that has a ``__call__`` or ``forward``.
        given: Its argument: an image's number, or a form of several (`forms.Form`).

    Returns:
        Its courses; or a reason in words, "" if it is not the user's code.
    """
    if not is_users(function) and tracing_calls.find(function) is None:
        return ""
    return courses(Run, lambda run: run.call(function, (_given(run, given),), {}))


def courses(kind: Callable[[list[int]], Any], start: Callable[[Any], Any]) -> list[Path] | str:
    """Return every course that code can take, or why they are not known.

    Args:
        kind: Makes a course of the choices that it is to take: `Run`, or what is derived from it.
        start: Function that runs the code on one course; returns its result.
    """
    paths: list[Path] = []
    waiting: list[list[int]] = [[]]
    while waiting:
        run = kind(waiting.pop())
        try:
            result = symbols.returned(start(run))
        except Unknown as error:
            return f"{error.place or _where(error)} {error}"
        except Exception as error:
            return f"{_where(error)} raises {type(error).__name__}: {error}"
        doubt: str = run.doubt(result)
        if doubt:
            return doubt
        paths.append(Path(result, run.decisions, run.draws))
        for at in range(len(run.script), len(run.decisions)):
            taken = [which for _, which in run.decisions[:at]]
            more = range(1, len(run.decisions[at][0]))
            waiting += [[*taken, which] for which in more]
        if len(paths) + len(waiting) > _PATHS:
            return f"it has more than {_PATHS} courses"
    return paths


def _given(run: Run, form: Any) -> Any:
    """Return symbols of a form of images."""
    return mapped(
        form,
        lambda number: Symbol(Image(run, Node(None, number))),
        lambda images: Symbol(symbols.Stacked(run, images)),
    )


def is_users(function: Any) -> bool:
    """Return whether it is code of a script, rather than of a library that fastdata knows."""
    return code_of(function) is not None


def code_of(function: Any) -> tuple[types.FunctionType, tuple[Any, ...]] | None:
    """Return the Python function that a call runs, and what precedes its arguments."""
    if isinstance(function, functools.partial):
        return code_of(function.func)
    if (called := lambda_of(function)) is not None:
        return code_of(called)
    if str(getattr(function, "__module__", "")).partition(".")[0] in sys.stdlib_module_names:
        return None
    if isinstance(function, types.FunctionType):
        return function, ()
    if isinstance(function, types.MethodType):
        found = function.__func__
        return (found, (function.__self__,)) if isinstance(found, types.FunctionType) else None
    kind = type(function)
    if symbols.package(kind) in _LIBRARIES or isinstance(function, Step):
        return None
    called = inspect.getattr_static(kind, "__call__", None)
    torch = sys.modules.get("torch")
    if torch is not None and called is torch.nn.Module.__call__:
        if "forward" in vars(function) or hooked(function) or changed(torch.nn.Module):
            return None
        called = inspect.getattr_static(kind, "forward", None)
    if not isinstance(called, types.FunctionType):
        return None
    return called, (function,)


def lambda_of(function: Any) -> Any:
    """Return the function that torchvision's Lambda calls; None for anything else."""
    if name_in(function, "torchvision.transforms") == "Lambda":
        return function.lambd
    if name_in(function, "torchvision.transforms.v2") == "Lambda" and function.types == (object,):
        return function.lambd
    return None


#: Packages whose transforms are known by their type, or not at all.
_LIBRARIES = frozenset(
    ("torchvision", "timm", "open_clip", "transformers", "torch", "numpy", "albumentations")
)


def _where(error: BaseException) -> str:
    """Return the line of traced code, of a script where there is one, that an error comes from."""
    found, at = "", error.__traceback__
    while at is not None:
        names = at.tb_frame.f_globals
        if isinstance(names, _Names) and not (found and names.is_library):
            file = PurePath(at.tb_frame.f_code.co_filename).name
            found = f"line {at.tb_lineno} of {file}"
        at = at.tb_next
    return found or "it"


# --- code that is not run --------------------------------------------------------------------

# By bytecode, as that is what runs: a script's source may be gone, have changed since, or have been
# typed at a prompt.

_FORBIDDEN = {
    "IMPORT_NAME": "imports a module",
    "LOAD_BUILD_CLASS": "makes a class",
    "STORE_GLOBAL": "sets a global",
    "DELETE_GLOBAL": "deletes a global",
    "STORE_ATTR": "sets an attribute",
    "DELETE_ATTR": "deletes an attribute",
    "PUSH_EXC_INFO": "handles exceptions",
    "SETUP_FINALLY": "handles exceptions",
    "SETUP_WITH": "handles exceptions",
    "SETUP_ASYNC_WITH": "handles exceptions",
}


@lru_cache(maxsize=1024)
def _forbidden(code: types.CodeType) -> tuple[str, str]:
    """Return why code could do what symbols do not see, and where; ("", "") if it cannot."""
    outer = set(code.co_freevars)
    file = PurePath(code.co_filename).name
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return "is a generator", f"line {code.co_firstlineno} of {file}"
    for part in codes_in(code):
        line = part.co_firstlineno
        before = None
        steps = list(dis.get_instructions(part))
        loops = {one.offset for one in steps if one.opname == "FOR_ITER"}
        # A jump to a long FOR_ITER goes to the arguments before it.
        for wide, one in reversed(list(pairwise(steps))):
            if wide.opname == "EXTENDED_ARG" and one.offset in loops:
                loops.add(wide.offset)
        for one in steps:
            if one.starts_line is not None and not isinstance(one.starts_line, bool):
                line = one.starts_line
            line = getattr(one, "line_number", None) or line
            if reason := _forbidden_step(one, before, loops, outer):
                return reason, f"line {line} of {file}"
            before = one
    return "", ""


def _forbidden_step(one: Any, before: Any, loops: set[int], outer: set[str]) -> str:
    name = one.opname
    if name in _FORBIDDEN:
        return _FORBIDDEN[name]
    if name in ("STORE_DEREF", "DELETE_DEREF") and one.argval in outer:
        return f"sets {one.argval!r} of an outer function"
    if isinstance(one.argval, str) and name != "LOAD_CONST":
        hidden = is_hidden(one.argval)
        if hidden and name.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME")):
            return f"uses {one.argval!r}"
    if name == "IS_OP" and not (before.opname == "LOAD_CONST" and before.argval is None):
        return "asks whether two things are one"
    jumps = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
    if jumps and one.argval <= one.offset and one.argval not in loops:
        return "has a loop that is not for"
    return ""


def is_hidden(name: str) -> bool:
    """Return whether an attribute could lead code around its symbols."""
    around = ("__", "gi_", "cr_", "ag_", "f_", "tb_", "func_")
    return name.startswith(around) and name != "__name__"  # which is a string


@lru_cache(maxsize=1024)
def _tests_none(code: types.CodeType) -> bool:
    return any(
        one.opname == "IS_OP" or one.opname.endswith("NONE")
        for part in codes_in(code)
        for one in dis.get_instructions(part)
    )


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


# --- a course of the code --------------------------------------------------------------------


@dataclass
class Run:
    """One course: the choices that it is to take, and those that it has taken."""

    #: Functions that replace builtins, by name.
    replaced: ClassVar[dict[str, Any]] = {}

    script: list[int]
    decisions: list[tuple[tuple[float, ...], int]] = field(default_factory=list)
    draws: list[tuple[float, float]] = field(default_factory=list)
    depth: int = 0
    unsure: str = ""  # something was called that may return None
    tests_none: bool = False
    awaited: list[Later] = field(default_factory=list)
    read: list[Any] = field(default_factory=list)  # objects whose attributes the code depends on

    def later(self, later: Later) -> Any:
        """Return the symbol of a call that is made for each sample."""
        self.awaited.append(later)
        self.unsure = symbols.name_of(later.function)
        return Symbol(symbols.Awaited(self, later))

    def doubt(self, result: Any) -> str:
        """Say why the course may be another one for another sample; "" if it cannot.

        A call that is made for each sample may change the object that is called.
        """
        if self.unsure and self.tests_none:
            return f"it tests for None what {self.unsure} returns"
        for later in self.awaited:
            name = symbols.name_of(later.function)
            if not any(one is later for one in leaves(result)):
                return f"it calls {name} and does not return the result"
            if any(one is later.function for one in self.read):
                return f"it calls {name} and reads its attributes"
        return ""

    def choose(self, weights: tuple[float, ...]) -> int:
        """Choose among several with these weights; return the number."""
        at = len(self.decisions)
        which = self.script[at] if at < len(self.script) else 0
        self.decisions.append((weights, which))
        return which

    def uniform(self, low: Any, high: Any, kind: type[Number] = Number) -> Any:
        """Return a draw between two constants."""
        ends = float(symbols.plain(low)), float(symbols.plain(high))
        self.draws.append((min(ends), max(ends)))
        return Symbol(kind(self, len(self.draws) - 1))

    def below(self, number: Number, bound: float, or_equal: bool) -> bool:
        """Return whether a random number is below a bound; chosen, it then lies on that side."""
        least, greatest = number.ends()
        if least == greatest:
            return least <= bound if or_equal else least < bound
        at = (bound - number.plus) / number.times
        low, high = self.draws[number.draw]
        part = min(max((at - low) / (high - low), 0.0), 1.0)
        lower = part > 0 if part in (0.0, 1.0) else self.choose((part, 1 - part)) == 0
        if low < at < high:
            self.draws[number.draw] = (low, at) if lower else (at, high)
        return lower == (number.times > 0)

    def wrap(self, value: Any, words: str) -> Any:
        """Return a value of the script as traced code gets it."""
        if type(value) in symbols.CONSTANTS or isinstance(value, np.generic):
            return value
        if isinstance(value, enum.Enum) and symbols.package(type(value)) in (*_LIBRARIES, "PIL"):
            return value
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, (torch.dtype, torch.device)):
            return Symbol(symbols.Held(self, words, value))
        if type(value) in (list, tuple):
            kind = symbols.FixedList if type(value) is list else tuple
            return kind(self.wrap(one, f"an item of {words}") for one in value)
        if type(value) is dict:
            return symbols.FixedDict(
                (self.wrap(key, f"a key of {words}"), self.wrap(one, f"an item of {words}"))
                for key, one in value.items()
            )
        known = tracing_calls.find(value)
        if known is not None:
            return Symbol(symbols.Known(self, words, known))
        if isinstance(value, types.ModuleType):
            return Symbol(symbols.Module(self, words, value))
        if isinstance(value, type):
            return Symbol(symbols.Kind(self, words, value))
        return Symbol(symbols.Object(self, words, value))

    def call(self, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of calling an object."""
        if (known := tracing_calls.find(real)) is not None:
            return symbols.apply_known(known, symbols.name_of(real), self, *args, **kwargs)
        one = args[0] if len(args) == 1 and not kwargs else None
        is_image = isinstance(one, Symbol) and isinstance(held_by(one), Image)
        if (called := lambda_of(real)) is not None:
            if not is_image and name_in(real, "torchvision.transforms.v2"):
                raise Unknown("is a Lambda of v2, which takes each of several images by itself")
            if not self.depth:
                return self.call(called, args, kwargs)
        if isinstance(real, functools.partial):
            given = [self.wrap(one, "an argument") for one in real.args]
            named = {name: self.wrap(one, name) for name, one in real.keywords.items()}
            return self.call(real.func, (*given, *args), {**named, **kwargs})
        code = code_of(real)
        # A method is a part of this code; anything else that takes an image is its own transform.
        if self.depth and is_image and not isinstance(real, types.MethodType):
            return self.transform(real, one)
        if code is not None and (not self.depth or isinstance(real, _FUNCTIONS)):
            return self.inline(code[0], code[1], args, kwargs)
        if code is not None and not symbols.has_symbols(args) and not symbols.has_symbols(kwargs):
            later = tuple((name, symbols.plain(value)) for name, value in kwargs.items())
            return self.later(Later(real, tuple(map(symbols.plain, args)), later))
        if code is not None:
            return self.inline(code[0], code[1], args, kwargs)
        raise Unknown(f"calls {symbols.name_of(real)}, which is not known")

    def method(self, image: Image, name: str) -> Any:
        """Return a method of Pillow's images; None: it is not known."""
        if name not in tracing_calls.METHODS or pillow_changed():
            return None
        image.on_pil()
        return functools.partial(symbols.apply_known, tracing_calls.METHODS[name], name, image)

    def transform(self, real: Any, image: Any) -> Any:
        """Return the result of a transform of an image."""
        parts = composed(real)
        if parts is not None:
            for part in parts:
                image = self.call(part, (image,), {})
            return image
        held = held_by(image)
        if held.node.mode == "L":
            raise Unknown(f"gives {symbols.name_of(real)} an image of mode L")
        courses = trace(real)
        if isinstance(courses, list):
            if len(courses) == 1 and not isinstance(courses[0].result, Node):
                return self._grafted(courses[0], held)
            if not all(isinstance(course.result, Node) for course in courses):
                raise Unknown(f"calls {symbols.name_of(real)}, whose result depends on chance")
            modes = {course.result.mode for course in courses}
            return held.then(real, modes.pop() if len(modes) == 1 else None)
        kind = type(real)
        if symbols.package(kind) not in _LIBRARIES and not isinstance(real, Step):
            self.unsure = symbols.name_of(real)
        kept = kind.__name__ in _KEEP_THE_MODE and symbols.package(kind) == "torchvision"
        return held.then(real, held.node.mode if kept else None)

    def _grafted(self, course: Path, image: Image) -> Any:
        """Return the result of another transform, made of an image."""
        offset = len(self.draws)
        self.draws += course.draws
        nodes: dict[int, Node] = {}

        def graft(value: Any) -> Any:
            if isinstance(value, Node):
                last = image.node
                for node in value.chain()[1:]:
                    step = _shifted(node.step, self, offset)
                    last = nodes.setdefault(id(node), Node(last, step, node.mode))
                return Symbol(Image(self, last))
            return self.later(value) if isinstance(value, Later) else value

        return mapped(course.result, graft, lambda images: Symbol(symbols.Stacked(self, images)))

    def inline(
        self,
        function: types.FunctionType,
        before: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a function of the user's on symbols."""
        reason, place = _forbidden(function.__code__)
        if reason:
            raise Unknown(reason, place)
        if self.depth >= _DEPTH:
            raise Unknown(f"calls functions in functions, more than {_DEPTH}")
        self.tests_none = self.tests_none or _tests_none(function.__code__)
        defaults = tuple(self.wrap(one, "a default") for one in function.__defaults__ or ())
        cells = (
            types.CellType(self.wrap(cell.cell_contents, name))
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=True
            )
        )
        rebuilt = types.FunctionType(
            function.__code__,
            _Names(self, function.__globals__),
            function.__name__,
            defaults,
            tuple(cells),
        )
        rebuilt.__kwdefaults__ = {
            name: self.wrap(one, name) for name, one in (function.__kwdefaults__ or {}).items()
        }
        self.depth += 1
        try:
            return rebuilt(*(self.wrap(one, "self") for one in before), *args, **kwargs)
        finally:
            self.depth -= 1


_FUNCTIONS = (types.FunctionType, types.MethodType)

#: Transforms of torchvision's that make PIL images of the mode of those that they are given.
_KEEP_THE_MODE = frozenset(
    {
        *("AutoAugment", "CenterCrop", "ColorJitter", "GaussianBlur", "Pad", "RandAugment"),
        *("RandomAdjustSharpness", "RandomAffine", "RandomAutocontrast", "RandomCrop"),
        *("RandomEqualize", "RandomHorizontalFlip", "RandomInvert", "RandomPerspective"),
        *("RandomPosterize", "RandomResizedCrop", "RandomRotation", "RandomSolarize"),
        *("RandomVerticalFlip", "Resize", "TrivialAugmentWide"),
    }
)


def _shifted(step: Any, run: Run, offset: int) -> Any:
    """Return a step of another course, with this course's numbers of draws."""
    if not isinstance(step, Call):
        return step
    values = (
        Number(run, value.draw + offset, value.times, value.plus)
        if isinstance(value, Number)
        else value
        for value in step.values
    )
    return Call(step.name, tuple(values))


class _Names(dict):  # type: ignore[type-arg]
    """The globals of traced code: those of the script, as symbols."""

    def __init__(self, run: Run, script: dict[str, Any]) -> None:
        super().__init__(__builtins__={})
        self._run = run
        self._script = script

    @property
    def is_library(self) -> bool:
        """Whether it is code of a library, which a script calls."""
        return str(self._script.get("__name__")).partition(".")[0] in _LIBRARIES

    def __missing__(self, name: str) -> Any:
        run, script = self._run, self._script
        if name in script:
            return run.wrap(script[name], name)
        own = script.get("__builtins__")
        found = vars(own) if isinstance(own, types.ModuleType) else own
        if isinstance(found, dict) and found.get(name) is getattr(builtins, name, found):
            if name in run.replaced:
                return run.replaced[name]
            if name in _BUILTINS:
                return found[name]
        raise Unknown(f"uses {name}, which is not known")


_BUILTINS = frozenset(
    {
        *("abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "len", "list"),
        *("map", "max", "min", "reversed", "round", "sorted", "str", "sum", "tuple", "zip"),
        *("ValueError", "TypeError", "RuntimeError", "NotImplementedError", "AssertionError"),
    }
)


def _is_instance(value: Any, kinds: Any) -> bool:
    several = kinds if isinstance(kinds, tuple) else (kinds,)
    real = tuple(symbols.plain(kind) if isinstance(kind, Symbol) else kind for kind in several)
    if not all(isinstance(kind, type) for kind in real):
        raise Unknown("asks for a type that is not known")
    if isinstance(value, Symbol):
        return bool(held_by(value).is_a(real))
    return isinstance(value, real)


def _short_range(*args: Any) -> range:
    found = range(*map(operator.index, args))
    if len(found) > _LENGTH:
        raise Unknown(f"counts to more than {_LENGTH}")
    return found


def _type(value: Any) -> Any:
    if not isinstance(value, Symbol):
        raise Unknown("asks for the type of what is no symbol")
    held = held_by(value)
    return Symbol(symbols.Kind(held.run, f"the type of {held.words}", held.type()))


def _getattr(value: Any, name: Any, *default: Any) -> Any:
    if type(name) is not str or is_hidden(name):
        raise Unknown(f"takes {name!r} by getattr")
    return default[0] if default and not _hasattr(value, name) else getattr(value, name)


def _hasattr(value: Any, name: Any) -> bool:
    if not isinstance(value, Symbol) or type(name) is not str or is_hidden(name):
        raise Unknown(f"asks for an attribute {name!r}")
    return bool(held_by(value).has(name))


Run.replaced = {
    "getattr": _getattr,
    "hasattr": _hasattr,
    "isinstance": _is_instance,
    "range": _short_range,
    "type": _type,
}

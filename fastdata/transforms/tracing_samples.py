"""Tracing of code that takes a sample, an image and its targets, and hands it on to transforms.

It is `fastdata.transforms.tracing`, with a symbol for the image and one for the target.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastdata.transforms import tracing
from fastdata.transforms.originals import composed, is_copied, transform_class
from fastdata.transforms.symbols import (
    Held,
    Node,
    Object,
    Path,
    Symbol,
    Unknown,
    held_by,
    name_of,
)


def entry(transform: Any) -> tuple[type[Any] | None, str]:
    """Return the class whose method a call of an object runs, and the method's name."""
    torch = sys.modules.get("torch")
    module = None if torch is None else torch.nn.Module
    for name in ("__call__", "forward"):
        owner = next((one for one in type(transform).__mro__ if name in vars(one)), None)
        if owner is not module or module is None:
            return owner, name
    return None, ""


# --- samples -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """A part of a sample in a result."""

    node: Node
    place: int


@dataclass(frozen=True)
class Leafwise:
    """torchvision's own ``Transform.forward``, of an object that has another one."""

    transform: Any

    @property
    def __name__(self) -> str:
        return name_of(self.transform)

    def __call__(self, *inputs: Any) -> Any:
        return transform_class().forward(self.transform, *inputs)


@dataclass(frozen=True)
class Sampled:
    """A user's transform, and how it is called.

    Attributes:
        transform: The transform.
        extras: Arguments that follow the sample.
        packed: Whether all are in one tuple.
    """

    transform: Any
    extras: tuple[Any, ...]
    packed: bool

    @property
    def __name__(self) -> str:
        return name_of(self.transform)

    def __call__(self, *sample: Any) -> Any:
        given = (*sample, *self.extras)
        found = self.transform(given) if self.packed else self.transform(*given)
        return found[: len(sample)] if self.extras else found


class _Part(Held):
    """The image of a sample, or its target."""

    def __init__(self, run: Any, node: Node, place: int) -> None:
        super().__init__(run, "the target" if place else "the image")
        self.node, self.place = node, place

    def returned(self) -> Any:
        return Piece(self.node, self.place)


class _Extra(Object):
    """An object that was given after the sample."""

    def returned(self) -> Any:
        return self


class _Super(Held):
    """The object that super() returns."""

    def __init__(self, run: Any, after: type[Any], real: Any) -> None:
        super().__init__(run, "super()", real)
        order = type(real).__mro__
        self.order = order[order.index(after) + 1 :]

    def attribute(self, name: str) -> Any:
        owner = next((one for one in self.order if name in vars(one)), None)
        found = None if owner is None else vars(owner)[name]
        if owner is None or not isinstance(found, types.FunctionType):
            self.refuse(f"takes {name!r} of {{}}")
        if not is_copied(owner.__module__):
            return self.run.wrap(types.MethodType(found, self.real), name)
        if name != "forward" or not issubclass(owner, transform_class()):
            self.refuse(f"takes {name!r} of {{}}")
        return self._forward

    def _forward(self, *args: Any) -> Any:
        """Call a library's ``forward``, of the nearest class that is the library's."""
        order = type(self.real).__mro__
        at = next(at for at, one in enumerate(order) if is_copied(one.__module__))
        owner = order[at]
        if owner is transform_class():
            return self.run.call(Leafwise(self.real), args, {})
        own = {name for one in order[:at] for name in vars(one)} - _BESIDE
        if own:
            self.refuse(f"calls the forward of {owner.__name__}, and has its own {min(own)}")
        original: Any = object.__new__(owner)
        vars(original).update(vars(self.real))
        return self.run.call(original, args, {})


#: Attributes of a derived class that its base's ``forward`` does not use.
_BESIDE = frozenset(
    {
        *("__annotate__", "__annotations__", "__doc__", "__firstlineno__", "__init__"),
        *("__call__", "__module__", "__static_attributes__", "forward"),
    }
)


class SampleRun(tracing.Run):
    """A course of code that takes a sample."""

    def call(self, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        one = len(args) == 1 and isinstance(args[0], tuple)
        parts = tuple(args[0]) if one else args
        methods = (types.FunctionType, types.MethodType)
        node = None if kwargs or isinstance(real, methods) else _node_of(parts)
        if not self.depth or node is None:
            if tracing.lambda_of(real) is not None:
                raise Unknown("calls torchvision's Lambda, which takes each target by itself")
            return super().call(real, args, kwargs)
        count = sum(isinstance(held_by(part), _Part) for part in parts)
        node = self._after(real, node, parts[count:], one)
        found = (*(Symbol(_Part(self, node, at)) for at in range(count)), *parts[count:])
        return found if one or len(found) > 1 else found[0]

    def _after(self, real: Any, node: Node, extras: Sequence[Any], packed: bool) -> Node:
        """Return the sample after a transform."""
        inner = composed(real)
        if inner is not None and (extras or packed):
            for at, part in enumerate(inner):
                node = self._after(part, node, extras, packed and not at)
            return node
        if not callable(real):
            raise Unknown(f"calls {name_of(real)}, which is not known")
        owner, _ = entry(real)
        if owner is not None and not is_copied(owner.__module__) and tracing.is_users(real):
            self.unsure = name_of(real)
            if extras or packed:
                given = tuple(held_by(one).real for one in extras)
                real = Sampled(real, given, packed)
        return Node(node, real, None)


def _node_of(parts: Sequence[Any]) -> Node | None:
    """Return the sample that some arguments are all of; None: they are not."""
    if not parts or not all(isinstance(part, Symbol) for part in parts):
        return None
    held = [held_by(part) for part in parts]
    found = [one for one in held if isinstance(one, _Part)]
    whole = found and all(one.place == at for at, one in enumerate(found))
    whole = whole and len({id(one.node) for one in found}) == 1 and held[: len(found)] == found
    extras = held[len(found) :]
    known = all(isinstance(one, Object) and _passes(one.real) for one in extras)
    return found[0].node if whole and known else None


def _passes(real: Any) -> bool:
    """Return whether torchvision's transforms leave an object of a sample alone."""
    torch = sys.modules["torch"]
    return not isinstance(real, (torch.Tensor, dict, list, tuple)) and not hasattr(real, "convert")


def trace_sample(given: Any, count: int) -> list[Path] | str:
    """Return every course of code that takes a sample; a path's result is its `Node`.

    Args:
        given: A user's function or object; or a `Sampled`.
        count: Of the sample's parts.

    Returns:
        Its courses; or a reason in words, "" if it is not the user's code.
    """
    called = given if isinstance(given, Sampled) else Sampled(given, (), False)
    transform, extras = called.transform, called.extras
    if not tracing.is_users(transform):
        return ""

    def start(run: Any) -> Any:
        given = Node(None, 0, None)
        parts = [Symbol(_Part(run, given, at)) for at in range(count)]
        more = [Symbol(_Extra(run, "an argument", one)) for one in extras]
        args = (*parts, *more)
        return run.call(transform, (args,) if called.packed else args, {})

    found = tracing.courses(SampleRun, start)
    if isinstance(found, str):
        return found
    for path in found:
        parts = path.result if isinstance(path.result, tuple) else (path.result,)
        pieces, more = parts[:count], parts[count:]
        nodes = {id(one.node) for one in pieces if isinstance(one, Piece)}
        places = [one.place for one in pieces if isinstance(one, Piece)]
        same = [one.real for one in more if isinstance(one, _Extra)]
        kept = len(same) == len(more) and len(same) in (0, len(extras))
        kept = kept and all(a is b for a, b in zip(same, extras, strict=False))
        if len(nodes) != 1 or places != list(range(count)) or not kept:
            return "it returns other than the sample"
        if len(parts) > 1 and type(path.result) is not tuple:
            return "it returns a sample that is no tuple"
        path.result = pieces[0].node
    return found


def _super(*args: Any) -> Any:
    if args:
        raise Unknown("calls super with arguments")
    frame = sys._getframe(1)
    names = frame.f_code.co_varnames
    after, given = (frame.f_locals.get(name) for name in ("__class__", names[0] if names else ""))
    if not isinstance(after, Symbol) or not isinstance(given, Symbol):
        raise Unknown("calls super outside of a method")
    real = held_by(given).real
    if not isinstance(held_by(given), Object) or not isinstance(real, held_by(after).real):
        raise Unknown("calls super outside of a method")
    return Symbol(_Super(held_by(given).run, held_by(after).real, real))


SampleRun.replaced = {**tracing.Run.replaced, "super": _super}

"""Tracing of code that takes a batch of a table's rows, as ``datasets`` calls it.

It is `fastdata.transforms.tracing`, with a dict of columns for the batch. The code runs on batches
of two and of three rows, and must make of each row the same, of that row's values alone. More rows
then give the same again, as the code cannot tell how many there are, nor which row it is at:

- it has no function that counts (``len``, ``enumerate``, ``range``, …), and takes no slices;
- in its loops it sets nothing but the loop's own names, and calls no method that changes a list or
  dict, so that nothing goes from one row to the next;
- a loop over several columns goes over all of their rows;
- it draws no numbers itself: only the transforms that it calls may.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePath
from typing import Any, NamedTuple

from PIL.Image import Image as PILImage

from fastdata.transforms import symbols, tracing, users
from fastdata.transforms.originals import pillow_changed
from fastdata.transforms.symbols import Held, Node, Path, Symbol, Unknown, held_by


@dataclass(frozen=True)
class Columns:
    """Effect of a function on a batch.

    Attributes:
        keys: Columns of the batch by the keys of the result, in its order.
        key: Key of the images that it makes.
        steps: What it does to an image of mode RGB.
    """

    keys: Mapping[str, str]
    key: str
    steps: tuple[Any, ...]


@dataclass(frozen=True)
class _Whole:
    """A column in a result, as it is."""

    name: str


@dataclass(frozen=True)
class _Value:
    """A value of a column in a result, as it is."""

    name: str
    row: int


class _Column(Held):
    """A column of the batch."""

    def __init__(self, run: Any, name: str, kind: type[_Cell]) -> None:
        super().__init__(run, f"the column {name!r}")
        self.cells = [Symbol(kind(run, name, row)) for row in range(run.count)]
        self.name = name

    def several(self) -> list[Any]:
        return self.cells

    def item(self, key: Any) -> Any:
        self.refuse("takes single rows of {}")

    def returned(self) -> Any:
        return _Whole(self.name)


class _Cell(Held):
    """A value of a row."""

    def __init__(self, run: Any, name: str, row: int) -> None:
        super().__init__(run, f"a value of {name!r}")
        self.name, self.row = name, row

    def returned(self) -> Any:
        return _Value(self.name, self.row)


class _Stored(_Cell):
    """An image of a mode that is not known."""

    def attribute(self, name: str) -> Any:
        if name != "convert" or pillow_changed():
            self.refuse(f"takes {name!r} of an image before it is converted to RGB")
        return self._convert

    def _convert(self, mode: Any = None) -> Any:
        if mode != "RGB":
            self.refuse(f"converts an image to mode {mode!r}, not to RGB")
        return Symbol(symbols.Image(self.run, Node(None, (self.name, self.row))))

    def is_a(self, kinds: tuple[Any, ...]) -> bool:
        return any(issubclass(PILImage, kind) for kind in kinds)


class BatchRun(tracing.Run):
    """A course of code that takes a batch."""

    count = 2

    def call(self, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = (one for one in args if isinstance(one, Symbol))
        stored = any(isinstance(held_by(one), _Stored) for one in given)
        if stored and not isinstance(real, types.FunctionType):
            raise Unknown(f"calls {symbols.name_of(real)} before the image is converted to RGB")
        return super().call(real, args, kwargs)

    def inline(self, function: types.FunctionType, *about: Any) -> Any:
        code = function.__code__
        if reason := _carries(code, self.depth > 0):
            file = PurePath(code.co_filename).name
            raise Unknown(reason, f"line {code.co_firstlineno} of {file}")
        return super().inline(function, *about)


class _ThreeRows(BatchRun):
    count = 3


def trace_batch(function: Any, images: Collection[str], others: Collection[str]) -> Columns | str:
    """Return what a user's function does to every batch, or why that is not known.

    Args:
        function: The function.
        images: Columns of images, of any mode.
        others: Other columns.
    """
    found: list[_Found] = []
    for kind in (BatchRun, _ThreeRows):

        def start(run: Any) -> Any:
            held = {name: _Column(run, name, _Stored) for name in images}
            held |= {name: _Column(run, name, _Cell) for name in others}
            batch = {name: Symbol(column) for name, column in held.items()}
            return run.call(function, (batch,), {})

        courses = tracing.courses(kind, start)
        if isinstance(courses, str):
            return courses
        if len(courses) > 1 or courses[0].draws:
            return "its result depends on chance"
        columns = _columns(courses[0], kind.count)
        if isinstance(columns, str):
            return columns
        found.append(columns)
    first, second = found
    same = [*first.keys.items()] == [*second.keys.items()] and first.key == second.key
    if not same or not _same_steps(first.nodes, second.nodes):
        return "its result depends on the number of rows"
    try:
        steps = users.items_of(symbols.name_of(function), first.nodes)
        return Columns(first.keys, first.key, tuple(steps))
    except Unknown as error:
        return str(error)


class _Found(NamedTuple):
    """`Columns` of one course, with the images' nodes instead of steps."""

    keys: dict[str, str]
    key: str
    nodes: list[Node]


def _columns(course: Path, count: int) -> _Found | str:
    """Return what a course makes of a batch of so many rows; or why that is not known."""
    result = course.result
    if not isinstance(result, dict) or not all(isinstance(key, str) for key in result):
        return "it returns no dict of columns"
    keys: dict[str, str] = {}
    made: list[tuple[str, list[Node]]] = []
    for key, column in result.items():
        if isinstance(column, _Whole):
            keys[key] = column.name
            continue
        values = column if isinstance(column, (list, tuple)) else ()
        if len(values) != count:
            return f"{key!r} of its result is not one value for each row"
        if values == [_Value(getattr(values[0], "name", ""), row) for row in range(count)]:
            keys[key] = values[0].name
            continue
        chains = [one.chain() if isinstance(one, Node) else [] for one in values]
        if not all(chains) or any(one.mode == "L" for one in values):
            return f"{key!r} of its result is not made of images alone"
        name, _ = chains[0][0].step
        if [chain[0].step for chain in chains] != [(name, row) for row in range(count)]:
            return f"{key!r} of its result is not made of each row's own image"
        if not all(_same_steps(chains[0][1:], chain[1:]) for chain in chains):
            return f"it does not do the same to each image of {name!r}"
        keys[key] = name
        made.append((key, chains[0][1:]))
    if len(made) != 1:
        return f"it makes {len(made) or 'no'} columns of images, not one"
    return _Found(keys, *made[0])


def _same_steps(these: Any, those: Any) -> bool:
    """Return whether two images are made by the same steps."""
    if len(these) != len(those):
        return False
    pairs = [(one.step, other.step) for one, other in zip(these, those, strict=True)]
    return all(a is b or (isinstance(a, symbols.Call) and a == b) for a, b in pairs)


# --- what could tell rows apart ----------------------------------------------------------------

#: Methods that change lists and sets, or tell places.
_LISTS = frozenset(
    {
        *("add", "append", "count", "discard", "extend", "index", "insert", "intersection_update"),
        *("difference_update", "remove", "reverse", "sort", "symmetric_difference_update"),
    }
)
#: Methods that change dicts.
_DICTS = frozenset({"clear", "pop", "popitem", "setdefault", "update"})
_TARGETS = ("FOR_ITER", "UNPACK_SEQUENCE")


@lru_cache(maxsize=1024)
def _carries(code: types.CodeType, looped: bool) -> str:
    """Return why code could carry something from one row to the next; "" if it cannot.

    Args:
        code: The code.
        looped: Whether it may be called in a loop.
    """
    if any(isinstance(constant, slice) for constant in code.co_consts):
        return "takes a slice"
    steps = list(dis.get_instructions(code))
    loops = list(_loops(steps))
    for before, one in pairwise([steps[0], *steps]):
        inside = looped or any(begin < one.offset < end for begin, end in loops)
        if "SLICE" in one.opname:
            return "takes a slice"
        target = before.opname in _TARGETS or before.opname.startswith("STORE_FAST")
        stores = one.opname.startswith(("STORE_", "DELETE_"))
        own = one.opname.startswith("STORE_FAST") and target
        if inside and stores and not own:
            return "sets something in a loop"
        named = one.argval if one.opname in ("LOAD_ATTR", "LOAD_METHOD") else ""
        # Called at once, it cannot be called again in a loop.
        is_method = one.opname == "LOAD_METHOD" or bool((one.arg or 0) & 1)
        if named in _LISTS or (named in _DICTS and (inside or not is_method)):
            return f"calls {named}, which may change from row to row"
    nested = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return next(filter(None, (_carries(one, True) for one in nested)), "")


def _loops(steps: list[dis.Instruction]) -> Iterator[tuple[int, int]]:
    """Yield where each loop begins and ends."""
    for one in steps:
        if one.opname == "FOR_ITER":
            yield one.offset, one.argval


def _counts(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unknown(f"calls {name}, which may tell rows apart")

    return refuse


def _row_of(value: Any) -> int | None:
    """Return the row that a value is of; None: that is not known."""
    if isinstance(value, (list, tuple)):
        rows = {_row_of(one) for one in value}
        return rows.pop() if len(rows) == 1 else None
    held = held_by(value) if isinstance(value, Symbol) else None
    if isinstance(held, _Cell):
        return held.row
    if isinstance(held, symbols.Image):
        place = held.node.chain()[0].step
        return place[1] if isinstance(place, tuple) else None
    return None


def _aligned(name: str, several: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return sequences that have all rows each, as lists."""
    found = []
    for one in several:
        values = list(one)
        if not values or [_row_of(value) for value in values] != list(range(len(values))):
            raise Unknown(f"calls {name} with other than columns")
        found.append(values)
    return tuple(found)


def _zip(*several: Any, strict: bool = True) -> Any:
    return zip(*_aligned("zip", several), strict=True)


def _map(function: Any, *several: Any) -> Any:
    return map(function, *_aligned("map", several))


BatchRun.replaced = {
    **tracing.Run.replaced,
    **{
        name: _counts(name)
        for name in (
            *("all", "any", "bool", "enumerate", "len", "max", "min", "range", "reversed"),
            *("sorted", "str", "sum"),
        )
    },
    "map": _map,
    "zip": _zip,
}

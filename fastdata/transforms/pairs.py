"""Moves of the parts of a sample, and the steps that an image and its mask have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fastdata.transforms.symbols import Node, Path, Unknown


@dataclass(frozen=True)
class Move:
    """A function that moves a part of a sample.

    Attributes:
        name: Of the function.
        values: Its arguments, which are the same for the image and the mask.
        own: Its filter or its fill, which may differ.
    """

    name: str
    values: tuple[Any, ...] = ()
    own: Any = None

    @property
    def geometry(self) -> tuple[Any, ...]:
        """Its name and arguments, which decide sizes and places."""
        return self.name, *self.values


@dataclass(frozen=True)
class Whole:
    """A whole number that is drawn, from low to high; one draw is equal to itself alone."""

    draw: int
    low: int
    high: int


@dataclass(frozen=True)
class Lack:
    """Pixels that a side is short of a size, where it is."""

    axis: str
    size: int


@dataclass(frozen=True)
class Part:
    """The image of a sample or its mask, as code has it in hand.

    Attributes:
        name: ``image`` or ``mask``.
        form: ``pil``, ``array`` or ``tensor``.
        dtype: Of a tensor; "": of a mask, the file's.
        flat: Of a mask: whether it has no axis of channels, if it has one.
        done: `Move`s, conversions and transforms.
    """

    name: str
    form: str = "pil"
    dtype: str = "uint8"
    flat: bool = False
    done: tuple[Any, ...] = ()

    @property
    def moves(self) -> tuple[Move, ...]:
        """All that moves it, in order."""
        return tuple(one for one in self.done if isinstance(one, Move))

    @property
    def place(self) -> Place:
        """The geometry of its moves, which decides its size."""
        return tuple(one.geometry for one in self.moves)


#: In the place of a fill that is not known, as nothing is filled.
ANY = object()

Place: TypeAlias = "tuple[tuple[Any, ...], ...]"


def merged(runs: Iterable[Any], courses: Iterable[Path]) -> tuple[list[Path], Part]:
    """Return one course of those that differ by the image's size alone."""
    ends: set[tuple[Any, ...]] = set()
    merged: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    last: Part | None = None
    for run, course in zip(runs, courses, strict=True):
        image, last = course.result
        ends.add((replace(image, done=()), replace(last, done=())))
        done = _paired(_padded(run, image), _padded(run, last))
        by_chance = tuple(
            one for at, one in enumerate(course.decisions) if at not in run.about_sizes
        )
        merged[by_chance] = _agreed(merged.get(by_chance, done), done)
    if len(ends) > 1 or last is None:
        raise Unknown("it converts some of the images only")
    paths = []
    for decisions, done in merged.items():
        node = Node(None, 0, None)
        for one in done:
            node = Node(node, one, None)
        paths.append(Path(node, list(decisions), []))
    return paths, last


def _agreed(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what two courses do if they do the same; one that pads nothing has no fills."""

    def bare(done: tuple[Any, ...]) -> list[Any]:
        return [[move.geometry for move in x] if isinstance(x, tuple) else x for x in done]

    if bare(one) != bare(other):
        raise Unknown("its result depends on the image's size")
    found = []
    for mine, yours in zip(one, other, strict=True):
        pads = isinstance(mine, tuple) and mine[0].own is ANY
        if mine != yours and not pads and not (isinstance(yours, tuple) and yours[0].own is ANY):
            raise Unknown("its result depends on the image's size")
        found.append(yours if pads else mine)
    return tuple(found)


def _padded(run: Any, part: Part) -> list[Any]:
    """Return what is done to a part, with pads to a size where a side was compared with it.

    A side that is no shorter lacks nothing, so a pad by what it lacks leaves it.
    """
    done, moves = list(part.done), part.moves
    sizes: dict[Place, dict[str, int]] = {}
    for (place, axis, size), _ in run.short.items():
        if sizes.setdefault(place, {}).setdefault(axis, size) != size:
            raise Unknown("it compares a side with several sizes")
    for place, wanted in sizes.items():
        before = len(place)
        if part.place[:before] != place:
            raise Unknown("its result depends on the image's size")
        short = {axis: run.short[place, axis, size] for axis, size in wanted.items()}
        expected = tuple(
            Lack(axis, wanted[axis]) if short.get(axis) else 0 for axis in ("width", "height")
        )
        pad = Move("pad_to", tuple(wanted.get(axis, 1) for axis in ("width", "height")), ANY)
        if not any(short.values()):
            at = done.index(moves[before - 1]) + 1 if before else 0
            done.insert(at, pad)
            continue
        move = moves[before] if len(moves) > before else None
        if move is None or move.geometry != ("pad", 0, 0, *expected, "constant"):
            raise Unknown("its result depends on the image's size")
        done[done.index(move)] = replace(pad, own=move.own)
    if any(isinstance(v, Lack) for one in done if isinstance(one, Move) for v in one.values):
        raise Unknown("it pads by other than a side lacks")
    return done


def _paired(image: list[Any], mask: list[Any]) -> tuple[Any, ...]:
    """Return what is done to the image, each of its moves with that of the mask."""
    others = iter([one for one in mask if isinstance(one, Move)])
    found = []
    for one in image:
        if isinstance(one, Move):
            other = next(others, None)
            if other is None or one.geometry != other.geometry:
                raise Unknown("it moves the image and its mask differently")
            found.append((one, other))
        else:
            found.append(one)
    if next(others, None) is not None:
        raise Unknown("it moves the image and its mask differently")
    moves = [one for one in image if isinstance(one, Move)]
    drawn = [value for one in moves for value in one.values if isinstance(value, Whole)]
    sides = [one for one in moves if one.name == "resize" and len(one.values) == 1]
    if len(drawn) > len({*drawn} & {one.values[0] for one in sides}):
        raise Unknown("it uses a random number for more than one resize of the shorter side")
    return tuple(found)

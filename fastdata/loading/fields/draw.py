"""Geometry of a batch: drawn once for each sample and view, and shared by all fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.errors import LEAVE_OUT, UsageError
from fastdata.plan.draws import sample_keys
from fastdata.transforms.geometry import ANY_SIZE, SMALL_HINT, Cuts

if TYPE_CHECKING:
    from fastdata.errors import FastdataError
    from fastdata.loading.fields.targets import TargetReader
    from fastdata.plan.schedule import Planned
    from fastdata.storage.source import Column, Source
    from fastdata.transforms.joint import Moved
    from fastdata.transforms.recipe import Program, Recipe

#: A recipe, and which samples of a batch it is for.
Part: TypeAlias = "tuple[Recipe, slice | npt.NDArray[np.bool_]]"
_Sizes: TypeAlias = npt.NDArray[np.int32]


class SlotDraw(NamedTuple):
    """Geometry of one sample.

    Attributes:
        size: Width and height of the image that it was drawn for.
        programs: The program of each view.
        cuts: The geometry of each view, shape (1,).
        targets: Boxes and points after the geometry; None without a joint transform.
        moved: Those after the whole program, of a sample that was drawn again.
        moved_size: int32, (1, 2): size of the result with a joint transform.
    """

    size: tuple[int, int]
    programs: Sequence[Program]
    cuts: list[Cuts]
    targets: _native.Targets | None
    moved: Moved | None
    moved_size: _Sizes | None

    def output_size(self, view: int) -> tuple[int, int]:
        """Return (width, height) of a view's result."""
        sizes = self.moved_size
        if sizes is None:
            sizes = self.programs[view].sizes(self.cuts[view])
        width, height = sizes[0].tolist()
        return width, height


class Draw:
    """Geometry of a batch's samples. A job that is done once it is drawn.

    A sample whose size turns out different is drawn `again`; `of` then returns its new geometry.

    Attributes:
        recipe: The recipe of the batch's images.
        parts: Recipes of its samples, which differ in a mixture.
        failed: Errors of its images, by slot.
        cuts: Geometry of each view, shape (N,); empty until it is drawn.
        targets: The core's boxes and points, after the geometry; None without a joint transform.
        moved: Those after the whole program.
        widths: Widths of the images, ``heights`` their heights, int32, shape (N,).
    """

    def __init__(
        self,
        planned: Planned,
        key: int,
        recipe: Recipe,
        parts: list[Part],
        failed: dict[int, FastdataError],
        reader: TargetReader | None = None,
    ) -> None:
        self._planned, self._key, self._reader = planned, key, reader
        self.recipe, self.parts = recipe, parts
        self.failed = failed
        self.cuts: list[Cuts] = []
        self.targets: _native.Targets | None = None
        self.moved: Moved | None = None
        self.widths = self.heights = np.zeros(0, np.int32)
        self._columns: Mapping[str, Column] = {}
        #: Geometry of samples that were drawn again, by slot.
        self.again_drawn: dict[int, SlotDraw] = {}

    def done(self) -> bool:
        """Return whether it is drawn."""
        return bool(self.cuts)

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it is drawn: fields that follow it are finished after it."""
        return self.done()

    def cancel(self) -> None:
        """Do nothing: it is drawn at once."""

    def make(
        self, widths: _Sizes, heights: _Sizes, columns: Mapping[str, Column], source: Source
    ) -> None:
        """Draw all samples of a source; keep errors of those that that is impossible for.

        ``columns`` are those of targets that move. Raise FastdataError if one cannot be read.
        """
        self.widths, self.heights, self._columns = widths, heights, columns
        cuts: list[Cuts] = []
        for view, program in enumerate(self.recipe.programs):
            keys = self._keys(view)
            if self._reader is not None:
                cut, self.targets, self.moved, faults = self._move(program, (widths, heights), keys)
                for slot, why in faults.items():
                    problem = source.problem(int(self._planned.indices[slot]), why)
                    self.failed.setdefault(slot, problem)
            elif len(self.parts) == 1:
                cut = self.parts[0][0].programs[view].draw(widths, heights, keys)
            else:
                cut = np.empty(len(keys), _native.CUT)
                for recipe, which in self.parts:
                    sides = widths[which], heights[which]
                    cut[which] = recipe.programs[view].draw(*sides, keys[which])
            cuts.append(cut)
        self.take(cuts, widths, heights, source)

    def take(self, cuts: list[Cuts], widths: _Sizes, heights: _Sizes, source: Source) -> None:
        """Take the geometry; keep errors of images that are too small for a crop."""
        self.widths, self.heights, self.cuts = widths, heights, cuts
        rows = self._planned.indices
        for recipe, which in self.parts:
            for program, cut in zip(recipe.programs, cuts, strict=True):
                for at, words in program.too_small(cut[which]).items():
                    slot = int(np.arange(len(rows))[which][at])
                    error = too_small(source, int(rows[slot]), words)
                    self.failed.setdefault(slot, error)

    def sizes(self, view: int, skipped: npt.NDArray[np.bool_] | None) -> _Sizes:
        """Return (width, height) of each result of a view, int32, (N, 2); 1 x 1 where unknown."""
        cuts = self.cuts[view]
        if self.moved is None:
            sizes = self.recipe.programs[view].sizes(cuts)
        else:
            sizes = np.where(cuts["too_small"][:, None] > 0, 1, self.moved.sizes)
        if skipped is not None:
            sizes[(self.widths == ANY_SIZE) & (self.heights == ANY_SIZE) & skipped] = 1
        sizes[list(self.failed)] = 1
        return sizes

    def of(self, slot: int) -> SlotDraw:
        """Return the geometry of one sample; callable from any thread."""
        if slot in self.again_drawn:
            return self.again_drawn[slot]
        one = slice(slot, slot + 1)
        return SlotDraw(
            (int(self.widths[slot]), int(self.heights[slot])),
            self._programs(slot),
            [cuts[one] for cuts in self.cuts],
            None if self.targets is None else self.targets.one(slot),
            None,
            None if self.moved is None else self.moved.sizes[one],
        )

    def again(self, slot: int, width: int, height: int) -> SlotDraw:
        """Draw one sample for another size, from the same random numbers."""
        one = slice(slot, slot + 1)
        sides = np.array([width], np.int32), np.array([height], np.int32)
        cuts: list[Cuts] = []
        targets = moved = None
        for view, program in enumerate(programs := self._programs(slot)):
            keys = self._keys(view, one)
            if self._reader is None:
                cuts.append(program.draw(*sides, keys))
                continue
            cut, targets, moved, _ = self._move(program, sides, keys, one)
            cuts.append(cut)
        size = None if moved is None else moved.sizes
        drawn = SlotDraw((width, height), programs, cuts, targets, moved, size)
        self.again_drawn[slot] = drawn
        return drawn

    def settle(self) -> None:
        """Put the boxes and points of samples that were drawn again into the batch."""
        for slot, drawn in self.again_drawn.items():
            if self.moved is not None and drawn.moved is not None:
                self.moved = self.moved.patched(drawn.moved, [slot], [0])

    def patch(self, other: Draw, to: list[int], good: list[int]) -> None:
        """Take the boxes and points at places ``good`` of another batch for the slots ``to``."""
        if self.moved is not None and other.moved is not None:
            self.moved = self.moved.patched(other.moved, to, good)

    def _programs(self, slot: int) -> Sequence[Program]:
        for recipe, which in self.parts:
            if isinstance(which, slice) or which[slot]:
                return recipe.programs
        raise IndexError(slot)

    def _keys(self, view: int, which: slice = slice(None)) -> npt.NDArray[np.uint64]:
        planned = self._planned
        before = None if planned.occurrences is None else planned.occurrences[which]
        return sample_keys(self._key, planned.numbers[which], view, before)

    def _move(
        self,
        program: Program,
        sides: tuple[_Sizes, _Sizes],
        keys: npt.NDArray[np.uint64],
        which: slice = slice(None),
    ) -> tuple[Cuts, _native.Targets, Moved, dict[int, str]]:
        """Draw samples and move their boxes and points; return why some cannot be used, too."""
        reader: Any = self._reader
        columns = {name: column[which] for name, column in self._columns.items()}
        columns, faults = reader.sound(columns)
        targets = reader.native(columns, *sides)
        cuts, moved = program.move(targets, keys)
        return cuts, targets, moved, faults


def too_small(source: Source, row: int, words: str) -> UsageError:
    """Return the error for a sample that a crop does not fit into."""
    what = source.problem(row, f"it has {words}").what
    return UsageError(what, f"{SMALL_HINT} Or {LEAVE_OUT}")

"""Field of masks that are painted from columns of outlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fastdata.device.ragged import Ragged
from fastdata.loading.fields.columns import ColumnField
from fastdata.loading.fields.field import Batch, BatchField, Context, FieldState, Jobs
from fastdata.loading.fields.outlines import HINT, OutlinePainter, Painting
from fastdata.transforms.geometry import ANY_SIZE

if TYPE_CHECKING:
    from fastdata.loading.fields.targets import TargetReader
    from fastdata.storage.source import Column


@dataclass(eq=False)
class OutlineState(FieldState):
    """State of masks: uint8, (M, height, width) each, once the batch is finished.

    ``flat`` has all masks; None if they are not so in memory.
    """

    painting: Painting | None = None
    masks: list[torch.Tensor] = field(default_factory=list)
    flat: torch.Tensor | None = None


class OutlineField(BatchField):
    """Field of masks that the core paints once the geometry of their images is drawn.

    Args:
        columns: The columns that masks need; the first has outlines.
        reader: Reader of the targets.
    """

    state_type = OutlineState

    def __init__(
        self, name: str, context: Context, columns: Sequence[ColumnField], reader: TargetReader
    ) -> None:
        super().__init__(name, context)
        self._columns, self._reader = columns, reader
        self._target = reader.joint.targets[name]
        self._painter = OutlinePainter(reader.outlines, reader.joint, self._room)

    def deliver(self, batch: Batch) -> Any:
        """Return a `fastdata.Ragged` if all masks have one size, else a list."""
        state: OutlineState = batch.states[self]
        masks = state.masks
        sizes = {one.shape[1:] for one in masks}
        if len(sizes) > 1:
            return [self._target.converted(one) for one in masks]
        (size,) = sizes
        values = torch.cat(masks) if state.flat is None else state.flat.view(-1, *size)
        offsets = np.cumsum([0, *map(len, masks)], dtype=np.int64)
        return Ragged(self._target.converted(values), torch.from_numpy(offsets))

    def clear(self, batch: Batch, slots: list[int]) -> None:
        for slot in slots:
            batch.states[self].masks[slot].zero_()

    def patch(self, batch: Batch, other: Batch, to: list[int], good: list[int]) -> None:
        state, theirs = batch.states[self], other.states[self]
        state.flat = None
        for slot, at in zip(to, good, strict=True):
            state.masks[slot] = theirs.masks[at]

    def begin(self, batch: Batch, state: Any) -> None:
        waits = Jobs([batch.draw, *(column.reading(batch) for column in self._columns)])
        state.after(waits, self._paint)

    def _paint(self, batch: Batch, state: OutlineState) -> None:
        draw: Any = batch.draw
        sizes = np.stack([draw.widths, draw.heights], 1)
        unknown = (np.min(sizes, 1) < 1) | np.all(sizes == ANY_SIZE, 1)
        columns = self._columns_of(batch, slice(None))
        skip = [*np.flatnonzero(unknown).tolist(), *draw.failed]
        program = draw.recipe.programs[0]
        state.painting = self._painter.paint(columns, sizes, program, draw, skip)
        self._context.start(state.painting.job)
        state.after(state.painting.job, self._take_painted, in_turn=True)

    def _take_painted(self, batch: Batch, state: OutlineState) -> None:
        """Take the masks; paint those of images again whose size was not known."""
        draw: Any = batch.draw
        assert state.painting is not None
        problems = state.painting.failures()
        state.masks, state.flat = list(state.painting.masks), state.painting.values
        for slot, drawn in draw.again_drawn.items():
            columns = self._columns_of(batch, slice(slot, slot + 1))
            sizes, program = np.array([drawn.size]), drawn.programs[0]
            painting = self._painter.paint(columns, sizes, program, drawn)
            painting.job.run()
            problems.pop(slot, None)
            if again := painting.failures():
                problems[slot] = again[0]
            (state.masks[slot],), state.flat = painting.masks, None
        for slot, words in problems.items():
            row = int(batch.planned.indices[slot])
            state.failed[slot] = self._context.source.problem(row, words, "", HINT)

    def _columns_of(self, batch: Batch, which: slice) -> dict[str, Column]:
        return {one.name: one.column(batch)[which] for one in self._columns}

    def _room(self, size: int) -> tuple[torch.Tensor, npt.NDArray[np.uint8]]:
        return self._context.pool.flat((self.name, 0), size, "uint8")

    def _values(self, batch: Batch) -> list[Any]:
        state: OutlineState = batch.states[self]
        return [self._reader.classed(self.name, one) for one in state.masks]

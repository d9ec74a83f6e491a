"""Masks of batches, painted once the geometry of their images is drawn."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastdata.errors import FastdataError
from fastdata.executors import await_done, result_of
from fastdata.loading.fields.outlines import HINT, Painting
from fastdata.storage.arrow import as_arrow
from fastdata.storage.fields import MASKS
from fastdata.transforms.geometry import ANY_SIZE
from fastdata.transforms.joint import ABSENT

if TYPE_CHECKING:
    import torch

    from fastdata.decode.engine import Engine
    from fastdata.loading.fields.batch import Batch, Settings, View
    from fastdata.loading.fields.buffers import BufferPool
    from fastdata.plan.schedule import Planned
    from fastdata.storage.columns import Column
    from fastdata.storage.source import Source


@dataclass
class OutlineBatch:
    """Masks of a batch: uint8, (M, height, width) each, once it is finished.

    ``images`` is None until that batch has begun, and once this one is finished. ``absent`` samples
    have no masks, not even an empty tensor. ``values`` has all masks, flat; None if they are not so
    in memory.
    """

    planned: Planned
    images: Batch | None = None
    painting: Painting | None = None
    masks: list[torch.Tensor] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    values: torch.Tensor | None = None
    views: tuple[View, ...] = ()

    def clear(self, slots: list[int]) -> None:
        """Make the masks of bad samples zeros."""
        for slot in slots:
            self.masks[slot].zero_()

    def patch(self, other: OutlineBatch, to: list[int], good: list[int]) -> None:
        """Take the masks at places ``good`` of another batch for the slots ``to``."""
        self.values = None
        for slot, at in zip(to, good, strict=True):
            self.masks[slot] = other.masks[at]
        patched = [slot for slot, at in zip(to, good, strict=True) if at in other.absent]
        self.absent = [*({*self.absent} - {*to}), *patched]


class OutlinePipeline:
    """Pipeline that paints masks once the geometry of their images is drawn."""

    def __init__(
        self, source: Source, settings: Settings, engine: Engine | None, pool: BufferPool
    ) -> None:
        assert settings.reader is not None
        self._source, self._engine, self._pool = source, engine, pool
        self._reader, program = settings.reader, settings.recipe.programs[0]
        self._outlines = self._reader.outlines(program.pixels, program.mask_fill)

    def begin(self, planned: Planned, key: int) -> OutlineBatch:
        """Return a batch, which has to get the images before it can be painted."""
        return OutlineBatch(planned)

    def follow(self, batch: OutlineBatch, images: Batch) -> None:
        """Let a batch follow that of its images, which has begun."""
        batch.images = images
        self.advance(batch)

    def advance(self, batch: OutlineBatch) -> None:
        """Begin to paint, if the images' geometry is drawn and the columns are read."""
        images = batch.images
        if batch.painting is not None or images is None or not images.views:
            return
        if all(images.further[name].found.done() for name in self._reader.outline_columns):
            with suppress(FastdataError):  # `finish` raises it
                self._begin(batch, images)

    def _begin(self, batch: OutlineBatch, images: Batch) -> None:
        gathered, moved = images.gathered, images.moved
        assert moved is not None
        sizes = np.stack([gathered.widths, gathered.heights], 1)
        unknown = (np.min(sizes, 1) < 1) | np.all(sizes == ANY_SIZE, 1)
        columns = self._columns(images, slice(None))
        if self._reader.joint.targets[MASKS].optional:
            lacks = as_arrow(columns[self._reader.outline_columns[0]]).is_null()
            batch.absent = np.flatnonzero(lacks.to_numpy(zero_copy_only=False)).tolist()
        batch.painting = self._outlines.paint(
            columns,
            sizes,
            images.views[0].cuts,
            moved,
            images.targets,
            self._room,
            [*np.flatnonzero(unknown).tolist(), *images.failed],
        )
        if self._engine is None:
            batch.painting.job.run()
        else:
            self._engine.work(batch.painting.job)

    def _columns(self, images: Batch, which: slice) -> dict[str, Column]:
        found = {}
        for name in self._reader.outline_columns:
            column, _ = result_of(images.further[name].found, None)
            found[name] = column[which]
        return found

    def _room(self, size: int) -> tuple[torch.Tensor, npt.NDArray[np.uint8]]:
        return self._pool.flat(0, size, "uint8")

    def ready(self, batch: OutlineBatch) -> bool:
        """Return whether `finish` would return at once."""
        if batch.images is not None and batch.images.error is not None:
            return True
        return batch.painting is not None and batch.painting.job.done()

    def finish(
        self, batch: OutlineBatch, deadline: float | None = None
    ) -> dict[int, FastdataError]:
        """Wait for a batch; see `Pipeline.finish`. The images' batch is finished."""
        images = batch.images
        assert images is not None
        if batch.painting is None:
            self._begin(batch, images)
        assert batch.painting is not None
        await_done(batch.painting.job, deadline)
        problems = batch.painting.failures()
        batch.masks, batch.values = list(batch.painting.masks), batch.painting.values
        for slot, redrawn in images.redrawn.items():
            one = slice(slot, slot + 1)
            painting = self._outlines.paint(
                self._columns(images, one),
                np.array([redrawn.size]),
                redrawn.cut,
                redrawn.moved,
                redrawn.targets,
                self._room,
            )
            painting.job.run()
            problems.pop(slot, None)
            if words := painting.failures():
                problems[slot] = words[0]
            (batch.masks[slot],), batch.values = painting.masks, None
        batch.images = None  # which refers to this batch: memory of a cycle comes back late
        return {
            slot: self._source.problem(int(batch.planned.indices[slot]), words, "", HINT)
            for slot, words in problems.items()
        }

    def image(self, batch: OutlineBatch) -> OutlineBatch:
        """Return a finished batch."""
        return batch

    def samples(self, batch: OutlineBatch) -> list[Any]:
        """Return the masks of each sample of a finished batch."""
        found: list[Any] = [self._reader.classed(MASKS, one) for one in batch.masks]
        for place in batch.absent:
            found[place] = ABSENT
        return found

    def cancel(self, batch: OutlineBatch) -> None:
        """Cancel a batch."""
        if batch.painting is not None:
            batch.painting.job.cancel()

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

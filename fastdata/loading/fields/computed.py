"""Fields that are made of the samples' numbers, or of their geometry."""

from __future__ import annotations

from typing import Any

import torch

from fastdata.loading.fields.field import Batch, BatchField, Context
from fastdata.loading.fields.targets import Geometry


class IndexField(BatchField):
    """Field of samples' numbers: ``in_part``, those in a sample's own dataset."""

    def __init__(self, name: str, context: Context, in_part: bool) -> None:
        super().__init__(name, context)
        self._in_part = in_part

    def deliver(self, batch: Batch) -> Any:
        """Return a tensor, int64."""
        if not self._in_part:
            return torch.from_numpy(batch.planned.numbers.copy())
        return torch.tensor(self._values(batch), dtype=torch.int64, device="cpu")

    def _values(self, batch: Batch) -> list[Any]:
        if not self._in_part:
            numbers: list[int] = batch.planned.numbers.tolist()
            return numbers
        row_in_part = self._context.readable.row_in_part
        return [row_in_part(row) for row in batch.planned.indices.tolist()]


class KeyField(BatchField):
    """Field of samples' names."""

    def deliver(self, batch: Batch) -> Any:
        """Return a list of names."""
        keys = self._values(batch)
        return self._context.collate(keys) if self._context.as_torch else keys

    def _values(self, batch: Batch) -> list[Any]:
        return [self._context.source.key(row) for row in batch.planned.indices.tolist()]


class PartField(BatchField):
    """Field of the places of samples' sources in a mixture."""

    def deliver(self, batch: Batch) -> Any:
        """Return a tensor, int64."""
        return torch.from_numpy(self._context.readable.part_of(batch.planned.indices))

    def _values(self, batch: Batch) -> list[Any]:
        places: list[int] = self._context.readable.part_of(batch.planned.indices).tolist()
        return places


class GeometryField(BatchField):
    """Field of the geometry of images."""

    def deliver(self, batch: Batch) -> Any:
        """Return a `Geometry` of the batch."""
        draw: Any = batch.draw
        moved = draw.moved
        return Geometry(*map(torch.from_numpy, (moved.matrices, moved.source_sizes, moved.sizes)))

    def _values(self, batch: Batch) -> list[Any]:
        return [Geometry(*one) for one in zip(*self.deliver(batch), strict=True)]

"""Fields that are made of the samples' numbers, or of their geometry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastdata.loading.fields.field import Batch, BatchField, Context

if TYPE_CHECKING:
    from fastdata.plan.schedule import Planned


class NumberField(BatchField):
    """Field of a number for each sample: int64, which ``numbers`` returns of planned samples."""

    def __init__(
        self, name: str, context: Context, numbers: Callable[[Planned], npt.NDArray[np.int64]]
    ) -> None:
        super().__init__(name, context)
        self._numbers = numbers

    def deliver(self, batch: Batch) -> Any:
        """Return a tensor, int64."""
        return torch.from_numpy(self._numbers(batch.planned).copy())

    def _values(self, batch: Batch) -> list[Any]:
        numbers: list[int] = self._numbers(batch.planned).tolist()
        return numbers


class KeyField(BatchField):
    """Field of samples' names."""

    def deliver(self, batch: Batch) -> Any:
        """Return a list of names."""
        keys = self._values(batch)
        return self._context.collate(keys) if self._context.as_torch else keys

    def _values(self, batch: Batch) -> list[Any]:
        return [self._context.source.key(row) for row in batch.planned.indices.tolist()]


class Geometry(NamedTuple):
    """Crops, flips, resizes and warps of an image, or of each image of a batch.

    Coordinates are in pixels; (0, 0) is the upper left corner of the upper left pixel. With
    ``x, y, w = matrix @ (source x, source y, 1)``, a place is at (x / w, y / w) of the image.

    Attributes:
        matrix: float64, (3, 3) or (N, 3, 3).
        source_size: int32, (2,) or (N, 2): width and height of the image that was stored.
        size: int32, of the same shape: width and height of the delivered image.
    """

    matrix: torch.Tensor
    source_size: torch.Tensor
    size: torch.Tensor

    @property
    def crop(self) -> torch.Tensor:
        """Upper left corner of the crop, (top, left) in pixels of the resized image; int64.

        Shape (2,) or (N, 2). For images resized, cropped and flipped. SDXL takes it as a condition.
        """
        matrix, size = self.matrix, self.size.to(self.matrix.dtype)
        corners = []
        for row, side in ((1, 1), (0, 0)):
            scale, offset = matrix[..., row, row], matrix[..., row, 2]
            corners.append((offset - size[..., side]).where(scale < 0, -offset))
        return torch.stack(corners, -1).round().to(torch.int64)


class GeometryField(BatchField):
    """Field of the geometry of images."""

    def deliver(self, batch: Batch) -> Any:
        """Return a `Geometry` of the batch."""
        draw: Any = batch.draw
        moved = draw.moved
        return Geometry(*map(torch.from_numpy, (moved.matrices, moved.source_sizes, moved.sizes)))

    def _values(self, batch: Batch) -> list[Any]:
        return [Geometry(*one) for one in zip(*self.deliver(batch), strict=True)]

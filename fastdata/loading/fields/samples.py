"""Datasets whose samples the core decodes, several at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdata.loading.fields.names import BESIDES
from fastdata.loading.fields.readable import Readable, Unreadable
from fastdata.plan.batches import SizedBatch
from fastdata.storage.columns import values_of
from fastdata.storage.fields import BLOBS, LABEL
from fastdata.storage.source import Source
from fastdata.transforms.outcomes import Refusal, without_fixed_size
from fastdata.transforms.schedule import Varying, of_size, present_size

if TYPE_CHECKING:
    from fastdata.loading.fields.decoder import SampleDecoder


def value_of(source: Source, name: str, row: int) -> Any:
    """Return one field of a row: the blob of an image, the value of a column."""
    if name in BESIDES and not any(one.name == name for one in source.fields):
        return row if name == "index" else source.key(row)
    field = source.field(name)
    if field.kind in BLOBS:
        return source.encoded(row, name)
    values = source.column(name, np.array([row]))
    return int(values[0]) if field == LABEL else values_of(values, field)[0]


class NativeSamples(ABC):
    """Dataset whose samples the core decodes, several at a time."""

    # The decoder with the transforms that it has, by size of batches; None if none was made yet.
    _decoder: dict[Any, tuple[Any, SampleDecoder | None]] | None = None

    @abstractmethod
    def described(self) -> Readable | Unreadable:
        """Return how the core reads the images, or why it does not."""

    @abstractmethod
    def __getitem__(self, index: int) -> Any: ...

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples at once, for torch's own ``DataLoader``.

        If fastdata knows the transform, or its beginning (`fastdata.transforms`, or
        torchvision's crops, resizing, flips and conversions), images are decoded and cropped
        natively: as ``__getitem__``, within 1 of 255, and several times faster.

        Args:
            indices: Numbers from 0; negative ones count from the end.

        Returns:
            For each what ``__getitem__`` does.

        Raises:
            IndexError: There is no such sample.
            FastdataError: As ``__getitem__``.
        """
        with of_size(indices.size if isinstance(indices, SizedBatch) else None):
            decoder = self.decoder
            if decoder is None:
                return [self[index] for index in indices]
            return decoder.samples(indices)

    @property
    def decoder(self) -> SampleDecoder | None:
        """Decoder with the current transforms; None if the core does not know even the crop."""
        by_field, joint = getattr(self, "field_transforms", {}), getattr(self, "transforms", None)
        transforms = [
            one.current if isinstance(one, Varying) else one
            for one in (getattr(self, "transform", None), *by_field.values(), joint)
        ]
        target = getattr(self, "target_transform", None)
        settings = (getattr(self, name, 0) for name in ("fields", "named", "epoch"))
        chosen = [*transforms, target, *by_field, *settings]
        if self._decoder is None:
            self._decoder = {}
        size = present_size()
        if size not in self._decoder or self._decoder[size][0] != chosen:
            self._decoder[size] = chosen, _decoder_of(self.described())
        return self._decoder[size][1]


def _decoder_of(readable: Readable | Unreadable) -> SampleDecoder | None:
    if isinstance(readable, Unreadable):
        return None
    compiled = readable.recipe, *readable.field_recipes.values()
    recipes = [without_fixed_size(one) for one in compiled]
    if any(isinstance(recipe, Refusal) for recipe in recipes):
        return None
    from fastdata.loading.fields.decoder import SampleDecoder  # imports torch

    return SampleDecoder(readable, recipes[0])

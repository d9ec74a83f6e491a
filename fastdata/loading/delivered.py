"""Columns of a batch: tensors, lists, and ragged tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastdata.device.ragged import Ragged
from fastdata.loading.fields.targets import TargetReader, lists_of
from fastdata.storage.columns import Column, is_ragged, python_objects
from fastdata.storage.fields import Field
from fastdata.transforms.joint import ABSENT, Moved

if TYPE_CHECKING:
    from fastdata.loading.fields.painted import OutlineBatch


def delivered(column: Column, field: Field) -> Any:
    """Return a column of a batch as delivered; a list if it has nulls anywhere in the dataset."""
    if isinstance(column, np.ndarray) and column.dtype == object:
        return [None if one is ABSENT else one for one in column.tolist()]
    if isinstance(column, np.ndarray):
        # A view of a file's memory may not be written to.
        return torch.from_numpy(column if column.flags.writeable else column.copy())
    if not field.nullable and is_ragged(column.type):
        values, offsets = lists_of(column)
        return Ragged(torch.from_numpy(values.copy()), torch.from_numpy(offsets))
    return python_objects(column, field)


def delivered_target(reader: TargetReader, name: str, column: Column | None, moved: Moved) -> Any:
    """Return a target of a batch: a `fastdata.Ragged`, or the result of `delivered`.

    The geometry of images is a `fastdata.loading.fields.targets.Geometry`.
    """
    if (geometry := reader.geometry(name, moved)) is not None:
        return geometry
    assert column is not None
    found = reader.lists(name, column, moved)
    if found is None:
        return delivered(column, reader.field(name))
    values, offsets = map(torch.from_numpy, found)
    return Ragged(reader.joint.targets[name].converted(values), offsets)


def delivered_masks(reader: TargetReader, name: str, batch: OutlineBatch) -> Any:
    """Return masks of a batch: a `fastdata.Ragged` if all have one size, else a list."""
    target, masks = reader.joint.targets[name], batch.masks
    sizes = {one.shape[1:] for one in masks}
    if len(sizes) > 1:
        return [target.converted(one) for one in masks]
    (size,) = sizes
    values = torch.cat(masks) if batch.values is None else batch.values.view(-1, *size)
    offsets = np.cumsum([0, *map(len, masks)], dtype=np.int64)
    return Ragged(target.converted(values), torch.from_numpy(offsets))

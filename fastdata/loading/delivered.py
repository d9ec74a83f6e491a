"""Columns of a batch: tensors, lists, and ragged tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fastdata.device.ragged import Ragged
from fastdata.storage.arrow import as_numpy
from fastdata.storage.columns import Column, as_column, is_ragged, python_objects
from fastdata.storage.fields import Field


def delivered(column: Column, field: Field) -> Any:
    """Return a column of a batch as `fastdata.DataLoader` delivers it.

    Args:
        column: Its values.
        field: The column. One that has nulls anywhere in the dataset becomes a list.
    """
    if isinstance(column, np.ndarray):
        # A view of a file's memory may not be written to.
        return torch.from_numpy(column if column.flags.writeable else column.copy())
    if not field.nullable and is_ragged(column.type):
        values = as_column(column.flatten())
        assert isinstance(values, np.ndarray)
        offsets = np.zeros(len(column) + 1, np.int64)
        np.cumsum(as_numpy(column.value_lengths()), out=offsets[1:])
        return Ragged(torch.from_numpy(values.copy()), torch.from_numpy(offsets))
    return python_objects(column, field)

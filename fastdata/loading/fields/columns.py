"""Fields of columns, of targets in columns, and of blobs that nothing decodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastdata import _native
from fastdata.device.ragged import Ragged
from fastdata.errors import FastdataError, OutageError
from fastdata.executors import InProcess, helper_threads
from fastdata.loading.fields.field import (
    Batch,
    BatchField,
    Context,
    EncodedField,
    EncodedState,
    FieldState,
)
from fastdata.storage.columns import (
    is_ragged,
    join_columns,
    lists_of,
    python_objects,
    values_of,
    with_gaps,
)
from fastdata.storage.fields import LABEL, Field
from fastdata.storage.source import Column

if TYPE_CHECKING:
    from fastdata.loading.fields.targets import TargetReader
    from fastdata.storage.source import Rows
    from fastdata.threads import Task, Threads

_Values = tuple[Column, dict[int, FastdataError]]


@dataclass(eq=False)
class ColumnState(FieldState):
    """State of a column: the task that reads its values, and these once they are taken."""

    task: Task[_Values] | None = None
    values: Column | None = None


class ColumnField(BatchField):
    """Field of a column.

    A remote column is read by a thread of its own, while batches before it are used.
    """

    state_type = ColumnState

    def __init__(self, name: str, context: Context) -> None:
        super().__init__(name, context)
        self.field: Field = context.source.field(name)
        self._read = partial(_read_column, partial(context.source.column, name))
        # Labels lie in the index, which is on this machine.
        local = context.source.capabilities.local or self.field == LABEL
        self._thread: Threads | InProcess = InProcess() if local else helper_threads(1)

    def column(self, batch: Batch) -> Column:
        """Return the values of a batch, which were read."""
        state: ColumnState = batch.states[self]
        if state.values is not None:
            return state.values
        # Those without a task were read with the rows of images.
        return batch.columns[self.name] if state.task is None else state.task.result()[0]

    def reading(self, batch: Batch) -> Task[_Values]:
        """Return the job that reads a batch's values."""
        task: Task[_Values] = batch.states[self].task
        return task

    def deliver(self, batch: Batch) -> Any:
        """Return a tensor, a list, or a `fastdata.Ragged`."""
        if self._context.as_torch:
            return self._context.collate([self.value(batch, slot) for slot in range(len(batch))])
        return delivered(self.column(batch), self.field)

    def patch(self, batch: Batch, other: Batch, to: list[int], good: list[int]) -> None:
        order = np.arange(len(batch))
        order[to] = len(order) + np.array(good, np.int64)
        columns = [self.column(batch), self.column(other)]
        batch.states[self].values = join_columns(columns, order)

    def close(self) -> None:
        """End the thread."""
        self._thread.end()

    def begin(self, batch: Batch, state: Any) -> None:
        state.task = self._thread.submit(self._read, batch.planned.indices)
        state.after(state.task, self._take)

    def _take(self, batch: Batch, state: Any) -> None:
        state.values, state.failed = state.task.result()

    def _values(self, batch: Batch) -> list[Any]:
        return values_of(self.column(batch), self.field)


class LabelField(ColumnField):
    """Field of labels, which the rows of images have, too: ``with_images``."""

    def __init__(self, name: str, context: Context, with_images: bool) -> None:
        super().__init__(name, context)
        self._with_images = with_images
        self._transformed = context.readable.transforms_targets

    def deliver(self, batch: Batch) -> Any:
        """Return a tensor, int64; of other labels what torch makes of them."""
        if self._transformed:
            return self._context.collate([self.value(batch, slot) for slot in range(len(batch))])
        return torch.from_numpy(self.column(batch))

    def value(self, batch: Batch, slot: int) -> Any:
        """Return a label after ``target_transform``."""
        label = self.column(batch)[slot].item()
        return self._context.readable.target(int(batch.planned.indices[slot]), label)

    def begin(self, batch: Batch, state: Any) -> None:
        if not self._with_images:
            super().begin(batch, state)


class TargetField(BatchField):
    """Field of boxes, key points and other targets, which follow the images.

    Args:
        column: The field of the column that they are made of.
        reader: Reader of the targets.
    """

    def __init__(
        self, name: str, context: Context, column: ColumnField, reader: TargetReader
    ) -> None:
        super().__init__(name, context)
        self._column, self._reader = column, reader

    def deliver(self, batch: Batch) -> Any:
        """Return a `fastdata.Ragged` of lists; else what the column delivers."""
        draw: Any = batch.draw
        reader, column = self._reader, self._column.column(batch)
        lists = reader.lists(self.name, column, draw.moved)
        if lists is None:
            return delivered(column, self._column.field)
        values, offsets = map(torch.from_numpy, lists)
        return Ragged(reader.joint.targets[self.name].converted(values), offsets)

    def _values(self, batch: Batch) -> list[Any]:
        draw: Any = batch.draw
        return self._reader.samples(self.name, self._column.column(batch), draw.moved)


def _read_column(column: Callable[[Rows], Column], rows: Rows) -> _Values:
    """Return the values, with zeros or nulls for rows that cannot be read, and their errors."""
    try:
        return column(rows), {}
    except OutageError:  # the values may be intact
        raise
    except FastdataError:
        failed: dict[int, FastdataError] = {}
    for slot in range(len(rows)):
        try:
            column(rows[slot : slot + 1])
        except FastdataError as error:
            failed[slot] = error
    good = np.setdiff1d(np.arange(len(rows)), list(failed))
    return with_gaps(column(rows[good]), good, len(rows)), failed


def delivered(column: Column, stored: Field) -> Any:
    """Return a column of a batch as delivered; a list if it has nulls anywhere in the dataset."""
    if isinstance(column, np.ndarray) and column.dtype == object:
        return column.tolist()
    if isinstance(column, np.ndarray):
        # A view of a file's memory may not be written to.
        return torch.from_numpy(column if column.flags.writeable else column.copy())
    if not stored.nullable and is_ragged(column.type):
        values, offsets = lists_of(column)
        return Ragged(torch.from_numpy(values.copy()), torch.from_numpy(offsets))
    return python_objects(column, stored)


@dataclass(eq=False)
class BlobState(EncodedState):
    """State of blobs; ``values`` are empty until they are read. ``present``, (N,): whether a sample
    has one: its extent is not all 0.
    """

    present: Any = ()
    values: list[bytes | None] = field(default_factory=list)


class BlobField(EncodedField):
    """Field of bytes that nothing decodes; None where a sample has none."""

    state_type = BlobState

    def deliver(self, batch: Batch) -> Any:
        """Return a list of bytes."""
        values = batch.states[self].values
        return self._context.collate(values) if self._context.as_torch else values

    def patch(self, batch: Batch, other: Batch, to: list[int], good: list[int]) -> None:
        values, theirs = batch.states[self].values, other.states[self].values
        for slot, at in zip(to, good, strict=True):
            values[slot] = theirs[at]

    def begin(self, batch: Batch, state: Any) -> None:
        self._gather(batch, state)
        extents = state.blobs.extents
        state.present = (extents.lengths != 0) | (extents.offsets != 0)
        state.after(state.fetch, self._read)

    def _read(self, batch: Batch, state: Any) -> None:
        self._attach(batch, state)
        job = _native.ReadJob(state.blobs.extents, check=self._check)
        self._context.start(job)
        state.after(job, self._take)

    def _take(self, batch: Batch, state: Any) -> None:
        job = state.job
        for slot, code, detail, _ in job.failures():
            self._fail(batch, slot, detail, code)
        for data, present in zip(job.take(), state.present, strict=True):
            state.values.append(None if data is None or not present else data.tobytes())

    def _values(self, batch: Batch) -> list[Any]:
        return batch.states[self].values  # type: ignore[no-any-return]

"""Pipeline of the fields of a pass's batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastdata.errors import FastdataError, OutageError
from fastdata.loading.fields.columns import BlobField, ColumnField, LabelField, TargetField
from fastdata.loading.fields.computed import GeometryField, KeyField, NumberField
from fastdata.loading.fields.field import Batch, BatchField, Context
from fastdata.loading.fields.image import ImageField
from fastdata.loading.fields.masks import MaskField
from fastdata.loading.fields.names import SOURCE
from fastdata.loading.fields.painted import OutlineField
from fastdata.loading.fields.targets import reader_of
from fastdata.storage.field_source import FieldSource, MissingError
from fastdata.storage.fields import BLOBS, LABEL
from fastdata.transforms.outcomes import without_fixed_size

if TYPE_CHECKING:
    from fastdata.loading.fields.readable import Readable
    from fastdata.loading.fields.targets import TargetReader
    from fastdata.plan.schedule import Planned
    from fastdata.storage.source import Source
    from fastdata.transforms.recipe import Recipe

#: Seconds between two checks for signals such as Ctrl-C, while waiting for a batch.
_SLICE = 0.05


class Pipeline:
    """Pipeline of a pass's batches: does the steps of each field in turn, as `BatchField` says.

    Args:
        context: What the fields share.
        delivered: The fields of a batch, by name.
        inputs: Other fields that these are made of, which come before them.
        reader: Reader of targets; None without a joint transform.

    Attributes:
        fields: All fields, in the order of their turns: those that follow images after these.
        joint: Form of a sample with targets, as a joint transform has it; None without one.
    """

    def __init__(
        self,
        context: Context,
        delivered: Mapping[str, BatchField],
        inputs: Sequence[BatchField] = (),
        reader: TargetReader | None = None,
    ) -> None:
        self.context, self.delivered = context, delivered
        self._reader = reader
        self.joint = None if reader is None else reader.joint
        images = [one for one in delivered.values() if one.name == "image"]
        self.fields = list(dict.fromkeys([*inputs, *images, *delivered.values()]))

    def advance(self, batch: Batch, *, wait: bool = False) -> None:
        """Do the steps whose jobs are done; with ``wait``, all steps.

        Keep FastdataErrors of the batch as a whole. With ``wait``, raise them (DatasetError if the
        index is damaged), and TimeoutError after the batch's deadline. Wait for no batch that was
        not advanced before: its steps would be done one field after the other.
        """
        for state in batch.states.values():
            if wait and state.error is not None:
                raise state.error
            first = state.job
            while (step := state.step) is not None:
                job = state.job
                if wait:
                    while job is not None and not job.wait(_SLICE):
                        if batch.deadline is not None and time.monotonic() > batch.deadline:
                            raise TimeoutError
                # A job that a step has just begun is left to the next call, even if it is done:
                # later steps of batches are done in the batches' order.
                elif state.in_turn or (job is not None and (job is not first or not job.done())):
                    break
                state.step = None
                try:
                    step(batch, state)
                except FastdataError as error:
                    if wait:
                        raise
                    state.fail(error)
                if state.step is None:
                    state.job = None

    def ready(self, batch: Batch) -> bool:
        """Return whether waiting for all steps would not take long, as of the last `advance`."""
        if any(state.error is not None for state in batch.states.values()):
            return True
        return all(one.ready(batch) for one in self.fields)

    def errors(self, batch: Batch) -> dict[int, FastdataError]:
        """Return the errors of samples without values, by slot; all steps were done.

        Raise OutageError if the server has not answered for too long.
        """
        failed: dict[int, FastdataError] = {}
        for one, state in batch.states.items():
            if not state.failed:
                continue
            errors = state.failed
            for error in errors.values():
                if isinstance(error, OutageError):  # the samples may be intact
                    raise error
            if self.context.single and one.name != "image":
                state.lacking = {at for at, why in errors.items() if type(why) is MissingError}
                errors = {at: why for at, why in errors.items() if at not in state.lacking}
            # Errors of images come first.
            failed = {**failed, **errors} if one.name == "image" else {**errors, **failed}
        return dict(sorted(failed.items()))

    def decode(
        self, planned: Planned, key: int, deadline: float | None = None
    ) -> tuple[Batch, dict[int, FastdataError]]:
        """Return a batch with all steps done, by the epoch's key, and its `errors`."""
        batch = Batch(planned, key, self.fields)
        batch.deadline = deadline
        self.advance(batch)
        self.advance(batch, wait=True)
        return batch, self.errors(batch)

    def sample(self, batch: Batch, slot: int) -> Any:
        """Return one sample of a finished batch, as the dataset's ``__getitem__`` does."""
        values = {name: one.value(batch, slot) for name, one in self.delivered.items()}
        if self._reader is None:
            return self.context.readable.sample([*values.values()])
        assert batch.draw is not None
        return batch.draw.recipe.finish_joint(self._reader.sample(values))

    def clear(self, batch: Batch, slots: list[int]) -> None:
        """Make the pixels of bad samples zeros."""
        for one in self.fields:
            one.clear(batch, slots)

    def patch(self, batch: Batch, other: Batch, to: list[int], good: list[int]) -> None:
        """Take the samples at places ``good`` of another finished batch for the slots ``to``."""
        for one in self.fields:
            one.patch(batch, other, to, good)

    def cancel(self, batch: Batch) -> None:
        """Cancel a batch; callable from any thread."""
        for one in self.fields:
            one.cancel(batch)

    def close(self) -> None:
        """Free resources; all batches were finished or cancelled."""
        for one in self.fields:
            one.close()


def open_pipeline(
    context: Context,
    recipes: Sequence[Recipe],
    readables: Sequence[Readable],
    names: Sequence[str] | None = None,
    image_field: Callable[..., BatchField] = ImageField,
    reader: TargetReader | None = None,
) -> Pipeline:
    """Return the pipeline of a pass.

    Args:
        context: What its fields share.
        recipes: The transform for each size class of batches, compiled.
        readables: The dataset for each size class: transforms of other fields may differ.
        names: Names of a batch's fields; None for the fields of the dataset's samples.
        image_field: Makes fields of images, of the arguments of `ImageField`.
        reader: Reader of targets; None for the recipe's.
    """
    readable, source = readables[0], context.source
    asked = names or readable.fields
    if reader is None and "image" in asked:
        reader = reader_of(readable)
    if names is None and reader is not None:
        asked = ("image", *reader.joint.targets)
    stored = {one.name: one for one in source.fields}
    columns: dict[str, ColumnField] = {}

    def column(name: str) -> ColumnField:
        if name not in columns:
            columns[name] = ColumnField(name, context)
        return columns[name]

    def computed(name: str) -> BatchField:
        if name == "index":
            if names is not None:
                return NumberField(name, context, lambda planned: planned.numbers)
            return NumberField(
                name, context, lambda planned: readable.rows_in_parts(planned.indices)
            )
        if name == SOURCE:
            return NumberField(name, context, lambda planned: readable.part_of(planned.indices))
        return KeyField(name, context)

    def plain(name: str) -> BatchField:
        one = stored.get(name)
        if one is None:
            return computed(name)
        if one == LABEL:
            return LabelField(name, context, "image" in asked)
        if one.kind == "column":
            return column(name)
        own = FieldSource(source, name)
        if one.kind == "blob":
            return BlobField(name, context, own)
        transforms = [without_fixed_size(one.field_recipes.get(name)) for one in readables]
        return image_field(name, context, own, transforms)

    def target(name: str) -> BatchField:
        assert reader is not None
        kind = reader.joint.targets[name].kind
        if kind == "geometry":
            return GeometryField(name, context)
        if kind == "outlines":
            return OutlineField(name, context, list(map(column, reader.outline_columns)), reader)
        if kind == "mask":
            return MaskField(name, context, FieldSource(source, name), reader)
        of = stored.get(reader.column(name))
        if of is None or of == LABEL or of.kind != "column":
            return plain(name)
        return TargetField(name, context, column(of.name), reader)

    moved = [] if reader is None else list(map(column, reader.moved_columns))
    delivered: dict[str, BatchField] = {}
    for name in asked:
        if name == "image":
            delivered[name] = image_field(name, context, source, recipes, reader, moved)
        elif reader is not None and name in reader.joint.targets:
            delivered[name] = target(name)
        else:
            delivered[name] = plain(name)
    return Pipeline(context, delivered, list(columns.values()), reader)


def blobs_among(source: Source, fields: Sequence[str]) -> list[str]:
    """Return the names of images and blobs among some fields."""
    return [one.name for one in source.fields if one.kind in BLOBS and one.name in fields]

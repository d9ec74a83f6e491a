"""Pipeline of the fields of a pass's batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastdata.loading.fields.columns import BlobField, ColumnField, LabelField
from fastdata.loading.fields.computed import (
    GeometryField,
    IndexField,
    KeyField,
    PartField,
    TargetField,
)
from fastdata.loading.fields.field import Batch, BatchField, Context
from fastdata.loading.fields.image import ImageField
from fastdata.loading.fields.masks import MaskField
from fastdata.loading.fields.names import SOURCE
from fastdata.loading.fields.painted import OutlineField
from fastdata.loading.fields.targets import reader_of
from fastdata.storage.field_source import FieldSource
from fastdata.storage.fields import BLOBS, LABEL
from fastdata.transforms.outcomes import without_fixed_size

if TYPE_CHECKING:
    from fastdata.errors import FastdataError
    from fastdata.loading.fields.readable import Readable
    from fastdata.loading.fields.targets import TargetReader
    from fastdata.plan.schedule import Planned
    from fastdata.storage.source import Source
    from fastdata.transforms.joint import Joint
    from fastdata.transforms.recipe import Recipe


class Pipeline:
    """Pipeline of a pass's batches: calls each field in turn, as `BatchField` says.

    Args:
        context: What the fields share.
        delivered: The fields of a batch, by name.
        inputs: Further fields that these are made of, which begin before them.
        reader: Reader of targets; None without a joint transform.

    Attributes:
        delivered: As given.
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
        # Fields that follow images come after these, and errors of images come first.
        images = [one for one in delivered.values() if one.name == "image"]
        self._fields = list(dict.fromkeys([*images, *inputs, *delivered.values()]))

    @property
    def joint(self) -> Joint | None:
        """Form of a sample with targets, as a joint transform has it; None without one."""
        return None if self._reader is None else self._reader.joint

    def begin(self, planned: Planned, key: int) -> Batch:
        """Begin a batch, with the epoch's key."""
        batch = Batch(planned, key, advancing=self._fields)
        for one in self._fields:
            one.begin(batch)
        self.advance(batch)
        return batch

    def advance(self, batch: Batch) -> None:
        """Start the next stages of a batch; see `BatchField.advance`."""
        batch.advancing = [one for one in batch.advancing if one.advance(batch)]

    def ready(self, batch: Batch) -> bool:
        """Return whether `finish` would return at once, as of the last `advance`."""
        if any(batch.states[one].error is not None for one in self._fields):
            return True
        return all(one.ready(batch) for one in self._fields)

    def finish(self, batch: Batch, timeout: float = 0) -> dict[int, FastdataError]:
        """Wait for a batch; return errors of samples, by slot. See `BatchField.finish`.

        Raise RuntimeError after ``timeout`` seconds; 0 to wait for ever.
        """
        deadline = time.monotonic() + timeout if timeout > 0 else None
        failed: dict[int, FastdataError] = {}
        try:
            for one in self._fields:
                if errors := one.finish(batch, deadline):
                    failed = {**errors, **failed}
        except TimeoutError:
            # torch's own words
            raise RuntimeError(f"DataLoader timed out after {timeout} seconds") from None
        return dict(sorted(failed.items()))

    def sample(self, batch: Batch, slot: int) -> Any:
        """Return one sample of a finished batch, as the dataset's ``__getitem__`` does."""
        values = {name: one.value(batch, slot) for name, one in self.delivered.items()}
        if self._reader is None:
            return self.context.readable.sample([*values.values()])
        assert batch.draw is not None
        return batch.draw.recipe.finish_joint(self._reader.sample(values))

    def clear(self, batch: Batch, slots: list[int]) -> None:
        """Make the pixels of bad samples zeros."""
        for one in self._fields:
            one.clear(batch, slots)

    def patch(self, batch: Batch, other: Batch, to: list[int], good: list[int]) -> None:
        """Take the samples at places ``good`` of another finished batch for the slots ``to``."""
        for one in self._fields:
            one.patch(batch, other, to, good)

    def cancel(self, batch: Batch) -> None:
        """Cancel a batch; callable from any thread."""
        for one in self._fields:
            one.cancel(batch)

    def close(self) -> None:
        """Free resources; all batches were finished or cancelled."""
        for one in self._fields:
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
        readables: The dataset for each size class: further fields' transforms may differ.
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
            return IndexField(name, context, in_part=names is None)
        return PartField(name, context) if name == SOURCE else KeyField(name, context)

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
        transforms = [without_fixed_size(one.further.get(name)) for one in readables]
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

"""Further blobs and images of a batch, which are read and decoded beside its first image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fastdata import _native
from fastdata.batches.helpers import await_done
from fastdata.errors import FastdataError
from fastdata.storage.field_source import FieldSource
from fastdata.storage.fields import BLOBS, IMAGE, LABEL, Field
from fastdata.storage.source import Source

if TYPE_CHECKING:
    from fastdata.batches.batch import Batch, View
    from fastdata.batches.pipeline import Pipeline
    from fastdata.decode.engine import Engine
    from fastdata.plan.schedule import Planned


@dataclass
class BlobBatch:
    """Blobs of one field of a batch.

    Attributes:
        planned: The samples.
        read: Job that reads them.
        lengths: int64, shape (N,), in bytes; 0 where a sample has none.
        values: The bytes of each sample, or None; empty until the batch is finished.
        error: Error of the batch as a whole.
        views: Always empty: nothing is decoded.
    """

    planned: Planned
    read: _native.ReadJob | None = None
    lengths: Any = ()
    values: list[bytes | None] = field(default_factory=list)
    error: FastdataError | None = None
    views: tuple[View, ...] = ()


class BlobPipeline:
    """Pipeline that reads blobs.

    Args:
        source: Source of the blobs.
        engine: Threads that read; None for the consumer's thread.
        check: Whether to compare checksums.
    """

    def __init__(self, source: FieldSource, engine: Engine | None, check: bool) -> None:
        self._source, self._engine, self._check = source, engine, check

    def begin(self, planned: Planned, key: int) -> BlobBatch:
        """Begin to read a batch's blobs."""
        batch = BlobBatch(planned)
        try:
            extents = self._source.gather(planned.indices).blobs["image"].extents
        except FastdataError as error:
            batch.error = error
            return batch
        batch.lengths = np.asarray(extents.lengths)
        if self._engine is None:
            batch.read = _native.ReadJob(extents, check=self._check)
            batch.read.run()
        else:
            batch.read = self._engine.read(extents, check=self._check)
        return batch

    def advance(self, batch: BlobBatch) -> None:
        """Do nothing: reading has one stage."""

    def ready(self, batch: BlobBatch) -> bool:
        """Return whether `finish` would return at once."""
        return batch.read is None or batch.read.done()

    def finish(self, batch: BlobBatch, deadline: float | None = None) -> dict[int, FastdataError]:
        """Wait for a batch; see `Pipeline.finish`."""
        if batch.error is not None:
            raise batch.error
        read, batch.read = batch.read, None
        if read is None:
            return {}
        await_done(read, deadline)
        failed: dict[int, FastdataError] = {}
        for slot, code, detail, _ in read.failures():
            row = int(batch.planned.indices[slot])
            failed[slot] = self._source.problem(row, detail, code)
        for data, length in zip(read.take(), batch.lengths, strict=True):
            batch.values.append(None if data is None or not length else data.tobytes())
        return failed

    def cancel(self, batch: BlobBatch) -> None:
        """Cancel a batch."""
        if batch.read is not None:
            batch.read.cancel()

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


FurtherPipeline: TypeAlias = "Pipeline | BlobPipeline"


class Pipelines:
    """Pipeline of a batch's first image, and pipelines of its further fields.

    Crops of further images are drawn from the same keys: the same transform of images of one size
    cuts the same part.

    Args:
        first: That of the image.
        further: The others, by field.
    """

    def __init__(self, first: Pipeline, further: Mapping[str, FurtherPipeline]) -> None:
        self._first, self._further = first, further

    def begin(self, planned: Planned, key: int) -> Batch:
        """See `Pipeline.begin`."""
        batch = self._first.begin(planned, key)
        batch.further = {name: one.begin(planned, key) for name, one in self._further.items()}
        return batch

    def advance(self, batch: Batch) -> None:
        """See `Pipeline.advance`."""
        self._first.advance(batch)
        for name, one in self._further.items():
            one.advance(batch.further[name])

    def ready(self, batch: Batch) -> bool:
        """See `Pipeline.ready`."""
        further = (one.ready(batch.further[name]) for name, one in self._further.items())
        return self._first.ready(batch) and all(further)

    def finish(self, batch: Batch, deadline: float | None = None) -> dict[int, FastdataError]:
        """See `Pipeline.finish`."""
        failed = self._first.finish(batch, deadline)
        for name, one in self._further.items():
            failed = one.finish(batch.further[name], deadline) | failed
        return dict(sorted(failed.items()))

    def image(self, batch: Batch, field: str = "image") -> Any:
        """Return a finished batch's images of a field, or the bytes of its blobs."""
        if field == "image":
            return self._first.image(batch)
        one = self._further[field]
        return (
            batch.further[field].values
            if isinstance(one, BlobPipeline)
            else one.image(batch.further[field])
        )

    def samples(self, batch: Batch, field: str = "image") -> list[Any]:
        """Return the image of each sample of a finished batch, or the bytes of its blob."""
        if field == "image":
            return self._first.samples(batch)
        one = self._further[field]
        part = batch.further[field]
        return part.values if isinstance(one, BlobPipeline) else one.samples(part)

    def cancel(self, batch: Batch) -> None:
        """See `Pipeline.cancel`."""
        self._first.cancel(batch)
        for name, one in self._further.items():
            with suppress(KeyError):  # not begun yet
                one.cancel(batch.further[name])

    def close(self) -> None:
        """See `Pipeline.close`."""
        for one in (self._first, *self._further.values()):
            one.close()


def further_pipelines(
    source: Source,
    fields: Sequence[str],
    decoder: Callable[[Source, str], Pipeline],
    engine: Engine | None,
    check: bool,
) -> dict[str, FurtherPipeline]:
    """Return the pipelines of further images and blobs.

    Args:
        source: The source of all fields.
        fields: Those of a batch.
        decoder: Makes the pipeline of a field of images.
        engine: As of `BlobPipeline`.
        check: As of `BlobPipeline`.
    """
    found: dict[str, FurtherPipeline] = {}
    for one in source.fields:
        if one.name not in fields or one == IMAGE or one.kind not in BLOBS:
            continue
        of_field = FieldSource(source, one.name)
        blobs = one.kind == "blob"
        found[one.name] = (
            BlobPipeline(of_field, engine, check) if blobs else decoder(of_field, one.name)
        )
    return found


def columns_of(source: Source, fields: Sequence[str]) -> list[Field]:
    """Return the columns among some fields, without the label."""
    return [
        one for one in source.fields if one.kind == "column" and one != LABEL and one.name in fields
    ]

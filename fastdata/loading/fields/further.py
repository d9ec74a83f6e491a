"""Further fields of a batch, which are read and decoded beside its first image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fastdata import _native
from fastdata.errors import FastdataError, OutageError
from fastdata.executors import InProcess, await_done, helper_threads, result_of
from fastdata.loading.fields.batch import Batch
from fastdata.loading.fields.masks import MaskPipeline
from fastdata.loading.fields.painted import OutlinePipeline
from fastdata.remote.ranges import attach_fetched, raise_outage
from fastdata.storage.columns import Column, join_columns, values_of, with_gaps
from fastdata.storage.field_source import FieldSource, MissingError
from fastdata.storage.fields import BLOBS, IMAGE_AND_LABEL, LABEL, MASKS
from fastdata.storage.source import Rows, Source

if TYPE_CHECKING:
    from fastdata.decode.engine import Engine
    from fastdata.loading.fields.pipeline import Pipeline
    from fastdata.loading.fields.targets import TargetReader
    from fastdata.plan.schedule import Planned
    from fastdata.remote.prefetch import Fetch, FetchField, RemotePass
    from fastdata.transforms.joint import Moved


class _OneStage:
    """Pipeline of batches that need no further step once they have begun."""

    def advance(self, batch: Any) -> None:
        """Do nothing."""

    def cancel(self, batch: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


@dataclass
class BlobBatch:
    """Blobs of one field of a batch.

    ``present``: (N,), whether a sample has one: its extent is not all 0. ``values`` are empty until
    the batch is finished. ``failed`` are errors by slot, ``error`` that of the batch as a whole.
    """

    planned: Planned
    extents: _native.Extents | None = None
    fetch: Fetch | None = None
    read: _native.ReadJob | None = None
    present: Any = ()
    values: list[bytes | None] = field(default_factory=list)
    failed: dict[int, FastdataError] = field(default_factory=dict)
    error: FastdataError | None = None

    def clear(self, slots: list[int]) -> None:
        """Leave the values of bad samples: only pixels become zeros."""

    def patch(self, other: BlobBatch, to: list[int], good: list[int]) -> None:
        """Take the values at places ``good`` of another batch for the slots ``to``."""
        for slot, at in zip(to, good, strict=True):
            self.values[slot] = other.values[at]


class BlobPipeline(_OneStage):
    """Pipeline that reads blobs; without an engine, in the consumer's thread."""

    def __init__(
        self,
        source: FieldSource,
        engine: Engine | None,
        fetch: FetchField | None = None,
    ) -> None:
        self._source, self._engine, self._fetch = source, engine, fetch
        # Fetching has checked remote blobs.
        self._check = fetch is None or source.capabilities.partly_local

    def begin(self, planned: Planned, key: int) -> BlobBatch:
        """Begin to read a batch's blobs."""
        batch = BlobBatch(planned)
        try:
            batch.extents = self._source.gather(planned.indices).blobs["image"].extents
        except FastdataError as error:
            batch.error = error
            return batch
        batch.present = (batch.extents.lengths != 0) | (batch.extents.offsets != 0)
        if self._fetch is None:
            self._read(batch)
        else:
            batch.fetch = self._fetch(batch.extents, planned.draws)
        return batch

    def _read(self, batch: BlobBatch) -> None:
        assert batch.extents is not None
        if self._engine is None:
            batch.read = _native.ReadJob(batch.extents, check=self._check)
            batch.read.run()
        else:
            batch.read = self._engine.read(batch.extents, check=self._check)

    def _take_fetched(self, batch: BlobBatch) -> None:
        fetch, batch.fetch = batch.fetch, None
        assert fetch is not None
        assert batch.extents is not None
        batch.failed |= attach_fetched(
            fetch.take(), batch.extents, self._source, batch.planned.indices
        )
        self._read(batch)

    def advance(self, batch: BlobBatch) -> None:
        """Begin the next stage of a batch, if the one before is done."""
        if batch.fetch is not None and batch.fetch.done():
            self._take_fetched(batch)

    def ready(self, batch: BlobBatch) -> bool:
        """Return whether `finish` would return at once."""
        return batch.fetch is None and (batch.read is None or batch.read.done())

    def finish(self, batch: BlobBatch, deadline: float | None = None) -> dict[int, FastdataError]:
        """Wait for a batch; see `Pipeline.finish`."""
        if batch.error is not None:
            raise batch.error
        if batch.fetch is not None:
            await_done(batch.fetch, deadline)
            self._take_fetched(batch)
        read, batch.read = batch.read, None
        if read is None:
            return batch.failed
        await_done(read, deadline)
        for slot, code, detail, _ in read.failures():
            row = int(batch.planned.indices[slot])
            batch.failed.setdefault(slot, self._source.problem(row, detail, code))
        for data, present in zip(read.take(), batch.present, strict=True):
            batch.values.append(None if data is None or not present else data.tobytes())
        raise_outage(batch.failed)
        return batch.failed

    def image(self, batch: BlobBatch) -> list[bytes | None]:
        """Return the bytes of a finished batch's blobs."""
        return batch.values

    samples = image

    def cancel(self, batch: BlobBatch) -> None:
        """Cancel a batch."""
        for part in (batch.fetch, batch.read):
            if part is not None:
                part.cancel()


@dataclass
class ColumnBatch:
    """Values of one column of a batch, once it is finished, and errors of samples by slot."""

    planned: Planned
    found: Future[tuple[Column, dict[int, FastdataError]]]
    values: Column | None = None

    def clear(self, slots: list[int]) -> None:
        """Leave the values of bad samples: only pixels become zeros."""

    def patch(self, other: ColumnBatch, to: list[int], good: list[int]) -> None:
        """Take the values at places ``good`` of another batch for the slots ``to``."""
        assert self.values is not None
        assert other.values is not None
        order = np.arange(len(self.values))
        order[to] = len(order) + np.array(good, np.int64)
        self.values = join_columns([self.values, other.values], order)


class ColumnPipeline(_OneStage):
    """Pipeline that reads a column.

    A remote column is read by a thread of its own, while batches before it are used.
    """

    def __init__(self, source: Source, name: str) -> None:
        self._field = source.field(name)
        self._column = partial(source.column, name)
        local = source.capabilities.local
        self._thread: Executor = InProcess() if local else helper_threads(1)

    def begin(self, planned: Planned, key: int) -> ColumnBatch:
        """Begin to read a batch's values."""
        return ColumnBatch(planned, self._thread.submit(_read, self._column, planned.indices))

    def ready(self, batch: ColumnBatch) -> bool:
        """Return whether `finish` would return at once."""
        return batch.found.done()

    def finish(self, batch: ColumnBatch, deadline: float | None = None) -> dict[int, FastdataError]:
        """Wait for a batch; see `Pipeline.finish`."""
        batch.values, failed = result_of(batch.found, deadline)
        return failed

    def image(self, batch: ColumnBatch) -> Column | None:
        """Return the values of a finished batch."""
        return batch.values

    def samples(self, batch: ColumnBatch) -> list[Any]:
        """Return the value of each sample of a finished batch."""
        assert batch.values is not None
        return values_of(batch.values, self._field)

    def cancel(self, batch: ColumnBatch) -> None:
        """Cancel a batch."""
        batch.found.cancel()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _read(column: Callable[[Rows], Column], rows: Rows) -> tuple[Column, dict[int, FastdataError]]:
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


class LabelPipeline(_OneStage):
    """Pipeline of batches whose images are not asked for: it reads labels, if these are."""

    def __init__(self, source: Source, fields: Sequence[str]) -> None:
        self._source = source
        self._has_label = LABEL.name in fields and LABEL in source.fields

    def begin(self, planned: Planned, key: int, further: dict[str, Any] | None = None) -> Batch:
        """Read a batch's labels: the index is on this machine."""
        batch = Batch(planned, key, further=further or {})
        if self._has_label:
            try:
                labels, batch.failed = _read(partial(self._source.column, "label"), planned.indices)
                batch.columns["label"] = labels
            except FastdataError as error:
                batch.error = error
        return batch

    def ready(self, batch: Batch) -> bool:
        """Return true: `begin` has read all."""
        return True

    def finish(self, batch: Batch, deadline: float | None = None) -> dict[int, FastdataError]:
        """See `Pipeline.finish`."""
        if batch.error is not None:
            raise batch.error
        return batch.failed


FurtherPipeline: TypeAlias = (
    "Pipeline | BlobPipeline | ColumnPipeline | MaskPipeline | OutlinePipeline"
)


class Pipelines:
    """Pipeline of a batch's first image, and pipelines of its further fields.

    Crops of further images are drawn from the same keys: the same transform of images of one size
    cuts the same part. With ``single``, a missing further image is None; in a batch of images, it
    is an error of its sample.
    """

    def __init__(
        self,
        first: Pipeline | LabelPipeline,
        further: Mapping[str, FurtherPipeline],
        single: bool,
        reader: TargetReader | None,
    ) -> None:
        self._first, self._further, self._single = first, further, single
        self.reader = reader

    def begin(self, planned: Planned, key: int) -> Batch:
        """See `Pipeline.begin`."""
        further: dict[str, Any] = {
            name: one.begin(planned, key) for name, one in self._further.items()
        }
        batch = self._first.begin(planned, key, further)
        for name, one in self._further.items():
            if isinstance(one, MaskPipeline | OutlinePipeline):
                one.follow(further[name], batch)
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
            of_field = one.finish(batch.further[name], deadline)
            if self._single:
                lacks = [slot for slot, error in of_field.items() if type(error) is MissingError]
                batch.lacking[name] = lacks
                of_field = {slot: of_field[slot] for slot in of_field.keys() - lacks}
            failed = of_field | failed
        return dict(sorted(failed.items()))

    def image(self, batch: Batch, field: str = "image") -> Any:
        """Return a field of a finished batch: images, a list of bytes, or a column."""
        if field == "image":
            assert not isinstance(self._first, LabelPipeline)
            return self._first.image(batch)
        return self._further[field].image(batch.further[field])

    def target(self, batch: Batch, name: str) -> tuple[Column | None, Moved] | None:
        """Return the column of a target of a finished batch, and the boxes and points of that.

        None if a joint transform has no such target, or the target is no column. The geometry of
        images has none.
        """
        reader = self.reader
        if reader is None or name not in reader.joint.targets:
            return None
        if reader.joint.targets[name].kind == "geometry":
            assert batch.moved is not None
            return None, batch.moved
        column = self._further.get(reader.column(name))
        if not isinstance(column, ColumnPipeline):
            return None
        values = column.image(batch.further[reader.column(name)])
        assert values is not None
        assert batch.moved is not None
        return values, batch.moved

    def samples(self, batch: Batch, field: str = "image") -> list[Any]:
        """Return a field of each sample of a finished batch."""
        if field == "image":
            assert not isinstance(self._first, LabelPipeline)
            return self._first.samples(batch)
        if self.reader is not None and (target := self.target(batch, field)) is not None:
            return self.reader.samples(field, *target)
        further, of_field = self._further[field], batch.further[field]
        found: list[Any] = further.samples(of_field)
        for slot in batch.lacking.get(field, ()):
            found[slot] = None
        return found

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


class SizedPipelines(Pipelines):
    """Pipelines of batches of several sizes, by size class; all of the same fields."""

    def __init__(self, several: Sequence[Pipelines]) -> None:
        self._several = several
        self.reader = several[0].reader

    def begin(self, planned: Planned, key: int) -> Batch:
        """See `Pipeline.begin`."""
        return self._several[planned.size].begin(planned, key)

    def advance(self, batch: Batch) -> None:
        """See `Pipeline.advance`."""
        self._of(batch).advance(batch)

    def ready(self, batch: Batch) -> bool:
        """See `Pipeline.ready`."""
        return self._of(batch).ready(batch)

    def finish(self, batch: Batch, deadline: float | None = None) -> dict[int, FastdataError]:
        """See `Pipeline.finish`."""
        return self._of(batch).finish(batch, deadline)

    def image(self, batch: Batch, field: str = "image") -> Any:
        """See `Pipelines.image`."""
        return self._of(batch).image(batch, field)

    def target(self, batch: Batch, name: str) -> tuple[Column | None, Moved] | None:
        """See `Pipelines.target`."""
        return self._of(batch).target(batch, name)

    def samples(self, batch: Batch, field: str = "image") -> list[Any]:
        """See `Pipelines.samples`."""
        return self._of(batch).samples(batch, field)

    def cancel(self, batch: Batch) -> None:
        """See `Pipeline.cancel`."""
        self._of(batch).cancel(batch)

    def close(self) -> None:
        """See `Pipeline.close`."""
        for one in self._several:
            one.close()

    def _of(self, batch: Batch) -> Pipelines:
        return self._several[batch.planned.size]


def open_pipelines(
    source: Source,
    fields: Sequence[str],
    decoder: Callable[[Any, str, FetchField | None], Any],
    engine: Engine | None,
    remote: RemotePass | None,
    single: bool,
    reader: TargetReader | None,
) -> Pipelines:
    """Return the pipelines of some fields; see `Pipelines`, and `BlobPipeline` for the engine.

    ``decoder`` makes the pipeline of a field of images or masks. ``remote`` is None for a local
    source.
    """

    def fetch_of(name: str) -> FetchField | None:
        return None if remote is None else partial(remote.fetch, field=name)

    first: Pipeline | LabelPipeline = LabelPipeline(source, fields)
    if "image" in fields:
        first = decoder(source, "image", fetch_of("image"))
    further: dict[str, FurtherPipeline] = {}
    paints = reader is not None and MASKS in fields and bool(reader.outline_columns)
    if reader is not None:
        others = reader.outline_columns if paints else []
        fields = [*fields, *reader.moved_columns, *others]
    for one in source.fields:
        name, kind = one.name, one.kind
        if name not in fields or one in IMAGE_AND_LABEL:
            continue
        if kind == "column":
            further[name] = ColumnPipeline(source, name)
        elif kind == "blob":
            own = FieldSource(source, name)
            further[name] = BlobPipeline(own, engine, fetch_of(name))
        else:
            further[name] = decoder(FieldSource(source, name), name, fetch_of(name))
    if paints:
        assert not isinstance(first, LabelPipeline)
        further[MASKS] = first.masks()
    return Pipelines(first, further, single, reader)


def blobs_among(source: Source, fields: Sequence[str]) -> list[str]:
    """Return the names of images and blobs among some fields."""
    return [one.name for one in source.fields if one.kind in BLOBS and one.name in fields]

"""Protocol of a batch's fields, and what they share: the batch, its stages and the resources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from concurrent.futures import Executor, wait
from dataclasses import dataclass, field
from enum import IntEnum
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from torch.utils.data import default_collate

from fastdata.errors import FastdataError, without_frames
from fastdata.executors import Waitable, await_done
from fastdata.remote.ranges import attach_fetched, raise_outage
from fastdata.storage.field_source import MissingError

if TYPE_CHECKING:
    from fastdata.decode.engine import Engine
    from fastdata.loading.fields.buffers import BufferPool
    from fastdata.loading.fields.draw import Draw
    from fastdata.loading.fields.readable import Readable
    from fastdata.loading.fields.stats import Counters
    from fastdata.plan.schedule import Planned
    from fastdata.remote.prefetch import RemotePass
    from fastdata.storage.source import BlobColumn, Source


class Stage(IntEnum):
    """Stages of a field of a batch, in their order; a field skips those that it does not need."""

    FETCHING = 0  # its bytes or values are read, from a server or from the index
    PROBING = 1  # sizes are read from files
    DRAWING = 2  # the geometry of the images that it follows is not drawn yet
    READING = 3  # bytes are read for a decoder other than the core
    DECODING = 4  # threads of the core read, decode or paint
    ALONE = 5  # single samples are decoded by Python threads; `BatchField.finish` collects them
    DONE = 6


class Job(Waitable, Protocol):
    """Work of a stage, done by other threads."""

    def done(self) -> bool:
        """Return whether it is done."""

    def cancel(self) -> None:
        """Cancel what has not begun."""


class Jobs:
    """Several jobs as one; the collection may grow."""

    def __init__(self, jobs: Collection[Any]) -> None:
        self._jobs = jobs

    def done(self) -> bool:
        """See `Job.done`."""
        return all(job.done() for job in self._jobs)

    def wait(self, timeout: float | None = None) -> bool:
        """See `Job.wait`."""
        return all(job.wait(timeout) for job in self._jobs)

    def cancel(self) -> None:
        """See `Job.cancel`."""
        for job in tuple(self._jobs):  # another thread may add to them
            job.cancel()


class Futures(Jobs):
    """Tasks of an executor (`concurrent.futures.Future`) as one job; the collection may grow."""

    def wait(self, timeout: float | None = None) -> bool:
        """See `Job.wait`."""
        return not wait(self._jobs, timeout).not_done


@dataclass
class Context:
    """Resources that the fields of a pass share.

    Attributes:
        readable: The dataset.
        source: Its opened source.
        engine: Decode threads; None: the consumer's thread does their work.
        pool: Memory of the first images; other fields take pools of their own from it.
        helpers: Threads that decode what the core declines.
        counters: Statistics of the pass.
        remote: Prefetcher of the pass's bytes; None for a local source.
        single: Whether samples are delivered, rather than batches. A missing further image is then
            None; in a batch, it is an error of its sample.
        as_torch: Whether values are delivered as torch's ``default_collate`` makes them.
        warned_fallback: Set once a sample that Pillow decodes was warned of.
    """

    readable: Readable
    source: Source
    engine: Engine | None
    pool: BufferPool
    helpers: Executor
    counters: Counters
    remote: RemotePass | None = None
    single: bool = False
    as_torch: bool = False
    warned_fallback: Event = field(default_factory=Event)

    def start(self, job: Any) -> Any:
        """Start work of the core, in its decode threads or in this one; return it."""
        if self.engine is None:
            job.run()
        else:
            self.engine.work(job)
        return job

    def collate(self, values: list[Any]) -> Any:
        """Return values as torch collates them in samples."""
        if self.readable.keys:
            return default_collate([{"": value} for value in values])[""]
        return default_collate([(value,) for value in values])[0]  # strings become a tuple


@dataclass(eq=False)
class FieldState:
    """State of one field of a batch.

    Attributes:
        job: The work of the stage; None if there is nothing to wait for.
        failed: Errors of samples, by their slot in the batch.
        error: Error of the batch as a whole, which `BatchField.finish` raises.
        lacking: Slots of samples that lack an image of this field.
        samples: The value of each sample, once one was asked for.
    """

    stage: Stage = Stage.FETCHING
    job: Job | None = None
    failed: dict[int, FastdataError] = field(default_factory=dict)
    error: FastdataError | None = None
    lacking: set[int] = field(default_factory=set)
    samples: list[Any] | None = None

    def fail(self, error: FastdataError) -> None:
        """Keep the error for the batch's turn, when `BatchField.finish` raises it."""
        self.error, self.stage, self.job = without_frames(error), Stage.DONE, None


@dataclass(eq=False)
class Batch:
    """Batch under way.

    Attributes:
        planned: Its samples.
        key: Key of the epoch's random numbers.
        states: State of each field.
        columns: Columns that were read with the rows of its images.
        draw: Geometry of its images, which other fields follow; None without images.
        advancing: The fields that `BatchField.advance` may start stages of.
    """

    planned: Planned
    key: int
    states: dict[BatchField, Any] = field(default_factory=dict)
    columns: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    draw: Draw | None = None
    advancing: list[BatchField] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.planned.indices)


class BatchField(ABC):
    """Field of the batches of a pass.

    A `Pipeline` calls it in the consumer's thread, for each batch in this order:

    1. `begin`, once: start what needs no other field.
    2. `advance`, any number of times: start each next stage whose turn has come; never wait.
    3. `finish`, once: wait, and return the errors of samples. It does not return before `finish`
       of the fields before it in the pipeline.
    4. `clear` or `patch`, for bad samples.
    5. `deliver`, or `value` for each sample.

    `begin` and `advance` keep FastdataErrors of the batch as a whole for `finish`. `cancel` may be
    called from any thread, at any time. A subclass implements `_begin` and `_proceed`, if it has
    stages, `deliver`, and `_values` or `value`.
    """

    #: Whether delivered tensors already are where the images are.
    in_place = False
    _state_type = FieldState

    def __init__(self, name: str, context: Context) -> None:
        self.name, self._context = name, context

    def begin(self, batch: Batch) -> None:
        """Start to read the field's values of a batch."""
        state = batch.states[self] = self._state_type()
        try:
            self._begin(batch, state)
        except FastdataError as error:
            state.fail(error)

    def advance(self, batch: Batch) -> bool:
        """Start the next stage, if the work of the stage before it is done.

        Return whether a later call may start another.
        """
        state = batch.states[self]
        job = state.job
        if job is not None and not job.done():
            return True
        try:
            # Work that this starts may be done at once, and is left to the next call: later stages
            # of batches start in the batches' order.
            while state.stage < Stage.ALONE and state.job is job:
                state.job = None
                self._proceed(batch, state, job)
                job = None
        except FastdataError as error:
            state.fail(error)
        return state.stage < Stage.ALONE  # type: ignore[no-any-return]

    def ready(self, batch: Batch) -> bool:
        """Return whether `finish` would return at once, as of the last `advance`."""
        state = batch.states[self]
        waits = state.job is not None and not state.job.done()
        return state.stage is Stage.DONE or (state.stage is Stage.ALONE and not waits)

    def finish(self, batch: Batch, deadline: float | None = None) -> dict[int, FastdataError]:
        """Wait for the values; return errors of samples that have none, by slot.

        Raise TimeoutError after the deadline, by `time.monotonic`; DatasetError if the index is
        damaged; OutageError if the server has not answered for too long.
        """
        state = batch.states[self]
        if state.error is not None:
            raise state.error
        while state.stage is not Stage.DONE:
            if state.job is not None:
                await_done(state.job, deadline)
            job, state.job = state.job, None
            self._proceed(batch, state, job)
        raise_outage(state.failed)
        if self._context.single and self.name != "image":
            missing = {slot for slot, error in state.failed.items() if type(error) is MissingError}
            state.lacking = missing
            return {slot: state.failed[slot] for slot in state.failed.keys() - missing}
        return state.failed  # type: ignore[no-any-return]

    @abstractmethod
    def deliver(self, batch: Batch) -> Any:
        """Return the values of a finished batch as the loader delivers them."""

    def value(self, batch: Batch, slot: int) -> Any:
        """Return the value of one sample of a finished batch; tensors are views of the batch."""
        state = batch.states[self]
        if slot in state.lacking:
            return None
        if state.samples is None:
            state.samples = self._values(batch)
        return state.samples[slot]

    def clear(self, batch: Batch, slots: list[int]) -> None:  # noqa: B027, most have no pixels
        """Make the pixels of bad samples zeros; leave other values."""

    def patch(self, batch: Batch, other: Batch, to: list[int], good: list[int]) -> None:
        """Take the samples at places ``good`` of another finished batch for the slots ``to``."""
        lacking, theirs = batch.states[self].lacking, other.states[self].lacking
        lacking.difference_update(to)
        lacking.update(slot for slot, at in zip(to, good, strict=True) if at in theirs)

    def cancel(self, batch: Batch) -> None:
        """Cancel what has not begun; another thread may be working on the batch."""
        state = batch.states.get(self)
        job = None if state is None else state.job
        if job is not None:
            job.cancel()

    def close(self) -> None:  # noqa: B027, most have nothing to free
        """Free resources; all batches were finished or cancelled."""

    def _begin(self, batch: Batch, state: Any) -> None:
        """Start the first stage of a batch; by default, there is none."""
        state.stage = Stage.DONE

    def _proceed(self, batch: Batch, state: Any, job: Any) -> None:
        """End the state's stage, whose job is done, and start the next one.

        Leave the stage `Stage.ALONE` in `finish` only.
        """
        raise NotImplementedError

    def _values(self, batch: Batch) -> list[Any]:
        """Return the value of each sample of a finished batch."""
        raise NotImplementedError


@dataclass(eq=False)
class EncodedState(FieldState):
    """State of a field whose values are encoded bytes; ``blobs`` say where these lie."""

    blobs: BlobColumn = None  # type: ignore[assignment]


class EncodedField(BatchField):
    """Field whose values are encoded bytes, which are fetched first if they are remote."""

    def __init__(self, name: str, context: Context, source: Source) -> None:
        super().__init__(name, context)
        self._source = source
        # Fetching has checked remote bytes.
        self._check = source.capabilities.local or source.capabilities.partly_local

    def _gather(self, batch: Batch, state: Any, columns: Collection[str] = ()) -> None:
        """Look up a batch's blobs, and columns of the same index; start to fetch remote ones."""
        planned, remote = batch.planned, self._context.remote
        state.blobs = None if remote is None else remote.blobs(planned.draws, self.name)
        names = [*(["image"] if state.blobs is None else []), *columns]
        if names:
            rows = self._source.gather(planned.indices, names)
            state.blobs = rows.blobs.get("image", state.blobs)
            batch.columns.update(rows.columns)
        if remote is not None:
            state.job = remote.fetch(state.blobs.extents, planned.draws, self.name)

    def _proceed(self, batch: Batch, state: Any, job: Any) -> None:
        if job is not None:
            rows = batch.planned.indices
            state.failed |= attach_fetched(job.take(), state.blobs.extents, self._source, rows)
        self._begin_reading(batch, state)

    def _fail(self, batch: Batch, slot: int, detail: str, code: str = "") -> None:
        """Keep the error of a sample, which `Source.problem` makes, unless it has one."""
        error = self._source.problem(int(batch.planned.indices[slot]), detail, code)
        batch.states[self].failed.setdefault(slot, error)

    @abstractmethod
    def _begin_reading(self, batch: Batch, state: Any) -> None:
        """Start the stage after `Stage.FETCHING`."""

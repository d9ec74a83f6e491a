"""Protocol of a batch's fields, and what they share: the batch, its states and the resources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from torch.utils.data import default_collate

from fastdata.errors import FastdataError, without_frames
from fastdata.remote.ranges import WRONG_BYTES

if TYPE_CHECKING:
    from fastdata import _native
    from fastdata.executors import InProcess
    from fastdata.loading.fields.buffers import BufferPool
    from fastdata.loading.fields.draw import Draw
    from fastdata.loading.fields.readable import Readable
    from fastdata.loading.fields.stats import Counters
    from fastdata.plan.schedule import Planned
    from fastdata.remote.prefetch import RemotePass
    from fastdata.storage.source import BlobColumn, Source
    from fastdata.threads import Threads


class Job(Protocol):
    """Work of a stage, done by other threads."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for some seconds or until it is done; return whether it is done."""

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


@dataclass
class Context:
    """Resources that the fields of a pass share.

    Attributes:
        readable: The dataset.
        source: Its opened source.
        start: Starts work of the core, in decode threads or in the consumer's.
        pool: Memory of batches.
        helpers: Threads that decode what the core declines.
        counters: Statistics of the pass.
        remote: Prefetcher of the pass's bytes; None for a local source.
        single: Whether samples are delivered, rather than batches. Another field's missing image is
            then None; in a batch, it is an error of its sample.
        as_torch: Whether values are delivered as torch's ``default_collate`` makes them.
        warned_fallback: Set once a sample that Pillow decodes was warned of.
    """

    readable: Readable
    source: Source
    start: Callable[[_native.Work], None]
    pool: BufferPool
    helpers: Threads | InProcess
    counters: Counters
    remote: RemotePass | None = None
    single: bool = False
    as_torch: bool = False
    warned_fallback: Event = field(default_factory=Event)

    def collate(self, values: list[Any]) -> Any:
        """Return values as torch collates them in samples."""
        if self.readable.keys:
            return default_collate([{"": value} for value in values])[""]
        return default_collate([(value,) for value in values])[0]  # strings become a tuple


@dataclass(eq=False)
class FieldState:
    """State of one field of a batch.

    Attributes:
        step: What follows ``job``, called with the batch and this; None once all is done.
        job: Work to wait for before that; None if there is none.
        in_turn: Whether the step waits for the batch's turn.
        failed: Errors of samples, by their slot in the batch.
        error: Error of the batch as a whole, which is raised in its turn.
        lacking: Slots of samples that lack an image of this field.
        samples: The value of each sample, once one was asked for.
    """

    step: Callable[[Batch, Any], None] | None
    job: Job | None = None
    in_turn: bool = False
    failed: dict[int, FastdataError] = field(default_factory=dict)
    error: FastdataError | None = None
    lacking: set[int] = field(default_factory=set)
    samples: list[Any] | None = None

    def after(
        self, job: Job | None, step: Callable[[Batch, Any], None], *, in_turn: bool = False
    ) -> None:
        """Do a step once a job is done, or in the batch's turn if that is later."""
        self.job, self.step, self.in_turn = job, step, in_turn

    def fail(self, error: FastdataError) -> None:
        """Keep the error of the batch as a whole for its turn."""
        self.error, self.step, self.job = without_frames(error), None, None


class Batch:
    """Batch under way.

    Attributes:
        planned: Its samples.
        key: Key of the epoch's random numbers.
        states: State of each field; each begins with `BatchField.begin`.
        columns: Columns that were read with the rows of its images.
        draw: Geometry of its images, which other fields follow; None without images.
        deadline: When to raise TimeoutError, by `time.monotonic`; None for never.
    """

    draw: Draw | None = None
    deadline: float | None = None

    def __init__(self, planned: Planned, key: int, fields: Iterable[BatchField] = ()) -> None:
        self.planned, self.key = planned, key
        self.states: dict[BatchField, Any] = {one: one.state_type(one.begin) for one in fields}
        self.columns: dict[str, npt.NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return len(self.planned.indices)


class BatchField(ABC):
    """Field of the batches of a pass.

    A `Pipeline` calls it in the consumer's thread, for each batch in this order:

    1. `begin`: start what needs no other field. It names the next step and the job that this
       follows (`FieldState.after`), and so does each step. A step never waits, unless it is to be
       done in the batch's turn: then those of the fields before it in the pipeline are done.
    2. `clear` or `patch`, for bad samples.
    3. `deliver`, or `value` for each sample.

    FastdataErrors of `begin` and of steps are of the batch as a whole. `cancel` may be called from
    any thread, at any time. A subclass implements `begin` and its steps, if it has any, `deliver`,
    and `_values` or `value`.
    """

    #: Whether delivered tensors already are where the images are.
    in_place = False
    state_type = FieldState

    def __init__(self, name: str, context: Context) -> None:
        self.name, self._context = name, context

    def begin(self, batch: Batch, state: Any) -> None:  # noqa: B027, some need nothing
        """Start to make the field's values of a batch."""

    def ready(self, batch: Batch) -> bool:
        """Return whether no step waits for a job."""
        state = batch.states[self]
        if state.step is None:
            return True
        return state.in_turn and (state.job is None or state.job.done())

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

    def _values(self, batch: Batch) -> list[Any]:
        """Return the value of each sample of a finished batch."""
        raise NotImplementedError


@dataclass(eq=False)
class EncodedState(FieldState):
    """State of a field whose values are encoded bytes.

    ``blobs`` say where these lie; ``fetch`` is the request of remote ones, until they are taken.
    """

    blobs: BlobColumn = None  # type: ignore[assignment]
    fetch: Any = None


class EncodedField(BatchField):
    """Field whose values are encoded bytes, which are fetched first if they are remote."""

    def __init__(self, name: str, context: Context, source: Source) -> None:
        super().__init__(name, context)
        self._source = source
        # Fetching has checked remote bytes.
        self._check = source.capabilities.local or source.capabilities.partly_local

    def _gather(self, batch: Batch, state: Any) -> None:
        """Look up a batch's blobs; start to fetch remote ones."""
        planned, remote = batch.planned, self._context.remote
        if remote is None:
            state.blobs = self._source.gather(planned.indices).blobs["image"]
        else:
            state.blobs, state.fetch = remote.fetch(planned.draws, self.name)

    def _attach(self, batch: Batch, state: Any) -> None:
        """Attach fetched bytes to their extents; keep the errors of other samples."""
        if state.fetch is not None:
            for slot, error in state.fetch.attach(state.blobs.extents).items():
                row = int(batch.planned.indices[slot])
                if error is None:
                    state.failed[slot] = self._source.problem(row, WRONG_BYTES, "changed")
                else:
                    what = f"sample {row} ({self._source.key(row)}): {error.what}"
                    state.failed[slot] = type(error)(what, error.hint)
            state.fetch = None

    def _fail(self, batch: Batch, slot: int, detail: str, code: str = "") -> None:
        """Keep the error of a sample, which `Source.problem` makes, unless it has one."""
        error = self._source.problem(int(batch.planned.indices[slot]), detail, code)
        batch.states[self].failed.setdefault(slot, error)

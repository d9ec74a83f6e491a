"""One pass over a loader on the native path."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data._utils.pin_memory import pin_memory

from fastdata.device.delivery import BatchIterator, after_fork, transformed
from fastdata.device.transfer import map_tensors
from fastdata.errors import FastdataError, SampleError, called, warn
from fastdata.executors import end_helpers
from fastdata.loading.fields.field import Batch
from fastdata.loading.fields.pipeline import Pipeline
from fastdata.loading.seeding import seeded
from fastdata.plan.draws import child
from fastdata.plan.position import LatestPass, PassProgress
from fastdata.plan.schedule import BatchSchedule
from fastdata.text import human_count

if TYPE_CHECKING:
    from fastdata.loading.arguments import Arguments


@dataclass
class OpenedPass:
    """Pipeline, schedule and settings of an opened pass on the native path.

    ``length`` is the number of batches, None if unknown. ``close`` is called once, when the pass
    ends.
    """

    pipeline: Pipeline
    schedule: BatchSchedule
    key: int
    config: Arguments
    progress: PassProgress
    length: int | None
    close: Callable[[], None]


class NativeIterator(BatchIterator):
    """One pass on the native path: an iterator of batches in order, prefetched.

    Python threads decode only images that the core declines. The consumer's own thread plans a
    batch in a fraction of a millisecond when it takes one; decode threads need no interpreter.

    Args:
        begin: Opens the pass where it begins now; returns None if no batches are left of it. Its
            arguments are the pass as it was opened before, and whether its first batch is taken.
        length: Returns the number of batches if it began now; None if unknown.
        latest: Gets the progress of this pass with each batch that it delivers.
    """

    def __init__(
        self,
        begin: Callable[[OpenedPass | None, bool], OpenedPass | None],
        length: Callable[[], int | None],
        latest: LatestPass,
    ) -> None:
        self._begin: Callable[[OpenedPass | None, bool], OpenedPass | None] | None = begin
        self._opened: OpenedPass | None = None
        self._length, self._latest = length, latest
        # Two threads that take batches from one iterator must not wait for the same one.
        self._taking = threading.RLock()
        self._close: Callable[[], None] | None = _nothing
        self._process = os.getpid()
        self._under_way: deque[Batch] = deque()
        self._late: Exception | None = None
        self._bad_named: list[str] = []
        _LIVE.add(self)

    def _open(self, begins: bool) -> None:
        """Prepare the pass where it begins now, unless it has begun; ``begins``: it does."""
        if self._begin is None or self._close is None:
            return
        before, opened = self._opened, self._begin(self._opened, begins)
        if before is not None and opened is not before:
            self._cancel_all()
            before.close()
        self._opened = opened
        if begins:
            self._begin = None
            self._length = lambda: 0 if opened is None else opened.length
        if opened is before and opened is not None:
            return
        self._late = None
        if opened is None:
            is_closed = begins or self._close is None
            self._close = None if is_closed else _nothing
            return
        self._pipeline, self._schedule, self._key = opened.pipeline, opened.schedule, opened.key
        self._config, self._progress = opened.config, opened.progress
        context = opened.pipeline.context
        self._readable, self._counters = context.readable, context.counters
        self._own_collate = opened.config.own_collate(self._readable)
        self._mixes = opened.config.mixes_bytes and self._own_collate is None
        self._pins = context.pool.pinned
        is_closed, self._close = self._close is None, opened.close
        if is_closed:  # by another thread, meanwhile
            self.close()

    def __len__(self) -> int:
        length = self._length()
        if length is None:
            raise TypeError("the sampler that these batches come from has no length")
        return length

    def __next__(self) -> Any:
        if self._close is None:
            raise _closed()
        if os.getpid() != self._process:
            raise after_fork()
        with self._taking:
            self._open(begins=True)
            if self._close is None:
                raise _closed()
            config = self._config
            began, taken, result = time.perf_counter(), None, None
            assembling = False
            try:
                while taken is None and self._top_up(max(config.prefetch, 1)):
                    batch = self._under_way[0]
                    try:
                        batch.deadline = self._deadline()
                        self._pipeline.advance(batch, wait=True)
                        errors = self._pipeline.errors(batch)
                    except FastdataError:  # of the batch as a whole
                        self._deliver(batch)
                        self._pipeline.cancel(batch)
                        batch.states.clear()  # the error refers to this frame
                        raise
                    self._deliver(batch)
                    taken = self._settled(batch, errors)
                if taken is None and self._late is not None:
                    late, self._late = self._late, None
                    raise late
                if taken is not None:
                    # The threads go on with this while the consumer works.
                    self._top_up(config.prefetch)
                    assembling = True
                    result = self._assemble(*taken)
            except BaseException as error:
                if self._close is None and isinstance(error, Exception):
                    raise _closed() from None  # by another thread, meanwhile
                # An error of a sample, or of a user's function, costs its batch only; anything else
                # (Ctrl-C) ends the iteration.
                users = assembling and isinstance(error, Exception)
                if not users and not isinstance(error, FastdataError):
                    self.close()
                if isinstance(error, TimeoutError) and not users:
                    # torch's own words
                    what = f"DataLoader timed out after {config.timeout} seconds"
                    raise RuntimeError(what) from None
                raise
            finally:
                self._counters.wait += time.perf_counter() - began
            if self._close is None:
                raise _closed()
            if taken is None:
                self._finish()
                raise StopIteration
            return result

    def ready(self) -> bool:
        """Return whether ``next`` would return at once; start decoding what can be decoded.

        Always true without decode threads: then ``next`` itself decodes.
        """
        if os.getpid() != self._process:
            return True
        with self._taking:
            self._open(begins=False)
            if self._opened is None or self._close is None or not self._config.prefetch:
                return True
            try:
                self._top_up(self._config.prefetch)
                return not self._under_way or self._pipeline.ready(self._under_way[0])
            except BaseException as error:
                if self._close is None and isinstance(error, Exception):
                    return True  # closed by another thread, meanwhile
                self.close()  # as where `next` fails so
                raise

    def _deliver(self, batch: Batch) -> None:
        self._under_way.popleft()
        self._progress.position = batch.planned.position
        self._progress.left -= 1
        # The pass whose ``next`` ran last decides the loader's state.
        self._latest.progress = self._progress

    def _deadline(self) -> float | None:
        timeout = self._config.timeout
        return time.monotonic() + timeout if timeout > 0 else None

    def _top_up(self, ahead: int) -> bool:
        """Begin batches ahead; return whether one is under way."""
        for batch in self._under_way:
            self._pipeline.advance(batch)
        while len(self._under_way) < ahead and self._late is None:
            try:
                planned = self._schedule.take()
            except Exception as error:
                self._late = error  # it comes after the batches before it
                break
            if planned is None:
                break
            batch = Batch(planned, self._key, self._pipeline.fields)
            self._under_way.append(batch)
            self._pipeline.advance(batch)
            if self._close is None:  # by another thread, meanwhile
                self._cancel_all()
                break
        return bool(self._under_way)

    def _settled(
        self, batch: Batch, errors: dict[int, FastdataError]
    ) -> tuple[Batch, npt.NDArray[np.bool_] | None] | None:
        """Apply ``on_error`` to a decoded batch; return it and its valid samples, for "zero".

        Return None if no sample is left of it.
        """
        valid, kept = None, batch
        if self._config.on_error == "drop":
            without = self._without(batch, errors)
            if without is None:
                return None
            kept, errors = without, {}
        elif errors:
            valid = self._handle(batch, errors)
        elif self._config.on_error == "zero":
            valid = np.ones(len(batch), np.bool_)
        planned, counters = kept.planned, self._counters
        # Count a slot once, however many of its substitutes are bad.
        counters.bad_samples += len(planned.tries.keys() | errors.keys())
        if len(planned.numbers):
            self._progress.batch_key = planned.batch_key(self._key)
        counters.samples += len(kept)
        counters.batches += 1
        return kept, valid

    def _handle(
        self, batch: Batch, errors: dict[int, FastdataError]
    ) -> npt.NDArray[np.bool_] | None:
        """Apply ``on_error``; return which samples are valid, for "zero"."""
        if self._config.on_error == "raise":
            batch.states.clear()  # the error refers to this frame
            raise next(iter(errors.values()))
        self._name(errors)
        if self._config.on_error == "zero":
            self._pipeline.clear(batch, list(errors))
            valid = np.ones(len(batch), np.bool_)
            valid[list(errors)] = False
            return valid
        self._refill(batch, errors)
        return None

    def _without(self, batch: Batch, errors: dict[int, FastdataError]) -> Batch | None:
        """Return a batch without its bad samples, decoded again; None if all are bad."""
        kinds = {kind: {**decoders} for kind, decoders in self._counters.kinds.items()}
        while errors:
            self._name(errors)
            self._schedule.exclude(batch.planned.indices[list(errors)].tolist())
            if len(errors) == len(batch):
                self._counters.bad_samples += batch.planned.dropped + len(errors)
                return None
            planned = self._schedule.without(batch.planned, list(errors))
            batch, errors = self._pipeline.decode(planned, self._key, self._deadline())
            self._counters.kinds = kinds  # samples decoded again count once
        self._counters.bad_samples += batch.planned.dropped
        return batch

    def _refill(self, batch: Batch, errors: dict[int, FastdataError]) -> None:
        """Fill the slots of bad samples with substitutes."""
        schedule, planned = self._schedule, batch.planned
        schedule.exclude(planned.indices[list(errors)].tolist())
        while errors:
            slots = list(errors)
            try:
                draws = schedule.substitutes(planned, slots)
            except SampleError as error:
                cause = errors[slots[0]]
                raise SampleError(f"{error.what}; the last was: {cause.what}", cause.hint) from None
            again = schedule.numbering.plan(draws, size=planned.size)
            patch, failed = self._pipeline.decode(again, self._key, self._deadline())
            self._name(failed)
            schedule.exclude(patch.planned.indices[list(failed)].tolist())
            good = [at for at in range(len(slots)) if at not in failed]
            to = [slots[at] for at in good]
            self._pipeline.patch(batch, patch, to, good)
            schedule.numbering.place(planned, to, draws[good])
            errors = {slots[at]: error for at, error in failed.items()}

    def _name(self, errors: dict[int, FastdataError]) -> None:
        """Keep the first bad samples for the warning at the epoch's end."""
        room = _NAMED - len(self._bad_named)
        self._bad_named += [error.what for error in list(errors.values())[: max(room, 0)]]

    def _assemble(self, batch: Batch, valid: npt.NDArray[np.bool_] | None) -> Any:
        """Return the batch for the user."""
        config = self._config
        if self._own_collate is not None:
            return self._collated(self._own_collate, batch)
        values = {}
        with self._drawing_targets():
            for name, one in self._pipeline.delivered.items():
                value = one.deliver(batch)
                values[name] = value if one.in_place else self._moved(value)
        if self._mixes:
            mix: Any = config.collate_fn
            samples = list(zip(values["image"].numpy(), values["label"], strict=True))
            with seeded(self._progress.batch_key):
                mixed = called(mix, samples)
            values["image"], values["label"] = map(self._moved, mixed)
        # The fields of a batch are named, or of the form that the transform has.
        result: Any = values
        joint = self._pipeline.joint
        if config.fields is None and self._readable.keys:
            result = self._readable.sample([*values.values()])
        elif config.fields is None:
            result = list(values.values() if joint is None else joint.sample(values))
        if valid is not None:
            mark = self._moved(torch.from_numpy(valid))
            result = [*result, mark] if isinstance(result, list) else {**result, "valid": mark}
        if config.host_transform is None:
            return result
        with seeded(self._progress.batch_key):
            return transformed(result, config.host_transform)

    def _collated(self, collate: Callable[[list[Any]], Any], batch: Batch) -> Any:
        """Call a user's ``collate_fn`` with a batch's samples, as torch would give them."""
        with self._drawing_targets():
            samples = [self._pipeline.sample(batch, slot) for slot in range(len(batch))]
        with seeded(self._progress.batch_key):
            result = transformed(called(collate, samples), self._config.host_transform)
        return pin_memory(result) if self._pins else result  # type: ignore[no-untyped-call]

    def _drawing_targets(self) -> AbstractContextManager[None]:
        """Return the context for the batch's ``target_transform``: with a seed, its own draws."""
        if self._config.seed is None or not self._readable.transforms_targets:
            return nullcontext()
        return seeded(child(self._progress.batch_key, _TARGETS))

    def _moved(self, values: Any) -> Any:
        """Move tensors to where the images are; return other values unchanged."""
        return map_tensors(values, torch.Tensor.pin_memory) if self._pins else values

    def _finish(self) -> None:
        """End the epoch; warn of bad samples."""
        self._pipeline.context.source.end_epoch()
        self.close()
        bad = self._counters.bad_samples
        if not bad:
            return
        named = "".join(f"\n  {what}" for what in self._bad_named)
        more = bad - len(self._bad_named)
        if not named:
            more, named = 0, " named in an earlier epoch's warning"
        warn(
            f"{human_count(bad, 'sample')} could not be decoded and "
            f"{'was' if bad == 1 else 'were'} {_OUTCOMES[self._config.on_error]}:{named}"
            + (f"\n  and {more} more" if more > 0 else "")
        )

    def close(self) -> None:
        """Stop decoding, free the batches under way and end the iteration."""
        close, self._close = getattr(self, "_close", None), None
        if close is None or close is _nothing:
            return
        self._counters.ended = time.perf_counter()
        if os.getpid() == self._process:
            # Another thread may be in the middle of `_top_up`: it sees that this is closed, and
            # gives up what it has begun since.
            try:
                self._cancel_all()
            finally:
                close()

    def _cancel_all(self) -> None:
        while True:
            try:
                batch = self._under_way.popleft()
            except IndexError:
                return
            self._pipeline.cancel(batch)

    def __del__(self) -> None:
        self.close()


_LIVE: weakref.WeakSet[NativeIterator] = weakref.WeakSet()

#: The thread that ends the interpreter, once it does.
_ender: int | None = None


def _nothing() -> None:
    """Close a pass that was not opened."""


def _closed() -> StopIteration:
    """Return the exception for an iterator that was closed.

    While the interpreter ends, hold a daemon thread here for some seconds. It would drop its
    batches next, and torch aborts the process if a thread that frees a tensor gets no GIL. The
    wait is limited, because an atexit function may be waiting for the thread.
    """
    if _ender is not None and _ender != threading.get_ident():
        time.sleep(_PATIENCE)
    return StopIteration()


#: Seconds for the interpreter to end, once iterators are closed.
_PATIENCE = 5.0


@atexit.register
def _close_all() -> None:
    """Stop decoding while the interpreter still works."""
    global _ender
    _ender = threading.get_ident()
    for iterator in list(_LIVE):
        iterator.close()
    end_helpers()


#: Child of a batch's key, of its labels; `seeded` has the first ones, a `DeviceLoader` number 4.
_TARGETS = 5

#: What `on_error` does with bad samples, in words.
_OUTCOMES = {"skip": "replaced by others", "drop": "left out", "zero": "zeroed"}

#: Bad samples that are named in the warning at an epoch's end.
_NAMED = 10

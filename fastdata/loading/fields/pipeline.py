"""Pipeline of batches: look rows up, crop, decode, fall back where the core declines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.decode.decoders import NATIVE, PILLOW
from fastdata.decode.engine import Engine, PendingBatch, Reading
from fastdata.decode.fallback import Outcome, Step, Verdict, decode_alone
from fastdata.decode.jpeg import jpeg_info
from fastdata.decode.pillow import describe_kind
from fastdata.errors import (
    FallbackWarning,
    FastdataError,
    SampleError,
    warn,
)
from fastdata.executors import await_done, result_of
from fastdata.loading.fields.batch import (
    Batch,
    OneOfBatch,
    Settings,
    View,
    draw_joint,
    too_small,
)
from fastdata.loading.fields.buffers import BatchMemory, BufferPool
from fastdata.loading.fields.painted import OutlinePipeline
from fastdata.loading.fields.stats import Counters
from fastdata.plan.draws import child, sample_keys
from fastdata.plan.schedule import Indices, Numbering, Planned
from fastdata.remote.ranges import Fetches, attach_fetched, raise_outage
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.fields import IMAGE_AND_LABEL, MASKS
from fastdata.storage.learnt import Stamped
from fastdata.storage.source import NOT_NATIVE, BlobColumn, Source
from fastdata.transforms import geometry
from fastdata.transforms.geometry import ANY_SIZE, Cuts

if TYPE_CHECKING:
    from fastdata.remote.prefetch import FetchField
    from fastdata.storage.index import ExtentTable
    from fastdata.transforms.compile import Program

#: If more than one of so many samples is declined, later batches are gathered before they are
#: decoded. Other decoders then start at once: a dataset of half PNGs loads an eighth faster.
_FEW = 16

_NO_CUTS = np.empty(0, _native.CUT)


def plan_fetches(
    settings: Settings, numbering: Numbering, key: int, extents: _native.Extents, draws: Indices
) -> Fetches:
    """Return the ranges to fetch of large images that crops need only in part, by slot."""
    large = extents.lengths >= _native.PARTIAL_BYTES
    by_boxes = (step.needs_boxes for program in settings.recipe.programs for step in program.steps)
    if not np.count_nonzero(large) or any(by_boxes) or settings.part_of is not None:
        return {}
    sized = (extents.widths > 0) & (extents.heights > 0)  # others are damaged
    slots = np.flatnonzero(large & sized & (extents.seekable > 0))
    if not len(slots):
        return {}
    planned = numbering.plan(draws[slots])
    boxes = []
    for number, program in enumerate(settings.recipe.programs):
        keys = sample_keys(key, planned.numbers, number, planned.occurrences)
        cuts = program.draw(extents.widths[slots], extents.heights[slots], keys)
        # Fetch whole files for images that Pillow decodes or whose crop failed.
        whole = cuts["too_small"] > 0
        boxes.append(np.where(whole[:, None], np.int32(0), cuts["box"]))
    rows = extents.plan_fetches(slots.tolist(), boxes).tolist()
    return {slot: row for slot, row in zip(slots.tolist(), rows, strict=True) if row[0]}


def _options_of(programs: Sequence[Program]) -> list[dict[str, Any]]:
    return [program.batch_options() for program in programs]


@contextmanager
def _keeping_error(batch: Batch) -> Iterator[None]:
    """Keep an error for the batch's turn, when it is raised."""
    try:
        yield
    except FastdataError as error:
        batch.error = error


class Pipeline:
    """Pipeline that begins and finishes batches, in the consumer's thread.

    If the index is on this machine, decode threads look rows up and draw crops, and the consumer
    handles declined samples afterwards. Else it gathers sizes and draws crops before decoding.
    Without an engine, the consumer's thread decodes; ``helpers`` decode what the core declines.
    """

    #: Whether decode threads may look rows up by themselves.
    looks_up = True

    def __init__(
        self,
        source: Source,
        settings: Settings,
        pool: BufferPool,
        engine: Engine | None,
        helpers: Executor,
        counters: Counters,
        fetch: FetchField | None = None,
    ) -> None:
        self._fetch = fetch
        # Fetching has checked remote samples.
        self._check = fetch is None or source.capabilities.partly_local
        self._source = source
        self._settings = settings
        self._pool = pool
        self._engine = engine
        self._helpers = helpers
        self._counters = counters
        # Memory for images of several sizes is known once their crops are drawn.
        one_size = all(program.one_size for program in settings.recipe.programs)
        looks_up = self.looks_up and one_size and settings.reader is None
        looks_up = looks_up and source.capabilities.local
        self._table = source.table if looks_up else None
        self._fields = [field.name for field in source.fields if field in IMAGE_AND_LABEL]
        programs = settings.recipe.programs
        self._table = None if settings.part_of is not None else self._table
        self._geometries = [geometry.compiled(program.steps) for program in programs]
        self._options = _options_of(programs)

    def masks(self) -> OutlinePipeline:
        """Return the pipeline of masks that are painted beside these images."""
        return OutlinePipeline(self._source, self._settings, self._engine, self._pool.of(MASKS))

    def begin(self, planned: Planned, key: int, further: dict[str, Any] | None = None) -> Batch:
        """Begin a batch, with the epoch's key and the batches of further fields, by name."""
        batch = self._new_batch(planned, key)
        batch.further = further or {}
        try:
            if self._table is not None:
                self._begin_rows(batch, self._table)
                return batch
            blobs, batch.columns = self._source.gather(planned.indices, self._fields)
        except FastdataError as error:
            batch.error = error
            return batch
        batch.gathered = gathered = blobs["image"]
        self._counters.seekable += gathered.extents.count_seekable()
        if self._fetch is None:
            with _keeping_error(batch):
                self._begin(batch)
        else:
            batch.fetch = self._fetch(gathered.extents, planned.draws)
        return batch

    def _begin_rows(self, batch: Batch, table: ExtentTable) -> None:
        """Begin a batch whose rows the decode threads look up, and whose crops they draw."""
        planned, most = batch.planned, self._settings.limits.pixels or 0
        batch.rows = table.rows(planned.indices, planned.numbers, planned.occurrences, most)
        views = []
        for number, options in enumerate(self._options):
            view = View(self._memory(batch, number), _NO_CUTS)
            drawn = self._geometries[number], child(batch.key, number)
            views.append(_native.Rendering(view.memory.array, drawn=drawn, **options))
            batch.views.append(view)
        self._submit(batch, batch.rows, views)

    def _begin(self, batch: Batch) -> None:
        """Begin a batch whose bytes can be read: probe sizes, or decode."""
        gathered = batch.gathered
        # Faster than numpy's all() and any(), which are Python.
        if np.count_nonzero(gathered.widths) < len(batch.planned.indices):
            if self._engine is None:
                batch.probe = _native.ProbeJob(gathered.extents)
                batch.probe.run()
            else:
                batch.probe = self._engine.probe(gathered.extents)
        else:
            self._refuse_large(batch, gathered.widths, gathered.heights)
            self._decode(batch)

    def _refuse_large(
        self, batch: Batch, widths: npt.NDArray[np.int32], heights: npt.NDArray[np.int32]
    ) -> None:
        """Fail the samples beyond the limit of pixels."""
        limits = self._settings.limits
        if limits.pixels is None:
            return
        pixels = np.multiply(widths, heights, dtype=np.int64)
        for slot in np.flatnonzero(pixels > limits.pixels).tolist():
            try:
                limits.check_size(int(widths[slot]), int(heights[slot]))
            except SampleError as error:
                problem = self._source.problem(int(batch.planned.indices[slot]), f"it {error.what}")
                batch.failed.setdefault(slot, SampleError(problem.what, error.hint))

    def _new_batch(self, planned: Planned, key: int) -> Batch:
        return Batch(planned, key)

    def advance(self, batch: Batch) -> None:
        """Begin the next stage of a batch, if the one before is done."""
        with _keeping_error(batch):
            if batch.fetch is not None and batch.fetch.done():
                self._begin_fetched(batch)
            if batch.probe is not None and batch.probe.done():
                self._decode_probed(batch)
            if batch.pending and all(pending.done() for pending in batch.pending):
                self._collect_all(batch)

    def ready(self, batch: Batch) -> bool:
        """Return whether `finish` would return at once, as of the last `advance`."""
        if batch.error is not None:
            return True
        begun = batch.fetch is None and batch.probe is None and not batch.pending
        return begun and all(future.done() for future in batch.slow.values())

    def finish(self, batch: Batch, deadline: float | None = None) -> dict[int, FastdataError]:
        """Wait for a batch; return errors of samples that could not be decoded, by slot.

        Raise TimeoutError after the deadline, by `time.monotonic`; DatasetError if the index is
        damaged; OutageError if the server has not answered for too long.
        """
        if batch.error is not None:
            raise batch.error
        if batch.fetch is not None:
            await_done(batch.fetch, deadline)
            self._begin_fetched(batch)
        if batch.probe is not None:
            await_done(batch.probe, deadline)
            self._decode_probed(batch)
        return self._finish(batch, deadline)

    def _finish(self, batch: Batch, deadline: float | None) -> dict[int, FastdataError]:
        """Finish a batch whose sizes are known."""
        for pending in batch.pending:
            await_done(pending, deadline)
        self._collect_all(batch)
        for slot in sorted(batch.slow):
            found = result_of(batch.slow[slot], deadline)
            if found.error is None:
                self._counters.count(found.kind, found.decoder)
            self._counters.bad_seek_points += found.without_table
            self._source.declined(int(batch.planned.indices[slot]), found.verdict.code)
            if found.error is not None:
                batch.failed.setdefault(slot, found.error)
            elif found.decoder == PILLOW and not self._settings.told_fallback.is_set():
                self._settings.told_fallback.set()
                self._tell_fallback(batch, slot, found)
        for slot, redrawn in batch.redrawn.items():
            assert batch.moved is not None
            batch.moved = batch.moved.patched(redrawn.moved, [slot], [0])
        decoded = None
        if batch.slow or batch.failed:
            decoded = np.ones(len(batch.planned.indices), np.bool_)
            decoded[[*batch.slow, *batch.failed]] = False
        self._count(batch, decoded)
        raise_outage(batch.failed)
        return dict(sorted(batch.failed.items()))

    def _count(
        self, batch: Batch, decoded: npt.NDArray[np.bool_] | None, decoder: str = NATIVE
    ) -> None:
        """Count samples that the core has decoded, all if None; `_finish` counts ``slow``."""
        codes = batch.gathered.encodings
        if decoded is not None:
            codes = codes[decoded]
        found = codes.tobytes()  # counts in less time than an array
        for code in set(found):
            kind = ENCODINGS[code] if code < len(ENCODINGS) else "jpeg"  # -1: not known
            self._counters.count(kind, decoder, found.count(code))

    def _tell_fallback(self, batch: Batch, slot: int, found: Outcome) -> None:
        """Warn of the first sample that Pillow decoded; say why the core did not."""
        if found.verdict.is_damage:
            why = f"the native core finds it damaged: {found.verdict.detail}"
        else:
            try:
                data = batch.gathered.extents.read(slot, check=False)
                why, jpeg = describe_kind(data), jpeg_info(data)
                if jpeg.encoding == "jpeg":
                    reason = found.verdict.detail or jpeg.reason
                else:
                    reason = found.declined
                why = f"it is {'an' if why[0] in 'AEIOaeio' else 'a'} {why}"
                why += f": {reason}" if reason else ""
            except (OSError, ValueError, SampleError):  # its file was removed meanwhile
                why = found.verdict.detail or "the native core cannot"
        index = int(batch.planned.indices[slot])
        words = f"it was decoded by Pillow, which is slower, as {why}"
        warn(
            f"{self._source.problem(index, words).what}. No other sample will be named; "
            "stats().by_pillow counts them.",
            FallbackWarning,
        )

    def _collect_all(self, batch: Batch) -> None:
        """Collect finished jobs, and begin to decode what the core declined."""
        for pending in batch.pending:
            self._collect(batch, pending)
        batch.pending.clear()

    def image(self, batch: Batch) -> Any:
        """Return a finished batch's images: a tensor, or several in the form of `Views`."""
        return self._settings.recipe.image([view.memory.tensor for view in batch.views], True)

    def samples(self, batch: Batch) -> list[Any]:
        """Return the image of each sample of a finished batch, as `image`; views of its memory."""
        tensors = (view.memory.tensor for view in batch.views)
        views = (one if isinstance(one, list) else list(one) for one in tensors)
        return [self._settings.recipe.image(list(one)) for one in zip(*views, strict=True)]

    def cancel(self, batch: Batch) -> None:
        """Cancel a batch."""
        # Another thread may be working on it: read once, and copy, what can change.
        for part in (batch.fetch, batch.probe):
            if part is not None:
                part.cancel()
        for pending in tuple(batch.pending):
            pending.cancel()
        for future in tuple(batch.slow.values()):
            future.cancel()

    def close(self) -> None:
        """Free resources; all batches were finished or cancelled."""

    def _begin_fetched(self, batch: Batch) -> None:
        fetch, batch.fetch = batch.fetch, None
        assert fetch is not None
        extents, indices = batch.gathered.extents, batch.planned.indices
        batch.failed |= attach_fetched(fetch.take(), extents, self._source, indices)
        self._begin(batch)

    def _decode(self, batch: Batch) -> None:
        """Draw crops and begin decoding."""
        drawn, slow = self._draw(batch)
        slow |= batch.gathered.pillow
        skip = slow.view(np.uint8) if np.count_nonzero(slow) else None
        for number, cuts in enumerate(drawn):
            batch.views.append(View(self._memory(batch, number, cuts, slow), cuts))
        self._begin_native(batch, skip)
        if skip is not None:
            for slot in np.flatnonzero(slow).tolist():
                if slot not in batch.failed:
                    self._decode_alone(batch, slot)

    def _draw(self, batch: Batch) -> tuple[list[Cuts], npt.NDArray[np.bool_]]:
        """Return the crops of each view, and the samples that the core must skip."""
        gathered, planned = batch.gathered, batch.planned
        slow = np.zeros(len(planned.indices), np.bool_)
        drawn = []
        for number, program in enumerate(self._settings.recipe.programs):
            keys = sample_keys(batch.key, planned.numbers, number, planned.occurrences)
            if self._settings.reader is None:
                cuts = self._cuts(batch, number, keys)
            else:
                about = self._settings.reader, program, batch, slice(None)
                sizes = gathered.widths, gathered.heights
                cuts, batch.targets, batch.moved, faults = draw_joint(*about, sizes, keys)
                for slot, why in faults.items():
                    error = self._source.problem(int(planned.indices[slot]), why)
                    batch.failed.setdefault(slot, error)
            drawn.append(cuts)
        self._refuse_small(batch, drawn)
        if batch.failed:
            slow[list(batch.failed)] = True
        return drawn, slow

    def _cuts(self, batch: Batch, number: int, keys: npt.NDArray[np.uint64]) -> Cuts:
        """Return the crops of a view."""
        widths, heights = batch.gathered.widths, batch.gathered.heights
        if self._settings.part_of is None:
            return self._settings.recipe.programs[number].draw(widths, heights, keys)
        cuts = np.empty(len(keys), _native.CUT)
        for recipe, which in self._settings.by_part(batch.planned):
            program = recipe.programs[number]
            cuts[which] = program.draw(widths[which], heights[which], keys[which])
        return cuts

    def _refuse_small(self, batch: Batch, drawn: Sequence[Cuts]) -> None:
        """Fail the samples that are too small for a crop."""
        slots = np.arange(len(batch.planned.indices))
        for recipe, which in self._settings.by_part(batch.planned):
            of_part = slots[which]
            for program, cuts in zip(recipe.programs, drawn, strict=True):
                for at, words in program.too_small(cuts[which]).items():
                    slot = int(of_part[at])
                    error = too_small(self._source, int(batch.planned.indices[slot]), words)
                    batch.failed.setdefault(slot, error)

    def _memory(
        self,
        batch: Batch,
        number: int,
        cuts: Cuts = _NO_CUTS,
        slow: npt.NDArray[np.bool_] | None = None,
    ) -> BatchMemory:
        """Return memory for one view of a batch; ``cuts`` and ``slow`` as of `_draw`."""
        program, count = self._settings.recipe.programs[number], len(batch.planned.indices)
        output = program.output
        form = output.dtype, output.channels_last, output.channels
        if program.one_size:
            return self._pool.batch(number, count, program.size, *form)
        if batch.moved is None:
            sizes = program.sizes(cuts)
        else:
            sizes = np.where(cuts["too_small"][:, None] > 0, 1, batch.moved.sizes)
        unknown = (batch.gathered.widths == ANY_SIZE) & (batch.gathered.heights == ANY_SIZE)
        if slow is not None:
            sizes[unknown & slow] = 1
        sizes[list(batch.failed)] = 1
        return self._pool.images(number, sizes, *form)

    def _begin_native(self, batch: Batch, skip: npt.NDArray[np.uint8] | None) -> None:
        """Start decoding all views of the samples that are not skipped."""
        for recipe, which in self._settings.by_part(batch.planned):
            options, others = self._options, skip
            if not isinstance(which, slice):
                options = _options_of(recipe.programs)
                others = (~which).view(np.uint8) if skip is None else skip | ~which
            views = [
                _native.Rendering(view.memory.array, cuts=view.cuts, targets=batch.targets, **one)
                for one, view in zip(options, batch.views, strict=True)
            ]
            self._submit(batch, batch.gathered.extents, views, others)

    def _submit(
        self,
        batch: Batch,
        samples: _native.Extents | _native.Rows,
        views: Sequence[_native.Rendering],
        skip: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        """Start decoding."""
        stride, scans = self._source.capabilities.stride, self._settings.limits.scans
        reading = Reading(skip=skip, stride=stride, check=self._check, scans=scans)
        pending = PendingBatch(samples, views, reading, fallback="never")
        batch.pending.append(pending)
        if self._engine is None:
            pending.run()
        else:
            self._engine.begin(pending)

    def _decode_probed(self, batch: Batch) -> None:
        probe, batch.probe = batch.probe, None
        assert probe is not None
        gathered, indices = batch.gathered, batch.planned.indices
        # Keep the sizes that were known.
        widths, heights = gathered.widths.copy(), gathered.heights.copy()
        encodings = gathered.encodings.copy()
        new = np.flatnonzero(widths == 0)
        widths[new] = np.asarray(gathered.extents.widths)[new]
        heights[new] = np.asarray(gathered.extents.heights)[new]
        encodings[new] = np.asarray(gathered.extents.encodings)[new]
        pillow = gathered.pillow.copy()
        for slot, code, detail, offset in probe.failures():
            index, verdict = int(indices[slot]), Verdict(code, detail, offset)
            if verdict.step() is Step.FAIL:
                batch.failed[slot] = self._source.problem(index, verdict.detail, verdict.code)
            elif not widths[slot]:
                pillow[slot] = True
                self._source.declined(index, verdict.code)
        self._refuse_large(batch, widths, heights)
        unknown = np.flatnonzero(widths == 0)
        # A crop needs some size; it is drawn again once Pillow has read the real one.
        widths[unknown] = heights[unknown] = ANY_SIZE
        known = np.setdiff1d(new, [*unknown.tolist(), *batch.failed])
        found = widths, heights, encodings, gathered.extents.orientations
        self._source.resized(indices[known], *(column[known] for column in found))
        batch.gathered = BlobColumn(
            gathered.extents, widths=widths, heights=heights, pillow=pillow, encodings=encodings
        )
        self._decode(batch)

    def _collect(self, batch: Batch, pending: PendingBatch) -> None:
        """Collect a finished job: its counts, seek points and failures."""
        done = pending.collect()
        self._counters.add_work(done.read_seconds, done.decode_seconds, done.bytes_read)
        if done.built:
            self._counters.built += len(done.built)
            built = [
                (int(batch.planned.indices[slot]), Stamped(table, size, mtime_ns))
                for slot, table, size, mtime_ns in done.built
            ]
            self._source.built(built)
        if batch.rows is not None:
            self._take_rows(batch, batch.rows, pending, len(done.failures))
        for slot, code, detail, offset in done.failures:
            if slot in batch.failed:
                continue
            verdict = Verdict(code, detail, offset)
            if verdict.code in NOT_NATIVE and batch.gathered.pillow[slot]:
                verdict = Verdict()  # the index says so: the image's own kind explains it better
            if verdict.step() is Step.FAIL:
                index = int(batch.planned.indices[slot])
                error = self._source.problem(index, verdict.detail, verdict.code)
                batch.failed.setdefault(slot, error)
            elif slot not in batch.slow:
                self._decode_alone(batch, slot, verdict)

    def _take_rows(
        self, batch: Batch, rows: _native.Rows, pending: PendingBatch, failures: int
    ) -> None:
        """Take the rows that decode threads looked up; fail those that no decoder can crop."""
        batch.rows, extents = None, rows.extents
        self._counters.seekable += extents.count_seekable()
        blobs, batch.columns = self._source.described(extents)
        batch.gathered = gathered = blobs["image"]
        if not failures:
            return
        if failures * _FEW > len(batch.planned.indices):
            self._table = None
        for number, view in enumerate(batch.views):
            view.cuts = pending.cuts(number)
        self._refuse_large(batch, gathered.widths, gathered.heights)
        self._refuse_small(batch, [view.cuts for view in batch.views])

    def _decode_alone(self, batch: Batch, slot: int, verdict: Verdict | None = None) -> None:
        """Start to decode every view of one sample that the core declined."""
        data = None  # read again what was fetched in part
        row = int(batch.planned.indices[slot])
        extents = batch.gathered.extents
        if self._fetch is not None and self._source.is_fetched(row):
            data = None if extents.is_partial(slot) else extents.read(slot, check=False)
        settings = self._settings.of(row)
        sample = OneOfBatch(self._source, settings, batch, slot, data)
        batch.slow[slot] = self._helpers.submit(decode_alone, sample, verdict or Verdict())

"""Field of images: look rows up, draw crops, decode, fall back where the core declines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native
from fastdata.decode.decoders import NATIVE, PILLOW
from fastdata.decode.engine import PendingBatch, ReadOptions
from fastdata.decode.fallback import FallbackStep, Outcome, Verdict, decode_alone
from fastdata.decode.jpeg import jpeg_info
from fastdata.decode.pillow import describe_kind
from fastdata.errors import FallbackWarning, SampleError, warn
from fastdata.loading.fields.alone import DeclinedSample, too_small
from fastdata.loading.fields.columns import ColumnField
from fastdata.loading.fields.draw import Draw, Part
from fastdata.loading.fields.field import (
    Batch,
    Context,
    EncodedField,
    EncodedState,
    Futures,
    Jobs,
    Stage,
)
from fastdata.plan.draws import child, sample_keys
from fastdata.remote.ranges import Fetches
from fastdata.storage.encodings import ENCODINGS, NOT_NATIVE
from fastdata.storage.fields import LABEL
from fastdata.storage.source import (
    BlobColumn,
    ExtentTable,
    Measured,
    Source,
    Stamped,
)
from fastdata.transforms.geometry import ANY_SIZE

if TYPE_CHECKING:
    from fastdata.loading.fields.buffers import BatchMemory
    from fastdata.loading.fields.targets import TargetReader
    from fastdata.plan.schedule import Indices, Numbering, Planned
    from fastdata.storage.source import Column
    from fastdata.transforms.recipe import Recipe

#: If more than one of so many samples is declined, later batches are gathered before they are
#: decoded. Other decoders then start at once: a dataset of half PNGs loads an eighth faster.
_FEW = 16


@dataclass(eq=False)
class ImageState(EncodedState):
    """State of a batch's images.

    Attributes:
        draw: Their geometry.
        views: Memory of each view.
        rows: Rows that decode threads look up, until they have.
        pending: Batches of the core under way.
        alone: Samples that Python threads decode, by slot.
        tensors: Views of each view's memory, by sample, once one was asked for.
    """

    draw: Draw = None  # type: ignore[assignment]
    views: list[BatchMemory] = field(default_factory=list)
    rows: _native.Rows | None = None
    pending: list[PendingBatch] = field(default_factory=list)
    alone: dict[int, Future[Outcome]] = field(default_factory=dict)
    tensors: list[list[Any]] = field(default_factory=list)


class ImageField(EncodedField):
    """Field of images, decoded by the core, or by Python threads where that declines them.

    If the index is on this machine and images have one size, decode threads look rows up and draw
    crops themselves, unless ``gathers_first``. Else the consumer gathers rows and draws first.

    Args:
        recipes: The transform for each size class of batches, compiled.
        reader: Reader of the targets that follow these images, and ``moved`` their columns.
    """

    in_place = True
    #: Whether the consumer gathers rows before they are decoded, even if decode threads could look
    #: them up. Set once many samples of a batch are declined.
    gathers_first = False
    _state_type = ImageState

    def __init__(
        self,
        name: str,
        context: Context,
        source: Source,
        recipes: Sequence[Recipe],
        reader: TargetReader | None = None,
        moved: Sequence[ColumnField] = (),
    ) -> None:
        super().__init__(name, context, source)
        self._recipes, self._reader, self._moved = recipes, reader, moved
        self._table = source.table_of() if source.capabilities.local else None
        first = name == "image"
        self._pool = context.pool if first else context.pool.of(name)
        self._columns = [one.name for one in source.fields if first and one == LABEL]

    def plan_fetches(
        self, numbering: Numbering, key: int, extents: _native.Extents, draws: Indices
    ) -> Fetches:
        """Return the ranges to fetch of large images that crops need only in part, by slot."""
        recipe, large = self._recipes[0], extents.lengths >= _native.PARTIAL_BYTES
        by_boxes = (step.needs_boxes for program in recipe.programs for step in program.steps)
        if not np.count_nonzero(large) or any(by_boxes) or recipe.parts or len(self._recipes) > 1:
            return {}
        sized = (extents.widths > 0) & (extents.heights > 0)  # others are damaged
        slots = np.flatnonzero(large & sized & (extents.seekable > 0))
        if not len(slots):
            return {}
        planned = numbering.plan(draws[slots])
        boxes = []
        for number, program in enumerate(recipe.programs):
            keys = sample_keys(key, planned.numbers, number, planned.occurrences)
            cuts = program.draw(extents.widths[slots], extents.heights[slots], keys)
            # Fetch whole files for images that Pillow decodes or whose crop failed.
            whole = cuts["too_small"] > 0
            boxes.append(np.where(whole[:, None], np.int32(0), cuts["box"]))
        rows = extents.plan_fetches(slots.tolist(), boxes).tolist()
        return {slot: row for slot, row in zip(slots.tolist(), rows, strict=True) if row[0]}

    def deliver(self, batch: Batch) -> Any:
        """Return the images: a tensor, a list of several sizes, or several in the form of Views."""
        state = batch.states[self]
        return state.draw.recipe.image([memory.tensor for memory in state.views])

    def value(self, batch: Batch, slot: int) -> Any:
        """Return one image, after the transforms that the core does not do."""
        state: ImageState = batch.states[self]
        if slot in state.lacking:
            return None
        if not state.tensors:
            state.tensors = [list(memory.tensor) for memory in state.views]
        recipe = state.draw.recipe
        views = [
            _pil_image(memory.array[slot]) if program.output.as_pil else tensors[slot]
            for program, memory, tensors in zip(
                recipe.programs, state.views, state.tensors, strict=True
            )
        ]
        return recipe.finish(views) if recipe.joint is None else recipe.image(views)

    def clear(self, batch: Batch, slots: list[int]) -> None:
        """See `BatchField.clear`."""
        for memory in batch.states[self].views:
            memory.clear(slots)

    def patch(self, batch: Batch, other: Batch, to: list[int], good: list[int]) -> None:
        """See `BatchField.patch`."""
        super().patch(batch, other, to, good)
        state, theirs = batch.states[self], other.states[self]
        for memory, new in zip(state.views, theirs.views, strict=True):
            memory.patch(new, to, good)
        state.draw.patch(theirs.draw, to, good)

    def cancel(self, batch: Batch) -> None:
        """See `BatchField.cancel`."""
        super().cancel(batch)
        state = batch.states.get(self)
        if state is not None:
            Jobs(state.pending).cancel()
            Futures(state.alone.values()).cancel()

    def _begin(self, batch: Batch, state: Any) -> None:
        planned = batch.planned
        recipe = self._recipes[planned.size if len(self._recipes) > 1 else 0]
        parts = recipe, self._parts(recipe, planned)
        state.draw = Draw(planned, batch.key, parts, state.failed, self._reader)
        if self.name == "image":
            batch.draw = state.draw
        if (table := self._table_for(recipe)) is not None:
            self._begin_rows(batch, state, table)
            return
        self._gather(batch, state, self._columns)
        self._context.counters.seekable += int(np.count_nonzero(state.blobs.extents.seekable))

    def _parts(self, recipe: Recipe, planned: Planned) -> list[Part]:
        """Return each recipe that a batch needs, and which of its samples."""
        if not recipe.parts:
            return [(recipe, slice(None))]
        parts = self._context.readable.part_of(planned.indices)
        return [(recipe.parts[part], parts == part) for part in np.unique(parts).tolist()]

    def _table_for(self, recipe: Recipe) -> ExtentTable | None:
        """Return the index in which decode threads look up the rows of a batch, if they can."""
        if self.gathers_first or self._reader is not None or recipe.parts:
            return None
        # Memory for images of several sizes is known once their crops are drawn.
        return self._table if all(one.one_size for one in recipe.programs) else None

    def _begin_rows(self, batch: Batch, state: ImageState, table: ExtentTable) -> None:
        """Start a batch whose rows the decode threads look up, and whose crops they draw."""
        planned, most = batch.planned, self._context.readable.limits.pixels or 0
        state.rows = table.rows(planned.indices, planned.numbers, planned.occurrences, most)
        views = []
        for view, program in enumerate(state.draw.recipe.programs):
            memory = self._memory(batch, state, view)
            state.views.append(memory)
            key = child(batch.key, view)
            views.append(_native.Rendering(memory.array, key=key, **program.batch_options()))
        self._submit(state, state.rows, views)

    def _begin_reading(self, batch: Batch, state: ImageState) -> None:
        """Probe sizes, or decode: the bytes can be read."""
        # Faster than numpy's all() and any(), which are Python.
        if np.count_nonzero(state.blobs.widths) == len(batch):
            self._refuse_large(batch, state)
            self._begin_drawing(batch, state)
        else:
            state.stage = Stage.PROBING
            state.job = self._context.start(_native.ProbeJob(state.blobs.extents))

    def _proceed(self, batch: Batch, state: Any, job: Any) -> None:
        if state.stage is Stage.FETCHING:
            super()._proceed(batch, state, job)
        elif state.stage is Stage.PROBING:
            self._take_probed(batch, state, job)
            self._begin_drawing(batch, state)
        elif state.stage is Stage.DECODING:
            for pending in state.pending:
                self._collect(batch, state, pending)
            state.pending.clear()
            state.stage = Stage.ALONE
            state.job = Futures(state.alone.values()) if state.alone else None
        else:
            self._take_alone(batch, state)
            state.draw.settle()
            decoded = None
            if state.alone or state.failed:
                decoded = np.ones(len(batch), np.bool_)
                decoded[[*state.alone, *state.failed]] = False
            self._count(state, decoded)
            state.stage = Stage.DONE

    def _take_probed(self, batch: Batch, state: ImageState, probe: _native.ProbeJob) -> None:
        """Take the sizes and encodings that were read from files."""
        blobs, rows = state.blobs, batch.planned.indices
        # Keep the sizes that were known.
        widths, heights = blobs.widths.copy(), blobs.heights.copy()
        encodings = blobs.encodings.copy()
        new = np.flatnonzero(widths == 0)
        widths[new] = np.asarray(blobs.extents.widths)[new]
        heights[new] = np.asarray(blobs.extents.heights)[new]
        encodings[new] = np.asarray(blobs.extents.encodings)[new]
        pillow = blobs.pillow.copy()
        for slot, code, detail, offset in probe.failures():
            if Verdict(code, detail, offset).step() is FallbackStep.FAIL:
                self._fail(batch, slot, detail, code)
            elif not widths[slot]:
                pillow[slot] = True
                self._source.declined(int(rows[slot]), code)
        state.blobs = BlobColumn(
            blobs.extents, widths=widths, heights=heights, pillow=pillow, encodings=encodings
        )
        self._refuse_large(batch, state)
        unknown = np.flatnonzero(widths == 0)
        # A crop needs some size; it is drawn again once Pillow has read the real one.
        widths[unknown] = heights[unknown] = ANY_SIZE
        known = np.setdiff1d(new, [*unknown.tolist(), *state.failed])
        properties = widths, heights, encodings, blobs.extents.orientations
        self._source.resized(rows[known], Measured(*(values[known] for values in properties)))

    def _refuse_large(self, batch: Batch, state: ImageState) -> None:
        """Fail the samples beyond the limit of pixels."""
        limits = self._context.readable.limits
        if limits.pixels is None:
            return
        widths, heights = state.blobs.widths, state.blobs.heights
        pixels = np.multiply(widths, heights, dtype=np.int64)
        for slot in np.flatnonzero(pixels > limits.pixels).tolist():
            try:
                limits.check_size(int(widths[slot]), int(heights[slot]))
            except SampleError as error:
                problem = self._source.problem(int(batch.planned.indices[slot]), f"it {error.what}")
                state.failed.setdefault(slot, SampleError(problem.what, error.hint))

    def _refuse_small(self, batch: Batch, state: ImageState) -> None:
        """Fail the samples that are too small for a crop."""
        for slot, words in state.draw.too_small():
            error = too_small(self._source, int(batch.planned.indices[slot]), words)
            state.failed.setdefault(slot, error)

    def _begin_drawing(self, batch: Batch, state: ImageState) -> None:
        """Draw the crops, and decode the samples for which that succeeds."""
        columns: Mapping[str, Column] = {one.name: one.column(batch) for one in self._moved}
        faults = state.draw.make(state.blobs.widths, state.blobs.heights, columns)
        for slot, why in faults.items():
            self._fail(batch, slot, why)
        self._refuse_small(batch, state)
        slow = np.zeros(len(batch), np.bool_)
        slow[list(state.failed)] = True
        self._begin_decoding(batch, state, slow | state.blobs.pillow)

    def _begin_decoding(self, batch: Batch, state: ImageState, slow: npt.NDArray[np.bool_]) -> None:
        """Start to decode; the core skips ``slow`` samples, which failed or need other decoders."""
        state.stage, state.job = Stage.DECODING, Jobs(state.pending)
        for view in range(len(state.draw.cuts)):
            state.views.append(self._memory(batch, state, view, slow))
        skip = slow.view(np.uint8) if np.count_nonzero(slow) else None
        self._decode_by_core(state, skip)
        if skip is not None:
            self._decode_alone(batch, state, np.flatnonzero(slow).tolist())

    def _memory(
        self,
        batch: Batch,
        state: ImageState,
        view: int,
        slow: npt.NDArray[np.bool_] | None = None,
    ) -> BatchMemory:
        """Return memory for one view of a batch; ``slow`` as of `_begin_decoding`."""
        program = state.draw.recipe.programs[view]
        form = program.output.dtype, program.output.channels_last, program.output.channels
        if program.one_size:
            return self._pool.batch(view, len(batch), program.size, *form)
        return self._pool.images(view, state.draw.sizes(view, slow), *form)

    def _decode_by_core(self, state: ImageState, skip: npt.NDArray[np.uint8] | None) -> None:
        """Start to decode all views of the samples that are not skipped."""
        for recipe, which in state.draw.parts:
            skipped = skip
            if not isinstance(which, slice):
                skipped = (~which).view(np.uint8) if skip is None else skip | ~which
            views = [
                _native.Rendering(
                    memory.array,
                    cuts=cuts,
                    targets=state.draw.targets,
                    **program.batch_options(),
                )
                for memory, cuts, program in zip(
                    state.views, state.draw.cuts, recipe.programs, strict=True
                )
            ]
            self._submit(state, state.blobs.extents, views, skipped)

    def _submit(
        self,
        state: ImageState,
        samples: _native.Extents | _native.Rows,
        views: Sequence[_native.Rendering],
        skip: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        """Start to decode to some views."""
        stride, scans = self._source.capabilities.stride, self._context.readable.limits.scans
        reading = ReadOptions(skip=skip, stride=stride, check=self._check, scans=scans)
        pending = PendingBatch(samples, views, reading, fallback="never")
        state.pending.append(pending)
        state.stage = Stage.DECODING
        state.job = pending if len(state.pending) == 1 else Jobs(state.pending)
        if self._context.engine is None:
            pending.run()
        else:
            self._context.engine.begin(pending)

    def _collect(self, batch: Batch, state: ImageState, pending: PendingBatch) -> None:
        """Collect a finished job: its counts, seek points and failures."""
        done, counters = pending.collect(), self._context.counters
        counters.add_work(done.read_seconds, done.decode_seconds, done.bytes_read)
        if done.built:
            counters.built += len(done.built)
            built = [
                (int(batch.planned.indices[slot]), Stamped(table, size, mtime_ns))
                for slot, table, size, mtime_ns in done.built
            ]
            self._source.built(built)
        if state.rows is not None:
            self._take_rows(batch, state, pending, len(done.failures))
        for slot, code, detail, offset in done.failures:
            if slot in state.failed:
                continue
            verdict = Verdict(code, detail, offset)
            if verdict.code in NOT_NATIVE and state.blobs.pillow[slot]:
                verdict = Verdict()  # the index says so: the image's own kind explains it better
            if verdict.step() is FallbackStep.FAIL:
                self._fail(batch, slot, verdict.detail, verdict.code)
            elif slot not in state.alone:
                self._decode_alone(batch, state, [slot], verdict)

    def _take_rows(
        self, batch: Batch, state: ImageState, pending: PendingBatch, failures: int
    ) -> None:
        """Take the rows that decode threads looked up; fail those that no decoder can crop."""
        rows, state.rows = state.rows, None
        assert rows is not None
        extents = rows.extents
        self._context.counters.seekable += int(np.count_nonzero(extents.seekable))
        assert self._table is not None
        described = self._table.described(extents)
        state.blobs = blobs = described.blobs["image"]
        batch.columns.update(described.columns)
        if not failures:
            return
        if failures * _FEW > len(batch):
            self.gathers_first = True
        cuts = [pending.cuts(view) for view in range(len(state.views))]
        state.draw.take(cuts, blobs.widths, blobs.heights)
        self._refuse_large(batch, state)
        self._refuse_small(batch, state)

    def _decode_alone(
        self, batch: Batch, state: ImageState, slots: Iterable[int], verdict: Verdict | None = None
    ) -> None:
        """Start to decode every view of single samples that the core declines."""
        extents, source = state.blobs.extents, self._source
        fetched = self._context.remote is not None
        for slot in slots:
            if slot in state.failed:
                continue
            row, data = int(batch.planned.indices[slot]), None
            if fetched and source.is_fetched(row) and not extents.is_partial(slot):
                data = extents.read(slot, check=False)  # else it is fetched again, whole
            sample = DeclinedSample(
                source,
                row,
                self._context.readable.limits,
                slot,
                state.draw,
                state.views,
                extents,
                data,
            )
            task: Callable[..., Outcome] = decode_alone
            state.alone[slot] = self._context.helpers.submit(task, sample, verdict or Verdict())

    def _take_alone(self, batch: Batch, state: ImageState) -> None:
        """Take the outcomes of samples that were decoded alone; warn of the first by Pillow."""
        counters, warned = self._context.counters, self._context.warned_fallback
        for slot in sorted(state.alone):
            outcome = state.alone[slot].result()
            counters.bad_seek_points += outcome.without_table
            self._source.declined(int(batch.planned.indices[slot]), outcome.verdict.code)
            if outcome.error is not None:
                state.failed.setdefault(slot, outcome.error)
                continue
            counters.count(outcome.kind, outcome.decoder)
            if outcome.decoder == PILLOW and not warned.is_set():
                warned.set()
                self._warn_fallback(batch, state, slot, outcome)

    def _count(
        self, state: ImageState, decoded: npt.NDArray[np.bool_] | None, decoder: str = NATIVE
    ) -> None:
        """Count samples that the core has decoded, all if None."""
        codes = state.blobs.encodings
        if decoded is not None:
            codes = codes[decoded]
        several = codes.tobytes()  # counts in less time than an array
        for code in set(several):
            kind = ENCODINGS[code] if code < len(ENCODINGS) else "jpeg"  # -1: not known
            self._context.counters.count(kind, decoder, several.count(code))

    def _warn_fallback(self, batch: Batch, state: ImageState, slot: int, outcome: Outcome) -> None:
        """Warn of the first sample that Pillow decoded; say why the core did not."""
        if outcome.verdict.is_damage:
            why = f"the native core finds it damaged: {outcome.verdict.detail}"
        else:
            try:
                data = state.blobs.extents.read(slot, check=False)
                why, jpeg = describe_kind(data), jpeg_info(data)
                if jpeg.encoding == "jpeg":
                    reason = outcome.verdict.detail or jpeg.reason
                else:
                    reason = outcome.declined
                why = f"it is {'an' if why[0] in 'AEIOaeio' else 'a'} {why}"
                why += f": {reason}" if reason else ""
            except (OSError, ValueError, SampleError):  # its file was removed meanwhile
                why = outcome.verdict.detail or "the native core cannot"
        words = f"it was decoded by Pillow, which is slower, as {why}"
        problem = self._source.problem(int(batch.planned.indices[slot]), words)
        warn(
            f"{problem.what}. No other sample will be named; stats().by_pillow counts them.",
            FallbackWarning,
        )


def _pil_image(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """Return an image of mode RGB; or L, if it has one channel."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)

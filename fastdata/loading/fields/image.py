"""Field of images: look rows up, draw crops, decode, fall back where the core declines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native
from fastdata.decode.decoders import NATIVE, PILLOW
from fastdata.decode.fallback import FallbackStep, Outcome, Verdict
from fastdata.decode.pillow import describe_kind
from fastdata.errors import FallbackWarning, SampleError, warn
from fastdata.loading.fields.alone import DeclinedSample
from fastdata.loading.fields.columns import ColumnField
from fastdata.loading.fields.draw import Draw, Part
from fastdata.loading.fields.field import (
    Batch,
    Context,
    EncodedField,
    EncodedState,
    Jobs,
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
    from fastdata.plan.schedule import Indices, Numbering
    from fastdata.threads import Task
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
        pending: Jobs of the core under way.
        alone: Samples that Python threads decode, by slot.
        tensors: Views of each view's memory, by sample, once one was asked for.
    """

    draw: Draw = None  # type: ignore[assignment]
    views: list[BatchMemory] = field(default_factory=list)
    rows: _native.Rows | None = None
    pending: list[_native.DecodeJob] = field(default_factory=list)
    alone: dict[int, Task[Outcome]] = field(default_factory=dict)
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
    state_type = ImageState

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
        self._stride = source.capabilities.stride
        self._table = source.table_of() if source.capabilities.local else None
        first = name == "image"
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
        for memory in batch.states[self].views:
            memory.clear(slots)

    def patch(self, batch: Batch, other: Batch, to: list[int], good: list[int]) -> None:
        super().patch(batch, other, to, good)
        state, theirs = batch.states[self], other.states[self]
        for memory, new in zip(state.views, theirs.views, strict=True):
            memory.patch(new, to, good)
        state.draw.patch(theirs.draw, to, good)

    def cancel(self, batch: Batch) -> None:
        super().cancel(batch)
        state = batch.states.get(self)
        if state is not None:
            Jobs(state.pending).cancel()
            Jobs(state.alone.values()).cancel()

    def begin(self, batch: Batch, state: Any) -> None:
        """See `BatchField.begin`. Decode threads look rows up, or they are gathered."""
        planned, remote = batch.planned, self._context.remote
        recipe = self._recipes[planned.size if len(self._recipes) > 1 else 0]
        parts: list[Part] = [(recipe, slice(None))]
        if recipe.parts:
            places = self._context.readable.part_of(planned.indices)
            parts = [(recipe.parts[at], places == at) for at in np.unique(places).tolist()]
        state.draw = Draw(planned, batch.key, recipe, parts, state.failed, self._reader)
        if self.name == "image":
            batch.draw = state.draw
        if (table := self._table_for(recipe)) is not None:
            most = self._context.readable.limits.pixels or 0
            of_rows = planned.indices, planned.numbers, planned.occurrences
            state.rows = table.rows(*of_rows, most)
            self._decode(batch, state)
            return
        if remote is None:
            rows = self._source.gather(planned.indices, ("image", *self._columns))
            state.blobs, columns = rows.blobs["image"], rows.columns
        else:
            state.blobs, state.fetch = remote.fetch(planned.draws, self.name)
            columns = self._source.gather(planned.indices, self._columns).columns
        batch.columns.update(columns)
        self._context.counters.seekable += int(np.count_nonzero(state.blobs.extents.seekable))
        reading = [one.reading(batch) for one in self._moved]
        waits = [one for one in (state.fetch, *reading) if one is not None and not one.done()]
        state.after(Jobs(waits) if waits else None, self._draw)

    def _table_for(self, recipe: Recipe) -> ExtentTable | None:
        """Return the index in which decode threads look up the rows of a batch, if they can."""
        if self.gathers_first or self._reader is not None or recipe.parts:
            return None
        # Memory for images of several sizes is known once their crops are drawn.
        return self._table if all(one.one_size for one in recipe.programs) else None

    def _draw(self, batch: Batch, state: ImageState) -> None:
        """Draw the crops, once sizes are known, and decode the samples for which that succeeds."""
        self._attach(batch, state)
        # Faster than numpy's all() and any(), which are Python.
        if np.count_nonzero(state.blobs.widths) < len(batch):
            probe = _native.ProbeJob(state.blobs.extents)
            self._context.start(probe)
            state.after(probe, self._take_probed)
            return
        self._refuse_large(batch, state)
        columns = {one.name: one.column(batch) for one in self._moved}
        state.draw.make(state.blobs.widths, state.blobs.heights, columns, self._source)
        skip = None
        if state.failed or np.count_nonzero(state.blobs.pillow):
            skip = state.blobs.pillow.copy()
            skip[list(state.failed)] = True
        self._decode(batch, state, skip)
        if skip is not None:
            self._decode_alone(batch, state, np.flatnonzero(skip).tolist())

    def _take_probed(self, batch: Batch, state: ImageState) -> None:
        """Take the sizes and encodings that were read from files; then draw."""
        blobs, rows, probe = state.blobs, batch.planned.indices, cast(Any, state.job)
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
        unknown = np.flatnonzero(widths == 0)
        known = np.setdiff1d(new, [*unknown.tolist(), *state.failed])
        # A crop needs some size; it is drawn again once Pillow has read the real one.
        widths[unknown] = heights[unknown] = ANY_SIZE
        state.blobs = BlobColumn(
            blobs.extents, widths=widths, heights=heights, pillow=pillow, encodings=encodings
        )
        properties = widths, heights, encodings, blobs.extents.orientations
        self._source.resized(rows[known], Measured(*(values[known] for values in properties)))
        self._draw(batch, state)

    def _refuse_large(self, batch: Batch, state: ImageState) -> None:
        """Fail the samples beyond the limit of pixels."""
        limits = self._context.readable.limits
        if limits.pixels is None:
            return
        widths, heights = state.blobs.widths, state.blobs.heights
        pixels = np.multiply(widths, heights, dtype=np.int64)
        pixels[(widths == ANY_SIZE) & (heights == ANY_SIZE)] = 0  # not known
        for slot in np.flatnonzero(pixels > limits.pixels).tolist():
            try:
                limits.check_size(int(widths[slot]), int(heights[slot]))
            except SampleError as error:
                problem = self._source.problem(int(batch.planned.indices[slot]), f"it {error.what}")
                state.failed.setdefault(slot, SampleError(problem.what, error.hint))

    def _memory(
        self, batch: Batch, state: ImageState, view: int, skip: npt.NDArray[np.bool_] | None
    ) -> BatchMemory:
        """Return memory for one view of a batch; ``skip`` as of `_decode`."""
        program, pool = state.draw.recipe.programs[view], self._context.pool
        form = program.output.dtype, program.output.channels_last, program.output.channels
        if program.one_size:
            return pool.batch((self.name, view), len(batch), program.size, *form)
        return pool.images((self.name, view), state.draw.sizes(view, skip), *form)

    def _decode(
        self, batch: Batch, state: ImageState, skip: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Start to decode all views of the samples that are not skipped.

        Decode threads draw the samples that they look up.
        """
        draw, rows = state.draw, state.rows
        if not state.views:
            views = range(len(draw.recipe.programs))
            state.views = [self._memory(batch, state, view, skip) for view in views]
        for recipe, which in draw.parts:
            skipped = skip
            if not isinstance(which, slice):
                skipped = ~which if skip is None else skip | ~which
            renderings = []
            for view, program in enumerate(recipe.programs):
                how: dict[str, Any] = program.batch_options()
                if rows is not None:
                    how["key"] = child(batch.key, view)
                else:
                    how.update(cuts=draw.cuts[view], targets=draw.targets)
                renderings.append(_native.Rendering(state.views[view].array, **how))
            job = _native.DecodeJob(
                state.blobs.extents if rows is None else rows,
                renderings,
                skip=skipped,
                stride=self._stride,
                check=self._check,
                max_scans=self._context.readable.limits.most_scans,
            )
            self._context.start(job)
            state.pending.append(job)
        one = len(state.pending) == 1
        state.after(state.pending[0] if one else Jobs(state.pending), self._collect)

    def _collect(self, batch: Batch, state: ImageState) -> None:
        """Collect finished jobs: counts, seek points, and failures, which go to other decoders."""
        counters = self._context.counters
        for job in state.pending:
            failures, tables, read, decoding, size = job.collect()
            counters.add_work(read, decoding, size)
            if tables:
                counters.built += len(tables)
                indices = batch.planned.indices
                built = [
                    (int(indices[slot]), Stamped(table, size, mtime_ns))
                    for slot, table, size, mtime_ns in tables
                ]
                self._source.built(built)
            if state.rows is not None:
                self._take_rows(batch, state, job, len(failures))
            for slot, code, detail, offset in failures:
                if slot in state.failed:
                    continue
                verdict = Verdict(code, detail, offset)
                if verdict.code in NOT_NATIVE and state.blobs.pillow[slot]:
                    # The index says so: the image's own kind explains it better.
                    verdict = Verdict()
                if verdict.step() is FallbackStep.FAIL:
                    self._fail(batch, slot, verdict.detail, verdict.code)
                elif slot not in state.alone:
                    self._decode_alone(batch, state, [slot], verdict)
        state.pending.clear()
        alone = Jobs(state.alone.values()) if state.alone else None
        state.after(alone, self._finish, in_turn=True)

    def _finish(self, batch: Batch, state: ImageState) -> None:
        """Take the samples that were decoded alone; count all."""
        decoded = None
        if state.alone or state.failed:
            self._take_alone(batch, state)
            state.draw.settle()
            decoded = np.ones(len(batch), np.bool_)
            decoded[[*state.alone, *state.failed]] = False
        self._count(state, decoded)

    def _take_rows(
        self, batch: Batch, state: ImageState, job: _native.DecodeJob, failures: int
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
        cuts = [job.cuts(view) for view in range(len(state.views))]
        self._refuse_large(batch, state)
        state.draw.take(cuts, blobs.widths, blobs.heights, self._source)

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
            limits = self._context.readable.limits
            sample = DeclinedSample(
                source, row, limits, slot, state.draw, state.views, extents, data
            )
            decode = self._context.helpers.submit(sample.decode, verdict or Verdict())
            state.alone[slot] = decode

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
                why, reason = describe_kind(data), outcome.declined
                if outcome.kind.startswith("jpeg"):
                    reason = outcome.verdict.detail or reason
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

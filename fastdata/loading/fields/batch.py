"""A batch under way, and one sample of it that is decoded by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.decode.codecs import Encoded
from fastdata.decode.engine import PendingBatch, Reading, decode_one
from fastdata.decode.fallback import Alone, Outcome, Verdict
from fastdata.decode.jpeg import DecodeError
from fastdata.decode.limits import Limits
from fastdata.decode.rows import open_row
from fastdata.errors import LEAVE_OUT, FastdataError, SampleError, UsageError
from fastdata.executors import result_of
from fastdata.loading.fields.buffers import BatchMemory, BufferPool
from fastdata.plan.draws import sample_keys
from fastdata.storage.source import BlobColumn, Source
from fastdata.transforms.geometry import SMALL_HINT, Cuts

if TYPE_CHECKING:
    from fastdata.loading.fields.targets import TargetReader
    from fastdata.plan.schedule import Indices, Planned
    from fastdata.remote.prefetch import Fetch
    from fastdata.transforms.compile import Program, Recipe
    from fastdata.transforms.joint import Moved


_NOTHING = BlobColumn(_native.Extents([]))


@dataclass
class Settings:
    """Settings of all batches of a loader; a recipe and a reader of targets among them.

    ``told_fallback`` is set once a sample that Pillow decodes was warned of; others may share it.
    ``part_of`` returns each row's place in the ``parts`` of the recipe.
    """

    recipe: Recipe
    limits: Limits
    told_fallback: Event = field(default_factory=Event)
    reader: TargetReader | None = None
    part_of: Callable[[Indices], Indices] | None = None

    def by_part(self, planned: Planned) -> Iterator[tuple[Recipe, npt.NDArray[np.bool_] | slice]]:
        """Yield each recipe that a batch needs, and which of its samples."""
        if self.part_of is None:
            yield self.recipe, slice(None)
            return
        parts = self.part_of(planned.indices)
        for part in np.unique(parts).tolist():
            yield self.recipe.parts[part], parts == part

    def of(self, row: int) -> Settings:
        """Return the settings of one row."""
        if self.part_of is None:
            return self
        (part,) = self.part_of(np.array([row])).tolist()
        return replace(self, recipe=self.recipe.parts[part], part_of=None)


@dataclass
class View:
    """One crop of each sample of a batch: the memory for its pixels, and its geometry."""

    memory: BatchMemory
    cuts: Cuts


class Redrawn(NamedTuple):
    """Geometry of a sample with targets, drawn once its size was known; its cut, (1,).

    ``targets`` are boxes and points after the geometry, ``moved`` those after the whole program.
    """

    size: tuple[int, int]
    cut: Cuts
    targets: _native.Targets
    moved: Moved


@dataclass
class Batch:
    """A batch under way.

    Attributes:
        key: Key of the epoch's random numbers.
        fetch: Fetch of its bytes from a remote dataset, until it is done.
        probe: Job that reads sizes from files, until it is done.
        rows: Rows that decode threads look up, until they have.
        slow: Samples that Python threads decode, by their slot in the batch.
        error: Error of the batch as a whole: the index cannot be read.
        targets: The core's boxes and points, after the geometry; None without a joint transform.
        moved: Those after the whole program.
        redrawn: Geometry of samples whose size was not known, by their slot.
        lacking: Slots of samples that lack a further image, by field.
    """

    planned: Planned
    key: int
    gathered: BlobColumn = _NOTHING
    columns: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    fetch: Fetch | None = None
    probe: _native.ProbeJob | None = None
    rows: _native.Rows | None = None
    views: list[View] = field(default_factory=list)
    pending: list[PendingBatch] = field(default_factory=list)
    slow: dict[int, Future[Outcome]] = field(default_factory=dict)
    failed: dict[int, FastdataError] = field(default_factory=dict)
    error: FastdataError | None = None
    further: dict[str, Any] = field(default_factory=dict)
    targets: _native.Targets | None = None
    moved: Moved | None = None
    redrawn: dict[int, Redrawn] = field(default_factory=dict)
    lacking: dict[str, list[int]] = field(default_factory=dict)

    def clear(self, slots: list[int]) -> None:
        """Make the pixels of bad samples zeros."""
        for view in self.views:
            view.memory.clear(slots)
        for part in self.further.values():
            part.clear(slots)

    def patch(self, other: Batch, to: list[int], good: list[int]) -> None:
        """Take the samples at places ``good`` of another batch for the slots ``to``."""
        for view, new in zip(self.views, other.views, strict=True):
            view.memory.patch(new.memory, to, good)
        for name, values in self.columns.items():
            values[to] = other.columns[name][good]
        for name, part in self.further.items():
            part.patch(other.further[name], to, good)
        if self.moved is not None and other.moved is not None:
            self.moved = self.moved.patched(other.moved, to, good)
        for name, slots in self.lacking.items():
            substitutes = dict(zip(good, to, strict=True))
            lack = [substitutes[at] for at in other.lacking[name] if at in substitutes]
            self.lacking[name] = [*(slot for slot in slots if slot not in to), *lack]


class OneOfBatch(Alone):
    """One sample of a batch, and its place in each view; ``data`` are its bytes, if fetched."""

    def __init__(
        self, source: Source, settings: Settings, batch: Batch, slot: int, data: bytes | None
    ) -> None:
        self._source, self._settings, self._batch = source, settings, batch
        self._index = int(batch.planned.indices[slot])
        self._slot, self._one, self._data = slot, slice(slot, slot + 1), data
        self._programs = settings.recipe.programs

    def by_core(self) -> Verdict | None:
        """See `Alone.by_core`."""
        data = self._data
        try:
            if data is None:
                data = self._batch.gathered.extents.read(self._slot, check=True)
        except (OSError, ValueError):  # its file was removed meanwhile: `by_codec` says so
            return Verdict()
        views = [
            self._rendering(program, view.cuts[self._one], view.memory.array[self._one])
            for view, program in zip(self._batch.views, self._programs, strict=True)
        ]
        turn = self._batch.gathered.extents.orientations[self._one].copy()
        verdict = decode_one(data, views, Reading(orientations=turn))
        if verdict is None:
            self._data = data
        return verdict

    def by_codec(self) -> Encoded:
        """See `Alone.by_codec`."""
        image = open_row(self._source, self._index, self._settings.limits, self._data)
        try:
            self._place(image)
        except SampleError as error:
            raise self._source.problem(self._index, error.what) from None
        return image

    def error(self, verdict: Verdict) -> FastdataError:
        """See `Alone.error`."""
        return self._source.problem(self._index, verdict.detail, verdict.code)

    def _place(self, image: Encoded) -> None:
        """Put the image's crops into their slots; decode no more of it than they need."""
        cuts = self._cuts(image)
        sides = image.width, image.height
        boxes = np.concatenate([cut["box"] for cut in cuts]).clip(0, [*sides, *sides])
        # A crop beside the image needs the pixel that is nearest.
        left, upper = np.minimum(boxes.min(0)[:2], np.subtract(sides, 1)).tolist()
        right, lower = np.maximum(boxes.max(0)[2:], 1).tolist()
        pixels = image.pixels((left, upper, right, lower))
        views = [
            self._rendering(program, cut, self._room(view, program, cut))
            for view, program, cut in zip(self._batch.views, self._programs, cuts, strict=True)
        ]
        if (verdict := decode_one(pixels, views)) is not None:
            raise DecodeError(*verdict)

    def _rendering(self, program: Program, cut: Cuts, out: Any) -> _native.Rendering:
        options = program.batch_options()
        return _native.Rendering(out, cuts=cut, targets=self._targets(), **options)

    def _targets(self) -> _native.Targets | None:
        batch = self._batch
        if batch.targets is None:
            return None
        if self._slot in batch.redrawn:
            return batch.redrawn[self._slot].targets
        return batch.targets.one(self._slot)

    def _room(self, view: View, program: Program, cut: Cuts) -> Any:
        """Return the image's place in a view; a new one, if its size was not known before."""
        memory, slot = view.memory, self._slot
        if not program.one_size:
            batch = self._batch
            if self._slot in batch.redrawn:
                sizes = batch.redrawn[self._slot].moved.sizes
            else:
                sizes = program.sizes(cut) if batch.moved is None else batch.moved.sizes[self._one]
            (size,) = sizes.tolist()
            if memory.array[slot].shape[1::-1] != tuple(size):
                form = program.output.dtype, program.output.channels_last, program.output.channels
                memory.patch(BufferPool(0, False).images(0, np.array([size]), *form), [slot], [0])
        return memory.array[self._one]

    def _cuts(self, image: Encoded) -> list[Cuts]:
        """Return the geometry of each view; draw it again where the size was not known.

        Raise UsageError if a crop does not fit into the image.
        """
        gathered, planned, one = self._batch.gathered, self._batch.planned, self._one
        width, height = (np.array([side], np.int32) for side in (image.width, image.height))
        if width == gathered.widths[self._slot] and height == gathered.heights[self._slot]:
            return [view.cuts[one] for view in self._batch.views]
        self._source.resized(planned.indices[one], width, height)
        before = None if planned.occurrences is None else planned.occurrences[one]
        cuts = []
        for number, program in enumerate(self._programs):
            keys = sample_keys(self._batch.key, planned.numbers[one], number, before)
            if self._settings.reader is None:
                cuts.append(program.draw(width, height, keys))
            else:
                about = self._settings.reader, program, self._batch, one
                cut, targets, moved, _ = draw_joint(*about, (width, height), keys)
                size = image.width, image.height
                self._batch.redrawn[self._slot] = Redrawn(size, cut, targets, moved)
                cuts.append(cut)
            if small := program.too_small(cuts[-1]):
                raise too_small(self._source, self._index, small[0])
        return cuts


def too_small(source: Source, index: int, words: str) -> UsageError:
    """Return the error for a sample that a crop does not fit into."""
    what = source.problem(index, f"it has {words}").what
    return UsageError(what, f"{SMALL_HINT} Or {LEAVE_OUT}")


def draw_joint(
    reader: TargetReader,
    program: Program,
    batch: Batch,
    which: slice,
    size: tuple[Any, Any],
    keys: npt.NDArray[np.uint64],
) -> tuple[Cuts, _native.Targets, Moved, dict[int, str]]:
    """Draw the geometry of samples of a batch, and move their boxes and points with it.

    ``size`` has widths and heights. The last result says why targets cannot be used, by the
    sample's place: it is then without any. Raise FastdataError if a column cannot be read at all.
    """
    columns = {}
    for name in reader.moved_columns:
        column, _ = result_of(batch.further[name].found, None)
        columns[name] = column[which]
    columns, faults = reader.sound(columns)
    targets = reader.native(columns, *size)
    cuts, moved = program.move(targets, keys)
    return cuts, targets, moved, faults

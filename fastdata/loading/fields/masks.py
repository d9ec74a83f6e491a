"""Masks of a batch, which follow the geometry of their images."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.decode.codecs import Encoded
from fastdata.decode.engine import decode_one
from fastdata.decode.jpeg import DecodeError
from fastdata.decode.rows import open_row
from fastdata.errors import FastdataError, SampleError, UsageError
from fastdata.executors import await_done, result_of
from fastdata.loading.fields.stats import Counters
from fastdata.remote.ranges import attach_fetched, raise_outage
from fastdata.storage.field_source import FieldSource
from fastdata.text import human_size
from fastdata.transforms.forms import MASK_FILTER
from fastdata.transforms.geometry import ANY_SIZE, Cuts
from fastdata.transforms.reading import Step
from fastdata.transforms.tree import Bytes, native_program

if TYPE_CHECKING:
    import torch

    from fastdata.loading.fields.batch import Batch, Settings
    from fastdata.loading.fields.buffers import BufferPool
    from fastdata.plan.schedule import Planned
    from fastdata.remote.prefetch import Fetch, FetchField


class _Found(NamedTuple):
    """A mask, (channels, height, width), and its kind and decoder; or why there is none."""

    values: npt.NDArray[Any] | None
    kind: str = ""
    decoder: str = ""
    error: FastdataError | None = None


@dataclass
class MaskBatch:
    """Masks of one field of a batch.

    Attributes:
        image: The batch of their images; None until it has begun, and once this one is finished.
        sizes: int32, (N, 2): width and height of each result.
        slow: Masks that Python threads decode, by their slot; None until they have begun.
        masks: The masks, (channels, height, width); None of samples that failed.
        memory: Memory of them all, (N, 1, height, width); None if they have several sizes, or no
            dtype is asked for.
    """

    planned: Planned
    image: Batch | None = None
    extents: _native.Extents | None = None
    fetch: Fetch | None = None
    sizes: Any = None
    slow: dict[int, Future[_Found]] | None = None
    masks: list[npt.NDArray[Any] | None] = field(default_factory=list)
    memory: torch.Tensor | None = None
    failed: dict[int, FastdataError] = field(default_factory=dict)
    error: FastdataError | None = None

    def patch(self, other: MaskBatch, to: list[int], good: list[int]) -> None:
        """Take the masks at places ``good`` of another batch for the slots ``to``."""
        for slot, at in zip(to, good, strict=True):
            self.masks[slot] = other.masks[at]
            self.sizes[slot] = other.sizes[at]

    def clear(self, slots: list[int]) -> None:
        """Make the masks of bad samples zeros."""
        for slot in slots:
            self.masks[slot] = None


class MaskPipeline:
    """Pipeline that decodes masks, and moves them as their images, with the images' recipe."""

    def __init__(
        self,
        source: FieldSource,
        settings: Settings,
        pool: BufferPool,
        helpers: Executor,
        counters: Counters,
        fetch: FetchField | None = None,
    ) -> None:
        assert settings.reader is not None
        self._source, self._settings, self._reader = source, settings, settings.reader
        self._pool, self._helpers, self._counters, self._fetch = pool, helpers, counters, fetch
        (program,) = settings.recipe.programs
        self._steps, self._fill = program.pixels, program.mask_fill
        self._target = self._reader.joint.targets[source.name]

    def begin(self, planned: Planned, key: int) -> MaskBatch:
        """Begin to fetch a batch's masks."""
        batch = MaskBatch(planned)
        if self._fetch is not None:
            try:
                batch.extents = self._source.gather(planned.indices).blobs["image"].extents
            except FastdataError as error:
                batch.error = error
                return batch
            batch.fetch = self._fetch(batch.extents, planned.draws)
        return batch

    def follow(self, batch: MaskBatch, image: Batch) -> None:
        """Let a batch follow that of its images, which has begun."""
        batch.image = image
        self.advance(batch)

    def advance(self, batch: MaskBatch) -> None:
        """Begin to decode, if the masks are there and the geometry of their images is drawn."""
        if batch.fetch is not None and batch.fetch.done():
            self._take_fetched(batch)
        image = batch.image
        if batch.slow is not None or batch.fetch is not None or batch.error is not None:
            return
        if image is None or not image.views:
            return
        assert image.moved is not None
        batch.sizes = image.moved.sizes.copy()
        # The helpers convert masks: eight bytes a pixel, as losses want, would keep the consumer.
        if self._target.dtype and (batch.sizes == batch.sizes[:1]).all():
            width, height = batch.sizes[0].tolist()
            batch.memory = self._memory(len(batch.sizes), (1, height, width), self._target.dtype)
        batch.slow = {
            slot: self._helpers.submit(self._decode, batch, slot)
            for slot in range(len(batch.planned.indices))
            if slot not in batch.failed
            and slot not in image.failed
            and image.gathered.widths[slot] != ANY_SIZE  # `finish` decodes it
        }

    def _take_fetched(self, batch: MaskBatch) -> None:
        fetch, batch.fetch = batch.fetch, None
        assert fetch is not None
        assert batch.extents is not None
        found, rows = fetch.take(), batch.planned.indices
        batch.failed |= attach_fetched(found, batch.extents, self._source, rows)

    def ready(self, batch: MaskBatch) -> bool:
        """Return whether `finish` would return at once."""
        if batch.error is not None:
            return True
        return batch.slow is not None and all(one.done() for one in batch.slow.values())

    def finish(self, batch: MaskBatch, deadline: float | None = None) -> dict[int, FastdataError]:
        """Wait for a batch, whose images are finished; see `Pipeline.finish`."""
        if batch.fetch is not None:
            await_done(batch.fetch, deadline)
        self.advance(batch)
        if batch.error is not None:
            raise batch.error
        self._decode_redrawn(batch)
        batch.masks = [None] * len(batch.planned.indices)
        for slot, future in (batch.slow or {}).items():
            found = result_of(future, deadline)
            batch.masks[slot] = found.values
            if found.error is not None:
                batch.failed[slot] = found.error
            else:
                self._counters.count(found.kind, found.decoder)
        batch.image = None  # which refers to this batch: memory of a cycle comes back late
        raise_outage(batch.failed)
        return batch.failed

    def _decode_redrawn(self, batch: MaskBatch) -> None:
        """Begin to decode the masks of images whose size was not known, or another one."""
        assert batch.image is not None
        failed = batch.failed.keys() | batch.image.failed.keys()
        for slot, redrawn in batch.image.redrawn.items():
            if slot not in failed and batch.slow is not None:
                batch.sizes[slot] = redrawn.moved.sizes[0]
                batch.slow[slot] = self._helpers.submit(self._decode, batch, slot)

    def _decode(self, batch: MaskBatch, slot: int) -> _Found:
        """Decode one mask, and move it as its image."""
        row, image = int(batch.planned.indices[slot]), batch.image
        assert image is not None
        try:
            data = None
            if batch.extents is not None and self._source.is_fetched(row):
                data = batch.extents.read(slot, check=False)
            mask = open_row(self._source, row, self._settings.limits, data, numbers=True)
            expected = int(image.gathered.widths[slot]), int(image.gathered.heights[slot])
            if slot in image.redrawn:
                expected = image.redrawn[slot].size
            if (mask.width, mask.height) != expected:
                raise self._source.problem(
                    row,
                    f"it is {human_size(mask.width, mask.height)}, and the image "
                    f"{human_size(*expected)}",
                )
            try:
                moved = _placed(batch, slot, self._moved(batch, slot, mask))
                return _Found(moved, mask.kind, mask.decoder)
            except DecodeError as error:
                raise self._source.problem(row, error.detail, error.code) from None
            except SampleError as error:
                raise self._source.problem(row, f"it {error.what}", hint=error.hint) from None
            except UsageError as error:
                what = self._source.problem(row, error.what).what
                raise UsageError(what, error.hint) from None
        except FastdataError as error:
            return _Found(None, error=error)

    def _moved(self, batch: MaskBatch, slot: int, mask: Encoded) -> npt.NDArray[Any]:
        assert batch.image is not None
        cut, targets = batch.image.views[0].cuts[slot : slot + 1], batch.image.targets
        own = None if targets is None else targets.one(slot)
        if slot in batch.image.redrawn:
            _, cut, own, _ = batch.image.redrawn[slot]
        # Rows below the crop are not needed; one is, of a crop that lies beside the mask.
        lower = min(max(int(cut["box"][0, 3]), 1), mask.height)
        pixels = mask.pixels((0, 0, mask.width, lower))
        width, height = batch.sizes[slot].tolist()
        return moved_mask(pixels, self._steps, cut, (width, height), own, self._fill)

    def image(self, batch: MaskBatch) -> torch.Tensor | list[torch.Tensor]:
        """Return a finished batch's masks: (N, channels, height, width); a list of several sizes.

        Their dtype holds the values of all.
        """
        import torch  # here, as listing and converting datasets needs none

        target = self._target
        there = [mask for mask in batch.masks if mask is not None]
        kind = np.result_type(*there) if there else np.dtype(np.uint8)
        shapes = {mask.shape for mask in there} or {
            (1, height, width) for width, height in batch.sizes.tolist()
        }
        if len(shapes) == 1:
            return target.converted(self._joined(batch, kind, *shapes))  # type: ignore[no-any-return]
        found = (self._or_zeros(batch, slot, kind) for slot in range(len(batch.masks)))
        return [target.converted(torch.from_numpy(mask)) for mask in found]

    def _joined(
        self, batch: MaskBatch, kind: np.dtype[Any], shape: tuple[int, int, int]
    ) -> torch.Tensor:
        """Return the masks of a batch, all of one shape, in the target's dtype or in ``kind``."""
        import torch  # as above

        found = batch.memory
        if found is None or found.shape[1:] != shape:
            found = self._memory(len(batch.masks), shape, self._target.dtype or kind.name)
        for slot, mask in enumerate(batch.masks):
            if mask is None:
                found[slot] = 0
            elif mask.ctypes.data != found[slot].data_ptr():
                found[slot].copy_(torch.from_numpy(mask))
        return found

    def _memory(self, count: int, shape: tuple[int, int, int], dtype: str) -> torch.Tensor:
        channels, height, width = shape
        size = max(width, 1), max(height, 1)
        return self._pool.batch(0, count, size, dtype, False, channels).tensor  # type: ignore[no-any-return]

    def _or_zeros(self, batch: MaskBatch, slot: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        mask = batch.masks[slot]
        if mask is not None:
            return mask.astype(kind, copy=False)
        width, height = batch.sizes[slot].tolist()
        return np.zeros((1, height, width), kind)

    def samples(self, batch: MaskBatch) -> list[Any]:
        """Return the mask of each sample of a finished batch; None where it failed."""
        import torch  # as above

        masks: list[Any] = [
            mask if mask is None else torch.from_numpy(mask) for mask in batch.masks
        ]
        first, *others = batch.masks
        if first is not None and first.size and not any(_differs(one, first) for one in others):
            masks = list(self._joined(batch, first.dtype, first.shape))
        name = self._source.name
        return [mask if mask is None else self._reader.classed(name, mask) for mask in masks]

    def cancel(self, batch: MaskBatch) -> None:
        """Cancel a batch."""
        # Another thread may be working on it: read once, and copy, what can change.
        for part in (batch.fetch, *tuple((batch.slow or {}).values())):
            if part is not None:
                part.cancel()

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def _placed(batch: MaskBatch, slot: int, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a mask in the memory of its batch, if that has a place for it."""
    import torch  # here, as listing and converting datasets needs none

    if batch.memory is None or batch.memory.shape[1:] != mask.shape:
        return mask
    if batch.memory.dtype is torch.bfloat16:  # NumPy has none
        return mask
    place: npt.NDArray[Any] = batch.memory[slot].numpy()
    place[:] = mask  # torch would start threads of its own
    return place


def _differs(mask: npt.NDArray[Any] | None, first: npt.NDArray[Any]) -> bool:
    return mask is None or mask.shape != first.shape or mask.dtype != first.dtype


def moved_mask(
    pixels: npt.NDArray[Any],
    steps: tuple[Step, ...],
    cut: Cuts,
    size: tuple[int, int],
    targets: _native.Targets | None = None,
    fill: int = 0,
) -> npt.NDArray[Any]:
    """Return a mask after its image's geometry and steps: (channels, height, width), same dtype.

    The core moves bytes. Up to three of a pixel's are channels of one image. ``pixels``: (rows,
    columns) or (rows, columns, channels); rows below the cut's box may be missing. ``size`` is
    (width, height) of the result, ``fill`` the `Program.mask_fill`. Raise DecodeError if the steps
    cannot be done to it, UsageError for a fill that it cannot have.
    """
    rows, columns = pixels.shape[:2]
    values = np.ascontiguousarray(pixels).view(np.uint8).reshape(rows, columns, -1)
    cut = cut.copy()
    cut["filter"] = _native.FILTERS.index(MASK_FILTER)
    parts = []
    for first in range(0, values.shape[2], 3):
        part = values[..., first : first + 3]
        bytes_of = Bytes(pixels.dtype.str, first, part.shape[2])
        about = {"program": native_program(steps, bytes_of), "fill": bytes_of.fill(fill)}
        parts.append(_moved(part, cut, size, {**about, "targets": targets}))
    found = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
    found = np.ascontiguousarray(found).view(pixels.dtype)
    return np.ascontiguousarray(found.transpose(2, 0, 1))


def _moved(
    values: npt.NDArray[np.uint8], cut: Cuts, size: tuple[int, int], options: dict[str, Any]
) -> npt.NDArray[np.uint8]:
    """Return one to three bytes of each pixel, (rows, columns, count), likewise."""
    count = values.shape[2]
    width, height = size
    channels = 1 if count == 1 else 3
    if count == 2:
        values = np.concatenate([values, values[..., :1]], axis=2)
    values = np.ascontiguousarray(values)
    out = np.empty((1, height, width, channels), np.uint8)
    if (verdict := decode_one(values, [_native.Rendering(out, cuts=cut, **options)])) is not None:
        raise DecodeError(*verdict)
    return out[0, ..., :count]

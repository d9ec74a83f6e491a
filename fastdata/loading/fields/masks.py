"""Masks of a batch, which follow the geometry of their images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastdata import _native
from fastdata.decode.engine import decode_one
from fastdata.decode.jpeg import DecodeError
from fastdata.decode.rows import open_row
from fastdata.errors import FastdataError, SampleError, UsageError, without_frames
from fastdata.loading.fields.field import (
    Batch,
    Context,
    EncodedField,
    EncodedState,
    Jobs,
)
from fastdata.text import human_size
from fastdata.transforms.geometry import ANY_SIZE
from fastdata.transforms.tree import mask_fills

if TYPE_CHECKING:
    from fastdata.decode.codecs import Encoded
    from fastdata.loading.fields.draw import SlotDraw
    from fastdata.loading.fields.targets import TargetReader
    from fastdata.storage.source import Source
    from fastdata.threads import Task


class _Mask(NamedTuple):
    """A mask, (channels, height, width), and its kind and decoder; or why there is none."""

    values: npt.NDArray[Any] | None
    kind: str = ""
    decoder: str = ""
    error: FastdataError | None = None


@dataclass(eq=False)
class MaskState(EncodedState):
    """State of a batch's masks.

    Attributes:
        sizes: int32, (N, 2): width and height of each result.
        tasks: Masks that Python threads decode, by their slot.
        masks: The masks, (channels, height, width); None of samples that failed.
        memory: Memory of them all, (N, 1, height, width); None if they have several sizes, or no
            dtype is asked for.
    """

    sizes: Any = None
    tasks: dict[int, Task[_Mask]] = field(default_factory=dict)
    masks: list[npt.NDArray[Any] | None] = field(default_factory=list)
    memory: torch.Tensor | None = None


class MaskField(EncodedField):
    """Field of masks, which Python threads decode and move as their images."""

    in_place = True
    state_type = MaskState

    def __init__(self, name: str, context: Context, source: Source, reader: TargetReader) -> None:
        super().__init__(name, context, source)
        self._reader, self._target = reader, reader.joint.targets[name]

    def deliver(self, batch: Batch) -> torch.Tensor | list[torch.Tensor]:
        """Return (N, channels, height, width), or a list of several sizes.

        Their dtype holds the values of all.
        """
        state: MaskState = batch.states[self]
        there = [mask for mask in state.masks if mask is not None]
        kind = np.result_type(*there) if there else np.dtype(np.uint8)
        shapes = {mask.shape for mask in there} or {
            (1, height, width) for width, height in state.sizes.tolist()
        }
        if len(shapes) == 1:
            joined = self._joined(state, kind, *shapes)
            return self._target.converted(joined)  # type: ignore[no-any-return]
        masks = (_or_zeros(state, slot, kind) for slot in range(len(batch)))
        return [self._target.converted(torch.from_numpy(mask)) for mask in masks]

    def clear(self, batch: Batch, slots: list[int]) -> None:
        for slot in slots:
            batch.states[self].masks[slot] = None

    def patch(self, batch: Batch, other: Batch, to: list[int], good: list[int]) -> None:
        super().patch(batch, other, to, good)
        state, theirs = batch.states[self], other.states[self]
        for slot, at in zip(to, good, strict=True):
            state.masks[slot] = theirs.masks[at]
            state.sizes[slot] = theirs.sizes[at]

    def begin(self, batch: Batch, state: Any) -> None:
        waits: list[Any] = [batch.draw]
        if self._context.remote is not None:
            self._gather(batch, state)
            waits.append(state.fetch)
        state.after(Jobs(waits), self._begin_decoding)

    def _begin_decoding(self, batch: Batch, state: MaskState) -> None:
        """Start to decode: the geometry of their images is drawn."""
        self._attach(batch, state)
        draw: Any = batch.draw
        state.sizes = draw.moved.sizes.copy()
        # The helpers convert masks: eight bytes a pixel, as losses want, would keep the consumer.
        if self._target.dtype and (state.sizes == state.sizes[:1]).all():
            width, height = state.sizes[0].tolist()
            state.memory = self._memory(len(batch), (1, height, width), self._target.dtype)
        known = draw.widths != ANY_SIZE  # others are decoded once their size is known
        for slot in np.flatnonzero(known).tolist():
            if slot not in state.failed and slot not in draw.failed:
                self._submit(batch, state, slot)
        state.after(Jobs(state.tasks.values()), self._decode_again, in_turn=True)

    def _decode_again(self, batch: Batch, state: MaskState) -> None:
        """Start to decode the masks of images whose size was not known, or another one."""
        draw: Any = batch.draw
        for slot, drawn in draw.again_drawn.items():
            if slot not in state.failed and slot not in draw.failed:
                state.sizes[slot] = drawn.moved.sizes[0]
                self._submit(batch, state, slot)
        state.after(Jobs(state.tasks.values()), self._take, in_turn=True)

    def _take(self, batch: Batch, state: MaskState) -> None:
        state.masks = [None] * len(batch)
        for slot, task in state.tasks.items():
            mask = task.result()
            state.masks[slot] = mask.values
            if mask.error is not None:
                state.failed[slot] = mask.error
            else:
                self._context.counters.count(mask.kind, mask.decoder)

    def _submit(self, batch: Batch, state: MaskState, slot: int) -> None:
        row, drawn = int(batch.planned.indices[slot]), batch.draw.of(slot)  # type: ignore[union-attr]
        state.tasks[slot] = self._context.helpers.submit(self._decode, state, slot, row, drawn)

    def _decode(self, state: MaskState, slot: int, row: int, drawn: SlotDraw) -> _Mask:
        """Decode one mask, and move it as its image."""
        try:
            data = None
            if self._context.remote is not None and self._source.is_fetched(row):
                data = state.blobs.extents.read(slot, check=False)
            limits = self._context.readable.limits
            mask = open_row(self._source, row, limits, data, numbers=True)
            if (mask.width, mask.height) != drawn.size:
                sizes = human_size(mask.width, mask.height), human_size(*drawn.size)
                raise self._source.problem(row, "it is {}, and the image {}".format(*sizes))
            try:
                moved = _placed(state.memory, slot, moved_mask(mask, drawn))
                return _Mask(moved, mask.kind, mask.decoder)
            except DecodeError as error:
                raise self._source.problem(row, error.detail, error.code) from None
            except SampleError as error:
                raise self._source.problem(row, f"it {error.what}", hint=error.hint) from None
            except UsageError as error:
                what = self._source.problem(row, error.what).what
                raise UsageError(what, error.hint) from None
        except FastdataError as error:
            return _Mask(None, error=without_frames(error))

    def _joined(
        self, state: MaskState, kind: np.dtype[Any], shape: tuple[int, int, int]
    ) -> torch.Tensor:
        """Return the masks of a batch, all of one shape, in the target's dtype or in ``kind``."""
        memory = state.memory
        if memory is None or memory.shape[1:] != shape:
            memory = self._memory(len(state.masks), shape, self._target.dtype or kind.name)
        for slot, mask in enumerate(state.masks):
            if mask is None:
                memory[slot] = 0
            elif mask.ctypes.data != memory[slot].data_ptr():
                memory[slot].copy_(torch.from_numpy(mask))
        return memory

    def _memory(self, count: int, shape: tuple[int, int, int], dtype: str) -> torch.Tensor:
        channels, height, width = shape
        size = max(width, 1), max(height, 1)
        return self._context.pool.batch((self.name, 0), count, size, dtype, False, channels).tensor  # type: ignore[no-any-return]

    def _values(self, batch: Batch) -> list[Any]:
        """Return the mask of each sample; None where it failed."""
        state: MaskState = batch.states[self]
        classed = self._reader.classed
        return [
            None if mask is None else classed(self.name, torch.from_numpy(mask))
            for mask in state.masks
        ]


def _or_zeros(state: MaskState, slot: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    mask = state.masks[slot]
    if mask is not None:
        return mask.astype(kind, copy=False)
    width, height = state.sizes[slot].tolist()
    return np.zeros((1, height, width), kind)


def _placed(memory: torch.Tensor | None, slot: int, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a mask in the memory of its batch, if that has a place for it."""
    if memory is None or memory.shape[1:] != mask.shape:
        return mask
    if memory.dtype is torch.bfloat16:  # NumPy has none
        return mask
    place: npt.NDArray[Any] = memory[slot].numpy()
    place[:] = mask  # torch would start threads of its own
    return place


def moved_mask(mask: Encoded, drawn: SlotDraw) -> npt.NDArray[Any]:
    """Return a mask after what was drawn for its image: (channels, height, width).

    The core moves bytes. Up to three of a pixel's are channels of one image. Raise DecodeError if
    the steps cannot be done to it, UsageError for a fill that it cannot have.
    """
    (program,), (cut,) = drawn.programs, drawn.cuts
    # Rows below the crop are not needed; one is, of a crop that lies beside the mask.
    lower = min(max(int(cut["box"][0, 3]), 1), mask.height)
    pixels = mask.pixels((0, 0, mask.width, lower))
    (rows, columns), (width, height) = pixels.shape[:2], drawn.output_size(0)
    values = np.ascontiguousarray(pixels).view(np.uint8).reshape(rows, columns, -1)
    count = values.shape[2]
    if count % 3 == 2:  # an image has one channel, or three
        values = np.concatenate([values, values[..., :1]], axis=2)
    parts = []
    for first in range(0, count, 3):
        part = np.ascontiguousarray(values[..., first : first + 3])
        parts.append(np.empty((height, width, part.shape[2]), np.uint8))
        fills = mask_fills(program.pixels, program.mask_fill, pixels.dtype.str, first)
        options: dict[str, Any] = {"mask_fills": fills, "fill": fills[program.mask_fill]}
        rendering = _native.Rendering(parts[-1][None], cuts=cut, targets=drawn.targets, **options)
        if (verdict := decode_one(part, [rendering])) is not None:
            raise DecodeError(*verdict)
    moved = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
    moved = np.ascontiguousarray(moved[..., :count]).view(pixels.dtype)
    return np.ascontiguousarray(moved.transpose(2, 0, 1))

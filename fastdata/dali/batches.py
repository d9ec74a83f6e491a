"""Batches that DALI decodes; the native core and Pillow decode the other samples.

One image that DALI cannot decode ends its whole pipeline, and it decodes some images to other
colours than Pillow. So it gets only baseline JPEGs, of Pillow's colours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from fastdata import _native
from fastdata.dali.runner import Run, Runner
from fastdata.decode.decoders import NATIVE
from fastdata.errors import warn
from fastdata.loading.fields.buffers import BatchMemory
from fastdata.loading.fields.field import Batch, Jobs
from fastdata.loading.fields.image import ImageField, ImageState
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.source import BlobColumn

_JPEG = ENCODINGS.index("jpeg")
_EOI = b"\xff\xd9"
#: Memory of views whose samples DALI decodes into its own.
_NO_MEMORY = BatchMemory(None, None)


@dataclass(eq=False)
class DALIState(ImageState):
    """State of a batch's images.

    Attributes:
        candidates: Slots of samples that DALI may decode.
        run: The part that DALI decodes, until it is joined.
        joined: The same, once it is.
    """

    candidates: list[int] = field(default_factory=list)
    run: Run | None = None
    joined: Run | None = None


class DALIField(ImageField):
    """Field of images that DALI decodes; the core's threads read, and decode what DALI does not.

    It adds a step to those of `ImageField`: the core reads DALI's candidates before it decodes the
    other samples. The last step joins both parts.
    """

    gathers_first = True
    state_type = DALIState

    def __init__(self, runner: Runner, device: torch.device, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._runner, self._device = runner, device
        self._on_gpu = device.type == "cuda"
        self._warned: set[bool] = set()  # of a batch that failed, of no pipeline

    def _decode(
        self, batch: Batch, state: ImageState, skip: npt.NDArray[np.bool_] | None = None
    ) -> None:
        assert isinstance(state, DALIState)
        cuts, extents = state.draw.cuts, state.blobs.extents
        state.views = [_NO_MEMORY for _ in cuts]
        if skip is not None or not self._on_gpu:
            self._allocate(batch, state)
        ours = ~self._may_be_for_dali(state.blobs)
        ours[list(state.failed)] = True
        for cut in cuts:
            ours |= (cut["padding"] > 0) | (cut["flip"] & 2 > 0)
        state.candidates = np.flatnonzero(~ours).tolist()
        options: dict[str, Any] = {
            "skip": ours.view(np.uint8),
            "check": self._check,
            # DALI decodes damaged JPEGs to some pixels.
            "scans": not self._source.capabilities.seek_points,
        }
        read = _native.ReadJob(extents, **options)
        self._context.start(read)
        natively = ours if skip is None else ours & ~skip
        self._decode_ourselves(batch, state, np.flatnonzero(natively).tolist())
        state.after(read, self._begin_run)

    def ready(self, batch: Batch) -> bool:
        """See `BatchField.ready`. False while DALI decodes: it cannot be asked."""
        return batch.states[self].run is None and super().ready(batch)

    def _begin_run(self, batch: Batch, state: DALIState) -> None:
        """Pass suitable samples to DALI; decode the others natively."""
        blobs, read = state.blobs, cast(_native.ReadJob, state.job)
        samples: list[Any] = read.take()
        self._context.counters.add_work(read.seconds(), 0.0)
        seekable = np.asarray(blobs.extents.seekable)
        ours: list[int] = []
        theirs: list[int] = []
        for slot in state.candidates:
            data = samples[slot]
            size = int(blobs.widths[slot]), int(blobs.heights[slot])
            # If it cannot be read or is damaged, the core says why, as in the native loader.
            known = data is not None and _is_whole_jpeg(data, size, bool(seekable[slot]))
            (theirs if known else ours).append(slot)
        self._decode_ourselves(batch, state, ours)
        if theirs:
            state.run = Run(
                np.array(theirs, np.int64), [samples[slot] for slot in theirs], state.draw.cuts
            )
            self._runner.begin(state.run)
        state.after(Jobs(state.pending), self._collect)

    def _decode_ourselves(self, batch: Batch, state: DALIState, slots: Sequence[int]) -> None:
        """Decode samples natively."""
        if len(slots):
            self._allocate(batch, state)
            skip = np.ones(len(batch), np.bool_)
            skip[slots] = False
            super()._decode(batch, state, skip)

    def _allocate(self, batch: Batch, state: DALIState) -> None:
        """Give a batch memory on the host, unless it has it."""
        for view, memory in enumerate(state.views):
            if memory is _NO_MEMORY:
                state.views[view] = self._memory(batch, state, view, None)

    def _finish(self, batch: Batch, state: ImageState) -> None:
        """Wait for DALI's part of a batch, and join both parts; DALI knows no deadline."""
        assert isinstance(state, DALIState)
        # DALI runs under the lock, so that the interpreter can wait for it at exit.
        with self._runner.lock:
            self._finish_run(batch, state)
        if batch.deadline is not None and time.monotonic() > batch.deadline:
            raise TimeoutError

    def _finish_run(self, batch: Batch, state: DALIState) -> None:
        """Wait for DALI's part of a batch, and join both parts; decode it natively if it failed."""
        run, begun = state.run, time.perf_counter()
        if run is not None:
            stream = torch.cuda.current_stream(self._device) if self._on_gpu else None
            self._runner.finish(run, stream)
            threads = self._runner.graph.threads
            self._context.counters.add_work(0.0, (time.perf_counter() - begun) * threads)
            state.run, state.joined = None, run
            if run.error is not None:
                self._warn(run.error)
                self._decode_ourselves(batch, state, run.slots.tolist())
                state.after(Jobs(state.pending), self._collect)
                return
        super()._finish(batch, state)
        run = state.joined
        for view, memory in enumerate(state.views):
            pixels = None if run is None or run.pixels is None else run.pixels[view]
            slots = np.empty(0, np.int64) if run is None else run.slots
            if self._on_gpu:
                state.views[view] = self._join_on_gpu(view, memory, slots, pixels, len(batch))
            elif pixels is not None:
                self._join(view, memory, slots, pixels)
        state.joined = None

    def _count(
        self, state: ImageState, decoded: npt.NDArray[np.bool_] | None, decoder: str = NATIVE
    ) -> None:
        assert isinstance(state, DALIState)
        if decoded is None:
            decoded = np.ones(len(state.blobs.encodings), np.bool_)
        if state.joined is not None and state.joined.pixels is not None:
            theirs = np.zeros_like(decoded)
            theirs[state.joined.slots] = True
            theirs &= decoded
            decoded = decoded & ~theirs
            super()._count(state, theirs, "DALI")
        super()._count(state, decoded, decoder)

    def _may_be_for_dali(self, gathered: BlobColumn) -> npt.NDArray[np.bool_]:
        """Return DALI's candidates, by what is known before reading: bool, (N,)."""
        encodings = np.asarray(gathered.extents.encodings)
        maybe_jpeg = (encodings == _JPEG) | (encodings < 0)
        candidates: npt.NDArray[np.bool_] = ~gathered.pillow & maybe_jpeg
        if self._source.capabilities.seek_points:  # without a checksum it may be damaged
            candidates &= np.asarray(gathered.extents.seekable) > 0
        return candidates

    def _warn(self, error: Exception) -> None:
        broken = self._runner.broken is not None
        if broken in self._warned:
            return
        self._warned.add(broken)
        what = "failed for a batch; fastdata decodes it, and others of this epoch that fail,"
        if broken:
            what = "cannot build its pipeline; fastdata decodes this epoch"
        warn(f"DALI {what} natively: {error}")

    def _join(
        self, number: int, memory: BatchMemory, slots: npt.NDArray[np.int64], pixels: Any
    ) -> None:
        """Copy DALI's part of a view into the batch."""
        output = self._recipes[0].programs[number].output
        rows = memory.array if output.channels_last else memory.array.transpose(0, 3, 1, 2)
        # By NumPy: torch's threads do not survive a fork.
        values = np.asarray(pixels)
        rows[slots] = _bfloat16(values) if output.dtype == "bfloat16" else values

    def _join_on_gpu(
        self,
        number: int,
        memory: BatchMemory,
        slots: npt.NDArray[np.int64],
        pixels: Any,
        count: int,
    ) -> BatchMemory:
        """Return a view of ``count`` samples on the GPU: DALI's own memory if it decoded all."""
        output = self._recipes[0].programs[number].output
        theirs = None
        if pixels is not None:
            theirs = torch.from_dlpack(pixels)  # type: ignore[attr-defined]
            theirs = theirs.to(getattr(torch, output.dtype))
        if theirs is not None and len(theirs) == count:
            rows = theirs
        else:
            host = memory.tensor.permute(0, 2, 3, 1) if output.channels_last else memory.tensor
            rows = torch.empty_like(host, device=self._device)
            ours = np.ones(count, np.bool_)
            if theirs is not None:
                # Pinned: from other memory, the copy would wait for the stream, and so for DALI.
                there = torch.from_numpy(slots).pin_memory().to(self._device, non_blocking=True)
                rows[there] = theirs
                ours[slots] = False
            for begin, end in _stretches(ours):
                rows[begin:end].copy_(host[begin:end], non_blocking=True)
        tensor = rows.permute(0, 3, 1, 2) if output.channels_last else rows
        # Its array is a tensor, too: blanking a bad sample's pixels writes to either.
        return BatchMemory(tensor, cast(Any, tensor.permute(0, 2, 3, 1)))

    def close(self) -> None:
        self._runner.close()

    def cancel(self, batch: Batch) -> None:
        state = batch.states.get(self)
        run = None if state is None else state.run
        if run is not None:
            run.cancelled = True
        super().cancel(batch)


def _is_whole_jpeg(data: npt.NDArray[np.uint8], size: tuple[int, int], seekable: bool) -> bool:
    """Return whether a sample is a baseline JPEG, which DALI decodes to Pillow's colours.

    ``size``: (width, height) that its crop was drawn for; ``seekable``: it was decoded once.
    """
    kind, width, height, *_, code, _, _ = _native.probe(data)
    if kind != "jpeg" or (width, height) != size or code != "ok":
        return False
    # A file that was cut decodes in part or not at all, depending on the crop.
    return seekable or data[-2:].tobytes() == _EOI


def _stretches(marked: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each stretch of marked places."""
    edges = np.flatnonzero(np.diff(marked, prepend=False, append=False))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round finite values to the nearest bfloat16, ties to even; return its bits."""
    bits = values.view(np.uint32)
    rounded: npt.NDArray[np.uint32] = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    return (rounded >> 16).astype(np.uint16)

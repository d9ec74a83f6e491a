"""Batches that DALI decodes; the native core and Pillow decode the other samples.

One image that DALI cannot decode ends its whole pipeline, and it decodes some images to other
colours than Pillow. So it gets only images that it decodes to Pillow's colours.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from fastdata import _native
from fastdata.dali.decoders import BESIDES
from fastdata.dali.graph import Graph
from fastdata.dali.runner import Run, Runner
from fastdata.decode.decoders import NATIVE
from fastdata.errors import FastdataError, SlowPathWarning, warn
from fastdata.executors import await_done
from fastdata.loading.fields.batch import Batch, View
from fastdata.loading.fields.buffers import BatchMemory
from fastdata.loading.fields.pipeline import Pipeline
from fastdata.once import once
from fastdata.plan.schedule import Planned
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.source import BlobColumn

_JPEG = ENCODINGS.index("jpeg")
_PNG = b"\x89PNG\r\n\x1a\n"
_EOI = b"\xff\xd9"
#: Memory of views whose samples DALI decodes into its own.
_NO_MEMORY = BatchMemory(None, None)

#: Parts of DALI's message: headings; often an operator, with its place in the pipeline's
#: definition; the reason.
_HEADINGS = re.compile(r"(Critical error .*:\s+)*")
_OPERATOR = re.compile(r"Error in (\w+ operator `.+?`).*?\sencountered:\s+", re.DOTALL)
_SAMPLE = re.compile(r"sample #(\d+)")

#: GPUs whose unused engine was warned of.
_WARNED: set[int | None] = set()

# PNG's colour types grey, RGB, palette, and RGB with alpha.
_PNG_COLOURS = (0, 2, 3, 6)


@dataclass
class DALIBatch(Batch):
    """Batch under way.

    Attributes:
        read: Job that reads DALI's candidates, while it runs.
        candidates: Slots of samples that DALI may decode.
        pillow: bool, shape (N,): samples that the core does not decode.
        run: The part that DALI decodes.
    """

    read: _native.ReadJob | None = None
    candidates: list[int] = field(default_factory=list)
    pillow: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    run: Run | None = None


class DALIPipeline(Pipeline):
    """`Pipeline` with DALI as the decoder; its engine reads, and decodes what DALI does not."""

    looks_up = False

    def __init__(self, runner: Runner, device: torch.device, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._runner, self._device = runner, device
        self._on_gpu = device.type == "cuda"
        self._warned: set[bool] = set()  # of a batch that failed, of no pipeline
        self._decodes: dict[str, bool] = {}

    def _new_batch(self, planned: Planned, key: int) -> Batch:
        return DALIBatch(planned, key)

    def _decode(self, batch: Batch) -> None:
        assert isinstance(batch, DALIBatch)
        drawn, slow = self._draw(batch)
        batch.views = [View(_NO_MEMORY, cuts) for cuts in drawn]
        if not self._on_gpu:
            self._allocate(batch)
        skip = slow | ~self._may_be_for_dali(batch.gathered)
        for cuts in drawn:
            skip |= (cuts["padding"] > 0) | (cuts["flip"] & 2 > 0)
        batch.candidates = np.flatnonzero(~skip).tolist()
        batch.pillow = slow | batch.gathered.pillow
        extents = batch.gathered.extents
        options: dict[str, Any] = {
            "skip": skip.view(np.uint8),
            "check": self._check,
            # DALI decodes damaged JPEGs to some pixels.
            "scans": not self._source.capabilities.seek_points,
        }
        if self._engine is None:
            batch.read = _native.ReadJob(extents, **options)
            batch.read.run()
        else:
            batch.read = self._engine.read(extents, **options)
        self._decode_ourselves(batch, np.flatnonzero(skip).tolist())

    def advance(self, batch: Batch) -> None:
        """See `Pipeline.advance`."""
        super().advance(batch)
        assert isinstance(batch, DALIBatch)
        if batch.read is not None and batch.read.done():
            self._begin_run(batch, batch.read)

    def ready(self, batch: Batch) -> bool:
        """See `Pipeline.ready`. False while DALI decodes: it cannot be asked."""
        assert isinstance(batch, DALIBatch)
        return batch.read is None and batch.run is None and super().ready(batch)

    def _begin_run(self, batch: DALIBatch, read: _native.ReadJob) -> None:
        """Pass suitable samples to DALI; decode the others natively."""
        batch.read = None
        gathered = batch.gathered
        samples: list[Any] = read.take()
        self._counters.add_work(read.seconds(), 0.0)
        seekable = np.asarray(gathered.extents.seekable)
        ours: list[int] = []
        theirs: list[int] = []
        for slot in batch.candidates:
            data = samples[slot]
            size = int(gathered.widths[slot]), int(gathered.heights[slot])
            # If it cannot be read or is damaged, the core says why, as in the native loader.
            kind = None if data is None else _kind(data, size, bool(seekable[slot]))
            known = kind == "jpeg" or (kind in BESIDES and self._is_decoded(kind))
            (theirs if known else ours).append(slot)
        self._decode_ourselves(batch, ours)
        if theirs:
            batch.run = Run(
                np.array(theirs, np.int64),
                [samples[slot] for slot in theirs],
                [view.cuts for view in batch.views],
            )
            self._runner.begin(batch.run)

    def _decode_ourselves(self, batch: DALIBatch, slots: Sequence[int]) -> None:
        """Decode samples natively, or by Pillow those that the core is known to decline."""
        if len(slots):
            self._allocate(batch)
        skip = np.ones(len(batch.planned.indices), np.bool_)
        skip[slots] = batch.pillow[slots]
        if np.count_nonzero(skip) < len(skip):
            self._begin_native(batch, skip.view(np.uint8))
        for slot in slots:
            if skip[slot] and slot not in batch.failed:
                self._decode_alone(batch, slot)

    def _allocate(self, batch: Batch) -> None:
        """Give a batch memory on the host, unless it has it."""
        for number, view in enumerate(batch.views):
            if view.memory is _NO_MEMORY:
                view.memory = self._memory(batch, number)

    def _finish(self, batch: Batch, deadline: float | None) -> dict[int, FastdataError]:
        assert isinstance(batch, DALIBatch)
        if batch.read is not None:
            await_done(batch.read, deadline)
            self._begin_run(batch, batch.read)
        # DALI runs under the lock, so that the interpreter can wait for it at exit.
        with self._runner.lock:
            return self._join_run(batch, deadline)

    def _join_run(self, batch: DALIBatch, deadline: float | None) -> dict[int, FastdataError]:
        """Wait for DALI's part of a batch, and join both parts."""
        run, begun = batch.run, time.perf_counter()
        if run is not None:
            stream = torch.cuda.current_stream(self._device) if self._on_gpu else None
            self._runner.finish(run, stream)
            if run.error is not None:
                self._warn(batch, run.slots, run.error)
                self._decode_ourselves(batch, run.slots.tolist())
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError
        self._counters.add_work(0.0, (time.perf_counter() - begun) * self._runner.graph.threads)
        errors = super()._finish(batch, deadline)
        for number, view in enumerate(batch.views):
            pixels = None if run is None or run.pixels is None else run.pixels[number]
            slots = np.empty(0, np.int64) if run is None else run.slots
            if self._on_gpu:
                view.memory = self._join_on_gpu(number, view.memory, slots, pixels, len(view.cuts))
            elif pixels is not None:
                self._join(number, view.memory, slots, pixels)
        batch.run = None
        return errors

    def _count(
        self, batch: Batch, decoded: npt.NDArray[np.bool_] | None, decoder: str = NATIVE
    ) -> None:
        """See `Pipeline._count`."""
        assert isinstance(batch, DALIBatch)
        if decoded is None:
            decoded = np.ones(len(batch.planned.indices), np.bool_)
        if batch.run is not None and batch.run.pixels is not None:
            theirs = np.zeros_like(decoded)
            theirs[batch.run.slots] = True
            theirs &= decoded
            decoded = decoded & ~theirs
            # Of other kinds than baseline JPEGs, it is not known what decodes them on a GPU.
            codes = np.asarray(batch.gathered.encodings)
            known = (codes == _JPEG) | (codes < 0) | (not self._on_gpu)
            super()._count(batch, theirs & known, f"DALI ({self._back_end})")
            super()._count(batch, theirs & ~known, "DALI")
        super()._count(batch, decoded, decoder)

    @once
    def _back_end(self) -> str:
        """The back end for baseline JPEGs. A failure to measure it is kept until the next pass."""
        back_end = self._runner.graph.back_end
        if back_end == "hybrid":
            _warn_of_engine(self._runner.graph)
        return back_end

    def _may_be_for_dali(self, gathered: BlobColumn) -> npt.NDArray[np.bool_]:
        """Return DALI's candidates, by what is known before reading: bool, (N,)."""
        encodings = np.asarray(gathered.extents.encodings)
        found: npt.NDArray[np.bool_] = ~gathered.pillow & ((encodings == _JPEG) | (encodings < 0))
        if self._source.capabilities.seek_points:  # without a checksum it may be damaged
            found &= np.asarray(gathered.extents.seekable) > 0
        for name in BESIDES:
            there = encodings == ENCODINGS.index(name)
            if there.any() and self._is_decoded(name):
                found |= there
        return found

    def _is_decoded(self, encoding: str) -> bool:
        """Return whether DALI decodes an encoding; without a device, the next pass tries again."""
        if encoding not in self._decodes:
            self._decodes[encoding] = self._runner.graph.decodes(encoding)
        return self._decodes[encoding]

    def _warn(self, batch: Batch, slots: npt.NDArray[np.int64], error: Exception) -> None:
        broken = self._runner.broken is not None
        if broken in self._warned:
            return
        self._warned.add(broken)
        if broken:
            what = "DALI cannot build its pipeline, so fastdata decodes this epoch natively"
        else:
            what = (
                "DALI failed for a batch, which fastdata decoded natively; other batches of this "
            )
            what += "epoch that fail are not named"
        reason = _reason(error)
        number = _SAMPLE.search(reason)
        if number is not None and int(number[1]) < len(slots):
            index = int(batch.planned.indices[slots[int(number[1])]])
            reason = self._source.problem(index, reason).what
        warn(f"{what}: {reason}")

    def _join(
        self, number: int, memory: BatchMemory, slots: npt.NDArray[np.int64], pixels: Any
    ) -> None:
        """Copy DALI's part of a view into the batch."""
        output = self._settings.recipe.programs[number].output
        rows = memory.array if output.channels_last else memory.array.transpose(0, 3, 1, 2)
        # By NumPy: torch's threads do not survive a fork.
        found = np.asarray(pixels)
        rows[slots] = _bfloat16(found) if output.dtype == "bfloat16" else found

    def _join_on_gpu(
        self,
        number: int,
        memory: BatchMemory,
        slots: npt.NDArray[np.int64],
        pixels: Any,
        count: int,
    ) -> BatchMemory:
        """Return a view of ``count`` samples on the GPU: DALI's own memory if it decoded all."""
        output = self._settings.recipe.programs[number].output
        found = None
        if pixels is not None:
            found = torch.from_dlpack(pixels)  # type: ignore[attr-defined]
            found = found.to(getattr(torch, output.dtype))
        if found is not None and len(found) == count:
            rows = found
        else:
            host = memory.tensor.permute(0, 2, 3, 1) if output.channels_last else memory.tensor
            rows = torch.empty_like(host, device=self._device)
            ours = np.ones(count, np.bool_)
            if found is not None:
                # Pinned: from other memory, the copy would wait for the stream, and so for DALI.
                there = torch.from_numpy(slots).pin_memory().to(self._device, non_blocking=True)
                rows[there] = found
                ours[slots] = False
            for begin, end in _stretches(ours):
                rows[begin:end].copy_(host[begin:end], non_blocking=True)
        tensor = rows.permute(0, 3, 1, 2) if output.channels_last else rows
        # Its array is a tensor, too: blanking a bad sample's pixels writes to either.
        return BatchMemory(tensor, cast(Any, tensor.permute(0, 2, 3, 1)))

    def close(self) -> None:
        """See `Pipeline.close`."""
        self._runner.close()

    def cancel(self, batch: Batch) -> None:
        """See `Pipeline.cancel`."""
        assert isinstance(batch, DALIBatch)
        if batch.read is not None:
            batch.read.cancel()
        if batch.run is not None:
            batch.run.cancelled = True
        super().cancel(batch)


def _warn_of_engine(graph: Graph) -> None:
    """Warn once if a GPU has a JPEG engine, which is not used."""
    if graph.device_id not in _WARNED and graph.offers_engine:
        _WARNED.add(graph.device_id)
        warn(
            f"the JPEG engine of cuda:{graph.device_id} is not used: DALI decodes by its hybrid "
            "back end, which takes a CPU thread 1 to 2 ms an image; fastdata.DataLoader takes less",
            SlowPathWarning,
        )


def _kind(data: npt.NDArray[np.uint8], size: tuple[int, int], seekable: bool) -> str | None:
    """Return the encoding of a sample that DALI may decode to Pillow's pixels; None of others.

    ``size``: (width, height) that its crop was drawn for; ``seekable``: it was decoded once.
    """
    found, width, height, *_, code, _, _ = _native.probe(data)
    if found.startswith("jpeg"):
        if (width, height) != size or code != "ok":
            return None
        # A file that was cut decodes in part or not at all, depending on the crop.
        return found if seekable or data[-2:].tobytes() == _EOI else None
    head = data[:33].tobytes()
    if head[:8] != _PNG or len(head) < 33:
        return None
    said = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    return "png" if said == size and head[24] == 8 and head[25] in _PNG_COLOURS else None


def _reason(error: Exception) -> str:
    """Return why DALI failed, and in which operator, from its message of many lines."""
    text = _HEADINGS.sub("", str(error), count=1)
    operator = _OPERATOR.match(text)
    lines = text[operator.end() if operator else 0 :].strip().splitlines()
    why = lines[0].rstrip(" :") if lines else type(error).__name__
    return why if operator is None else f"{why} ({operator[1]})"


def _stretches(marked: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each stretch of marked places."""
    edges = np.flatnonzero(np.diff(marked, prepend=False, append=False))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round finite values to the nearest bfloat16, ties to even; return its bits."""
    bits = values.view(np.uint32)
    rounded: npt.NDArray[np.uint32] = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    return (rounded >> 16).astype(np.uint16)

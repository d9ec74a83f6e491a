"""Batches that DALI decodes, mended by the native core and Pillow where it cannot."""

from __future__ import annotations

import threading
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from fastdata import _native
from fastdata.dali.runner import DALIError, Run, Runner
from fastdata.dali.samples import candidates, kind_of
from fastdata.decode.engine import NOTHING_TO_DECODE, Engine
from fastdata.errors import FastdataError
from fastdata.loading.buffers import BatchMemory, BufferPool
from fastdata.loading.pipeline import Batch, Pipeline, Settings, View, await_done
from fastdata.loading.source import Gathered, Source
from fastdata.loading.stats import Counters
from fastdata.plan.schedule import Planned
from fastdata.remote.prefetch import RemotePass
from fastdata.transforms.compile import Program
from fastdata.transforms.geometry import Geometry


class Decoding:
    """DALI's part of one batch: what `fastdata.dali.runner.Work` asks for.

    Args:
        read: Reads the samples.
        gathered: What is known of them.
        places: Those that are read.
        geometries: Of each view.
        known_bad: Places of samples that DALI has failed for before.
        stream: The CUDA stream that they are for.
    """

    def __init__(
        self,
        read: _native.ReadJob,
        gathered: Gathered,
        places: list[int],
        geometries: list[Geometry],
        known_bad: set[int],
        stream: Any,
    ) -> None:
        self.read = read
        self.geometries = geometries
        self.stream = stream
        self.cancelled = False
        self.error: Exception | None = None
        #: What could not be read: (place, code, detail).
        self.unread: list[tuple[int, str, str]] = []
        #: Places that are not DALI's, or turned out not to be.
        self.refused: list[int] = []
        self.failed: list[int] = []
        #: Places, and pixels of each view, in memory of DALI's.
        self.pixels: list[tuple[npt.NDArray[np.int64], list[Any]]] = []
        self.seconds = 0.0
        self._gathered = gathered
        self._places = places
        self._known_bad = known_bad
        self._sorted = threading.Event()
        self._done = threading.Event()

    @property
    def is_sorted(self) -> bool:
        """Whether `refused` is known."""
        return self._sorted.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for DALI; whether it is done."""
        return self._done.wait(timeout)

    def sort(self) -> list[Run]:
        """See `fastdata.dali.runner.Work.sort`."""
        gathered = self._gathered
        self.unread = [(place, code, detail) for place, code, detail, _ in self.read.failures()]
        samples: list[Any] = self.read.take()
        encodings = np.asarray(gathered.extents.encodings).tolist()
        seekable = np.asarray(gathered.extents.seekable).tolist()
        widths, heights = gathered.widths.tolist(), gathered.heights.tolist()
        lost = {place for place, code, _ in self.unread if code in NOTHING_TO_DECODE}
        kinds: dict[str, list[int]] = {}
        for place in self._places:
            data, kind = samples[place], None
            if place in lost:
                continue
            if data is not None and place not in self._known_bad:
                size = widths[place], heights[place]
                kind = kind_of(data, encodings[place], *size, bool(seekable[place]))
            if kind is None:
                self.refused.append(place)
            else:
                kinds.setdefault(kind, []).append(place)
                if kind == "raw":
                    samples[place] = data.reshape(heights[place], widths[place], 3)
        self._sorted.set()
        return [
            Run(kind, np.array(places, np.int64), [samples[place] for place in places])
            for kind, places in kinds.items()
        ]

    def take(self, run: Run, outputs: list[Any]) -> None:
        """See `fastdata.dali.runner.Work.take`."""
        self.pixels.append((run.places, outputs))

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.cancelled = True
        self.error = DALIError("the batch was cancelled")
        self.read.cancel()
        self._done.set()

    def refuse(self, place: int) -> None:
        """See `fastdata.dali.runner.Work.refuse`."""
        self.failed.append(place)

    def finish(self, seconds: float) -> None:
        """See `fastdata.dali.runner.Work.finish`."""
        self.seconds = seconds
        self._sorted.set()
        self._done.set()


@dataclass
class DALIBatch(Batch):
    """A batch under way.

    Attributes:
        decoding: DALI's part of it; None before the sizes are known.
        handed_on: Whether the native core has been given what is not DALI's.
    """

    decoding: Decoding | None = None
    handed_on: bool = False


# Where nothing but DALI puts pixels.
_NO_MEMORY = BatchMemory(torch.empty(0), np.empty(0))


class DALIPipeline(Pipeline):
    """Begins and finishes batches, as `fastdata.loading.pipeline.Pipeline` does.

    Args:
        source: Where samples come from.
        settings: How they are decoded.
        pool: Memory for pixels that are not DALI's.
        engine: Threads that read, and decode what is not DALI's; None for the consumer's own.
        helpers: Runs what is Pillow's.
        counters: Counts what was done.
        remote: Fetches what is not on this machine; None where all is.
        runner: Runs DALI.
        threads: DALI's threads.
        device: Where batches are to be.
        known_bad: Samples that DALI has failed for; grows.
    """

    def __init__(
        self,
        source: Source,
        settings: Settings,
        pool: BufferPool,
        engine: Engine | None,
        helpers: Executor,
        counters: Counters,
        remote: RemotePass | None,
        runner: Runner,
        threads: int,
        device: torch.device,
        known_bad: set[int],
    ) -> None:
        super().__init__(source, settings, pool, engine, helpers, counters, remote)
        self._runner = runner
        self._threads = threads
        self._device = device
        self._known_bad = known_bad

    def _new_batch(self, planned: Planned, key: int, gathered: Gathered) -> Batch:
        return DALIBatch(planned, key, gathered)

    def _decode(self, batch: Batch) -> None:
        assert isinstance(batch, DALIBatch)
        geometries, slow = self._draw(batch)
        slow |= ~candidates(batch.gathered)
        skip = slow.view(np.uint8) if np.count_nonzero(slow) else None
        batch.views = [View(_NO_MEMORY, geometry) for geometry in geometries]
        extents = batch.gathered.extents
        check = self._settings.check and self._remote is None  # it was checked then
        if self._engine is None:
            read = _native.ReadJob(extents, skip=skip, check=check)
            read.run()
        else:
            read = self._engine.read(extents, skip, check)
        bad: set[int] = set()
        if self._known_bad:
            indices = batch.planned.indices.tolist()
            bad = {place for place, index in enumerate(indices) if index in self._known_bad}
        stream = None
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device)
        batch.decoding = Decoding(
            read, batch.gathered, np.flatnonzero(~slow).tolist(), geometries, bad, stream
        )
        self._runner.submit(batch.decoding)
        for place in np.flatnonzero(slow).tolist():
            if place not in batch.failed:
                self._own_memory(batch)
                self._by_pillow(batch, place)

    def _own_memory(self, batch: Batch) -> None:
        """Makes room for pixels that are not DALI's."""
        for number, view in enumerate(batch.views):
            if view.memory is _NO_MEMORY:
                view.memory = self._memory(batch, number)

    def advance(self, batch: Batch) -> None:
        """See `Pipeline.advance`."""
        super().advance(batch)
        assert isinstance(batch, DALIBatch)
        if batch.decoding is not None and batch.decoding.is_sorted and not batch.handed_on:
            self._hand_on(batch, batch.decoding.refused)

    def _hand_on(self, batch: DALIBatch, places: list[int]) -> None:
        """Has samples decoded natively, or by Pillow if that fails or is known to."""
        batch.handed_on = True
        if not places:
            return
        self._own_memory(batch)
        skip = np.ones(len(batch.planned.indices), np.uint8)
        skip[places] = batch.gathered.pillow[places]
        if np.count_nonzero(skip) < len(skip):
            for number in range(len(batch.views)):
                self._begin_native(batch, number, skip)
        for place in places:
            if skip[place]:
                self._by_pillow(batch, place)

    def _finish(self, batch: Batch, deadline: float | None) -> dict[int, FastdataError]:
        assert isinstance(batch, DALIBatch)
        decoding = batch.decoding
        assert decoding is not None
        await_done(decoding, deadline)
        if decoding.error is not None:
            raise decoding.error
        self._counters.add_work(decoding.read.seconds(), decoding.seconds * self._threads)
        indices = batch.planned.indices
        for place, code, detail in decoding.unread:
            if code in NOTHING_TO_DECODE and batch.gathered.pillow[place]:
                # It fails for Pillow, too: in the words of the native loader.
                self._own_memory(batch)
                self._by_pillow(batch, place)
            elif code in NOTHING_TO_DECODE:
                problem = self._source.problem(int(indices[place]), detail, code)
                batch.failed.setdefault(place, problem)
        if not batch.handed_on:
            self._hand_on(batch, decoding.refused)
        if decoding.failed:
            self._known_bad.update(indices[decoding.failed].tolist())
            self._hand_on(batch, decoding.failed)
        errors = super()._finish(batch, deadline)
        for number, view in enumerate(batch.views):
            parts = [(places, pixels[number]) for places, pixels in decoding.pixels]
            view.memory = self._joined(batch, number, parts)
        decoding.pixels.clear()
        return errors

    def _joined(
        self, batch: Batch, number: int, parts: list[tuple[npt.NDArray[np.int64], Any]]
    ) -> BatchMemory:
        """One view of a batch, from what DALI has decoded and what is in memory of our own."""
        program, own = self._settings.recipe.programs[number], batch.views[number].memory
        count = len(batch.planned.indices)
        whole = len(parts) == 1 and len(parts[0][0]) == count
        if self._device.type == "cuda":
            return self._joined_on_gpu(program, count, own, parts, whole)
        half = program.output.dtype == "bfloat16"
        if whole and not half and not self._pool.pinned:
            return self._seen_twice(program, from_dlpack(parts[0][1]))  # not copied
        if own is _NO_MEMORY:
            own = self._memory(batch, number)
        last = program.output.channels_last
        # As DALI has it. By NumPy: torch's threads do not survive a fork.
        rows = own.array if last else own.array.transpose(0, 3, 1, 2)
        for places, pixels in parts:
            found = np.asarray(pixels)
            rows[slice(None) if whole else places] = _bfloat16(found) if half else found
        return own

    def _joined_on_gpu(
        self,
        program: Program,
        count: int,
        own: BatchMemory,
        parts: list[tuple[npt.NDArray[np.int64], Any]],
        whole: bool,
    ) -> BatchMemory:
        output = program.output
        dtype: torch.dtype = getattr(torch, output.dtype)
        if whole:
            return self._seen_twice(program, from_dlpack(parts[0][1]).to(dtype))  # not copied
        width, height = program.size
        shape = (height, width, 3) if output.channels_last else (3, height, width)
        rows = torch.empty((count, *shape), dtype=dtype, device=self._device)
        if own is not _NO_MEMORY:
            rest = np.ones(count, np.bool_)
            for places, _ in parts:
                rest[places] = False
            chosen = torch.from_numpy(np.flatnonzero(rest))
            mine = own.tensor.permute(0, 2, 3, 1) if output.channels_last else own.tensor
            rows[chosen.to(self._device)] = mine[chosen].to(self._device)
        for places, pixels in parts:
            rows[torch.from_numpy(places).to(self._device)] = from_dlpack(pixels).to(dtype)
        return self._seen_twice(program, rows)

    def _seen_twice(self, program: Program, rows: torch.Tensor) -> BatchMemory:
        """A batch as DALI has it, as `BatchMemory`; on a GPU its array is a tensor, too."""
        if program.output.channels_last:
            tensor, pixels = rows.permute(0, 3, 1, 2), rows
        else:
            tensor, pixels = rows, rows.permute(0, 2, 3, 1)
        if rows.is_cuda:
            return BatchMemory(tensor, cast(Any, pixels))
        return BatchMemory(tensor, pixels.numpy())

    def close(self) -> None:
        """See `Pipeline.close`."""
        self._runner.close()

    def cancel(self, batch: Batch) -> None:
        """See `Pipeline.cancel`."""
        assert isinstance(batch, DALIBatch)
        if batch.decoding is not None:
            batch.decoding.cancel()
        super().cancel(batch)


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Finite values rounded to the nearest bfloat16, to even ones from halfway, as its bits."""
    bits = values.view(np.uint32)
    rounded: npt.NDArray[np.uint32] = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    return (rounded >> 16).astype(np.uint16)

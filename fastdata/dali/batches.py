"""Batches that DALI decodes; the native core and Pillow decode what is not for it."""

from __future__ import annotations

import time
import warnings
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from fastdata import _native
from fastdata.dali.runner import Run, Runner
from fastdata.dali.samples import candidates, kind_of
from fastdata.decode.engine import Engine
from fastdata.decode.fallback import NOTHING_TO_DECODE
from fastdata.errors import FastdataError
from fastdata.loading.buffers import BatchMemory, BufferPool
from fastdata.loading.pipeline import Batch, Pipeline, Settings, View, await_done
from fastdata.loading.source import Gathered, Source
from fastdata.loading.stats import Counters
from fastdata.plan.schedule import Planned
from fastdata.remote.prefetch import RemotePass
from fastdata.transforms.compile import Program


@dataclass
class DALIBatch(Batch):
    """A batch under way.

    Attributes:
        read: Reads the samples that may be DALI's; None before their sizes are known, and once
            they are sorted.
        candidates: Places of those.
        stream: The CUDA stream that it is for; None on the CPU.
        runs: What DALI decodes of it.
    """

    read: _native.ReadJob | None = None
    candidates: list[int] = field(default_factory=list)
    stream: Any = None
    runs: list[Run] = field(default_factory=list)


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
    ) -> None:
        super().__init__(source, settings, pool, engine, helpers, counters, remote)
        self._runner = runner
        self._threads = threads
        self._device = device
        self._warned = False

    def _new_batch(self, planned: Planned, key: int, gathered: Gathered) -> Batch:
        return DALIBatch(planned, key, gathered)

    def _decode(self, batch: Batch) -> None:
        assert isinstance(batch, DALIBatch)
        geometries, slow = self._draw(batch)
        slow |= ~candidates(batch.gathered)
        skip = slow.view(np.uint8) if np.count_nonzero(slow) else None
        batch.views = [View(_NO_MEMORY, geometry) for geometry in geometries]
        batch.candidates = np.flatnonzero(~slow).tolist()
        if self._device.type == "cuda":
            batch.stream = torch.cuda.current_stream(self._device)
        extents = batch.gathered.extents
        check = self._settings.check and self._remote is None  # it was checked then
        if self._engine is None:
            batch.read = _native.ReadJob(extents, skip=skip, check=check)
            batch.read.run()
        else:
            batch.read = self._engine.read(extents, skip, check)
        for place in np.flatnonzero(slow).tolist():
            if place not in batch.failed:
                self._own_memory(batch)
                self._by_pillow(batch, place)

    def advance(self, batch: Batch) -> None:
        """See `Pipeline.advance`."""
        super().advance(batch)
        assert isinstance(batch, DALIBatch)
        if batch.read is not None and batch.read.done():
            self._sort(batch, batch.read)

    def _sort(self, batch: DALIBatch, read: _native.ReadJob) -> None:
        """Begins decoding what was read: by DALI, natively, or by Pillow."""
        batch.read = None
        gathered, indices = batch.gathered, batch.planned.indices
        lost = set()
        for place, code, detail, _ in read.failures():
            if code not in NOTHING_TO_DECODE:
                continue
            lost.add(place)
            if gathered.pillow[place]:
                # It fails for Pillow, too: in the words of the native loader.
                self._own_memory(batch)
                self._by_pillow(batch, place)
            else:
                problem = self._source.problem(int(indices[place]), detail, code)
                batch.failed.setdefault(place, problem)
        samples: list[Any] = read.take()
        self._counters.add_work(read.seconds(), 0.0)
        encodings = np.asarray(gathered.extents.encodings).tolist()
        seekable = np.asarray(gathered.extents.seekable).tolist()
        sizes = list(zip(gathered.widths.tolist(), gathered.heights.tolist(), strict=True))
        kinds: dict[str | None, list[int]] = {}
        for place in batch.candidates:
            data, kind = samples[place], None
            if place in lost:
                continue
            if data is not None:
                kind = kind_of(data, encodings[place], *sizes[place], bool(seekable[place]))
            kinds.setdefault(kind, []).append(place)
            if kind == "raw":
                samples[place] = data.reshape(*sizes[place][::-1], 3)
        self._decode_ourselves(batch, kinds.pop(None, []))
        for kind, places in kinds.items():
            assert kind is not None
            run = Run(
                kind,
                np.array(places, np.int64),
                [samples[place] for place in places],
                [view.geometry for view in batch.views],
                batch.stream,
            )
            batch.runs.append(run)
            self._runner.begin(run)

    def _decode_ourselves(self, batch: DALIBatch, places: list[int]) -> None:
        """Has samples decoded natively, or by Pillow if that fails or is known to."""
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
        if batch.read is not None:
            await_done(batch.read, deadline)
            self._sort(batch, batch.read)
        begun = time.perf_counter()
        for run in batch.runs:
            self._runner.finish(run)
            if run.error is not None:
                self._warn(run.error)
                self._decode_ourselves(batch, run.places.tolist())
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError
        self._counters.add_work(0.0, (time.perf_counter() - begun) * self._threads)
        errors = super()._finish(batch, deadline)
        for number, view in enumerate(batch.views):
            parts = [(run.places, run.pixels[number]) for run in batch.runs if run.pixels]
            view.memory = self._joined(batch, number, parts)
        batch.runs.clear()
        return errors

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            reason = str(error).strip().splitlines() or [type(error).__name__]
            warnings.warn(
                "DALI failed for a batch, which fastdata has decoded in its place, as it will "
                f"others of this epoch: {reason[0]}",
                stacklevel=2,
            )

    def _own_memory(self, batch: Batch) -> None:
        """Makes room for pixels that are not DALI's."""
        for number, view in enumerate(batch.views):
            if view.memory is _NO_MEMORY:
                view.memory = self._memory(batch, number)

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
        if batch.read is not None:
            batch.read.cancel()
        for run in batch.runs:
            self._runner.cancel(run)
        super().cancel(batch)


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Finite values rounded to the nearest bfloat16, to even ones from halfway, as its bits."""
    bits = values.view(np.uint32)
    rounded: npt.NDArray[np.uint32] = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    return (rounded >> 16).astype(np.uint16)

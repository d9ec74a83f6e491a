"""DALI on a simulated GPU: its CPU operators, with the streams and memory of its executor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import nvidia.dali as dali
import simgpu
import torch

_Pipeline: Any = dali.Pipeline


class Pipeline(_Pipeline):  # type: ignore[misc]
    """`nvidia.dali.Pipeline`."""

    may = sys.maxsize
    given = blocked = 0
    streams: ClassVar[list[Any]] = []

    def __init__(self, device_id: int | None = None, **options: Any) -> None:
        super().__init__(device_id=None, **options)
        self._gpu = None if device_id is None else simgpu.Stream(device_id)
        self._blocks: list[torch.Tensor] = []

    def outputs(self, cuda_stream: Any = None) -> Any:
        found = super().outputs()
        if self._gpu is None:
            return found
        number = Pipeline.given
        if cuda_stream is not None:  # the first ones only fill it
            Pipeline.given += 1
            Pipeline.blocked += number >= Pipeline.may
            Pipeline.streams.append(cuda_stream)
        self._gpu.queue.append(simgpu.Hold(lambda: number < Pipeline.may))
        outputs = [self._write(np.asarray(one.as_tensor()), cuda_stream) for one in found]
        if cuda_stream is None:
            self._gpu.synchronize()
        else:
            cuda_stream.wait_stream(self._gpu)
        return outputs

    def _write(self, pixels: Any, stream: Any) -> _Output:
        source = torch.from_numpy(pixels.copy())
        fits = [at for at, one in enumerate(self._blocks) if len(one) == source.nbytes]
        if fits:
            raw = self._blocks.pop(fits[0])
        else:
            raw = torch.full((source.nbytes,), simgpu.FRESH, dtype=torch.uint8)
        memory = raw.view(source.dtype).view(source.shape)
        self._gpu.queue.append(lambda: memory.copy_(source))
        return _Output(simgpu.GPUTensor(memory, _Block(self._blocks, raw, stream or self._gpu)))


class _Block:
    def __init__(self, free: list[torch.Tensor], raw: torch.Tensor, stream: Any) -> None:
        self.free, self.raw, self.stream = free, raw, stream
        self.used: set[Any] = set()

    def __del__(self) -> None:
        raw, free = self.raw, self.free

        def done() -> None:
            raw.fill_(simgpu.FREED)
            free.append(raw)

        self.stream.queue.append(done)


class _Output:
    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def as_tensor(self) -> _Output:
        return self

    def on_gpu(self) -> Any:
        return self._tensor


@contextmanager
def simulated() -> Iterator[None]:
    def on_cpu(operator: Any) -> Any:
        def call(*args: Any, device: str = "cpu", **options: Any) -> Any:
            return operator(*args, device="cpu" if device == "mixed" else device, **options)

        return call

    decoders: Any = dali.fn.decoders
    Pipeline.may, Pipeline.given, Pipeline.blocked = sys.maxsize, 0, 0
    Pipeline.streams.clear()
    with (
        mock.patch.object(dali, "Pipeline", Pipeline),
        mock.patch.object(decoders, "image", on_cpu(decoders.image)),
        mock.patch.object(decoders, "image_slice", on_cpu(decoders.image_slice)),
    ):
        yield

"""Programs that send batches to a GPU and use them, and say whether all was as it should be.

Each runs on a simulated GPU (simgpu.py), and raises AssertionError where something was read too
early, too late, or in the wrong place. test_device_simulated.py runs them as they are;
test_device_mutants.py runs them with one protection taken out of the code.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import simgpu
import torch

from fastdata import DeviceLoader

#: Batches of a pass.
COUNT = 9


class Lease:
    """Memory of a loader that uses it again, or unmaps it, as soon as nobody refers to it."""

    def __init__(self, block: Any, free: list[Any], unmap: bool) -> None:
        self.block, self.free, self.unmap = block, free, unmap
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        if not self.unmap:
            self.block.fill(simgpu.FREED)
            self.free.append(self.block)


class Numbered:
    """Batches whose pixels are all their number, as are their labels."""

    def __init__(self, gpus: simgpu.GPUs, rng: random.Random, pin: bool) -> None:
        self.gpus, self.rng, self.pin = gpus, rng, pin
        self.free: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        for number in range(COUNT):
            yield self.batch(number)

    def batch(self, number: int) -> Any:
        if self.free:
            block = self.free.pop()
        else:
            block = np.empty((2, 4, 4, 3), np.uint8)
            if self.pin:
                self.gpus.register(block)
        array = np.asarray(Lease(block, self.free, self.rng.random() < 0.3))
        array.fill(number)
        return [torch.from_numpy(array.transpose(0, 3, 1, 2)), torch.full((2,), number)]


class Reader:
    """Reads batches on the GPU, and remembers what it saw to be looked at later."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.seen: list[Any] = []

    def read(self, number: int, pixels: Any, labels: Any) -> None:
        """Reads a batch on the current stream."""
        self.seen.append((number, pixels.double() * self.scale, labels.double()))

    def check(self) -> None:
        """See that everything seen was of its batch."""
        torch.accelerator.synchronize()
        for number, pixels, labels in self.seen:
            assert (pixels.cpu() - number).abs().max() < 0.01, f"pixels of batch {number}"
            assert (labels.cpu() == number).all(), f"labels of batch {number}"


def passes(gpus: simgpu.GPUs, rng: random.Random, **options: Any) -> None:
    """Two passes by a consumer who changes streams, drops batches early, and may leave."""
    choices = {
        "pin": rng.random() < 0.5,
        "dtype": rng.choice([None, "float32"]),
        "prefetch": rng.randint(1, 3),
        "streams": rng.randint(1, 3),
        "leave": rng.choice([0.0, 0.2]),
        **options,
    }
    streams = [torch.accelerator.current_stream()]
    streams += [torch.Stream("cuda") for _ in range(choices["streams"] - 1)]
    dtype = choices["dtype"]
    loader = DeviceLoader(
        Numbered(gpus, rng, choices["pin"]), "cuda", dtype=dtype, prefetch=choices["prefetch"]
    )
    reader = Reader(255 if dtype else 1)
    like = {"dtype": torch.float32 if dtype else torch.uint8, "device": "cuda"}
    for _ in range(2):
        iterator = iter(loader)
        others: list[Any] = []
        for number in range(COUNT):
            with rng.choice(streams):
                pixels, labels = next(iterator)
                for _ in range(rng.randint(1, 2)):
                    reader.read(number, pixels, labels)
                del pixels, labels
                # Memory that was the batch's is somebody else's from now on.
                if rng.random() < 0.4:
                    others = [
                        torch.full((2, 3, 4, 4), 77, **like) for _ in range(rng.randint(0, 3))
                    ]
            if rng.random() < choices["leave"]:
                break
        del iterator
        gc.collect(0)
        with rng.choice(streams):
            mine = [torch.full((2, 3, 4, 4), 77, **like) for _ in range(3)]
            labels = [torch.full((2,), 77, device="cuda") for _ in range(3)]
        torch.accelerator.synchronize()
        assert all(bool((one == 77).all()) for one in (*mine, *labels, *others)), "written over"
        del mine, labels
    reader.check()
    assert not gpus.faults, gpus.faults
    assert not gpus.spins, "a thread that waits for the GPU sleeps"


def failing(gpus: simgpu.GPUs, rng: random.Random) -> None:
    """A batch whose copies fail half way: its pixels have been sent, its labels cannot be."""
    source = Numbered(gpus, rng, pin=True)
    iterator: Any = iter(DeviceLoader((source.batch(number) for number in range(COUNT)), "cuda"))
    reader = Reader(1)
    mine: list[Any] = []
    for number in range(COUNT):
        gpus.host_memory = 0 if number == 0 else 1 << 30
        try:
            pixels, labels = next(iterator)
        except simgpu.CUDAError:
            mine += [torch.full((2, 3, 4, 4), 77, dtype=torch.uint8, device="cuda") for _ in "123"]
            continue
        reader.read(number, pixels, labels)
    iterator.close()  # its error keeps it alive, by a circle
    torch.accelerator.synchronize()
    assert mine and all(bool((one == 77).all()) for one in mine), "written over"
    reader.check()
    assert not gpus.faults, gpus.faults


ALL = [passes, failing]

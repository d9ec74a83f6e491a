"""Programs that send batches to a simulated GPU and raise AssertionError if one is misread."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import simgpu
import torch
from loader_data import CROPS, images

from fastdata import DataLoader, DeviceLoader
from fastdata.dali import DALILoader
from fastdata.device import delivery
from fastdata.device.transfer import on_device
from fastdata.transforms import CenterCrop, Compose, Normalize

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
    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.seen: list[Any] = []

    def read(self, number: int, pixels: Any, labels: Any) -> None:
        self.seen.append((number, pixels.double() * self.scale, labels.double()))

    def check(self) -> None:
        torch.accelerator.synchronize()
        for number, pixels, labels in self.seen:
            assert (pixels.cpu() - number).abs().max() < 0.01, f"pixels of batch {number}"
            assert (labels.cpu() == number).all(), f"labels of batch {number}"


def passes(gpus: simgpu.GPUs, rng: random.Random, **options: Any) -> None:
    """Two passes by a consumer who changes streams, drops batches early, and may leave."""
    choices = {
        "pin": rng.random() < 0.5,
        "dtype": rng.choice([None, "float32"]),
        "channels_last": rng.random() < 0.7,
        "prefetch": rng.randint(1, 3),
        "streams": rng.randint(1, 3),
        "leave": rng.choice([0.0, 0.2]),
        **options,
    }
    streams = [torch.accelerator.current_stream()]
    streams += [torch.Stream("cuda") for _ in range(choices["streams"] - 1)]
    dtype = choices["dtype"]
    given = {name: choices[name] for name in ("dtype", "channels_last", "prefetch")}
    loader = DeviceLoader(Numbered(gpus, rng, choices["pin"]), "cuda", **given)
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
    assert not gpus.blocking, "the host waits for a copy"
    assert not gpus.needless, "memory is recorded for the stream that it belongs to"
    if choices["pin"] and choices["channels_last"]:
        assert gpus.locked <= 200, "only labels are staged"
    assert not gpus.pageable, "pageable memory is copied while the host waits"


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


def native(gpus: simgpu.GPUs, rng: random.Random) -> None:
    """The native loader, on a device that is not the current one, which gets no context."""
    torch.set_default_device("cuda:1")
    try:
        threads = rng.randint(0, 2)
        loader = DataLoader(native_images(), 9, num_workers=threads, seed=1, device="cuda:1")
        found = [[one.double() for one in batch] for batch in loader]
        iterator = iter(loader)
        next(iterator)
        del iterator
        # A stream of that device takes a batch, and then its default one.
        there: Any = iter(DeviceLoader(Numbered(gpus, rng, True), "cuda:1"))
        with on_device(torch.device("cuda:1")), torch.Stream("cuda:1"):
            next(there)
        next(there)
        there.close()
    finally:
        torch.set_default_device(None)
    for batch, wanted in zip(found, native_batches(), strict=True):
        for one, other in zip(batch, wanted, strict=True):
            assert one.device.index == 1 and (one.cpu() - other.double()).abs().max() < 0.01
    assert gpus.contexts == {1}, gpus.contexts
    assert not gpus.pageable, "pageable memory is copied while the host waits"


@cache
def native_images() -> Any:
    return images(Compose([CROPS, Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), dtype="float16")]))


@cache
def native_batches() -> Any:
    return list(DataLoader(native_images(), 9, seed=1, device="cpu"))


def dali(gpus: simgpu.GPUs, rng: random.Random) -> None:
    import simdali

    options: dict[str, Any] = {"num_workers": 2, "seed": 1}
    with simdali.simulated():
        # Some are padded, so fastdata decodes them, and they join the others.
        data = dali_images(rng.random() < 0.5)
        loader = DALILoader(data, 9, device="cuda", **options)
        streams = [torch.accelerator.current_stream(), torch.Stream("cuda")]
        found, others = [], []
        for _ in range(2):
            loader.set_epoch(0)
            iterator = iter(loader)
            for number, wanted in enumerate(DALILoader(data, 9, **options)):
                with rng.choice(streams):
                    batch = next(iterator)
                    found.append((number, [one.double() for one in batch], wanted))
                    del batch
                    others = [torch.full((9, 24, 24, 3), 77, device="cuda") for _ in range(2)]
            del iterator
        torch.accelerator.synchronize()
        for number, batch, wanted in found:
            for one, other in zip(batch, wanted, strict=True):
                assert (one.cpu() - other.double()).abs().max() < 0.01, number
        assert all(bool((one == 77).all()) for one in others)
    assert not gpus.faults, gpus.faults


@cache
def dali_images(padded: bool) -> Any:
    return images(CenterCrop(60) if padded else CROPS)


def staged(gpus: simgpu.GPUs, rng: random.Random) -> None:
    """Every kind of tensor, none of it page-locked, with the GPU as torch's default device."""
    labels = torch.arange(12)
    batch = {
        "pixels": torch.arange(96, dtype=torch.uint8).view(2, 3, 4, 4),
        "slice": labels[::2],
        "expanded": labels[:1].expand(5),
        "pinned slice": labels.pin_memory()[1::3],
        "transposed": labels.view(3, 4).T,
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "there": torch.arange(3).to("cuda"),
        "elsewhere": torch.arange(3).to("cuda:1"),
        "name": "x",
    }
    gpus.pageable = 0
    wanted = {name: one.cpu() for name, one in batch.items() if name != "name"}
    size = sum(one.numel() * one.element_size() for one in wanted.values())
    gpus.locked = 0
    torch.set_default_device("cuda")
    try:
        *_, found = DeviceLoader([batch] * 6, "cuda", dtype="float32", prefetch=1)
    finally:
        torch.set_default_device(None)
    assert gpus.locked <= 2 * size, "staging memory is that of two batches, used again"
    torch.accelerator.synchronize()
    torch.accelerator.synchronize("cuda:1")
    assert found.pop("name") == "x" and found["there"] is batch["there"]
    assert (found.pop("pixels").cpu() * 255 - wanted.pop("pixels")).abs().max() < 0.01
    for name, one in wanted.items():
        assert found[name].device == torch.device("cuda", 0), name
        assert torch.equal(found[name].cpu(), one) and found[name].dtype == one.dtype, name
    assert not gpus.pageable, "pageable memory is copied while the host waits"


def held_up(gpus: simgpu.GPUs, rng: random.Random) -> None:
    """DALI decodes the next batch for ever: a step with the one before ends all the same."""
    import simdali

    with simdali.simulated():
        loader = DALILoader(dali_images(False), 9, num_workers=2, seed=1, device="cuda")
        iterator: Any = iter(loader)
        try:
            for number in range(3):
                simdali.Pipeline.may = number + 1
                pixels, _ = next(iterator)
                read = pixels.double()
                torch.accelerator.current_stream().synchronize()
                assert read.max() < 256
                assert not simdali.Pipeline.blocked, "a batch that is there waits for the next"
            current = torch.accelerator.current_stream()
            assert current not in simdali.Pipeline.streams, "a step may wait for DALI"
        finally:
            simdali.Pipeline.may = sys.maxsize
            iterator.close()


def fork(gpus: simgpu.GPUs, rng: random.Random) -> None:
    """A fork, pretended, has an iterator of its parent's and its batches: it touches no GPU."""
    iterator: Any = iter(DeviceLoader(Numbered(gpus, rng, pin=True), "cuda"))
    assert next(iterator)[1].cpu()[0] == 0
    child = os.getpid() + 1
    with mock.patch("os.getpid", return_value=child):
        try:
            next(iterator)
        except RuntimeError as error:
            assert "before a fork" in str(error)
        else:
            raise AssertionError("no error")
        iterator.close()
    delivery._OF_PARENT.clear()


def pause(gpus: simgpu.GPUs, rng: random.Random) -> None:
    """A loader pauses: what was sent ahead is handed over meanwhile."""
    source = Pausing(5)
    iterator: Any = iter(DeviceLoader(source, "cuda", prefetch=3))
    found = [int(next(iterator)[0].cpu()[0]) for _ in range(2)]
    while source.given < 5:
        found.append(int(next(iterator)[0].cpu()[0]))
    while len(found) < 5:
        found.append(int(next(iterator)[0].cpu()[0]))
    assert source.given == 5
    source.pause_at = 99
    found += [int(one[0].cpu()[0]) for one in iterator]
    assert found == [*range(COUNT)]


class Pausing:
    def __init__(self, pause_at: int) -> None:
        self.pause_at, self.given = pause_at, 0

    def __iter__(self) -> Pausing:
        return self

    def ready(self) -> bool:
        return self.given != self.pause_at

    def __next__(self) -> Any:
        assert self.ready(), "a batch on the device waits for one that is not there"
        if self.given == COUNT:
            raise StopIteration
        self.given += 1
        return [torch.full((2,), self.given - 1)]


def interrupted(gpus: simgpu.GPUs, rng: random.Random) -> None:
    """Ctrl-C, or an error of the driver, between the copies of a batch."""
    error = rng.choice([KeyboardInterrupt(), OSError("a driver's")])
    gpus.outcomes = [None, error]
    iterator: Any = iter(DeviceLoader(Numbered(gpus, rng, pin=True), "cuda"))
    raised = False
    try:
        next(iterator)
    except (KeyboardInterrupt, OSError) as caught:
        raised = caught is error
    assert raised, "an error is lost"
    error.with_traceback(None)  # its frames have the batch's memory
    mine = [torch.full((2, 3, 4, 4), 77, dtype=torch.uint8, device="cuda") for _ in "123"]
    iterator.close()
    torch.accelerator.synchronize()
    assert all(bool((one == 77).all()) for one in mine), "written over"
    assert not gpus.faults, gpus.faults


def ranked(gpus: simgpu.GPUs, rng: random.Random) -> None:
    """A rank whose current device is the second GPU: "cuda" is that one."""
    import simdali

    torch.cuda.set_device(1)
    for pixels, _ in DeviceLoader(Numbered(gpus, rng, pin=True), "cuda"):
        assert pixels.device.index == 1
    with simdali.simulated():
        loader = DALILoader(dali_images(False), 9, num_workers=2, seed=1, device="cuda")
        pixels, _ = next(iter(loader))
        assert pixels.device.index == 1
    assert gpus.contexts == {1}, gpus.contexts


ALL = [passes, failing, native, dali, staged, held_up, fork, pause]
ALL += [interrupted, ranked]

"""fastdata.DeviceLoader on a GPU, which `torch.cuda._sleep` makes slow on purpose."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from device_data import DTYPES, MEAN, STD, rounding  # noqa: E402
from loader_data import images  # noqa: E402

from fastdata import DataLoader, DeviceLoader  # noqa: E402
from fastdata.device.transfer import (  # noqa: E402
    copy_stream,
    numbered,
    on_device,
    on_stream,
)

pytestmark = [
    pytest.mark.gpu,
    # torch tells so once a process, when a profiler begins.
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"),
    # Python from 3.12 on warns of every fork in a process with threads.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

#: Cycles of the GPU's clock: some tens of milliseconds.
LONG = 50_000_000


class Numbered:
    """Batches whose pixels are all their number, modulo 256."""

    def __init__(self, count: int, side: int = 64, pin: bool = True) -> None:
        self.count, self.side, self.pin = count, side, pin

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            pixels = torch.full((16, 3, self.side, self.side), number % 256, dtype=torch.uint8)
            pixels = pixels.contiguous(memory_format=torch.channels_last)
            label = torch.full((16,), number)
            yield [pixels.pin_memory(), label.pin_memory()] if self.pin else [pixels, label]


def delay(stream: Any) -> None:
    with stream:
        torch.cuda._sleep(LONG)


def copies() -> Any:
    return copy_stream(numbered(torch.device("cuda")))


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("dtype", [None, *DTYPES])
@pytest.mark.parametrize("last", [False, True])
def test_pixels_are_those_of_the_cpu(dtype: Any, pin: bool, last: bool) -> None:
    mean, std = (None, None) if dtype is None else (MEAN, STD)
    options: dict[str, Any] = {"dtype": dtype, "mean": mean, "std": std, "channels_last": last}
    inner = DataLoader(images(), 8, seed=1, shuffle=True, num_workers=2, pin_memory=pin)
    found = [[one.cpu() for one in batch] for batch in DeviceLoader(inner, **options)]
    inner.set_epoch(0)
    expected = list(DeviceLoader(inner, "cpu", **options))
    assert len(found) == len(expected)
    for (pixels, labels), (wanted, wanted_labels) in zip(found, expected, strict=True):
        assert torch.equal(labels, wanted_labels)
        assert pixels.dtype == wanted.dtype and pixels.stride() == wanted.stride()
        far = (pixels.double() - wanted.double()).abs()
        if dtype is None:
            assert not far.any()
        else:
            assert (far <= rounding(pixels.dtype, wanted.double(), 1 / min(STD))).all()


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("own_stream", [False, True])
def test_a_batch_is_whole_when_it_is_used(pin: bool, dtype: Any, own_stream: bool) -> None:
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    unit = 255 if dtype else 1
    sums = []
    with torch.cuda.stream(stream):
        for pixels, labels in DeviceLoader(Numbered(40, pin=pin), dtype=dtype):
            sums.append((pixels.double().mean() * unit - labels.double().mean()).abs())
            delay(copies())  # the next copies are late
        found = torch.stack(sums).max().item()
    assert found < 1e-4


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_memory_that_is_being_read_is_not_used_again(dtype: Any) -> None:
    """The consumer is late: batches it has dropped are read long after the next were asked for."""
    sums, labelled = [], []
    for pixels, labels in DeviceLoader(Numbered(40), dtype=dtype, prefetch=3):
        torch.cuda._sleep(LONG // 4)
        sums.append(pixels.double().mean() * (255 if dtype else 1))
        labelled.append(labels.double().mean())
        del pixels, labels
    assert (torch.stack(sums) - torch.stack(labelled)).abs().max().item() < 0.2


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_memory_does_not_grow_over_epochs(pin: bool, dtype: Any) -> None:
    loader = DeviceLoader(Numbered(12, side=224, pin=pin), dtype=dtype)
    reserved = []
    for epoch in range(12):
        for number, (pixels, _) in enumerate(loader):
            pixels.float().mean()
            if epoch % 3 == 2 and number == 5:
                break
        del pixels
        gc.collect()
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
        if epoch == 1:
            allocated = torch.cuda.memory_allocated()
    assert reserved[1:] == [reserved[1]] * 11
    assert torch.cuda.memory_allocated() == allocated


def test_streams_are_those_of_torch_cuda() -> None:
    """`torch.accelerator` finds the stream that `torch.cuda.stream` set, and the reverse."""
    mine = torch.cuda.Stream()
    with torch.cuda.stream(mine):
        found = torch.accelerator.current_stream()
        assert found.stream_id == mine.stream_id
    before = torch.cuda.current_stream()
    with on_device(found.device), on_stream(copies()):
        assert torch.cuda.current_stream().stream_id == copies().stream_id
    assert torch.cuda.current_stream() == before


# Pauses, forks.


def test_a_fork_leaves_its_parents_batches_alone(capfd: pytest.CaptureFixture[str]) -> None:
    iterator: Any = iter(DeviceLoader(Numbered(9), prefetch=3))
    assert int(next(iterator)[1][0]) == 0
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(RuntimeError, match="before a fork"):
                next(iterator)
            del iterator
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert capfd.readouterr().err == ""
    assert [int(labels[0]) for _, labels in iterator] == list(range(1, 9))


# What a profiler shows.


@contextmanager
def capture(trace: Path) -> Iterator[None]:
    """Has torch.profiler record a block, from and to where the GPU has nothing to do."""
    torch.cuda.synchronize()
    with torch.profiler.profile() as recorder:
        yield
        torch.cuda.synchronize()
    recorder.export_chrome_trace(str(trace))


def events(trace: Path, *categories: str) -> list[dict[str, Any]]:
    found = json.loads(trace.read_text())["traceEvents"]
    return [event for event in found if event.get("cat") in categories]


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["ts"] < other["ts"] + other["dur"] and other["ts"] < one["ts"] + one["dur"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_copy_and_one_kernel_a_batch(tmp_path: Path, dtype: str) -> None:
    batches = [one[0] for one in Numbered(6)]
    iterator = iter(DeviceLoader(batches, dtype=dtype, mean=MEAN, std=STD))
    for _ in range(2):
        next(iterator)
    with capture(tmp_path / "trace.json"):
        assert len(list(iterator)) == 4
    # Two were sent before, and two more ahead of them.
    sent = events(tmp_path / "trace.json", "gpu_memcpy")
    kernels = events(tmp_path / "trace.json", "kernel")
    assert len(sent) == len(kernels) == 2
    assert all("HtoD" in event["name"] and "Pinned" in event["name"] for event in sent)
    assert sum(event["args"]["bytes"] for event in sent) == len(sent) * batches[0].nbytes


@pytest.mark.parametrize("pin", [False, True])
def test_copies_overlap_with_the_step(tmp_path: Path, pin: bool) -> None:
    weights = torch.rand(4096, 4096, device="cuda")
    loader = DeviceLoader(list(Numbered(12, side=224, pin=pin)), dtype="float16")
    for _ in loader:
        weights @ weights
    with capture(tmp_path / "trace.json"):
        for _ in loader:
            for _ in range(20):
                weights @ weights
    sent = events(tmp_path / "trace.json", "gpu_memcpy")
    # The copies and the kernels on their stream are the loader's, all else is the step.
    own = sent[0]["args"]["stream"]
    steps = [e for e in events(tmp_path / "trace.json", "kernel") if e["args"]["stream"] != own]
    assert steps and all(event["args"]["stream"] == own for event in sent)
    large = [event for event in sent if event["args"]["bytes"] > 1_000_000]
    assert len(large) == 12
    beside = [copy for copy in large if any(overlap(copy, step) for step in steps)]
    assert len(beside) >= 9  # all but the first ones

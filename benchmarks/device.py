"""A batch's way to the GPU: its copy as bytes and as floats, and normalising it there.

    python -m fastdata.benchmarks.device

256 images of 224 x 224, page-locked, channels-last. Contenders take turns; milliseconds of a
batch, by a clock, the GPU synchronised at both ends of ten batches. Without a GPU it measures what
normalising costs on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import torch
from fastdata.benchmarks.measure import Spread, interleave

from fastdata.device.normalise import normalisation, normalise

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def contenders(device: torch.device, batch: int, side: int) -> dict[str, Callable[[], object]]:
    """What takes turns, by name."""
    on_gpu = device.type == "cuda"
    shape = (batch, 3, side, side)
    host = torch.randint(0, 256, shape, dtype=torch.uint8)
    host = host.contiguous(memory_format=torch.channels_last)
    pixels = torch.empty_like(host, device=device).copy_(host)
    found: dict[str, Callable[[], object]] = {}
    if on_gpu:
        host = host.pin_memory()
        floats = host.float().pin_memory()
        there = torch.empty_like(floats, device=device)
        found["copy, uint8"] = lambda: pixels.copy_(host, non_blocking=True)
        found["copy, float32"] = lambda: there.copy_(floats, non_blocking=True)
    mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=device).view(1, 3, 1, 1)
    for name, dtype in _DTYPES.items():
        what = normalisation(name, MEAN, STD)
        assert what is not None
        constants = what.constants(device)
        out = torch.empty_like(pixels, dtype=dtype)

        def fused(
            constants: tuple[torch.Tensor, torch.Tensor] = constants, out: torch.Tensor = out
        ) -> None:
            normalise(pixels, constants, out)

        def plain(dtype: torch.dtype = dtype) -> torch.Tensor:
            return pixels.float().div_(255).sub_(mean).div_(std).to(dtype)

        found[f"normalise to {name}"] = fused
        found[f"the same in plain operations, {name}"] = plain
    return found


@click.command()
@click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu")
@click.option("--batch", default=256, show_default=True)
@click.option("--side", default=224, show_default=True)
@click.option("--rounds", default=9, show_default=True)
@click.option("--repeat", default=10, show_default=True, help="Batches of one measurement.")
def main(device: str, batch: int, side: int, rounds: int, repeat: int) -> None:
    """Measure a batch's way to the GPU."""
    where = torch.device(device)
    on_gpu = where.type == "cuda"

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize(where)

    def timed(run: Callable[[], object]) -> Callable[[], float]:
        def milliseconds() -> float:
            wait()
            began = time.perf_counter()
            for _ in range(repeat):
                run()
            wait()
            return (time.perf_counter() - began) / repeat * 1e3

        return milliseconds

    runs = {name: timed(run) for name, run in contenders(where, batch, side).items()}
    for run in runs.values():
        run()
    name = torch.cuda.get_device_name(where) if on_gpu else "CPU"
    print(f"{batch} images of {side} x {side}, {name}, torch {torch.__version__}; ms a batch")
    for what, values in interleave(runs, rounds).items():
        print(f"  {what:40} {Spread.of(values)}")


if __name__ == "__main__":
    main()

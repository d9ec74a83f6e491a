"""Speed of each augmentation of the core, beside torchvision on Pillow, pillow-simd and tensors.

    python -m fastdata.benchmarks.augment --image photo.jpg --out augment.json

One image of 224 x 224, uint8, in one thread (pin it: ``taskset -c 1``). The core's time is that in
planes, as augmentations run between decoding and output; Pillow's is torchvision's function on a
PIL image, the tensors' the same function on a (3, 224, 224) tensor. Pixels are compared with
Pillow's on every SIMD level before anything is timed; contenders take turns; figures are medians
of rounds, with the spread (smallest to largest) beside them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from fastdata.benchmarks.adapters._operations import CALLS, SIZE, Case, operations, timed
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.contenders import ADAPTERS, default_environments
from fastdata.benchmarks.measure import Figures, Spread, interleave, machine, out_option, report
from PIL import Image

from fastdata import _native

_PEERS = ("Pillow", "pillow-simd", "tensor")
_PEER_WITHIN = 1.0

Pixels = npt.NDArray[np.uint8]


def cases(size: int = SIZE) -> dict[str, Case]:
    """Return every operation of the core, by its name in the table."""
    import_torchvision()
    return operations(size)


class _PillowSimd:
    """The same operations with pillow-simd, if its environment exists."""

    def __init__(self, pixels: Pixels) -> None:
        python = default_environments() / "pillow_simd" / "bin" / "python"
        self.there = python.exists()
        if self.there:
            self._folder = tempfile.TemporaryDirectory(prefix="fastdata-augment-")
            path = Path(self._folder.name, "pixels.npy")
            np.save(path, pixels)
            script = [str(python), str(ADAPTERS / "_operations.py"), str(path)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(script, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> _PillowSimd:
        return self

    def __exit__(self, *error: object) -> None:
        if self.there:
            self._process.communicate()
            self._folder.cleanup()

    def timed(self, name: str) -> float:
        """Return the microseconds of one operation."""
        return self._ask(name, None)

    def pixels(self, name: str) -> Pixels:
        """Return the pixels of one operation."""
        path = str(Path(self._folder.name, "out.npy"))
        self._ask(name, path)
        made: Pixels = np.load(path)
        return made

    def _ask(self, name: str, path: str | None) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, path]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"pillow-simd ended with exit code {self._process.wait()}")
        return float(line)


def picture(size: int = SIZE) -> Pixels:
    """Waves under noise, without the darkest and the lightest values."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    waves = [np.sin(x / a + y / b) * 90 + 128 for a, b in ((9, 20), (30, 7), (15, 16))]
    pixels = np.stack(waves, -1) + rng.normal(0, 8, (size, size, 3))
    return np.asarray(pixels.clip(8, 240), np.uint8)


def load(image: Path | None) -> Pixels:
    """Return the image's largest square, resized."""
    if image is None:
        return picture()
    with Image.open(image) as opened:
        side = min(opened.size)
        left, top = (opened.width - side) // 2, (opened.height - side) // 2
        square = opened.convert("RGB").crop((left, top, left + side, top + side))
    return np.array(square.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def verify(pixels: Pixels, wanted: Mapping[str, Case], peer: _PillowSimd | None = None) -> None:
    """Compare the core's pixels with Pillow's, on every level, before anything is timed.

    pillow-simd's may be off by ``_PEER_WITHIN`` on average.
    """
    image = Image.fromarray(pixels)
    for name, case in wanted.items():
        if case.within is None:
            continue
        expected = np.asarray(case.run(image)).astype(int)
        for level in _native.simd_levels():
            _native.set_simd(level)
            found = _native.augment(pixels, case.operation, case.values)
            worst = int(np.abs(found.astype(int) - expected).max())
            if worst > case.within:
                sys.exit(f"{name}, {level}: {worst} levels from Pillow's: nothing was timed")
        if peer is not None and peer.there:
            off = float(np.abs(peer.pixels(name).astype(int) - expected).mean())
            if off > _PEER_WITHIN:
                sys.exit(f"{name}, pillow-simd: {off:.2f} levels from Pillow's: nothing was timed")


def measure(pixels: Pixels, rounds: int) -> dict[str, Any]:
    """Run the benchmark; return all figures, in microseconds, as JSON values."""
    import torch

    torch.set_num_threads(1)
    wanted = cases()
    before = _native.simd()
    with _PillowSimd(pixels) as peer:
        verify(pixels, wanted, peer)
        times = _rounds(pixels, wanted, peer, rounds)
    _native.set_simd(before)
    return {"benchmark": "augment", "machine": machine(), "size": SIZE, "microseconds": times}


def _rounds(
    pixels: Pixels, wanted: Mapping[str, Case], peer: _PillowSimd, rounds: int
) -> dict[str, dict[str, list[float]]]:
    import torch

    image = Image.fromarray(pixels)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def core(case: Case, level: str) -> float:
        _native.set_simd(level)
        seconds = _native.time_augment(pixels, case.operation, case.values, 4 * CALLS)
        return statistics.median(seconds) * 1e6

    contenders: dict[tuple[str, str], Callable[[], float]] = {}
    for name, case in wanted.items():
        for level in _native.simd_levels():
            contenders[name, level] = partial(core, case, level)
        if case.within is not None:
            contenders[name, "Pillow"] = partial(timed, case.run, image)
            if peer.there:
                contenders[name, "pillow-simd"] = partial(peer.timed, name)
        if case.tensors:
            contenders[name, "tensor"] = partial(timed, case.run, tensor)
    times: dict[str, dict[str, list[float]]] = {name: {} for name in wanted}
    for (name, contender), found in interleave(contenders, rounds).items():
        times[name][contender] = found
    return times


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results; ratios to Pillow are computed per round."""
    times = result["microseconds"]
    levels = [name for name in next(iter(times.values())) if name not in _PEERS]
    vectors = levels[1:]
    rows = []
    for name, found in times.items():
        cells = [_cell(found.get(contender)) for contender in (*levels, *_PEERS)]
        rows.append([name, *cells, *(_ratio(found.get("Pillow"), found[one]) for one in vectors)])
    side = result["size"]
    return Figures(
        f"An image of {side} x {side}, microseconds, one thread",
        ["", *levels, *_PEERS, *(f"{one}: times Pillow's speed" for one in vectors)],
        rows,
    )


def _cell(values: list[float] | None) -> str:
    if values is None:
        return "-"
    spread = Spread.of(values)
    return f"{spread.median:,.1f} ({spread.low:,.1f} to {spread.high:,.1f})"


def _ratio(theirs: list[float] | None, ours: list[float]) -> str:
    if theirs is None:
        return "-"
    return f"{statistics.median(a / b for a, b in zip(theirs, ours, strict=True)):.1f}"


@click.command()
@click.option(
    "--image",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A photograph; a made image if there is none.",
)
@click.option("--rounds", default=7, show_default=True)
@out_option
def main(image: Path | None, rounds: int, out_path: Path | None) -> None:
    """Measure each augmentation against torchvision on Pillow images and on tensors."""
    result = measure(load(image), rounds)
    report(result, out_path, figures(result))


if __name__ == "__main__":
    main()

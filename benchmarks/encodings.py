"""What each encoding costs, and what would limit many threads.

    python -m fastdata.benchmarks.encodings imagenet/train --out docs/results/encodings.json

Packs a tree in every encoding and loads the datasets in turn with one decode thread,
RandomResizedCrop(224) and a flip to uint8, from the page cache. Figures are CPU time, so another
process that takes turns on the machine changes them less than a clock's. Beside that: the share of
it that the caller's thread has, whatever the threads that decode; how fast a thread copies memory;
and how fast one reads samples from the page cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from fastdata.benchmarks.measure import interleave, machine

from fastdata import DataLoader, ImageDataset, _native
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

#: What `fastdata convert` is told for each.
ENCODINGS: dict[str, tuple[str, ...]] = {
    "JPEGs as they are": (),
    "JPEGs of quality 90": ("--encoding", "jpeg"),
    "JPEGs ≤ 500": ("--encoding", "jpeg", "--max-side", "500"),
    "JPEGs ≤ 256": ("--encoding", "jpeg", "--max-side", "256"),
    "pixels ≤ 500": ("--encoding", "raw", "--max-side", "500"),
    "pixels ≤ 256": ("--encoding", "raw", "--max-side", "256"),
}
BATCH = 64
#: Epochs of one measurement: 600 images alone take a fifth of a second.
_EPOCHS = 4
_COPIED = 1 << 28


def _pack(root: Path, out: Path, options: tuple[str, ...]) -> None:
    convert = [sys.executable, "-m", "fastdata", "convert", "imagefolder", "--root", str(root)]
    command = [*convert, "--to", "lmdb", "--out", str(out), *options]
    subprocess.run(command, check=True, capture_output=True)


def _loader(dataset: Path) -> DataLoader[Any]:
    """A loader with one decode thread, whose dataset is in the page cache."""
    crops = Compose((RandomResizedCrop(224), RandomHorizontalFlip()))
    images = ImageDataset(dataset, transform=crops, staged=False)
    loader: DataLoader[Any] = DataLoader(
        images, BATCH, shuffle=True, num_workers=1, persistent_workers=True, seed=0, drop_last=True
    )
    for _ in loader:
        pass
    return loader


def _loading(dataset: Path) -> Callable[[], float]:
    """Images a second of CPU time, of all threads together."""
    loader = _loader(dataset)

    def run() -> float:
        began = time.process_time()
        for _ in range(_EPOCHS):
            for _ in loader:
                pass
        return _EPOCHS * len(loader) * BATCH / (time.process_time() - began)

    return run


def _consuming(dataset: Path) -> Callable[[], float]:
    """Images a second of the CPU time of the thread that takes batches."""
    loader = _loader(dataset)

    def run() -> float:
        seconds, count = 0.0, 0
        for _ in range(_EPOCHS):
            batches = iter(loader)
            next(batches)
            began = time.thread_time()
            count += sum(len(labels) for _, labels in batches)
            seconds += time.thread_time() - began
        return count / seconds

    return run


def _copying() -> float:
    """Bytes, read and written, that one thread copies in a second of its CPU time."""
    source, target = np.ones(_COPIED, np.uint8), np.ones(_COPIED, np.uint8)
    began = time.thread_time()
    np.copyto(target, source)
    return 2 * _COPIED / (time.thread_time() - began)


def _reading(dataset: Path) -> Callable[[], float]:
    """Images a CPU second that one thread reads in random order, checksums compared."""
    images = ImageDataset(dataset, staged=False)
    order = np.random.default_rng(0).permutation(len(images)).tolist()

    def run() -> float:
        began = time.thread_time()
        for _ in range(_EPOCHS):
            for number in order:
                images.read([number])
        return _EPOCHS * len(order) / (time.thread_time() - began)

    return run


def measure(root: Path, rounds: int) -> dict[str, Any]:
    """Runs the benchmark; returns all figures as JSON values."""
    with tempfile.TemporaryDirectory() as folder:
        stored, contenders = {}, {}
        for number, (name, options) in enumerate(ENCODINGS.items()):
            out = Path(folder) / str(number)
            _pack(root, out, options)
            samples = len(ImageDataset(out, staged=False))
            files = [path for path in out.rglob("*") if path.is_file()]
            stored[name] = sum(path.stat().st_size for path in files) / samples
            contenders[name] = _loading(out)
        original = Path(folder) / "0"
        limits = {
            "consumer": _consuming(original),
            "reading": _reading(original),
            "copying": _copying,
        }
        rates = interleave({**contenders, **limits}, rounds)
    return {
        "benchmark": "encodings",
        "machine": {**machine(), "simd": _native.simd()},
        "samples": samples,
        "bytes_an_image": stored,
        "images_a_cpu_second": {name: rates[name] for name in contenders},
        "limits": {name: rates[name] for name in limits},
    }


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--rounds", default=5, show_default=True)
@click.option("--out", "out_path", type=click.Path(path_type=Path), required=True)
def main(root: Path, rounds: int, out_path: Path) -> None:
    """Measure every encoding of the tree ROOT of images."""
    out_path.write_text(json.dumps(measure(root, rounds), indent=1) + "\n")


if __name__ == "__main__":
    main()

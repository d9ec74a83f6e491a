"""CPU time of loading each encoding.

    python -m fastdata.benchmarks.encodings imagenet/train --out docs/results/encodings.json

Packs a tree in every encoding and loads the datasets in turn with one decode thread,
RandomResizedCrop(224) and a flip to uint8, from the page cache. The figures are CPU time, which
other processes change less than wall time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from fastdata.benchmarks.loading import Loading
from fastdata.benchmarks.measure import Figures, Spread, interleave, machine, out_option, report
from fastdata.converters.encode import Encoding
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.packing import pack

from fastdata import ImageDataset

_ORIGINAL = "JPEGs as they are"
ENCODINGS = {
    _ORIGINAL: Encoding(),
    "JPEGs of quality 90": Encoding("jpeg"),
    "JPEGs ≤ 500": Encoding("jpeg", max_side=500),
    "JPEGs ≤ 256": Encoding("jpeg", max_side=256),
    "pixels ≤ 500": Encoding("raw", max_side=500),
    "pixels ≤ 256": Encoding("raw", max_side=256),
}
BATCH = 64
#: Epochs of one measurement: 600 images alone take a fifth of a second.
_EPOCHS = 4


def _loading(dataset: Path) -> Callable[[], float]:
    """Return a function that measures images a second of CPU time, of all threads together."""
    epoch = Loading(dataset, BATCH).loader(1)
    epoch()  # fills the page cache
    images = len(ImageDataset(dataset)) // BATCH * BATCH

    def run() -> float:
        began = time.process_time()
        for _ in range(_EPOCHS):
            epoch()
        return _EPOCHS * images / (time.process_time() - began)

    return run


def measure(root: Path, rounds: int) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    with tempfile.TemporaryDirectory() as folder:
        stored, contenders = {}, {}
        for number, (name, encoding) in enumerate(ENCODINGS.items()):
            out = Path(folder) / str(number)
            samples = pack(ImageFolder(root), out, encoding=encoding).manifest.samples
            files = [path for path in out.rglob("*") if path.is_file()]
            stored[name] = sum(path.stat().st_size for path in files) / samples
            contenders[name] = _loading(out)
        rates = interleave(contenders, rounds)
    return {
        "benchmark": "encodings",
        "machine": machine(),
        "samples": samples,
        "bytes_an_image": stored,
        "images_a_cpu_second": rates,
    }


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results; ratios are computed per round."""
    every = result["images_a_cpu_second"]
    rows = []
    for name, rates in every.items():
        ratio = Spread.of_ratios(rates, every[_ORIGINAL])
        size = result["bytes_an_image"][name] / 1e3
        rows.append([name, f"{size:,.0f}", f"{Spread.of(rates):,.0f}", str(ratio)])
    columns = ["stored", "kB an image", "images a CPU second", "times the JPEGs as they are"]
    return Figures("What encodings cost", columns, rows)


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--rounds", default=5, show_default=True)
@out_option
def main(root: Path, rounds: int, out_path: Path | None) -> None:
    """Measure every encoding of the tree ROOT of images."""
    result = measure(root, rounds)
    report(result, out_path, figures(result))


if __name__ == "__main__":
    main()

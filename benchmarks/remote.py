"""Speed of loading from a server, compared with the rate of the link.

    python -m fastdata.benchmarks.remote DATASET [--out docs/results/remote.json]

An HTTP server on this machine sends byte ranges over a link with a latency and a rate
(`fastdata.benchmarks.range_server`). The loader reads the dataset from it
with no cache, whole epochs, from ``iter`` to the last batch. The baseline is one
request at a time, a sample each. Batches are compared with the local dataset's before anything
is timed.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Any

import click
from fastdata.benchmarks.measure import Figures, Spread, interleave, machine, out_option, report
from fastdata.benchmarks.range_server import range_server

from fastdata import DataLoader, ImageDataset
from fastdata.remote import RemoteOptions
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

_BATCH = 64
_THREADS = 2
_CROPS = Compose((RandomResizedCrop(224), RandomHorizontalFlip()))
_CONTENDERS = {
    "ranges": RemoteOptions(),
    "ranges, not merged": RemoteOptions(max_request=1),
    "ranges, merged to 8 MiB": RemoteOptions(max_request=8 << 20, memory=1 << 30),
    "one request at a time": RemoteOptions(concurrency=1, max_request=1),
}
#: Batches that the baseline is timed for: it takes 24 times as long.
_FEW = 3


def measure(dataset: Path, rounds: int, latency: float, rate: float) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    near = ImageDataset(dataset, _CROPS)
    size = near.manifest.blob_bytes / len(near)
    with range_server(dataset, latency, rate) as url:
        _compare(url, near)
        details: dict[str, Any] = {}
        runs = interleave({name: _runner(url, name, details) for name in _CONTENDERS}, rounds)
    allowed = rate / size
    return {
        "machine": machine(),
        "dataset": {
            "samples": len(near),
            "container": near.manifest.container,
            "bytes_a_sample": round(size),
        },
        "link": {
            "latency_s": latency,
            "bytes_per_second": rate,
            "images_per_second": round(allowed, 1),
        },
        "batch_size": _BATCH,
        "decode_threads": _THREADS,
        "contenders": {
            name: {
                "images_per_second": Spread.of(values)._asdict(),
                "share_of_link": round(Spread.of(values).median / allowed, 4),
                **details[name],
            }
            for name, values in runs.items()
        },
    }


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results."""
    rows = [
        [name, f"{found['images_per_second']['median']:.0f}", f"{found['share_of_link']:.1%}"]
        for name, found in result["contenders"].items()
    ]
    return Figures("Loading over the link", ["", "images/s", "of the link"], rows)


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--rounds", default=3, show_default=True)
@click.option("--latency", default=0.02, show_default=True, help="Seconds.")
@click.option("--rate", default=125e6, show_default=True, help="Bytes a second.")
@out_option
def main(dataset: Path, rounds: int, latency: float, rate: float, out_path: Path | None) -> None:
    """Measure loading of the packed DATASET from a server."""
    result = measure(dataset, rounds, latency, rate)
    report(result, out_path, figures(result))


def _loader(of: ImageDataset) -> DataLoader[Any]:
    return DataLoader(of, _BATCH, order="quasi-random", seed=0, num_workers=_THREADS)


def _runner(url: str, name: str, details: dict[str, Any]) -> Any:
    of = ImageDataset(url, _CROPS, remote=_CONTENDERS[name])
    loader = _loader(of)
    batches = _FEW if _CONTENDERS[name].concurrency == 1 else len(loader)

    def run() -> float:
        images = 0
        began = time.perf_counter()
        iterator = iter(loader)
        for found, _ in islice(iterator, batches):
            if not images:
                first = time.perf_counter() - began
            images += len(found)
        rate = images / (time.perf_counter() - began)
        remote = loader.stats().remote
        assert remote is not None
        details[name] = {
            "images": images,
            "first_batch_s": round(first, 3),
            "requests": remote.requests,
            "bytes_requested_of_needed": round(remote.bytes_requested / remote.bytes_needed, 4),
            "memory_peak": remote.memory_peak,
        }
        iterator.close()
        return rate

    return run


def _compare(url: str, near: ImageDataset) -> None:
    """Compare the pixels with the local dataset's."""
    for far, local in islice(
        zip(_loader(ImageDataset(url, _CROPS)), _loader(near), strict=True), 8
    ):
        for one, other in zip(far, local, strict=True):
            assert (one == other).all(), "the batches differ from the local dataset's"


if __name__ == "__main__":
    main()

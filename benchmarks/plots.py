"""Plots of results: loaders, bytes against speed, threads."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Collection
from typing import Any, NamedTuple

from fastdata.benchmarks.bench_figures import cpu, median, rate, runs_by_threads
from fastdata.benchmarks.drawing import Line, Point, bars, curves, scatter

#: Readable names of the contenders in bench.json.
NAMES = {
    "fastdata-lmdb": "fastdata, JPEGs as they are",
    "fastdata-raw": "fastdata, pixels ≤ 256",
    "fastdata-imagefolder": "fastdata, ImageFolder",
    "ffcv-raw256": "FFCV, pixels ≤ 256",
    "ffcv-raw": "FFCV, pixels ≤ 500",
    "ffcv-half": "FFCV, half pixels",
    "ffcv-500": "FFCV, JPEGs ≤ 500",
    "ffcv-q90": "FFCV, JPEGs of quality 90",
    "dali-cpu": "DALI on the CPU",
    "pillow-simd": "torch, Pillow-SIMD",
    "torch-uint8": "torch, Pillow",
    "spdl": "SPDL",
    "hf": "Hugging Face datasets",
    "torchdata": "torchdata",
    "litdata": "LitData",
    "streaming": "Streaming",
    "webdataset": "WebDataset",
    "petastorm-thread": "petastorm",
}
#: The encoding of encodings.json that fastdata-lmdb has in bench.json.
ORIGINAL = "JPEGs as they are"
#: Contenders that load JPEGs, or pixels of full size.
FULL_SIZE = [name for name in NAMES if "raw256" not in name and name != "fastdata-raw"]


def loaders(bench: dict[str, Any], among: Collection[str] = (), *, narrow: bool = False) -> str:
    """Plot images a second of each loader with the most threads, the fastest first.

    Args:
        bench: Results of the loader benchmark.
        among: Contenders to show; all if none of these was measured.
        narrow: Draw for a phone.
    """
    grouped = {c["name"]: runs_by_threads(c) for c in bench["contenders"] if c["runs"]}
    most = max(threads for runs in grouped.values() for threads in runs)
    rows = [
        (NAMES.get(name, name), median(grouped[name][most], rate) or 0.0, _ours(name))
        for name in [name for name in grouped if name in among] or grouped
        if most in grouped[name]
    ]
    rows.sort(key=lambda row: -row[1])
    axis = f"images a second, {most} threads"
    return bars("Images a second of each loader", axis, rows, narrow=narrow)


def _ours(name: str) -> bool:
    return name.startswith("fastdata")


def pareto(bench: dict[str, Any], encodings: dict[str, Any]) -> str:
    """Bytes an image against images a second a core: our encodings, others as they are."""
    points = []
    one = next(c for c in bench["contenders"] if c["name"] == "fastdata-lmdb")
    speed = 1000 / (median(runs_by_threads(one)[1], cpu) or math.inf)
    whole = encodings["images_a_cpu_second"][ORIGINAL]
    for name, rates in encodings["images_a_cpu_second"].items():
        kilobytes = encodings["bytes_an_image"][name] / 1000
        times = statistics.median(map(operator.truediv, rates, whole))
        points.append(Point(f"fastdata, {name}", kilobytes, times * speed, True))
    for contender in bench["contenders"]:
        name = contender["name"]
        if _ours(name) or name not in NAMES or not contender["runs"]:
            continue
        seconds = median(runs_by_threads(contender)[1], cpu)
        if seconds:
            kilobytes = contender["data_bytes"] / contender["samples"] / 1000
            points.append(Point(NAMES[name], kilobytes, 1000 / seconds, False))
    return scatter(
        "Size of the data against speed of loading",
        "kB an image, as stored",
        "images a second a core",
        points,
    )


class Model(NamedTuple):
    """Bounds of the rate on more threads than were measured.

    Attributes:
        measured: Images a second of each measured number of threads.
        low: The same of more threads, if each loses as much with every doubling as between 2 and
            the most that were measured.
        high: The same if none loses more than with the most.
        fed: How many threads one consumer's thread can feed.
        reading: Part of a thread's time that reading from the page cache takes, with checksums.
        copied: Bytes a second that a thread copies, read and written.
        moved: Bytes that an image moves at least.
    """

    measured: dict[int, float]
    low: dict[int, float]
    high: dict[int, float]
    fed: float
    reading: float
    copied: float
    moved: float


#: The threads that are modelled.
_MORE = (32, 64)
#: An output of 224 x 224 pixels of three bytes.
_OUTPUT = 224 * 224 * 3


def model(training: dict[str, Any], encodings: dict[str, Any]) -> Model:
    """The model of more threads, from what was measured."""
    measured = {
        int(threads): statistics.median(speed for speed, _ in rounds)
        for threads, rounds in training["turns"]["fastdata alone"].items()
    }
    few, most = 2, max(measured)
    each = measured[most] / most
    kept = each / (measured[few] / few)
    a_doubling = kept ** (1 / math.log2(most / few))
    limits = encodings["limits"]
    whole = encodings["images_a_cpu_second"][ORIGINAL]
    # Taken round by round, and of CPU time: other machines have other clocks.
    fed = statistics.median(map(operator.truediv, limits["consumer"], whole))
    reading = statistics.median(map(operator.truediv, whole, limits["reading"]))
    most_fed = fed * each
    return Model(
        measured,
        {n: min(most_fed, n * each * a_doubling ** math.log2(n / most)) for n in _MORE},
        {n: min(most_fed, n * each) for n in _MORE},
        fed,
        reading,
        statistics.median(limits["copying"]),
        # The file is copied to the process and read there; the output is written, which fetches
        # its cache lines first.
        3 * encodings["bytes_an_image"][ORIGINAL] + 2 * _OUTPUT,
    )


def scaling(training: dict[str, Any], bench: dict[str, Any], encodings: dict[str, Any]) -> str:
    """Images a second by threads: measured on two machines, and a model of 64."""
    found = model(training, encodings)
    most = max(found.measured)
    start = (float(most), found.measured[most])
    low, high = (
        [(float(threads), speed) for threads, speed in edge.items()]
        for edge in (found.low, found.high)
    )
    middle = [(n, (one + other) / 2) for (n, one), (_, other) in zip(low, high, strict=True)]
    runs = next(c for c in bench["contenders"] if c["name"] == "fastdata-lmdb")
    here = [
        (float(threads), median(some, rate) or 0.0)
        for threads, some in sorted(runs_by_threads(runs).items())
    ]
    return curves(
        "Images a second by decode threads",
        "decode threads, one a core",
        "images a second",
        [
            Line("measured, 16 cores", [(float(t), v) for t, v in found.measured.items()]),
            Line("measured, 2 cores", here, ours=False),
            Line(
                "model, not measured",
                [start, *middle],
                model=True,
                band=[start, *high, *reversed(low)],
            ),
        ],
    )

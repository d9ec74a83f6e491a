"""Plots of results: loaders, and bytes against speed."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Collection
from typing import Any

from fastdata.benchmarks.bench_figures import cpu, median, rate, runs_by_threads
from fastdata.benchmarks.drawing import Point, bars, scatter

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
    """Plot bytes an image against images a second a core: our encodings, and other loaders."""
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

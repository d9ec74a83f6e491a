"""Plots of the loader benchmark, readable on light and on dark pages."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastdata.benchmarks.bench_figures import Run, median, rate, runs_by_threads

from fastdata.errors import UsageError

# Mid-tones: enough contrast with white and with black.
INK = "#808080"
OURS = "#2b8cbe"
#: Names that have room beside the curves, one above the other, in a plot of 4 inches.
_NAMES = 24
THEIRS = "#b07d2b"
_COLOURED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_COLOURS: Any = dict.fromkeys(_COLOURED, INK)


def check(path: Path) -> None:
    """Whether a plot can be drawn, before anything is measured for it.

    Raises:
        UsageError: Another suffix than ``.svg`` or ``.png``, or matplotlib is not installed.
    """
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"{path}: plots are .svg or .png", "Name one of these.")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "plots need matplotlib, which is not installed", "pip install 'fastdata-torch[bench]'"
        )


def plot(result: dict[str, Any], path: Path) -> None:
    """Draws throughput, scaling and start-up into one file.

    Args:
        result: What the benchmark gave.
        path: An ``.svg`` or ``.png``.

    Raises:
        UsageError: Another suffix, or matplotlib is not installed.
    """
    check(path)
    import matplotlib
    from matplotlib.figure import Figure

    grouped = [(c["name"], runs_by_threads(c)) for c in result["contenders"] if c["runs"]]
    if not grouped:
        raise UsageError("there is nothing to plot: no contender was measured")
    most = max(max(runs) for _, runs in grouped)
    scaling = len({threads for _, runs in grouped for threads in runs}) > 1
    parts = 2 + scaling
    heights = [max(2.0, 0.3 * len(grouped))] * 2 + [max(4.0, 0.17 * len(grouped))] * scaling
    last = {name: runs[max(runs)] for name, runs in grouped if max(runs) == most}
    first = "time to the first batch"
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with matplotlib.rc_context(_COLOURS):
        figure = Figure(figsize=(8, sum(heights) + parts), layout="constrained")
        axes = figure.subplots(parts, 1, gridspec_kw={"height_ratios": heights})
        _bars(axes[0], f"throughput with {most} threads", "images/s", last, rate)
        _bars(axes[1], first, "seconds", last, lambda run: float(run["first_s"]))
        if scaling:
            _curves(axes[2], grouped)
        figure.savefig(path, transparent=True, metadata=metadata, dpi=120)


def _bars(
    axis: Any, title: str, unit: str, runs: dict[str, list[Run]], value: Callable[[Run], float]
) -> None:
    heights = {name: median(some, value) or 0.0 for name, some in runs.items()}
    names = sorted(heights, key=lambda name: heights[name])
    bars = axis.barh(names, [heights[name] for name in names], color=[_colour(n) for n in names])
    axis.bar_label(bars, fmt=lambda v: f"{v:,.0f}" if v >= 100 else f"{v:.2g}")
    axis.set_title(title)
    axis.set_xlabel(unit)
    axis.set_ylabel("contender")
    axis.margins(x=0.12)


def _curves(axis: Any, grouped: list[tuple[str, dict[int, list[Run]]]]) -> None:
    ends: list[tuple[float, int, float, str]] = []
    for name, runs in grouped:
        threads = sorted(runs)
        speeds = [median(runs[number], rate) or 0.0 for number in threads]
        axis.plot(threads, speeds, marker="o", color=_colour(name))
        ends.append((math.log(max(speeds[-1], 1e-9)), threads[-1], speeds[-1], name))
    axis.set_title("throughput by threads")
    axis.set_xlabel("threads")
    axis.set_ylabel("images/s")
    axis.set_xticks(sorted({number for _, runs in grouped for number in runs}))
    axis.set_yscale("log")  # else all but the fastest lie on one line
    axis.margins(x=0.25)
    ends.sort()
    least = (ends[-1][0] - ends[0][0]) / max(len(ends) - 1, _NAMES)
    heights = spread([height for height, *_ in ends], least)
    for (_, count, speed, name), height in zip(ends, heights, strict=True):
        beside = count * 1.02, math.exp(height)
        axis.annotate(name, (count, speed), beside, size=7, va="center", annotation_clip=False)


def spread(heights: list[float], least: float) -> list[float]:
    """Ascending heights, moved where neighbours are less than ``least`` apart.

    They stay between the first and the last if there is room for all of them.
    """
    moved = heights[:1]
    for height in heights[1:]:
        moved.append(max(height, moved[-1] + least))
    highest = max(heights, default=0.0)
    for number in reversed(range(len(moved))):
        moved[number] = min(moved[number], highest)
        highest = moved[number] - least
    return moved


def _colour(name: str) -> str:
    return OURS if name.startswith("fastdata") else THEIRS

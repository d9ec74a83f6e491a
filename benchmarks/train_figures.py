"""Tables and the plot of the training ladder, from its JSON alone."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from fastdata.benchmarks import plots
from fastdata.benchmarks.measure import Figures
from fastdata.benchmarks.train_published import PUBLISHED

from fastdata.doctor import plotting
from fastdata.errors import UsageError

NAME = "training-ladder"


def load(path: Path) -> dict[str, Any]:
    """Reads what ``--json`` wrote.

    Raises:
        UsageError: It is something else.
    """
    try:
        result: dict[str, Any] = json.loads(path.read_text())
        if result["benchmark"] == NAME:
            return result
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"{path}: no results of the training ladder", "It is what --json wrote.")


def for_300(run: dict[str, Any]) -> float:
    """Seconds for 300 steps: those of the run, scaled."""
    return float(run["seconds"] * 300 / run["steps"])


def rate(run: dict[str, Any]) -> float:
    """Images a second."""
    return float(run["images"] / run["seconds"])


def figures(result: dict[str, Any]) -> Figures:
    """The ladder: medians over rounds; what was not measured says why."""
    rows, before = [], None
    for rung in result["rungs"]:
        name = f"{rung['name']}: {rung['change']}"
        runs = rung["runs"]
        if not runs:
            rows.append([name, "", "", "", "", "", rung["needs"] or "failed"])
            continue
        now = statistics.median(map(rate, runs))
        use = [run["gpu_use"] for run in runs if run["gpu_use"] is not None]
        rows.append(
            [
                name,
                f"{runs[0]['batch']}",
                f"{statistics.median(map(for_300, runs)):,.1f}",
                f"{now:,.0f}" if now >= 100 else f"{now:.1f}",
                "" if before is None else f"x{now / before:.2f}",
                f"{100 * statistics.median(run['wait_share'] for run in runs):.0f}%",
                f"{statistics.median(use):.0f}%" if use else "not told",
            ]
        )
        before = now
    options = result["options"]
    steps = options["steps"]
    scaled = "" if steps == 300 else f", scaled from {steps}"
    title = (
        f"{options['model']}, width {options['width']}, {options['image_size']} x "
        f"{options['image_size']}, on {result['on']}: 300 batches{scaled}"
    )
    columns = ["rung", "batch", "s for 300", "images/s", "gain", "waiting", "GPU use"]
    return Figures(title, columns, rows)


def failures(result: dict[str, Any]) -> list[str]:
    """What went wrong, a line each."""
    return [f"{rung['name']}: {rung['error']}" for rung in result["rungs"] if rung["error"]]


def published() -> list[Figures]:
    """Ladders of others, with their hardware."""
    return [
        Figures(
            f"Published: {ladder.title}",
            ["change", "batch", "s for 300", "images/s"],
            [
                [
                    step.change,
                    _number(step.batch, ",.0f"),
                    _number(step.seconds_for_300, ",.1f"),
                    _number(step.images_per_second, ",.0f"),
                ]
                for step in ladder.steps
            ],
        )
        for ladder in PUBLISHED
    ]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def plot(result: dict[str, Any], path: Path) -> None:
    """Draws the ladder, and below it the published ones, each with a scale of its own.

    Args:
        result: What the benchmark gave.
        path: An ``.svg`` or ``.png``.

    Raises:
        UsageError: Another suffix, matplotlib is missing, or there is nothing to draw.
    """
    plotting.check(path)
    from matplotlib.figure import Figure

    measured = [rung for rung in result["rungs"] if rung["runs"]]
    if not measured:
        raise UsageError("there is nothing to plot: no rung was measured")
    names = [rung["name"] for rung in measured]
    gpu = [
        [run["gpu_use"] for run in rung["runs"] if run["gpu_use"] is not None] for rung in measured
    ]
    charts = [
        ("seconds for 300 batches", names, [_median(rung, for_300) for rung in measured]),
        ("images/s", names, [_median(rung, rate) for rung in measured]),
        (
            "% of the time waiting for data",
            names,
            [100 * _median(rung, lambda run: run["wait_share"]) for rung in measured],
        ),
    ]
    if all(gpu):
        charts.append(("% of the time the GPU works", names, list(map(statistics.median, gpu))))
    for ladder in PUBLISHED:
        told = [(s.change, s.images_per_second) for s in ladder.steps if s.images_per_second]
        title = f"images/s, published: {ladder.title}"
        charts.append((title, [name for name, _ in told], [float(value) for _, value in told]))
    heights = [max(1.2, 0.25 * len(bars)) for _, bars, _ in charts]
    drawn = Figure(figsize=(9, sum(heights) + len(charts)), layout="constrained")
    axes = drawn.subplots(len(charts), 1, gridspec_kw={"height_ratios": heights}, squeeze=False)
    for axis, (title, bars, values) in zip(axes[:, 0], charts, strict=True):
        colour = plots.THEIRS if "published" in title else plots.OURS
        drawn_bars = axis.barh(bars, values, color=colour)
        axis.bar_label(drawn_bars, fmt=lambda v: f"{v:,.0f}" if v >= 100 else f"{v:.2g}")
        for text in axis.texts:
            text.set_color(plotting.INK)
        axis.invert_yaxis()
        axis.set_title(title)
        axis.margins(x=0.12)
    plotting.finish(drawn, list(axes[:, 0]), path)


def _median(rung: dict[str, Any], value: Any) -> float:
    return float(statistics.median(map(value, rung["runs"])))

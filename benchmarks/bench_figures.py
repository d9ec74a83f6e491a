"""Results of the loader benchmark as tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from fastdata.benchmarks.measure import Figures, Spread

Run = dict[str, Any]

_COLUMNS = [
    "contender",
    "threads",
    "images/s",
    "lowest to highest",
    "first batch, s",
    "CPU-s/1,000",
    "images/s a core",
    "private, MB",
    "read, kB an image",
    "stored, kB an image",
]


def rate(run: Run) -> float:
    """Images a second."""
    return float(run["images"] / run["seconds"])


def runs_by_threads(contender: dict[str, Any]) -> dict[int, list[Run]]:
    """A contender's runs, by their number of threads."""
    grouped: dict[int, list[Run]] = {}
    for run in contender["runs"]:
        grouped.setdefault(run["threads"], []).append(run)
    return grouped


def median(runs: list[Run], value: Callable[[Run], float | None]) -> float | None:
    """Median of what is known."""
    known = [number for run in runs if (number := value(run)) is not None]
    return statistics.median(known) if known else None


def figures(result: dict[str, Any]) -> Figures:
    """All contenders, the fastest first; those that failed are at the end, saying so."""
    rows: list[tuple[float, list[str]]] = []
    for contender in result["contenders"]:
        for threads, runs in runs_by_threads(contender).items():
            speed = Spread.of([rate(run) for run in runs])
            stored = contender["data_bytes"] / contender["samples"]
            cells = [
                contender["name"],
                str(threads),
                f"{speed.median:,.0f}",
                f"{speed.low:,.0f} to {speed.high:,.0f}",
                _number(median(runs, lambda run: run["first_s"]), "{:.2f}"),
                _number(median(runs, cpu), "{:.2f}"),
                _number(median(runs, lambda run: _per(1000, cpu(run))), "{:,.0f}"),
                _number(median(runs, lambda run: _per(run["peak_private_bytes"], 1e6)), "{:,.0f}"),
                _number(
                    median(runs, lambda run: _per(run["bytes_read"], 1e3 * run["images"])),
                    "{:,.0f}",
                ),
                f"{stored / 1e3:,.0f}",
            ]
            rows.append((speed.median, cells))
        if contender["error"]:
            failed = [contender["name"], "", "failed", *[""] * (len(_COLUMNS) - 3)]
            rows.append((-1.0, failed))
    rows.sort(key=lambda row: -row[0])
    options = result["options"]
    what = f"{options['crop']} crop, {options['dtype']}, {options['order']}"
    return Figures(f"Loaders alone: {what}", _COLUMNS, [cells for _, cells in rows])


def comparison(before: dict[str, Any], after: dict[str, Any]) -> Figures:
    """Ratios of what two results share."""
    rows = []
    old = {contender["name"]: runs_by_threads(contender) for contender in before["contenders"]}
    for contender in after["contenders"]:
        for threads, runs in runs_by_threads(contender).items():
            if threads not in old.get(contender["name"], {}):
                continue
            theirs = old[contender["name"]][threads]
            rows.append(
                [
                    contender["name"],
                    str(threads),
                    *_ratio(theirs, runs, rate),
                    _ratio(theirs, runs, lambda run: run["first_s"])[2],
                    _ratio(theirs, runs, cpu)[2],
                    _ratio(theirs, runs, lambda run: run["peak_private_bytes"])[2],
                ]
            )
    columns = ["contender", "threads", "images/s before", "after", "ratio"]
    columns += ["first batch, ratio", "CPU, ratio", "memory, ratio"]
    return Figures("After / before", columns, rows)


def failures(result: dict[str, Any]) -> list[str]:
    """What went wrong, a line each."""
    return [f"{c['name']}: {c['error']}" for c in result["contenders"] if c["error"]]


def _ratio(before: list[Run], after: list[Run], value: Callable[[Run], float | None]) -> list[str]:
    old, new = median(before, value), median(after, value)
    ratio = None if old is None or new is None or not old else new / old
    return [_number(old, "{:,.0f}"), _number(new, "{:,.0f}"), _number(ratio, "{:.2f}")]


def cpu(run: Run) -> float | None:
    """CPU-seconds for 1,000 images; None where it is not known."""
    return None if run["cpu_s"] is None else 1000 * run["cpu_s"] / run["images"]


def _per(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _number(value: float | None, form: str) -> str:
    return "—" if value is None else form.format(value)

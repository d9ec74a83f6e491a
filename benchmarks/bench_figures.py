"""Tables of the loader benchmark's results: all contenders, recipes, ratios, limits and losses."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from fastdata.benchmarks.adapters._recipes import RECIPES
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
    """Return images a second."""
    return float(run["images"] / run["seconds"])


def cpu(run: Run) -> float | None:
    """Return the CPU-seconds of 1,000 images; None if unknown."""
    return None if run["cpu_s"] is None else 1000 * run["cpu_s"] / run["images"]


def _per(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def runs_by_threads(contender: dict[str, Any]) -> dict[int, list[Run]]:
    """Return a contender's runs, by their number of threads."""
    grouped: dict[int, list[Run]] = {}
    for run in contender["runs"]:
        grouped.setdefault(run["threads"], []).append(run)
    return grouped


def median(runs: list[Run], value: Callable[[Run], float | None]) -> float | None:
    """Return the median of the known values."""
    known = [number for run in runs if (number := value(run)) is not None]
    return statistics.median(known) if known else None


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of contenders, the fastest first, those that failed last."""
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
    options = result["options"]
    what = f"{options['crop']} crop, {options['dtype']}, {options['order']}"
    return _sorted(f"Loaders alone: {what}", _COLUMNS, rows, result)


def _sorted(
    title: str, columns: list[str], rows: list[tuple[float, list[str]]], result: dict[str, Any]
) -> Figures:
    """Return a table of (speed, cells), the fastest first, with failed contenders at its end."""
    cells = [row for _, row in sorted(rows, key=lambda row: -row[0])]
    blank = [""] * (len(columns) - 3)
    failed = [[c["name"], "", "failed", *blank] for c in result["contenders"] if c["error"]]
    return Figures(title, columns, cells + failed)


def tables(result: dict[str, Any]) -> list[Figures]:
    """Return the table of contenders; with recipes, a table for each."""
    names = result["options"].get("recipes") or []
    return [recipe(result, name) for name in names] or [figures(result)]


_RECIPE_COLUMNS = [
    "contender",
    "threads",
    "images/s",
    "lowest to highest",
    "CPU-s/1,000",
    "without augmentation, images/s",
    "change, levels",
    "fastdata: times its images/s",
    "times by CPU time",
]


def recipe(result: dict[str, Any], name: str) -> Figures:
    """Return the table of a recipe: contenders, the fastest first, their ceilings and ratios.

    Ratios are taken round by round, to the first of fastdata's ways.
    """
    size = RECIPES[name].size
    ours = next((c for c in result["contenders"] if c["name"].startswith("fastdata")), None)
    mine = {} if ours is None else runs_by_threads(_of_recipe(ours, name, size))
    rows: list[tuple[float, list[str]]] = []
    for contender in result["contenders"]:
        plain = runs_by_threads(_of_recipe(contender, "none", size))
        for threads, runs in runs_by_threads(_of_recipe(contender, name, size)).items():
            speed = Spread.of([rate(run) for run in runs])
            ratios = ["", ""]
            if contender is not ours and threads in mine:
                pairs = list(zip(mine[threads], runs, strict=False))
                ratios = [str(Spread.of([rate(a) / rate(b) for a, b in pairs]))]
                times = [(cpu(a), cpu(b)) for a, b in pairs]
                known = [b / a for a, b in times if a and b]
                ratios.append(str(Spread.of(known)) if known else "—")
            cells = [
                contender["name"],
                str(threads),
                f"{speed.median:,.0f}",
                f"{speed.low:,.0f} to {speed.high:,.0f}",
                _number(median(runs, cpu), "{:.2f}"),
                _number(median(plain.get(threads, []), rate), "{:,.0f}"),
                _number(contender["changes"].get(name), "{:.1f}"),
                *ratios,
            ]
            rows.append((speed.median, cells))
    return _sorted(f"{RECIPES[name].title}, {size} x {size}", _RECIPE_COLUMNS, rows, result)


def _of_recipe(contender: dict[str, Any], name: str, size: int) -> dict[str, Any]:
    wanted = {"recipe": name, "size": size}
    return {"runs": [run for run in contender["runs"] if wanted.items() <= run.items()]}


#: Contenders whose speeds are compared, on the same images; what each stores.
_PAIRS = [
    ("fastdata-lmdb", "torch-uint8", "fastdata (LMDB) vs torch (uint8)", "the JPEGs as they are"),
    ("fastdata-lmdb", "dali-cpu", "fastdata (LMDB) vs DALI (CPU)", "the JPEGs as they are"),
    (
        "fastdata-lmdb",
        "ffcv-q90",
        "fastdata (LMDB) vs FFCV (quality 90)",
        "the JPEGs as they are; JPEGs of quality 90 at full size",
    ),
    (
        "fastdata-lmdb",
        "ffcv-raw",
        "fastdata (LMDB) vs FFCV (pixels ≤ 500)",
        "the JPEGs as they are; pixels",
    ),
    (
        "fastdata-raw",
        "ffcv-raw256",
        "fastdata (pixels ≤ 256) vs FFCV (pixels ≤ 256)",
        "pixels, both",
    ),
]


def ratios(result: dict[str, Any]) -> Figures:
    """Ratios of images/s with the most threads, taken round by round."""
    rows = []
    for ours, theirs, title, stored in _PAIRS:
        pairs = list(zip(_most(result, ours), _most(result, theirs), strict=False))
        if pairs:
            spread = Spread.of([rate(our) / rate(their) for our, their in pairs])
            rows.append([f"{title}: {stored}", str(spread)])
    return Figures("Times as fast", ["loaders: what is stored", "ratio of images/s"], rows)


def limits(result: dict[str, Any], decoding: dict[str, Any]) -> Figures | None:
    """Return the time of each stage for an image that fastdata loads from JPEG.

    ``decoding`` are the results of the decoding benchmark on the same machine, whose stages are a
    profile.
    """
    runs = _most(result, "fastdata-lmdb")
    whole = median(runs, cpu) if runs else None
    if whole is None:
        return None
    stages = decoding["stages"][result["machine"]["simd"]]
    rows = [
        [name, f"{ms:.3f}", f"{ms / whole:.0%}"]
        for name, ms in sorted(stages.items(), key=lambda stage: -stage[1])
    ]
    rest = whole - sum(stages.values())
    rows.append(
        ["all else: reading, checksums, order, batches", f"{rest:.3f}", f"{rest / whole:.0%}"]
    )
    rows.append(["together", f"{whole:.3f}", "100%"])
    threads = runs[0]["threads"]
    bound = threads * 1000 / whole
    title = f"{threads} cores that do nothing else: {bound:,.0f} images/s"
    return Figures(title, ["stage", "ms an image", "share"], rows)


_MEASURES: list[tuple[str, str, Callable[[Run], float | None], bool]] = [
    ("images/s", "{:,.0f}", rate, True),
    ("s to the first batch", "{:.2f}", lambda run: float(run["first_s"]), False),
    ("s to import", "{:.2f}", lambda run: float(run["import_s"]), False),
    ("CPU-s for 1,000 images", "{:.2f}", cpu, False),
    ("private MB", "{:,.0f}", lambda run: _per(run["peak_private_bytes"], 1e6), False),
]


def losses(result: dict[str, Any]) -> Figures:
    """Return every measure in which a peer is ahead of fastdata on the same kind of data."""
    rows = []
    grouped = {c["name"]: runs_by_threads(c) for c in result["contenders"]}
    for ours, pixels in (("fastdata-lmdb", False), ("fastdata-raw", True)):
        peers = [
            name
            for name in grouped
            if not name.startswith("fastdata") and ("raw" in name) == pixels
        ]
        for threads, runs in sorted(grouped.get(ours, {}).items()):
            for title, form, value, more in _MEASURES:
                mine = median(runs, value)
                for name in peers:
                    other = median(grouped[name].get(threads, []), value)
                    if mine is None or other is None or (other > mine) != more or other == mine:
                        continue
                    shown = [form.format(number) for number in (mine, other)]
                    rows.append([f"{title}, threads: {threads}", ours, name, *shown])
    for contender in result["contenders"]:
        if contender["error"]:
            rows.append([f"failed: {contender['error']}", contender["name"], "", "", ""])
    return Figures("Where we lose", ["measure", "of", "to", "ours", "theirs"], rows)


def _most(result: dict[str, Any], name: str) -> list[Run]:
    """Return a contender's runs with the most threads; none if it was not measured."""
    for contender in result["contenders"]:
        if contender["name"] == name and contender["runs"]:
            grouped = runs_by_threads(contender)
            return grouped[max(grouped)]
    return []


def failures(result: dict[str, Any]) -> list[str]:
    """Return the errors of contenders."""
    return [f"{c['name']}: {c['error']}" for c in result["contenders"] if c["error"]]


def _number(value: float | None, form: str) -> str:
    return "—" if value is None else form.format(value)

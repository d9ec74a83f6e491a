"""What the loader benchmark was asked to show, what limits it, and where peers are ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fastdata.benchmarks.bench_figures import Run, cpu, median, rate, runs_by_threads
from fastdata.benchmarks.measure import Figures, Spread


class _Asked(NamedTuple):
    ours: str
    theirs: str
    times: float
    inputs: str


_ASKED = [
    _Asked("fastdata-lmdb", "torch-uint8", 8, "the JPEGs as they are; Pillow"),
    _Asked("fastdata-lmdb", "dali-cpu", 7, "the JPEGs as they are"),
    _Asked("fastdata-lmdb", "ffcv-q90", 5, "the JPEGs as they are; of quality 90 at full size"),
    _Asked("fastdata-lmdb", "ffcv-raw", 2, "the JPEGs as they are; pixels, at most 500"),
    _Asked("fastdata-raw", "ffcv-raw256", 1, "pixels, at most 256; pixels, at most 256"),
]
#: As much as FFCV's pixels, at most: a fifth.
_SHARE_OF_BYTES = 0.2

_MEASURES: list[tuple[str, str, Callable[[Run], float | None], bool]] = [
    ("images/s", "{:,.0f}", rate, True),
    ("s to the first batch", "{:.2f}", lambda run: float(run["first_s"]), False),
    ("s to import", "{:.2f}", lambda run: float(run["import_s"]), False),
    ("CPU-s for 1,000 images", "{:.2f}", cpu, False),
    ("private MB", "{:,.0f}", lambda run: _mega(run["peak_private_bytes"]), False),
]


def reached(result: dict[str, Any]) -> Figures:
    """Ratios of images/s, round by round, beside what was asked; with the most threads."""
    rows = []
    for asked in _ASKED:
        ours, theirs = (_most(result, name) for name in (asked.ours, asked.theirs))
        name = f"{asked.ours} by {asked.theirs} ({asked.inputs})"
        if not ours or not theirs:
            rows.append([name, "not measured", f"{asked.times:g}", "no"])
            continue
        pairs = zip(ours, theirs, strict=False)
        ratio = Spread.of([rate(our) / rate(their) for our, their in pairs])
        rows.append([name, str(ratio), f"at least {asked.times:g}", _verdict(ratio, asked.times)])
    stored = {c["name"]: c["data_bytes"] / c["samples"] for c in result["contenders"] if c["runs"]}
    if {"fastdata-lmdb", "ffcv-raw"} <= set(stored):
        share = stored["fastdata-lmdb"] / stored["ffcv-raw"]
        good = "yes" if share <= _SHARE_OF_BYTES else f"{share / _SHARE_OF_BYTES - 1:.0%} more"
        name = "bytes an image: fastdata-lmdb by ffcv-raw"
        rows.append([name, f"{share:.2f}", f"at most {_SHARE_OF_BYTES:g}", good])
    return Figures("Asked and reached", ["", "measured", "asked", "reached"], rows)


def _verdict(ratio: Spread, asked: float) -> str:
    if ratio.median >= asked:
        return "yes"
    return f"no, {1 - ratio.median / asked:.0%} short"


def limits(result: dict[str, Any], decoding: dict[str, Any]) -> Figures | None:
    """What a core does for an image that fastdata loads from JPEG.

    Args:
        result: Of the loader benchmark.
        decoding: Of the decoding benchmark, on the same machine: its stages are a profile.
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
    return Figures(title, ["", "ms an image", "share"], rows)


def losses(result: dict[str, Any]) -> Figures:
    """Every measure in which a peer is ahead of fastdata on the same kind of data."""
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
    """A contender's runs with the most threads; none where it was not measured."""
    for contender in result["contenders"]:
        if contender["name"] == name and contender["runs"]:
            grouped = runs_by_threads(contender)
            return grouped[max(grouped)]
    return []


def _mega(value: float | None) -> float | None:
    return None if value is None else value / 1e6

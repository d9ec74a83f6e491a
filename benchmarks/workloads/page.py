"""The page of results, docs/benchmarks.md, and its plots: figures are generated, never typed.

python benchmarks/workloads page docs/results > docs/benchmarks.md
"""

from __future__ import annotations

import importlib
from pathlib import Path
from statistics import median
from typing import Any

import click
from fastdata.benchmarks import figures, harness, plots

_HERE = Path(__file__).resolve().parent
#: Contenders whose speeds are compared, on the same images.
_PAIRS = [
    ("fastdata-lmdb", "torch-uint8", "JPEGs as they are, beside torch"),
    ("fastdata-lmdb", "dali-cpu", "JPEGs as they are, beside DALI on the CPU"),
    ("fastdata-lmdb", "ffcv-q90", "JPEGs as they are, beside FFCV's JPEGs of quality 90"),
    ("fastdata-lmdb", "ffcv-raw", "JPEGs as they are, beside FFCV's pixels ≤ 500"),
    ("fastdata-raw", "ffcv-raw256", "pixels ≤ 256, beside FFCV's"),
]


def page(results: Path) -> str:
    """Return the page; draw its plots into the folder of results."""
    found = {path.stem: harness.load(path) for path in sorted(results.glob("*.json"))}
    loaders = found.pop("loaders")
    for narrow, name in ((False, "loaders.svg"), (True, "loaders-narrow.svg")):
        (results / name).write_text(plots.loaders(loaders, plots.FULL_SIZE, narrow=narrow))
    of = {name: _section(result, loaders) for name, result in found.items()}
    versions = {f"{k} {v}" for c in loaders["contenders"] for k, v in c["versions"].items()}
    shown = figures.table(loaders, figures.LOADERS, most=True, sort=True)
    text = (_HERE / "page.md").read_text("utf-8")
    return text.format(
        machine=_machine(loaders),
        versions=", ".join(sorted(versions)),
        ratios=_ratios(loaders),
        loaders=shown,
        notes=_notes(loaders),
        behind="".join(f"- {line}\n" for line in _behind(loaders)),
        **loaders["options"],
        **{f"of_{name}": section for name, section in of.items()},
    )


def _section(result: dict[str, Any], usual: dict[str, Any]) -> str:
    """Return the table of a workload, and how often and where it was measured."""
    of: Any = importlib.import_module(result["workload"]).WORKLOAD
    shown = figures.table(result, of.columns, against=of.against)
    if of.transposed:
        shown = figures.transposed(result, without=["scalar"])
    runs = [run for contender in result["contenders"] for run in contender["runs"]]
    rounds = max(run["round"] for run in runs) + 1
    loads = [run["load"] for run in runs if run.get("load") is not None]
    text = f"`{result['workload']}`; rounds: {rounds}"
    text += f"; load average: {median(loads):.0f}" if loads else ""
    if _machine(result) != _machine(usual):
        text += f". {_machine(result)}"
    return f"{shown}\n{text}."


def _ratios(result: dict[str, Any]) -> figures.Figures:
    """Return ratios of images/s with the most threads, taken round by round."""
    grouped = figures.rows_of(result)
    most = max(threads for _, _, threads in grouped)
    rows = []
    for ours, theirs, title in _PAIRS:
        one, other = (grouped.get(("", name, most), []) for name in (ours, theirs))
        if spread := figures.ratios(one, other, figures.SPEED):
            rows.append([title, str(spread)])
    return figures.Figures("", ["fastdata loads", "times as fast"], rows)


def _behind(result: dict[str, Any]) -> list[str]:
    """Return each measure in which peers are ahead of fastdata on the same kind of data."""
    grouped, lines = figures.rows_of(result), []
    most = max(threads for _, _, threads in grouped)
    for ours, pixels in (("fastdata-lmdb", False), ("fastdata-raw", True)):
        for name in ("images/s", "first batch, s", "CPU ms an image", "private, MB"):
            form, sign = figures.metric(name).form, 1 if figures.metric(name).more else -1
            mine, ahead = figures.median(grouped.get(("", ours, most), []), name), []
            for (_, peer, threads), runs in grouped.items():
                other = figures.median(runs, name)
                same = threads == most and peer[:8] != "fastdata" and ("raw" in peer) == pixels
                if same and mine and other and sign * other > sign * mine:
                    ahead.append(f"{peer} {other:{form}}")
            if ahead:
                lines.append(f"{name}, {ours} {mine:{form}}: {', '.join(ahead)}.")
    return lines + [f"failed: {line}" for line in figures.failures(result)]


def _notes(result: dict[str, Any]) -> str:
    """Return why contenders may be more than a level from Pillow's pixels."""
    lines: dict[str, list[str]] = {}
    for one in result["contenders"]:
        if one["why"]:
            mean = one["mean_tolerance"]
            most = f"{one['tolerance']:g} levels" + (f", {mean:g} on average" if mean else "")
            lines.setdefault(f"pixels within {most}: {one['why']}", []).append(one["name"])
    return "".join(f"- {', '.join(names)}: {line}.\n" for line, names in lines.items())


def _machine(result: dict[str, Any]) -> str:
    about = result["machine"]
    parts = [f"{about['cpu']}, {about['cpus']} CPUs, {about['memory_gb']} GB", about["simd"]]
    parts += [f"Python {about['python']}", f"fastdata {about['packages']['fastdata']}"]
    return ", ".join([*parts, *filter(None, [about.get("gpu")])])


@click.command()
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
def main(results: Path) -> None:
    """Print the page that shows the folder RESULTS; draw its plots there."""
    click.echo(page(results), nl=False)

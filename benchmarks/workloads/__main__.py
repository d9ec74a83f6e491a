"""Measure workloads, or make the page of results.

python benchmarks/workloads kinds in_place --tree imagenet/train --out docs/results
python benchmarks/workloads page docs/results
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from fastdata.benchmarks import figures, harness
from fastdata.benchmarks.contenders import able
from fastdata.benchmarks.pixels import CHECKED, PeerCheck

from fastdata.cli.locations import numbers

_HERE = Path(__file__).resolve().parent
NAMES = sorted(
    path.stem
    for path in _HERE.glob("*.py")
    if not path.stem.startswith("_") and path.stem not in ("page", "gpu_check")
)


def measure(
    name: str, data: harness.BenchmarkData, cases: Any, only: Any, out: Any, given: Any
) -> Any:
    """Run a workload; return its results."""
    of = importlib.import_module(name).WORKLOAD
    if unknown := set(only) - {one.name for one in of.contenders}:
        known = ", ".join(one.name for one in of.contenders)
        raise click.UsageError(f"{name}: no contender {unknown.pop()!r}; there are: {known}")
    chosen = able(one for one in of.contenders if not only or one.name in only)
    about: dict[str, Any] = {"threads": (2,), "seconds": 2.0, "warmup": 0.7, **of.options}
    about |= {name: value for name, value in given.items() if value is not None}
    options = harness.MeasureOptions(**about)
    count = min(CHECKED, 2 * options.batch_size)
    check: Any = PeerCheck(count, random=of.check == "random") if of.check else lambda *_: {}
    return harness.measure(
        chosen,
        data,
        options,
        check,
        workload=name,
        cases=cases or tuple(of.cases),
        keep=partial(harness.save, path=None if out is None else out / f"{name}.json"),
    )


def table(result: dict[str, Any]) -> figures.Figures:
    """Return the table of a workload's results."""
    of = importlib.import_module(result["workload"]).WORKLOAD
    if of.transposed:
        return figures.transposed(result, of.title)
    return figures.table(result, of.columns, title=of.title, against=of.against)


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--tree", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--images", type=click.IntRange(1), help="Repeat the tree's images to this number.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("bench-data"))
@click.option("--case", "cases", multiple=True, help="These cases alone.")
@click.option("--contender", "contenders", multiple=True, help="These contenders alone.")
@click.option("--threads", callback=numbers)
@click.option("--seconds", type=float)
@click.option("--warmup", type=float)
@click.option("--rounds", type=int)
@click.option("--batch-size", type=int)
@click.option("--out", type=click.Path(path_type=Path), help="Keep NAME.json in this folder.")
def main(
    names: tuple[str, ...],
    tree: Path,
    images: int | None,
    work: Path,
    cases: tuple[str, ...],
    contenders: tuple[str, ...],
    out: Path | None,
    **options: Any,
) -> None:
    """Measure workloads by NAMES on the photographs of a tree of class folders."""
    if unknown := [name for name in names if name not in NAMES]:
        raise click.UsageError(f"no workload {unknown[0]!r}; there are: {', '.join(NAMES)}")
    failed = []
    for name in names:
        data = harness.BenchmarkData(work / name, tree=tree, images=images)
        result = measure(name, data, cases, contenders, out, options)
        table(result).show()
        failed += figures.failures(result)
    for line in failed:
        click.echo(f"failed: {line}", err=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["page"]:
        from page import main as make_page

        make_page(sys.argv[2:])
    else:
        main()

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
from fastdata.benchmarks.command import Numbers
from fastdata.benchmarks.contenders import default_environments
from fastdata.benchmarks.pixels import PeerCheck

from fastdata.errors import UsageError

_HERE = Path(__file__).resolve().parent
NAMES = sorted(
    path.stem
    for path in _HERE.glob("*.py")
    if not path.stem.startswith("_") and path.stem not in ("page", "gpu_check")
)


def workload(name: str) -> Any:
    """Return a workload."""
    return importlib.import_module(name).WORKLOAD


def measure(
    name: str, data: harness.Data, chosen: dict[str, Any], out: Path | None, **given: Any
) -> Any:
    """Run a workload; return its results."""
    of = workload(name)
    defaults = {"threads": (2,), "seconds": 2.0, "warmup": 0.7, **of.options}
    options = harness.Options(**{**defaults, **{k: v for k, v in given.items() if v is not None}})
    environments, contenders = default_environments(), []
    for contender in of.contenders:
        if chosen["contenders"] and contender.name not in chosen["contenders"]:
            continue
        if why := contender.missing(environments):
            click.echo(f"not measured: {contender.name} ({why})", err=True)
        else:
            contenders.append(contender)
    count = min(harness.CHECKED, options.batch_size * 2)
    check: Any = PeerCheck(count, random=of.check == "random") if of.check else _unchecked
    return harness.measure(
        contenders,
        data,
        options,
        environments,
        check,
        workload=name,
        cases=chosen["cases"] or tuple(of.cases),
        fixed=False,
        keep=partial(harness.save, path=None if out is None else out / f"{name}.json"),
    )


def _unchecked(contender: Any, case: str, hand_over: Any) -> dict[str, Any]:
    return {}


def table(result: dict[str, Any], **more: Any) -> figures.Figures:
    """Return the table of a workload's results."""
    of = workload(result["workload"])
    if of.transposed:
        return figures.transposed(result, of.title)
    return figures.table(result, of.columns, title=of.title, against=of.against, **more)


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--tree", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--images", type=click.IntRange(1), help="Repeat the tree's images to this number.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("bench-data"))
@click.option("--case", "cases", multiple=True, help="These cases alone.")
@click.option("--contender", "contenders", multiple=True, help="These contenders alone.")
@click.option("--threads", type=Numbers())
@click.option("--seconds", type=float)
@click.option("--warmup", type=float)
@click.option("--rounds", type=int)
@click.option("--batch-size", type=int)
@click.option("--out", type=click.Path(path_type=Path), help="Keep NAME.json in this folder.")
def main(
    names: tuple[str, ...],
    tree: Path | None,
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
    if tree is None:
        raise click.UsageError("nothing to load: give --tree, a folder of class folders")
    failed = []
    for name in names:
        data = harness.Data(work / name, tree=tree, images=images)
        chosen = {"cases": cases, "contenders": contenders}
        try:
            result = measure(name, data, chosen, out, **options)
        except UsageError as error:
            raise click.UsageError(str(error)) from None
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

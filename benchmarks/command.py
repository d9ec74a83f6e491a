"""``fastdata bench``: throughput of fastdata's loader alone, and of its peers."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from fastdata.benchmarks import contenders
from fastdata.benchmarks.contenders import Contender

from fastdata.cli.locations import Folder, json_option, print_json
from fastdata.errors import UsageError


def numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """Return different numbers from 1, in the order in which an option names them."""
    if value is None:
        return None
    found = dict.fromkeys(int(part) if part.isdecimal() else 0 for part in value.split(","))
    if not all(found):
        raise click.BadParameter(f"{value!r}: numbers from 1, by commas: 1,2,4", ctx, param)
    return tuple(found)


_PATH = click.Path(path_type=Path)
_SHOWN: dict[str, Any] = {"show_default": True}


@click.command("bench")
@click.argument("dataset", type=Folder(), required=False)
@click.option(
    "--tree",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Class folders of images: the peers read them, fastdata packs them in each of its ways.",
)
@click.option(
    "--work",
    type=_PATH,
    default=Path("bench-data"),
    show_default=True,
    metavar="FOLDER",
    help="Where the tree is converted for each contender, once.",
)
@click.option("--images", type=click.IntRange(1), help="Repeat the tree's images to this number.")
@click.option(
    "--against", metavar="NAME,…", help="Peers, by name or family. [default: all installed]"
)
@click.option(
    "--ways",
    metavar="NAME,…",
    help="With --tree: which of fastdata's ways, such as lmdb,raw-shm. [default: all]",
)
@click.option(
    "--threads",
    callback=numbers,
    metavar="N,N,…",
    help="Thread counts to measure. [default: 1, 2, 4, … up to the CPUs]",
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=10, show_default=True)
@click.option(
    "--warmup", type=click.FloatRange(0), help="Seconds before.  [default: as many, at most 3]"
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True)
@click.option("--crop", type=click.Choice(["train", "val"]), default="train", show_default=True)
@click.option("--dtype", type=click.Choice(["uint8", "float32"]), default="uint8", **_SHOWN)
@click.option("--order", type=click.Choice(["random", "sequential"]), default="random", **_SHOWN)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=300,
    help="Seconds, beyond warm-up and measurement, after which a contender is killed.",
    **_SHOWN,
)
@click.option("--out", "out_path", type=_PATH, metavar="FILE", help="Keep the results here.")
@click.option("--plot", "plot_path", type=_PATH, metavar="FILE", help="Plot images/s to an .svg.")
@json_option
def command(
    dataset: Path | None,
    tree: Path | None,
    work: Path,
    images: int | None,
    against: str | None,
    ways: str | None,
    threads: tuple[int, ...] | None,
    out_path: Path | None,
    plot_path: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how fast DATASET is loaded, without training.

    With --tree, every installed peer loads the same images (`make bench-peers` installs them).
    Pixels and labels are checked before anything is timed. The exit code is 1 if a contender
    failed.

    \b
    Examples:
      $ fastdata bench imagenet-train-lmdb --seconds 1 --rounds 1 --threads 1
      fastdata bench imagenet-train-lmdb --threads 1,2,4 --out now.json --plot now.svg
      fastdata bench --tree imagenet/train --against torch,dali --rounds 5
    """
    try:  # they need more packages than fastdata does
        from fastdata.benchmarks import figures, harness, plots
        from fastdata.benchmarks.pixels import PillowCheck
    except ModuleNotFoundError as error:
        raise UsageError(
            f"benchmarks need {error.name}, which is not installed",
            "pip install 'fastdata-torch[bench]'",
        ) from error
    if dataset is None and tree is None:
        raise UsageError("nothing to load", "Give DATASET, --tree FOLDER, or both.")
    if tree is None:
        for option, value in (("--against", against), ("--ways", ways), ("--images", images)):
            if value is not None:
                raise UsageError(f"{option} needs --tree", "Give the images that peers read.")
    if plot_path is not None and plot_path.suffix != ".svg":
        raise UsageError(f"{plot_path}: plots are SVG files", "Give a name that ends in .svg.")
    if options["warmup"] is None:
        options["warmup"] = min(3.0, options["seconds"])
    how = harness.Options(threads=threads or harness.default_threads(), **options)
    chosen = [] if dataset is None else [contenders.of_dataset(dataset)]
    if tree is not None:
        chosen += _of_tree(ways, against, chosen)
    data = harness.Data(work, dataset, tree, images)
    result = harness.measure(
        chosen,
        data,
        how,
        PillowCheck(data.small, dataset),
        keep=partial(harness.save, path=out_path),
    )
    if as_json:
        print_json(result)
    else:
        title = "Loaders alone: {crop} crop, {dtype}, {order}".format(**options)
        figures.table(result, figures.LOADERS, title=title, sort=True).show()
    failures = figures.failures(result)
    if plot_path is not None and any(contender["runs"] for contender in result["contenders"]):
        plot_path.write_text(plots.loaders(result))
    for failure in failures:
        click.echo(f"failed: {failure}", err=True)
    sys.exit(1 if failures else 0)


def _of_tree(ways: str | None, against: str | None, taken: list[Contender]) -> list[Contender]:
    """Return the contenders that read the tree: peers, and fastdata's ways unless one is taken."""
    chosen = []
    if not taken or ways is not None:
        names = None if ways is None else [f"fastdata-{way}" for way in ways.split(",")]
        known = {contender.name for contender in taken}
        chosen = [c for c in contenders.choose(names, contenders.FASTDATA) if c.name not in known]
    names = None if against is None else against.split(",")
    return chosen + contenders.choose(names, contenders.PEERS)

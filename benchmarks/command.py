"""``fastdata bench``: throughput of fastdata's loader alone, and of its peers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from fastdata.benchmarks import contenders, figures, harness, plots
from fastdata.benchmarks.adapters._transforms import image_folder
from fastdata.benchmarks.contenders import Contender
from fastdata.benchmarks.pixels import PillowCheck

from fastdata.cli.locations import LocalFolder, json_option, numbers, print_json
from fastdata.dataset import ImageDataset
from fastdata.errors import UsageError
from fastdata.machine import usable_cpus
from fastdata.storage.manifest import MANIFEST_NAME

_PATH = click.Path(path_type=Path)
_SHOWN: dict[str, Any] = {"show_default": True}
_FAMILIES = ", ".join(dict.fromkeys(peer.family for peer in contenders.PEERS))
#: Images of a user's folder that are enough for a measurement of seconds.
_ENOUGH = 2000
#: Seconds that a measurement of a user's folder takes at most, unless rounds are given.
_SHORT = 55.0


@click.command("bench")
@click.argument("folder", type=LocalFolder(), required=False)
@click.option(
    "--tree",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Class folders, for every installed peer, and packed in each of fastdata's ways.",
)
@click.option(
    "--work",
    type=_PATH,
    metavar="FOLDER",
    help="Where images are converted for contenders, once. [default: bench-data with --tree]",
)
@click.option("--images", type=click.IntRange(1), help="Load so many, some of them or repeated.")
@click.option(
    "--against",
    metavar="NAME,…",
    help=f"Peers: {_FAMILIES}, or their names. [default: torch; with --tree, all installed]",
)
@click.option(
    "--ways",
    metavar="NAME,…",
    help="Fastdata's ways, such as lmdb,raw-shm. [default: imagefolder; with --tree, all]",
)
@click.option(
    "--threads",
    callback=numbers,
    metavar="N,N,…",
    help="Thread counts to measure. [default: all CPUs; with --tree, 1, 2, 4, … up to them]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="Length of a run. [default: 2; with --tree, 10]",
)
@click.option(
    "--warmup", type=click.FloatRange(0), help="Seconds before. [default: as many, at most 3]"
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Runs of each contender. [default: 3; without --tree, fewer on a slow machine]",
)
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True)
@click.option("--crop", type=click.Choice(["train", "val"]), default="train", show_default=True)
@click.option("--dtype", type=click.Choice(["uint8", "float32"]), default="uint8", **_SHOWN)
@click.option("--order", type=click.Choice(["random", "sequential"]), default="random", **_SHOWN)
@click.option("--out", "out_path", type=_PATH, metavar="FILE", help="Keep the results here.")
@click.option("--plot", "plot_path", type=_PATH, metavar="FILE", help="Plot images/s to an .svg.")
@json_option
def command(
    folder: Path | None,
    tree: Path | None,
    work: Path | None,
    images: int | None,
    against: str | None,
    ways: str | None,
    threads: tuple[int, ...] | None,
    out_path: Path | None,
    plot_path: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how fast FOLDER is loaded, beside torch's loader.

    FOLDER has a folder of images for each class, or is a dataset. This takes less than a minute.
    With --tree, all ways and all installed peers are compared; `make bench-peers` installs them.
    Pixels and labels are checked before anything is timed. Ctrl-C shows the measurements so far.
    The exit code is 1 if a contender failed.

    \b
    Examples:
      $ fastdata bench imagenet-train-lmdb --seconds 1 --rounds 1 --threads 1
      fastdata bench imagenet/train --against torch,webdataset --threads 1,2,4
      fastdata bench --tree imagenet/train --rounds 5 --out now.json --plot now.svg
    """
    if folder is None and tree is None:
        raise UsageError("nothing to load", "Give FOLDER, --tree FOLDER, or both.")
    if plot_path is not None and plot_path.suffix != ".svg":
        raise UsageError(f"{plot_path}: plots are SVG files", "Give a name that ends in .svg.")
    whole = tree is not None
    dataset = folder
    if folder is not None and not whole and (count := _images_of(folder)):
        dataset, tree = None, folder
        if images is None and count > _ENOUGH:
            images = _ENOUGH
            click.echo(f"{images:,} of {count:,} images are loaded; --images takes more", err=True)
        ways = ways or ("imagefolder" if contenders.has_module("torchvision") else "folder")
        against = against or "torch-{dtype}".format(**options)
    if tree is None:
        for option, value in (("--against", against), ("--ways", ways), ("--images", images)):
            if value is not None:
                raise UsageError(f"{option} needs --tree", "Name the images that peers read.")
    if options["rounds"] is None:
        options |= {"rounds": 3, "within": None if whole else _SHORT}
    if options["seconds"] is None:
        options["seconds"] = 10.0 if whole else 2.0
    if options["warmup"] is None:
        options["warmup"] = min(3.0, options["seconds"]) if whole else 1.0
    if threads is None:
        threads = harness.default_threads() if whole else (usable_cpus(),)
    how = harness.MeasureOptions(threads=threads, **options)
    chosen: list[Contender] = []
    if dataset is not None:
        chosen = contenders.of_dataset(ImageDataset(dataset).manifest)[: 1 if whole else 2]
    if tree is not None:
        chosen += _of_tree(ways, against, chosen)
    title = "Loaders alone: {crop} crop, {dtype}, {order}".format(**options)
    result: dict[str, Any] = {"contenders": []}

    def keep(found: dict[str, Any]) -> None:
        result.update(found)
        harness.save(found, out_path)

    with ExitStack() as stack:
        if work is None:
            work = Path("bench-data" if whole else stack.enter_context(TemporaryDirectory()))
        data = harness.BenchmarkData(work, dataset, tree, images)
        try:
            keep(harness.measure(chosen, data, how, PillowCheck(data.small, dataset), keep=keep))
        finally:  # also by a Ctrl-C
            measured = any(contender["runs"] for contender in result["contenders"])
            if as_json and result["contenders"]:
                print_json(result)
            elif measured:
                figures.table(result, figures.LOADERS, title=title, sort=True).show()
                if said := figures.beside(result):
                    click.echo(said)
    if plot_path is not None and measured:
        plot_path.write_text(plots.loaders(result))
    for failure in (failures := figures.failures(result)):
        click.echo(f"failed: {failure}", err=True)
    sys.exit(1 if failures else 0)


def _images_of(folder: Path) -> int:
    """Return the number of images in class folders; 0 for a dataset."""
    is_dataset = not folder.is_dir() or (folder / MANIFEST_NAME).exists()
    return 0 if is_dataset else len(image_folder(str(folder)))


def _of_tree(ways: str | None, against: str | None, taken: list[Contender]) -> list[Contender]:
    """Return the contenders that read the tree: peers, and fastdata's ways unless one is taken."""
    chosen = []
    if not taken or ways is not None:
        names = None if ways is None else [f"fastdata-{way}" for way in ways.split(",")]
        known = {contender.name for contender in taken}
        chosen = [c for c in contenders.choose(names, contenders.FASTDATA) if c.name not in known]
    names = None if against is None else against.split(",")
    return chosen + contenders.choose(names, contenders.PEERS)

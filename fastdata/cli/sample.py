"""``fastdata sample``: make a tree of synthetic photographs, laid out like ImageNet."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from fastdata.cli.locations import LocalFolder, json_option, print_json, say
from fastdata.cli.progress import ProgressReport
from fastdata.machine import usable_cpus
from fastdata.sample import make_sample
from fastdata.storage.files import human_bytes
from fastdata.text import human_count


@click.command("sample")
@click.option(
    "--out",
    type=LocalFolder(),
    default=Path("imagenet"),
    show_default=True,
    metavar="FOLDER",
    help="The folder to write, new or empty.",
)
@click.option(
    "--images", type=int, default=1000, show_default=True, help="Images of the training split."
)
@click.option(
    "--val-images", type=int, default=100, show_default=True, help="Images of the validation split."
)
@click.option("--classes", type=int, default=10, show_default=True)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed gives the same bytes."
)
@click.option("--workers", type=int, metavar="N", help="Processes. [default: one a CPU]")
@json_option
def command(
    out: Path, images: int, val_images: int, workers: int | None, as_json: bool, **options: Any
) -> None:
    """Make synthetic photographs, to try everything else on.

    Their layout, sizes, encodings and oddities are ImageNet's.

    \b
    Examples:
      $ fastdata sample --out tiny --images 20 --val-images 10 --classes 2
    """
    with ProgressReport(f"making {out}") as progress:
        progress.start(images + val_images, 0)
        summary = make_sample(
            out,
            images=images,
            val_images=val_images,
            workers=usable_cpus() if workers is None else workers,
            progress=lambda done: progress.advance(done, 0),
            **options,
        )
    if as_json:
        print_json(summary._asdict())
        return
    say(
        f"{out}: {human_count(summary.images, 'image')} to train with, "
        f"{summary.val_images:,} to validate, of "
        f"{human_count(summary.classes, 'class', 'classes')}, {human_bytes(summary.bytes)}"
    )
    if summary.images:
        say(f"convert it: fastdata convert imagenet --root {shlex.quote(str(out))}")

"""``fastdata verify``: checks that a dataset is whole."""

from __future__ import annotations

from pathlib import Path

import click

from fastdata.errors import CorruptionError
from fastdata.progress import ProgressReport
from fastdata.verification import verify

#: Problems that are printed; the rest are counted.
_SHOWN = 20


@click.command("verify")
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--fast", is_flag=True, help="Check sizes only.")
@click.option("--workers", type=int, metavar="N", help="Processes. [default: one a CPU]")
def command(dataset: Path, fast: bool, workers: int | None) -> None:
    """Check every extent and checksum of DATASET, and that every image decodes.

    \b
    Examples:
      $ fastdata verify imagenet-train-lmdb
      $ fastdata verify --fast imagenet-train-lmdb
    """
    with ProgressReport(f"verifying {dataset}") as progress:
        result = verify(dataset, fast=fast, workers=workers, progress=progress.images)
    for problem in result.problems[:_SHOWN]:
        click.echo(f"{problem.where}: {problem.what}")
    if result.problems:
        more = len(result.problems) - _SHOWN
        raise CorruptionError(
            f"{dataset}: {len(result.problems)} problems"
            + (f", {more} of them not shown" if more > 0 else ""),
            "Copy the dataset again, or pack it anew with fastdata convert … --force.",
        )
    checked = "sizes are right" if fast else "every checksum is right, every image decodes"
    click.echo(f"{dataset}: {result.samples:,} samples in {result.files:,} files; {checked}")

"""``fastdata verify``: checks a dataset's files, checksums and images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastdata.cli.locations import Location, named, require_url, storage_options
from fastdata.cli.progress import ProgressReport
from fastdata.errors import CorruptionError, printable
from fastdata.maintenance.verify import verify

#: Problems that are printed at most; the others are only counted.
_SHOWN = 20


@click.command("verify")
@click.argument("dataset", type=Location())
@click.option("--fast", is_flag=True, help="Check sizes only.")
@click.option("--workers", type=int, metavar="N", help="Processes. [default: one a CPU]")
@storage_options
def command(
    dataset: Path | str,
    fast: bool,
    workers: int | None,
    storage_options: dict[str, Any] | None,
) -> None:
    """Check every extent and checksum of DATASET, and that every image decodes.

    DATASET is a folder or a URL. Files behind a URL are downloaded once, to a temporary folder.

    \b
    Examples:
      $ fastdata verify imagenet-train-lmdb
      $ fastdata verify --fast imagenet-train-lmdb
      $ fastdata verify gs://bucket/imagenet-train-shards
    """
    require_url(storage_options, dataset)
    name = named(dataset)
    with ProgressReport(f"verifying {name}") as progress:
        result = verify(
            dataset,
            fast=fast,
            workers=workers,
            progress=progress.images,
            storage_options=storage_options,
        )
    for problem in result.problems[:_SHOWN]:
        click.echo(printable(f"{problem.where}: {problem.what}"))
    if result.problems:
        more = len(result.problems) - _SHOWN
        raise CorruptionError(
            f"{name}: {len(result.problems)} problems"
            + (f", {more} of them not shown" if more > 0 else ""),
            "Copy the dataset again, or pack it anew with fastdata convert … --force.",
        )
    checked = "sizes are right" if fast else "every checksum is right, every image decodes"
    click.echo(f"{name}: {result.samples:,} samples in {result.files:,} files; {checked}")

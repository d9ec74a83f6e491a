"""``fastdata verify``: check a dataset's files, checksums and images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastdata.cli.locations import Location, json_option, named, print_json, say, storage_options
from fastdata.cli.progress import ProgressReport
from fastdata.errors import CorruptionError
from fastdata.maintenance.verify import verify
from fastdata.text import human_count

#: Most problems to print; the others are counted.
_SHOWN = 20


@click.command("verify")
@click.argument("dataset", type=Location())
@click.option("--fast", is_flag=True, help="Check sizes, and that all files are of one packing.")
@click.option("--workers", type=int, metavar="N", help="Processes. [default: one a CPU]")
@json_option
@storage_options
def command(dataset: Path | str, as_json: bool, **options: Any) -> None:
    """Check every file, checksum and image of DATASET.

    Every extent must match the index, and every image must decode. DATASET is a folder or a URL.

    \b
    Examples:
      $ fastdata verify imagenet-train-lmdb
      $ fastdata verify --fast imagenet-train-lmdb
      $ fastdata verify gs://bucket/imagenet-train-shards
    """
    name = named(dataset)
    with ProgressReport(f"verifying {name}") as progress:
        result = verify(dataset, progress=progress.images, **options)
    if as_json:
        problems = [problem._asdict() for problem in result.problems]
        print_json({"path": name, **result._asdict(), "problems": problems})
    else:
        for problem in result.problems[:_SHOWN]:
            say(f"{problem.where}: {problem.what}")
    if result.problems:
        more = 0 if as_json else len(result.problems) - _SHOWN
        raise CorruptionError(
            f"{name}: {human_count(len(result.problems), 'problem')}"
            + (f", {more:,} of them not shown" if more > 0 else ""),
            "Copy the dataset again, or make it again: fastdata convert … --force, or fastdata "
            "index … --force.",
        )
    if not as_json:
        checked = (
            "sizes are right" if options["fast"] else "every checksum is right, every image decodes"
        )
        samples, files = human_count(result.samples, "sample"), human_count(result.files, "file")
        say(f"{name}: {samples} in {files}; {checked}")

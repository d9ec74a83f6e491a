"""``fastdata seek-points``: add seek points to a dataset with an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastdata.cli.locations import Location, json_option, named, print_json, say, storage_options
from fastdata.cli.progress import ProgressReport
from fastdata.errors import UsageError
from fastdata.maintenance.seek_points import add_seek_points
from fastdata.storage.encodings import DEFAULT_STRIDE
from fastdata.text import human_count


@click.command("seek-points")
@click.argument("dataset", type=Location())
@click.option(
    "--stride", type=int, default=DEFAULT_STRIDE, show_default=True, help="Pixels between points."
)
@click.option("--remove", is_flag=True, help="Remove the seek points instead.")
@click.option("--workers", type=int, metavar="N", help="Processes. [default: one a CPU]")
@storage_options
@json_option
def command(dataset: Path | str, stride: int, remove: bool, as_json: bool, **options: Any) -> None:
    """Add seek points to DATASET, or remove them.

    A seek point is a position in a JPEG at which a decoder can start. The images themselves do not
    change. `fastdata convert` adds seek points while it packs, unless --no-seek-points is given.
    Those that loaders have learnt are taken as they are.

    \b
    Examples:
      $ fastdata seek-points imagenet-train-lmdb
      $ fastdata seek-points imagenet-train-lmdb --stride 64
    """
    if isinstance(dataset, str):
        raise UsageError(
            f"{named(dataset)}: seek points are added to datasets on disks of this machine",
            "Add them to a local copy, then upload it; or pack again: fastdata convert adds them.",
        )
    with ProgressReport(f"seek points of {dataset}") as progress:
        arguments: Any = {"stride": None if remove else stride, **options}
        made = add_seek_points(dataset, progress=progress.images, **arguments)
    if as_json:
        print_json({"path": dataset, **made._asdict()})
        return
    if remove:
        say(f"{dataset}: seek points removed")
        return
    share = made.seek_bytes / max(made.blob_bytes, 1)
    say(
        f"{dataset}: {made.with_seek_points:,} of {human_count(made.samples, 'sample')} have seek "
        f"points, {share:.2%} of their bytes"
    )

"""``fastdata stage``: copy a dataset to faster storage."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import click

from fastdata.cli.locations import (
    LocalFolder,
    Location,
    json_option,
    named,
    print_json,
    require_url,
    say,
    storage_options,
)
from fastdata.cli.progress import ProgressReport
from fastdata.staging.stage import stage, unstage
from fastdata.staging.staged import default_place
from fastdata.storage.files import human_bytes


@click.command("stage")
@click.argument("dataset", type=Location())
@click.option(
    "--to",
    type=LocalFolder(),
    metavar="FOLDER",
    help="The folder to copy to, or to remove from. [default: $FASTDATA_STAGE_ROOT or /dev/shm]",
)
@click.option("--unstage", "remove", is_flag=True, help="Remove the copy instead.")
@json_option
@storage_options
def command(
    dataset: Path | str, to: Path | None, remove: bool, as_json: bool, **options: Any
) -> None:
    """Copy DATASET, a folder or a URL, to memory or a folder.

    Checksums are verified while copying. Processes of this machine that open DATASET then read
    the copy, until --unstage removes it or the machine restarts. A copy in another folder (--to) is
    opened by its path, or found where FASTDATA_STAGE_ROOT names that folder.

    \b
    Examples:
      $ fastdata stage imagenet-train-lmdb
      $ fastdata stage imagenet-train-lmdb --unstage
      $ fastdata stage gs://bucket/imagenet-train-shards --to copies
    """
    require_url(options["storage_options"], dataset)
    if remove:
        _unstage(dataset, to, as_json)
        return
    text = "waiting for another process that is staging it"
    with ProgressReport(f"staging {named(dataset)}") as progress:
        options |= {"progress": progress.size, "waiting": partial(say, text, err=True)}
        staged = stage(dataset, to, **options)
    if as_json:
        print_json(staged._asdict())
        return
    freed = f"; freed {human_bytes(staged.freed_bytes)} of an older copy" * bool(staged.freed_bytes)
    if staged.reused:
        say(f"{staged.path}: staged already{freed}")
    else:
        say(f"{staged.path}: {human_bytes(staged.copied_bytes)} copied and checked{freed}")
    if to is not None and Path(os.path.realpath(to)) != default_place():
        say(f"open it by this path, or set FASTDATA_STAGE_ROOT={os.path.realpath(to)}")


def _unstage(dataset: Path | str, to: Path | None, as_json: bool) -> None:
    removed = unstage(dataset, to)
    if as_json:
        print_json(removed._asdict())
        return
    for path in removed.paths:
        say(f"{path}: removed")
    if removed.paths:
        say(f"freed {human_bytes(removed.freed_bytes)}")
    else:
        say(f"{named(dataset)}: no staged copy")

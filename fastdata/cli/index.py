"""``fastdata index``: index images that others wrote, where they are."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from fastdata.cli.locations import Location, named, require_url
from fastdata.cli.packing import require_out, source_name, tell
from fastdata.cli.packing_options import RUNNING, comma_separated, with_options
from fastdata.cli.progress import ProgressReport
from fastdata.converters.appending import PART_FILES
from fastdata.converters.encode import ORIGINAL
from fastdata.converters.indexing import KINDS, SUFFIXES, index
from fastdata.executors import keep_freed_memory
from fastdata.remote.patterns import expand, is_pattern
from fastdata.remote.urls import is_url


@click.command("index")
@click.argument("source", type=Location())
@click.option(
    "--out",
    metavar="FOLDER|URL",
    help="The dataset's folder, or a URL. [default: <source>-index]",
)
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    help="Kind of SOURCE. [default: inferred from the names of files]",
)
@click.option(
    "--fields",
    metavar="NAME,NAME",
    callback=comma_separated,
    help="Fields beside image and label; '' for none. [default: all]",
)
@click.option(
    "--image-column",
    metavar="NAME",
    help="Images: a column, or the member's extension in tars. [default: found]",
)
@click.option(
    "--seek-points/--no-seek-points",
    default=False,
    show_default=True,
    help="Index where decoding may start in each JPEG, too: crops load several times faster. "
    "`fastdata seek-points` adds them later.",
)
@click.option(
    "--append",
    is_flag=True,
    help="Add the tars that the index in --out lacks, as a new part of it.",
)
@click.option(
    "--part-files",
    type=int,
    metavar="N",
    help=f"Most tars of a part: an index of more has several. [default: {PART_FILES}]",
)
@partial(with_options, RUNNING)
def command(
    source: Path | str,
    out: str | None,
    fields: Any,
    image_column: Any,
    as_json: bool,
    **options: Any,
) -> None:
    """Index the images of SOURCE where they are; copy nothing.

    SOURCE is a folder or file that others wrote, a pattern such as shards/{000..999}.tar, the URL
    of any, or hf://datasets/owner/name[@revision][/split]. --out then is a dataset as packed ones
    are. Every image is read once, for its size and checksum. An interrupted run resumes.

    \b
    Examples:
      $ fastdata index imagenet/train
      $ fastdata index imagenet/train --out train-index --seek-points --force
      $ fastdata index gs://bucket/imagenet-train-shards --out shards-index --append
    """
    if out is None:
        folder = os.path.dirname(expand(source)[0]) if is_pattern(source) else source
        stem, suffix = os.path.splitext(source_name(folder))
        out = f"{stem if suffix.lower() in SUFFIXES else stem + suffix}-index"
    require_out(out)
    place: Path | str = out if is_url(out) else Path(out)
    require_url(options["storage_options"], place, source)
    keep_freed_memory()
    begun = time.monotonic()
    of_source = {"fields": fields, "image_column": image_column}

    def reporting(part: str) -> ProgressReport:
        return ProgressReport(", ".join(filter(None, (f"indexing {named(place)}", part))))

    chosen = {name: one for name, one in of_source.items() if one is not None}
    packed = index(source, place, reporting=reporting, source=chosen, **options)
    tell(packed, time.monotonic() - begun, ORIGINAL, as_json)

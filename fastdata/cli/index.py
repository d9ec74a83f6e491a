"""``fastdata index``: index images that others wrote, where they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from fastdata.cli.locations import Location
from fastdata.cli.packing import pack_all, source_name
from fastdata.cli.packing_options import comma_separated, running
from fastdata.converters.indexing import kinds, source_of


@click.command("index")
@click.argument("source", type=Location())
@click.option("--out", required=True, metavar="FOLDER|URL", help="The dataset's folder, or a URL.")
@click.option(
    "--kind",
    type=click.Choice(kinds()),
    help="What SOURCE is. [default: told by the names of files]",
)
@click.option(
    "--fields",
    metavar="NAME,NAME",
    callback=comma_separated,
    help="Fields beside image and label; '' for none. [default: all]",
)
@click.option("--image-column", metavar="NAME", help="The images of a table. [default: found]")
@click.option(
    "--seek-points/--no-seek-points",
    default=False,
    show_default=True,
    help="Index where decoding may start in each JPEG, too: crops load several times faster. "
    "`fastdata seek-points` adds them later.",
)
@running
def command(
    source: Path | str,
    out: str,
    kind: str | None,
    fields: list[str] | None,
    image_column: str | None,
    **options: Any,
) -> None:
    """Index the images of SOURCE where they are; copy nothing.

    SOURCE is a folder or file that others wrote, a pattern such as shards/{000..999}.tar, the URL
    of any, or hf://datasets/owner/name[@revision][/split]. --out then is a dataset as packed ones
    are. Every image is read once, for its size and checksum. An interrupted run resumes.

    \b
    Examples:
      $ fastdata index imagenet/train --out train-index
      $ fastdata index imagenet/train --out train-index --seek-points --force
    """
    about = {"fields": fields, "image_column": image_column}
    given: dict[str, Any] = {name: one for name, one in about.items() if one is not None}
    opened = partial(
        source_of, source, kind=kind, storage_options=options["storage_options"], **given
    )
    name, same = source_name(source), {"container": None, "order": None, "seed": None}
    pack_all(name, source, {"": opened}, {**options, **same, "out": out})

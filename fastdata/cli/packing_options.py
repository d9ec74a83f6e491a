"""Options that all sources of ``fastdata convert`` share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from fastdata.cli.locations import LocalFolder, json_option, storage_options
from fastdata.converters.encode import ENCODINGS, Encoding
from fastdata.converters.options import EXECUTORS, PackOptions
from fastdata.storage.fields import BOXES, OUTLINES, POINTS
from fastdata.storage.manifest import CONTAINERS
from fastdata.text import human_count

#: Smallest size of a file; a smaller number lacks its unit.
_LEAST = 1024


def _size(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Return a number of bytes: 1000000, 256MiB, 1GB."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(i?)b?", text.strip().lower())
    if not match:
        raise click.BadParameter(f"{text!r} is not a size; write 256MiB, 1GB or a number of bytes")
    number, unit, binary = match.groups()
    power = " kmg".index(unit or " ")
    size = int(number) * int(pow(1024 if binary else 1000, power))
    if 0 < size < _LEAST:
        raise click.BadParameter(
            f"{text!r} is {human_count(size, 'byte')}: each image would get its own file; "
            f"write {number}MiB or {number}GiB"
        )
    return size


#: Options of the packed contents.
CONTENTS = (
    click.option(
        "--to",
        "container",
        type=click.Choice(CONTAINERS),
        default="lmdb",
        show_default=True,
        help="The container. folder and archives only write an index: images stay where they are, "
        "in files of their own or in archives.",
    ),
    click.option(
        "--out",
        metavar="FOLDER|URL",
        help="The dataset's folder, or a URL (gs://bucket/name) to which each finished file is "
        "uploaded. {split} is replaced by the split's name. "
        "[default: ./<name>-<split>-<container>]",
    ),
    click.option(
        "--encoding",
        type=click.Choice(ENCODINGS),
        default="original",
        show_default=True,
        help="original keeps every byte; jpeg re-encodes; raw stores pixels.",
    ),
    click.option(
        "--max-side", type=int, metavar="PIXELS", help="Reduce a longer side to this (jpeg, raw)."
    ),
    click.option("--quality", type=int, metavar="1-100", help="Quality of jpeg. [default: 90]"),
    click.option(
        "--shard-size",
        callback=_size,
        metavar="SIZE",
        help="Size at which a file ends (parquet, shards). [default: 256MiB]",
    ),
    click.option(
        "--seek-points/--no-seek-points",
        default=True,
        show_default=True,
        help="Index where decoding may start in each JPEG: crops load several times faster, "
        "for 1% more bytes.",
    ),
    click.option(
        "--shuffle/--no-shuffle",
        default=None,
        help="Whether to permute the samples by --seed, which mixes neighbours. [default: for "
        "parquet and shards, except splits for evaluation (val, test)]",
    ),
    click.option("--seed", type=int, metavar="N", help="Seed of the permutation. [default: 0]"),
    click.option(
        "--plain-images",
        is_flag=True,
        help="Store images as a plain column of bytes, which petastorm reads (parquet).",
    ),
)
#: Options of running, also of ``index``.
RUNNING = (
    click.option(
        "--workers",
        type=int,
        metavar="N",
        help="Processes, of some 40 MB each; on Ray, tasks in flight. "
        "[default: one a CPU; on Ray, two]",
    ),
    click.option(
        "--executor",
        type=click.Choice(EXECUTORS),
        default="local",
        show_default=True,
        help="Run processes on this machine, or tasks on a Ray cluster.",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="Address of the Ray cluster. [default: $RAY_ADDRESS, this machine's, or a new one]",
    ),
    click.option("--skip-bad", is_flag=True, help="Finish without images that cannot be packed."),
    click.option("--force", is_flag=True, help="Start over; replace an existing dataset."),
    click.option(
        "--local",
        type=LocalFolder(),
        metavar="FOLDER",
        help="With a URL as --out: folder for files before their upload. "
        "[default: below $FASTDATA_CACHE_DIR or ~/.cache/fastdata]",
    ),
    json_option,
    storage_options,
)


def with_options(options: Sequence[Callable[[Any], Any]], function: Any) -> Any:
    """Add options to a command's function, in their order."""
    for option in reversed(options):
        function = option(function)
    return function


def pack_options(arguments: dict[str, Any]) -> PackOptions:
    """Remove the values of `CONTENTS` that `PackOptions` has from arguments; return these."""
    kind, *sizes = map(arguments.pop, ("encoding", "max_side", "quality"))
    names = ("plain_images", "shard_size", "seek_points", "shuffle", "seed")
    return PackOptions(Encoding(kind, *sizes), *map(arguments.pop, names))


def comma_separated(_: click.Context, __: click.Parameter, value: str | None) -> list[str] | None:
    """Return the names of an option, without empty ones; None if it was not given."""
    return None if value is None else [name for name in value.split(",") if name]


def fields_option(what: str) -> Any:
    """Return the option that names other fields."""
    return click.option(
        "--fields",
        metavar="NAME,NAME",
        callback=comma_separated,
        help=f"{what} to pack beside image and label; '' for none. [default: all]",
    )


def _formats(_: click.Context, __: click.Parameter, words: Sequence[str]) -> dict[str, str]:
    """Return formats by field, of words such as boxes=xywh."""
    formats = dict(word.rpartition("=")[::2] for word in words)
    if "" in formats or len(formats) < len(words):
        raise click.BadParameter("write NAME=FORMAT, each name once, such as boxes=xywh")
    return formats


#: Options that say what fields mean.
meanings = (
    click.option(
        "--format",
        "formats",
        multiple=True,
        metavar="NAME=FORMAT",
        callback=_formats,
        help="Format of a column whose values lie in the image: boxes=xywh. Repeat it. Formats: "
        f"{', '.join((*BOXES, *POINTS, *OUTLINES))}; before one but rle, 'relative ' for shares "
        "of the image's sides.",
    ),
    click.option(
        "--masks",
        metavar="NAME,NAME",
        default="",
        callback=comma_separated,
        help="Masks: fields of image files whose pixels are numbers.",
    ),
)

"""``fastdata convert``: packs a source into a dataset."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from fastdata.cli import convert_archives, convert_tables
from fastdata.cli.locations import (
    Location,
    named,
    say,
)
from fastdata.cli.packing import pack_all, source_name
from fastdata.cli.packing_options import fields_option, meanings, root_option, shared
from fastdata.converters import imagenet
from fastdata.converters.cifar import Cifar
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.packed import PackedDataset, Part
from fastdata.converters.records import Source
from fastdata.converters.shuffling import split_to_pack
from fastdata.converters.webdataset import WebDataset
from fastdata.errors import UsageError
from fastdata.remote.urls import is_url, redact
from fastdata.storage.formats import CONTAINERS
from fastdata.storage.look import look, metadata, table_hint

Function = TypeVar("Function", bound=Callable[..., Any])


_allow_empty = click.option("--allow-empty", is_flag=True, help="Accept classes without images.")


class _Sources(click.Group):
    """Group of sources; given a path instead of a source, it suggests the command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        given = args[0]
        if given not in self.commands and (is_url(given) or Path(given).exists()):
            what = "URL" if is_url(given) else "file" if Path(given).is_file() else "folder"
            found = look(given)
            if not found.source:
                raise UsageError(f"fastdata convert: '{redact(given)}' is {found.what}", found.hint)
            rest = "".join(f" {shlex.quote(word)}" for word in _without_root(args[1:]))
            raise UsageError(
                f"fastdata convert: '{redact(given)}' is a {what}; say what it contains",
                f"{redact(found.hint)}{rest}",
            )
        return super().resolve_command(ctx, args)


def _without_root(words: Sequence[str]) -> Iterator[str]:
    """Yield the words after a source's name, without its ``--root``."""
    rest = iter(words)
    for word in rest:
        if word == "--root":
            next(rest, None)
        elif not word.startswith("--root="):
            yield word


@click.group(cls=_Sources)
def command() -> None:
    """Pack images into a dataset.

    An interrupted run leaves no dataset, and the same command resumes it. The result does not
    depend on the number of workers.

    \b
    Examples:
      $ fastdata convert imagenet --to lmdb
      $ fastdata convert imagenet --split val --to shards --encoding jpeg --max-side 256
      $ fastdata convert imagefolder --root imagenet/train --to parquet --out flowers
    """


@command.command("imagenet")
@click.option(
    "--root",
    type=Location(),
    metavar="PATH|URL",
    help="Folder or URL of ImageNet. [default: $IMAGENET_DIR, else ./imagenet]",
)
@click.option(
    "--split", type=click.Choice(imagenet.SPLITS), help="Which split. [default: all found]"
)
@_allow_empty
@shared
def _imagenet(
    root: Path | str | None, split: str | None, allow_empty: bool, **options: Any
) -> None:
    """ImageNet (ILSVRC 2012), in any of its layouts.

    Class folders (train/<wnid>/*.JPEG), the archives as downloaded
    (ILSVRC2012_img_train.tar, …), or Kaggle's (ILSVRC/Data/CLS-LOC, …).

    \b
    Examples:
      $ fastdata convert imagenet
      $ fastdata convert imagenet --root imagenet --split val --to parquet
      $ fastdata convert imagenet --to folder --out 'index-{split}'
    """
    root = root or imagenet.default_root()
    drivers = options["storage_options"]
    splits = [split] if split else imagenet.splits(root, drivers)
    open_split = partial(imagenet.ImageNet, root, allow_empty=allow_empty, storage_options=drivers)
    sources: dict[str, Callable[[], Source]] = {name: partial(open_split, name) for name in splits}
    pack_all("imagenet", root, sources, options)


@command.command("imagefolder")
@root_option()
@_allow_empty
@shared
def _imagefolder(root: Path | str, allow_empty: bool, **options: Any) -> None:
    """A tree <class>/**/<image>, as torchvision reads it.

    \b
    Examples:
      $ fastdata convert imagefolder --root imagenet/val --to shards --shard-size 64MiB
    """

    def source() -> Source:
        opened = ImageFolder(
            root, allow_empty=allow_empty, storage_options=options["storage_options"]
        )
        noted = [] if is_url(root) else metadata(Path(root))
        if noted:
            hint = table_hint(Path(root, noted[0]))
            say(
                f"warning: {named(root)}: {', '.join(noted)} left out. To pack it: {hint}", err=True
            )
        if split := split_to_pack(opened.classes):
            below = f"{str(named(root)).rstrip('/')}/{split}"
            say(
                f"warning: {named(root)}: its classes are {', '.join(opened.classes)}. If these "
                f"are splits, pack each by itself: --root {shlex.quote(below)}",
                err=True,
            )
        return opened

    pack_all(source_name(root), root, {"": source}, options)


def _cifar(kind: str) -> None:
    @command.command(
        kind,
        help=f"{kind.upper().replace('CIFAR', 'CIFAR-')}, from the python archive as published.",
    )
    @root_option(".")
    @click.option(
        "--split", type=click.Choice(["train", "test"]), help="Which split. [default: both]"
    )
    @shared
    def run(root: Path | str, split: str | None, **options: Any) -> None:
        splits = [split] if split else ["train", "test"]
        open_split = partial(Cifar, kind, root, storage_options=options["storage_options"])
        sources: dict[str, Callable[[], Source]] = {
            name: partial(open_split, name) for name in splits
        }
        pack_all(kind, root, sources, options)


_cifar("cifar10")
_cifar("cifar100")


@command.command("webdataset")
@root_option()
@click.option(
    "--shard-keys",
    is_flag=True,
    help="Put the shard's name before keys, if shards use the same numbers.",
)
@click.option(
    "--labels/--no-labels", default=True, help="Whether .cls, or label in .json, is the label."
)
@fields_option("Members")
@meanings
@shared
def _webdataset(
    root: Path | str,
    shard_keys: bool,
    labels: bool,
    fields: list[str] | None,
    formats: dict[str, str],
    masks: list[str],
    **options: Any,
) -> None:
    """Tar shards of WebDataset: a folder of them, or one.

    Each member of a sample beside image and label is a field with the name of its extension.

    \b
    Examples:
      $ fastdata convert imagenet --split val --to shards --out val-shards
      $ fastdata convert webdataset --root val-shards --to lmdb
    """
    name = source_name(root).removesuffix(".tar")
    source = partial(
        WebDataset,
        root,
        shard_keys=shard_keys,
        labels=labels,
        fields=fields,
        formats=formats,
        masks=masks,
        storage_options=options["storage_options"],
    )
    pack_all(name, root, {"": source}, options)


class _Part(click.ParamType):  # type: ignore[type-arg]
    """Type of a part of a dataset: 0:0.9."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        match = re.fullmatch(r"(\d*\.?\d+):(\d*\.?\d+)", str(value))
        if not match:
            self.fail(f"{value!r} is not a part; write its begin and end, 0:0.9")
        return float(match[1]), float(match[2])


@command.command("dataset")
@root_option()
@click.option(
    "--part",
    type=_Part(),
    metavar="START:STOP",
    help="Part of the samples, drawn by their keys: 0:0.8 and 0.8:1 share none.",
)
@click.option("--part-seed", type=int, metavar="N", help="Seed of --part. [default: 0]")
@click.option(
    "--keys",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Text file of the samples' keys, one a line.",
)
@meanings
@shared
def _dataset(
    root: Path | str,
    part: tuple[float, float] | None,
    part_seed: int | None,
    keys: Path | None,
    formats: dict[str, str],
    masks: list[str],
    **options: Any,
) -> None:
    """A packed dataset, or a part of it, packed again.

    The order, container or encoding may change.

    \b
    Examples:
      $ fastdata convert dataset --root imagenet-train-lmdb --to shards
      $ fastdata convert dataset --root imagenet-train-lmdb --part 0:0.8 --out most
      $ fastdata convert dataset --root imagenet-train-lmdb --part 0.8:1 --out rest
    """
    if part_seed is not None and part is None:
        raise UsageError(f"--part-seed {part_seed} has no effect without --part", "Leave it out.")
    name = source_name(root)
    for container in CONTAINERS:
        name = name.removesuffix(f"-{container}")
    source = partial(
        PackedDataset,
        root,
        part=None if part is None else Part(*part, part_seed or 0),
        keys=None if keys is None else _read_keys(keys),
        formats=formats,
        masks=masks,
        storage_options=options["storage_options"],
    )
    pack_all(name, root, {"": source}, options)


def _read_keys(path: Path) -> list[str]:
    try:
        return [key for key in path.read_text("utf-8").split("\n") if key]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--keys {path}: {error}", "Name a text file of UTF-8.") from None


for _one in (*convert_archives.COMMANDS, *convert_tables.COMMANDS):
    command.add_command(_one)

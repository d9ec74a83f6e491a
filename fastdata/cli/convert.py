"""``fastdata convert``: packs a source into a dataset."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from fastdata.cli.locations import (
    Location,
    named,
    print_json,
    require_url,
    say,
)
from fastdata.cli.packing_options import shared
from fastdata.cli.progress import ProgressReport
from fastdata.converters import imagenet
from fastdata.converters.cifar import Cifar
from fastdata.converters.encode import Encoding
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.listing import describe_left_out
from fastdata.converters.packed import PackedDataset, Part
from fastdata.converters.packing import Packed, pack
from fastdata.converters.parquet import ParquetImages, is_petastorm
from fastdata.converters.records import Source
from fastdata.converters.shuffling import SHUFFLED, default_order, split_to_pack
from fastdata.converters.table import TableImages
from fastdata.converters.webdataset import WebDataset
from fastdata.errors import BadSamplesError, SourceError, UsageError
from fastdata.executors import keep_freed_memory
from fastdata.remote.urls import is_url, name_of, redact
from fastdata.storage.files import human_bytes
from fastdata.storage.formats import CONTAINERS
from fastdata.storage.look import KEEP, look, metadata
from fastdata.text import human_count

Function = TypeVar("Function", bound=Callable[..., Any])


_allow_empty = click.option("--allow-empty", is_flag=True, help="Accept classes without images.")


def _fields(what: str) -> Callable[[Function], Function]:
    """Return the option that names further fields."""

    def names(_: click.Context, __: click.Parameter, value: str | None) -> list[str] | None:
        return None if value is None else [name for name in value.split(",") if name]

    return click.option(
        "--fields",
        metavar="NAME,NAME",
        callback=names,
        help=f"{what} to pack beside image and label; '' for none. [default: all]",
    )


def _root(default: str | None = None) -> Callable[[Function], Function]:
    # Not default=None: click 8.3 and later take that for a value, and --root as given.
    given: dict[str, Any] = {"required": True}
    if default is not None:
        given = {"default": default, "show_default": True}
    return click.option(
        "--root",
        type=Location(),
        **given,
        metavar="PATH|URL",
        help="Folder, file or URL of the images.",
    )


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
    _pack_all("imagenet", root, sources, options)


@command.command("imagefolder")
@_root()
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
            say(f"warning: {named(root)}: {', '.join(noted)} left out. {KEEP}", err=True)
        if split := split_to_pack(opened.classes):
            below = f"{str(named(root)).rstrip('/')}/{split}"
            say(
                f"warning: {named(root)}: its classes are {', '.join(opened.classes)}. If these "
                f"are splits, pack each by itself: --root {shlex.quote(below)}",
                err=True,
            )
        return opened

    _pack_all(_name(root), root, {"": source}, options)


def _cifar(kind: str) -> None:
    @command.command(
        kind,
        help=f"{kind.upper().replace('CIFAR', 'CIFAR-')}, from the python archive as published.",
    )
    @_root(".")
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
        _pack_all(kind, root, sources, options)


_cifar("cifar10")
_cifar("cifar100")


@command.command("webdataset")
@_root()
@click.option(
    "--shard-keys",
    is_flag=True,
    help="Put the shard's name before keys, if shards use the same numbers.",
)
@click.option(
    "--labels/--no-labels", default=True, help="Whether .cls, or label in .json, is the label."
)
@_fields("Members")
@shared
def _webdataset(
    root: Path | str, shard_keys: bool, labels: bool, fields: list[str] | None, **options: Any
) -> None:
    """Tar shards of WebDataset: a folder of them, or one.

    Each member of a sample beside image and label is a field with the name of its extension.

    \b
    Examples:
      $ fastdata convert imagenet --split val --to shards --out val-shards
      $ fastdata convert webdataset --root val-shards --to lmdb
    """
    name = _name(root).removesuffix(".tar")
    source = partial(
        WebDataset,
        root,
        shard_keys=shard_keys,
        labels=labels,
        fields=fields,
        storage_options=options["storage_options"],
    )
    _pack_all(name, root, {"": source}, options)


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
@_root()
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
@shared
def _dataset(
    root: Path | str,
    part: tuple[float, float] | None,
    part_seed: int | None,
    keys: Path | None,
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
    name = _name(root)
    for container in CONTAINERS:
        name = name.removesuffix(f"-{container}")
    source = partial(
        PackedDataset,
        root,
        part=None if part is None else Part(*part, part_seed or 0),
        keys=None if keys is None else _read_keys(keys),
        storage_options=options["storage_options"],
    )
    _pack_all(name, root, {"": source}, options)


def _read_keys(path: Path) -> list[str]:
    try:
        return [key for key in path.read_text("utf-8").split("\n") if key]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--keys {path}: {error}", "Name a text file of UTF-8.") from None


@command.command("table")
@click.option(
    "--root",
    type=Location(),
    required=True,
    metavar="PATH|URL",
    help="The table: CSV, TSV, JSON lines or Parquet.",
)
@click.option("--images", type=Location(), metavar="FOLDER|URL", help="The folder that paths are "
              "relative to. [default: the table's]")  # fmt: skip
@click.option("--path-column", metavar="NAME", help="Paths of images. [default: found]")
@click.option("--label-column", metavar="NAME", help="Class numbers or names. [default: label]")
@click.option("--key-column", metavar="NAME", help="Keys. [default: key, else the path]")
@click.option(
    "--file-columns",
    metavar="NAME,NAME",
    default="",
    help="Columns with paths of further files, such as masks, which are packed as fields.",
)
@_fields("Columns")
@shared
def _table(
    root: Path | str,
    images: Path | str | None,
    path_column: str | None,
    label_column: str | None,
    key_column: str | None,
    file_columns: str,
    fields: list[str] | None,
    **options: Any,
) -> None:
    """Image files that a table lists, with its other columns as fields.

    \b
    Examples:
      $ fastdata convert table --root celeba/list.csv --images celeba/img
      $ fastdata convert table --root ade.jsonl --path-column image --file-columns mask
    """

    def source() -> Source:
        return TableImages(
            root,
            images,
            path=path_column,
            label=label_column,
            key=key_column,
            files=[name for name in file_columns.split(",") if name],
            fields=fields,
            storage_options=options["storage_options"],
        )

    _pack_all(_name(root).rpartition(".")[0], root, {"": source}, options)


_PARQUET_HELP = """\
The column of images is found by its contents, that of labels by its name (label, class, …) or
Hugging Face's features; else name them. All other columns are fields; the columns taken and left
out are printed. Rows whose image or label is null are bad samples.

\b
Examples:
  $ fastdata convert imagenet --split val --to parquet --out val-parquet
  $ fastdata convert parquet --root val-parquet --to lmdb
"""
_PARQUET_COLUMNS = ("image_column", "label_column", "key_column")


def _parquet(kind: str, about: str) -> None:
    @command.command(
        kind,
        help=f"{about}\n\n{_PARQUET_HELP}",
    )
    @_root()
    @click.option("--image-column", metavar="NAME", help="The images. [default: found]")
    @click.option("--label-column", metavar="NAME", help="Class numbers or names. [default: found]")
    @click.option(
        "--key-column", metavar="NAME", help="Keys. [default: key, else file and row number]"
    )
    @_fields("Columns")
    @shared
    def run(root: Path | str, fields: list[str] | None, **options: Any) -> None:
        drivers = options["storage_options"]
        if kind == "petastorm" and not is_petastorm(root, drivers):
            raise SourceError(
                f"{named(root)}: has no _common_metadata of petastorm",
                "For other Parquet use fastdata convert parquet.",
            )
        columns = {name: options.pop(name) for name in _PARQUET_COLUMNS}

        def source() -> Source:
            opened = ParquetImages(root, fields=fields, storage_options=drivers, **columns)
            say(f"{named(root)}: {opened.columns_taken}", err=True)
            return opened

        _pack_all(_name(root).removesuffix(".parquet"), root, {"": source}, options)


_parquet("parquet", "Parquet with a column of images, from any writer.")
_parquet("petastorm", "Parquet of petastorm, whose metadata are not unpickled.")


def _name(root: Path | str) -> str:
    return name_of(root) if isinstance(root, str) else os.path.basename(os.path.realpath(root))


def _pack_all(
    name: str,
    root: Path | str,
    sources: Mapping[str, Callable[[], Source]],
    options: dict[str, Any],
) -> None:
    """Pack each split; after bad images in one, go on with the next."""
    out, local = options.pop("out"), options.pop("local")
    if len(sources) > 1 and out is not None and "{split}" not in out:
        raise UsageError(
            f"--out {redact(out)} names one dataset, but there are the splits "
            f"{' and '.join(sources)}",
            "Choose one by --split, or put {split} into --out.",
        )
    if out is not None and not out.strip():
        raise UsageError("--out is empty", "Name a folder or a URL, or leave --out out.")
    keep_freed_memory()
    orders = {
        split: options["order"] or default_order(options["container"], {"split": split})
        for split in sources
    }
    failure: BadSamplesError | None = None
    for split, open_source in sources.items():
        default = "-".join(filter(None, (name, split, options["container"])))
        to = (default if out is None else out).replace("{split}", split)
        place: Path | str = to if is_url(to) else Path(to)
        require_url(options["storage_options"], place, root)
        # One folder a dataset.
        folder = local / split if local is not None and len(sources) > 1 else local
        # The seed applies to the shuffled splits.
        ignored = len(sources) > 1 and SHUFFLED in orders.values() and orders[split] != SHUFFLED
        seed = None if ignored else options["seed"]
        try:
            _pack_one(place, open_source, local=folder, **{**options, "seed": seed})
        except BadSamplesError as error:
            if failure is not None:
                say(f"error: {failure.what}", err=True)
            failure = error
    if failure is not None:
        raise failure


def _pack_one(
    out: Path | str,
    open_source: Callable[[], Source],
    *,
    container: str,
    encoding: str,
    max_side: int | None,
    quality: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    encoded = Encoding(encoding, max_side, quality)
    begun = time.monotonic()
    with ProgressReport(f"packing {named(out)}") as progress:
        packed = pack(
            open_source(),
            out,
            container=container,
            encoding=encoded,
            progress=progress,
            **options,
        )
    seconds = time.monotonic() - begun
    if as_json:
        print_json(_facts(packed, seconds))
    else:
        say(_summary(packed, seconds))
        for line in _kinds(packed, encoded):
            say(line)
        if packed.left_out:
            say(f"left out by suffix: {describe_left_out(packed.left_out)}")
        say(f"load it: fastdata.ImageDataset({str(packed.path)!r})")


#: Share of progressive and arithmetic-coded images from which the summary suggests --encoding.
_SUGGESTED_SHARE = 0.01


def _kinds(packed: Packed, encoding: Encoding) -> Iterator[str]:
    """Yield lines about the kinds of images, and about rewriting them."""
    if packed.kinds:
        kinds = (
            f"{kind.images:,} {name} ({human_bytes(kind.size)})"
            for name, kind in packed.kinds.items()
        )
        yield f"stored: {', '.join(kinds)}"
    rewritable = {
        word: packed.kinds[kind].images
        for kind, word in (
            ("jpeg-progressive", "progressive"),
            ("jpeg-arithmetic", "arithmetic-coded"),
        )
        if kind in packed.kinds
    }
    count = sum(rewritable.values())
    if encoding.kind == "baseline":
        if packed.kinds:
            stored, before = packed.manifest.blob_bytes, packed.source_bytes
            grown = (
                f"{human_bytes(before)} became {human_bytes(stored)} ({stored / before - 1:+.1%})"
                if before
                else f"{human_bytes(stored)} stored"
            )
            yield (
                f"--encoding baseline: {grown}. Pixels are unchanged; the original bytes of "
                "rewritten files are only in the source"
            )
        if count:
            yield (
                f"{count:,} {' and '.join(rewritable)} JPEGs are unchanged: they cannot be "
                "rewritten without loss"
            )
    elif (
        count
        and count >= packed.manifest.samples * _SUGGESTED_SHARE
        and encoding.kind == "original"
        and packed.manifest.container != "folder"
    ):
        yield (
            f"{count / packed.manifest.samples:.0%} of the images are {' or '.join(rewritable)} "
            "JPEGs. --encoding baseline rewrites them without loss: the same pixels, decoded "
            "several times faster, some percent larger"
        )


def _facts(packed: Packed, seconds: float) -> dict[str, Any]:
    """Return the summary as JSON values."""
    manifest = packed.manifest
    return {
        "path": packed.path,
        "container": manifest.container,
        "samples": manifest.samples,
        "classes": len(manifest.classes),
        "skipped": manifest.skipped,
        "blob_bytes": manifest.blob_bytes,
        "order": manifest.order,
        "seed": manifest.seed,
        "resumed": packed.resumed,
        "left_out": dict(packed.left_out),
        "seconds": seconds,
    }


def _summary(packed: Packed, seconds: float) -> str:
    manifest = packed.manifest
    what = (
        f"{packed.path}: {human_count(manifest.samples, 'sample')} of "
        f"{human_count(len(manifest.classes), 'class', 'classes')}, "
        f"{human_bytes(manifest.blob_bytes)} in {manifest.container}"
    )
    if manifest.seed is not None:
        what += f", shuffled by seed {manifest.seed}"
    if manifest.skipped:
        what += f", {human_count(manifest.skipped, 'bad one')} skipped"
    done = manifest.samples - packed.resumed
    if not done:
        return f"{what}; already packed"
    return f"{what}; packed {done:,} in {seconds:.1f} s, {done / seconds:,.0f} images/s"

"""``fastdata convert``: packs a source into a dataset."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from fastdata.cli.locations import (
    Folder,
    Location,
    json_option,
    named,
    print_json,
    require_url,
    say,
    storage_options,
)
from fastdata.cli.progress import ProgressReport
from fastdata.converters import imagenet
from fastdata.converters.cifar import Cifar
from fastdata.converters.encode import ENCODINGS, Encoding
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.listing import describe_left_out
from fastdata.converters.packed import PackedDataset, Part
from fastdata.converters.packing import EXECUTORS, Packed, pack
from fastdata.converters.parquet import ParquetImages, is_petastorm
from fastdata.converters.records import Source
from fastdata.converters.shuffling import ORDERS, SHUFFLED, default_order, split_to_pack
from fastdata.converters.webdataset import WebDataset
from fastdata.errors import BadSamplesError, SourceError, UsageError
from fastdata.executors import keep_freed_memory
from fastdata.remote.urls import is_url, name_of, redact
from fastdata.storage.files import human_bytes
from fastdata.storage.formats import CONTAINERS
from fastdata.storage.look import KEEP, look, metadata
from fastdata.text import human_count

Function = TypeVar("Function", bound=Callable[..., Any])


class _Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: 1000000, 256MiB, 1GB."""

    name = "size"
    #: A smaller one was meant to have a unit.
    _LEAST = 1024
    _UNITS: ClassVar = {
        "": 1,
        "k": 10**3,
        "m": 10**6,
        "g": 10**9,
        "ki": 2**10,
        "mi": 2**20,
        "gi": 2**30,
    }

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d+)\s*([kmg]i?)?b?", str(value).strip().lower())
        if not match:
            self.fail(f"{value!r} is not a size; write 256MiB, 1GB or a number of bytes")
        size = int(match[1]) * self._UNITS[match[2] or ""]
        if 0 < size < self._LEAST:
            self.fail(
                f"{value!r} is {human_count(size, 'byte')}, so that each image would have a file "
                f"of its own; write {match[1]}MiB or {match[1]}GiB"
            )
        return size


_SHARED = (
    click.option(
        "--to",
        "container",
        type=click.Choice(CONTAINERS),
        default="lmdb",
        show_default=True,
        help="The container. folder leaves the images where they are and writes an index only.",
    ),
    click.option(
        "--out",
        metavar="FOLDER|URL",
        help="The dataset's folder, or a URL (gs://bucket/name) that each file is sent to when it "
        "is finished; an LMDB is packed whole, then sent. {split} stands for the split's name. "
        "[default: ./<name>-<split>-<container>]",
    ),
    click.option(
        "--encoding",
        type=click.Choice(ENCODINGS),
        default="original",
        show_default=True,
        help="original keeps every byte; baseline rewrites progressive and arithmetic-coded JPEGs "
        "without loss; jpeg encodes anew; raw stores pixels.",
    ),
    click.option(
        "--max-side",
        type=int,
        metavar="PIXELS",
        help="Reduce the longer side to this where it is longer (jpeg, raw).",
    ),
    click.option("--quality", type=int, metavar="1-100", help="Of jpeg. [default: 90]"),
    click.option(
        "--shard-size",
        type=_Size(),
        metavar="SIZE",
        help="Size at which a file ends (parquet, shards). [default: 256MiB]",
    ),
    click.option(
        "--seek-points/--no-seek-points",
        default=True,
        show_default=True,
        help="Index where in each JPEG decoding may start: crops several times faster, 1% more.",
    ),
    click.option(
        "--order",
        type=click.Choice(ORDERS),
        help="shuffled: a permutation by --seed, so that what lies together is mixed; source: as "
        "the source has it. [default: shuffled for parquet and shards, but not for splits for "
        "evaluation (val, test); else source]",
    ),
    click.option("--seed", type=int, metavar="N", help="Of the permutation. [default: 0]"),
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
        help="Where the work is done: processes of this machine, or tasks on a Ray cluster.",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="The Ray cluster's. [default: $RAY_ADDRESS, one of this machine, or a new one]",
    ),
    click.option(
        "--plain-images",
        is_flag=True,
        help="Store images as a plain column of bytes, which petastorm reads (parquet).",
    ),
    click.option("--skip-bad", is_flag=True, help="Finish without images that cannot be packed."),
    click.option("--force", is_flag=True, help="Start over; replace what was packed there."),
    click.option(
        "--local",
        type=Folder(),
        metavar="FOLDER",
        help="With a URL as --out: where files are made before they are sent. "
        "[default: below $FASTDATA_CACHE_DIR or ~/.cache/fastdata]",
    ),
    json_option,
    storage_options,
)

_allow_empty = click.option("--allow-empty", is_flag=True, help="Accept classes without images.")


def _shared(function: Function) -> Function:
    for option in reversed(_SHARED):
        function = option(function)
    return function


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
        help="Where the images are.",
    )


class _Sources(click.Group):
    """A group of sources, which tells what to write where a path was given instead of one."""

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
    """What follows a source's name, but for its ``--root``."""
    rest = iter(words)
    for word in rest:
        if word == "--root":
            next(rest, None)
        elif not word.startswith("--root="):
            yield word


@click.group(cls=_Sources)
def command() -> None:
    """Pack images into a dataset.

    Interrupted, it leaves no dataset behind, and the same command goes on from there. The
    result does not depend on the number of workers.

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
    help="Where ImageNet is. [default: $IMAGENET_DIR, else ./imagenet]",
)
@click.option(
    "--split", type=click.Choice(imagenet.SPLITS), help="Which split. [default: all found]"
)
@_allow_empty
@_shared
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
@_shared
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
    @_shared
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
    help="Put the shard's name before keys: for shards that number their samples alike.",
)
@_shared
def _webdataset(root: Path | str, shard_keys: bool, **options: Any) -> None:
    """Tar shards of WebDataset: a folder of them, or one.

    \b
    Examples:
      $ fastdata convert imagenet --split val --to shards --out val-shards
      $ fastdata convert webdataset --root val-shards --to lmdb
    """
    name = _name(root).removesuffix(".tar")
    source = partial(
        WebDataset, root, shard_keys=shard_keys, storage_options=options["storage_options"]
    )
    _pack_all(name, root, {"": source}, options)


class _Part(click.ParamType):  # type: ignore[type-arg]
    """A part of a dataset: 0:0.9."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        match = re.fullmatch(r"(\d*\.?\d+):(\d*\.?\d+)", str(value))
        if not match:
            self.fail(f"{value!r} is not a part; write where it begins and ends, 0:0.9")
        return float(match[1]), float(match[2])


@command.command("dataset")
@_root()
@click.option(
    "--part",
    type=_Part(),
    metavar="START:STOP",
    help="This part of the samples, drawn by their keys: 0:0.8 and 0.8:1 share none.",
)
@click.option("--part-seed", type=int, metavar="N", help="Of --part. [default: 0]")
@click.option(
    "--keys",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The samples whose keys a text file names, one a line.",
)
@_shared
def _dataset(
    root: Path | str,
    part: tuple[float, float] | None,
    part_seed: int | None,
    keys: Path | None,
    **options: Any,
) -> None:
    """A packed dataset, or a part of it, packed again.

    In another order, container or encoding.

    \b
    Examples:
      $ fastdata convert dataset --root imagenet-train-lmdb --to shards
      $ fastdata convert dataset --root imagenet-train-lmdb --part 0:0.8 --out most
      $ fastdata convert dataset --root imagenet-train-lmdb --part 0.8:1 --out rest
    """
    if part_seed is not None and part is None:
        raise UsageError(f"--part-seed {part_seed} has no meaning without --part", "Leave it out.")
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


_PARQUET_HELP = """\
The images' column is found by what it holds, the labels' by its name (label, class, …) or
Hugging Face's notes; else say which they are. One image and one class are packed: what is taken
and what is left out is printed. Rows whose image or label is null are bad samples.

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
    @_shared
    def run(root: Path | str, **options: Any) -> None:
        drivers = options["storage_options"]
        if kind == "petastorm" and not is_petastorm(root, drivers):
            raise SourceError(
                f"{named(root)}: petastorm has left no _common_metadata of its own here",
                "Other Parquet is read by: fastdata convert parquet.",
            )
        columns = {name: options.pop(name) for name in _PARQUET_COLUMNS}

        def source() -> Source:
            opened = ParquetImages(root, storage_options=drivers, **columns)
            say(f"{named(root)}: {opened.columns_taken}", err=True)
            return opened

        _pack_all(_name(root).removesuffix(".parquet"), root, {"": source}, options)


_parquet("parquet", "Parquet with a column of images, from any writer.")
_parquet("petastorm", "Parquet that petastorm has written.\n\nIts metadata is not unpickled.")


def _name(root: Path | str) -> str:
    return name_of(root) if isinstance(root, str) else os.path.basename(os.path.realpath(root))


def _pack_all(
    name: str,
    root: Path | str,
    sources: Mapping[str, Callable[[], Source]],
    options: dict[str, Any],
) -> None:
    """Packs each split; bad images in one do not keep the next from being packed."""
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
        # A seed is of those splits that are shuffled, where others are not.
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


#: From this share of progressive and arithmetic-coded images on, rewriting them is worth a word.
_TOLD_SHARE = 0.01


def _kinds(packed: Packed, encoding: Encoding) -> Iterator[str]:
    """What kinds of images there were, and what rewriting some would gain or has taken."""
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
                f"--encoding baseline: {grown}. Pixels are the source's; the bytes of files that "
                "were rewritten cannot be had again from here"
            )
        if count:
            yield (
                f"{count:,} {' and '.join(rewritable)} JPEGs are as they were: of a kind, or with "
                "damage or contents, that cannot be rewritten without loss"
            )
    elif (
        count
        and count >= packed.manifest.samples * _TOLD_SHARE
        and encoding.kind == "original"
        and packed.manifest.container != "folder"
    ):
        yield (
            f"{count / packed.manifest.samples:.0%} of the images are {' or '.join(rewritable)} "
            "JPEGs. --encoding baseline rewrites them without loss: the same pixels, decoded "
            "several times faster, some percent larger"
        )


def _facts(packed: Packed, seconds: float) -> dict[str, Any]:
    """What `_summary` says, for programs."""
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

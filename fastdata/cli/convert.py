"""``fastdata convert``: packs a source into a dataset.

A command's function returns the dataset's name and its sources by split; its options have the
names of the source's arguments.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import click

from fastdata.cli.locations import Location, named, say
from fastdata.cli.packing import pack_all, source_name
from fastdata.cli.packing_options import (
    CONTENTS,
    RUNNING,
    comma_separated,
    fields_option,
    meanings,
    pack_options,
    with_options,
)
from fastdata.converters import imagenet, yolo
from fastdata.converters.annotations import AnnotatedFolder
from fastdata.converters.arrow import ArrowImages, arrow_splits
from fastdata.converters.coco import CocoImages, coco_splits
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.lmdbs import LmdbImages
from fastdata.converters.masks import MaskedImages
from fastdata.converters.options import split_to_pack
from fastdata.converters.packed import PackedDataset
from fastdata.converters.parquet import ParquetImages, parquet_splits
from fastdata.converters.records import ImageSource
from fastdata.converters.table import TableImages
from fastdata.converters.tabular import TabularImages
from fastdata.converters.voc import VocImages
from fastdata.converters.webdataset import WebDataset
from fastdata.errors import UsageError
from fastdata.remote.urls import is_url, redact
from fastdata.storage.manifest import CONTAINERS
from fastdata.storage.peek import metadata, peek, table_hint

#: Opens each split's source; "" if there are none.
_Sources = Mapping[str, Callable[[], ImageSource]]


class _Group(click.Group):
    """Group of sources; given a path instead of a source, it suggests the command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        place = args[0]
        if place not in self.commands and (is_url(place) or Path(place).exists()):
            what = "URL" if is_url(place) else "file" if Path(place).is_file() else "folder"
            recognised = peek(place)
            if not recognised.source:
                raise UsageError(
                    f"fastdata convert: '{redact(place)}' is {recognised.what}", recognised.hint
                )
            rest = "".join(f" {shlex.quote(word)}" for word in _without_root(args[1:]))
            raise UsageError(
                f"fastdata convert: '{redact(place)}' is a {what}; say what it contains",
                f"{redact(recognised.hint)}{rest}",
            )
        if place not in self.commands and not place.startswith("-"):
            other = next((name for name, words in _WORDS.items() if place.lower() in words), None)
            close = [other] if other else get_close_matches(place.lower(), self.commands, 1)
            hint = f"Write fastdata convert {close[0]}" if close else "fastdata convert --help"
            raise UsageError(f"fastdata convert: there is no source {place!r}", f"{hint}.")
        return super().resolve_command(ctx, args)


#: Other words for sources.
_WORDS = {
    "table": ("csv", "tsv", "json", "jsonl", "pandas", "polars", "dataframe", "list"),
    "webdataset": ("tar", "tars", "wds", "shards"),
    "imagefolder": ("folder", "images", "image_folder"),
    "arrow": ("hf", "huggingface", "datasets", "save_to_disk"),
    "masks": ("segmentation",),
}


def _without_root(words: Sequence[str]) -> Iterator[str]:
    """Yield the words after a source's name, without its ``--root``."""
    rest = iter(words)
    for word in rest:
        if word == "--root":
            next(rest, None)
        elif not word.startswith("--root="):
            yield word


@click.group(cls=_Group)
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


def _source(
    name: str,
    *options: Callable[[Any], Any],
    root: str = "Folder, file or URL of the images.",
    **root_options: Any,
) -> Callable[[Callable[..., tuple[str, _Sources]]], Any]:
    """Add a command with ``--root``, its own options, and the options of packing."""

    def add(function: Callable[..., tuple[str, _Sources]]) -> Any:
        # Not default=None: click 8.3 and later take that for a value, and --root as given.
        settings = root_options or {"required": True}
        kind: Any = {"type": Location(), "metavar": "PATH|URL", "help": root}
        place = click.option("--root", **kind, **settings)

        def run(root: Path | str, **arguments: Any) -> None:
            packing = {key: arguments.pop(key) for key in _OF_PACKING}
            dataset, sources = function(root, drivers=packing["storage_options"], **arguments)
            pack_all(dataset, root, sources, options=pack_options(packing), **packing)

        every = with_options((place, *options, *CONTENTS, *RUNNING), run)
        return command.command(name, help=function.__doc__)(every)

    return add


#: Names of the options that all sources share.
_OF_PACKING = [
    one.name for one in with_options((*CONTENTS, *RUNNING), lambda: None).__click_params__
]


def _split(text: str = "Split to convert. [default: all]", **settings: Any) -> Any:
    settings = {"metavar": "NAME"} | settings if "type" not in settings else settings
    return click.option("--split", help=text, **settings)


def _column(role: str, text: str, dest: str | None = None) -> Any:
    return click.option(f"--{role}-column", dest or f"{role}_column", metavar="NAME", help=text)


def _classes(default: str) -> Any:
    return click.option(
        "--classes",
        metavar="NAME,NAME",
        callback=comma_separated,
        help=f"Class names, by label. [default: {default}]",
    )


_allow_empty = click.option("--allow-empty", is_flag=True, help="Accept classes without images.")


@_source(
    "imagenet",
    _split(type=click.Choice(imagenet.SPLITS)),
    _allow_empty,
    root="Folder or URL of ImageNet. [default: $IMAGENET_DIR, else ./imagenet]",
    default=lambda: Path(os.environ.get("IMAGENET_DIR") or "imagenet"),
)
def _imagenet(root: Any, drivers: Any, split: str | None, **options: Any) -> tuple[str, _Sources]:
    """ImageNet (ILSVRC 2012), in any of its layouts.

    Class folders (train/<wnid>/*.JPEG), the archives as downloaded
    (ILSVRC2012_img_train.tar, …), or Kaggle's (ILSVRC/Data/CLS-LOC, …).

    \b
    Examples:
      $ fastdata convert imagenet
      $ fastdata convert imagenet --root imagenet --split val --to parquet
      $ fastdata convert imagenet --to folder --out 'index-{split}'
    """
    splits = [split] if split else imagenet.splits(root, drivers)
    opened = partial(imagenet.ImageNet, root, storage_options=drivers, **options)
    return "imagenet", {name: partial(opened, name) for name in splits}


@_source("imagefolder", _allow_empty)
def _imagefolder(root: Any, drivers: Any, **options: Any) -> tuple[str, _Sources]:
    """A tree <class>/**/<image>, as torchvision reads it.

    \b
    Examples:
      $ fastdata convert imagefolder --root imagenet/val --to shards --shard-size 64MiB
    """

    def source() -> ImageSource:
        opened = ImageFolder(root, storage_options=drivers, **options)
        noted = [] if is_url(root) else metadata(Path(root))
        where = f"warning: {named(root)}:"
        if noted:
            hint = table_hint(Path(root, noted[0]))
            say(f"{where} {', '.join(noted)} left out. To pack it: {hint}", err=True)
        if split := split_to_pack(opened.classes):
            below = shlex.quote(f"{str(named(root)).rstrip('/')}/{split}")
            say(
                f"{where} its classes are {', '.join(opened.classes)}. If these "
                f"are splits, pack each by itself: --root {below}",
                err=True,
            )
        return opened

    return source_name(root), {"": source}


@_source(
    "webdataset",
    _column("image", "Extension of the image: left.jpg. [default: jpg, png, …, or the only one]"),
    click.option(
        "--shard-keys",
        is_flag=True,
        help="Put the shard's name before keys, if shards use the same numbers.",
    ),
    click.option(
        "--labels/--no-labels", default=True, help="Whether .cls, or label in .json, is the label."
    ),
    fields_option("Members"),
    *meanings,
)
def _webdataset(root: Any, drivers: Any, **options: Any) -> tuple[str, _Sources]:
    """Tar shards of WebDataset: a folder of them, or one.

    Each member of a sample beside image and label is a field with the name of its extension.

    \b
    Examples:
      $ fastdata convert imagenet --split val --to shards --out val-shards
      $ fastdata convert webdataset --root val-shards --to lmdb
    """
    source = partial(WebDataset, root, storage_options=drivers, **options)
    return source_name(root).removesuffix(".tar"), {"": source}


@_source("dataset", *meanings)
def _dataset(root: Any, drivers: Any, **options: Any) -> tuple[str, _Sources]:
    """A packed dataset, packed again.

    The order, container or encoding may change.

    \b
    Examples:
      $ fastdata convert dataset --root imagenet-train-lmdb --to shards
    """
    name = source_name(root)
    for container in CONTAINERS:
        name = name.removesuffix(f"-{container}")
    return name, {"": partial(PackedDataset, root, storage_options=drivers, **options)}


@_source(
    "lmdb",
    click.option("--database", metavar="NAME", help="Named database. [default: the unnamed one]"),
    click.option(
        "--keys",
        metavar="REGEX",
        help="Keys of images; others are left out. A group (?P<class>…) in it is the class's name.",
    ),
    root="Folder of data.mdb, a file, or a folder of several LMDBs, one a class.",
)
def _lmdb(root: Any, drivers: Any, **options: Any) -> tuple[str, _Sources]:
    """LMDBs whose values are image files, such as LSUN's.

    Values of other kinds, such as pickled tuples or Caffe's Datum, are refused.

    \b
    Examples:
      $ fastdata convert lmdb --root lsun/church_outdoor_val_lmdb
      $ fastdata convert lmdb --root train.lmdb --keys '(?P<class>[^/]+)/.*'
    """
    name = source_name(root).removesuffix(".mdb").removesuffix("lmdb").rstrip("._-")
    return name, {"": partial(LmdbImages, root, storage_options=drivers, **options)}


def _described(
    root: Any, opened: Callable[[], TabularImages | TableImages]
) -> Callable[[], ImageSource]:
    """Return a function that opens a source and prints which columns it takes."""

    def source() -> ImageSource:
        opened_source = opened()
        say(f"{named(root)}: {opened_source.columns_taken}", err=True)
        return opened_source

    return source


def _tabular(
    kind: str,
    about: str,
    examples: str,
    opens: Callable[..., TabularImages],
    found_splits: Callable[..., list[str]],
) -> None:
    """Add the command of a source of rows with columns."""

    def sources(root: Any, drivers: Any, split: str | None, **options: Any) -> tuple[str, _Sources]:
        def source(one: str | None) -> Callable[[], ImageSource]:
            return _described(
                root, partial(opens, root, split=one, storage_options=drivers, **options)
            )

        names: list[str] = found_splits(root, drivers)
        name = source_name(root).removesuffix(f".{kind}")
        if split is None and len(names) < 2:
            return name, {"": source(None)}
        return name, {one: source(one) for one in (names if split is None else [split])}

    sources.__doc__ = f"{about}\n\n{_COLUMNS}\n\n\b\nExamples:\n{examples}"
    _source(
        kind,
        _column("image", "The images. [default: found]"),
        _column("label", "Class numbers or names. [default: found]"),
        _column("key", "Keys. [default: key, else file and row number]"),
        _split(),
        fields_option("Columns"),
        *meanings,
    )(sources)


_COLUMNS = """\
The column of images is found by its contents, the column of labels by its name (label, class, …)
or Hugging Face's features; else name them. All other columns are fields; the columns taken and left
out are printed. Rows whose image or label is null are bad samples."""
_PARQUET = """\
  $ fastdata convert imagenet --split val --to parquet --out val-parquet
  $ fastdata convert parquet --root val-parquet --to lmdb"""


_tabular(
    "parquet",
    "Parquet with a column of images, from any writer.\n\nFiles named as Hugging Face's splits "
    "(train-00000-of-00002.parquet) make a dataset a split.",
    _PARQUET,
    ParquetImages,
    parquet_splits,
)
_tabular(
    "arrow",
    "Arrow IPC files or streams with a column of images.\n\nHugging Face's save_to_disk and its "
    "cache write such files. Each of their splits makes a dataset.",
    "  $ fastdata convert arrow --root food101-saved --split train",
    ArrowImages,
    arrow_splits,
)


@_source(
    "table",
    click.option(
        "--images",
        type=Location(),
        metavar="FOLDER|URL",
        help="The folder that paths are relative to. [default: the table's, or none of absolute "
        "ones]",
    ),
    _column("path", "Paths of images. [default: found]", "path"),
    _column("label", "Class numbers or names. [default: label]", "label"),
    _column("key", "Keys. [default: key, else the path]", "key"),
    click.option(
        "--file-columns",
        "files",
        metavar="NAME,NAME",
        default="",
        callback=comma_separated,
        help="Columns with paths of other files, which are packed as fields.",
    ),
    _classes("the names in the column of labels, sorted"),
    fields_option("Columns"),
    *meanings,
    root="The table: CSV, TSV, JSON lines or Parquet.",
)
def _table(root: Any, drivers: Any, images: Any, **options: Any) -> tuple[str, _Sources]:
    """Images that a table lists, with any other columns.

    Columns other than those by role are fields. Rows of one image are one sample, with lists of
    what differs. A row with a null path, label or key, or whose file is missing, is a bad sample.

    \b
    Examples:
      $ fastdata convert table --root celeba/list.csv --images celeba/img
      $ fastdata convert table --root ade.jsonl --path-column image --format boxes=xyxy
      $ fastdata convert table --root ade.jsonl --path-column image --masks mask
    """
    opened = partial(TableImages, root, images, storage_options=drivers, **options)
    return os.path.splitext(source_name(root))[0], {"": _described(root, opened)}


@_source(
    "coco",
    click.option(
        "--annotations",
        type=Location(),
        multiple=True,
        metavar="FILE|URL",
        help="JSON file of the images' annotations. Repeat it: files of the same images are "
        "merged. [default: the files of each split]",
    ),
    _split(),
    fields_option("Columns"),
    root="COCO's folder; with --annotations, the folder of the images.",
)
def _coco(
    root: Any, drivers: Any, annotations: Any, split: str | None, **options: Any
) -> tuple[str, _Sources]:
    """Images with COCO's annotations.

    Fields are objects, keypoints and captions. Without --annotations, finds
    annotations/<kind>_<split>.json beside the splits' folders, or _annotations.coco.json in them.
    Images without annotations have empty lists; damaged annotations make bad samples.

    \b
    Examples:
      $ fastdata convert coco --root coco --split val2017
      $ fastdata convert coco --root mine/images --annotations mine/labels.json
    """
    opened, name = partial(CocoImages, storage_options=drivers, **options), source_name(root)
    if annotations and split is not None:
        what = f"--split {split} has no effect with --annotations"
        raise UsageError(what, "Give one of them.")
    if annotations:
        return name, {"": partial(opened, root, annotations)}
    splits = coco_splits(root, split, drivers)
    every = [file for _, files in splits.values() for file in files]
    return name, {
        one: partial(opened, folder, files, others=[file for file in every if file not in files])
        for one, (folder, files) in splits.items()
        if split in (None, one)
    }


@_source(
    "voc",
    _split("Name of a list in ImageSets/Main, or Segmentation/NAME. [default: all images]"),
    _classes("VOC's 20; if there are others, all names, sorted"),
    fields_option("Columns and masks"),
    root="The folder with JPEGImages and Annotations, such as VOCdevkit/VOC2012.",
)
def _voc(root: Any, drivers: Any, split: str | None, **options: Any) -> tuple[str, _Sources]:
    """Images with Pascal VOC's annotations.

    Fields are the objects of the XML files, and masks.

    \b
    Examples:
      $ fastdata convert voc --root VOCdevkit/VOC2012 --split train
      $ fastdata convert voc --root VOCdevkit/VOC2012 --split Segmentation/train
    """
    name = source_name(root) + ("" if split is None else "-" + split.replace("/", "-").lower())
    return name, {"": partial(VocImages, root, split, storage_options=drivers, **options)}


@_source(
    "yolo",
    _split("train, val or test. [default: all]"),
    click.option(
        "--data",
        type=Location(),
        metavar="FILE|URL",
        help="The .yaml file of splits and names. [default: data.yaml, or the only one in the "
        "folder]",
    ),
    fields_option("Columns"),
    root="The dataset's folder, with data.yaml, images and labels.",
)
def _yolo(
    root: Any, drivers: Any, split: str | None, data: Any, **options: Any
) -> tuple[str, _Sources]:
    """Images with YOLO's labels.

    Fields are boxes, polygons and keypoints, as shares of the image's sides. An image whose file of
    labels is empty or missing has empty lists; a damaged line makes a bad sample.

    \b
    Examples:
      $ fastdata convert yolo --root coco8
      $ fastdata convert yolo --root coco8 --data coco8.yaml --split val
    """
    splits = (
        [split] if split else [*yolo.describe(AnnotatedFolder(root, drivers), data, drivers).splits]
    )
    opened = partial(yolo.YoloImages, root, data=data, storage_options=drivers, **options)
    return source_name(root), {name: partial(opened, name) for name in splits}


@_source(
    "masks",
    click.option("--images", default="images", show_default=True, help="The folder of images."),
    click.option("--masks", default="masks", show_default=True, help="The folder of masks."),
    click.option(
        "--image-ending",
        default="",
        metavar="TEXT",
        help="End of images' names before the suffix: _leftImg8bit. Others are left out.",
    ),
    click.option(
        "--mask-ending", default="", metavar="TEXT", help="The same of masks: _gtFine_labelIds."
    ),
    root="The folder of images and masks.",
)
def _masks(root: Any, drivers: Any, **options: Any) -> tuple[str, _Sources]:
    """Images beside masks of the same names.

    They are in two folders. The mask of images/a/b.jpg is masks/a/b.png.

    An image without a mask, and a mask without an image, are bad samples.

    \b
    Examples:
      $ fastdata convert masks --root ade20k --images images/training --masks annotations/training
    """
    source = partial(MaskedImages, root, storage_options=drivers, **options)
    return source_name(root), {"": source}

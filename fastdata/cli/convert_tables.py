"""``fastdata convert`` of images with tables and annotations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from fastdata.cli.locations import Location
from fastdata.cli.packing import pack_all, source_name
from fastdata.cli.packing_options import (
    Function,
    comma_separated,
    fields_option,
    meanings,
    root_option,
    shared,
)
from fastdata.converters import yolo
from fastdata.converters.annotations import Folder
from fastdata.converters.coco import CocoImages, coco_categories, coco_splits
from fastdata.converters.masks import MaskedImages
from fastdata.converters.records import Source
from fastdata.converters.table import TableImages
from fastdata.converters.voc import VocImages
from fastdata.errors import UsageError


def _classes(default: str) -> Callable[[Function], Function]:
    """Return the option that names the classes."""
    return click.option(
        "--classes",
        metavar="NAME,NAME",
        callback=comma_separated,
        help=f"Class names, by label. [default: {default}]",
    )


@click.command("table")
@root_option(help_text="The table: CSV, TSV, JSON lines or Parquet.")
@click.option(
    "--images",
    type=Location(),
    metavar="FOLDER|URL",
    help="The folder that paths are relative to. [default: the table's]",
)
@click.option("--path-column", metavar="NAME", help="Paths of images. [default: found]")
@click.option("--label-column", metavar="NAME", help="Class numbers or names. [default: label]")
@click.option("--key-column", metavar="NAME", help="Keys. [default: key, else the path]")
@click.option(
    "--file-columns",
    metavar="NAME,NAME",
    default="",
    callback=comma_separated,
    help="Columns with paths of further files, which are packed as fields.",
)
@_classes("the names in the column of labels, sorted")
@fields_option("Columns")
@meanings
@shared
def _table(
    root: Path | str,
    images: Path | str | None,
    path_column: str | None,
    label_column: str | None,
    key_column: str | None,
    file_columns: list[str],
    classes: list[str] | None,
    fields: list[str] | None,
    formats: dict[str, str],
    masks: list[str],
    **options: Any,
) -> None:
    """Images that a table lists, with any other columns.

    Columns other than those by role are fields. A row with a null path, label or key, or whose
    file is missing, is a bad sample.

    \b
    Examples:
      $ fastdata convert table --root celeba/list.csv --images celeba/img
      $ fastdata convert table --root ade.jsonl --path-column image --format boxes=xyxy
      $ fastdata convert table --root ade.jsonl --path-column image --masks mask
    """

    def source() -> Source:
        return TableImages(
            root,
            images,
            path=path_column,
            label=label_column,
            key=key_column,
            files=file_columns,
            masks=masks,
            formats=formats,
            fields=fields,
            classes=classes,
            storage_options=options["storage_options"],
        )

    pack_all(source_name(root).rpartition(".")[0], root, {"": source}, options)


@click.command("coco")
@root_option(help_text="COCO's folder; with --annotations, the folder of the images.")
@click.option(
    "--annotations",
    type=Location(),
    multiple=True,
    metavar="FILE|URL",
    help="JSON file of the images' annotations. Repeat it: files of the same images are merged. "
    "[default: those of each split]",
)
@click.option("--split", metavar="NAME", help="Which split. [default: all found]")
@fields_option("Columns")
@shared
def _coco(
    root: Path | str,
    annotations: tuple[Path | str, ...],
    split: str | None,
    fields: list[str] | None,
    **options: Any,
) -> None:
    """Images with COCO's annotations.

    Fields are objects, keypoints and captions. Without --annotations, finds
    annotations/<kind>_<split>.json beside the splits' folders, or _annotations.coco.json in them.
    Images without annotations have empty lists; damaged annotations make bad samples.

    \b
    Examples:
      $ fastdata convert coco --root coco --split val2017
      $ fastdata convert coco --root mine/images --annotations mine/labels.json
    """
    drivers = options["storage_options"]
    opened = partial(CocoImages, fields=fields, storage_options=drivers)
    if annotations:
        if split is not None:
            raise UsageError(
                f"--split {split} has no effect with --annotations", "Give one of them."
            )
        pack_all(source_name(root), root, {"": partial(opened, root, annotations)}, options)
        return
    splits = coco_splits(root, split, drivers)
    if len(splits) > 1:  # also for one of them, whose categories may be fewer
        every = [file for _, files in splits.values() for file in files]
        opened = partial(opened, categories=coco_categories(every, drivers))
    sources: dict[str, Callable[[], Source]] = {
        name: partial(opened, images, files)
        for name, (images, files) in splits.items()
        if split in (None, name)
    }
    pack_all(source_name(root), root, sources, options)


@click.command("voc")
@root_option(help_text="The folder with JPEGImages and Annotations, such as VOCdevkit/VOC2012.")
@click.option(
    "--split",
    metavar="NAME",
    help="Name of a list in ImageSets/Main, or Segmentation/NAME. [default: all images]",
)
@_classes("VOC's 20; if there are others, all names, sorted")
@fields_option("Columns and masks")
@shared
def _voc(
    root: Path | str,
    split: str | None,
    classes: list[str] | None,
    fields: list[str] | None,
    **options: Any,
) -> None:
    """Images with Pascal VOC's annotations.

    Fields are the objects of the XML files, and masks.

    \b
    Examples:
      $ fastdata convert voc --root VOCdevkit/VOC2012 --split train
      $ fastdata convert voc --root VOCdevkit/VOC2012 --split Segmentation/train
    """
    source = partial(
        VocImages,
        root,
        split,
        classes=classes,
        fields=fields,
        storage_options=options["storage_options"],
    )
    name = source_name(root)
    if split is not None:
        name += "-" + split.replace("/", "-").lower()
    pack_all(name, root, {"": source}, options)


@click.command("yolo")
@root_option(help_text="The dataset's folder, with data.yaml, images and labels.")
@click.option("--split", metavar="NAME", help="train, val or test. [default: all found]")
@click.option(
    "--data",
    type=Location(),
    metavar="FILE|URL",
    help="The .yaml file of splits and names. [default: data.yaml, or the only one in the folder]",
)
@fields_option("Columns")
@shared
def _yolo(
    root: Path | str,
    split: str | None,
    data: Path | str | None,
    fields: list[str] | None,
    **options: Any,
) -> None:
    """Images with YOLO's labels.

    Fields are boxes, polygons and keypoints, as shares of the image's sides. An image whose file of
    labels is empty or missing has empty lists; a damaged line makes a bad sample.

    \b
    Examples:
      $ fastdata convert yolo --root coco8
      $ fastdata convert yolo --root coco8 --data coco8.yaml --split val
    """
    drivers = options["storage_options"]
    splits = [split] if split else [*yolo.describe(Folder(root, drivers), data, drivers).splits]
    opened = partial(yolo.YoloImages, root, data=data, fields=fields, storage_options=drivers)
    sources: dict[str, Callable[[], Source]] = {name: partial(opened, name) for name in splits}
    pack_all(source_name(root), root, sources, options)


@click.command("masks")
@root_option(help_text="The folder of images and masks.")
@click.option("--images", default="images", show_default=True, help="The folder of images in it.")
@click.option("--masks", default="masks", show_default=True, help="The folder of masks in it.")
@click.option(
    "--image-ending",
    default="",
    metavar="TEXT",
    help="End of images' names before the suffix: _leftImg8bit. Others are left out.",
)
@click.option(
    "--mask-ending", default="", metavar="TEXT", help="The same of masks: _gtFine_labelIds."
)
@shared
def _masks(
    root: Path | str,
    images: str,
    masks: str,
    image_ending: str,
    mask_ending: str,
    **options: Any,
) -> None:
    """Images beside masks of the same names.

    They are in two folders. The mask of images/a/b.jpg is masks/a/b.png.

    An image without a mask, and a mask without an image, are bad samples.

    \b
    Examples:
      $ fastdata convert masks --root ade20k --images images/training --masks annotations/training
    """
    source = partial(
        MaskedImages,
        root,
        images,
        masks,
        image_ending=image_ending,
        mask_ending=mask_ending,
        storage_options=options["storage_options"],
    )
    pack_all(source_name(root), root, {"": source}, options)


#: Commands of ``fastdata convert``.
COMMANDS = (_table, _coco, _voc, _yolo, _masks)

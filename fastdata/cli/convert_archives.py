"""``fastdata convert`` of archives that other libraries write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from fastdata.cli.locations import named, say
from fastdata.cli.packing import pack_all, source_name
from fastdata.cli.packing_options import fields_option, meanings, root_option, shared
from fastdata.converters.arrow import ArrowImages, arrow_splits
from fastdata.converters.lmdbs import LmdbImages
from fastdata.converters.mds import MdsImages, mds_splits
from fastdata.converters.parquet import ParquetImages, parquet_splits, petastorm_splits
from fastdata.converters.records import Source
from fastdata.converters.tabular import TabularImages
from fastdata.remote.urls import is_url


@click.command("lmdb")
@root_option(help_text="Folder of data.mdb, a file, or a folder of several LMDBs, one a class.")
@click.option("--database", metavar="NAME", help="Named database. [default: the unnamed one]")
@click.option(
    "--keys",
    metavar="REGEX",
    help="Keys of images; others are left out. A group (?P<class>…) in it is the class's name.",
)
@click.option(
    "--labels",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Text file of labels: a key, a tab, and the number or name of its class in each line.",
)
@shared
def _lmdb(
    root: Path | str,
    database: str | None,
    keys: str | None,
    labels: Path | None,
    **options: Any,
) -> None:
    """LMDBs whose values are image files, such as LSUN's.

    Values of other kinds, such as pickled tuples or Caffe's Datum, are refused.

    \b
    Examples:
      $ fastdata convert lmdb --root lsun/church_outdoor_val_lmdb
      $ fastdata convert lmdb --root train.lmdb --keys '(?P<class>[^/]+)/.*'
    """
    source = partial(
        LmdbImages,
        root,
        database=database,
        keys=keys,
        labels=labels,
        storage_options=options["storage_options"],
    )
    name = source_name(root).removesuffix(".mdb").removesuffix("lmdb").rstrip("._-")
    pack_all(name, root, {"": source}, options)


_COLUMNS = """\
The column of images is found by its contents, that of labels by its name (label, class, …) or
Hugging Face's features; else name them. All other columns are fields; the columns taken and left
out are printed. Rows whose image or label is null are bad samples."""
_ARGUMENTS = ("image_column", "label_column", "key_column", "formats", "masks")
#: Splits of a folder or URL, with options of its driver.
_Splits = Callable[[Path | str, Mapping[str, Any]], list[str]]


def _tabular(
    kind: str, about: str, examples: str, opened: Callable[..., TabularImages], splits: _Splits
) -> click.Command:
    """Return the command of a source of rows with columns."""

    @click.command(kind, help=f"{about}\n\n{_COLUMNS}\n\n\b\nExamples:\n{examples}")
    @root_option()
    @click.option("--image-column", metavar="NAME", help="The images. [default: found]")
    @click.option("--label-column", metavar="NAME", help="Class numbers or names. [default: found]")
    @click.option(
        "--key-column", metavar="NAME", help="Keys. [default: key, else file and row number]"
    )
    @click.option("--split", metavar="NAME", help="Which split. [default: all found]")
    @fields_option("Columns")
    @meanings
    @shared
    def run(root: Path | str, split: str | None, fields: list[str] | None, **options: Any) -> None:
        drivers = options["storage_options"]
        columns = {name: options.pop(name) for name in _ARGUMENTS}

        def source(one: str | None) -> Source:
            found = opened(root, fields=fields, split=one, storage_options=drivers, **columns)
            say(f"{named(root)}: {found.columns_taken}", err=True)
            return found

        names = splits(root, drivers)
        if split is not None:
            names = [split]
        sources = {one: partial(source, one) for one in names}
        if split is None and len(names) < 2:
            sources = {"": partial(source, None)}
        pack_all(source_name(root).removesuffix(f".{kind}"), root, sources, options)

    return run


def _arrow(root: Path | str, *, storage_options: Mapping[str, Any], **options: Any) -> ArrowImages:
    return ArrowImages(root, **options)


def _arrow_splits(root: Path | str, drivers: Mapping[str, Any]) -> list[str]:
    return [] if is_url(root) else arrow_splits(root)


_PARQUET = """\
  $ fastdata convert imagenet --split val --to parquet --out val-parquet
  $ fastdata convert parquet --root val-parquet --to lmdb"""
#: Commands of ``fastdata convert``.
COMMANDS = (
    _lmdb,
    _tabular(
        "parquet",
        "Parquet with a column of images, from any writer.\n\nFiles named as Hugging Face's splits "
        "(train-00000-of-00002.parquet) make a dataset a split.",
        _PARQUET,
        ParquetImages,
        parquet_splits,
    ),
    _tabular(
        "petastorm",
        "Parquet of petastorm, whose metadata are not unpickled.",
        _PARQUET,
        ParquetImages,
        petastorm_splits,
    ),
    _tabular(
        "arrow",
        "Arrow IPC files or streams with a column of images.\n\nSuch are what Hugging Face's "
        "save_to_disk writes, and its cache. Each of their splits makes a dataset.",
        "  $ fastdata convert arrow --root food101-saved --split train",
        _arrow,
        _arrow_splits,
    ),
    _tabular(
        "mds",
        "MDS shards of MosaicML's Streaming with a column of images.\n\nEach folder of a split "
        "makes a dataset. Compressed shards have to be unpacked first.",
        "  $ fastdata convert mds --root imagenet-mds --split val",
        MdsImages,
        mds_splits,
    ),
)

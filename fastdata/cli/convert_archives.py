"""``fastdata convert`` of archives that other libraries write."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from fastdata.cli.packing import pack_all, source_name
from fastdata.cli.packing_options import root_option, shared
from fastdata.converters.lmdbs import LmdbImages


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


#: Commands of ``fastdata convert``.
COMMANDS = (_lmdb,)

"""Recognition of the kind of data in a folder, by file names alone, and the command to read it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import SourceError
from fastdata.storage.encodings import is_image_name

#: For images without classes and annotations.
_LIST = (
    "Move each image to <root>/<class>/, or list the images in a table, with any columns: "
    "fastdata convert table --help"
)
#: Suffixes of tables that ``fastdata convert table`` reads.
_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
#: Suffixes of archives that no source reads.
_PACKED = (".zip", ".7z", ".rar", ".gz", ".zst", ".xz", ".bz2")
_FILE = "a file of another kind"
_DATASETS = (
    "Name the folder of a dataset, tars or Parquet; ImageDataset.from_table reads tables and lists."
)
#: Entries of a folder that are looked at.
_MOST = 1000
#: Folders in it that are looked into.
_FEW = 8
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev"}
_IMAGES = {"images", "image", "imgs", "img", "jpegimages", "leftimg8bit", "rgb", "inputs"}
_TARGETS = {
    "masks", "mask", "labels", "label", "labeltxt", "annotations", "annotation", "segmentation",
    "segmentationclass", "gtfine", "gt", "depth", "boxes", "captions", "targets",
}  # fmt: skip
_METADATA = {"metadata.jsonl", "metadata.csv", "metadata.parquet"}
_UNKNOWN = "a folder"
_WNID = re.compile(r"n\d{8}")


class Peek(NamedTuple):
    """Kind of data at a place.

    Attributes:
        what: A noun, for a sentence that begins with the path.
        hint: What to write, or to do.
        source: The kind of ``fastdata convert`` that reads it as an image and a class a sample; ""
            for images with annotations or other columns, and where none does.
        kind: The kind that reads its images, with whatever else there is; "" where none is sure.
    """

    what: str
    hint: str
    source: str = ""
    kind: str = ""


def peek(place: str | os.PathLike[str]) -> Peek:
    """Return the kind of data at a path, by names in the folder and in the first folder in it."""
    path = Path(place)
    is_file = os.path.isfile(path)  # False, not an error, where permission is missing
    folders, files = _names(path)
    named = shlex.quote(os.fspath(place))
    lower = {name.lower() for name in folders}
    if "_dataset.json" in files:
        return _source("dataset", "a packed dataset", named)
    if {"state.json", "dataset_info.json"} <= files or "dataset_dict.json" in files:
        what = "a dataset that Hugging Face's save_to_disk wrote"
        return Peek(what, f"fastdata convert arrow --root {named}", kind="arrow")
    if coupled := _coupled(path, folders):
        return coupled
    if (not folders or lower <= _SPLITS) and (noted := metadata(path)):
        what = f"a folder of images whose captions or other columns are in {noted[0]}"
        return Peek(what, table_hint(path / noted[0]))
    for kind, what, names, wanted in (
        ("imagenet", "ImageNet's archives", files | folders, r"ILSVRC.*"),
        ("parquet", "Parquet", files, r"(?i).*\.parquet"),
        ("parquet", "Parquet in folders of Hive", folders, r"[^=]+=.*"),
        ("webdataset", "tar files", files, r"(?i).*\.tar"),
    ):
        if any(re.fullmatch(wanted, name) for name in names):
            return _source(kind, what, named)
    for kind, what, names, wanted in (
        ("arrow", "Arrow files", files, r".*\.arrow"),
        ("lmdb", "an LMDB", files | folders, r".*\.(mdb|lmdb)|.*_lmdb"),
    ):
        if any(re.fullmatch(wanted, name) for name in names):
            return Peek(what, f"fastdata convert {kind} --root {named}", kind=kind)
    if is_file and re.fullmatch(r".*\.(tar\.\w+|tgz)", path.name):
        return Peek("a compressed tar, of which no single sample can be read", f"gunzip {named}")
    if lower and lower <= _SPLITS:
        return _splits(path, sorted(folders), named)
    tables = sorted(name for name in files if name.endswith((".csv", ".tsv", ".jsonl", ".json")))
    if any(map(is_image_name, files)) and not folders and not is_file:
        if tables:
            what = f"a flat folder of images beside {tables[0]}, with no class folders"
            return Peek(what, table_hint(path / tables[0]))
        return Peek("a flat folder of images, with no class folders", _LIST, kind="images")
    if tables and (len(folders) < 2 or is_file):
        what = "a table" if is_file else f"a table, {tables[0]}"
        return Peek(what, table_hint(path if is_file else path / tables[0]))
    if is_file:
        return _file(path)
    return _source("imagefolder", "a folder of folders" if folders else _UNKNOWN, named)


def _file(path: Path) -> Peek:
    """Return the kind of a file that no source reads by its name."""
    suffix = path.suffix.lower()
    if is_image_name(path.name):
        return Peek("an image", f"Name its folder, or ImageDataset.from_table([{str(path)!r}]).")
    if suffix in _PACKED:
        return Peek(f"a {suffix} archive", "Unpack it, and name what was in it.")
    return Peek(f"{_FILE}, {suffix or 'without a suffix'}", _DATASETS)


def is_unknown_file(place: str | os.PathLike[str]) -> bool:
    """Return whether a place is a file of which the name says nothing."""
    return peek(place).what.startswith(_FILE)


def lacks_data(place: str | os.PathLike[str], what: str, hint: str) -> SourceError:
    """Return the error for a place that lacks data: it names the kind there, or ``hint``."""
    seen = peek(place)
    if seen.what != _UNKNOWN:
        what, hint = f"{what}, but {seen.what}", seen.hint
    return SourceError(f"{os.fspath(place)}: {what}", hint)


def metadata(path: Path) -> list[str]:
    """Return the files with captions, boxes and other columns in Hugging Face's image folders."""
    folders, files = _names(path)
    below = ((name, _names(path / name)[1]) for name in sorted(folders)[:_FEW])
    inner = [f"{name}/{one}" for name, ones in below for one in sorted(ones & _METADATA)]
    return sorted(files & _METADATA) + inner


def _source(kind: str, what: str, named: str) -> Peek:
    return Peek(what, f"fastdata convert {kind} --root {named}", kind, kind)


def _splits(path: Path, splits: list[str], named: str) -> Peek:
    """Return the kind of a folder of splits: ImageNet's, or another dataset's."""
    below, files = _names(path / splits[0])
    if any(map(_WNID.fullmatch, below)):
        return _source("imagenet", "ImageNet", named)
    what = f"a folder of splits ({', '.join(splits)})"
    first = path / splits[0]
    inner = peek(first) if below or files else Peek("", "")
    if inner.source:
        return Peek(what, f"Pack each by itself: {inner.hint}", inner.source)
    return Peek(f"{what}, each {inner.what or 'empty'}", inner.hint or _LIST)


def table_hint(table: Path) -> str:
    """Return the command that packs the images that a table lists."""
    named = shlex.quote(str(table))
    if table.suffix.lower() in _TABLES:
        return f"fastdata convert table --root {named}"
    return f"fastdata convert coco --root {shlex.quote(str(table.parent))} --annotations {named}"


def _coupled(path: Path, folders: Collection[str]) -> Peek | None:
    """Return the kind of annotations beside images: COCO's, YOLO's, VOC's layouts, or masks."""
    lower = {name.lower(): name for name in folders}
    targets = sorted(_TARGETS & set(lower))
    rest = set(lower) - _TARGETS
    if not targets or not rest:
        return None
    splits = {re.sub(r"\d+$", "", name) for name in rest}  # COCO's train2017
    if not (rest & _IMAGES or splits <= _SPLITS | _IMAGES | {"unlabeled"}):
        return None
    own = _names(path / lower[targets[0]])[1]
    named = f"--root {shlex.quote(str(path))}"
    texts = any(name.endswith((".json", ".xml", ".txt")) for name in own)
    what = (
        f"a folder of images with {'annotations' if texts else 'targets'} in {lower[targets[0]]}/"
    )
    if any(name.endswith(".json") for name in own):
        return Peek(what, f"fastdata convert coco {named}")
    if "jpegimages" in rest:
        return Peek(what, f"fastdata convert voc {named}")
    if any(name.endswith((".yaml", ".yml")) for name in _names(path)[1]) or "labels" in targets:
        return Peek(what, f"fastdata convert yolo {named}")
    images = lower[min(rest & _IMAGES or rest)]
    return Peek(
        what, f"fastdata convert masks {named} --images {images} --masks {lower[targets[0]]}"
    )


def _names(path: Path) -> tuple[set[str], set[str]]:
    """Return the names of a folder's folders and files; of a file, its own name."""
    if os.path.isfile(path):
        return set(), {path.name}
    folders: set[str] = set()
    files: set[str] = set()
    try:
        with os.scandir(path) as entries:
            for entry in islice(entries, _MOST):
                (folders if entry.is_dir() else files).add(entry.name)
    except OSError:  # a URL, missing, or not ours to read
        return set(), set()
    return {name for name in folders if not name.startswith((".", "__"))}, files

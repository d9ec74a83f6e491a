"""ImageNet (ILSVRC 2012) in each of its usual layouts.

All layouts give the same samples in the same order: by wnid, then by file name. A label is
the rank of the wnid among the sorted wnids, and the same in every split.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.converters.imagefolder import class_shards
from fastdata.converters.records import ImageSource, Listable, Record
from fastdata.converters.trees import Tree, class_records, source_tree, storable

from fastdata.errors import FastdataError, SourceError, UsageError
from fastdata.remote.files import SourceFile
from fastdata.storage.encodings import is_image_name
from fastdata.storage.formats.tars import Member, members, read_member

SPLITS = ("train", "val")

_WNID = re.compile(r"n\d{8}")
_TRAIN_TAR = "ILSVRC2012_img_train.tar"
_VAL_TAR = "ILSVRC2012_img_val.tar"
_DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
_META = "ILSVRC2012_devkit_t12/data/meta.mat"
_GROUND_TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
_MOST_DEVKIT = 64 << 20  # bytes, unpacked
_KAGGLE_DATA = "ILSVRC/Data/CLS-LOC"
_KAGGLE_VAL = "LOC_val_solution.csv"


class ImageNet(ImageSource):
    """Source of one split of ImageNet, in any of its layouts.

    - *folders*: ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``;
    - *kaggle*: ``ILSVRC/Data/CLS-LOC`` with ``LOC_val_solution.csv`` beside ``ILSVRC``;
    - *archives*: ``ILSVRC2012_img_train.tar``, ``ILSVRC2012_img_val.tar`` and
      ``ILSVRC2012_devkit_t12.tar.gz`` as downloaded, read without unpacking.

    Classes are the wnids of the training set, or of the validation set without a training set. A
    key is ``<wnid>/<file name without extension>``. ``split`` is ``train`` or ``val``.
    ``allow_empty``: a class of it may have no images.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str,
        *,
        allow_empty: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if split not in SPLITS:
            raise UsageError(f"ImageNet has no split {split}", "Use --split train or --split val.")
        place = source_tree(root, storage_options)
        layout = _find(place, split, allow_empty)
        if layout is None:
            raise _nothing_found(place, split)
        train = layout if split == "train" else _find(place, "train")
        self.classes = (train or layout).wnids
        unknown = sorted(set(layout.wnids) - set(self.classes))
        if unknown:
            raise SourceError(
                f"{place}: the split {split} has {len(unknown)} classes that train lacks, "
                f"the first {unknown[0]}; its labels would differ from train's",
                "Complete train, or convert a root that holds only this split.",
            )
        self._shards = layout.shards
        self.origin: dict[str, Any] = {"kind": "imagenet", "split": split, "layout": layout.name}
        self.origin["root"] = str(place)
        self.root, self.inputs = layout.root, [layout.location]

    def shards(self) -> Sequence[Listable]:
        """Return the shards of the listing: classes of folders and the training archive, else one.

        Images are sorted by wnid, then by file name.
        """
        return self._shards(self.classes)


def splits(
    root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the splits below a root, ``train`` first."""
    place = source_tree(root, storage_options)
    there = [split for split in SPLITS if _find(place, split)]
    if not there:
        raise _nothing_found(place, "train")
    return there


def _nothing_found(root: Tree, split: str) -> SourceError:
    return SourceError(
        f"{root}: no ImageNet split {split} here. Looked for {split}/<wnid>/, "
        f"{_KAGGLE_DATA}/{split}/, {_TRAIN_TAR if split == 'train' else _VAL_TAR}",
        "Give the folder of ImageNet with --root or $IMAGENET_DIR; for other trees use fastdata "
        "convert imagefolder.",
    )


class _Layout(NamedTuple):
    """Layout of a split; ``shards(classes)`` are the shards of its listing."""

    name: str
    root: str | None
    location: Path | str
    wnids: list[str]
    shards: Callable[[Sequence[str]], Sequence[Listable]]


def _find(root: Tree, split: str, allow_empty: bool = False) -> _Layout | None:
    """Open the split in the first layout that has it; None without any."""
    data = root / _KAGGLE_DATA
    if _has_wnids(root / split):
        return _class_folders(root / split, "folders", allow_empty)
    if split == "train" and _has_wnids(data / "train"):
        return _class_folders(data / "train", "kaggle", allow_empty)
    if split == "val" and "val" in data.classes():
        return _kaggle_val(root)
    archive = root.file(_TRAIN_TAR if split == "train" else _VAL_TAR)
    if archive is None:
        return None
    return _train_archive(archive, allow_empty) if split == "train" else _val_archive(archive, root)


def _has_wnids(tree: Tree) -> bool:
    return any(map(_WNID.fullmatch, tree.classes()))


def _class_folders(folder: Tree, name: str, allow_empty: bool) -> _Layout:
    """Return the layout ``<wnid>/*.JPEG``."""
    wnids = [wnid for wnid in folder.classes() if not wnid.startswith(".")]
    _check_wnids(folder, wnids)
    shards = partial(class_shards, folder, wnids, allow_empty=allow_empty)
    return _Layout(name, folder.root, folder.location, wnids, shards)


class _Flat(NamedTuple):
    """Images without class folders: a shard of a listing."""

    images: list[Record]

    def records(self) -> Iterator[Record]:
        return iter(self.images)


def _flat(
    name: str, root: str | None, location: Path | str, images: list[tuple[str, Record]]
) -> _Layout:
    """Return the layout of images with the wnid of each, sorted by name; keys lack the wnid."""
    # The sort is stable: within a class, images stay in the order of their names.
    ordered = sorted(images, key=lambda image: image[0])

    def shards(classes: Sequence[str]) -> list[_Flat]:
        labels = {wnid: label for label, wnid in enumerate(classes)}
        named = ((wnid, f"{wnid}/{record.key}", record) for wnid, record in ordered)
        return [_Flat([r._replace(key=key, label=labels[wnid]) for wnid, key, r in named])]

    return _Layout(name, root, location, sorted({wnid for wnid, _ in images}), shards)


def _kaggle_val(root: Tree) -> _Layout:
    """Return Kaggle's flat folder of images, with the wnids of ``LOC_val_solution.csv``."""
    data = root / _KAGGLE_DATA
    wnid_of = _read_solution(str(root / _KAGGLE_VAL), root.file(_KAGGLE_VAL))
    images = []
    for record in class_records(data, "val", 0, Counter()):
        below, _, stem = record.key.rpartition("/")
        if below != "val":  # in a subfolder
            continue
        if stem not in wnid_of:
            raise SourceError(
                f"{data / record.key}: {_KAGGLE_VAL} does not name this image",
                "Remove the image, or complete the file.",
            )
        images.append((wnid_of[stem], record._replace(key=stem)))
    val = data / "val"
    return _flat("kaggle", val.root, val.location, images)


def _read_solution(name: str, file: SourceFile | None) -> dict[str, str]:
    """Read ``ImageId,PredictionString``: the string begins with the wnid."""
    try:
        if file is None:
            raise FileNotFoundError("it does not exist")
        with file.open() as opened:
            text = opened.read().decode("utf-8")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
        wnids = {row["ImageId"]: row["PredictionString"].split()[0] for row in rows}
    except (OSError, LookupError, AttributeError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(
            f"{name}: cannot be read: {error!r}",
            "It comes with Kaggle's download and has each validation image's class.",
        ) from None
    _check_wnids(name, wnids.values())
    return wnids


def _train_archive(archive: SourceFile, allow_empty: bool) -> _Layout:
    """Return the layout of a tar of tars, one per wnid."""
    inner: dict[str, Member] = {}
    for member in members(archive):
        known = inner.setdefault(Path(member.name).stem, member)
        if known is not member:
            what = f"has two archives of one class, {known.name} and {member.name}"
            raise SourceError(f"{archive}: {what}", "Download it again.")
    _check_wnids(archive, inner)

    def shards(classes: Sequence[str]) -> list[_ClassArchive]:
        return [
            _ClassArchive(archive, tar, wnid, classes.index(wnid), allow_empty)
            for wnid, tar in sorted(inner.items())
        ]

    return _Layout("archives", None, archive.location, sorted(inner), shards)


class _ClassArchive(NamedTuple):
    """Tar of one wnid inside the tar of all: a shard of a listing."""

    archive: SourceFile
    inner: Member
    wnid: str
    label: int
    allow_empty: bool

    def records(self) -> Iterator[Record]:
        inside = members(self.archive, self.inner.offset, self.inner.size)
        images = sorted(image for image in inside if is_image_name(image.name))
        if not images and not self.allow_empty:
            raise SourceError(
                f"{self.archive}: {self.inner.name} has no images",
                "Download the archive again, or keep an empty class with --allow-empty.",
            )
        mtime_ns = self.archive.mtime_ns
        for image in images:
            record = _archived(self.archive, image, mtime_ns)
            yield record._replace(key=f"{self.wnid}/{record.key}", label=self.label)


def _val_archive(archive: SourceFile, root: Tree) -> _Layout:
    """Return the flat tar of images, with the classes of the development kit."""
    wnid_of_id, truth = _read_devkit(root)
    mtime_ns = archive.mtime_ns
    images = []
    try:
        for image in sorted(image for image in members(archive) if is_image_name(image.name)):
            # ILSVRC2012_val_00000001 has the first line of the ground truth.
            number = int(Path(image.name).stem.rpartition("_")[2])
            if number < 1:
                raise ValueError(image.name)
            record = _archived(archive, image, mtime_ns)
            images.append((wnid_of_id[truth[number - 1]], record))
    except (KeyError, IndexError, ValueError) as error:
        raise SourceError(
            f"{archive}: an image is not in the development kit's ground truth: {error!r}",
            f"Use the {_DEVKIT} that belongs to it.",
        ) from None
    return _flat("archives", None, archive.location, images)


def _archived(archive: SourceFile, image: Member, mtime_ns: int) -> Record:
    key, problem = storable(Path(image.name).stem)
    path = archive.location
    return Record(key, 0, path, image.offset, image.size, mtime_ns, problem=problem)


def _check_wnids(path: object, names: Any) -> None:
    for name in names:
        if not _WNID.fullmatch(name):
            raise SourceError(
                f"{path}: {name} is not a wnid (n and 8 digits)",
                "Download it again, move it elsewhere, or use fastdata convert imagefolder.",
            )


def _read_devkit(root: Tree) -> tuple[dict[int, str], list[int]]:
    """Read the wnid of each ILSVRC2012_ID, and the ID of each validation image."""
    path = root / _DEVKIT
    devkit = root.file(_DEVKIT)
    if devkit is None:
        raise SourceError(
            f"{path}: missing; it has the classes of the validation images",
            "Download it beside their archive, or pack only the other split: --split train.",
        )
    try:
        from scipy.io import loadmat
    except ImportError:
        raise SourceError(
            f"{path}: reading its meta.mat needs SciPy",
            'Install it: pip install "fastdata-torch[imagenet]"',
        ) from None
    try:
        # Read all of it, to its checksum: SciPy crashes on some damaged files.
        with devkit.open() as file, gzip.GzipFile(fileobj=file) as unpacked:
            kit = unpacked.read(_MOST_DEVKIT + 1)
        if len(kit) > _MOST_DEVKIT:
            raise ValueError(f"it has over {_MOST_DEVKIT:,} bytes, unpacked")
        tar = io.BytesIO(kit)
        meta = loadmat(io.BytesIO(read_member(tar, _META, len(kit))), squeeze_me=True)
        truth = [int(line) for line in read_member(tar, _GROUND_TRUTH, len(kit)).split()]
        synsets = meta["synsets"]
        # IDs 1 to 1000 are the classes; those above are inner nodes of the hierarchy.
        columns = (synsets[name] for name in ("ILSVRC2012_ID", "WNID", "num_children"))
        rows = zip(*columns, strict=True)
        leaves = {int(number): str(wnid) for number, wnid, children in rows if int(children) == 0}
    except FastdataError:  # the file cannot be reached
        raise
    except Exception as error:  # SciPy raises almost anything on foreign bytes
        raise SourceError(
            f"{path}: not the development kit of ILSVRC 2012: {error!r}",
            "It has the classes of the validation images; download it beside their archive.",
        ) from None
    _check_wnids(path, leaves.values())
    return leaves, truth

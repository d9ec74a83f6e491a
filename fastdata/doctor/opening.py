"""Opening of a packed dataset, or of a tree of images."""

from __future__ import annotations

import os
import random
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastdata.converters.shuffling import split_to_pack
from fastdata.converters.trees import suffix_of
from fastdata.dataset import ImageDataset
from fastdata.doctor import page_cache
from fastdata.doctor.findings import Data
from fastdata.doctor.page_cache import Extent
from fastdata.errors import DataError, DatasetError, UsageError
from fastdata.remote.urls import is_url, redact
from fastdata.storage.encodings import is_image_name
from fastdata.storage.files import is_tmpfs
from fastdata.storage.formats import ELSEWHERE
from fastdata.storage.listed import FileList, FilesSource
from fastdata.storage.look import look
from fastdata.storage.manifest import WORK_NAME, has_manifest
from fastdata.storage.source import Source
from fastdata.text import human_count

#: Samples from which sizes, and the share in the page cache, are estimated.
_ASKED = 1_000
#: Sources that can be packed again in another encoding.
_SOURCES = ("imagenet", "imagefolder", "webdataset")
#: Seed of all draws: the same dataset is measured on the same images.
_SEED = 6
#: Bytes: each file takes whole pages.
_PAGE = 4096
_MOST_SIZE = 1 << 60


@dataclass(frozen=True)
class Opened:
    """Open dataset.

    Attributes:
        source: Reads it, as the loader does.
        dataset: The packed dataset; None for a tree.
        files: The images of a tree; empty for a packed dataset.
        data: Facts known before measuring.
    """

    source: Source
    dataset: ImageDataset | None
    files: Sequence[str]
    data: Data

    def extents(self, indices: npt.NDArray[np.int64]) -> list[Extent]:
        """Return the extents of some samples."""
        found = self.source.gather(indices).blobs["image"].extents
        paths = [Path(found.path(at)) for at in range(len(indices))]
        places = zip(paths, found.offsets.tolist(), found.lengths.tolist(), strict=True)
        # A length of -1 means the whole file. A damaged row may hold any numbers; the system takes
        # sizes of files alone.
        return [
            Extent(
                path,
                min(max(offset, 0), _MOST_SIZE),
                path.stat().st_size if length < 0 else min(length, _MOST_SIZE),
            )
            for path, offset, length in places
        ]


def open_any(dataset: str | os.PathLike[str] | ImageDataset, seconds: float) -> Opened:
    """Open a dataset, or list a tree of images.

    A tree is listed for at most ``seconds``.

    Raises:
        UsageError: It is behind a URL, or in archives or tables elsewhere.
        DatasetError: There is neither.
        DataError: It has no samples.
    """
    url = dataset.path if isinstance(dataset, ImageDataset) else dataset
    if is_url(url):
        name = redact(str(url))
        raise UsageError(
            f"{name}: a dataset behind a URL cannot be diagnosed, only one of this machine",
            f"Copy it with fastdata stage {name}, and diagnose the copy.",
        )
    if not isinstance(dataset, ImageDataset):
        path = Path(dataset)
        try:
            dataset = ImageDataset(path)
        except DatasetError:
            unfinished = has_manifest(path) or (path / WORK_NAME).exists()
            listed = Listed([], 1.0, {}) if unfinished else _list_images(path, seconds)
            if not listed.files:
                raise
            return _open_tree(path, listed)
    if not len(dataset):
        raise DataError(f"{dataset.path}: has no samples", "There is nothing to measure.")
    if dataset.folder is not None:
        files = [os.fspath(file) for file, _ in dataset.folder.samples]
        return _open_tree(Path(dataset.path), Listed(files, 1.0, {}))
    manifest, location = dataset.manifest, Path(dataset.location)
    if manifest.container in ELSEWHERE:
        raise UsageError(
            f"{location}: its images lie in {manifest.container} elsewhere, which is not diagnosed",
            f"Pack it (fastdata convert dataset --root {location}), and diagnose the result.",
        )
    for entry in manifest.files:
        if not (location / entry.name).exists():
            raise DatasetError(
                f"{location / entry.name}: no such file, though the dataset has it",
                "Copy the dataset again, or pack it again with fastdata convert.",
            )
    copied = sum(entry.size for entry in (manifest.index, *manifest.files))
    root = None
    if manifest.root is not None:
        root = Path(os.path.normpath(location / manifest.root))
        copied += manifest.blob_bytes + manifest.loose_files * _PAGE
    data = Data(
        path=str(dataset.path),
        location=str(location),
        container=manifest.container,
        root=None if root is None else str(root),
        convert=_convert(manifest.source),
        samples=manifest.samples,
        bytes=manifest.blob_bytes,
        estimated=False,
        stage_bytes=copied,
        in_memory=is_tmpfs(root or location),
    )
    return _with_cached_share(Opened(dataset.source, dataset, (), data))


def _open_tree(path: Path, listed: Listed) -> Opened:
    files, share, left_out = listed
    classes = {os.path.relpath(file, path).partition(os.sep)[0] for file in files}
    split = split_to_pack(classes)
    root = path / split if split else path
    drawn = random.Random(_SEED).sample(files, min(len(files), _ASKED))
    samples = round(len(files) / share)
    size = round(samples * sum(os.stat(file).st_size for file in drawn) / len(drawn))
    data = Data(
        path=str(path),
        location=str(path),
        container="files",
        root=str(path),
        # Empty where more than a class belongs to an image: packing would lose it.
        convert=_convert({"kind": "imagefolder", "root": str(root)}) if look(path).source else "",
        samples=samples,
        bytes=size,
        estimated=share < 1,
        stage_bytes=size + samples * _PAGE,
        in_memory=is_tmpfs(path),
        left_out=dict(left_out),
    )
    images = FileList([(file, 0) for file in files])
    return _with_cached_share(Opened(FilesSource(images, path), None, files, data))


def _convert(about: Mapping[str, Any]) -> str:
    """Return the command that packs a dataset's source, as far as its manifest shows."""
    kind, root, split = (about.get(name) for name in ("kind", "root", "split"))
    if kind not in _SOURCES:
        return "fastdata convert …"
    words = f"fastdata convert {kind}"
    if isinstance(root, str):
        words += f" --root {shlex.quote(root)}"
    if isinstance(split, str) and kind == "imagenet":
        words += f" --split {shlex.quote(split)}"
    return words


def _with_cached_share(opened: Opened) -> Opened:
    """Return the same, with the share that the page cache holds."""
    count = min(len(opened.source), _ASKED)
    drawn = random.Random(_SEED).sample(range(len(opened.source)), count)
    share: float | None = None
    try:
        share = page_cache.resident_share(opened.extents(np.array(drawn, np.int64)))
        how = "by mincore" + (
            f", of {human_count(count, 'image')}" if count < opened.data.samples else ""
        )
    except OSError as error:
        how = error.strerror or str(error)
    return replace(opened, data=replace(opened.data, cached_share=share, cached_how=how))


class Listed(NamedTuple):
    """Tree of images.

    Attributes:
        files: The images.
        share: About which part of all these are.
        left_out: How many other files there are, by suffix.
    """

    files: list[str]
    share: float
    left_out: Mapping[str, int]


def _list_images(path: Path, seconds: float) -> Listed:
    """List the images below a folder.

    Folders are listed in random order until the time is over.
    """
    if not path.is_dir():
        return Listed([], 1.0, {})
    with os.scandir(path) as entries:
        top = sorted(entries, key=lambda entry: entry.name)
    folders = [entry.path for entry in top if entry.is_dir()]
    found: list[str] = []
    left_out: Counter[str] = Counter()

    def add(parent: str | Path, names: Iterable[str]) -> None:
        for name in names:
            if is_image_name(name):
                found.append(os.path.join(parent, name))
            else:
                left_out[suffix_of(name)] += 1

    add(path, (entry.name for entry in top if not entry.is_dir()))
    random.Random(_SEED).shuffle(folders)
    until = time.perf_counter() + seconds
    for number, folder in enumerate(folders):
        if found and time.perf_counter() > until:
            return Listed(found, number / len(folders), left_out)
        for parent, _, names in os.walk(folder, followlinks=True):
            add(parent, names)
    return Listed(found, 1.0, left_out)

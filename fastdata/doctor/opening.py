"""Opening of a packed dataset, or of a tree of images."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastdata.converters.shuffling import split_to_pack
from fastdata.dataset import ImageDataset
from fastdata.doctor.findings import Data
from fastdata.doctor.page_cache import Extent
from fastdata.errors import DataError, DatasetError, UsageError
from fastdata.remote.urls import is_url, redact
from fastdata.storage.cache import Cache
from fastdata.storage.files import is_tmpfs
from fastdata.storage.formats import ELSEWHERE
from fastdata.storage.look import look
from fastdata.storage.manifest import WORK_NAME, has_manifest

#: Images of a tree from which its size is estimated.
_ASKED = 1_000
#: Sources that can be packed again in another encoding.
_SOURCES = ("imagenet", "imagefolder", "webdataset")
#: Bytes: each file takes whole pages.
_PAGE = 4096
_MOST_SIZE = 1 << 60


class Opened(NamedTuple):
    """Open dataset, and the facts known before measuring."""

    dataset: ImageDataset
    data: Data


def extents(dataset: ImageDataset, indices: npt.NDArray[np.int64]) -> list[Extent]:
    """Return the extents of some samples."""
    found = dataset.source.gather(indices).blobs["image"].extents
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


def open_any(dataset: str | os.PathLike[str] | ImageDataset, transform: Any) -> Opened:
    """Open a dataset, or a tree of images, with a transform; one that is open has its own."""
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
            # A diagnosis writes nothing into the dataset.
            dataset = ImageDataset(path, transform, cache=Cache(bytes=0))
        except DatasetError as error:
            if has_manifest(path) or (path / WORK_NAME).exists():
                raise
            dataset = ImageDataset(_list_tree(path, error), transform, cache=Cache(bytes=0))
    if not len(dataset):
        raise DataError(f"{dataset.path}: has no samples", "There is nothing to measure.")
    if dataset.folder is not None:
        return Opened(dataset, _describe_tree(dataset))
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
        stage_bytes=copied,
        in_memory=is_tmpfs(root or location),
    )
    return Opened(dataset, data)


def _list_tree(path: Path, error: DatasetError) -> Any:
    """Return torchvision's dataset of a tree; raise the error of what it is not if it is none."""
    try:
        from torchvision.datasets import ImageFolder
    except (ImportError, AttributeError, RuntimeError):  # one of another torch fails in its own way
        raise error from None
    try:
        return ImageFolder(str(path))
    except OSError:
        raise error from None


def _describe_tree(dataset: ImageDataset) -> Data:
    path, files = Path(dataset.path), [os.fspath(file) for file, _ in dataset.folder.samples]
    classes = {os.path.relpath(file, path).partition(os.sep)[0] for file in files}
    split = split_to_pack(classes)
    root = path / split if split else path
    drawn = files[:: max(1, len(files) // _ASKED)]
    size = round(len(files) * sum(os.stat(file).st_size for file in drawn) / len(drawn))
    return Data(
        path=str(path),
        location=str(path),
        container="files",
        root=str(path),
        # Empty where more than a class belongs to an image: packing would lose it.
        convert=_convert({"kind": "imagefolder", "root": str(root)}) if look(path).source else "",
        samples=len(files),
        bytes=size,
        stage_bytes=size + len(files) * _PAGE,
        in_memory=is_tmpfs(path),
    )


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

"""Opening of a packed dataset, or of a tree of images."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.options import split_to_pack
from fastdata.dataset import ImageDataset
from fastdata.doctor.findings import DatasetFacts
from fastdata.doctor.page_cache import Extent
from fastdata.errors import DataError, DatasetError, SourceError, UsageError
from fastdata.remote.urls import is_url, redact
from fastdata.storage.cache import Cache
from fastdata.storage.files import is_tmpfs
from fastdata.storage.listed import FileList, FilesSource
from fastdata.storage.manifest import WORK_NAME, has_manifest
from fastdata.storage.peek import peek
from fastdata.storage.row_groups import split_name
from fastdata.storage.source import Source

#: Images of a tree from which its size is estimated.
_ASKED = 1_000
#: Bytes: each file takes whole pages.
_PAGE = 4096
_MOST_SIZE = 1 << 60


class Opened(NamedTuple):
    """Open dataset, and the facts known before measuring."""

    dataset: ImageDataset
    data: DatasetFacts


def extents(dataset: ImageDataset, indices: npt.NDArray[np.int64]) -> list[Extent]:
    """Return the extents of some samples; of tables, whose row groups are read, the whole files."""
    source = dataset.source
    if source.blocks is not None:
        tables = {split_name(place)[0] for place in getattr(source, "places", ())} - {""}
        return [Extent(path, 0, path.stat().st_size) for path in map(Path, sorted(tables))]
    blobs = source.gather(indices).blobs["image"].extents
    paths = [Path(blobs.path(at)) for at in range(len(indices))]
    places = zip(paths, blobs.offsets.tolist(), blobs.lengths.tolist(), strict=True)
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


class _Tree(ImageDataset):
    """Folder of class folders, listed as ``fastdata convert imagefolder`` lists it."""

    def __init__(self, path: Path, transform: Any) -> None:
        source = ImageFolder(path, allow_empty=True)
        files = [(one.path, one.label) for shard in source.shards() for one in shard.records()]
        self._listed = FileList(files, source.classes)
        super().__init__(path, transform, cache=Cache(bytes=0))

    def _open_source(self) -> FilesSource:
        return FilesSource(self._listed, self.path)

    def _opened(self, learns: bool, files: FileList | None = None) -> Source:
        return super()._opened(learns, self._listed)


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
            try:
                dataset = _Tree(path, transform)
            except SourceError:
                raise error from None
    if not len(dataset):
        raise DataError(f"{dataset.path}: has no samples", "There is nothing to measure.")
    if isinstance(dataset.source, FilesSource):
        return Opened(dataset, _describe_tree(dataset, dataset.source))
    manifest, location = dataset.manifest, Path(dataset.location)
    if is_url(manifest.root or "") or getattr(manifest, "remote", False):
        raise UsageError(
            f"{location}: its images lie behind a URL, which is not diagnosed",
            f"Copy them: fastdata convert dataset --root {shlex.quote(str(location))}",
        )
    # Files that were indexed on first use have their index in the cache folder.
    path = Path(dataset.path) if has_manifest(Path(dataset.path)) else location
    root = None if manifest.root is None else Path(os.path.normpath(location / manifest.root))
    for place in manifest.places(location, root):
        file = Path(split_name(place)[0] or place)
        if not file.exists():
            raise DatasetError(
                f"{file}: no such file, though the dataset has it",
                "Copy the dataset again, or pack it again with fastdata convert.",
            )
    copied = sum(entry.size for entry in (manifest.index, *manifest.files))
    loose = root if manifest.container == "folder" else None
    if loose is not None:
        copied += manifest.blob_bytes + manifest.loose_files * _PAGE
    data = DatasetFacts(
        path=str(path),
        location=str(location),
        container=manifest.container,
        root=None if loose is None else str(loose),
        convert=f"fastdata convert dataset --root {shlex.quote(str(path))}",
        samples=manifest.samples,
        bytes=manifest.blob_bytes,
        stage_bytes=copied,
        in_memory=is_tmpfs(root or location),
    )
    return Opened(dataset, data)


def _describe_tree(dataset: ImageDataset, source: FilesSource) -> DatasetFacts:
    path, files = Path(dataset.path), [source.path(row) for row in range(len(source))]
    classes = {os.path.relpath(file, path).partition(os.sep)[0] for file in files}
    split = split_to_pack(classes)
    root = shlex.quote(str(path / split if split else path))
    drawn = files[:: max(1, len(files) // _ASKED)]
    size = round(len(files) * sum(os.stat(file).st_size for file in drawn) / len(drawn))
    return DatasetFacts(
        path=str(path),
        location=str(path),
        container="files",
        root=str(path),
        # Empty where more than a class belongs to an image: packing would lose it.
        convert=f"fastdata convert imagefolder --root {root}" if peek(path).source else "",
        samples=len(files),
        bytes=size,
        stage_bytes=size + len(files) * _PAGE,
        in_memory=is_tmpfs(path),
    )

"""Opening what is to be diagnosed: a packed dataset, or a tree of images as it is."""

from __future__ import annotations

import os
import random
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastdata.dataset import ImageDataset
from fastdata.doctor import page_cache
from fastdata.doctor.page_cache import Extent
from fastdata.errors import DataError, DatasetError, UsageError
from fastdata.loading.source import FolderSource, PackedSource, Source
from fastdata.remote.urls import is_url, redact
from fastdata.storage.files import is_tmpfs
from fastdata.storage.manifest import MANIFEST_NAME, WORK_NAME
from fastdata.storage.probe import is_image_name

#: Files whose share in the page cache stands for that of all.
_FILES_ASKED = 1_000
#: Files of a tree whose sizes stand for those of all.
_FILES_SIZED = 1_000
#: Sources that can be packed anew in another encoding.
_SOURCES = ("imagenet", "imagefolder", "webdataset")
#: Seeds what is drawn here: the same dataset is measured on the same images.
_SEED = 6


@dataclass(frozen=True)
class Opened:
    """A dataset that is open.

    Attributes:
        path: The folder that was asked for.
        source: Reads it, as the loader does.
        dataset: The packed dataset; None for a tree.
        files: The images of a tree, each with a label; empty for a packed dataset.
        samples: Their number; more than ``len(source)`` for a tree that was listed in part.
        bytes: Of all images.
        stage_bytes: What a staged copy would take.
    """

    path: Path
    source: Source
    dataset: ImageDataset | None
    files: Sequence[tuple[str, int]]
    samples: int
    bytes: int
    stage_bytes: int

    @property
    def location(self) -> Path:
        """The folder that is really read."""
        return self.path if self.dataset is None else Path(self.dataset.location)

    @property
    def container(self) -> str:
        """The container; ``files`` for a tree."""
        return "files" if self.dataset is None else self.dataset.manifest.container

    @property
    def root(self) -> Path | None:
        """Where the images are files of their own; None in a container."""
        if self.dataset is None:
            return self.path
        root = self.dataset.manifest.root
        return None if root is None else Path(os.path.normpath(self.location / root))

    @property
    def convert(self) -> str:
        """The command that packs its source, as far as the manifest tells."""
        if self.dataset is None:
            return f"fastdata convert imagefolder --root {shlex.quote(str(self.path))}"
        about = self.dataset.manifest.source
        kind, root, split = (about.get(name) for name in ("kind", "root", "split"))
        words = f"fastdata convert {kind if kind in _SOURCES else '…'}"
        if isinstance(root, str) and kind in _SOURCES:
            words += f" --root {shlex.quote(root)}"
        if isinstance(split, str) and kind == "imagenet":
            words += f" --split {shlex.quote(split)}"
        return words

    @property
    def in_memory(self) -> bool:
        """Whether its images lie in a file system in memory."""
        return is_tmpfs(self.root or self.location)

    def extents(self, indices: npt.NDArray[np.int64]) -> list[Extent]:
        """Where some samples lie."""
        found = self.source.gather(indices).extents
        # A length of -1 stands for a file's own.
        return [
            Extent(path, offset, path.stat().st_size if length < 0 else length)
            for path, offset, length in zip(
                (Path(found.path(at)) for at in range(len(indices))),
                found.offsets.tolist(),
                found.lengths.tolist(),
                strict=True,
            )
        ]

    def cached_share(self) -> tuple[float | None, str]:
        """The part that the page cache holds, 0 to 1, and how that was found or why not."""
        if self.root is None and self.dataset is not None:
            paths = [self.location / entry.name for entry in self.dataset.manifest.files]
            how = ""
        else:
            count = min(len(self.source), _FILES_ASKED)
            drawn = random.Random(_SEED).sample(range(len(self.source)), count)
            extents = self.source.gather(np.array(drawn, np.int64)).extents
            paths = [Path(extents.path(at)) for at in range(count)]
            how = f", of {count:,} files" if count < self.samples else ""
        cached = size = 0
        try:
            for path in paths:
                length = path.stat().st_size
                cached += min(page_cache.cached_bytes(Extent(path, 0, length)), length)
                size += length
        except OSError as error:
            return None, error.strerror or str(error)
        return (cached / size if size else 1.0), f"by mincore{how}"


def open_any(dataset: str | os.PathLike[str] | ImageDataset, seconds: float) -> Opened:
    """Opens a dataset, or lists a tree of images.

    Args:
        dataset: A packed dataset, its folder, or a folder with images somewhere below it.
        seconds: How long a tree may be listed.

    Raises:
        UsageError: It is behind a URL.
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
            unfinished = (path / MANIFEST_NAME).exists() or (path / WORK_NAME).exists()
            if unfinished or not path.is_dir():
                raise
            opened = _open_tree(path, seconds)
            if opened is None:
                raise
            return opened
    manifest = dataset.manifest
    if not manifest.samples:
        raise DataError(f"{dataset.path}: has no samples", "There is nothing to measure.")
    files = sum(entry.size for entry in (manifest.index, *manifest.files))
    if manifest.root is not None:
        # Each file is rounded up to whole pages.
        files += manifest.blob_bytes + manifest.samples * 4096
    return Opened(
        Path(dataset.path),
        PackedSource(dataset),
        dataset,
        (),
        manifest.samples,
        manifest.blob_bytes,
        files,
    )


def _open_tree(path: Path, seconds: float) -> Opened | None:
    """A tree of images; None if there are none."""
    files, share = _list_images(path, seconds)
    if not files:
        return None
    drawn = random.Random(_SEED).sample(files, min(len(files), _FILES_SIZED))
    mean = sum(os.stat(file).st_size for file, _ in drawn) / len(drawn)
    samples = round(len(files) / share)
    size = round(samples * mean)
    source = FolderSource(files, None)
    return Opened(path, source, None, files, samples, size, size + samples * 4096)


def _list_images(path: Path, seconds: float) -> tuple[list[tuple[str, int]], float]:
    """The images below a folder with a label each, and about which part of them these are.

    Folders are listed in random order until the time is over.
    """
    with os.scandir(path) as entries:
        top = sorted(entries, key=lambda entry: entry.name)
    found = [(entry.path, 0) for entry in top if is_image_name(entry.name)]
    folders = [(entry.path, label) for label, entry in enumerate(e for e in top if e.is_dir())]
    random.Random(_SEED).shuffle(folders)
    until = time.perf_counter() + seconds
    for number, (folder, label) in enumerate(folders):
        if found and time.perf_counter() > until:
            return found, number / len(folders)
        for parent, _, names in os.walk(folder, followlinks=True):
            found += [(os.path.join(parent, name), label) for name in names if is_image_name(name)]
    return found, 1.0

"""Datasets whose images fastdata can read by itself: its own, and torchvision's folders."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Subset

from fastdata.dataset import ImageDataset
from fastdata.loading.seek_cache import DEFAULT_BYTES, SeekCache
from fastdata.loading.source import FolderSource, PackedSource, Source
from fastdata.plan.schedule import Indices, Numbering
from fastdata.transforms.compile import Refusal


@dataclass(frozen=True)
class Images:
    """A dataset of images that fastdata can read by itself.

    Attributes:
        what: What it is, in words.
        dataset: The dataset whose transforms they are.
        options: Says what is to be heeded in reading; the same, where it is an `ImageDataset`.
        open: Opens it; the argument says whether seek points of files that have none are kept.
        transform: What is done to an image.
        target_transform: What is done to a label.
        subset: Its samples' numbers in what is opened, int64, shape (N,); None for all of them.
    """

    what: str
    dataset: Any
    options: ImageDataset
    open: Callable[[bool], Source]
    transform: Any
    target_transform: Callable[[int], Any] | None
    subset: Indices | None = None

    def numbering(self, source: Source) -> Numbering:
        """Which samples of the source that `open` has returned are this dataset's."""
        n = len(source) if self.subset is None else len(self.subset)
        return Numbering(n, self.subset)

    def is_current(self) -> bool:
        """Whether the dataset has the same transforms still."""
        return (
            self.dataset.transform is self.transform
            and self.dataset.target_transform is self.target_transform
        )


def recognise(dataset: Any) -> Images | Refusal:
    """What is known of a dataset; a refusal if it is not one that fastdata can read."""
    if isinstance(dataset, Subset):
        if refusal := _own_method(dataset, Subset, "__getitem__", "__getitems__", "__len__"):
            return refusal
        whole = recognise(dataset.dataset)
        if isinstance(whole, Refusal):
            return whole
        indices = np.asarray(dataset.indices, np.int64)
        # Out-of-range indices are rejected when they are read.
        indices = np.where(indices < 0, indices + len(dataset.dataset), indices)  # type: ignore[arg-type]
        return replace(
            whole,
            what=f"{len(indices)} samples of {whole.what}",
            subset=indices if whole.subset is None else whole.subset[indices],
        )
    if isinstance(dataset, ImageDataset):
        if refusal := _own_method(dataset, ImageDataset, *_METHODS):
            return refusal
        if dataset.folder is not None:
            return _recognise_folder(dataset.folder, dataset, dataset)
        return _images(repr(dataset), dataset, dataset, lambda learns: PackedSource(dataset))
    folders = sys.modules.get("torchvision.datasets.folder")
    if folders is not None and isinstance(dataset, folders.DatasetFolder):
        if refusal := _own_method(dataset, folders.DatasetFolder, *_FOLDER_METHODS):
            return refusal
        return _recognise_folder(dataset, dataset, ImageDataset(dataset))
    return Refusal(f"{type(dataset).__name__} is not a dataset that fastdata knows how to read")


def reads_remotely(dataset: Any) -> bool:
    """Whether a dataset's images lie behind a URL."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return isinstance(dataset, ImageDataset) and dataset.is_remote


# What decides which samples an `ImageDataset` has, and what they are.
_FOLDER_METHODS = ("__getitem__", "__getitems__", "__len__")
_METHODS = (*_FOLDER_METHODS, "open_image", "row", "blobs", "_blob")


def _own_method(dataset: Any, base: type, *names: str) -> Refusal | None:
    """A refusal if a subclass answers differently from its base, which is what is known."""
    for name in names:
        if getattr(type(dataset), name, None) is not getattr(base, name, None):
            return Refusal(f"{type(dataset).__name__} has a {name} of its own")
    return None


def _images(
    what: str, dataset: Any, options: ImageDataset, opener: Callable[[bool], Source]
) -> Images:
    transforms = dataset.transform, dataset.target_transform
    return Images(what, dataset, options, opener, *transforms)


def _recognise_folder(folder: Any, dataset: Any, options: ImageDataset) -> Images | Refusal:
    folders = sys.modules.get("torchvision.datasets.folder")
    name = type(folder).__name__
    if folders is None or not isinstance(folder, folders.DatasetFolder):
        return Refusal(f"{name} is not a folder of torchvision's")
    if folder.loader not in (folders.default_loader, folders.pil_loader):
        return Refusal(f"{name} has a loader of its own")
    import torchvision

    if folder.loader is folders.default_loader and torchvision.get_image_backend() != "PIL":
        return Refusal("torchvision's image backend is not PIL")

    def opener(learns: bool) -> Source:
        size = DEFAULT_BYTES if options.seek_cache_bytes is None else options.seek_cache_bytes
        file = None if options.seek_cache_file is None else Path(options.seek_cache_file)
        cache = SeekCache(str(folder.root), size, file) if learns and size else None
        return FolderSource(folder.samples, cache)

    return _images(f"{name} of {len(folder.samples)} files", dataset, options, opener)

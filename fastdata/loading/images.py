"""Datasets whose images fastdata can read by itself: its own, and torchvision's folders.

Subsets and concatenations of them, at any depth, are numbers over the same sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset

from fastdata.dataset import ImageDataset
from fastdata.decode.folders import SAMPLE_METHODS, folder_class, own_method, why_not_pillow
from fastdata.decode.pillow import RGB, Style
from fastdata.device.delivery import called
from fastdata.loading.noticing import remedy, unread
from fastdata.plan.schedule import Indices, Numbering
from fastdata.storage.cache import Cache
from fastdata.storage.joined import JoinedSource
from fastdata.storage.listed import FileList, FilesSource
from fastdata.storage.seek_cache import DEFAULT_BYTES, SeekCache
from fastdata.storage.source import Source
from fastdata.text import human_count
from fastdata.transforms.compile import Recipe, Refusal, compile_recipe
from fastdata.transforms.originals import pillow_changed


@dataclass(frozen=True)
class Images:
    """Dataset of images that fastdata can read by itself.

    Attributes:
        what: Its kind, in words.
        dataset: The dataset that has the transforms.
        options: The dataset that has the options of reading; the same, if it is an `ImageDataset`.
        open: Opens it; the argument: whether to keep seek points of files without an index.
        transform: Transform of an image.
        target_transform: Transform of a label.
        recipe: The transform compiled, or why it cannot be.
        files: (path, label) of each file of a torchvision folder; else None.
        subset: Its samples' numbers in the opened source, int64, shape (N,); None for all.
        parts: The datasets of a ConcatDataset, in order.
    """

    what: str
    dataset: Any
    options: ImageDataset
    open: Callable[[bool], Source]
    transform: Any
    target_transform: Callable[[int], Any] | None
    recipe: Recipe | Refusal
    files: list[tuple[str, int]] | None = None
    subset: Indices | None = None
    parts: tuple[Images, ...] = ()

    def numbering(self, source: Source) -> Numbering:
        """Return the mapping from this dataset's samples to those of its opened source."""
        n = len(source) if self.subset is None else len(self.subset)
        return Numbering(n, self.subset)

    @property
    def opened(self) -> int:
        """Number of samples of the source that `open` returns."""
        return sum(part.opened for part in self.parts) if self.parts else len(self.dataset)

    def equals(self, other: Images | NotKnown) -> bool:
        """Return whether samples and transforms are unchanged since another look."""
        return (
            isinstance(other, Images)
            and self.transform is other.transform
            and self.target_transform is other.target_transform
            and self.recipe == other.recipe
            and np.array_equal(self.subset, other.subset)  # type: ignore[arg-type]
            and self._agrees(other, Images.equals)
        )

    def opens_as(self, other: Images) -> bool:
        """Return whether a source that was opened for this has the files of the other."""
        return self._agrees(other, Images.opens_as)

    def _agrees(self, other: Images, parts_agree: Callable[[Images, Images], bool]) -> bool:
        """Compare the files; those of parts are compared once, by the function for these."""
        if self.parts or other.parts:
            return len(self.parts) == len(other.parts) and all(
                map(parts_agree, self.parts, other.parts)
            )
        return self.dataset is other.dataset and self.files == other.files

    @property
    def transforms_targets(self) -> bool:
        """Whether labels are transformed."""
        own = self.target_transform is not None
        return own or any(part.transforms_targets for part in self.parts)

    def target(self, index: int, label: int) -> Any:
        """Return a label after its dataset's ``target_transform``; ``index`` as in the source."""
        for part in self.parts:
            if index < part.opened:
                return part.target(index, label)
            index -= part.opened
        return label if self.target_transform is None else called(self.target_transform, label)


class NotKnown(NamedTuple):
    """Dataset that fastdata cannot read by itself.

    Attributes:
        reason: Why, in words.
        hint: The remedy.
        color: Colour of its images, as of `fastdata.ImageDataset`.
    """

    reason: str
    hint: str
    color: str = "rgb"


def recognise(dataset: Any) -> Images | NotKnown:
    """Return how fastdata reads a dataset, or why it cannot."""
    if isinstance(dataset, Subset):
        if reason := own_method(dataset, Subset, "__getitem__", "__getitems__", "__len__"):
            return _overridden(reason)
        whole = recognise(dataset.dataset)
        if isinstance(whole, NotKnown):
            return whole
        indices = _numbers(dataset.indices, len(dataset.dataset))  # type: ignore[arg-type]
        return replace(
            whole,
            what=f"{human_count(len(indices), 'sample')} of {whole.what}",
            subset=indices if whole.subset is None else whole.subset[indices],
        )
    if isinstance(dataset, ConcatDataset):
        return _recognise_concat(dataset)
    if isinstance(dataset, ImageDataset):
        if reason := own_method(dataset, ImageDataset, *_METHODS):
            return _overridden(reason)
        if dataset.style != RGB:
            return _other_style(dataset.style)
        if dataset.folder is not None:
            return _recognise_folder(dataset.folder, dataset, dataset)
        return _images(repr(dataset), dataset, dataset, lambda learns: dataset.source)
    base = folder_class()
    if base is not None and isinstance(dataset, base):
        if reason := own_method(dataset, base, *SAMPLE_METHODS):
            return _overridden(reason)
        return _recognise_folder(dataset, dataset, ImageDataset(dataset))
    return NotKnown(unread(dataset), remedy(dataset, holds_images(dataset)))


def _recognise_concat(dataset: ConcatDataset[Any]) -> Images | NotKnown:
    if reason := own_method(dataset, ConcatDataset, *SAMPLE_METHODS):
        return _overridden(reason)
    if dataset.cumulative_sizes != np.cumsum([len(one) for one in dataset.datasets]).tolist():  # type: ignore[arg-type]
        why = "a part of the ConcatDataset has another number of samples than when that was made"
        return NotKnown(why, "Make the ConcatDataset again.")
    parts = []
    for number, one in enumerate(dataset.datasets):
        part = recognise(one)
        if isinstance(part, NotKnown):
            return part._replace(reason=f"part {number} of the ConcatDataset: {part.reason}")
        parts.append(part)
    first = parts[0]
    if len(parts) == 1:
        return replace(first, what=f"a ConcatDataset of {first.what}")
    recipe = first.recipe
    for number, part in enumerate(parts):
        if difference := _difference(first, part):
            why = f"parts 0 and {number} of the ConcatDataset have different {difference}"
            return NotKnown(why, "Give all parts the same.")
        if part.recipe != first.recipe:  # of images of one size, here or there
            recipe = compile_recipe(first.transform)
        if not part.options.source.capabilities.local:
            path = part.options.path
            why = f"part {number} of the ConcatDataset, {path}, is read from a URL"
            return NotKnown(why, "Copy it to this machine with fastdata stage.")

    def opener(learns: bool) -> Source:
        # Two subsets of one dataset share what is learnt of its files.
        sources = {id(part.dataset): part.open for part in parts}
        opened = {key: open_one(learns) for key, open_one in sources.items()}
        return JoinedSource([opened[id(part.dataset)] for part in parts])

    names = [part.what for part in parts[:_NAMED_PARTS]]
    if len(parts) > len(names):
        names.append(f"{len(parts) - len(names)} more")
    return replace(
        first,
        what=f"a ConcatDataset of {' + '.join(names)}",
        dataset=dataset,
        open=opener,
        target_transform=None,
        recipe=recipe,
        files=None,
        subset=_concatenated(parts),
        parts=tuple(parts),
    )


#: Parts of a ConcatDataset that are named.
_NAMED_PARTS = 3


def _difference(one: Images, other: Images) -> str | None:
    """Return the property in which two parts differ although a loader needs it to be equal."""
    if one.recipe != other.recipe and one.transform is not other.transform:
        return "transforms"
    names = ("check", "dct_scaling", "limits")
    return next((n for n in names if getattr(one.options, n) != getattr(other.options, n)), None)


def _concatenated(parts: list[Images]) -> Indices | None:
    """Return the parts' sample numbers in a source of all parts; None if they are the same."""
    if all(part.subset is None for part in parts):
        return None
    numbers, start = [], 0
    for part in parts:
        own = np.arange(part.opened) if part.subset is None else part.subset
        numbers.append(own + start)
        start += part.opened
    return np.concatenate(numbers)


def leaves(dataset: Any) -> Iterator[Any]:
    """Yield the datasets inside a dataset, looking through Subset and ConcatDataset."""
    if isinstance(dataset, Subset):
        yield from leaves(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for one in dataset.datasets:
            yield from leaves(one)
    else:
        yield dataset


def _numbers(indices: Any, n: int) -> Indices:
    """Return a Subset's indices, into a dataset of n samples, as numbers from 0.

    Raises:
        IndexError: There is no such sample. Counted from the end twice, it would be another one.
        TypeError: One is no whole number, and would be rounded.
    """
    found = np.asarray(indices)
    if found.size and found.dtype.kind not in "iub":
        raise TypeError(f"a Subset's indices are whole numbers, and these are {found.dtype}")
    found = found.astype(np.int64)
    wrong = found[(found < -n) | (found >= n)]
    if len(wrong):
        raise IndexError(f"a Subset has sample {wrong[0]} of a dataset of {n}")
    return np.where(found < 0, found + n, found)


def _other_style(style: Style) -> NotKnown:
    """Return why the native core does not make images of another style."""
    if style.exif_transpose:
        why, hint = "exif_transpose=True turns images, which the core does not", "Leave it out"
        return NotKnown(why, f"{hint}, as torchvision does.", style.color)
    why, hint = f"color={style.color!r} gives images that are not RGB", "Take color='rgb'"
    if style.color == "unchanged":
        why += ", whose number of channels may differ: a batch of them cannot be stacked"
        hint += ", or bring them to one number of channels in the transform"
    return NotKnown(why, f"{hint}.", style.color)


def _overridden(reason: str) -> NotKnown:
    hint = "Do in transform and target_transform what it does, and leave it out."
    return NotKnown(reason, hint)


def holds_images(dataset: Any, depth: int = 4) -> bool:
    """Return whether a dataset is, or holds, one that fastdata reads.

    Args:
        dataset: Of any kind.
        depth: How many datasets, each held by the one before, are looked into.
    """
    known = tuple(filter(None, (ImageDataset, folder_class())))
    if isinstance(dataset, known):
        return True
    if not isinstance(dataset, Dataset) or not depth:
        return False
    for held in vars(dataset).values():
        # A list may be one of a million samples.
        several = held[:8] if isinstance(held, (list, tuple)) else [held]
        if any(holds_images(one, depth - 1) for one in several):
            return True
    return False


def reads_remotely(dataset: Any) -> bool:
    """Return whether a dataset's images lie behind a URL."""
    return any(isinstance(one, ImageDataset) and one.is_remote for one in leaves(dataset))


# Methods that decide which samples an `ImageDataset` has, and what they are.
_METHODS = (*SAMPLE_METHODS, "open_image", "row", "source")


def _images(
    what: str, dataset: Any, options: ImageDataset, opener: Callable[[bool], Source]
) -> Images:
    recipe = _compiled(dataset)
    transforms = dataset.transform, dataset.target_transform
    return Images(what, dataset, options, opener, *transforms, recipe)


def _compiled(dataset: Any) -> Recipe | Refusal:
    """Return a dataset's transform, compiled for images of any size, else for its one size."""
    if dataset.transform is not None and (reason := pillow_changed()):
        return Refusal(f"{reason}. Undo that.")
    recipe = compile_recipe(dataset.transform)
    if isinstance(recipe, Refusal) and isinstance(dataset, ImageDataset):
        size = dataset.image_size
        if size is not None and min(size) > 0:
            sized = compile_recipe(dataset.transform, size)
            # Where all of it is a tail, torch's loader may as well do it.
            if isinstance(sized, Recipe) and any(
                not sized.unknown or program.steps or program.pixels for program in sized.programs
            ):
                return sized
    return recipe


def _recognise_folder(folder: Any, dataset: Any, options: ImageDataset) -> Images | NotKnown:
    if reason := own_method(folder, folder_class(), *SAMPLE_METHODS):
        return _overridden(reason)
    if otherwise := why_not_pillow(folder):
        return NotKnown(*otherwise)
    files = list(folder.samples)  # the folder's own may be changed in place
    listed = FileList(files, folder.classes)

    def opener(learns: bool) -> Source:
        cache = options.cache or Cache()
        size = DEFAULT_BYTES if cache.bytes is None else cache.bytes
        file = None if cache.path is None else Path(cache.path)
        seek_points = SeekCache(str(folder.root), size, file) if learns and size else None
        return FilesSource(listed, options.path, seek_points)

    what = f"{type(folder).__name__} of {human_count(len(files), 'file')}"
    return replace(_images(what, dataset, options, opener), files=files)

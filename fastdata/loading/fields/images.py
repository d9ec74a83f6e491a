"""How the core reads a dataset of images, or why it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastdata.decode.limits import Limits
from fastdata.errors import called
from fastdata.plan.mixture import MixedRows
from fastdata.plan.schedule import Indices, Numbering
from fastdata.storage.fields import IMAGES, Field, common_fields

if TYPE_CHECKING:
    from fastdata.dataset import ImageDataset
    from fastdata.storage.cache import Cache
    from fastdata.storage.source import Source
    from fastdata.transforms.compile import Recipe
    from fastdata.transforms.outcomes import Refusal


@dataclass(frozen=True)
class Options:
    """Options of reading a dataset given as it is; the same attributes as `ImageDataset`'s."""

    path: Any
    source: Source
    exif_transpose: bool = False
    limits: Limits = field(default_factory=Limits)
    cache: Cache | None = None
    folder: Any = None
    further_transforms: Mapping[str, Any] = field(default_factory=dict)

    def is_image(self, name: str) -> bool:
        """Return whether a name is that of a field of images or masks."""
        return any(one.name == name and one.kind in IMAGES for one in self.source.fields)


@dataclass(frozen=True)
class Images:
    """Dataset of images that fastdata can read by itself.

    Attributes:
        dataset: The dataset that has the transforms.
        options: The options of reading: the same dataset, if it is an `ImageDataset`.
        open: Opens it; the argument: whether to keep seek points of files without an index.
        transform: Transform of an image.
        recipe: The transform compiled, or why it cannot be.
        files: (path, label) of each file of a torchvision folder; of its other datasets, what
            decides their samples; else None.
        subset: Its samples' numbers in the opened source, int64, shape (N,); None for all.
        sources: Names of the parts of a mixture; (): it is none.
        fields: Contents of a sample, in order.
        further: Transforms of further fields of images, compiled, by field.
        keys: Keys of a sample that is a dict, one for each of the fields; (): it is a tuple.
        as_torch: Whether a batch has what torch's ``default_collate`` makes of its samples.
    """

    what: str
    dataset: Any
    options: ImageDataset | Options
    open: Callable[[bool], Source]
    transform: Any
    target_transform: Callable[[int], Any] | None
    recipe: Recipe | Refusal
    files: Any = None
    subset: Indices | MixedRows | None = None
    parts: tuple[Images, ...] = ()
    fields: tuple[str, ...] = ("image", "label")
    further: Mapping[str, Recipe | Refusal] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    as_torch: bool = False
    sources: tuple[str, ...] = ()

    def sample(self, values: Sequence[Any]) -> Any:
        """Return a sample of its fields' values."""
        return dict(zip(self.keys, values, strict=True)) if self.keys else tuple(values)

    @property
    def key(self) -> str:
        """Key of the images in a sample that is a dict."""
        return self.keys[self.fields.index("image")] if self.keys else "image"

    @property
    def schema(self) -> Sequence[Field]:
        """Fields of the source that `open` returns."""
        if self.parts:
            return common_fields([part.schema for part in self.parts])
        return self.options.source.fields

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
            and (self.fields, self.keys) == (other.fields, other.keys)
            and self.further == other.further
            and _same_rows(self.subset, other.subset)
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

    def part_of(self, indices: Indices) -> Indices:
        """Return the number of each sample's part; ``indices`` as in the source."""
        ends = np.cumsum([part.opened for part in self.parts])
        return np.searchsorted(ends, indices, "right")

    def row_in_part(self, index: int) -> int:
        """Return a sample's number in its own dataset; ``index`` as in the source."""
        for part in self.parts:
            if index < part.opened:
                return part.row_in_part(index)
            index -= part.opened
        return index

    def target(self, index: int, label: int) -> Any:
        """Return a label after its dataset's ``target_transform``; ``index`` as in the source."""
        for part in self.parts:
            if index < part.opened:
                return part.target(index, label)
            index -= part.opened
        return label if self.target_transform is None else called(self.target_transform, label)


def _same_rows(one: Any, other: Any) -> bool:
    """Return whether two ``subset`` are equal."""
    if isinstance(one, MixedRows) or isinstance(other, MixedRows):
        return bool(one == other)
    return np.array_equal(one, other)


class NotKnown(NamedTuple):
    """Dataset that fastdata cannot read by itself, and why; ``hint`` is the remedy.

    ``avoidable``: it has images that fastdata could read.
    """

    reason: str
    hint: str
    color: str = "rgb"
    avoidable: bool = True


#: Advice for classes that add a sample's number or path.
NUMBERED = (
    "For samples' numbers and paths, give the loader "
    'fields=("image", "label", "index", "key"), which makes dicts.'
)


def other_style(color: str) -> NotKnown:
    """Return why the native core does not make images of another colour."""
    why, hint = f"color={color!r} gives images that are not RGB", "Take color='rgb'"
    if color == "unchanged":
        why += ", whose number of channels may differ: a batch of them cannot be stacked"
        hint += ", or bring them to one number of channels in the transform"
    return NotKnown(why, f"{hint}.", color)


def overridden(reason: str) -> NotKnown:
    """Return that a dataset has a method of its own instead of a library's."""
    hint = "Move its code to transform= and target_transform=, and remove the method."
    return NotKnown(reason, f"{hint} {NUMBERED}")

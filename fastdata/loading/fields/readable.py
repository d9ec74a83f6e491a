"""Description of a dataset whose images the core reads, or the reason why it does not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastdata.decode.limits import Limits
from fastdata.errors import called
from fastdata.once import once
from fastdata.plan.mixture import MixedRows
from fastdata.plan.position import digest_of
from fastdata.plan.schedule import Indices, Numbering
from fastdata.storage.fields import IMAGES, Field, common_fields
from fastdata.transforms.outcomes import Refusal
from fastdata.transforms.recipe import Recipe

if TYPE_CHECKING:
    from fastdata.storage.cache import Cache
    from fastdata.storage.source import Source


@dataclass(frozen=True, kw_only=True)
class Readable:
    """Dataset of images that fastdata can read by itself.

    Attributes:
        what: The dataset in words.
        dataset: The dataset that has the transforms.
        path: The folder or the URL of its files, for messages.
        source: Its rows; `open` returns those of a loader.
        limits: Pixels and scans of an image that is decoded.
        cache: The cache for seek points of files without an index, if one was given.
        open: Opens it; the argument: whether to keep seek points of files without an index.
        transform: Transform of an image; with ``joint`` of an image and its targets.
        joint: Whether the transform takes more of a sample than its image.
        recipe: The transform compiled, or why it cannot be.
        files: (path, label) of each file of a torchvision folder; of its other datasets, what
            decides their samples; else None.
        subset: Its samples' numbers in the opened source, int64, shape (N,); None for all.
        without_transform: Other fields of images, those without a transform.
        positions: A Subset's numbers in a mixture, whose rows differ from epoch to epoch.
        sources: Names of the parts of a mixture; (): it is none.
        fields: Contents of a sample, in order.
        field_recipes: Compiled transforms of other fields of images, by field.
        keys: Keys of a sample that is a dict, one for each of the fields; (): it is a tuple.
    """

    what: str
    dataset: Any
    path: Any
    source: Source
    limits: Limits = field(default_factory=Limits)
    cache: Cache | None = None
    open: Callable[[bool], Source]
    transform: Any
    target_transform: Callable[[int], Any] | None = None
    joint: bool = False
    recipe: Recipe | Refusal
    files: Any = None
    subset: Indices | MixedRows | None = None
    positions: Indices | None = None
    parts: tuple[Readable, ...] = ()
    fields: tuple[str, ...] = ("image", "label")
    field_recipes: Mapping[str, Recipe | Refusal] = field(default_factory=dict)
    without_transform: Collection[str] = ()
    keys: tuple[str, ...] = ()
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
        return self.source.fields

    def numbering(self, source: Source) -> Numbering:
        """Return the mapping from this dataset's samples to rows of its opened source."""
        n = len(source) if self.subset is None else len(self.subset)
        return Numbering(n, self.subset)

    @once
    def digest(self) -> int:
        """Checksum of a Subset's numbers; 0 for a whole dataset."""
        rows = self.subset if self.positions is None else self.positions
        if isinstance(rows, MixedRows):
            rows = rows.numbers
        whole = rows is None or (
            len(rows) == self.opened and np.array_equal(rows, np.arange(len(rows)))
        )
        return 0 if whole else digest_of(rows)

    @property
    def opened(self) -> int:
        """Number of samples of the source that `open` returns."""
        return sum(part.opened for part in self.parts) if self.parts else len(self.dataset)

    def equals(self, other: Readable | Unreadable) -> bool:
        """Return whether samples and transforms are unchanged since another look."""
        return (
            isinstance(other, Readable)
            and self.transform is other.transform
            and self.target_transform is other.target_transform
            and self.recipe == other.recipe
            and (self.fields, self.keys) == (other.fields, other.keys)
            and self.field_recipes == other.field_recipes
            and _same_rows(self.subset, other.subset)
            and self._agrees(other, Readable.equals)
        )

    def opens_as(self, other: Readable) -> bool:
        """Return whether a source that was opened for this has the files of the other."""
        return self._agrees(other, Readable.opens_as)

    def _agrees(self, other: Readable, parts_agree: Callable[[Readable, Readable], bool]) -> bool:
        """Return whether files are equal, or, where there are parts, whether all of these agree."""
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

    def rows_in_parts(self, indices: Indices) -> Indices:
        """Return the samples' numbers in their own datasets; ``indices`` as in the source."""
        rows: Indices = indices.copy()
        first = 0
        for part in self.parts:
            own = (indices >= first) & (indices < first + part.opened)
            rows[own] = part.rows_in_parts(indices[own] - first)
            first += part.opened
        return rows

    def target(self, index: int, label: int) -> Any:
        """Return a label after its dataset's ``target_transform``; ``index`` as in the source."""
        for part in self.parts:
            if index < part.opened:
                return part.target(index, label)
            index -= part.opened
        return label if self.target_transform is None else called(self.target_transform, label)


def images_among(fields: Sequence[Field], joint: bool) -> list[str]:
    """Return the names of fields of images, and of masks that no ``joint`` transform moves."""
    kinds = ("image",) if joint else IMAGES
    return [one.name for one in fields if one.kind in kinds]


def _same_rows(one: Any, other: Any) -> bool:
    """Return whether two ``subset`` are equal."""
    if isinstance(one, MixedRows) or isinstance(other, MixedRows):
        return bool(one == other)
    return np.array_equal(one, other)


class Unreadable(NamedTuple):
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


def other_style(color: str) -> Unreadable:
    """Return why the native core does not make images of another colour."""
    why, hint = f"color={color!r} gives images that are not RGB", "Take color='rgb'"
    if color == "unchanged":
        why += ", whose number of channels may differ: a batch of them cannot be stacked"
        hint += ", or bring them to one number of channels in the transform"
    return Unreadable(why, f"{hint}.", color)


def overridden(reason: str) -> Unreadable:
    """Return that a dataset has a method of its own instead of a library's."""
    hint = "Move its code to transform= and target_transform=, and remove the method."
    return Unreadable(reason, f"{hint} {NUMBERED}")

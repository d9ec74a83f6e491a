"""Datasets whose images fastdata can read by itself: its own, and torchvision's folders.

Subsets and concatenations of them, at any depth, are numbers over the same sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from fastdata.dataset import ImageDataset
from fastdata.decode.folders import SAMPLE_METHODS, folder_class, other_labels
from fastdata.decode.hub import HUB_METHODS
from fastdata.errors import UsageError
from fastdata.loading.fields.names import BESIDES, SOURCE
from fastdata.loading.fields.readable import Readable, Unreadable, overridden
from fastdata.loading.fields.samples import NativeSamples
from fastdata.loading.fields.targets import reader_of
from fastdata.loading.mixture import Mixture, WrappedDataset
from fastdata.loading.noticing import IN_PLACE, remedy, unread
from fastdata.plan.mixture import MixedRows
from fastdata.plan.schedule import Indices
from fastdata.storage.fields import MASKS, common_fields, outlines_among
from fastdata.storage.hugging_face import dataset_class, images_of, is_hub
from fastdata.storage.joined import JoinedSource
from fastdata.storage.source import Source
from fastdata.text import class_name, human_count, human_size
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.identity import fresh_look, own_method
from fastdata.transforms.outcomes import Refusal
from fastdata.transforms.recipe import Recipe
from fastdata.transforms.schedule import of_size


def recognise(dataset: Any) -> Readable | Unreadable:
    """Return how fastdata reads a dataset, or why it cannot."""
    described = _recognise(dataset)
    if isinstance(described, Unreadable):
        return described._replace(avoidable=holds_images(dataset))
    return described


def recognise_any(dataset: Any, size: tuple[int, int] | None) -> Readable | Unreadable:
    """Return how fastdata reads a dataset in batches of a size, or of none."""
    with fresh_look(), of_size(size):
        return recognise(dataset)


def _recognise(dataset: Any) -> Readable | Unreadable:
    if isinstance(dataset, Subset):
        if reason := own_method(dataset, Subset, "__getitem__", "__getitems__", "__len__"):
            return overridden(reason)
        whole = recognise(dataset.dataset)
        if isinstance(whole, Unreadable):
            return whole
        indices = _numbers(dataset.indices, len(dataset.dataset))  # type: ignore[arg-type]
        positions = whole.positions
        if isinstance(whole.subset, MixedRows) or positions is not None:
            positions = indices if positions is None else positions[indices]
        return replace(
            whole,
            what=f"{human_count(len(indices), 'sample')} of {whole.what}",
            subset=indices if whole.subset is None else whole.subset[indices],
            positions=positions,
        )
    if isinstance(dataset, Mixture):
        return _recognise_mixture(dataset)
    if isinstance(dataset, ConcatDataset):
        return _recognise_concat(dataset)
    if isinstance(dataset, ImageDataset):
        return dataset.described()
    base = folder_class()
    if base is not None and isinstance(dataset, base):
        if reason := own_method(dataset, base, *SAMPLE_METHODS):
            return overridden(reason)
        if reason := other_labels(dataset):
            hint = "Keep whole numbers in samples, and make others of them in target_transform."
            return Unreadable(reason, hint)
        described = ImageDataset(dataset).described()
        return (
            described if isinstance(described, Unreadable) else replace(described, dataset=dataset)
        )
    if is_hub(dataset) and images_of(dataset):
        if reason := own_method(dataset, dataset_class(), *HUB_METHODS):
            return overridden(reason)
        return Unreadable("a datasets.Dataset makes its samples itself", IN_PLACE)
    why = unread(dataset)
    if isinstance(dataset, IterableDataset):
        why = f"{class_name(dataset)} is an IterableDataset, which decides what it reads"
    return Unreadable(why, remedy(dataset, holds_images(dataset)))


class PrefixDataset(NativeSamples, WrappedDataset):
    """Dataset whose samples the core decodes, for torch's worker processes."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset}

    def __getitem__(self, index: int) -> Any:
        decoder = self.decoder
        return self._dataset[index] if decoder is None else decoder.samples([index])[0]

    def described(self) -> Readable | Unreadable:
        return recognise(self._dataset)


def _recognise_concat(dataset: ConcatDataset[Any]) -> Readable | Unreadable:
    names = [f"part {number}" for number in range(len(dataset.datasets))]
    parts = _parts(dataset, ConcatDataset, names)
    if isinstance(parts, Unreadable):
        return parts
    for name, part in zip(names, parts, strict=True):
        if isinstance(part.subset, MixedRows):
            why = f"{name} of the ConcatDataset is a Mixture"
            return Unreadable(why, "Name its sources, and the other parts, in one Mixture.")
    return _join(parts, dataset, "ConcatDataset", names)


def _recognise_mixture(dataset: Mixture) -> Readable | Unreadable:
    names = [f"source {name!r}" for name in dataset.names]
    parts = _parts(dataset, Mixture, names)
    if isinstance(parts, Unreadable):
        return parts
    fields = dataset.fields
    if fields is not None:
        parts = [_with_fields(part, fields, dataset.named) for part in parts]
    joined = _join(parts, dataset, "Mixture", names)
    if isinstance(joined, Unreadable):
        return joined
    if dataset.places and any(field.name == SOURCE for field in joined.schema):
        raise UsageError(
            f"fields={fields!r}: every source stores a field {SOURCE!r} of its own",
            "Name it in fields= of each, to have that; or leave it out.",
        )
    rows = MixedRows(dataset.plan, dataset.epoch, joined.subset)  # type: ignore[arg-type]
    joined = replace(joined, subset=rows, sources=dataset.names)
    if fields is None:
        return joined
    return replace(joined, fields=fields, keys=fields if dataset.named else ())


def _parts(
    dataset: ConcatDataset[Any], base: type[Any], names: Sequence[str]
) -> list[Readable] | Unreadable:
    """Return how fastdata reads the parts of a dataset, or why it cannot read one."""
    if reason := own_method(dataset, base, *SAMPLE_METHODS):
        return overridden(reason)
    kind, noun = base.__name__, names[0].split()[0]
    if dataset.cumulative_sizes != np.cumsum([len(one) for one in dataset.datasets]).tolist():  # type: ignore[arg-type]
        why = f"a {noun} of the {kind} has another number of samples than when that was made"
        return Unreadable(why, f"Make the {kind} again.")
    parts = []
    for name, one in zip(names, dataset.datasets, strict=True):
        part = recognise(one)
        if isinstance(part, Unreadable):
            return part._replace(reason=f"{name} of the {kind}: {part.reason}")
        parts.append(part)
    return parts


def _with_fields(images: Readable, fields: tuple[str, ...], named: bool) -> Readable:
    """Return a source of a mixture with no other fields than some."""
    kept = tuple(name for name in fields if name != SOURCE)
    if reader_of(images) is not None and fields != images.fields:
        raise UsageError(
            f"fields={fields!r}, and samples with transforms= have {images.fields!r}",
            "Give all sources the same fields=, and leave those of the Mixture out. For others, "
            f"such as {SOURCE!r}, give fields= to the loader, and batch_transform= instead of a "
            "collate_fn.",
        )
    recipes = {name: recipe for name, recipe in images.field_recipes.items() if name in kept}
    return replace(images, fields=kept, field_recipes=recipes, keys=kept if named else ())


def _join(
    parts: list[Readable], dataset: Any, kind: str, names: Sequence[str]
) -> Readable | Unreadable:
    """Return how fastdata reads several datasets, one after the other, or why it cannot.

    ``kind`` and ``names`` are what messages call all of them, and each.
    """
    first = parts[0]
    if len(parts) == 1:
        return replace(first, what=f"a {kind} of {first.what}")
    recipe = first.recipe
    for name, part in zip(names, parts, strict=True):
        if difference := _difference(first, part):
            noun, one = names[0].split(maxsplit=1)
            why = f"{noun}s {one} and {name.removeprefix(noun)[1:]} of the {kind} have different "
            hint = f"Give all {noun}s the same."
            sizes = [_sizes(one) for one in (first, part)]
            if difference == "transforms" and sizes[0] != sizes[1]:
                why = why.replace("have different ", f"make images of {sizes[0]} and ")
                difference, hint = sizes[1], "End all transforms with a crop of one size."
            if difference == _FORMATS:
                hint = "Write all in one format, and pack them with convert table --format."
            return Unreadable(why + difference, hint)
        if part.source.blocks is not None:
            why = f"{name} of the {kind}, {part.path}, is decoded a row group at a time"
            return Unreadable(why, "Pack it: fastdata convert.")
        if part.recipe != first.recipe and not _stack(first, part):
            recipe = compile_recipe(first.transform)  # of images of one size, here or there

    several: Any = [part.recipe for part in parts]
    if isinstance(recipe, Recipe) and any(one != recipe for one in several):
        recipe = replace(recipe, parts=tuple(several))

    def opener(learns: bool) -> Source:
        # Two subsets of one dataset share the seek points learnt of its files.
        sources = {id(part.dataset): part.open for part in parts}
        opened = {key: open_one(learns) for key, open_one in sources.items()}
        return JoinedSource([opened[id(part.dataset)] for part in parts])

    named = [part.what for part in parts[:_NAMED_PARTS]]
    if len(parts) > len(named):
        named.append(f"{len(parts) - len(named)} more")
    return replace(
        first,
        what=f"a {kind} of {' + '.join(named)}",
        dataset=dataset,
        open=opener,
        target_transform=None,
        recipe=recipe,
        files=None,
        subset=_concatenated(parts, [part.subset for part in parts]),
        positions=_concatenated(parts, [part.positions for part in parts]),
        parts=tuple(parts),
    )


_FORMATS = "formats of fields"
#: Parts of a ConcatDataset that are named.
_NAMED_PARTS = 3


def _difference(one: Readable, other: Readable) -> str | None:
    """Return the property in which two parts differ although a loader needs it to be equal."""
    if one.recipe != other.recipe and not _stack(one, other):
        if one.transform is not other.transform:
            return "transforms"
        if reader_of(one) is not None:
            return "forms of targets"
    formats = {field.name: field.format for field in one.schema if field.name in one.fields}
    if any(formats.get(field.name, field.format) != field.format for field in other.schema):
        return _FORMATS
    besides = {*BESIDES} - {field.name for field in (*one.schema, *other.schema)}
    shared = common_fields([one.schema, other.schema])
    common = {field.name for field in shared} | besides
    if outlines_among(shared):
        common.add(MASKS)
    forms = [(part.fields, part.field_recipes, part.keys) for part in (one, other)]
    if forms[0] != forms[1]:
        return "fields"
    if other_types := [name for name in one.fields if name not in common]:
        return f"types of {', '.join(other_types)}"
    return None if one.limits == other.limits else "limits"


def _sizes(images: Readable) -> str:
    """Return the sizes of the images that a dataset's transform makes, in words."""
    if isinstance(images.recipe, Refusal):
        return "different sizes"
    return ", ".join(human_size(*program.size) for program in images.recipe.programs)


def _stack(one: Readable, other: Readable) -> bool:
    """Return whether the core can put images of both into one batch, by two transforms."""
    recipes = one.recipe, other.recipe
    return (
        isinstance(recipes[0], Recipe)
        and isinstance(recipes[1], Recipe)
        and (recipes[0].stacks_with(recipes[1]))
    )


def _concatenated(parts: list[Readable], rows: Sequence[Any]) -> Indices | None:
    """Return the parts' sample numbers in a source of all parts; None if they are the same."""
    if all(one is None for one in rows):
        return None
    numbers, start = [], 0
    for part, own in zip(parts, rows, strict=True):
        numbers.append((np.arange(part.opened) if own is None else own) + start)
        start += part.opened
    return np.concatenate(numbers)


def _numbers(indices: Any, n: int) -> Indices:
    """Return a Subset's indices, into a dataset of n samples, as numbers from 0.

    Raise IndexError for one out of range: counted from the end twice, it would be another sample.
    Raise TypeError for one that would be rounded.
    """
    numbers = np.asarray(indices)
    if numbers.size and numbers.dtype.kind not in "iub":
        raise TypeError(f"a Subset's indices are whole numbers, and these are {numbers.dtype}")
    numbers = numbers.astype(np.int64)
    wrong = numbers[(numbers < -n) | (numbers >= n)]
    if len(wrong):
        raise IndexError(f"a Subset has sample {wrong[0]} of a dataset of {n}")
    return np.where(numbers < 0, numbers + n, numbers)


def holds_images(dataset: Any, depth: int = 4) -> bool:
    """Return whether a dataset is, or holds down to a depth, one that fastdata reads."""
    if is_hub(dataset):
        return bool(images_of(dataset))
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

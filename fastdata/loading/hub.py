"""Datasets of the library ``datasets`` that a loader is given, with a function of a batch.

Such a function (``with_transform``) is known if tracing proves that it converts one column of
images to RGB, applies a transform to each, and hands other columns on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastdata.batches.images import Images, NotKnown, overridden
from fastdata.decode.folders import own_method
from fastdata.decode.hub import HUB_METHODS
from fastdata.errors import UsageError
from fastdata.loading.noticing import IN_PLACE
from fastdata.storage.hugging_face import as_python, dataset_class, images_of
from fastdata.storage.source import Source
from fastdata.storage.tables import TableSource
from fastdata.text import human_count
from fastdata.transforms.compile import Recipe, compile_recipe
from fastdata.transforms.originals import pillow_changed
from fastdata.transforms.outcomes import Refusal
from fastdata.transforms.symbols import name_of
from fastdata.transforms.tracing_batches import Columns, trace_batch


def recognise_hub(dataset: Any, opened: Callable[[Any], Any]) -> Images | NotKnown:
    """Return how fastdata reads a ``datasets.Dataset``, or why it does not.

    Args:
        dataset: The dataset.
        opened: Returns the `fastdata.ImageDataset` of one without a transform.
    """
    if reason := own_method(dataset, dataset_class(), *HUB_METHODS):
        return overridden(reason)
    images = images_of(dataset)
    about = dataset.format
    if not images:
        return NotKnown("the datasets.Dataset has no column of images", "")
    if about["type"] != "custom":
        what = f"of the format {about['type']!r}" if about["type"] else "without a transform"
        return NotKnown(f"the datasets.Dataset is {what}", IN_PLACE)
    function = about["format_kwargs"].get("transform")
    if sorted(about["columns"]) != sorted(dataset.column_names) or about["output_all_columns"]:
        return NotKnown("the transform of the datasets.Dataset takes some columns", IN_PLACE)
    plain = dataset.with_format(None)
    others = [name for name in dataset.column_names if name not in images]
    found = trace_batch(function, images, others)
    if isinstance(found, str):
        why = f"the transform of the datasets.Dataset, {name_of(function)}, is not known: "
        return NotKnown(why + (found or "it is no function of a script"), IN_PLACE)
    if raw := [key for key, name in found.keys.items() if name in images and key != found.key]:
        why = f"{name_of(function)} hands on images as they are stored, as {raw[0]!r}"
        return NotKnown(why, f"Leave them out: del batch[{raw[0]!r}].")
    columns = [*found.keys.values()]
    if twice := [name for name in columns if columns.count(name) > 1]:
        return NotKnown(f"{name_of(function)} returns {twice[0]!r} under two keys", IN_PLACE)
    return _described(dataset, plain, found, opened)


def _described(
    dataset: Any, plain: Any, found: Columns, opened: Callable[[Any], Any]
) -> Images | NotKnown:
    """Return how the core reads a dataset whose transform is known."""
    try:
        whole = opened(plain.select_columns([*dict.fromkeys(found.keys.values())]))
    except UsageError as error:
        return NotKnown(error.what, error.hint or IN_PLACE)
    own: Images | NotKnown = whole.described()
    if isinstance(own, NotKnown):
        return own
    rows = as_python(whole.opened_hub.rows)
    names = {part.place[0]: part.field.name for part in rows.parts if len(part.place) == 1}
    source = TableSource(rows)
    source.upright = whole.exif_transpose

    def opener(learns: bool) -> Source:
        return TableSource(rows, whole.seek_points(learns), source)

    recipe: Recipe | Refusal = compile_recipe(list(found.steps))
    if reason := pillow_changed():
        recipe = Refusal(f"{reason}. Undo that.")
    return replace(
        own,
        what=f"datasets.Dataset of {human_count(len(dataset), 'row')}",
        dataset=dataset,
        open=opener,
        transform=dataset.format["format_kwargs"]["transform"],
        recipe=recipe,
        files=dataset._fingerprint,
        fields=tuple(names[name] for name in found.keys.values()),
        keys=tuple(found.keys),
    )

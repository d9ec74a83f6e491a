"""Datasets of the library ``datasets`` that a loader is given, with a function of a batch.

Such a function (``with_transform``) is known if it has ``__fastdata__``, which returns the
transform of the column of images. Samples are dicts of the columns that the function returns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from fastdata.decode.hub import HUB_METHODS
from fastdata.errors import UsageError
from fastdata.loading.fields.readable import Readable, Unreadable, overridden
from fastdata.loading.noticing import IN_PLACE
from fastdata.loading.seeding import seeded
from fastdata.storage.fields import LABEL
from fastdata.storage.hugging_face import dataset_class, images_of
from fastdata.storage.source import Source
from fastdata.storage.table_view import TableView
from fastdata.storage.tables import TableSource
from fastdata.text import human_count
from fastdata.transforms.compile import compile_for_images, own_hint
from fastdata.transforms.identity import name_of, offered, own_method

#: The function of each dataset, and the keys of the rows that it makes.
_KEYS: WeakKeyDictionary[Any, tuple[Any, list[str] | Unreadable]] = WeakKeyDictionary()


def recognise_hub(dataset: Any, opened: Callable[[Any], Any]) -> Readable | Unreadable:
    """Return how fastdata reads a ``datasets.Dataset``, or why it does not.

    ``opened`` returns the `fastdata.ImageDataset` of one without a transform.
    """
    if reason := own_method(dataset, dataset_class(), *HUB_METHODS):
        return overridden(reason)
    images = images_of(dataset)
    layout = dataset.format
    if not images:
        hint = "Make one of them: dataset.cast_column(NAME, datasets.Image())."
        return Unreadable("the datasets.Dataset has no column of images", hint)
    if layout["type"] != "custom":
        what = f"has the format {layout['type']!r}" if layout["type"] else "has no transform"
        return Unreadable(f"the datasets.Dataset {what}", IN_PLACE)
    function = layout["format_kwargs"].get("transform")
    if sorted(layout["columns"]) != sorted(dataset.column_names) or layout["output_all_columns"]:
        return Unreadable("the transform of the datasets.Dataset takes some columns", IN_PLACE)
    transform = offered(function)
    if transform is None:
        name = f"{function.__module__}.{name_of(function)}"
        why = f"the transform of the datasets.Dataset, {name}, is not one that fastdata knows"
        return Unreadable(why, f"{IN_PLACE} Or: {own_hint(function)}")
    keys = _keys(dataset, function)
    if isinstance(keys, Unreadable):
        return keys
    try:
        whole = opened(dataset.with_format(None).select_columns(keys))
    except UsageError as error:
        return Unreadable(error.what, error.hint or IN_PLACE)
    own: Readable | Unreadable = whole.described()
    if isinstance(own, Unreadable):
        return own
    rows = _as_python(whole.opened_table.rows)
    names = {part.place[0]: part.field.name for part in rows.fields if len(part.place) == 1}
    if dicts := [key for key in keys if key not in names]:
        return Unreadable(f"{dicts[0]!r} is a column of dicts", IN_PLACE)
    source = TableSource(rows)
    source.upright = whole.exif_transpose

    def opener(learns: bool) -> Source:
        opened_rows = TableSource(rows, source)
        if learns:
            opened_rows.learn(whole.cache)
        return opened_rows

    return replace(
        own,
        what=f"datasets.Dataset of {human_count(len(dataset), 'row')}",
        dataset=dataset,
        open=opener,
        transform=function,
        joint=True,
        recipe=compile_for_images(transform),
        files=dataset._fingerprint,
        fields=tuple(names[key] for key in keys),
        keys=tuple(keys),
        as_torch=True,
    )


def _keys(dataset: Any, function: Any) -> list[str] | Unreadable:
    """Return the keys of the rows that a dataset's function makes; or why it is not native.

    The function is called once for a dataset, with its first and its last row.
    """
    known = _KEYS.get(dataset)
    if known is None or known[0] is not function:
        _KEYS[dataset] = known = function, _keys_of(dataset, function)
    return known[1]


def _keys_of(dataset: Any, function: Any) -> list[str] | Unreadable:
    if not len(dataset):
        return list(dataset.column_names)
    name = name_of(function)
    try:
        keys = list(_made(dataset, 0))
    except Exception as error:
        why = f"{name} fails on the first row: {type(error).__name__}: {error}"
        return Unreadable(why, "Correct it. Its column of images may have another name.")
    images = images_of(dataset)
    if others := [key for key in keys if key not in dataset.column_names]:
        why = f"{name} returns {others[0]!r}, which is no column of the dataset"
        renamed = f"dataset.rename_column({images[0]!r}, {others[0]!r})"
        if images[0] in keys or len(others) > 1:
            return Unreadable(why, "Make it a column with dataset.map, before with_transform.")
        return Unreadable(why, f"Rename the column, also in the function: {renamed}.")
    if len(of_images := [key for key in keys if key in images]) != 1:
        return Unreadable(f"{name} returns {len(of_images)} columns of images", IN_PLACE)
    columns = [key for key in keys if key not in of_images]
    for row in (0, -1) if columns else ():
        with suppress(Exception):  # a bad row is an error when it is its turn
            made = _made(dataset, row)
            for key, value in dataset.with_format(None).select_columns(columns)[row].items():
                if repr(made.get(key)) != repr(value):  # of nested types, too, and of NaN
                    why = f"{name} returns other values than the column {key!r} has"
                    return Unreadable(
                        why, f"Do that in the DataLoader's collate_fn. Or: {IN_PLACE}"
                    )
    return keys


def _made(dataset: Any, row: int) -> dict[str, Any]:
    """Return a row as a dataset's function makes it."""
    with seeded(0):
        return dict(dataset[row])


def _as_python(rows: TableView) -> TableView:
    """Return rows whose columns are Python objects, as `datasets` makes them."""
    parts = (
        replace(part, field=part.field._replace(type=None), decode=part.decode or _same)
        if part.field.kind == "column" and part.field != LABEL
        else part
        for part in rows.fields
    )
    return replace(rows, fields=tuple(parts))


def _same(value: Any) -> Any:
    return value

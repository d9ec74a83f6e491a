"""Formats of columns whose values lie in the image: who may have them, and values that do not fit.

Masks lie in the image, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata.errors import UsageError
from fastdata.storage.arrow import as_numpy, is_number, list_lengths, unsliced, validity
from fastdata.storage.fields import (
    BLOBS,
    BOXES,
    FORMATS,
    IMAGE,
    POINTS,
    RELATIVE,
    Field,
    can_have,
    is_list,
    numbers_of,
)

#: True for some values of an array, shape (N,).
_Flags = npt.NDArray[np.bool_]


#: Values of each format, for messages.
_IN_WORDS = {
    **dict.fromkeys(BOXES, "a list of boxes, each a list of four numbers"),
    "xy": "a list of objects, each a list of x, y of its key points",
    "xyv": "a list of objects, each a list of x, y, visibility of its key points",
    "polygons": "a list of objects, each a list of polygons, each a list of x, y, x, y, …",
    "rle": "a list of objects, each a struct of size (two integers) and counts (integers)",
}


def in_words(meaning: str) -> str:
    """Return a description of a format's values, for messages."""
    return _IN_WORDS[meaning.removeprefix(RELATIVE)]


def with_formats(
    fields: Sequence[Field], formats: Mapping[str, str] | None, where: object
) -> tuple[Field, ...]:
    """Return fields, some of which have another format of `FORMATS`, or "" for none.

    Raises:
        UsageError: There is no such column or format, or the column cannot have it.
    """
    if formats is not None and not isinstance(formats, Mapping):
        raise UsageError(f"formats={formats!r}", 'Give a dict, such as {"boxes": "xyxy"}.')
    known = {field.name: field for field in fields}
    for name, meaning in (formats or {}).items():
        field = known.get(name)
        if field is None or field.type is None:
            listed = ", ".join(one.name for one in fields if one.type is not None)
            raise UsageError(
                f"{where}: has no column {name!r}, for which the format is {meaning!r}",
                f"Its columns are: {listed or 'none'}.",
            )
        if meaning != "" and meaning not in FORMATS:
            raise UsageError(
                f"{where}: the format of {name} is {meaning!r}",
                f"Give one of {', '.join(map(repr, FORMATS))}.",
            )
        if meaning and not can_have(field.type, meaning):
            raise UsageError(
                f"{where}: its column {name} is {field.type}, which cannot be {meaning}",
                f"A value of {meaning} is {in_words(meaning)}.",
            )
        known[name] = field._replace(format=meaning)
    return tuple(known[field.name] for field in fields)


#: Usual names of columns whose values lie in the image, and their usual formats.
_USUAL = {
    **dict.fromkeys(("bbox", "bboxes"), "xywh"),
    **dict.fromkeys(("box", "boxes", "gt_boxes", "gt_bboxes", "bounding_boxes"), "xyxy"),
    "keypoints": "xyv",
    **dict.fromkeys(("polygons", "segmentation"), "polygons"),
}


def looks_like(field: Field) -> str | None:
    """Return the format that a column seems to have, "" if it may have any; None if it has none."""
    kind, name = field.type, field.name.rpartition(".")[2].lower()
    if kind is None or field.format:
        return None
    usual = _USUAL.get(name, "")
    if usual and can_have(kind, usual):
        return usual
    while is_list(kind):
        kind = kind.value_type
    if pa.types.is_struct(kind):
        inner = (looks_like(Field(part.name, "column", part.type)) for part in kind)
        return None if all(one is None for one in inner) else ""
    return "" if usual in BOXES and kind != field.type and is_number(kind) else None


def with_masks(fields: Sequence[Field], names: Sequence[str], where: object) -> tuple[Field, ...]:
    """Return fields with some of them as masks; UsageError: one of those holds no blobs."""
    blobs = [field.name for field in fields if field.kind in BLOBS and field.name != IMAGE.name]
    for name in names:
        if name not in blobs:
            raise UsageError(
                f"{where}: has no files {name!r}, which are masks",
                f"Its fields of files are: {', '.join(blobs) or 'none'}.",
            )
    return tuple(one._replace(kind="mask") if one.name in names else one for one in fields)


def misshapen(column: pa.Array, meaning: str) -> _Flags:
    """Return which values of a column do not have the shape of a format; a null is none of them."""
    plain, step = meaning.removeprefix(RELATIVE), numbers_of(meaning)
    if plain == "rle":
        return _lists_with(column, _wrong_runs)
    if plain == "polygons":
        return _lists_with(column, lambda one: _lists_with(one, _not_of(lambda n: n % step != 0)))
    if plain in BOXES:
        return _lists_with(column, _not_of(lambda n: n != step))
    assert plain in POINTS
    flat = _not_of(lambda n: n % step != 0)

    def wrong(objects: pa.Array) -> _Flags:
        if not is_list(objects.type.value_type):
            return flat(objects)
        return _nulls(objects) | _lists_with(objects, _not_of(lambda n: n != step))

    return _lists_with(column, wrong)


def why_misshapen(name: str, meaning: str) -> str:
    """Return the problem of a value that `misshapen` has found; its text follows the sample's."""
    return f"its {name} is not {in_words(meaning)} ({meaning})"


def _nulls(column: pa.Array) -> _Flags:
    return ~validity(column)


def _lists_with(column: pa.Array, wrong: Callable[[pa.Array], _Flags]) -> _Flags:
    """Return which lists have an item that is wrong; a null has none."""
    flags = np.zeros(len(column), np.bool_)
    places = np.flatnonzero(~_nulls(column))
    lists = unsliced(column).drop_null()
    if len(lists):
        places = places.repeat(as_numpy(lists.value_lengths()))
        flags[places[wrong(lists.flatten())]] = True
    return flags


def _not_of(wrong_length: Callable[[npt.NDArray[np.int64]], _Flags]) -> Callable[..., _Flags]:
    """Return a function that finds nulls, and lists that have a wrong length or a null in them."""

    def wrong(lists: pa.Array) -> _Flags:
        lengths = list_lengths(lists)
        return _nulls(lists) | wrong_length(lengths) | _lists_with(lists, _nulls)

    return wrong


def _wrong_runs(objects: pa.Array) -> _Flags:
    """Return which structs are run lengths of another number of pixels, or none; not nulls."""
    flags = np.zeros(len(objects), np.bool_)
    places = np.flatnonzero(~_nulls(objects))
    parts = dict(
        zip([part.name for part in objects.type], objects.drop_null().flatten(), strict=True)
    )
    sizes, counts = parts["size"], parts["counts"]
    wrong = _not_of(lambda n: n != 2)(sizes) | _not_of(lambda n: n < 0)(counts)
    flags[places[wrong]] = True
    right = pa.array(~wrong)
    sides = as_numpy(sizes.filter(right).flatten()).astype(np.int64).reshape(-1, 2)
    counts = counts.filter(right)
    ends = np.cumsum(as_numpy(counts.value_lengths()), dtype=np.int64)
    runs = as_numpy(counts.flatten()).astype(np.int64)
    until = np.concatenate([[0], np.cumsum(runs)])
    pixels = np.diff(until[np.concatenate([[0], ends])])
    negative = np.concatenate([[0], np.cumsum(runs < 0)])
    below = np.diff(negative[np.concatenate([[0], ends])]) > 0
    flags[places[~wrong]] = (pixels != sides.prod(1)) | (sides < 0).any(1) | below
    return flags

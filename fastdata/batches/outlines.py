"""Outlines of objects, from columns of polygons and of run lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fastdata import _native

_Array = npt.NDArray[Any]
_TEXTS = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary


def list_lengths(lists: pa.Array) -> _Array:
    """Return the number of entries of each list, (N,), int64; 0 of null."""
    found: _Array = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    return found


def native_outlines(
    widths: npt.ArrayLike,
    heights: npt.ArrayLike,
    polygons: pa.Array | None,
    runs: pa.Array | None,
    *,
    relative: bool = False,
) -> _native.Outlines:
    """Return the outlines of N images for the core.

    Args:
        widths: Pixels, (N,).
        heights: Pixels, (N,).
        polygons: A row for each image: for each object a list of polygons, each x, y, x, y, ….
        runs: A row for each image: for each object ``size``, the mask's height and width, and
            ``counts``, COCO's run lengths as a list or as text; null where it has polygons. Rows
            have as many objects as those of ``polygons``.
        relative: Whether polygons are in parts of the image's sides.

    Raises:
        ValueError: The columns differ in their number of objects.
    """
    columns = [column for column in (polygons, runs) if column is not None]
    offsets = _offsets(columns[0])
    for column in columns[1:]:
        if not np.array_equal(offsets, _offsets(column)):
            raise ValueError("polygons and run lengths of different numbers of objects")
    return _native.Outlines(
        np.ascontiguousarray(widths, np.int32),
        np.ascontiguousarray(heights, np.int32),
        offsets,
        None if polygons is None else _polygons(polygons),
        relative,
        None if runs is None else _runs(runs),
    )


def _polygons(column: pa.Array) -> tuple[_Array, _Array, _Array]:
    objects = pc.list_flatten(column)
    polygons = pc.list_flatten(objects)
    numbers = pc.list_flatten(polygons).cast(pa.float64(), safe=False)
    # Nulls become NaN.
    return _offsets(objects), _offsets(polygons), numbers.to_numpy(zero_copy_only=False)


def _runs(column: pa.Array) -> tuple[_Array, _Array, _Array]:
    objects = pc.list_flatten(column)
    size, counts = (pc.struct_field(objects, name) for name in ("size", "counts"))
    sizes = np.full((len(objects), 2), -1, np.int32)
    sides = list_lengths(size)
    flat = _integers(pc.list_flatten(size), np.int32)
    sizes[sides == 2] = flat[np.repeat(sides == 2, sides)].reshape(-1, 2)
    sizes[objects.is_valid().to_numpy(zero_copy_only=False) & (sides != 2)] = 0
    if not any(is_text(counts.type) for is_text in _TEXTS):
        return sizes, _offsets(counts), _integers(pc.list_flatten(counts), np.uint32)
    texts = [text or b"" for text in counts.cast(pa.large_binary()).to_pylist()]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return sizes, offsets, np.frombuffer(b"".join(texts), np.uint8)


def _offsets(lists: pa.Array) -> _Array:
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(list_lengths(lists), out=offsets[1:])
    return offsets


def _integers(values: pa.Array, dtype: type[np.integer[Any]]) -> _Array:
    """Return integers; the type's greatest, which no image has, for null and what is too large."""
    most = np.iinfo(dtype).max
    found = pc.fill_null(values.cast(pa.int64(), safe=False), most).to_numpy()
    fitting: _Array = np.where((found >= 0) & (found <= most), found, most).astype(dtype)
    return fitting

"""Masks of objects, painted from columns of their outlines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fastdata import _native
from fastdata.storage.arrow import as_arrow, list_lengths, list_offsets
from fastdata.storage.fields import MASKS, RELATIVE, Field
from fastdata.text import human_size
from fastdata.transforms.tree import mask_fills

if TYPE_CHECKING:
    import torch

    from fastdata.storage.source import Column
    from fastdata.transforms.joint import Joint
    from fastdata.transforms.recipe import Program

_Array = npt.NDArray[Any]
#: Most bytes of an image's masks.
_MOST_BYTES = 1 << 32
#: Remedy for outlines that are no masks.
HINT = "Correct its annotations."
_TEXTS = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary


class Painting(NamedTuple):
    """Masks of a batch that the core paints; problems by the image's place.

    ``masks`` are uint8, (M, height, width): views of the flat ``values``.
    """

    job: _native.MaskJob
    values: torch.Tensor
    masks: list[torch.Tensor]
    problems: dict[int, str]

    def failures(self) -> dict[int, str]:
        """Return the problems, also of the finished work, by place; clear their masks."""
        for place, _, detail, number in self.job.failures():
            whose = f"object {number - 1} has " if number else "its masks: "
            self.problems.setdefault(place, whose + detail)
        for place in self.problems:
            self.masks[place].zero_()
        return self.problems


class OutlinePainter:
    """Columns of outlines of a dataset, by their format without `RELATIVE`.

    ``room`` returns memory for so many bytes, flat.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        joint: Joint,
        room: Callable[[int], tuple[torch.Tensor, _Array]],
    ) -> None:
        self._fields, self._joint, self._room = fields, joint, room
        self._relative = any(one.format.startswith(RELATIVE) for one in fields.values())

    def paint(
        self,
        columns: Mapping[str, Column],
        sizes: _Array,
        program: Program,
        drawn: Any,
        skip: Sequence[int] = (),
    ) -> Painting:
        """Return the masks of N images, and the work that paints them, which is not begun.

        ``sizes`` are widths and heights, (N, 2), ``drawn`` their geometry: a `Draw` or a
        `SlotDraw`. ``skip`` are places of images whose masks are not wanted. Raise UsageError for
        masks of bytes that cannot have the program's fill.
        """
        moved, fills = drawn.moved, mask_fills(program.pixels, program.mask_fill, "|u1")
        problems: dict[int, str] = {}
        lists, counts = self._lists(columns, problems)
        begins = np.cumsum([0, *counts])
        lengths, numbers = counts, np.arange(begins[-1])
        if steps := self._joint.targets[MASKS].sanitised:
            numbers, offsets = moved.kept(steps)
            begins, lengths = moved.first, np.diff(offsets)
        numbers = numbers - np.repeat(begins[:-1], lengths)
        areas = np.prod(moved.sizes, axis=1, dtype=np.float64)
        for place in np.flatnonzero(lengths * areas > _MOST_BYTES).tolist():
            size = human_size(*moved.sizes[place].tolist())
            words = f"{lengths[place]:,} masks of {size} are more than 4 GiB"
            problems.setdefault(place, words)
        wanted = np.ones(len(counts), np.bool_)
        wanted[[*problems, *skip]] = False
        numbers, lengths = numbers[np.repeat(wanted, lengths)], np.where(wanted, lengths, 0)
        tensor, array = self._room(int((lengths * areas).sum()))
        job = _native.MaskJob(
            native_outlines(sizes[:, 0], sizes[:, 1], lists, relative=self._relative),
            cuts=drawn.cuts[0],
            sizes=np.ascontiguousarray(moved.sizes),
            out=array,
            kept=(numbers.astype(np.int32), np.cumsum([0, *lengths], dtype=np.int64)),
            targets=drawn.targets,
            mask_fills=fills,
            fill=fills[program.mask_fill][0],
        )
        masks, first = [], 0
        for count, (width, height) in zip(lengths.tolist(), moved.sizes.tolist(), strict=True):
            end = first + count * width * height
            masks.append(tensor[first:end].view(count, height, width))
            first = end
        return Painting(job, tensor, masks, problems)

    def _lists(
        self, columns: Mapping[str, Column], problems: dict[int, str]
    ) -> tuple[dict[str, pa.Array], _Array]:
        """Return the outlines by their format, and the number of objects of each image.

        An image whose columns differ in that has none, and a problem.
        """
        lists = {meaning: as_arrow(columns[one.name]) for meaning, one in self._fields.items()}
        named = {one.name: list_lengths(lists[meaning]) for meaning, one in self._fields.items()}
        if self._joint.targets[MASKS].sanitised:
            boxes = self._joint.names("boxes")[0]
            named[boxes] = list_lengths(columns[boxes])
        (first, counts), *others = named.items()
        for other, theirs in others:
            for place in np.flatnonzero(theirs != counts).tolist():
                words = f"it has {counts[place]} {first}, and {theirs[place]} {other}"
                problems.setdefault(place, words)
        if problems:
            bad = np.isin(np.arange(len(counts)), list(problems))
            rows = pa.array(np.arange(len(counts)), mask=bad)
            lists = {meaning: one.take(rows) for meaning, one in lists.items()}
            counts = np.where(bad, 0, counts)
        return lists, counts


def native_outlines(
    widths: npt.ArrayLike,
    heights: npt.ArrayLike,
    lists: Mapping[str, pa.Array],
    *,
    relative: bool = False,
) -> _native.OutlineArrays:
    """Return the outlines of N images for the core; widths and heights are in pixels, (N,).

    ``lists`` have a row for each image. ``polygons``: for each object a list of polygons, each x,
    y, x, y, …. ``rle``: for each object ``size``, the mask's height and width, and ``counts``,
    COCO's run lengths as a list or as text; null where it has polygons. Rows of both have as many
    objects. ``relative``: polygons are in parts of the image's sides.
    """
    polygons, runs = lists.get("polygons"), lists.get("rle")
    return _native.OutlineArrays(
        np.ascontiguousarray(widths, np.int32),
        np.ascontiguousarray(heights, np.int32),
        list_offsets(next(iter(lists.values()))),
        None if polygons is None else _polygons(polygons),
        relative,
        None if runs is None else _runs(runs),
    )


def _polygons(column: pa.Array) -> tuple[_Array, _Array, _Array]:
    objects = pc.list_flatten(column)
    polygons = pc.list_flatten(objects)
    numbers = pc.list_flatten(polygons).cast(pa.float64(), safe=False)
    # Nulls become NaN.
    return list_offsets(objects), list_offsets(polygons), numbers.to_numpy(zero_copy_only=False)


def _runs(column: pa.Array) -> tuple[_Array, _Array, _Array]:
    objects = pc.list_flatten(column)
    size, counts = (pc.struct_field(objects, name) for name in ("size", "counts"))
    sizes = np.full((len(objects), 2), -1, np.int32)
    sides = list_lengths(size)
    flat = _integers(pc.list_flatten(size), np.int32)
    sizes[sides == 2] = flat[np.repeat(sides == 2, sides)].reshape(-1, 2)
    sizes[objects.is_valid().to_numpy(zero_copy_only=False) & (sides != 2)] = 0
    if not any(is_text(counts.type) for is_text in _TEXTS):
        return sizes, list_offsets(counts), _integers(pc.list_flatten(counts), np.uint32)
    texts = [text or b"" for text in counts.cast(pa.large_binary()).to_pylist()]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return sizes, offsets, np.frombuffer(b"".join(texts), np.uint8)


def _integers(values: pa.Array, dtype: type[np.integer[Any]]) -> _Array:
    """Return integers; the type's greatest, which no image has, for null and what is too large."""
    most = np.iinfo(dtype).max
    numbers = pc.fill_null(values.cast(pa.int64(), safe=False), most).to_numpy()
    fitting: _Array = np.where((numbers >= 0) & (numbers <= most), numbers, most).astype(dtype)
    return fitting

"""Targets of samples: boxes and key points that follow their image, and what belongs to them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata.errors import UsageError, warn
from fastdata.loading.fields.names import VISIBILITY
from fastdata.storage.arrow import list_lengths
from fastdata.storage.columns import is_ragged, lists_of, values_of
from fastdata.storage.fields import (
    MASKS,
    RELATIVE,
    Field,
    is_list,
    numbers_of,
    outlines_among,
)
from fastdata.storage.packed import IndexedSource
from fastdata.storage.shapes import looks_like
from fastdata.transforms.joint import Joint, Moved
from fastdata.transforms.outcomes import Refusal, tensor_image, without_fixed_size

if TYPE_CHECKING:
    import torch

    from fastdata.loading.fields.readable import Readable
    from fastdata.storage.source import Column, Source


def require_still(
    transform: Any, names: Sequence[str], fields: Sequence[Field], where: object, tell: bool = False
) -> None:
    """Raise UsageError if a transform of images alone moves an image with boxes, points or masks.

    With ``tell``, warn of a transform that may move pixels.
    """
    placed = [one for one in fields if one.name in names and (one.format or one.kind == "mask")]
    if transform is None or not placed or "image" not in names:
        return
    from fastdata.transforms.compile import movements  # imports all libraries' tables

    listed = " and ".join(one.name for one in placed)
    hint = (
        "Give transforms= of torchvision.transforms.v2, which takes the image with its targets: "
        "ImageDataset(path, transforms=…, fields=…). Or leave the field out of fields="
    )
    plain = {one.name: "" for one in placed if one.format}
    hint += f"; for values as they are stored, formats={plain}." if plain else "."
    for name, moves in movements(transform):
        if moves:
            what = f"{where}: {name} of transform= moves the image alone, not its {listed}"
            raise UsageError(what, hint)
        if moves is None and tell:
            tell = False
            what = f"{where}: {name} of transform= takes the image alone. If it moves pixels, "
            warn(f"{what}{listed} do not follow.\n{hint}")


def warn_of_targets(where: object, names: Sequence[str], fields: Sequence[Field]) -> None:
    """Warn of boxes, points and masks that a joint transform does not get: no field was named."""
    outlines = outlines_among(fields)
    unnamed = [one.name for one in fields if one.format or one.kind == "mask"]
    unnamed = [name for name in unnamed if name not in {one.name for one in outlines.values()}]
    if unnamed := unnamed + [MASKS] * bool(outlines):
        warn(
            f"{where}: transforms= gets {' and '.join(names)} alone, and the dataset has "
            f"{', '.join(unnamed)}. Name what follows the image: fields={(*names, *unnamed)}"
        )


def warn_of_fields(
    where: object,
    source: Source,
    names: Sequence[str],
    formats: Mapping[str, str],
    transforms: Mapping[str, Any],
) -> None:
    """Warn of boxes, points and masks that do not follow their image, or fit another one.

    ``formats`` were given by name, and ``transforms`` by argument.
    """
    unknown = [one for one in source.fields if one.name not in formats]
    for argument, transform in transforms.items():
        warn_of_boxes(argument, transform, names, unknown)
    if not isinstance(source, IndexedSource):
        return
    located = [one.name for one in source.fields if one.format]
    located += [MASKS] * bool(outlines_among(source.fields))
    shown = ", ".join(name for name in located if name in names)
    fits = source.manifest.source.get("exif_transpose", source.upright)
    if shown and fits != source.upright:
        kind = "turned images" if fits else "stored images"
        warn(f"{where}: its {shown} are for {kind}. Give exif_transpose={fits}.")


def warn_of_boxes(
    argument: str, transform: Any, names: Sequence[str], fields: Sequence[Field]
) -> None:
    """Warn of fields that look like boxes or key points, and do not follow the image.

    ``argument`` has the transform; ``fields`` are those that ``formats=`` does not name.
    """
    if transform is None or "image" not in names:
        return
    from fastdata.transforms.compile import movements  # as above

    likenesses = ((one.name, looks_like(one)) for one in fields if one.name in names)
    alike = {name: usual for name, usual in likenesses if usual is not None}
    # A function of the user's may make boxes of the values, for steps after it.
    steps = takewhile(lambda step: step[1] is not None, movements(transform) if alike else ())
    if not any(moves for _, moves in steps):
        return
    formats = {name: usual for name, usual in alike.items() if usual}
    hint = f"Say what they are: formats={formats}, or another format of boxes or points."
    if not formats:
        hint = "Only a column that is a list of boxes, each a list of four numbers, can follow it."
    hint += f" For values as they are stored: formats={dict.fromkeys(alike, '')}."
    if argument == "transform":
        hint += " With a format, they need transforms= of torchvision.transforms.v2."
    warn(f"{argument}= moves the image, and {' and '.join(alike)} as plain values stay.\n{hint}")


def reader_of(images: Readable) -> TargetReader | None:
    """Return the reader of targets that follow the image; None without a joint transform."""
    recipe = without_fixed_size(images.recipe)
    if isinstance(recipe, Refusal) or recipe.joint is None:
        return None
    if recipe.tail and recipe.joint.names("geometry"):
        last = recipe.unknown[0]
        raise UsageError(
            f'fields has "geometry", which is not known after {last.name}: {last.reason}', last.hint
        )
    return TargetReader(images.schema, recipe.joint)


class TargetReader:
    """Reader of targets, from columns to what follows an image; ``joint`` is the sample's form."""

    def __init__(self, fields: Sequence[Field], joint: Joint) -> None:
        self._fields = {field.name: field for field in fields}
        self.outlines = outlines_among(fields)
        self.joint = joint
        self._boxes, self._points = joint.names("boxes"), joint.names("points")
        self._sanitised = [
            name
            for name in joint.names("values")
            if joint.targets[name].sanitised and _has_lists(self._fields.get(name))
        ]

    @property
    def moved_columns(self) -> list[str]:
        """Names of the columns that `native` and `sound` need."""
        return [*self._boxes, *self._points, *self._sanitised]

    @property
    def outline_columns(self) -> list[str]:
        """Names of the columns that masks need; the first has outlines."""
        if not self.joint.names("outlines"):
            return []
        return [*(field.name for field in self.outlines.values()), *self._boxes]

    def column(self, name: str) -> str:
        """Return the column that a target is made of."""
        of_points = self.joint.targets[name].kind == "visibility"
        return name.removesuffix(VISIBILITY) if of_points else name

    def field(self, name: str) -> Field:
        """Return the field of that column."""
        return self._fields[self.column(name)]

    def sound(self, columns: dict[str, Column]) -> tuple[dict[str, Column], dict[int, str]]:
        """Return `moved_columns` with nulls for unusable targets, and the reasons by row."""
        faults = self._faults(columns)
        if faults:
            columns = {name: _without(column, faults) for name, column in columns.items()}
        return columns, faults

    def _faults(self, columns: Mapping[str, Column]) -> dict[int, str]:
        faults: dict[int, str] = {}
        for name in (*self._boxes, *self._points):
            column = columns[name]
            if isinstance(column, pa.Array) and _has_ragged_items(column):
                form = numbers_of(self._fields[name].format), name in self._points
                faults |= {slot: f"{name}: {why}" for slot, why in _irregular(column, *form)}
        for name in self._boxes:
            boxes = list_lengths(columns[name])
            for other in self._sanitised:
                entries = list_lengths(columns[other])
                for slot in np.flatnonzero(boxes != entries).tolist():
                    why = f"{other} has {entries[slot]} entries for {boxes[slot]} boxes of {name}"
                    faults.setdefault(slot, why)
        return faults

    def native(
        self, columns: Mapping[str, Column], widths: npt.ArrayLike, heights: npt.ArrayLike
    ) -> _native.Targets:
        """Return the core's targets of a batch; sizes of the images are in pixels, (N,)."""
        sizes = np.stack([widths, heights], 1).astype(np.int32)
        boxes, points = np.empty((0, 4), np.float32), np.empty((0, 2), np.float32)
        box_offsets = point_offsets = np.zeros(len(sizes) + 1, np.int64)
        for name in self._boxes:
            values, box_offsets = lists_of(columns[name])
            sides = sizes.repeat(np.diff(box_offsets), 0)
            boxes = corners(values, self._fields[name].format, sides)
        for name in self._points:
            values, offsets = lists_of(columns[name])
            places = self._places(name, values, sizes.repeat(np.diff(offsets), 0))
            points = places.reshape(-1, 2)
            point_offsets = offsets * (places.shape[1] if len(places) else 0)
        return _native.Targets(
            sizes[:, 0].copy(),
            sizes[:, 1].copy(),
            boxes,
            box_offsets,
            points,
            point_offsets,
        )

    def _triples(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return key points, (M, K, 2 or 3): x, y and, if the format has it, visibility."""
        wide = 3 if self._fields[name].format.endswith("xyv") else 2
        several = math.prod(values.shape[1:]) // wide
        return np.ascontiguousarray(values, np.float32).reshape(len(values), several, wide)

    def _places(
        self, name: str, values: npt.NDArray[Any], sides: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Return key points in pixels, (M, K, 2)."""
        places = self._triples(name, values)[..., :2]
        if self._fields[name].format.startswith(RELATIVE):
            places = places * sides[:, None].astype(np.float32)
        return np.ascontiguousarray(places)

    def lists(
        self, name: str, column: Column, moved: Moved
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]] | None:
        """Return a target's values of a batch and their offsets; None if it has no such lists."""
        target = self.joint.targets[name]
        if target.kind == "boxes":
            sides = moved.sizes.repeat(np.diff(moved.offsets), 0)
            return in_format(moved.boxes, target.format, sides), moved.offsets
        known = target.kind in ("points", "visibility") or target.sanitised
        if not known and not _is_list(column):
            return None
        values, offsets = lists_of(column)
        if target.kind == "points":
            several = self._triples(name, values).shape[1]
            return moved.points.reshape(len(values), several, 2), offsets
        if target.kind == "visibility":
            values = self._triples(self.column(name), values)[..., 2]
        if target.sanitised:
            kept, offsets = moved.kept(target.sanitised)
            values = values[kept]
        whole = values.dtype.kind in "iu" or target.kind == "visibility"
        return (values.astype(np.int64) if whole else values), offsets

    def samples(self, name: str, column: Column, moved: Moved) -> list[Any]:
        """Return a target of each sample of a batch, as a joint transform has it.

        Lists of numbers are tensors, int64 if they are whole. Boxes and key points are of
        torchvision's classes, unless the transform makes plain tensors of them.
        """
        import torch  # here, as listing and converting datasets needs none

        lists = self.lists(name, column, moved)
        if lists is None:
            numbers = isinstance(column, np.ndarray) and column.ndim == 1
            return column.tolist() if numbers else values_of(column, self.field(name))
        values, offsets = lists
        several = torch.split(torch.from_numpy(values), np.diff(offsets).tolist())
        rows = zip(several, moved.sizes.tolist(), strict=True)
        return [self.classed(name, one, (height, width)) for one, (width, height) in rows]

    def sample(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a sample as a joint transform does, of its image and targets by name."""
        image = tensor_image() if self.joint.as_image else None
        if image is not None:
            values = {**values, "image": image(values["image"])}
        return self.joint.sample(values)

    def classed(
        self, name: str, tensor: torch.Tensor, size: tuple[int, int] = (0, 0)
    ) -> torch.Tensor:
        """Return a sample's tensor as the class that torchvision has for it.

        ``size`` is (height, width), for boxes and points.
        """
        target = self.joint.targets[name]
        tensor = target.converted(tensor)
        classes: Any = sys.modules.get("torchvision.tv_tensors")
        if classes is None or self.joint.pure or target.pure:
            return tensor
        if target.kind == "boxes":
            form = {"format": target.format.upper(), "canvas_size": size}
            return classes.BoundingBoxes(tensor, **form)  # type: ignore[no-any-return]
        if target.kind == "points":
            return classes.KeyPoints(tensor, canvas_size=size)  # type: ignore[no-any-return]
        if target.kind in ("mask", "outlines"):
            return classes.Mask(tensor)  # type: ignore[no-any-return]
        return tensor


def _is_list(column: Column) -> bool:
    return column.ndim > 1 if isinstance(column, np.ndarray) else is_ragged(column.type)


def _has_lists(field: Field | None) -> bool:
    kind = None if field is None else field.type
    return kind is not None and (is_ragged(kind) or pa.types.is_fixed_size_list(kind))


def _has_ragged_items(column: pa.Array) -> bool:
    return any(
        check(column.type.value_type) for check in (pa.types.is_list, pa.types.is_large_list)
    )


def _without(column: Column, rows: Iterable[int]) -> Column:
    """Return a column of lists with nulls in some rows; another column as it is."""
    if isinstance(column, np.ndarray):
        if column.ndim == 1:
            return column
        column = pa.array(column.tolist())
    gone = set(rows)
    kept = [None if at in gone else at for at in range(len(column))]
    return column.take(pa.array(kept, pa.int64()))


def _irregular(column: pa.Array, wide: int, several: bool) -> Iterator[tuple[int, str]]:
    """Yield the rows whose lists have not so many numbers; or ``several`` times, as most have."""
    lists, rows = column.flatten(), np.arange(len(column)).repeat(list_lengths(column))
    if several and is_list(lists.type.value_type):  # of points, each a list
        for at, why in _irregular(lists, wide, False):
            yield int(rows[at]), why
        wide = 1
    lengths = list_lengths(lists)
    if several:
        usual = np.bincount(lengths[lengths % wide == 0])
        usual[:1] = 0  # of objects without any
        wide = int(usual.argmax()) if usual.any() else wide * bool(lengths.any())
    for at in np.flatnonzero(lengths != wide)[::-1].tolist():  # a row's first one last
        yield int(rows[at]), f"a list has {lengths[at]} numbers, not {wide}"


@np.errstate(invalid="ignore", over="ignore")  # infinite boxes are boxes, too
def corners(
    values: npt.NDArray[Any], meaning: str, sides: npt.NDArray[np.int32]
) -> npt.NDArray[np.float32]:
    """Return boxes, (M, 4), as left, upper, right, lower, in pixels, as torchvision computes them.

    ``meaning`` is one of `FORMATS`; ``sides`` are each box's image's width and height, (M, 2).
    """
    boxes = np.array(values, np.float32).reshape(-1, 4)
    if meaning.startswith(RELATIVE):
        boxes *= np.tile(sides, 2)
    meaning = meaning.removeprefix(RELATIVE)
    if meaning == "cxcywh":
        boxes[:, :2] -= boxes[:, 2:] / np.float32(2)
    if meaning != "xyxy":
        boxes[:, 2:] += boxes[:, :2]
    return boxes


@np.errstate(invalid="ignore", over="ignore")
def in_format(
    boxes: npt.NDArray[np.float32], meaning: str, sides: npt.NDArray[np.int32]
) -> npt.NDArray[np.float32]:
    """Return boxes (left, upper, right, lower; pixels; (M, 4)) in another of `BOXES`.

    After `RELATIVE`, they are shares of the sides, (M, 2).
    """
    kind = meaning.removeprefix(RELATIVE)
    if kind != "xyxy":
        first, size = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
        if kind == "cxcywh":
            first = (first * np.float32(2) + size) / np.float32(2)
        boxes = np.concatenate([first, size], 1)
    if kind == meaning:
        return boxes
    shares: npt.NDArray[np.float32] = np.divide(boxes, np.tile(sides, 2), dtype=np.float32)
    return shares

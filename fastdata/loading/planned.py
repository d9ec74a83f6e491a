"""Batch samplers whose batches are planned: by aspect ratio, or by a budget of lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.decode.rows import Sizes, sizes_of
from fastdata.errors import UsageError
from fastdata.loading.fields.readable import Readable, Unreadable
from fastdata.loading.images import recognise_any
from fastdata.loading.samplers import PlannedBatches
from fastdata.plan.buckets import Buckets, nearest
from fastdata.plan.packing import Packed
from fastdata.plan.sharding import whole
from fastdata.storage.arrow import list_lengths
from fastdata.storage.columns import is_ragged, values_of
from fastdata.storage.source import Source

#: Rows whose columns are read at once.
_AT_ONCE = 1 << 16


class AspectRatioBatches(PlannedBatches):
    """Batches of one aspect ratio and size, for a loader's ``batch_sampler``.

    Each row goes to the size with the nearest aspect ratio: whose logarithm of width / height
    differs least from the image's. Of several sizes with this ratio it is the largest that does not
    enlarge the image, or the smallest. All ranks' batches of a step have one size. Each row comes
    once an epoch: the last batches of a size take what is left of it, shared evenly among the
    ranks; rows are repeated only where that does not come out even (less than one a rank).

    The size reaches the transform if that is a `fastdata.transforms.BySize`. Sizes of images are
    those of the index, turned as EXIF says where the dataset turns images; where an index has none,
    the files' headers are read once, here.

    Args:
        dataset: A dataset that fastdata reads; any other, with ``image_sizes``.
        batch_size: Rows of a batch, on one rank; or give ``pixels``.
        sizes: (height, width) of the batches; or an int, the side of a square: all sizes of at most
            that area whose sides are multiples of ``multiple``, from 1:2 to 2:1.
        pixels: Most pixels of a batch, instead of ``batch_size``: a smaller size has more
            rows.
        ratios: In the place of ``sizes``: width / height of groups whose images keep their sizes,
            as detection has them.
        multiple: See ``sizes``.
        image_sizes: (height, width) of each row, (N, 2), for a dataset that fastdata cannot read.
        shuffle: Whether rows, and steps of all sizes, are in random order.
        drop_last: Whether to drop rows of a size that do not fill a batch on every rank.
        seed: Seed of the order; a `fastdata.DataLoader`'s own ``seed`` goes before it.
        shard: As of `fastdata.DataLoader`, whose own goes before it.

    Raises:
        UsageError: Arguments contradict each other, or sizes of images are not known.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        sizes: Sequence[tuple[int, int]] | int = (),
        *,
        pixels: int | None = None,
        ratios: Sequence[float] = (),
        multiple: int = 64,
        image_sizes: npt.ArrayLike | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        shard: str | tuple[int, int] | None = None,
    ) -> None:
        if isinstance(sizes, (int, np.integer)):
            sizes = sizes_around(int(sizes), multiple)
        _require(
            (batch_size is None) != (pixels is None),
            "AspectRatioBatches takes either batch_size= or pixels=",
            "Give batch_size=32, or pixels=32 * 512 * 512 for as many pixels in each batch.",
        )
        _require(
            bool(len(sizes)) != bool(len(ratios)),
            "AspectRatioBatches takes either sizes= or ratios=",
            "Give sizes=[(512, 512), (448, 576), …] of (height, width), or sizes=512.",
        )
        _require(
            pixels is None or not len(ratios),
            "pixels= is for batches that have a size, and ratios= leaves images as they are",
            "Give batch_size=.",
        )
        for name, value in (("batch_size", batch_size), ("pixels", pixels)):
            at_least = value is None or (type(value) is int and value > 0)
            _require(at_least, f"{name}={value!r}", "Give a whole number from 1.")
        chosen = _in_order(sizes)
        bounds = sorted({width / height for width, height in chosen} or {*map(float, ratios)})
        _require(
            bounds[0] > 0 and bounds[-1] < float("inf"),
            f"ratios={ratios!r}",
            "Give width / height of each group, above 0.",
        )
        n = len(dataset)
        bucket = np.empty(n, np.uint16)
        for first, measured in _image_sizes(dataset, chosen, image_sizes):
            part = slice(first, first + len(measured[0]))
            bucket[part] = nearest(*measured, bounds)
            if chosen:
                bucket[part] = _of_ratio(bucket[part], *measured, chosen)
        if chosen:
            areas = [width * height for width, height in chosen]
            batch_sizes = [batch_size or (pixels or 0) // area for area in areas]
            _require(
                min(batch_sizes) > 0,
                f"pixels={pixels} is less than an image of {max(areas)}",
                "Give more, or smaller sizes.",
            )
            classes: list[str] = []
        else:
            assert batch_size is not None
            batch_sizes = [batch_size] * len(bounds)
            classes = [f"ratio {ratio:.3g}" for ratio in bounds]
        options = {"shuffle": shuffle, "drop_last": drop_last}
        super().__init__(Buckets(bucket, batch_sizes, chosen, classes, **options), seed, shard)


class TokenBudgetBatches(PlannedBatches):
    """Batches whose rows' lengths add up to a budget at most, for a loader's ``batch_sampler``.

    Rows in random order are cut into windows; those of a window are packed by best fit, as equally
    as they can be, so that batches of a step cost all ranks about the same. Each row comes once an
    epoch. If fewer batches than ranks are left in the end, those of most rows are divided.

    Args:
        dataset: A dataset that fastdata reads; any other, with ``length`` as an array.
        length: Of each row, a number from 1, rounded up: a field of numbers, or of lists, whose
            lengths count; an array, (N,); or a function of columns, which returns the lengths of
            some rows. Its argument is called for thousands of rows at once:
            ``columns["caption"]`` are their values, ``columns["width"]`` and ``columns["height"]``
            the sizes of their images.
        budget: The most that lengths of a batch add up to.
        window: Rows of a window. Larger ones fill batches better, and take longer to begin.
        shuffle: As of `AspectRatioBatches`.
        drop_last: Whether to drop the last batches if they are fewer than the ranks.
        seed: As of `AspectRatioBatches`.
        shard: As of `AspectRatioBatches`.

    Raises:
        UsageError: A length is not from 1 to the budget, or there is no such field.
    """

    def __init__(
        self,
        dataset: Any,
        length: str | npt.ArrayLike | Callable[[PlannedColumns], Any],
        budget: int,
        window: int = 16384,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        shard: str | tuple[int, int] | None = None,
    ) -> None:
        budget = whole("budget", budget, 1, (1 << 31) - 1)
        window = whole("window", window, 1, (1 << 31) - 1)
        lengths = np.empty(len(dataset), np.int32)
        for first, measured in _lengths(dataset, length):
            wrong = np.flatnonzero(~((measured >= 1) & (measured <= budget)))  # NaN, too
            if len(wrong):
                raise UsageError(
                    f"sample {first + wrong[0]} has a length of {measured[wrong[0]]}, which is not "
                    f"from 1 to the budget of {budget}",
                    "Raise the budget, or leave it out by a Subset. Where lists are empty: "
                    "length=lambda columns: [max(1, len(one)) for one in columns['boxes']].",
                )
            lengths[first : first + len(measured)] = measured
        options = {"shuffle": shuffle, "drop_last": drop_last}
        super().__init__(Packed(lengths, budget, window, **options), seed, shard)


def sizes_around(side: int, multiple: int = 64, most: float = 2.0) -> list[tuple[int, int]]:
    """Return the sizes of at most a square's area whose sides are multiples of a number.

    For each width, the greatest height that fits; ratios are from 1 / ``most`` to ``most``. Raise
    UsageError if there is none.
    """
    multiple = whole("multiple", multiple, 1)
    sizes = []
    for width in range(multiple, side * 2, multiple):
        height = side * side // width // multiple * multiple
        if height and 1 / most <= width / height <= most:
            sizes.append((width, height))
    _require(bool(sizes), f"sizes={side} has no sides of {multiple} pixels", "Give a larger one.")
    return sizes


def _require(holds: bool, what: str, hint: str) -> None:
    if not holds:
        raise UsageError(what, hint)


def _in_order(sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (width, height) of sizes, given height first, by their ratio, then area.

    Raise UsageError for one that is no size.
    """
    for size in sizes:
        pair = isinstance(size, (tuple, list)) and len(size) == 2
        _require(
            pair and all(type(side) is int and 0 < side < 1 << 15 for side in size),
            f"sizes has {size!r}",
            "Give (height, width) in pixels.",
        )
    pairs = {(width, height) for height, width in sizes}
    return sorted(pairs, key=lambda size: (size[0] / size[1], size[0]))


def _of_ratio(
    ratio: npt.NDArray[np.uint16],
    widths: npt.NDArray[np.int32],
    heights: npt.NDArray[np.int32],
    sizes: Sequence[tuple[int, int]],
) -> npt.NDArray[np.uint16]:
    """Return the size of each image, from its ratio: the largest that does not enlarge it."""
    ratios = [width / height for width, height in sizes]
    first = [ratios.index(one) for one in sorted(set(ratios))]
    chosen = np.array(first, np.uint16)[ratio]
    for at, (width, height) in enumerate(sizes):
        if at not in first:
            same = chosen == at - 1
            chosen[same & (widths >= width) & (heights >= height)] = at
    return chosen


def _image_sizes(
    dataset: Any, sizes: Sequence[tuple[int, int]], image_sizes: npt.ArrayLike | None
) -> Iterator[tuple[int, Sizes]]:
    """Yield (first row, (widths, heights)) of images, in pieces; raise UsageError if unknown."""
    n = len(dataset)
    if image_sizes is not None:
        array = np.asarray(image_sizes)
        _require(
            array.shape == (n, 2)
            and array.dtype.kind in "iu"
            and bool(((array > 0) & (array < 1 << 31)).all()),
            f"image_sizes has the shape {array.shape} and the type {array.dtype}",
            f"Give (height, width) of each of the {n} samples: whole numbers from 1 to 2**31 - 1, "
            f"({n}, 2).",
        )
        for first in range(0, n, _AT_ONCE):
            part = array[first : first + _AT_ONCE]
            yield first, (part[:, 1].astype(np.int32), part[:, 0].astype(np.int32))
        return
    hint = "Or give image_sizes=, (height, width) of each sample."
    for first, columns in _pieces(dataset, hint, sizes[0] if sizes else None):
        yield first, columns.sizes


def _pieces(
    dataset: Any, hint: str, size: tuple[int, int] | None = None
) -> Iterator[tuple[int, PlannedColumns]]:
    """Yield (first row, columns) of pieces of a dataset."""
    images = recognise_any(dataset, size)
    if isinstance(images, Unreadable):
        raise UsageError(f"fastdata cannot read the dataset: {images.reason}", hint)
    source = images.open(False)
    number = images.numbering(source)
    for first in range(0, number.n, _AT_ONCE):
        rows = np.arange(first, min(first + _AT_ONCE, number.n))
        yield first, PlannedColumns(images, source, number(rows))


class PlannedColumns(Mapping[str, Any]):
    """Columns of some rows, read when they are asked for.

    Those of images are ``width`` and ``height``, int32, in pixels.
    """

    def __init__(self, images: Readable, source: Source, rows: npt.NDArray[np.int64]) -> None:
        self._images, self._source, self._rows = images, source, rows

    def __getitem__(self, name: str) -> Any:
        fields = {field.name: field for field in self._source.fields}
        if name in ("width", "height") and name not in fields:
            return self.sizes[name == "height"]
        field = self._source.field(name, ("column",))
        return values_of(self._source.column(name, self._rows), field)

    def __iter__(self) -> Iterator[str]:
        names = [field.name for field in self._source.fields if field.kind == "column"]
        return iter(dict.fromkeys([*names, "width", "height"]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def lengths(self, name: str) -> npt.NDArray[np.int64]:
        """Return the numbers of a field, or the lengths of its lists."""
        field = self._source.field(name, ("column",))
        column = self._source.column(name, self._rows)
        if not isinstance(column, np.ndarray) and is_ragged(column.type):
            return np.asarray(list_lengths(column))
        objects = values_of(column, field)
        values = np.asarray([np.nan if one is None else one for one in objects])
        if values.ndim == 2:
            return np.full(len(values), values.shape[1])
        _require(
            values.dtype.kind in "iuf",
            f"length={name!r} is a field of {field.type or values.dtype}, which has no lengths",
            "Name a field of numbers or lists. In Python, length= may be a function of columns.",
        )
        return values

    @property
    def sizes(self) -> Sizes:
        """Widths and heights of the images, int32; 1 where an image cannot be read.

        Raise UsageError if neither the index nor images on this machine have them.
        """
        widths, heights = sizes_of(self._source, self._rows, self._images.limits)
        _require(
            bool(widths.all()) or self._source.capabilities.local,
            f"{self._source.location}: the sizes of its images are not known, and they are not "
            "on this machine",
            "Pack the dataset with fastdata convert, or give image_sizes=.",
        )
        return np.maximum(widths, 1), np.maximum(heights, 1)


def _lengths(dataset: Any, length: Any) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield (first row, lengths) of pieces of a dataset; raise UsageError if there are none."""
    n = len(dataset)
    pieces: Iterable[tuple[int, Any]]
    if isinstance(length, str) or callable(length):
        read = PlannedColumns.lengths if isinstance(length, str) else None
        pieces = (
            (first, read(columns, length) if read else length(columns))
            for first, columns in _pieces(dataset, "Or give length= as an array.")
        )
    else:
        array = np.asarray(length)
        _require(array.shape == (n,), f"length has the shape {array.shape}", f"Give {n} lengths.")
        pieces = ((at, array[at : at + _AT_ONCE]) for at in range(0, n, _AT_ONCE))
    for first, values in pieces:
        measured = np.asarray(values)
        count = min(n - first, _AT_ONCE)
        _require(
            measured.shape == (count,) and measured.dtype.kind in "iuf",
            f"length gives an array of shape {measured.shape} and type {measured.dtype} for "
            f"{count} rows",
            "Return a number for each row.",
        )
        yield first, np.ceil(measured) if measured.dtype.kind == "f" else measured

"""Concatenation of several sources, for a ``ConcatDataset``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.decode.codecs import Encoded, Foreseen
from fastdata.errors import FastdataError
from fastdata.loading.seek_cache import Stamped
from fastdata.loading.source import Encodings, Gathered, Sides, Source
from fastdata.plan.schedule import Indices


class JoinedSource(Source):
    """Source of several sources' samples, one after the other, with their own errors and keys.

    Args:
        parts: The sources; all have the same limits, and none is remote.
    """

    def __init__(self, parts: Sequence[Source]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *map(len, parts)])
        self.limits = parts[0].limits
        self.has_seek_points = all(part.has_seek_points for part in parts)

    @property
    def stride(self) -> int:  # type: ignore[override]
        """Largest stride of the parts; parts that keep no seek points ignore built ones."""
        return max(part.stride for part in self._parts)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _place(self, index: int) -> tuple[Source, int]:
        """Return the source of a sample, and its number there."""
        part = int(np.searchsorted(self._starts, index, "right")) - 1
        return self._parts[part], index - int(self._starts[part])

    def _split(self, indices: Indices) -> Iterator[tuple[Source, Indices, Indices]]:
        """Yield (source, slots, numbers in it) for each source that has some of the samples."""
        parts = np.searchsorted(self._starts, indices, "right") - 1
        for part in np.unique(parts).tolist():
            slots = np.flatnonzero(parts == part)
            yield self._parts[part], slots, indices[slots] - self._starts[part]

    def gather(self, indices: Indices) -> Gathered:
        """See `Source.gather`."""
        slots, found = [], []
        for part, where, numbers in self._split(indices):
            slots.append(where)
            found.append(part.gather(numbers))
        extents = _native.Extents.join(len(indices), [one.extents for one in found], slots)
        order = np.argsort(np.concatenate(slots))
        columns: Iterator[tuple[npt.NDArray[np.generic], ...]]
        columns = zip(*(one[1:] for one in found), strict=True)
        return Gathered(extents, *(np.concatenate(column)[order] for column in columns))

    def encoded(self, index: int, data: bytes | None = None) -> Encoded:
        """See `Source.encoded`."""
        part, number = self._place(index)
        return part.encoded(number, data)

    def way(self, index: int) -> Foreseen:
        """See `Source.way`."""
        part, number = self._place(index)
        return part.way(number)

    def key(self, index: int) -> str:
        """See `Source.key`. Two parts may have the same keys."""
        part, number = self._place(index)
        return part.key(number)

    def problem(self, index: int, detail: str, code: str = "") -> FastdataError:
        """See `Source.problem`."""
        part, number = self._place(index)
        return part.problem(number, detail, code)

    def resized(
        self, indices: Indices, widths: Sides, heights: Sides, encodings: Encodings | None = None
    ) -> None:
        """See `Source.resized`."""
        for part, slots, numbers in self._split(indices):
            kinds = None if encodings is None else encodings[slots]
            part.resized(numbers, widths[slots], heights[slots], kinds)

    def declined(self, index: int, code: str) -> None:
        """See `Source.declined`."""
        part, number = self._place(index)
        part.declined(number, code)

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        """See `Source.built`."""
        for index, entry in tables:
            part, number = self._place(index)
            part.built([(number, entry)])

    def end_epoch(self) -> None:
        """See `Source.end_epoch`."""
        for part in self._parts:
            part.end_epoch()

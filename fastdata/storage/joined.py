"""Concatenation of sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.errors import FastdataError
from fastdata.storage.columns import Column, join_columns
from fastdata.storage.fields import common_fields
from fastdata.storage.joined_pass import JoinedPass
from fastdata.storage.learnt import Stamped
from fastdata.storage.source import (
    Blob,
    BlobColumn,
    Capabilities,
    Encodings,
    Gathered,
    Orientations,
    Rows,
    Sides,
    Source,
)


class JoinedSource(Source):
    """Source of several sources' rows, one after the other, with their own errors and keys."""

    def __init__(self, parts: Sequence[Source], lengths: Sequence[int]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *lengths])

    @staticmethod
    def of(parts: Sequence[Source]) -> JoinedSource:
        """Return a source of the fields that all of some sources have."""
        joined = JoinedSource(parts, [len(part) for part in parts])
        joined.fields = common_fields([part.fields for part in parts])
        return joined

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Capabilities of all parts; parts that keep no seek points ignore built ones."""
        local = [part.capabilities.local for part in self._parts]
        return Capabilities(
            local=all(local),
            partly_local=any(local),
            seek_points=all(part.capabilities.seek_points for part in self._parts),
            stride=max(part.capabilities.stride for part in self._parts),
        )

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def classes(self) -> Sequence[str]:
        """Names of classes of the first part; others may have their own."""
        return self._parts[0].classes

    def _place(self, row: int) -> tuple[Source, int]:
        """Return the source of a row, and its number there."""
        part = int(np.searchsorted(self._starts, row, "right")) - 1
        return self._parts[part], row - int(self._starts[part])

    def _split(self, rows: Rows) -> Iterator[tuple[Source, npt.NDArray[np.int64], Rows]]:
        """Yield (source, slots, numbers in it) for each source that has some of the rows."""
        parts = np.searchsorted(self._starts, rows, "right") - 1
        order = np.argsort(parts, kind="stable")
        numbers, parts = rows[order] - self._starts[parts[order]], parts[order]
        ends = [*(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(rows)]
        start = 0
        for end in ends:
            part = int(parts[start]) if end else 0  # no rows: the types of any part's columns
            yield self._parts[part], order[start:end], numbers[start:end]
            start = end

    def gather(self, rows: Rows, fields: Sequence[str] = ("image",)) -> Gathered:
        """See `Source.gather`."""
        slots, found = [], []
        for part, where, numbers in self._split(rows):
            slots.append(where)
            found.append(part.gather(numbers, fields))
        order = np.argsort(np.concatenate(slots))
        blobs, columns = {}, {}
        for name in found[0].blobs:
            parts = [one.blobs[name] for one in found]
            extents = _native.Extents.join(len(rows), [one.extents for one in parts], slots)
            arrays = {
                array: np.concatenate([getattr(one, array) for one in parts])[order]
                for array in ("widths", "heights", "pillow", "encodings")
            }
            blobs[name] = BlobColumn(extents, **arrays)
        for name in found[0].columns:
            columns[name] = join_columns([one.columns[name] for one in found], order)
        return Gathered(blobs, columns)

    def column(self, field: str, rows: Rows | None = None) -> Column:
        """See `Source.column`."""
        if rows is None:
            return join_columns([part.column(field) for part in self._parts])
        split = list(self._split(rows))
        order = np.argsort(np.concatenate([slots for _, slots, _ in split]))
        return join_columns([part.column(field, numbers) for part, _, numbers in split], order)

    def start_pass(
        self,
        batches: Iterator[tuple[Rows, Any, int]],
        number: Callable[[Rows], Rows],
        bad: Set[int],
        plan_fetches: Callable[[_native.Extents, Rows], Any] | None = None,
        fields: Sequence[str] = ("image",),
    ) -> Any:
        """See `Source.start_pass`."""
        if self.capabilities.local:
            return None
        about = batches, number, bad, plan_fetches, fields
        return JoinedPass(self._parts, self._starts, *about)

    def is_fetched(self, row: int) -> bool:
        """See `Source.is_fetched`."""
        part, number = self._place(row)
        return part.is_fetched(number)

    def encoded(self, row: int, field: str = "image", data: bytes | None = None) -> Blob:
        """See `Source.encoded`."""
        part, number = self._place(row)
        return part.encoded(number, field, data)

    def key(self, row: int) -> str:
        """See `Source.key`. Two parts may have the same keys."""
        part, number = self._place(row)
        return part.key(number)

    def describe(self, row: int) -> str:
        """See `Source.describe`: the row as its part numbers it."""
        part, number = self._place(row)
        return part.describe(number)

    def problem(self, row: int, detail: str, code: str = "", hint: str = "") -> FastdataError:
        """See `Source.problem`."""
        part, number = self._place(row)
        return part.problem(number, detail, code, hint)

    def resized(
        self,
        rows: Rows,
        widths: Sides,
        heights: Sides,
        encodings: Encodings | None = None,
        orientations: Orientations | None = None,
    ) -> None:
        """See `Source.resized`."""
        for part, slots, numbers in self._split(rows):
            others = (None if one is None else one[slots] for one in (encodings, orientations))
            part.resized(numbers, widths[slots], heights[slots], *others)

    def declined(self, row: int, code: str) -> None:
        """See `Source.declined`."""
        part, number = self._place(row)
        part.declined(number, code)

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        """See `Source.built`."""
        for row, entry in tables:
            part, number = self._place(row)
            part.built([(number, entry)])

    def end_epoch(self) -> None:
        """See `Source.end_epoch`."""
        for part in self._parts:
            part.end_epoch()

"""Concatenation of sources, of which some may fetch their rows ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import partial
from typing import Any

import numpy as np

from fastdata import _native
from fastdata.errors import FastdataError
from fastdata.storage.columns import join_columns
from fastdata.storage.fields import common_fields
from fastdata.storage.source import (
    Blob,
    BlobColumn,
    Capabilities,
    Column,
    Gathered,
    Measured,
    PassRequest,
    Rows,
    Source,
    Stamped,
)


class JoinedSource(Source):
    """Source of several sources' rows, one after the other, with their own errors and keys.

    It has the fields that all of them have. ``lengths`` are theirs, if it opens them later.
    """

    def __init__(self, parts: Sequence[Source], lengths: Sequence[int] | None = None) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *(map(len, parts) if lengths is None else lengths)])
        if parts:
            self.fields = common_fields([part.fields for part in parts])

    def part(self, number: int) -> Source:
        """Return one of the sources."""
        return self._parts[number]

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Capabilities that all parts have; parts that keep no seek points ignore built ones."""
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
        return self.part(0).classes

    def _place(self, row: int) -> tuple[Source, int]:
        """Return the source of a row, and its number there."""
        part = int(np.searchsorted(self._starts, row, "right")) - 1
        return self.part(part), row - int(self._starts[part])

    def _split(self, rows: Rows) -> Iterator[tuple[Source, Rows, Rows]]:
        """Yield (source, slots, numbers in it) for each source that has some of the rows."""
        parts = np.searchsorted(self._starts, rows, "right") - 1
        order = np.argsort(parts, kind="stable")
        numbers, parts = rows[order] - self._starts[parts[order]], parts[order]
        ends = [*(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(rows)]
        start = 0
        for end in ends:
            part = int(parts[start]) if end else 0  # no rows: the types of any part's columns
            yield self.part(part), order[start:end], numbers[start:end]
            start = end

    def gather(self, rows: Rows, fields: Sequence[str] = ("image",)) -> Gathered:
        slots, gathered = [], []
        for part, where, numbers in self._split(rows):
            slots.append(where)
            gathered.append(part.gather(numbers, fields))
        blobs = {
            name: _joined(len(rows), slots, [one.blobs[name] for one in gathered])
            for name in gathered[0].blobs
        }
        order, columns = np.argsort(np.concatenate(slots)), {}
        for name in gathered[0].columns:
            columns[name] = join_columns([one.columns[name] for one in gathered], order)
        return Gathered(blobs, columns)

    def column(self, field: str, rows: Rows | None = None) -> Column:
        if rows is None:
            parts = map(self.part, range(len(self._starts) - 1))
            return join_columns([part.column(field) for part in parts])
        split = list(self._split(rows))
        order = np.argsort(np.concatenate([slots for _, slots, _ in split]))
        return join_columns([part.column(field, numbers) for part, _, numbers in split], order)

    def start_pass(self, request: PassRequest) -> Any:
        return None if self.capabilities.local else JoinedPass(self._parts, self._starts, request)

    def is_fetched(self, row: int) -> bool:
        part, number = self._place(row)
        return part.is_fetched(number)

    def encoded(self, row: int, field: str = "image", data: bytes | None = None) -> Blob:
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
        part, number = self._place(row)
        return part.problem(number, detail, code, hint)

    def resized(self, rows: Rows, measured: Measured) -> None:
        for part, slots, numbers in self._split(rows):
            own = (None if array is None else array[slots] for array in measured)
            part.resized(numbers, Measured(*own))  # type: ignore[arg-type]

    def declined(self, row: int, code: str) -> None:
        part, number = self._place(row)
        part.declined(number, code)

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        for row, entry in tables:
            part, number = self._place(row)
            part.built([(number, entry)])

    def end_epoch(self) -> None:
        for part in self._parts:
            part.end_epoch()


def _joined(count: int, slots: Sequence[Rows], parts: Sequence[BlobColumn]) -> BlobColumn:
    """Return the rows of several sources as one column; ``slots`` are theirs in it."""
    extents = _native.Extents.join(count, [one.extents for one in parts], [*slots])
    order = np.argsort(np.concatenate(slots))
    arrays = {
        array: np.concatenate([getattr(one, array) for one in parts])[order]
        for array in ("widths", "heights", "pillow", "encodings")
    }
    return BlobColumn(extents, **arrays)


class JoinedPass:
    """Pass in which each remote source prefetches its own rows; see `Source.start_pass`.

    ``starts``: the first row of each source, and the end of the last.
    """

    def __init__(self, parts: Sequence[Source], starts: Rows, request: PassRequest) -> None:
        self._starts, self._parts = starts, parts
        self._number = request.number
        self._passes: dict[int, Any] = {}
        remote = sum(not source.capabilities.local for source in parts)
        for part, source in enumerate(parts):
            if source.capabilities.local:
                continue
            first, stop = int(starts[part]), int(starts[part + 1])
            own = request._replace(
                schedule=_OwnBatches(request, first, stop),
                number=partial(self._number_in, first),
                bad=_OwnRows(request.bad, first, stop),
                share=request.share / remote,
            )
            self._passes[part] = source.start_pass(own)

    def _number_in(self, first: int, draws: Rows) -> Rows:
        """Map draws to the rows of the source that begins with a row."""
        return self._number(draws) - first

    def look_ahead(self) -> None:
        """Announce later batches to all sources."""
        for passing in self._passes.values():
            passing.look_ahead()

    def fetch(self, draws: Rows, field: str = "image") -> tuple[BlobColumn, JoinedFetch]:
        """Return where one field of a batch lies; request the bytes of its remote rows."""
        rows = self._number(draws)
        sources = np.searchsorted(self._starts, rows, "right") - 1
        places, blobs, fetches = [], [], []
        for part in range(len(self._parts)):
            slots = np.flatnonzero(sources == part)
            if not len(slots):
                continue
            if part in self._passes:
                column, fetch = self._passes[part].fetch(draws[slots], field)
                fetches.append((slots, fetch))
            else:
                numbers = rows[slots] - self._starts[part]
                column = self._parts[part].gather(numbers, [field]).blobs[field]
            places.append(slots)
            blobs.append(column)
        self.look_ahead()  # those without rows in this batch, too
        return _joined(len(draws), places, blobs), JoinedFetch(fetches)

    def stats(self) -> Any:
        """Return the sums of the sources' statistics."""
        stats = [passing.stats() for passing in self._passes.values()]
        return type(stats[0]).total(stats)

    def close(self) -> None:
        """Cancel all requests under way."""
        for passing in self._passes.values():
            passing.close()


class JoinedFetch:
    """Pending bytes of one batch: (slots in the batch, pending bytes) of each source."""

    def __init__(self, parts: Sequence[tuple[Rows, Any]]) -> None:
        self._parts = parts

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds for one; return whether all arrived or failed."""
        return all(fetch.wait(timeout) for _, fetch in self._parts)

    def done(self) -> bool:
        """Return whether all arrived or failed."""
        return all(fetch.done() for _, fetch in self._parts)

    def cancel(self) -> None:
        """Cancel what no other batch needs."""
        for _, fetch in self._parts:
            fetch.cancel()

    def attach(self, extents: _native.Extents) -> dict[int, FastdataError | None]:
        """Attach the bytes to their extents; return why others failed, see `Fetch.attach`."""
        failed: dict[int, FastdataError | None] = {}
        for slots, fetch in self._parts:
            failed |= fetch.attach(extents, slots)
        return failed


class _OwnBatches:
    """Batches of a pass, with the draws of one source's rows alone."""

    def __init__(self, request: PassRequest, first: int, stop: int) -> None:
        self._schedule, self._number = request.schedule, request.number
        self._first, self._stop = first, stop

    @property
    def taken(self) -> int:
        """How many were taken."""
        return self._schedule.taken

    def ahead(self, number: int) -> tuple[Rows, Any, int] | None:
        """Return a batch that was not taken; None if there is none."""
        drawn = self._schedule.ahead(number)
        if drawn is None:
            return None
        draws, *rest = drawn
        rows = self._number(draws)
        return draws[(rows >= self._first) & (rows < self._stop)], *rest


class _OwnRows(Set[int]):
    """Bad rows of one source, as it numbers them, among the bad rows of all."""

    def __init__(self, bad: Set[int], first: int, stop: int) -> None:
        self._bad, self._first, self._stop = bad, first, stop

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and row + self._first in self._bad

    def __iter__(self) -> Iterator[int]:
        return (row - self._first for row in self._bad if self._first <= row < self._stop)

    def __len__(self) -> int:
        return sum(1 for _ in self)

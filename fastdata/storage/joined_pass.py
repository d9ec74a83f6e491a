"""Pass over several sources, of which some fetch their rows ahead."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fastdata.storage.source import Rows, Source


class JoinedPass:
    """Pass in which each remote source prefetches its own rows; see `Source.start_pass`.

    ``starts``: the first row of each source, and the end of the last.
    """

    def __init__(
        self,
        parts: Sequence[Source],
        starts: Rows,
        batches: Iterator[tuple[Rows, Any, int]],
        number: Callable[[Rows], Rows],
        bad: Set[int],
        plan_fetches: Any,
        fields: Sequence[str],
    ) -> None:
        self._starts, self._parts = starts, parts
        self._batches, self._number = batches, number
        # Batches to come, and their rows of each remote source. Sources get batches without any of
        # their rows, too: so one with few rows does not look further ahead than others.
        self._coming: deque[tuple[Rows, Any, int]] = deque()
        self._own: dict[int, deque[tuple[Rows, Any, int]]] = {}
        self._error: Exception | None = None
        self._ended = False
        self._passes: dict[int, Any] = {}
        for part, source in enumerate(parts):
            if source.capabilities.local:
                continue
            first, stop = int(starts[part]), int(starts[part + 1])
            self._own[part] = deque()
            own = self._of(part), partial(self._number_in, first), _Part(bad, first, stop)
            self._passes[part] = source.start_pass(*own, plan_fetches, fields)

    def __iter__(self) -> JoinedPass:
        return self

    def __next__(self) -> tuple[Rows, Any, int]:
        """Return the next batch; sources announce later ones."""
        while not self._coming and self._pull():
            pass
        if not self._coming:
            if self._error is not None:
                raise self._error
            raise StopIteration
        for passing in self._passes.values():
            next(passing)
        return self._coming.popleft()

    def _pull(self) -> bool:
        """Take a batch; return whether there was one."""
        if self._ended:
            return False
        try:
            found = next(self._batches, None)
        except Exception as error:
            # Raised after the batches before it.
            self._error, found = error, None
        if found is None:
            self._ended = True
            return False
        draws, *about = found
        of_rows = self._part_of(draws)
        for part, own in self._own.items():
            own.append((draws[of_rows == part], *about))
        self._coming.append(found)
        return True

    def _of(self, part: int) -> Iterator[tuple[Rows, Any, int]]:
        """Yield the batches, with the rows of one source alone."""
        while self._own[part] or self._pull():
            yield self._own[part].popleft()

    def _number_in(self, first: int, draws: Rows) -> Rows:
        """Map draws to the rows of the source that begins with a row."""
        return self._number(draws) - first

    def _part_of(self, draws: Rows) -> Rows:
        return np.searchsorted(self._starts, self._number(draws), "right") - 1

    def fetch(self, extents: Any, draws: Rows, field: str = "image") -> JoinedFetch:
        """Request the bytes of one field of a batch's remote rows."""
        of_rows, rows = self._part_of(draws), self._number(draws)
        found = []
        for part, passing in self._passes.items():
            slots = np.flatnonzero(of_rows == part)
            if len(slots):
                source: Any = self._parts[part]
                own = source.table_of(field).gather(rows[slots] - self._starts[part])
                found.append((slots.tolist(), passing.fetch(own, draws[slots], field)))
        return JoinedFetch(found)

    def stats(self) -> Any:
        """Return the sums of the sources' statistics."""
        found = [passing.stats() for passing in self._passes.values()]
        return type(found[0])(*map(sum, zip(*found, strict=True)))

    def close(self) -> None:
        """Cancel all requests under way."""
        for passing in self._passes.values():
            passing.close()


class JoinedFetch:
    """Pending bytes of one batch: (slots in the batch, pending bytes) of each source."""

    def __init__(self, parts: Sequence[tuple[list[int], Any]]) -> None:
        self._parts = parts

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds; return whether all arrived or failed."""
        end = None if timeout is None else time.monotonic() + timeout
        for _, fetch in self._parts:
            fetch.wait(None if end is None else max(0.0, end - time.monotonic()))
        return self.done()

    def done(self) -> bool:
        """Return whether all arrived or failed."""
        return all(fetch.done() for _, fetch in self._parts)

    def cancel(self) -> None:
        """Cancel what no other batch needs."""
        for _, fetch in self._parts:
            fetch.cancel()

    def take(self) -> dict[int, Any]:
        """Return the outcome of each remote sample, by slot; call it once, when all is done."""
        return {
            slots[own]: found for slots, fetch in self._parts for own, found in fetch.take().items()
        }


class _Part(Set[int]):
    """Rows of one source among bad rows of all, as it numbers them."""

    def __init__(self, bad: Set[int], first: int, stop: int) -> None:
        self._bad, self._first, self._stop = bad, first, stop

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and row + self._first in self._bad

    def __iter__(self) -> Iterator[int]:
        return (row - self._first for row in self._bad if self._first <= row < self._stop)

    def __len__(self) -> int:
        return sum(1 for _ in self)

"""Plans of requests: neighbouring byte ranges are merged, and the next ones come first."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fastdata import _native
from fastdata._native import crc32c
from fastdata.errors import FastdataError, OutageError
from fastdata.remote.workers import Closed, sleep
from fastdata.storage.source import Source

T = TypeVar("T")
#: Most bytes between merged neighbours, as a part of the bytes needed.
_WASTE = 1 / 32
#: Parts to fetch of samples that are fetched in part, by slot: `_native.Extents.plan_fetches`.
Fetches: TypeAlias = Mapping[int, Sequence[int]]
#: Problem of a sample whose checksum is wrong.
WRONG_BYTES = "its bytes have changed since it was packed, and fetching again did not help"


class JpegParts(NamedTuple):
    """Bytes of a JPEG that its crop needs, for `_native.Extents.attach`.

    ``header`` has its first bytes, ``rows`` the bytes of some rows of MCUs, which begin ``at`` an
    offset.
    """

    header: bytes
    rows: bytes
    at: int


class FileRef(NamedTuple):
    """Remote file that holds samples; pieces in a cache folder have names with ``tag``."""

    url: str
    size: int
    tag: str


#: A piece of a file in a cache folder, or a row group of a table, by its number.
Piece: TypeAlias = tuple[FileRef, int]


class RangeCache(ABC):
    """Ranges of remote files that one process holds: pieces in a folder, or row groups in memory.

    Several threads of a reader may call it at once.

    Attributes:
        only: Whether bytes cannot be read in another way.
        limit: Most bytes to hold.
        used: Bytes held, when last counted.
        peak: Most bytes held in memory.
    """

    only = False
    limit: int
    used = 0
    peak = 0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Piece, Future[Any]] = {}
        self._reads = self._fills = 0

    def counts(self) -> tuple[int, int]:
        """Return the statistics ``cache_reads`` and ``cache_fills`` of `RemoteStats`."""
        return self._reads, self._fills

    def _once(self, piece: Piece, work: Callable[[Piece], T]) -> T:
        """Return the result of work on a piece, which one thread does for all that wait for it.

        All of them raise its error. If that thread's pass is closed, another thread does the work.
        """
        while True:
            with self._lock:
                is_mine = piece not in self._running
                outcome: Future[T] = self._running.setdefault(piece, Future())
            if is_mine:
                try:
                    outcome.set_result(work(piece))
                except BaseException as error:
                    outcome.set_exception(error)
                with self._lock:
                    del self._running[piece]
            with suppress(Closed):
                return outcome.result()
            sleep(0.001)  # raises Closed if this thread's pass is closed too

    def _count_reads(self, count: int) -> None:
        with self._lock:
            self._reads += count

    @abstractmethod
    def pieces(self, file: FileRef, start: int, stop: int) -> list[Piece]:
        """Return the pieces that hold a byte range."""

    @abstractmethod
    def read_present(self, file: FileRef, start: int, stop: int) -> bytes | None:
        """Return a byte range, or None unless all its pieces are held."""

    @abstractmethod
    def read(self, file: FileRef, start: int, stop: int) -> Any:
        """Return a byte range from its pieces, as a buffer, and fill missing ones; block.

        Raise RemoteError if it cannot be fetched, DatasetError if a piece cannot be stored or
        decoded.
        """

    @abstractmethod
    def ensure(self, piece: Piece) -> None:
        """Fill a missing piece, if there is room; raises as `read` does."""

    @abstractmethod
    def drop(self, file: FileRef, start: int, stop: int) -> None:
        """Remove the pieces that hold a byte range, because its bytes are wrong."""


@dataclass(slots=True, eq=False)
class Wanted:
    """Byte range to read: a sample of a dataset, or a part of one.

    ``check`` is its CRC-32C, or a function that returns whether bytes are right. ``key`` is the
    number of a whole sample, or a draw and a part.
    """

    number: int
    file: FileRef
    start: int
    stop: int
    check: int | Callable[[bytes], bool]
    key: Hashable = None

    def __post_init__(self) -> None:
        if self.key is None:
            self.key = self.number

    def is_right(self, data: bytes) -> bool:
        """Return whether these bytes equal those that were packed."""
        return crc32c(data) == self.check if isinstance(self.check, int) else self.check(data)

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.stop - self.start


@dataclass(slots=True, eq=False)
class RangeRequest:
    """Byte range to request, which holds one or more neighbours: `Wanted`."""

    file: FileRef
    start: int
    stop: int
    members: list[Any] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.stop - self.start


def merge(
    wanted: Iterable[Any], merge_gap: int, max_request: int, waste: float = _WASTE
) -> list[RangeRequest]:
    """Return the requests for some samples; neighbours with small gaps share one.

    ``merge_gap`` limits the bytes between two neighbours; ``waste`` limits the unneeded bytes of a
    request, as a part of the needed ones.
    """
    requests: list[RangeRequest] = []
    needed = wasted = 0
    for one in sorted(wanted, key=lambda one: (one.file.url, one.start)):
        last = requests[-1] if requests else None
        if last is not None and last.file.url == one.file.url:
            gap = max(one.start - last.stop, 0)
            if (
                gap <= merge_gap
                and wasted + gap <= waste * (needed + one.size)
                and max(one.stop, last.stop) - last.start <= max_request
            ):
                last.stop = max(last.stop, one.stop)
                last.members.append(one)
                needed += one.size
                wasted += gap
                continue
        requests.append(RangeRequest(one.file, one.start, one.stop, [one]))
        needed, wasted = one.size, 0
    return requests


def plan(
    coming: Iterable[Any], reach: int, merge_gap: int, max_request: int, needed: Iterable[Any] = ()
) -> list[RangeRequest]:
    """Return the next requests, in the order in which batches need them.

    The requests cover the next quarter of ``reach``, with neighbours from all of it. ``coming`` is
    in the order of the batches. Ranges in ``needed`` come before all others.
    """
    places: dict[Hashable, int] = {}
    near: list[Any] = []
    size = soon = 0
    for one in coming:
        places[one.key] = len(near)
        near.append(one)
        size += one.size
        if size <= reach // 4:
            soon = len(near)
        if size >= reach:
            break
    for one in needed:
        if one.key not in places:
            near.append(one)
        places[one.key] = -1
    firsts = [
        (min(places[one.key] for one in request.members), request)
        for request in merge(near, merge_gap, max_request)
    ]
    firsts.sort(key=lambda pair: pair[0])
    return [request for first, request in firsts if first <= soon]


def attach_fetched(
    fetched: Mapping[int, Any], extents: _native.Extents, source: Source, rows: Any
) -> dict[int, FastdataError]:
    """Attach fetched bytes to their extents; return the errors of other samples, by slot.

    An outcome is bytes, parts, an error, or None for wrong bytes. ``rows`` are by slot, int64.
    """
    failed: dict[int, FastdataError] = {}
    for slot, outcome in fetched.items():
        row = int(rows[slot])
        if isinstance(outcome, bytes):
            extents.attach(slot, outcome)
        elif isinstance(outcome, JpegParts):
            extents.attach(slot, *outcome)
        elif outcome is None:
            failed[slot] = source.problem(row, WRONG_BYTES, "changed")
        else:
            what = f"sample {row} ({source.key(row)}): {outcome.what}"
            failed[slot] = type(outcome)(what, outcome.hint)
    return failed


def raise_outage(failed: Mapping[int, FastdataError]) -> None:
    """Raise the first OutageError among the errors of samples, which may be intact."""
    for error in failed.values():
        if isinstance(error, OutageError):
            raise error

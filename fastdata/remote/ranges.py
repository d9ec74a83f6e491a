"""Byte ranges of remote files, and plans of requests: one for neighbours, the next ones first."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.errors import FastdataError
from fastdata.threads import Task, pause

T = TypeVar("T")
Numbers: TypeAlias = npt.NDArray[np.int64]
#: Most bytes between merged neighbours, as a part of the bytes needed; or as many as take no longer
#: than a request.
_WASTE = 1 / 32
_WORTH = 64 << 10
#: Parts to fetch of samples that are fetched in part, by slot: `_native.Extents.plan_fetches`.
Fetches: TypeAlias = Mapping[int, Sequence[int]]
#: Problem of a sample whose checksum is wrong.
WRONG_BYTES = "its bytes have changed since it was packed, and fetching again did not help"
#: `Ranges.checks` of a range that has no checksum.
UNCHECKED = -1


class FileRef(NamedTuple):
    """Remote file that holds samples; pieces in a cache folder have names with ``tag``.

    ``place`` is its number among a dataset's files, below 0 for the file of a single sample.
    """

    url: str
    size: int
    tag: str
    place: int = -1


#: Functions that return whether bytes are right, by the number of the range.
Sound: TypeAlias = dict[int, Callable[[Any], bool]]


def sound_of(sound: Sound, numbers: Numbers) -> Sound:
    """Return the functions of some ranges, by their places among ``numbers``."""
    if not sound:  # most datasets have none
        return {}
    return {at: sound[one] for at, one in enumerate(numbers.tolist()) if one in sound}


#: A piece of a file in a cache folder, or a row group of a table, by its number.
Piece: TypeAlias = tuple[FileRef, int]


@dataclass(eq=False)
class Ranges:
    """Byte ranges to read: samples of a dataset, or parts of them. Arrays are int64, (N,).

    Attributes:
        files: The file of each.
        places: `FileRef.place` of each.
        starts: Its first byte.
        stops: The byte after its last one.
        checks: CRC-32C of each, or `UNCHECKED`.
        sound: Functions that return whether bytes are right, by the number of the range.
    """

    files: list[FileRef]
    places: Numbers
    starts: Numbers
    stops: Numbers
    checks: Numbers
    sound: Sound = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.files)

    def request(self, members: Numbers) -> RangeRequest:
        """Return the request for some ranges, which are of one file and ascend."""
        sound = sound_of(self.sound, members)
        starts, stops = self.starts[members], self.stops[members]
        return RangeRequest(self.files[members[0]], starts, stops, self.checks[members], sound)


class SampleRanges(NamedTuple):
    """Ranges of gathered samples. Arrays are int64, (N,).

    Attributes:
        ranges: The ranges.
        slots: The slot of the sample that each belongs to.
        at: The first byte of each in its sample; below 0 if it is the whole sample.
        keys: Numbers that are equal for equal ranges of one field.
    """

    ranges: Ranges
    slots: Numbers
    at: Numbers
    keys: Numbers


@dataclass(eq=False)
class RangeRequest:
    """Byte ranges of a file that are requested together; starts ascend. See `Ranges`.

    Attributes:
        data: The buffer that has each range's bytes, once they have come.
        begins: Where they begin in it.
        wrong: Places of the ranges whose bytes are wrong.
        error: Why none has come.
        left: How many ranges a pass still needs.
        is_begun: Whether it was sent, or is the next to be.
        is_done: Whether it was answered, or has failed.
        waiting: What waits for it.
    """

    file: FileRef
    starts: Numbers
    stops: Numbers
    checks: Numbers
    sound: Sound
    data: list[Any] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    wrong: Collection[int] = ()
    error: FastdataError | None = None
    left: int = 0
    is_begun: bool = False
    is_done: bool = False
    waiting: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start, self.stop = int(self.starts[0]), int(self.stops.max())
        self.left = len(self.starts)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.stop - self.start

    def part(self, places: list[int]) -> RangeRequest:
        """Return the request for some of its ranges."""
        arrays = self.starts[places], self.stops[places], self.checks[places]
        return RangeRequest(self.file, *arrays, sound_of(self.sound, np.array(places)))

    def take(self, data: Any) -> list[int]:
        """Take the request's bytes; return the places of the ranges that are wrong."""
        begins = self.starts - self.start
        self.data, self.begins = [data] * len(self), begins.tolist()
        wrong: list[int] = _native.wrong_parts(data, begins, self.stops - self.start, self.checks)
        if self.sound:
            view = memoryview(data)
            for at, is_sound in self.sound.items():
                stop = int(self.stops[at]) - self.start
                if not is_sound(view[self.begins[at] : stop]):
                    wrong.append(at)
        return wrong


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
        self._running: dict[Piece, Task[Any]] = {}
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
                task = self._running.setdefault(piece, Task(partial(work, piece)))
            if is_mine:
                task.run()
                with self._lock:
                    del self._running[piece]
            with suppress(CancelledError):
                result: T = task.result()
                return result
            pause(0.001)  # raises CancelledError if this thread's pass is closed too

    @abstractmethod
    def pieces(self, file: FileRef, start: int, stop: int) -> list[Piece]:
        """Return the pieces that hold a byte range."""

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


def merge(
    ranges: Ranges, merge_gap: int, max_request: int, waste: float = _WASTE
) -> tuple[Numbers, Numbers]:
    """Return the ranges in the order of requests, and where there each request begins.

    Neighbours with small gaps share a request. ``merge_gap`` limits the bytes between two of them;
    ``waste`` limits the unneeded bytes of a request, as a part of the needed ones; 64 KiB may
    always be. ``max_request`` limits the bytes of a request of several.
    """
    order = np.lexsort((ranges.starts, ranges.places))
    places, starts, stops = ranges.places[order], ranges.starts[order], ranges.stops[order]
    joins = (places[1:] == places[:-1]) & (places[1:] >= 0)
    runs = np.flatnonzero(~(joins & (starts[1:] - stops[:-1] <= merge_gap))) + 1
    begins = []
    for first, end in zip([0, *runs.tolist()], [*runs.tolist(), len(order)], strict=True):
        while end - first > 1:
            begins.append(first)
            most = first + int(np.searchsorted(starts[first:end], starts[first] + max_request))
            tops = np.maximum.accumulate(stops[first:most])
            gaps = np.maximum(starts[first + 1 : most] - tops[:-1], 0)
            needed = np.cumsum(stops[first:most] - starts[first:most])[1:]
            ends = (tops[1:] - starts[first] > max_request) | (gaps > merge_gap)
            many = int(ends.argmax()) if ends.any() else len(ends)
            # The longest that wastes little: a gap after small images weighs less in the end.
            most_waste = np.maximum(waste * needed[:many], _WORTH)
            little = np.flatnonzero(np.cumsum(gaps[:many]) <= most_waste)
            first += 2 + int(little[-1]) if len(little) else 1
        if first < end:
            begins.append(first)
    return order, np.array(begins, np.int64)


def plan(
    ranges: Ranges, distances: Numbers, soon: int, merge_gap: int, max_request: int
) -> list[Numbers]:
    """Return the ranges of each of the next requests, in the order in which batches need them.

    A request is planned if it has a range at a distance, in bytes until it is needed, of at most
    ``soon``.
    """
    if not len(ranges):
        return []
    order, begins = merge(ranges, merge_gap, max_request)
    firsts = np.minimum.reduceat(distances[order], begins)
    chosen = np.flatnonzero(firsts <= soon)
    chosen = chosen[np.argsort(firsts[chosen], kind="stable")]
    begins = np.append(begins, len(order))
    spans = zip(begins[chosen].tolist(), begins[chosen + 1].tolist(), strict=True)
    return [order[begin:end] for begin, end in spans]

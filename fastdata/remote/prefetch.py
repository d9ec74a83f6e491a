"""Prefetching of one pass over a remote dataset, in the order of its batches."""

from __future__ import annotations

import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fastdata import _native
from fastdata.errors import FastdataError, RemoteError
from fastdata.remote.announced import Announced
from fastdata.remote.options import RemoteOptions, RemoteStats
from fastdata.remote.ranges import Numbers, Piece, RangeCache, RangeRequest, SampleRanges, plan
from fastdata.remote.reader import RangeReader
from fastdata.remote.retries import describe_error, wait_before
from fastdata.storage.source import BlobColumn, PassRequest, Rows, Source
from fastdata.threads import Group, Latch, pause

#: Most bytes of samples held in memory beside a cache folder. More than the processor's caches
#: hold makes an image cost a sixth more.
_HELD_OF_CACHE = 16 << 20
#: Most bytes under way that no batch waits for: more only crowd the processor's caches.
_UNDER_WAY = 32 << 20
#: Most batches that are announced for each field.
_MOST_COMING = 1024
#: Part of the memory for which a range of any size counts in the look ahead: ranges cost time.
_EACH = 1 << 16
#: Pieces of a cache folder that a pass fills at once.
_MOST_FILLS = 8


def read_checked(reader: RangeReader, cache: RangeCache | None, request: RangeRequest) -> None:
    """Read a request, or note why that failed, and which ranges were wrong at every try.

    Wrong ranges are evicted from the cache and read again, without the others. Runs on the
    reader's threads; raises CancelledError alone.
    """
    try:
        _read(reader, cache, request)
    except CancelledError:
        raise
    except FastdataError as error:
        request.error = error
    except Exception as error:  # else what waits for it would wait for ever
        what = f"fetching failed: {describe_error(error)}"
        request.error = RemoteError(what, "Please report this.")


def _read(reader: RangeReader, cache: RangeCache | None, request: RangeRequest) -> None:
    tries = reader.options.tries if cache is None or not cache.only else 1
    left, places = request, list(range(len(request)))
    for number in range(0 if cache is not None else 1, tries + 1):
        if cache is not None and (number == 0 or cache.only):
            data = cache.read(left.file, left.start, left.stop)
        else:
            data = reader.read(left.file.url, left.start, left.stop, careful=number > 1)
        wrong = left.take(data)
        if left is not request:
            for place, begin in zip(places, left.begins, strict=True):
                request.data[place], request.begins[place] = data, begin
        request.wrong = places = [places[at] for at in wrong]
        if not wrong or number == tries:
            return
        reader.counts.refetched += len(wrong)
        left = request.part(places)
        if cache is not None and number == 0:
            cache.drop(left.file, left.start, left.stop)
        else:
            pause(wait_before(number))


class _Wanted(NamedTuple):
    """Ranges of one field of a batch, by their numbers in `Announced`; see `SampleRanges`."""

    slots: Numbers
    numbers: Numbers
    at: Numbers


class _Gathered(NamedTuple):
    """Rows of an announced batch of some draws, and the ranges of each field.

    A batch that is planned otherwise is gathered again.
    """

    draws: Rows
    blobs: dict[str, BlobColumn]
    wanted: dict[str, _Wanted]


class Fetch(Latch):
    """Pending bytes of one field of a batch; set once every range has arrived or failed.

    Attributes:
        missing: How many requests have not been answered.
    """

    def __init__(self, wanted: _Wanted, sizes: Numbers) -> None:
        super().__init__()
        self.wanted, self._sizes = wanted, sizes
        self.missing = 0
        self._parts: tuple[Any, ...] = ()
        self._failed: dict[int, FastdataError | None] = {}

    @property
    def size(self) -> int:
        """The bytes of all ranges together."""
        return int(self._sizes.sum())

    def cancel(self) -> None:
        """Wake the waiting thread. Requests go on: other batches may need the same samples."""
        self.set()

    def finish(self, requests: list[RangeRequest], places: list[int]) -> None:
        """Take the bytes of each range from its request and place there; wake the thread."""
        # No pairs: so many objects make Python look for garbage.
        slots, failed = self.wanted.slots.tolist(), self._failed
        for slot, request, place in zip(slots, requests, places, strict=True):
            if request.error is not None or place in request.wrong:
                failed.setdefault(slot, request.error)
        good = [at for at, slot in enumerate(slots) if slot not in failed]
        data = [requests[at].data[places[at]] for at in good]
        begins = np.array([requests[at].begins[places[at]] for at in good], np.int64)
        self._parts = good, data, begins
        self.set()

    def attach(
        self, extents: _native.Extents, where: Rows | None = None
    ) -> dict[int, FastdataError | None]:
        """Attach the bytes to their extents; return why others failed, by slot; None: wrong bytes.

        ``where`` has the place in the extents of each slot; None if they are the same. Raise
        CancelledError if it was cancelled before they came.
        """
        if not self._parts:
            raise CancelledError
        good, data, starts = self._parts
        slots, _, at = self.wanted
        sizes = self._sizes[good]
        slots = slots[good] if where is None else where[slots[good]]
        extents.attach_parts(slots, data, starts, starts + sizes, at[good])
        if where is None:
            return self._failed
        return {int(where[slot]): error for slot, error in self._failed.items()}


class RemotePass:
    """Prefetcher of a pass, in the order of its batches; a loader has its own.

    The consumer's thread runs the sampler a bounded number of bytes ahead and announces the
    batches. The reader's threads plan and make the requests. One lock guards the data that they
    share. Fetching and decoding meet in `Fetch`.

    Args:
        source: The source of the rows, for `Source.gather`.
        ranges_of: Returns the ranges of gathered samples (`FetchedSource.ranges_of`).
        reader: Reads them.
        cache: Holds them.
        options: The source's options.
        request: Which rows the pass reads.
    """

    def __init__(
        self,
        source: Source,
        ranges_of: Callable[..., SampleRanges],
        reader: RangeReader,
        cache: RangeCache | None,
        options: RemoteOptions,
        request: PassRequest,
    ) -> None:
        self._source, self._ranges_of = source, ranges_of
        self._reader, self._cache, self._options = reader, cache, options
        self._reader.patience.begin()
        self._schedule, self._number, self._bad, plan_fetches, self._fields, share = request
        # A cache folder holds whole pieces, so fetching rows alone saves nothing.
        self._plan_fetches = plan_fetches if self._cache is None else None
        #: Bytes that are announced ahead, and those that are under way or in memory.
        self._reach = self._memory = max(int(self._options.memory * share), 1)
        self._most_pieces = 0
        if self._cache is not None:
            self._reach = min(self._memory, self._cache.limit // 4)
            self._memory = min(self._reach, _HELD_OF_CACHE)
            # Prefetched pieces must not evict each other.
            self._most_pieces = max(self._cache.limit // (2 * self._options.piece_bytes), 2)
        self._lock = threading.Lock()
        self._closed = Group()
        # Whether the first batches are being announced: planned one by one, they would not share
        # requests.
        self._is_filling = True
        #: Number of the next batch to announce.
        self._next = 0
        # By the number of the batch, until the next one is taken.
        self._gathered: dict[int, _Gathered] = {}
        self._before = replace(self._reader.counts)
        self._cache_before = (0, 0) if self._cache is None else self._cache.counts()
        self._needed = 0
        self._known = Announced(max(self._memory // _EACH, 1))
        self._urgent: deque[RangeRequest] = deque()
        self._queue: deque[RangeRequest] = deque()
        #: `Announced.released` at which to plan again.
        self._plan_at = 0
        self._is_woken = False
        #: Whether another thread may find something to do.
        self._are_more = False
        #: Bytes under way or in memory, most of them, and those under way.
        self._outstanding = self._peak = self._under_way = 0
        # Known samples in each piece of the cache folder.
        self._pieces: Counter[Piece] = Counter()
        # Those that no request is filling, in the order of the batches.
        self._new_pieces: dict[Piece, None] = {}
        self._filling = 0

    # Called in the consumer's thread.

    def look_ahead(self) -> None:
        """Announce later batches."""
        for number in [one for one in self._gathered if one < self._schedule.taken - 1]:
            with self._lock:  # that batch failed
                for wanted in self._gathered.pop(number).wanted.values():
                    self._release(wanted.numbers)
        self._next = max(self._next, self._schedule.taken)
        # Run the sampler in the consumer's thread: it may not expect another.
        while self._is_near() and (drawn := self._schedule.ahead(self._next)) is not None:
            self._announce_batch(drawn[0])
        self._is_filling = False
        self._wake()

    def _is_near(self) -> bool:
        """Return whether to announce more batches."""
        few = self._cache is None or len(self._pieces) < self._most_pieces
        # Samples may lack all of the fields, or none may be asked for.
        few = few and self._next - self._schedule.taken < _MOST_COMING * len(self._fields)
        return few and self._known.ahead < self._reach

    def _announce_batch(self, draws: Rows) -> None:
        """Announce the next batch."""
        number, self._next = self._next, self._next + 1
        if self._bad:
            good = [number not in self._bad for number in self._number(draws).tolist()]
            draws = draws[good]
        try:
            blobs = self._source.gather(self._number(draws), self._fields).blobs
        except FastdataError:
            return  # the batch itself will raise it
        ranges = {name: self._ranges(one.extents, draws, name) for name, one in blobs.items()}
        with self._lock:
            wanted = {name: self._announce(one) for name, one in ranges.items()}
            self._gathered[number] = _Gathered(draws, blobs, wanted)

    def _ranges(self, extents: _native.Extents, draws: Rows, field: str) -> SampleRanges:
        """Return the ranges of a field that draws need."""
        fetches = None
        if self._plan_fetches is not None and field == "image":
            fetches = self._plan_fetches(extents, draws)
        found = self._ranges_of(extents, self._number(draws), draws, fetches)
        own = list(self._fields).index(field)
        return found._replace(keys=found.keys * len(self._fields) + own)

    def _announce(self, wanted: SampleRanges) -> _Wanted:
        """Note that a batch will need some ranges; the caller holds the lock."""
        numbers, new = self._known.add(wanted)
        for number in new if self._cache is not None else ():
            for piece in self._pieces_of(number):
                self._pieces[piece] += 1
                if self._pieces[piece] == 1:
                    self._new_pieces[piece] = None
        return _Wanted(wanted.slots, numbers, wanted.at)

    def _pieces_of(self, number: int) -> list[Piece]:
        """Return the pieces of the cache that hold a range; also one that was just released."""
        assert self._cache is not None
        ranges = self._known.ranges(np.array([number]))
        return self._cache.pieces(ranges.files[0], int(ranges.starts[0]), int(ranges.stops[0]))

    def _release(self, numbers: Numbers) -> None:
        """Drop a use of known ranges, and free them after the last; with the lock held."""
        freed, requests = self._known.release(numbers)
        for number in freed if self._cache is not None else ():
            for piece in self._pieces_of(number):
                self._pieces[piece] -= 1
                if not self._pieces[piece]:
                    del self._pieces[piece]
                    self._new_pieces.pop(piece, None)
        for request, many in Counter(requests).items():
            if request is not None:
                request.left -= many
                if not request.left and request.is_done:
                    self._outstanding -= request.size

    def fetch(self, draws: Rows, field: str = "image") -> tuple[BlobColumn, Fetch]:
        """Return where one field of a batch lies; request its bytes, and announce later batches."""
        taken = self._schedule.taken
        if self._next < taken:
            # The consumer waits for the first batch: its requests carry no neighbours for later
            # batches, and start before those are announced.
            self._next = taken - 1
            self._announce_batch(draws)
        gathered, ranges = self._gathered.get(taken - 1), None
        wanted = None if gathered is None else gathered.wanted.pop(field, None)
        if gathered is not None and wanted is not None and np.array_equal(gathered.draws, draws):
            blobs = gathered.blobs[field]
        else:
            blobs = self._source.gather(self._number(draws), [field]).blobs[field]
            ranges = self._ranges(blobs.extents, draws, field)
        with self._lock:
            if ranges is not None:
                planned, wanted = wanted, self._announce(ranges)
                if planned is not None:
                    self._release(planned.numbers)
            assert wanted is not None
            numbers, known = wanted.numbers, self._known
            fetch = Fetch(wanted, known.column("stop", numbers) - known.column("start", numbers))
            self._needed += fetch.size
            self._hurry(fetch)
        self._wake()
        self.look_ahead()
        return blobs, fetch

    def _hurry(self, fetch: Fetch) -> None:
        """Make the requests of a batch the next ones; the caller holds the lock."""
        numbers, requests = fetch.wanted.numbers, self._known.requests
        if None in {requests[number] for number in numbers.tolist()}:
            self._plan(numbers)
        for request in {requests[number] for number in numbers.tolist()}:
            if request is not None and not request.is_done:
                fetch.missing += 1
                request.waiting.append(fetch)
                if not request.is_begun:
                    self._begin(request)
                    self._urgent.append(request)
        if not fetch.missing:
            self._finish(fetch)

    def _finish(self, fetch: Fetch) -> None:
        """Hand a batch its bytes, and release its ranges; the caller holds the lock."""
        numbers, known = fetch.wanted.numbers, self._known
        requests: Any = [known.requests[number] for number in numbers.tolist()]
        fetch.finish(requests, known.column("member", numbers).tolist())
        self._release(numbers)

    def stats(self) -> RemoteStats:
        """Return the statistics of this pass."""
        now, before = self._reader.counts, self._before
        stats = RemoteStats(
            requests=now.requests - before.requests,
            bytes_requested=now.bytes - before.bytes,
            bytes_needed=self._needed,
            retries=now.retries - before.retries,
            refetched=now.refetched - before.refetched,
            memory_peak=self._peak,
            client=self._reader.client,
        )
        if self._cache is None:
            return stats
        if self._cache.only:
            stats = stats._replace(memory_peak=self._peak + self._cache.peak)
        reads, fills = np.subtract(self._cache.counts(), self._cache_before).tolist()
        return stats._replace(cache_reads=reads, cache_fills=fills, cache_bytes=self._cache.used)

    def close(self) -> None:
        """Begin no more requests, and cancel those under way.

        It takes no lock: garbage is collected anywhere, also by a thread that holds this one.
        """
        self._closed.cancel()

    def _wake(self) -> None:
        """Let a thread of the reader look for work."""
        if not self._is_woken:
            self._is_woken = True
            self._reader.threads.submit(self._closed.run, self._work)

    # Run on the reader's threads.

    def _work(self) -> None:
        """Do what there is to do: make requests, fill pieces."""
        self._is_woken = False
        threads, done = self._reader.threads, None
        try:
            while (task := self._next_task(done)) is not None:
                if threads.idle and self._are_more:
                    self._wake()
                done = task()
                if threads.waiting and not self._is_woken:  # others come first
                    with self._lock:
                        self._end(done)
                    self._wake()
                    return
        except CancelledError:
            pass
        except Exception:  # a mistake of ours, which nothing else reports
            traceback.print_exc()

    def _next_task(self, done: RangeRequest | None) -> Callable[[], RangeRequest | None] | None:
        """End a request; return the next thing to do, None if there is none, or no room."""
        with self._lock:
            self._end(done)
            if self._closed.cancelled:
                return None
            self._are_more = True
            if self._urgent:
                return partial(self._run, self._urgent.popleft())
            filled = len(self._pieces) - len(self._new_pieces)
            if self._new_pieces and self._filling < _MOST_FILLS and filled < self._most_pieces:
                self._filling += 1
                piece = next(iter(self._new_pieces))
                del self._new_pieces[piece]
                return partial(self._fill, piece)
            while self._queue and (self._queue[0].is_begun or not self._queue[0].left):
                self._queue.popleft()
            if not self._queue and not self._is_filling:
                self._plan()
            if self._queue and self._has_room(self._queue[0].size):
                self._begin(request := self._queue.popleft())
                self._are_more = bool(self._queue) and self._has_room(self._queue[0].size)
                return partial(self._run, request)
        return None

    def _has_room(self, size: int) -> bool:
        """Return whether to begin a request; one that is too large waits until it is alone."""
        fits = size <= self._memory - self._outstanding or not self._outstanding
        return fits and (size <= _UNDER_WAY - self._under_way or not self._under_way)

    def _plan(self, needed: Numbers | None = None) -> None:
        """Plan requests for known ranges, or for ranges that are needed now."""
        known, soon = self._known, self._memory // 2
        if needed is None:
            if known.released < self._plan_at:
                return
            self._plan_at = known.released + soon // 8
        unplanned = known.unplanned()
        distances = known.column("position", unplanned) - known.released
        if needed is not None:
            soon = -known.farthest - 1
            distances[np.isin(unplanned, needed)] = soon
        options, ranges = self._options, known.ranges(unplanned)
        for members in plan(ranges, distances, soon, options.merge_gap, options.max_request):
            request = ranges.request(members)
            known.put(unplanned[members], request)
            self._queue.append(request)

    def _begin(self, request: RangeRequest) -> None:
        request.is_begun = True
        if self._cache is not None:
            for piece in self._cache.pieces(request.file, request.start, request.stop):
                self._new_pieces.pop(piece, None)
        self._under_way += request.size
        self._outstanding += request.size
        self._peak = max(self._peak, self._outstanding)

    def _fill(self, piece: Piece) -> None:
        assert self._cache is not None
        try:
            with suppress(Exception):  # reading the piece raises the error again
                self._cache.ensure(piece)
        finally:
            with self._lock:
                self._filling -= 1

    def _run(self, request: RangeRequest) -> RangeRequest:
        read_checked(self._reader, self._cache, request)
        return request

    def _end(self, request: RangeRequest | None) -> None:
        """Give a request's bytes, or error, to what waits for it; the caller holds the lock."""
        if request is None or self._closed.cancelled:
            return
        request.is_done = True
        self._under_way -= request.size
        if not request.left:
            self._outstanding -= request.size
        for fetch in request.waiting:
            fetch.missing -= 1
            if not fetch.missing:
                self._finish(fetch)
        request.waiting = []

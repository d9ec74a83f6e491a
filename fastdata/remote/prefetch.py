"""Prefetching of one pass over a remote dataset, in the order of its batches."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Hashable, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fastdata import _native
from fastdata.errors import FastdataError, RemoteError
from fastdata.remote.checking import read_checked
from fastdata.remote.options import RemoteOptions, RemoteStats
from fastdata.remote.ranges import JpegParts, Piece, RangeCache, RangeRequest, Wanted, plan
from fastdata.remote.reader import RangeReader
from fastdata.remote.retries import describe_error
from fastdata.storage.source import BlobColumn, PassRequest, Rows, Source

#: Outcome of a range: its bytes, an error, or None if its bytes are wrong.
RangeOutcome: TypeAlias = bytes | FastdataError | None
#: Outcome of a sample.
SampleOutcome: TypeAlias = bytes | JpegParts | FastdataError | None

#: Most bytes of samples held in memory beside a cache folder. More than the processor's caches
#: hold makes an image cost a sixth more.
_HELD_OF_CACHE = 16 << 20
#: Most batches that are announced for each field.
_MOST_COMING = 1024


@dataclass(slots=True, eq=False)
class _Held(Wanted):
    """Range that was announced, is being fetched, or is in memory."""

    uses: int = 0
    data: RangeOutcome = None
    done: bool = False
    request: RangeRequest | None = None
    waiting: list[Fetch] = field(default_factory=list)


class Fetch:
    """Pending bytes of one batch.

    Attributes:
        missing: How many ranges have not arrived.
        outcomes: The outcome of each sample, by slot, once it is done.
    """

    def __init__(self, held: dict[int, list[_Held]]) -> None:
        self._held = held
        self._done = threading.Event()
        self.missing = 0
        self.outcomes: dict[int, SampleOutcome] = {}

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds; return whether every range arrived or failed."""
        return self._done.wait(timeout)

    def done(self) -> bool:
        """Return whether every range arrived or failed."""
        return self._done.is_set()

    def cancel(self) -> None:
        """Wake the waiting thread. Requests go on: other batches may need the same samples."""
        if not self.done():  # garbage may be collected while it is being set
            self._done.set()

    def finish(self, release: Callable[[_Held, int], None]) -> None:
        """Take all ranges, of which a use each is released; wake the waiting thread."""
        self.outcomes = {slot: _outcome(ranges) for slot, ranges in self._held.items()}
        for held in chain.from_iterable(self._held.values()):
            if held.uses:  # none if it has turned out bad meanwhile
                release(held, 1)
        self._held = {}
        self._done.set()


def _outcome(ranges: list[_Held]) -> SampleOutcome:
    """Return the outcome of a sample from its ranges."""
    for held in ranges:
        if not isinstance(held.data, bytes):
            return held.data
    first, last = ranges[0], ranges[-1]
    if first is last:
        return first.data
    assert isinstance(first.data, bytes)
    assert isinstance(last.data, bytes)
    return JpegParts(first.data, last.data, last.start - first.start)


class _Gathered(NamedTuple):
    """Rows of an announced batch of some draws, and the ranges of each field's samples, by slot.

    A batch that is planned otherwise is gathered again.
    """

    draws: Rows
    blobs: dict[str, BlobColumn]
    held: dict[str, dict[int, list[_Held]]]


class RemotePass:
    """Prefetcher of one pass's samples into memory; for one process.

    It fetches the sample needed next, together with its neighbours among the announced samples. It
    pauses when ``memory`` bytes are held, unless a batch waits. It announces half as many bytes
    more, so that it finds neighbours even then. With a cache folder, it fills the pieces of all
    announced samples and holds few samples. Without one, it fetches only those rows of large JPEGs
    that their crops need.

    Args:
        source: The rows.
        ranges_of: Returns the byte ranges of gathered samples (`FetchedSource.ranges_of`).
        reader: Reads them.
        cache: Holds them.
        options: The source's options.
        request: Which rows the pass reads.
    """

    def __init__(
        self,
        source: Source,
        ranges_of: Callable[..., dict[int, list[Wanted]]],
        reader: RangeReader,
        cache: RangeCache | None,
        options: RemoteOptions,
        request: PassRequest,
    ) -> None:
        self._source, self._ranges_of = source, ranges_of
        self._reader, self._cache, self._options = reader, cache, options
        self._reader.patience.begin()
        self._schedule, self._number, self._bad, plan_fetches, self._fields = request
        # A cache folder holds whole pieces, so fetching rows alone saves nothing.
        self._plan_fetches = plan_fetches if self._cache is None else None
        self._memory = self._options.memory
        self._reach = self._memory + self._memory // 2
        self._most_pieces = 0
        self._most_requests: float = self._options.concurrency
        if self._cache is not None:
            self._most_requests = math.inf  # the cache and the reader limit downloads
            self._reach = min(self._memory, self._cache.limit // 4)
            self._memory = min(self._reach, _HELD_OF_CACHE)
            # Prefetched pieces must not evict each other.
            self._most_pieces = max(self._cache.limit // (2 * self._options.piece_bytes), 2)
        self._lock = threading.Lock()
        self._closed = False
        # Whether the first batches are being announced: planned one by one, they would not share
        # requests.
        self._is_filling = True
        #: Number of the next batch to announce.
        self._next = 0
        # By the number of the batch, until the next one is taken.
        self._gathered: dict[int, _Gathered] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._before = replace(self._reader.counts)
        self._cache_before = (0, 0) if self._cache is None else self._cache.counts()
        self._needed = 0
        # Bad samples that were already released.
        self._gone = set(self._bad)
        #: Bytes of samples that are announced and not taken.
        self._announced = 0
        self._peak = 0
        # By key.
        self._known: dict[Hashable, _Held] = {}
        # In the order in which batches need them.
        self._unplanned: dict[Hashable, _Held] = {}
        self._queue: deque[RangeRequest] = deque()
        self._urgent: list[_Held] = []
        self._begun: list[RangeRequest] = []
        self._under_way = 0
        #: Bytes under way or in memory.
        self._outstanding = 0
        # Known samples in each piece of the cache folder.
        self._pieces: Counter[Piece] = Counter()
        self._new_pieces: list[Piece] = []

    # Called in the consumer's thread.

    def look_ahead(self) -> None:
        """Announce later batches."""
        for number in [one for one in self._gathered if one < self._schedule.taken - 1]:
            del self._gathered[number]
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
        return few and self._announced < self._reach

    def _announce_batch(self, draws: Rows) -> None:
        """Announce the next batch."""
        batch, number, self._next = draws, self._next, self._next + 1
        if self._bad:
            good = [number not in self._bad for number in self._number(draws).tolist()]
            draws = draws[good]
        try:
            blobs = self._source.gather(self._number(draws), self._fields).blobs
        except FastdataError:
            return  # the batch itself will raise it
        wanted = {name: self._wanted(one.extents, draws, name) for name, one in blobs.items()}
        held: dict[str, dict[int, list[_Held]]] = {name: {} for name in wanted}
        with self._lock:
            for slot in range(len(draws)):
                for name, of_field in wanted.items():
                    if slot in of_field:
                        held[name][slot] = [self._announce(one) for one in of_field[slot]]
            if len(draws) == len(batch):
                self._gathered[number] = _Gathered(batch, blobs, held)

    def _wanted(self, extents: _native.Extents, draws: Rows, field: str) -> dict[int, list[Wanted]]:
        """Return the ranges of a field that draws need, by slot."""
        fetches = None
        if self._plan_fetches is not None and field == "image":
            fetches = self._plan_fetches(extents, draws)
        return self._ranges_of(extents, self._number(draws), draws, fetches, field)

    def _announce(self, one: Wanted) -> _Held:
        """Note that a batch will need a range; the caller holds the lock."""
        held = self._known.get(one.key)
        if held is None:
            held = _Held(one.number, one.file, one.start, one.stop, one.check, one.key)
            self._known[one.key] = self._unplanned[one.key] = held
            if self._cache is not None:
                for piece in self._cache.pieces(one.file, one.start, one.stop):
                    self._pieces[piece] += 1
                    if self._pieces[piece] == 1:
                        self._new_pieces.append(piece)
        held.uses += 1
        self._announced += held.size
        return held

    def _leave_out(self, bad: set[int]) -> None:
        """Release announced samples that have turned out bad: batches skip them."""
        self._gone |= bad
        with self._lock:
            self._gathered.clear()  # they have ranges that are released here
            for held in [held for held in self._known.values() if held.number in bad]:
                self._release(held, held.uses)

    def _release(self, held: _Held, uses: int) -> None:
        """Drop uses of a range, and free it after the last; the caller holds the lock."""
        held.uses -= uses
        self._announced -= uses * held.size
        if held.uses:
            return
        del self._known[held.key]
        self._unplanned.pop(held.key, None)
        if isinstance(held.data, bytes):
            self._outstanding -= held.size
        if self._cache is not None:
            for piece in self._cache.pieces(held.file, held.start, held.stop):
                self._pieces[piece] -= 1
                if not self._pieces[piece]:
                    del self._pieces[piece]

    def fetch(self, draws: Rows, field: str = "image") -> tuple[BlobColumn, Fetch]:
        """Return where one field of a batch lies; request its bytes, and announce later batches."""
        if len(self._bad) != len(self._gone):
            self._leave_out(set(self._bad) - self._gone)
        taken = self._schedule.taken
        if self._next < taken:
            # The consumer waits for the first batch: its requests carry no neighbours for later
            # batches, and start before those are announced.
            self._next = taken - 1
            self._announce_batch(draws)
            with self._lock:
                self._plan()
        gathered, held = self._gathered.get(taken - 1), None
        if gathered is None or not np.array_equal(gathered.draws, draws):
            blobs = self._source.gather(self._number(draws), [field]).blobs[field]
        else:
            blobs, held = gathered.blobs[field], gathered.held.pop(field, None)
        wanted = self._wanted(blobs.extents, draws, field) if held is None else {}
        with self._lock:
            if held is None:
                held = {
                    slot: [self._known.get(one.key) or self._announce(one) for one in ranges]
                    for slot, ranges in wanted.items()
                }
            self._needed += sum(one.size for ranges in held.values() for one in ranges)
            fetch = Fetch(held)
            for one in chain.from_iterable(held.values()):
                if not one.done:
                    fetch.missing += 1
                    one.waiting.append(fetch)
                    self._urgent.append(one)
            if not fetch.missing:
                fetch.finish(self._release)
        self._wake()
        self.look_ahead()
        return blobs, fetch

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
        )
        if self._cache is None:
            return stats
        if self._cache.only:
            stats = stats._replace(memory_peak=self._peak + self._cache.peak)
        reads, fills = np.subtract(self._cache.counts(), self._cache_before).tolist()
        return stats._replace(cache_reads=reads, cache_fills=fills, cache_bytes=self._cache.used)

    def close(self) -> None:
        """Cancel all requests under way.

        It takes no lock: garbage is collected anywhere, also by a thread that holds this one.
        """
        self._closed = True
        self._reader.loop.call_soon_threadsafe(self._cancel)

    # Run on the event loop.

    def _wake(self) -> None:
        self._reader.loop.call_soon_threadsafe(self._pump)

    def _cancel(self) -> None:
        with self._lock:
            self._known.clear()
            self._unplanned.clear()
            self._gathered.clear()
            self._queue.clear()
            self._urgent.clear()
        for task in list(self._tasks):
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._reader.loop.create_task(work)
        self._tasks.add(task)  # asyncio holds only a weak reference
        task.add_done_callback(self._tasks.discard)

    def _pump(self) -> None:
        """Start as many requests as limits allow."""
        with self._lock:
            if self._closed:
                return
            pieces, self._new_pieces = self._new_pieces, []
            for piece in pieces:
                self._start(self._fill(piece))
            self._start_urgent()
            while self._under_way < self._most_requests and (
                self._queue or (not self._is_filling and self._plan())
            ):
                room = self._memory - self._outstanding
                if self._queue[0].size > room and self._outstanding:
                    break
                self._begin(self._queue.popleft())
            if self._begun:
                begun, self._begun = self._begun, []
                self._start(self._run_all(begun))

    async def _fill(self, piece: Piece) -> None:
        assert self._cache is not None
        with suppress(Exception):  # reading the piece raises the error again
            await self._cache.ensure(piece)

    def _start_urgent(self) -> None:
        """Start requests that a batch waits for, even beyond the memory limit."""
        urgent, self._urgent = self._urgent, []
        unplanned = {held.key for held in urgent if held.key in self._unplanned}
        if unplanned:
            self._plan(unplanned)
        for held in urgent:
            request = held.request
            if request is not None and not held.done and request in self._queue:
                self._queue.remove(request)
                self._begin(request)

    def _plan(self, needed: Set[Hashable] = frozenset()) -> bool:
        """Plan requests for announced ranges; return whether any are queued.

        Ranges whose keys are ``needed`` are requested now.
        """
        options = self._options
        far = [self._unplanned[key] for key in needed]
        coming, reach = self._unplanned.values(), self._memory // 2
        for request in plan(coming, reach, options.merge_gap, options.max_request, far):
            for held in request.members:
                held.request = request
                del self._unplanned[held.key]
            self._queue.append(request)
        return bool(self._queue)

    def _begin(self, request: RangeRequest) -> None:
        self._under_way += 1
        self._outstanding += request.size
        self._peak = max(self._peak, self._outstanding)
        self._begun.append(request)

    async def _run_all(self, requests: list[RangeRequest]) -> None:
        """Run requests concurrently; one thread reads those that the cache folder has.

        A thread per request would cost a tenth of an image's total time.
        """
        present: list[bytes | None] = [None] * len(requests)
        cache = self._cache
        if cache is not None:
            places = [(one.file, one.start, one.stop) for one in requests]
            present = await asyncio.to_thread(lambda: [cache.read_present(*one) for one in places])
        for request, data in zip(requests, present, strict=True):
            self._start(self._run(request, data))

    async def _run(self, request: RangeRequest, present: bytes | None) -> None:
        wrong: list[_Held] = []
        error: FastdataError | None = None
        got: dict[Hashable, bytes] = {}

        def take(held: _Held, data: bytes) -> None:
            got[held.key] = data

        try:
            wrong = await read_checked(self._reader, self._cache, request, take, present)
        except FastdataError as raised:
            error = raised
        except Exception as raised:  # else the batch would wait for ever
            what = f"fetching failed: {describe_error(raised)}"
            error = RemoteError(what, "Please report this.")
        with self._lock:
            self._under_way -= 1
            self._outstanding -= request.size
            if self._closed:
                return
            for held in request.members:
                data = got.get(held.key)
                held.data = data if data is not None or held in wrong else error
                held.done = True
                held.request = None
                if data is not None and held.uses:
                    self._outstanding += held.size
                for fetch in held.waiting:
                    fetch.missing -= 1
                    if not fetch.missing:
                        fetch.finish(self._release)
                held.waiting = []
        self._pump()

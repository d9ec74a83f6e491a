"""Prefetches one pass over a remote dataset, in the order in which batches will need it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Hashable, Iterator, Set
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.errors import FastdataError, RemoteError
from fastdata.remote.options import RemoteStats
from fastdata.remote.ranges import Request, Wanted, plan
from fastdata.remote.retries import describe_error
from fastdata.storage.index import ExtentTable

if TYPE_CHECKING:
    from fastdata import _native
    from fastdata.remote.cache import Piece
    from fastdata.remote.opening import Fetches, RemoteBlobs

Indices = npt.NDArray[np.int64]


class Parts(NamedTuple):
    """The bytes of a JPEG that its crop needs, as `_native.Extents.attach_rows` takes them.

    Attributes:
        header: Its first ones.
        rows: Those of rows of MCUs.
        at: Which byte of the JPEG ``rows`` begins with.
    """

    header: bytes
    rows: bytes
    at: int


#: What became of a range: its bytes, an error, or None where its bytes are wrong.
Data = bytes | FastdataError | None
#: What became of a sample.
Found = bytes | Parts | FastdataError | None
#: Says what is fetched of samples that draws mean, where that is not all.
PlanFetches: TypeAlias = "Callable[[_native.Extents, Indices], Fetches]"

#: Most bytes of samples that are held where a cache folder has them, too: more than the
#: processor caches hold would make an image cost a sixth more.
_HELD_OF_CACHE = 16 << 20


class _Held(Wanted):
    """A range that was announced, is being fetched, or is here."""

    __slots__ = ("data", "done", "request", "uses", "waiting")

    def __init__(self, one: Wanted) -> None:
        super().__init__(one.number, one.file, one.start, one.stop, one.check, one.key)
        self.uses = 0
        self.data: Data = None
        self.done = False
        self.request: Request | None = None
        self.waiting: list[Fetch] = []


class Fetch:
    """The bytes of one batch, being fetched.

    Args:
        held: The ranges of its samples, by their slots in the batch.
        taken: Called when they are taken.
    """

    def __init__(self, held: dict[int, list[_Held]], taken: Callable[[list[_Held]], None]) -> None:
        self._held = held
        self._taken = taken
        self._done = threading.Event()
        #: Ranges that are still to come.
        self.missing = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for so many seconds; whether everything is there or has failed."""
        return self._done.wait(timeout)

    def done(self) -> bool:
        """Whether everything is there or has failed."""
        return self._done.is_set()

    def cancel(self) -> None:
        """Does nothing: other batches may want the same samples."""

    def take(self) -> dict[int, Found]:
        """What became of each sample, by its slot in the batch; once, when it is done."""
        found = {slot: _found(ranges) for slot, ranges in self._held.items()}
        self._taken([held for ranges in self._held.values() for held in ranges])
        return found

    def finish(self) -> None:
        """Wakes the thread that waits."""
        self._done.set()


def _found(ranges: list[_Held]) -> Found:
    """What became of a sample."""
    for held in ranges:
        if not isinstance(held.data, bytes):
            return held.data
    first, last = ranges[0], ranges[-1]
    if first is last:
        return first.data
    assert isinstance(first.data, bytes)
    assert isinstance(last.data, bytes)
    return Parts(first.data, last.data, last.start - first.start)


class RemotePass:
    """Prefetches the samples of one pass, in memory. Made and used in one process.

    What is fetched next is what is needed next, together with its neighbours among the samples
    announced. Fetching stops where ``memory`` bytes are held, unless a batch waits. The samples
    announced reach half of that further, so that even then there are neighbours to be found.
    With a cache folder, the pieces of all samples announced are filled, and few samples are held;
    without, of large JPEGs no more is fetched than the rows that their crops need.

    Args:
        blobs: The dataset.
        table: Its index.
        batches: (draws, position after) of each batch to come.
        number: Takes draws to sample numbers of the dataset.
        bad: Sample numbers that no batch will have; grows.
        plan_fetches: Says which rows of images crops need; None: whole samples are needed.
    """

    def __init__(
        self,
        blobs: RemoteBlobs,
        table: ExtentTable,
        batches: Iterator[tuple[Indices, int]],
        number: Callable[[Indices], Indices],
        bad: Set[int],
        plan_fetches: PlanFetches | None = None,
    ) -> None:
        self._blobs = blobs
        self._reader = blobs.reader
        self._reader.patience.begin()
        self._cache = blobs.local_cache
        # A cache folder holds whole pieces of files, whatever is read of them.
        self._plan_fetches = plan_fetches if self._cache is None else None
        self._options = blobs.options
        self._table = table
        self._source = batches
        self._number = number
        self._bad = bad
        self._memory = self._options.memory
        self._reach = self._memory + self._memory // 2
        self._most_pieces = 0
        self._most_requests: float = self._options.concurrency
        if self._cache is not None:
            self._most_requests = math.inf  # downloads are limited by the cache and the reader
            self._reach = min(self._memory, self._cache.limit // 4)
            self._memory = min(self._reach, _HELD_OF_CACHE)
            # Pieces to come are not to evict each other.
            self._most_pieces = max(self._cache.limit // (2 * self._options.piece_bytes), 2)
        self._lock = threading.Lock()
        self._closed = False
        self._error: Exception | None = None
        self._ended = False
        self._coming: deque[tuple[Indices, int]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._before = replace(self._reader.counts)
        self._cache_before = (0, 0) if self._cache is None else self._cache.counts()
        self._needed = 0
        # Bad samples that nothing is kept of any more.
        self._gone = set(bad)
        #: Bytes of samples that were announced and not yet taken.
        self._announced = 0
        self._peak = 0
        # By their keys.
        self._known: dict[Hashable, _Held] = {}
        # In the order in which they will be needed.
        self._unplanned: dict[Hashable, _Held] = {}
        self._queue: deque[Request] = deque()
        self._urgent: list[_Held] = []
        self._begun: list[Request] = []
        self._under_way = 0
        #: Bytes under way or here.
        self._outstanding = 0
        # How many of the samples that are known lie in each piece of the cache folder.
        self._pieces: Counter[Piece] = Counter()
        self._new_pieces: list[Piece] = []

    # What the consumer's thread calls.

    def __iter__(self) -> RemotePass:
        return self

    def __next__(self) -> tuple[Indices, int]:
        """The next batch: (draws, position after). What comes after it is announced."""
        if len(self._bad) != len(self._gone):
            self._leave_out(set(self._bad) - self._gone)
        # A sampler's code runs here, in the consumer's thread, as it may not expect another.
        while not self._ended and (self._is_near() or not self._coming):
            self._pull()
        self._wake()
        if self._coming:
            return self._coming.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def _is_near(self) -> bool:
        """Whether more batches are to be announced."""
        few = self._cache is None or len(self._pieces) < self._most_pieces
        return few and self._announced < self._reach

    def _pull(self) -> None:
        try:
            found = next(self._source, None)
        except Exception as error:
            # It is raised when the batches before it have been handed out.
            self._error = error
            found = None
        if found is None:
            self._ended = True
            return
        self._coming.append(found)
        draws = found[0]
        if self._bad:
            good = [number not in self._bad for number in self._number(draws).tolist()]
            draws = draws[good]
        try:
            extents = self._table.gather(self._number(draws))
        except FastdataError:
            return  # the batch will say so
        wanted = self._wanted(extents, draws)
        with self._lock:
            for ranges in wanted.values():
                for one in ranges:
                    self._announce(one)

    def _wanted(self, extents: _native.Extents, draws: Indices) -> dict[int, list[Wanted]]:
        """The ranges that draws need, by their places."""
        fetches = None if self._plan_fetches is None else self._plan_fetches(extents, draws)
        return self._blobs.wanted(extents, self._number(draws), draws, fetches)

    def _announce(self, one: Wanted) -> _Held:
        """Notes that a batch will need a range; the lock is held."""
        held = self._known.get(one.key)
        if held is None:
            held = self._known[one.key] = self._unplanned[one.key] = _Held(one)
            if self._cache is not None:
                for piece in self._cache.pieces(one.file, one.start, one.stop):
                    self._pieces[piece] += 1
                    if self._pieces[piece] == 1:
                        self._new_pieces.append(piece)
        held.uses += 1
        self._announced += held.size
        return held

    def _leave_out(self, bad: set[int]) -> None:
        """Forgets samples that were announced and have turned out bad: none will be taken."""
        self._gone |= bad
        with self._lock:
            for held in [held for held in self._known.values() if held.number in bad]:
                self._release(held, held.uses)

    def _release(self, held: _Held, uses: int) -> None:
        """Notes that a range is needed less often; the lock is held."""
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

    def fetch(self, extents: _native.Extents, draws: Indices) -> Fetch:
        """Asks for a batch's bytes.

        Args:
            extents: Its gathered extents.
            draws: Its draws.
        """
        wanted = self._wanted(extents, draws)
        self._needed += sum(one.size for ranges in wanted.values() for one in ranges)
        with self._lock:
            held = {
                slot: [self._known.get(one.key) or self._announce(one) for one in ranges]
                for slot, ranges in wanted.items()
            }
            fetch = Fetch(held, self._taken)
            for one in chain.from_iterable(held.values()):
                if not one.done:
                    fetch.missing += 1
                    one.waiting.append(fetch)
                    self._urgent.append(one)
            if not fetch.missing:
                fetch.finish()
        self._wake()
        return fetch

    def _taken(self, of_batch: list[_Held]) -> None:
        with self._lock:
            for held in of_batch:
                if held.uses:  # or it has turned out bad meanwhile
                    self._release(held, 1)
        self._wake()

    def stats(self) -> RemoteStats:
        """What was read since the pass began."""
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
        reads, fills = np.subtract(self._cache.counts(), self._cache_before).tolist()
        return stats._replace(cache_reads=reads, cache_fills=fills, cache_bytes=self._cache.used)

    def close(self) -> None:
        """Gives up what is under way."""
        with self._lock:
            self._closed = True
            self._known.clear()
            self._unplanned.clear()
            self._queue.clear()
            self._urgent.clear()
        self._reader.loop.call_soon_threadsafe(self._cancel)

    # What runs on the event loop.

    def _wake(self) -> None:
        self._reader.loop.call_soon_threadsafe(self._pump)

    def _cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._reader.loop.create_task(work)
        self._tasks.add(task)  # or nothing would keep it
        task.add_done_callback(self._tasks.discard)

    def _pump(self) -> None:
        """Starts what can be started."""
        with self._lock:
            if self._closed:
                return
            pieces, self._new_pieces = self._new_pieces, []
            for piece in pieces:
                self._start(self._fill(piece))
            self._start_urgent()
            while self._under_way < self._most_requests and (self._queue or self._plan()):
                room = self._memory - self._outstanding
                if self._queue[0].size > room and self._outstanding:
                    break
                self._begin(self._queue.popleft())
            if self._begun:
                begun, self._begun = self._begun, []
                self._start(self._run_all(begun))

    async def _fill(self, piece: Piece) -> None:
        assert self._cache is not None
        with suppress(Exception):  # whoever needs it will be told
            await self._cache.ensure(piece)

    def _start_urgent(self) -> None:
        """Begins what a batch waits for and was not begun, whatever is held."""
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
        """Makes requests of what was announced; whether there are any now.

        Args:
            needed: Keys of ranges whose requests are to be made, in any case.
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

    def _begin(self, request: Request) -> None:
        self._under_way += 1
        self._outstanding += request.size
        self._peak = max(self._peak, self._outstanding)
        self._begun.append(request)

    async def _run_all(self, requests: list[Request]) -> None:
        """Runs requests side by side; what the cache folder has of them is read by one thread.

        A thread for each would cost a tenth of all that an image costs.
        """
        present: list[bytes | None] = [None] * len(requests)
        cache = self._cache
        if cache is not None:
            look = [(one.file, one.start, one.stop) for one in requests]
            present = await asyncio.to_thread(lambda: [cache.read_present(*one) for one in look])
        for request, data in zip(requests, present, strict=True):
            self._start(self._run(request, data))

    async def _run(self, request: Request, present: bytes | None) -> None:
        wrong: list[_Held] = []
        error: FastdataError | None = None
        got: dict[Hashable, bytes] = {}

        def found(held: _Held, data: bytes) -> None:
            got[held.key] = data

        try:
            wrong = await self._reader.read_checked(request, found, self._cache, present)
        except FastdataError as raised:
            error = raised
        except Exception as raised:  # or a batch would wait for ever
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
                        fetch.finish()
                held.waiting = []
        self._pump()

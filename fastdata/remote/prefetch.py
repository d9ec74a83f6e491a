"""One pass over a remote dataset: what comes is announced, fetched ahead, and taken by batches."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Set
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastdata.errors import FastdataError, RemoteError
from fastdata.remote.options import RemoteStats
from fastdata.remote.ranges import Request, Wanted, plan
from fastdata.remote.reader import RangeCounts
from fastdata.remote.retries import describe_error
from fastdata.storage.extents import ExtentTable

if TYPE_CHECKING:
    from fastdata.remote.cache import PieceCache
    from fastdata.remote.opening import FileRef, RemoteBlobs

Indices = npt.NDArray[np.int64]
#: What became of a sample: its bytes, an error, or None where its bytes are wrong.
Found = bytes | FastdataError | None


class Fetch:
    """The bytes of one batch, on their way."""

    def __init__(self, places: list[int]) -> None:
        self._places = places
        self._done = threading.Event()
        self._take: Callable[[], list[Found]] | None = None
        #: Samples that are still to come.
        self.missing = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for so many seconds; whether everything is there or has failed."""
        return self._done.wait(timeout)

    def done(self) -> bool:
        """Whether everything is there or has failed."""
        return self._done.is_set()

    def cancel(self) -> None:
        """Does nothing: what was fetched is for another batch to take."""

    def take(self) -> dict[int, Found]:
        """What became of each sample, by its place in the batch; once, when it is done."""
        assert self._take is not None
        return dict(zip(self._places, self._take(), strict=True))

    def taken_by(self, take: Callable[[], list[Found]]) -> None:
        """Says what gives the samples when they are there, in the order of the places."""
        self._take = take

    def finish(self) -> None:
        """Wakes who waits."""
        self._done.set()


class RemotePass(ABC):
    """Fetches the samples of one pass ahead of its batches. Made and used in one process.

    Args:
        blobs: The dataset.
        table: Its index.
        batches: (draws, position after) of each batch to come.
        number: Takes draws to sample numbers of the dataset.
        bad: Sample numbers that no batch will have; grows.
    """

    def __init__(
        self,
        blobs: RemoteBlobs,
        table: ExtentTable,
        batches: Iterator[tuple[Indices, int]],
        number: Callable[[Indices], Indices],
        bad: Set[int],
    ) -> None:
        self._blobs = blobs
        self._reader = blobs.reader
        self._table = table
        self._source = batches
        self._number = number
        self._bad = bad
        self._limit = self._reach()
        self._lock = threading.Lock()
        self._closed = False
        self._error: Exception | None = None
        self._ended = False
        self._coming: deque[tuple[Indices, int]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        counts = self._reader.counts
        self._before = RangeCounts(counts.requests, counts.bytes, counts.retries, counts.refetched)
        self._needed = 0
        # Bad samples that nothing is kept of any more.
        self._gone = set(bad)
        #: Bytes of samples that were announced and not yet taken.
        self._announced = 0
        self._peak = 0

    # What the consumer's thread calls.

    def __iter__(self) -> RemotePass:
        return self

    def __next__(self) -> tuple[Indices, int]:
        """The next batch: (draws, position after). What comes after it is announced."""
        if len(self._bad) != len(self._gone):
            self._leave_out(set(self._bad) - self._gone)
        # A sampler's code runs here, in the consumer's thread, as it may not expect another.
        while not self._ended and (self._announced < self._limit or not self._coming):
            self._pull()
        self._wake()
        if self._coming:
            return self._coming.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

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
        numbers = self._number(found[0])
        if self._bad:
            numbers = np.array([i for i in numbers.tolist() if i not in self._bad], np.int64)
        try:
            extents = self._table.gather(numbers)
        except FastdataError:
            return  # the batch will say so
        self._announce([(one, ref) for _, one, ref in self._blobs.wanted(extents, numbers)])

    def _leave_out(self, bad: set[int]) -> None:
        """Lets go of samples that were announced and have turned out bad: none will be taken."""
        self._gone |= bad
        numbers = np.array(sorted(bad), np.int64)
        with suppress(FastdataError):  # then they were not announced either
            extents = self._table.gather(numbers)
            self._drop([(one, ref) for _, one, ref in self._blobs.wanted(extents, numbers)])

    def fetch(self, extents: Any, indices: Indices) -> Fetch:
        """Asks for a batch's bytes.

        Args:
            extents: Its gathered extents.
            indices: Its sample numbers.
        """
        wanted = self._blobs.wanted(extents, indices)
        fetch = Fetch([place for place, _, _ in wanted])
        self._needed += sum(one.size for _, one, _ in wanted)
        self._ask(fetch, [(one, ref) for _, one, ref in wanted])
        self._wake()
        return fetch

    def stats(self) -> RemoteStats:
        """What was read since the pass began."""
        now, before = self._reader.counts, self._before
        return RemoteStats(
            requests=now.requests - before.requests,
            bytes_requested=now.bytes - before.bytes,
            bytes_needed=self._needed,
            retries=now.retries - before.retries,
            refetched=now.refetched - before.refetched,
            memory_peak=self._peak,
        )

    def close(self) -> None:
        """Gives up what is under way."""
        with self._lock:
            self._closed = True
            self._forget()
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

    @abstractmethod
    def _reach(self) -> int:
        """How many bytes of samples to come are announced."""

    @abstractmethod
    def _announce(self, wanted: list[tuple[Wanted, FileRef]]) -> None:
        """Notes what will be needed; for the consumer's thread."""

    @abstractmethod
    def _drop(self, wanted: list[tuple[Wanted, FileRef]]) -> None:
        """Forgets that these were announced; for the consumer's thread."""

    @abstractmethod
    def _ask(self, fetch: Fetch, wanted: list[tuple[Wanted, FileRef]]) -> None:
        """Notes what is needed now; for the consumer's thread."""

    @abstractmethod
    def _pump(self) -> None:
        """Starts what can be started; on the event loop."""

    @abstractmethod
    def _forget(self) -> None:
        """Lets go of everything, the lock being held."""


class _Held(Wanted):
    """A sample of a `RangePass`: announced, under way, or here."""

    __slots__ = ("data", "done", "request", "uses", "waiting")

    def __init__(self, one: Wanted) -> None:
        super().__init__(one.number, one.url, one.start, one.stop, one.crc)
        self.uses = 0
        self.data: Found = None
        self.done = False
        self.request: Request | None = None
        self.waiting: list[Fetch] = []


class RangePass(RemotePass):
    """A pass that holds in memory what it fetches ahead, and merges neighbours.

    What is fetched next is what is needed next, together with its neighbours among the samples
    announced. Fetching stops where ``memory`` bytes are held, unless a batch waits. The samples
    announced reach half of that further, so that even then there are neighbours to be found.
    """

    def __init__(
        self,
        blobs: RemoteBlobs,
        table: ExtentTable,
        batches: Iterator[tuple[Indices, int]],
        number: Callable[[Indices], Indices],
        bad: Set[int],
    ) -> None:
        self._options = blobs.options
        super().__init__(blobs, table, batches, number, bad)
        self._known: dict[int, _Held] = {}
        # In the order in which they will be needed.
        self._unplanned: dict[int, _Held] = {}
        self._queue: deque[Request] = deque()
        self._urgent: list[_Held] = []
        self._under_way = 0
        #: Bytes under way or here.
        self._outstanding = 0

    def _reach(self) -> int:
        return self._options.memory + self._options.memory // 2

    def _announce(self, wanted: list[tuple[Wanted, FileRef]]) -> None:
        with self._lock:
            for one, _ in wanted:
                self._use(self._known.get(one.number) or self._hold(one))

    def _drop(self, wanted: list[tuple[Wanted, FileRef]]) -> None:
        with self._lock:
            for one, _ in wanted:
                held = self._known.pop(one.number, None)
                if held is None:
                    continue
                self._unplanned.pop(one.number, None)
                self._announced -= held.uses * held.size
                held.uses = 0  # what comes of it yet is not counted
                if isinstance(held.data, bytes):
                    self._outstanding -= held.size

    def _hold(self, one: Wanted) -> _Held:
        held = self._known[one.number] = self._unplanned[one.number] = _Held(one)
        return held

    def _use(self, held: _Held) -> None:
        held.uses += 1
        self._announced += held.size

    def _ask(self, fetch: Fetch, wanted: list[tuple[Wanted, FileRef]]) -> None:
        of_batch: list[_Held] = []
        fetch.taken_by(lambda: self._taken(of_batch))
        with self._lock:
            for one, _ in wanted:
                held = self._known.get(one.number)
                if held is None:
                    held = self._hold(one)
                    self._use(held)
                of_batch.append(held)
                if not held.done:
                    fetch.missing += 1
                    held.waiting.append(fetch)
                    self._urgent.append(held)
            if not fetch.missing:
                fetch.finish()

    def _taken(self, of_batch: list[_Held]) -> list[Found]:
        found = []
        with self._lock:
            for held in of_batch:
                found.append(held.data)
                if not held.uses:
                    continue
                held.uses -= 1
                self._announced -= held.size
                if not held.uses and self._known.get(held.number) is held:
                    del self._known[held.number]
                    if isinstance(held.data, bytes):
                        self._outstanding -= held.size
        self._wake()
        return found

    def _pump(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._start_urgent()
            while self._under_way < self._options.concurrency:
                if not self._queue and not self._plan():
                    return
                room = self._options.memory - self._outstanding
                if self._queue[0].size > room and self._outstanding:
                    return
                self._begin(self._queue.popleft())

    def _start_urgent(self) -> None:
        """Begins what a batch waits for and was not begun, whatever is held."""
        urgent, self._urgent = self._urgent, []
        unplanned = {held.number for held in urgent if held.number in self._unplanned}
        if unplanned:
            self._plan(unplanned)
        for held in urgent:
            request = held.request
            if request is not None and not held.done and request in self._queue:
                self._queue.remove(request)
                self._begin(request)

    def _plan(self, needed: Set[int] = frozenset()) -> bool:
        """Makes requests of what was announced; whether there are any now.

        Args:
            needed: Numbers of samples whose requests are to be made, in any case.
        """
        options = self._options
        far = [self._unplanned[number] for number in needed]
        coming, reach = self._unplanned.values(), options.memory // 2
        for request in plan(coming, reach, options.merge_gap, options.max_request, far):
            for held in request.members:
                held.request = request
                del self._unplanned[held.number]
            self._queue.append(request)
        return bool(self._queue)

    def _begin(self, request: Request) -> None:
        self._under_way += 1
        self._outstanding += request.size
        self._peak = max(self._peak, self._outstanding)
        self._start(self._run(request))

    async def _run(self, request: Request) -> None:
        wrong: list[_Held] = []
        error: FastdataError | None = None
        got: dict[int, bytes] = {}

        def found(held: _Held, data: bytes) -> None:
            got[held.number] = data

        try:
            wrong = await self._reader.read_checked(request, found)
        except FastdataError as raised:
            error = raised
        except Exception as raised:  # or a batch would wait for ever
            error = _unexpected(raised)
        with self._lock:
            self._under_way -= 1
            self._outstanding -= request.size
            if self._closed:
                return
            for held in request.members:
                data = got.get(held.number)
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

    def _forget(self) -> None:
        self._known.clear()
        self._unplanned.clear()
        self._queue.clear()
        self._urgent.clear()


class CachePass(RemotePass):
    """A pass that fills a cache folder ahead, and reads from it."""

    def __init__(
        self,
        blobs: RemoteBlobs,
        table: ExtentTable,
        batches: Iterator[tuple[Indices, int]],
        number: Callable[[Indices], Indices],
        bad: Set[int],
    ) -> None:
        cache = blobs.local_cache
        assert cache is not None
        self._cache: PieceCache = cache
        # Pieces to come are not to push out each other.
        self._most = max(cache.limit // (2 * blobs.options.piece_bytes), 2)
        super().__init__(blobs, table, batches, number, bad)
        self._pieces: dict[tuple[FileRef, int], int] = {}
        # How often each sample, by its number, was announced and not yet taken.
        self._uses: Counter[int] = Counter()
        self._begun: set[tuple[FileRef, int]] = set()
        self._asked: deque[tuple[Fetch, list[tuple[Wanted, FileRef]]]] = deque()
        self._filled = cache.fills
        self._read = cache.reads

    def stats(self) -> RemoteStats:
        """See `RemotePass.stats`."""
        return (
            super()
            .stats()
            ._replace(
                cache_reads=self._cache.reads - self._read,
                cache_fills=self._cache.fills - self._filled,
                cache_bytes=self._cache.used,
            )
        )

    def _reach(self) -> int:
        return min(self._blobs.options.memory, self._cache.limit // 4)

    def _announce(self, wanted: list[tuple[Wanted, FileRef]]) -> None:
        with self._lock:
            for one, ref in wanted:
                self._announced += one.size
                self._uses[one.number] += 1
                for piece in self._cache.pieces(one, ref):
                    self._pieces[piece] = self._pieces.get(piece, 0) + 1

    def _drop(self, wanted: list[tuple[Wanted, FileRef]]) -> None:
        with self._lock:
            for one, ref in wanted:
                while self._uses[one.number]:
                    self._used(one, ref)
                del self._uses[one.number]

    def _used(self, one: Wanted, ref: FileRef) -> None:
        """A sample that was announced was taken, or never will be."""
        self._uses[one.number] -= 1
        if not self._uses[one.number]:
            del self._uses[one.number]
        self._announced -= one.size
        for piece in self._cache.pieces(one, ref):
            self._done_with(piece)

    def _ask(self, fetch: Fetch, wanted: list[tuple[Wanted, FileRef]]) -> None:
        with self._lock:
            self._asked.append((fetch, wanted))

    def _pump(self) -> None:
        with self._lock:
            if self._closed:
                return
            while self._asked:
                self._start(self._serve(*self._asked.popleft()))
            waiting = islice((p for p in self._pieces if p not in self._begun), self._most)
            for piece in list(waiting)[: self._most - len(self._begun)]:
                self._begun.add(piece)
                self._cache.protect(piece)
                self._start(self._fill(piece))

    async def _fill(self, piece: tuple[FileRef, int]) -> None:
        with suppress(Exception):  # whoever needs it will be told
            await self._cache.ensure(*piece)
        self._pump()

    async def _serve(self, fetch: Fetch, wanted: list[tuple[Wanted, FileRef]]) -> None:
        try:
            found = await self._cache.read(wanted)
        except Exception as error:  # or a batch would wait for ever
            found = [_unexpected(error)] * len(wanted)

        def take() -> list[Found]:
            with self._lock:
                for one, ref in wanted:
                    if self._uses[one.number]:
                        self._used(one, ref)
            self._wake()
            return found

        fetch.taken_by(take)
        fetch.finish()

    def _done_with(self, piece: tuple[FileRef, int]) -> None:
        left = self._pieces.get(piece, 0) - 1
        if left > 0:
            self._pieces[piece] = left
            return
        self._pieces.pop(piece, None)
        if piece in self._begun:
            self._begun.discard(piece)
            self._cache.unprotect(piece)

    def _forget(self) -> None:
        for piece in self._begun:
            self._cache.unprotect(piece)
        self._begun.clear()
        self._pieces.clear()
        self._uses.clear()


def _unexpected(error: Exception) -> FastdataError:
    """What a batch is told of an error that nobody has thought of."""
    if isinstance(error, FastdataError):
        return error
    return RemoteError(f"fetching failed: {describe_error(error)}", "Please report this.")

"""Rate of reading samples, from storage and from the page cache."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.decode import Engine
from fastdata.doctor import page_cache
from fastdata.errors import DataError
from fastdata.text import human_count

if TYPE_CHECKING:
    from fastdata.doctor.opening import Opened

#: Most samples to read: more do not make rates more precise.
_SAMPLES = 2_048
#: Samples to keep for decoding: for each second of reading, at least, at most; and most bytes.
_KEPT_A_SECOND, _LEAST_KEPT, _MOST_KEPT = 110, 64, 384
_KEPT_BYTES = 64 << 20
_LEAST_SAMPLES = 16
#: Neighbours that are read in order at a time.
_RUN = 128
#: Largest share of dropped pages that may remain in memory, for a read to count as cold.
_LEFT = 0.1


@dataclass
class Reads:
    """Reads and their time.

    Attributes:
        images: Reads that succeeded.
        size: Their bytes.
        seconds: Wall time.
        cpu_seconds: CPU time of all threads.
        blobs: By sample number, what was kept.
        problems: By sample number, why it could not be read.
    """

    images: int = 0
    size: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    blobs: dict[int, bytes] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)

    @property
    def rate(self) -> float | None:
        """Images/s; None without any read."""
        return self.images / self.seconds if self.images and self.seconds > 0 else None


class Storage(NamedTuple):
    """Measurements of storage.

    Attributes:
        first: The first reads: cold, unless there is a note.
        note: Why the data was in memory; else empty.
        warm: Reads from the page cache.
        in_order: Images/s of cold reads of neighbours.
    """

    first: Reads
    note: str
    warm: Reads
    in_order: float | None


def draw_samples(opened: Opened) -> npt.NDArray[np.int64]:
    """Draw the numbers of the samples to measure, int64, in random order; always the same."""
    count = len(opened.source)
    mean = max(1.0, opened.data.bytes / max(opened.data.samples, 1))
    most = max(1, min(count, _SAMPLES, int(4 * _KEPT_BYTES / mean)))
    generator = np.random.default_rng(0)
    if count <= 4 * most:
        return generator.permutation(count)[:most].astype(np.int64)
    # Of many, drawn: a permutation would take memory for them all.
    return generator.permutation(np.unique(generator.integers(0, count, most)))


def measure(
    opened: Opened, samples: npt.NDArray[np.int64], threads: int, seconds: float
) -> Storage:
    """Measure reading, cold and then warm.

    Raises:
        DataError: None of them can be read.
    """
    note = _try_to_drop(opened, samples)
    with Engine(threads) as engine:
        kept = round(seconds * _KEPT_A_SECOND)
        reader = _Reader(opened, engine, min(max(kept, _LEAST_KEPT), _MOST_KEPT))
        first = reader.cold(samples, seconds * 0.4, drops=note == "")
        if not first.images:
            number, problem = next(iter(first.problems.items()))
            tried = human_count(len(first.problems), "sample")
            raise DataError(
                f"{opened.data.location}: none of {tried} can be read; sample {number}: {problem}",
                "See what is damaged with fastdata verify.",
            )
        in_order = None
        if note == "" and opened.data.root is None:
            in_order = reader.in_order(seconds * 0.2)
        warm = reader.warm(np.array(sorted(first.blobs), np.int64), seconds * 0.2)
    return Storage(first, note, warm, in_order)


def _try_to_drop(opened: Opened, samples: npt.NDArray[np.int64]) -> str:
    """Drop samples from the page cache; return the reason if that fails, else ""."""
    if opened.data.in_memory:
        return "in memory already"
    try:
        extents = opened.extents(samples)
        page_cache.drop(extents)
        left = page_cache.resident_share(extents[:256])
    except OSError as error:
        return f"the page cache could not be dropped: {error.strerror or error}"
    if left > _LEFT:
        return (
            f"the kernel kept {left:.0%} in its page cache: another process may have the "
            "files mapped, or they are not yet on the disk"
        )
    return ""


class _Reader:
    """Reader of samples like the loader: with an engine's threads, checksums included."""

    def __init__(self, opened: Opened, engine: Engine, kept: int) -> None:
        self._opened = opened
        self._kept = kept
        self._engine = engine

    def cold(self, samples: npt.NDArray[np.int64], seconds: float, *, drops: bool) -> Reads:
        """Read samples that were dropped; if there are few, drop and read them again.

        Keeps some. If storage is slow, it reads as many as later stages need, however long that
        takes; these reads do not count.
        """
        total = Reads()
        until = time.perf_counter() + seconds
        while True:
            self._read(self._batches(samples), until, total, keep=not total.images)
            # Of a few files, a few passes: their scatter evens out.
            if not drops or not total.images or time.perf_counter() > until or total.seconds > 0.5:
                break
            page_cache.drop(self._opened.extents(samples))
        seen = [*total.blobs, *total.problems]
        lacking = max(_LEAST_SAMPLES - len(total.blobs), 0) if total.images else 0
        more = Reads(blobs=total.blobs, problems=total.problems)
        self._read([samples[~np.isin(samples, seen)][:lacking]], np.inf, more, keep=True)
        return total

    def warm(self, samples: npt.NDArray[np.int64], seconds: float) -> Reads:
        """Read the same samples repeatedly, after a first pass."""
        total = Reads()
        self._read([samples], np.inf, Reads())
        order = np.random.default_rng(0).permutation(np.resize(samples, _SAMPLES))
        batches = itertools.chain.from_iterable(self._batches(order) for _ in itertools.count())
        self._read(batches, time.perf_counter() + seconds, total)
        return total

    def in_order(self, seconds: float) -> float | None:
        """Measure images/s of reading neighbours in order, cold."""
        count = len(self._opened.source)
        generator = np.random.default_rng(1)
        until = time.perf_counter() + seconds
        total = Reads()
        while time.perf_counter() < until and total.seconds < seconds / 2:
            starts = generator.integers(0, max(count - _RUN, 0) + 1, self._engine.threads)
            runs = [np.arange(at, min(at + _RUN, count), dtype=np.int64) for at in starts]
            try:
                page_cache.drop(extent for run in runs for extent in self._opened.extents(run))
            except OSError:
                break
            self._read(runs, until, total)
        return total.rate

    def _batches(self, samples: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        """Yield samples in batches that are short enough to check the clock between them."""
        size = 4 * self._engine.threads
        return (samples[begin : begin + size] for begin in range(0, len(samples), size))

    def _read(
        self,
        batches: Iterable[npt.NDArray[np.int64]],
        until: float,
        total: Reads,
        *,
        keep: bool = False,
    ) -> None:
        """Read batches until the time is over, at least one, and add to a total."""
        kept = sum(map(len, total.blobs.values()))
        pending: deque[tuple[npt.NDArray[np.int64], _native.ReadJob]] = deque()
        batches = iter(batches)
        begun, cpu = time.perf_counter(), time.process_time()
        going = True
        while going or pending:
            # Two are under way, so that no thread waits for the last reads of others.
            while going and len(pending) < 2:
                numbers = next(batches, None)
                if numbers is not None:
                    extents = self._opened.source.gather(numbers).blobs["image"].extents
                    pending.append((numbers, self._engine.read(extents)))
                going = numbers is not None and time.perf_counter() < until
            if not pending:
                break
            numbers, job = pending.popleft()
            while not job.wait(0.05):  # signals get through between
                pass
            for at, _, detail, _ in job.failures():
                total.problems[int(numbers[at])] = detail
            for number, blob in zip(numbers.tolist(), job.take(), strict=True):
                if blob is None:
                    continue
                total.images += 1
                total.size += len(blob)
                if keep and kept < _KEPT_BYTES and len(total.blobs) < self._kept:
                    total.blobs[number] = blob.tobytes()
                    kept += len(blob)
        total.seconds += time.perf_counter() - begun
        total.cpu_seconds += time.process_time() - cpu

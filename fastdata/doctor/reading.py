"""How fast samples are read: from where they lie, and from the page cache."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fastdata.doctor import page_cache
from fastdata.doctor.opening import Opened
from fastdata.errors import DataError

#: Samples that are read at most: more say no more.
_SAMPLES = 2_048
#: Bytes of them that are kept, to be decoded.
_KEPT_BYTES = 64 << 20
_KEPT_SAMPLES = 384
_LEAST_SAMPLES = 16
#: Neighbours that are read in order at a time.
_RUN = 128
#: What may be left in memory of what was dropped, for a read to count as cold.
_LEFT = 0.1


@dataclass
class Reads:
    """What was read, and in what time.

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
        """Images/s; None if nothing was read."""
        return self.images / self.seconds if self.images and self.seconds > 0 else None


@dataclass(frozen=True)
class Storage:
    """What was measured of the storage; see `fastdata.doctor.findings.Rates`.

    Attributes:
        cold: Images/s of what is not in memory; None where that cannot be had.
        cold_note: Why not.
        warm: Images/s of what is.
        cpu_s: CPU seconds of reading one image.
        in_order: Images/s, cold, of neighbours.
        without_opening: Images/s, cold, had no file to be opened for each.
        blobs: By sample number, some of what was read.
        mean_bytes: Of an image.
        problems: By sample number, why it could not be read.
    """

    cold: float | None
    cold_note: str
    warm: float | None
    cpu_s: float
    in_order: float | None
    without_opening: float | None
    blobs: dict[int, bytes]
    mean_bytes: float
    problems: dict[int, str]


def draw_samples(opened: Opened, seed: int = 0) -> npt.NDArray[np.int64]:
    """Numbers of the samples to measure, int64, in random order."""
    count = len(opened.source)
    mean = max(1.0, opened.bytes / max(opened.samples, 1))
    most = max(1, min(count, _SAMPLES, int(4 * _KEPT_BYTES / mean)))
    generator = np.random.default_rng(seed)
    if count <= 4 * most:
        return generator.permutation(count)[:most].astype(np.int64)
    # Of many, drawn: a permutation would take memory for them all.
    return generator.permutation(np.unique(generator.integers(0, count, most)))


def measure(
    opened: Opened, samples: npt.NDArray[np.int64], threads: int, seconds: float
) -> Storage:
    """Measures reading, cold and then warm.

    Args:
        opened: The dataset.
        samples: Which to read, in this order.
        threads: How many read at the same time.
        seconds: How long it may take.

    Raises:
        DataError: None of them can be read.
    """
    note = _try_to_drop(opened, samples)
    opening = None
    if note == "" and opened.root is not None:
        opening = _opening_seconds(opened, samples[-64:], seconds * 0.05)
    total = _read_cold(opened, samples, threads, seconds * 0.4, drops=note == "")
    if total.images:
        # Of a slow storage too few for the stages that come, whatever time was given.
        more = samples[~np.isin(samples, list(total.blobs) + list(total.problems))]
        lacking = max(_LEAST_SAMPLES - len(total.blobs), 0)
        rest = Reads(blobs=total.blobs, problems=total.problems)
        _read(opened, more[:lacking], threads, np.inf, rest, keep=True)
    if not total.images:
        first = next(iter(total.problems.items()), (0, "nothing was read in time"))
        raise DataError(
            f"{opened.location}: none of {len(total.problems)} samples can be read; sample "
            f"{first[0]}: {first[1]}",
            "See what is damaged with fastdata verify.",
        )
    in_order = None
    if note == "" and opened.root is None:
        in_order = _read_in_order(opened, threads, seconds * 0.2)
    done = np.array(sorted(total.blobs), np.int64)
    np.random.default_rng(0).shuffle(done)
    warm = _read_warm(opened, done, threads, seconds * 0.2)
    cold = total.rate if note == "" else None
    # Not less than a tenth of the time: what the system's own cache of names hides is unknown.
    without = None
    if cold is not None and opening is not None:
        without = 1 / max(1 / cold - opening / threads, 0.1 / cold)
    return Storage(
        cold=cold,
        cold_note=note,
        warm=warm.rate,
        cpu_s=warm.cpu_seconds / max(warm.images, 1),
        in_order=in_order,
        without_opening=without,
        blobs=total.blobs,
        mean_bytes=total.size / total.images,
        problems=total.problems,
    )


def _try_to_drop(opened: Opened, samples: npt.NDArray[np.int64]) -> str:
    """Drops samples from the page cache; why that could not be done, or nothing."""
    if opened.in_memory:
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


def _read_cold(
    opened: Opened, samples: npt.NDArray[np.int64], threads: int, seconds: float, *, drops: bool
) -> Reads:
    """Reads samples, again and again where there are few, each time dropped before."""
    total = Reads()
    until = time.perf_counter() + seconds
    while True:
        _read(opened, samples, threads, until, total, keep=not total.images)
        # Of a few files, a few passes: their scatter evens out.
        if not drops or not total.images or time.perf_counter() > until or total.seconds > 0.5:
            return total
        page_cache.drop(opened.extents(samples))


def _read_warm(
    opened: Opened, samples: npt.NDArray[np.int64], threads: int, seconds: float
) -> Reads:
    """Reads the same samples over and over; what they cost a core is told by one thread."""
    alone, total = Reads(), Reads()
    _read(opened, samples, threads, np.inf, Reads())  # those of a first read that was cut short
    # Of few, many times each: starting threads must not count.
    samples = np.resize(samples, max(len(samples), _SAMPLES))
    begun = time.perf_counter()
    while not alone.images or time.perf_counter() < begun + seconds * 0.4:
        _read(opened, samples, 1, begun + seconds * 0.4, alone)
        if not alone.images:
            break
    while not total.images or time.perf_counter() < begun + seconds:
        _read(opened, samples, threads, begun + seconds, total)
        if not total.images:
            break
    total.cpu_seconds = alone.cpu_seconds / max(alone.images, 1) * total.images
    return total


def _read_in_order(opened: Opened, threads: int, seconds: float) -> float | None:
    """Images/s of reading neighbours in order, cold; each thread has its own."""
    count = len(opened.source)
    generator = np.random.default_rng(1)
    until = time.perf_counter() + seconds
    total = Reads()
    while time.perf_counter() < until and total.seconds < seconds / 2:
        starts = generator.integers(0, max(count - _RUN, 0) + 1, threads)
        runs = [np.arange(at, min(at + _RUN, count), dtype=np.int64) for at in starts]
        try:
            page_cache.drop(extent for run in runs for extent in opened.extents(run))
        except OSError:
            break
        _read_parts(opened, runs, until, total)
    return total.rate


def _opening_seconds(
    opened: Opened, samples: npt.NDArray[np.int64], seconds: float
) -> float | None:
    """Seconds that opening a sample's file takes, one after the other."""
    until = time.perf_counter() + seconds
    times = []
    for extent in opened.extents(samples):
        begun = time.perf_counter()
        try:
            os.close(os.open(extent.path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            continue
        times.append(time.perf_counter() - begun)
        if begun > until:
            break
    return sum(times) / len(times) if times else None


def _read(
    opened: Opened,
    samples: npt.NDArray[np.int64],
    threads: int,
    until: float,
    total: Reads,
    *,
    keep: bool = False,
) -> None:
    _read_parts(opened, [samples[at::threads] for at in range(threads)], until, total, keep=keep)


def _read_parts(
    opened: Opened,
    parts: Sequence[npt.NDArray[np.int64]],
    until: float,
    total: Reads,
    *,
    keep: bool = False,
) -> None:
    """Reads each part by a thread of its own, in order, and adds to a total.

    Each thread reads at least one sample, however little time there is.
    """
    lock = threading.Lock()
    kept = sum(map(len, total.blobs.values()))

    def work(indices: npt.NDArray[np.int64]) -> None:
        nonlocal kept
        extents = opened.source.gather(indices).extents
        images = size = 0
        cpu = time.thread_time()
        for at, number in enumerate(indices.tolist()):
            try:
                blob = extents.read(at)
            except (OSError, ValueError) as error:
                total.problems[number] = str(error)
                continue
            images += 1
            size += len(blob)
            if keep and kept < _KEPT_BYTES and len(total.blobs) < _KEPT_SAMPLES:
                total.blobs[number] = blob
                kept += len(blob)
            if time.perf_counter() > until:
                break
        cpu = time.thread_time() - cpu
        with lock:
            total.images += images
            total.size += size
            total.cpu_seconds += cpu

    parts = [part for part in parts if len(part)]
    begun = time.perf_counter()
    if len(parts) == 1:
        work(parts[0])
    elif parts:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(work, parts))
    total.seconds += time.perf_counter() - begun

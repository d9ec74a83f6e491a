"""`Buckets`: batches of rows of one class, such as an aspect ratio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastdata.plan.batches import Consumed, Plan, Rest, with_occurrences
from fastdata.plan.draws import child
from fastdata.plan.order import Order, Random, Sequential
from fastdata.plan.position import digest_of
from fastdata.plan.schedule import Drawn, ordered
from fastdata.plan.sharding import Epoch
from fastdata.text import human_size

#: Children of the key of an epoch, as in `fastdata.plan.draws`.
_STEPS, _ROWS = -9, -10

#: Rows, or steps, that are worked on at once.
_AT_ONCE = 1 << 16


def nearest(
    widths: npt.NDArray[np.int32], heights: npt.NDArray[np.int32], ratios: Sequence[float]
) -> npt.NDArray[np.uint16]:
    """Return the place of the nearest of some ratios, in ascending order, for each size.

    Ratios are width / height; the nearest is that by their logarithms, of two the greater. All of
    it is divisions, products and square roots, which every machine rounds alike.
    """
    ends = np.sqrt(np.multiply(ratios[:-1], ratios[1:]))
    return np.searchsorted(ends, widths / heights, side="right").astype(np.uint16)


class Buckets(Plan):
    """Batches of rows of one bucket, which is the same on all ranks in one step.

    Every bucket is an epoch of its own, in random order. Its last batches take the rest, shared
    evenly among the ranks; rows are repeated only where they do not come out even. Steps of all
    buckets are mixed at random.

    It takes 4 bytes a row (8 from 2**31 rows on).

    ``bucket`` has a row's bucket, (samples,); ``batch_sizes`` are of one rank; ``sizes`` are
    (width, height), () where batches have none. Without ``shuffle``, buckets come as stored.
    """

    def __init__(
        self,
        bucket: npt.NDArray[np.unsignedinteger],
        batch_sizes: Sequence[int],
        sizes: Sequence[tuple[int, int]] = (),
        classes: Sequence[str] = (),
        *,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self.samples = len(bucket)
        self.sizes, self.batch_sizes = tuple(sizes), tuple(batch_sizes)
        self.classes = tuple(classes) or tuple(human_size(*size) for size in sizes)
        self.shuffle, self.drop_last = shuffle, drop_last
        self.counts = np.zeros(len(batch_sizes), np.int64)
        for first in range(0, self.samples, _AT_ONCE):
            part = bucket[first : first + _AT_ONCE]
            self.counts += np.bincount(part, minlength=len(self.counts))
        self._ends = np.cumsum(self.counts)
        self._rows = np.empty(self.samples, np.int32 if self.samples < 1 << 31 else np.int64)
        at = (self._ends - self.counts).tolist()
        for first in range(0, self.samples, _AT_ONCE):
            # Sorting bytes takes time in proportion to their number.
            part = bucket[first : first + _AT_ONCE]
            order = np.argsort(part, kind="stable")
            begin = 0
            for number, count in enumerate(np.bincount(part, minlength=len(at)).tolist()):
                rows = order[begin : begin + count] + first
                self._rows[at[number] : at[number] + count] = rows
                at[number] += count
                begin += count
        settings = self.sizes, self.batch_sizes, shuffle, drop_last, self.samples
        self.digest = digest_of(self._rows, self.counts, settings)

    def rows(self, number: int) -> npt.NDArray[np.signedinteger]:
        """Return the rows of a bucket, in ascending order."""
        end = int(self._ends[number])
        return self._rows[end - int(self.counts[number]) : end]

    def order(self, key: int, number: int) -> Order:
        """Return the order of a bucket's rows in an epoch."""
        count = int(self.counts[number])
        own = child(child(key, _ROWS), number)
        return Random(count, own) if self.shuffle else Sequential(count)

    def rest(self, key: int, world_size: int = 1, position: Consumed = ()) -> BucketsRest:
        begun, taken = (0,) * len(self.counts), 0
        if position:
            ranks, taken, *done = position
            begun = tuple(done)
            if ranks != world_size:  # what those have consumed is the beginning
                before = BucketsRest(self, key, ranks, begun, taken)
                begun, taken = before.consumed, 0
        return BucketsRest(self, key, world_size, begun, taken)

    def _fits(self, position: Consumed, key: int) -> bool:
        if len(position) != 2 + len(self.counts) or np.any(position[2:] > self.counts):
            return False
        return position[1] <= self.rest(key, position[0], (*position[:1], 0, *position[2:])).total


@dataclass
class BucketsRest(Rest):
    """See `Rest`. ``begun`` are rows of each bucket consumed before these ranks began.

    ``taken`` counts steps since then, out of ``total``; ``consumed`` are rows of each bucket.
    """

    plan: Buckets
    key: int
    world_size: int
    begun: tuple[int, ...]
    taken: int

    def __post_init__(self) -> None:
        epochs = [self._epoch(number, done) for number, done in enumerate(self.begun)]
        self._last = np.cumsum([len(epoch) for epoch in epochs])
        self.total = int(self._last[-1])
        order = Random(self.total, child(self.key, _STEPS))
        self._order = order if self.plan.shuffle else Sequential(self.total)
        steps = np.zeros(len(epochs), np.int64)
        for part in self._buckets(0, self.taken):
            steps += np.bincount(part, minlength=len(steps))
        full = np.multiply(self.plan.batch_sizes, self.world_size)
        left = np.minimum(self.begun + steps * full, self.plan.counts)
        self.consumed: tuple[int, ...] = tuple(left.tolist())

    def _epoch(self, number: int, start: int, rank: int = 0) -> Epoch:
        plan = self.plan
        count, size = int(plan.counts[number]), plan.batch_sizes[number]
        return Epoch(count, size, rank, self.world_size, plan.drop_last, start)

    def _buckets(self, first: int, stop: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the buckets of some steps, in pieces."""
        for begin in range(first, stop, _AT_ONCE):
            steps = self._order(np.arange(begin, min(begin + _AT_ONCE, stop)))
            yield np.searchsorted(self._last, steps, side="right")

    def __len__(self) -> int:
        return self.total - self.taken

    def batches(self, rank: int) -> Iterator[Drawn]:
        plan, step = self.plan, self.taken
        begun: dict[int, Iterator[Drawn]] = {}
        for part in self._buckets(self.taken, self.total):
            for number in part.tolist():
                if number not in begun:
                    epoch = self._epoch(number, self.consumed[number], rank)
                    begun[number] = ordered(epoch, plan.order(self.key, number))
                draws, _, _ = next(begun[number])
                step += 1
                rows, count = plan.rows(number), int(plan.counts[number])
                in_dataset = with_occurrences(draws, rows, count, plan.samples)
                yield in_dataset, (self.world_size, step, *self.begun), number

"""`Packed`: batches whose rows' lengths add up to a budget at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.plan.batches import Consumed, Plan, Rest
from fastdata.plan.draws import child
from fastdata.plan.order import Order, Random, Sequential
from fastdata.plan.position import digest_of
from fastdata.plan.schedule import Drawn, Indices

#: Children of the key of an epoch, as in `fastdata.plan.draws` and in `Buckets`.
_ROWS, _BATCHES = -11, -12


class Packed(Plan):
    """Batches that are packed within windows of the order.

    The rows of an epoch are in random order, and cut into windows of about equal length. Those of a
    window are packed by best fit, as equally as they can be; its batches are in random order, and
    each step takes the next one for every rank. So batches do not depend on the number of ranks.
    If fewer batches than ranks are left, the largest ones are divided.

    It takes the memory of the lengths, and of one window.

    ``lengths``, (samples,), are from 1 to ``budget``, the most that a batch adds up to. ``window``
    is in rows. Without ``shuffle``, windows and their batches are as stored.
    """

    def __init__(
        self,
        lengths: npt.NDArray[np.integer],
        budget: int,
        window: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self.samples, self.lengths = len(lengths), lengths
        self.budget, self.window = budget, window
        self.classes = (f"budget {budget:,}",)
        self.shuffle, self.drop_last = shuffle, drop_last
        self.windows = -(-self.samples // window)
        self.digest = digest_of(lengths, (self.samples, budget, window, shuffle, drop_last))
        # The core counts in units; a row takes whole ones, so budgets are kept.
        self._unit = -(-budget // _native.MOST_BUDGET)
        self._counted: tuple[int, list[int]] | None = None

    def order(self, key: int) -> Order:
        """Return the order of rows in an epoch."""
        own = child(key, _ROWS)
        return Random(self.samples, own) if self.shuffle else Sequential(self.samples)

    def packed(self, order: Order, key: int, number: int) -> list[Indices]:
        """Return the batches of a window."""
        rows, items, starts = self.windowed(order, number)
        # One gather for all; batches are views.
        rows = rows[items]
        pieces = [rows[begin:end] for begin, end in pairwise(starts.tolist())]
        if not self.shuffle:
            return pieces
        turns = Random(len(pieces), child(child(key, _BATCHES), number))
        return [pieces[at] for at in turns(np.arange(len(pieces))).tolist()]

    def windowed(
        self, order: Order, number: int
    ) -> tuple[Indices, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the rows of a window, and their places batch by batch, with where each begins."""
        first, stop = (at * self.samples // self.windows for at in (number, number + 1))
        rows = order(np.arange(first, stop))
        lengths, budget = self.lengths[rows], self.budget
        if self._unit > 1:
            # Rounded up, a row may be longer than the budget rounded down: it then fills a batch.
            budget //= self._unit
            lengths = np.minimum(-(-lengths // self._unit), budget)
        return rows, *_native.pack(lengths.astype(np.int32, copy=False), budget)

    def counts(self, key: int) -> list[int]:
        """Return the number of batches in each window of an epoch; kept for the latest one."""
        if self._counted is None or self._counted[0] != key:
            order = self.order(key)
            lengths = [len(self.windowed(order, at)[2]) - 1 for at in range(self.windows)]
            self._counted = key, lengths
        return self._counted[1]

    def rest(self, key: int, world_size: int = 1, position: Consumed = ()) -> PackedRest:
        return PackedRest(self, key, world_size, *(position[2:] or (0, 0)))

    def _fits(self, position: Consumed, key: int) -> bool:
        if len(position) != 4 or position[2] >= self.windows:
            return False
        return position[3] <= self.counts(key)[position[2]]


@dataclass
class PackedRest(Rest):
    """See `Rest`; ``window`` is the first with batches left, of which ``taken`` are consumed."""

    plan: Packed
    key: int
    world_size: int
    window: int
    taken: int

    def __len__(self) -> int:
        left = sum(self.plan.counts(self.key)[self.window :]) - self.taken
        full, rest = divmod(left, self.world_size)
        return full + (rest > 0 and not self.plan.drop_last)

    def batches(self, rank: int) -> Iterator[Drawn]:
        plan, order = self.plan, self.plan.order(self.key)
        ready: deque[tuple[Indices, int, int]] = deque()
        step, window = 0, self.window
        while True:
            while window < plan.windows and len(ready) < self.world_size:
                packed = plan.packed(order, self.key, window)
                begin = self.taken if window == self.window else 0
                ready.extend((packed[at], window, at + 1) for at in range(begin, len(packed)))
                window += 1
            if not ready or (len(ready) < self.world_size and plan.drop_last):
                return
            taken = [ready.popleft() for _ in range(min(self.world_size, len(ready)))]
            batches, step = [rows for rows, _, _ in taken], step + 1
            if len(batches) < self.world_size:
                batches = divided(batches, self.world_size, plan.samples)
            yield batches[rank], (self.world_size, step, *taken[-1][1:]), 0


def divided(batches: list[Indices], count: int, samples: int) -> list[Indices]:
    """Divide batches until there are ``count``; repeat the first ones where all have one row."""
    parts = list(batches)
    while len(parts) < count:
        at = max(range(len(parts)), key=lambda number: len(parts[number]))
        if len(parts[at]) < 2:
            break
        whole = parts[at]
        parts[at], part = whole[::2].copy(), whole[1::2].copy()
        parts.append(part)
    repeated = count - len(parts)
    for number in range(repeated):
        again, at = divmod(number, count - repeated)
        parts.append(parts[at] + (again + 1) * samples)
    return parts

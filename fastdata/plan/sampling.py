"""Orders that repeat or leave out rows: weighted, repeated, and so many of each class.

Each is a function from positions to rows. A position is drawn, too: a row that comes again at
another position is another occurrence of it, with crops of its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastdata.plan.draws import child, children
from fastdata.plan.order import Order, Random, permute, rounds_of

_UInts = npt.NDArray[np.uint64]

#: Rows among which a weighted order without replacement is exact; more are dealt into as many
#: windows as needed. A window takes 2 MiB, and 15 ms to compute.
RACE_WINDOW = 1 << 16

#: Children of an epoch's key.
_DRAWS, _DEAL = -10, -11
#: Children of a sampler's key.
_CLASSES, _WITHIN = -12, -13
_SHIFT11 = np.uint64(11)


def _uniform(key: int, numbers: _UInts) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each of some numbers: multiples of 2**-53."""
    drawn = children(np.uint64(key), numbers)
    uniform: npt.NDArray[np.float64] = (drawn >> _SHIFT11) * 2.0**-53
    return uniform


class Repeating(Order):
    """Order in which rows may come several times, or not at all."""

    def draws(self, positions: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
        """See `Order.draws`: the occurrence is the position, so no two draws are the same."""
        return self(positions % len(self)) + positions * n


class Weighted(Repeating):
    """Rows drawn with replacement, each draw by itself.

    ``cumulated`` are the rows' cumulative weights, float64; the last is positive.
    """

    def __init__(self, n: int, cumulated: npt.NDArray[np.float64], key: int) -> None:
        super().__init__(n)
        self._cumulated, self._key = cumulated, child(key, _DRAWS)

    def _samples(self, x: _UInts) -> _UInts:
        places = _uniform(self._key, x) * self._cumulated[-1]
        at = np.searchsorted(self._cumulated, places, "right")
        # Rounding may reach the end, which rows without weight may lie before.
        last = np.searchsorted(self._cumulated, self._cumulated[-1])
        rows: _UInts = np.minimum(at, last).astype(np.uint64)
        return rows


class Repeated(Repeating):
    """Rows repeated by a factor: each comes ``floor`` or ``ceil`` of it times.

    A cumulative factor plus a phase is rounded down: the number of positions up to its row. So
    factors are met on average over epochs, and all epochs have the same length. ``cumulated`` are
    the rows' cumulative factors, float64, which end at ``n``.
    """

    def __init__(self, n: int, cumulated: npt.NDArray[np.float64], key: int) -> None:
        super().__init__(n)
        self._cumulated, self._order = cumulated, Random(n, key)
        self._phase = child(key, _DRAWS) / 2.0**64

    def _samples(self, x: _UInts) -> _UInts:
        places = self._order._samples(x) + self._phase
        at = np.searchsorted(self._cumulated, places, "right")
        last = np.searchsorted(self._cumulated, self._cumulated[-1])
        rows: _UInts = np.minimum(at, last).astype(np.uint64)
        return rows


class Race(Repeating):
    """Weighted rows without replacement: each draw by the weights of the rows that are left.

    Each row gets an exponential time divided by its weight, and rows come by their times
    (Efraimidis, Spirakis: Weighted random sampling with a reservoir, 2006). Rows beyond
    `RACE_WINDOW` are dealt at random into windows, each of which gives its share of the positions,
    one after the other. So a window is computed at a time. ``weights`` are positive; ``rows`` are
    uint64, None for 0, 1, ...; ``n`` is at most their number.
    """

    def __init__(
        self, n: int, weights: npt.NDArray[np.floating], rows: _UInts | None, key: int
    ) -> None:
        super().__init__(n)
        self._weights, self._rows = weights, rows
        windows = -(-len(weights) // RACE_WINDOW)
        numbers = np.arange(windows + 1)
        self._starts = numbers * len(weights) // max(windows, 1)
        self._firsts = self._starts * n // max(len(weights), 1)
        self._deal, self._key = Random(len(weights), child(key, _DEAL)), child(key, _DRAWS)
        self._last: tuple[int, _UInts] = -1, np.empty(0, np.uint64)

    def _samples(self, x: _UInts) -> _UInts:
        places = x.astype(np.int64)
        windows = np.searchsorted(self._firsts, places, "right") - 1
        rows = np.empty_like(x)
        for window in np.unique(windows).tolist():
            here = windows == window
            rows[here] = self._window(window)[places[here] - self._firsts[window]]
        return rows

    def _window(self, number: int) -> _UInts:
        """Return the rows that a window's positions have."""
        at, rows = self._last
        if at != number:
            dealt = self._deal(np.arange(*self._starts[number : number + 2])).astype(np.uint64)
            # 1 - uniform is not 0.
            times = -np.log1p(-_uniform(self._key, dealt)) / self._weights[dealt]
            count = int(self._firsts[number + 1] - self._firsts[number])
            rows = dealt[np.argsort(times, kind="stable")[:count]]
            if self._rows is not None:
                rows = self._rows[rows]
            self._last = number, rows
        return rows


class PerClass(Repeating):
    """``m`` rows of one class, then of the next: classes come in rounds, each at random.

    Rows of a class come by its own permutations, which continue from epoch to epoch. ``rows`` are
    sorted by class, uint64; ``starts``, int64, has each class's begin in them, and their end.
    Rounds have ``classes`` classes. ``key`` is the sampler's.
    """

    def __init__(
        self,
        n: int,
        rows: _UInts,
        starts: npt.NDArray[np.int64],
        m: int,
        classes: int,
        epoch: int,
        key: int,
    ) -> None:
        super().__init__(n)
        self._rows, self._starts, self._m, self._classes = rows, starts, m, classes
        sizes = np.diff(starts)
        # A pass takes whole groups, so that the rows of a group differ if a class has as many.
        self._sizes = sizes.astype(np.uint64)
        self._passes = np.where(sizes < m, sizes, sizes // m * m).astype(np.uint64)
        # A class comes at most once in a round.
        self._first_round = epoch * -(-n // (m * classes))
        self._order, self._within = child(key, _CLASSES), child(key, _WITHIN)
        self._rounds = rounds_of(len(sizes)), max(map(rounds_of, np.unique(sizes).tolist()))

    def _samples(self, x: _UInts) -> _UInts:
        m, classes = np.uint64(self._m), np.uint64(self._classes)
        groups, within = x // m, x % m
        rounds = groups // classes + np.uint64(self._first_round)
        every = np.array([len(self._sizes)], np.uint64)
        keys = children(np.uint64(self._order), rounds)
        which = permute(groups % classes, every, keys, self._rounds[0])
        passes, places = np.divmod(rounds * m + within, self._passes[which])
        keys = children(children(np.uint64(self._within), which), passes)
        rows = permute(places, self._sizes[which], keys, self._rounds[1])
        return self._rows[rows + self._starts[which].astype(np.uint64)]

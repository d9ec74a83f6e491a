"""Mixtures: which row of which source is at each position of each epoch, as a pure function.

Positions fall into windows of 1,000 groups of neighbours (a group is one position, or one batch).
A window has ``floor`` or ``ceil`` of each source's share: the cumulative shares plus a phase are
rounded down, and neighbouring results subtracted, so the counts sum to 1,000 and each is less than
one from its share. The phases are van der Corput's sequence, so sources also get their share over
many windows, and the number of a source's draws before any window has a closed form. Inside the
window, a binary tree over the sources spreads each evenly: every node gives its positions to its
two halves by Bresenham's line. Groups of several positions are shuffled within their window.

Draw ``k`` of a source is place ``k mod n`` of permutation ``k div n`` of its ``n`` rows. ``k``
counts on from epoch to epoch, so each row comes exactly once per pass over its source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.plan.draws import child, children
from fastdata.plan.order import Random, permute, rounds_of
from fastdata.plan.position import digest_of

#: Groups in a window, in each of which the shares hold.
WINDOW = 1000

#: Bits of a share's fraction, and of a phase.
_BITS = 32
_ONE = 1 << _BITS
_HALF = _ONE >> 1
#: Windows and blocks of positions that are kept: batches under way, and the next.
_KEPT = 16

Ints: TypeAlias = npt.NDArray[np.int64]
#: Shares of the sources in an epoch: numbers from 0 of any scale, one of them positive.
Shares: TypeAlias = Callable[[int], Sequence[float]]


class MixturePlan:
    """Source and row at each position; ``starts`` has each source's first row among all.

    If shares are ``changing`` by epoch, the first use of epoch ``e`` asks for those of all before
    it. ``samples`` is a multiple of ``group``, the neighbouring positions that have one source.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        shares: Shares,
        changing: bool,
        samples: int,
        group: int,
        seed: int,
    ) -> None:
        self.samples, self.group = samples, group
        self._sizes = np.array(sizes, np.int64)
        self.starts = np.cumsum(self._sizes) - self._sizes
        self._shares, self._changing, self._seed = shares, changing, seed
        # Whole windows of an epoch, and the groups in its last one.
        self._whole, self._rest = divmod(samples // group, WINDOW)
        self._keys = np.array([child(child(seed, _ROWS), s) for s in range(len(sizes))], np.uint64)
        self._rounds = max(map(rounds_of, sizes))
        self._before: list[tuple[int, Ints]] = [(0, np.zeros(len(sizes), np.int64))]
        self._windows: dict[tuple[int, int], tuple[Ints, Ints]] = {}
        self._blocks: dict[tuple[int, int], tuple[Ints, Ints]] = {}

    def __call__(self, epoch: int, positions: Ints) -> tuple[Ints, Ints]:
        """Return the sources at some positions of an epoch, and the rows of these: as shaped."""
        asked = np.asarray(positions, np.int64)
        sources, rows = np.empty_like(asked), np.empty_like(asked)
        blocks = asked // WINDOW
        for number in np.unique(blocks).tolist():
            block = _kept(self._blocks, (epoch, number), self._block)
            here = blocks == number
            places = asked[here] - number * WINDOW
            sources[here], rows[here] = block[0][places], block[1][places]
        return sources, rows

    def fingerprint(self, epoch: int) -> int:
        """Return a number that tells this plan, up to an epoch, from others."""
        settings = self._seed, self.samples, self.group
        return digest_of(settings, self._sizes, self._quotas(epoch, WINDOW), self.drawn(epoch))

    def drawn(self, epoch: int) -> Ints:
        """Return how many groups each source has had before an epoch."""
        at, counts = self._before[-1]
        if epoch < at:
            at, counts = max(one for one in self._before if one[0] <= epoch)
        while at < epoch:
            stop = at + 1 if self._changing else epoch
            counts = counts + self._between(at, stop)
            at = stop
            if self._changing:
                self._before.append((at, counts))
        return counts

    def _between(self, first: int, stop: int) -> Ints:
        """Return the draws of each source in epochs of equal shares."""
        whole, rest = self._quotas(first, WINDOW), self._quotas(first, self._rest)
        ends = [_sums(whole, n * self._whole) + _sums(rest, n) for n in (first, stop)]
        drawn: Ints = np.diff(ends[1] - ends[0])
        return drawn

    def _quotas(self, epoch: int, count: int) -> Ints:
        """Return the cumulative shares of so many groups, in units of 2**-32, from 0 on."""
        shares = np.asarray(self._shares(epoch), np.float64)
        cumulated = np.concatenate([[0.0], np.cumsum(shares)])
        fixed = np.rint(cumulated / cumulated[-1] * (WINDOW * _ONE)).astype(np.int64)
        quotas: Ints = fixed * count // WINDOW
        return quotas

    def _block(self, epoch: int, number: int) -> tuple[Ints, Ints]:
        """Return the sources and rows of `WINDOW` neighbouring positions."""
        stop = min((number + 1) * WINDOW, self.samples)
        groups, within = np.divmod(np.arange(number * WINDOW, stop), self.group)
        sources, draws = np.empty_like(groups), np.empty_like(groups)
        windows = groups // WINDOW
        for window in range(windows[0], windows[-1] + 1):
            arrays = _kept(self._windows, (epoch, int(window)), self._window)
            here = windows == window
            places = groups[here] - window * WINDOW
            sources[here], draws[here] = arrays[0][places], arrays[1][places]
        passes, places = np.divmod(draws * self.group + within, self._sizes[sources])
        keys = children(self._keys[sources], passes.astype(np.uint64))
        sizes = self._sizes[sources].astype(np.uint64)
        rows = permute(places.astype(np.uint64), sizes, keys, self._rounds)
        return sources, rows.astype(np.int64)

    def _window(self, epoch: int, number: int) -> tuple[Ints, Ints]:
        """Return the source of each group of a window, and which of the source's draws it is."""
        whole = self._quotas(epoch, WINDOW)
        first = epoch * self._whole
        before = self.drawn(epoch) + np.diff(_sums(whole, first + number) - _sums(whole, first))
        if number < self._whole:
            quotas, phase = whole, _phase(first + number)
        else:
            quotas, phase = self._quotas(epoch, self._rest), _phase(epoch)
        counts = np.diff((quotas + phase) >> _BITS)
        if self.group == 1:
            sources, places = spread(counts)
        else:
            # Evenly spread batches could give each rank a source of its own.
            key = child(child(child(self._seed, _GROUPS), epoch), number)
            shuffled = Random(int(counts.sum()), key)(np.arange(counts.sum()))
            sources = np.repeat(np.arange(len(counts)), counts)[shuffled]
            places, order = np.empty_like(sources), np.argsort(sources, kind="stable")
            places[order] = np.arange(len(order)) - (np.cumsum(counts) - counts)[sources[order]]
        return sources, before[sources] + places


@dataclass(frozen=True, eq=False)
class MixedRows:
    """Rows at positions of one epoch of a mixture, computed on demand.

    ``numbers`` has the numbers of all sources' rows, one source after the other; None: from 0.
    """

    plan: MixturePlan
    epoch: int
    numbers: Ints | None

    def __len__(self) -> int:
        return self.plan.samples

    def __getitem__(self, positions: Any) -> Any:
        if isinstance(positions, slice):
            positions = np.arange(*positions.indices(len(self)))
        sources, rows = self.plan(self.epoch, positions)
        rows += self.plan.starts[sources]
        return rows if self.numbers is None else self.numbers[rows]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MixedRows):
            return False
        same = self.plan is other.plan and self.epoch == other.epoch
        return same and np.array_equal(self.numbers, other.numbers)  # type: ignore[arg-type]


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """Return an even sequence of sources, each as often as counted, and the place of each draw.

    Counts are int64, (S,), from 0; both results are int64, ``counts.sum()`` long. The second is how
    often the same source comes before.
    """
    # Large ones first: the tree is then shallow where most positions are.
    order = np.argsort(-counts, kind="stable")
    ends = np.concatenate([[0], np.cumsum(counts[order])])
    places = np.arange(ends[-1])
    low, high = np.zeros_like(places), np.full_like(places, len(counts))
    inner = np.flatnonzero(high - low > 1)
    while len(inner):
        first, last, place = low[inner], high[inner], places[inner]
        start, stop = ends[first], ends[last]
        # Halve the node's positions, as nearly as its sources allow.
        middle = np.searchsorted(ends, (start + stop + 1) // 2).clip(first + 1, last - 1)
        total, left = stop - start, ends[middle] - start
        lefts = (place * left + total // 2) // total
        goes = ((place + 1) * left + total // 2) // total > lefts
        places[inner] = np.where(goes, lefts, place - lefts)
        low[inner], high[inner] = np.where(goes, first, middle), np.where(goes, middle, last)
        inner = inner[(high - low)[inner] > 1]
    return order[low], places


def _phase(number: int) -> int:
    """Return the phase of a window: van der Corput's sequence, from a half on, times 2**32."""
    return int(f"{number % _ONE:0{_BITS}b}"[::-1], 2) ^ _HALF


def _sums(quotas: Ints, windows: int) -> Ints:
    """Return the sums of rounded quotas over the first windows of all."""
    cycles, left = divmod(windows, _ONE)
    fractions = quotas & (_ONE - 1)
    total = windows * (quotas >> _BITS) + cycles * fractions
    # Phases from here on round up. A run of 2**bit windows has phases 2**(32 - bit) apart.
    least, begin = _ONE - fractions, 0
    for bit in range(_BITS - 1, -1, -1):
        if left >> bit & 1:
            lowest = _phase(begin) % (_ONE >> bit)
            total += (1 << bit) - (-((lowest - least) >> (_BITS - bit))).clip(0, 1 << bit)
            begin += 1 << bit
    return total


def _kept(kept: dict[Any, Any], key: Any, make: Callable[..., Any]) -> Any:
    """Return what was kept under a key, else make and keep it."""
    made = kept.get(key)
    if made is None:
        while len(kept) >= _KEPT:
            kept.pop(next(iter(kept)), None)
        made = kept[key] = make(*key)
    return made


#: A child of the seed, for the permutations of rows; epochs of orders are children of child 0.
_ROWS = -9
#: Another, for the order of groups within a window.
_GROUPS = -10

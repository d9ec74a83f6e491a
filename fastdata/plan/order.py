"""The order of an epoch, computed and never stored: 10 or 10**12 samples take the same memory.

An order is a bijection from positions to sample numbers. ``random`` is a Feistel network (Luby,
Rackoff: How to Construct Pseudorandom Permutations from Pseudorandom Functions, 1988) in the
generalised form of Black and Rogaway (Ciphers with Arbitrary Finite Domains, 2002): a number is
split as ``left + a * right``, the halves are added to each other modulo ``a`` and ``b`` instead of
by XOR, so the domain ``a * b`` fits any ``n`` closely; what falls outside of 0..n-1 is permuted
again until it does not (cycle walking, from the same paper). Either part is a bijection whatever
the round function is. Up to 65,536 numbers are permuted by a table instead (0.5 MiB): exactly, and
faster.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.errors import UsageError
from fastdata.plan.draws import GAMMA, child, epoch_key, mix, sample_keys
from fastdata.plan.sharding import settle, whole

#: Names of orders.
ORDERS = ("random", "quasi-random", "sequential")
#: The order that suits the dataset, which a loader chooses.
AUTO = "auto"
_HINT = f"Give one of {', '.join((AUTO, *ORDERS))}; or QuasiRandom(window=…)."

# 32 JPEGs of ImageNet are 3.5 MB: about what a hard disk or an object store must be asked for at
# once to be read at its full rate. 128 such blocks are 450 MB, which any training machine caches,
# and 16 batches of 256.
BLOCK = 32
WINDOW = 128

# Children of the key of an epoch: negative, so that no view of samples (0 or more) has them.
_ROUNDS, _BLOCKS, _WINDOWS, _TAIL = -2, -3, -4, -5

# Where the halves are large, 6 rounds suffice (Patarin: Security of Random Feistel Schemes with 5
# or More Rounds, 2004). Where they are small, two rounds bring the distribution nearer to uniform
# by a factor of the smaller half (computed for n = 2..6). 2**-12 is enough.
_LEAST_ROUNDS = 6
_CLOSENESS_BITS = 12
_MOST_ROUNDS = 2 * _CLOSENESS_BITS
_ROUND_KEYS = np.array([child(0, number) for number in range(_MOST_ROUNDS)], dtype=np.uint64)

_LARGEST_TABLE = 1 << 16

_SHIFT32 = np.uint64(32)

_UInts = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class QuasiRandom:
    """Value for ``order=``: blocks of neighbours at random, their samples mixed within windows.

    Args:
        window: Blocks of 32 neighbouring samples in a window, 1 or more; of a row group each for a
            dataset that is decoded by row group. Larger windows mix better and need more memory to
            read ahead. ``"quasi-random"`` means the default.

    Raises:
        UsageError: ``window`` is not a whole number from 1.
    """

    window: int = WINDOW

    def __post_init__(self) -> None:
        settle(self, "window", 1)

    def __str__(self) -> str:
        return "quasi-random" + f", windows of {self.window} blocks" * (self.window != WINDOW)


#: "random", "sequential" or a `QuasiRandom`.
OrderLike: TypeAlias = str | QuasiRandom


def as_order(order: object) -> OrderLike:
    """Return an order by its name or value; raise UsageError if there is none."""
    if isinstance(order, str) and order in ORDERS:
        return QuasiRandom() if order == "quasi-random" else order
    if isinstance(order, QuasiRandom):
        return order
    raise UsageError(f"order={order!r}", _HINT)


class Order(ABC):
    """Bijection of 0..n-1, from positions of an epoch to sample numbers; ``n`` is 0 or more."""

    def __init__(self, n: int) -> None:
        self._n = whole("n", n, 0)

    def __len__(self) -> int:
        return self._n

    def __call__(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sample numbers at positions, int64 of any shape, each in [0, n).

        Raise UsageError for a position outside of that.
        """
        asked = np.asarray(positions, dtype=np.int64)
        if asked.size == 0:
            return np.zeros(asked.shape, np.int64)
        x = asked.astype(np.uint64).ravel()
        # Negative positions have become huge ones.
        if int(x.max()) >= self._n:
            wrong = asked[(asked < 0) | (asked >= self._n)].flat[0]
            raise UsageError(
                f"position {wrong} is not in an epoch of {self._n} samples.",
                "Positions are 0 or more and less than the number of samples.",
            )
        return self._samples(x).astype(np.int64).reshape(asked.shape)

    def draws(self, positions: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
        """Return the draws (`fastdata.plan.schedule.Numbering`) at positions from 0, int64.

        Positions from the order's length on begin it again; ``n`` is the number of the dataset's
        samples.
        """
        occurrences, within = np.divmod(positions, self._n)
        draws: npt.NDArray[np.int64] = self(within) + occurrences * n
        return draws

    @abstractmethod
    def _samples(self, x: _UInts) -> _UInts:
        """Return the sample numbers at one or more valid positions; may overwrite ``x``."""


class Sequential(Order):
    """Order in which the samples are stored."""

    def _samples(self, x: _UInts) -> _UInts:
        return x


class Random(Order):
    """Random permutation of 0..n-1 from the epoch's key; each is about as probable as any other."""

    def __init__(self, n: int, key: int) -> None:
        super().__init__(n)
        own = child(key, _ROUNDS)
        self._table: _UInts | None = None
        if self._n <= _LARGEST_TABLE:
            # Keys are different for different numbers, so there is one way to sort them.
            keys = sample_keys(own, np.arange(self._n, dtype=np.int64))
            self._table = np.argsort(keys).astype(np.uint64)
        self._key = np.array([own], dtype=np.uint64)
        self._rounds = rounds_of(self._n)
        self._size = np.array([self._n], dtype=np.uint64)

    def _samples(self, x: _UInts) -> _UInts:
        if self._table is not None:
            return self._table[x.astype(np.int64)]
        return permute(x, self._size, self._key, self._rounds)


class Windowed(Order):
    """Permutation of a `QuasiRandom`: shuffled blocks, whose samples are mixed within windows.

    It suits storage that reads small pieces slowly: disks, object stores. It shuffles the blocks,
    then the samples of every ``window`` consecutive blocks. A reader needs only the blocks of one
    window at a time, so it reads each block once, as a whole.

    Any sample can be anywhere in the epoch, but neighbours stay within a window of each other. If
    neighbours are alike (samples packed class by class), a batch has at most about ``window``
    classes, and the next batches the same ones. If that matters, pack shuffled, raise ``window`` or
    use :class:`Random`.

    The sizes of windows differ by a block at most. A last block that is not full gets a random
    place among the others. A single window is :class:`Random`. Raise UsageError if ``block`` or
    ``window`` is less than 1.
    """

    def __init__(self, n: int, key: int, block: int = BLOCK, window: int = WINDOW) -> None:
        super().__init__(n)
        self._block, window = whole("block", block, 1), whole("window", window, 1)
        self._blocks = -(-self._n // self._block)
        windows = -(-self._blocks // window)
        # A single window mixes all samples.
        self._whole = Random(self._n, key) if windows <= 1 else None
        # The first `_wide` windows have a block more than the others.
        self._narrow, self._wide = divmod(self._blocks, max(1, windows))
        # Number of samples that the last block lacks, and its place.
        self._lacking = self._blocks * self._block - self._n
        self._tail = (child(key, _TAIL) * self._blocks) >> 64
        # Where all blocks are full, the last is like any other.
        self._shuffled = Random(self._blocks - (self._lacking > 0), child(key, _BLOCKS))
        self._windows_key = child(key, _WINDOWS)
        self._rounds = rounds_of(self._narrow * self._block)

    def _start(self, slots: _UInts) -> _UInts:
        """Return the position at which a slot (the place of a block) starts."""
        starts: _UInts = slots * np.uint64(self._block)
        if self._lacking:
            starts -= (slots > self._tail) * np.uint64(self._lacking)
        return starts

    def _slot(self, x: _UInts) -> _UInts:
        """Return the slot of a position."""
        if self._lacking:
            full = (self._tail + 1) * self._block - self._lacking
            x = x + (x >= full) * np.uint64(self._lacking)
        slots: _UInts = x // np.uint64(self._block)
        return slots

    def _samples(self, x: _UInts) -> _UInts:
        if self._whole is not None:
            return self._whole._samples(x)
        slots = self._slot(x)
        narrow, wide = np.uint64(self._narrow), np.uint64(self._wide)
        # Slots past the wide windows are counted as if all windows were narrow.
        windows = np.where(
            slots < wide * (narrow + np.uint64(1)),
            slots // (narrow + np.uint64(1)),
            (slots - np.minimum(slots, wide)) // narrow,
        )
        first = windows * narrow + np.minimum(windows, wide)
        starts = self._start(first)
        sizes = self._start(first + narrow + (windows < wide)) - starts
        keys = mix(windows * GAMMA + np.uint64(self._windows_key))
        x = starts + permute(x - starts, sizes, keys, self._rounds)

        slots = self._slot(x)
        within = x - self._start(slots)
        if self._lacking:
            # The last block is in the slot that was drawn for it, the others share the rest.
            is_tail = slots == self._tail
            slots -= slots >= self._tail
            slots[is_tail] = 0
            blocks = self._shuffled._samples(slots)
            blocks[is_tail] = self._blocks - 1
        else:
            blocks = self._shuffled._samples(slots)
        samples: _UInts = blocks * np.uint64(self._block) + within
        return samples


class Grouped(Order):
    """Permutation of a `QuasiRandom` whose blocks are given, such as row groups of Parquet.

    As `Windowed`, but blocks may differ in size. It holds 16 bytes a block. ``starts`` has the
    first sample of each, int64, ascending from 0.
    """

    def __init__(self, n: int, key: int, starts: npt.NDArray[np.int64], window: int) -> None:
        super().__init__(n)
        blocks = len(starts)
        slots = np.arange(blocks, dtype=np.uint64)
        shuffled = Random(blocks, child(key, _BLOCKS))._samples(slots).astype(np.int64)
        self._starts = starts[shuffled].astype(np.uint64)
        ends = np.cumsum(np.diff(starts, append=n)[shuffled])
        self._begins = np.append(0, ends[:-1]).astype(np.uint64)
        firsts = np.linspace(0, blocks, -(-blocks // window), endpoint=False).astype(np.int64)
        self._windows = self._begins[firsts]
        self._sizes = np.diff(self._windows, append=np.uint64(n))
        self._windows_key = child(key, _WINDOWS)
        self._rounds = rounds_of(int(self._sizes.min()))

    def _samples(self, x: _UInts) -> _UInts:
        window = np.searchsorted(self._windows, x, "right") - 1
        first = self._windows[window]
        keys = mix(window.astype(np.uint64) * GAMMA + np.uint64(self._windows_key))
        x = first + permute(x - first, self._sizes[window], keys, self._rounds)
        slots = np.searchsorted(self._begins, x, "right") - 1
        samples: _UInts = self._starts[slots] + (x - self._begins[slots])
        return samples


def mixes_neighbours(order: OrderLike, n: int, blocks: int | None = None) -> bool:
    """Return whether an order mixes ``n`` samples within windows only.

    ``blocks`` is their number, if they are given.
    """
    if not isinstance(order, QuasiRandom):
        return False
    return n > order.window * BLOCK if blocks is None else blocks > order.window


def make_order(
    order: OrderLike,
    n: int,
    seed: int,
    epoch: int,
    starts: npt.NDArray[np.int64] | None = None,
) -> Order:
    """Return the permutation of an epoch; always the same for the same arguments.

    Without ``starts``, blocks of a `QuasiRandom` have 32 samples. Raise UsageError if there is no
    such order, or ``n`` is negative.
    """
    order = as_order(order)
    if isinstance(order, QuasiRandom) and starts is not None and n:
        return Grouped(n, epoch_key(seed, epoch), starts, order.window)
    if isinstance(order, QuasiRandom):
        return Windowed(n, epoch_key(seed, epoch), window=order.window)
    return Random(n, epoch_key(seed, epoch)) if order == "random" else Sequential(n)


def rounds_of(n: int) -> int:
    """Return the number of rounds that bring permutations of ``n`` near to uniform."""
    half = math.isqrt(n)
    if half < 4:
        return _MOST_ROUNDS
    return max(_LEAST_ROUNDS, 2 * math.ceil(_CLOSENESS_BITS / math.log2(half)))


def permute(x: _UInts, n: _UInts, keys: _UInts, rounds: int) -> _UInts:
    """Permute each ``x`` among 0..n-1: uint64, one dimension, each less than its ``n``.

    ``n`` (1 or more) and ``keys``, uint64, are one for each ``x`` or one for all. ``rounds``
    counts the network's rounds.
    """
    # a * b is at least n and at most 2 * n. The square root is rounded, and one too few or too many
    # does no harm. b is even because rotations of odd cycles alone make only even permutations.
    a = np.ceil(np.sqrt(n)).astype(np.uint64)
    b = (n + (a * np.uint64(2) - np.uint64(1))) // (a * np.uint64(2)) * np.uint64(2)
    y = _network(x, a, b, keys, rounds)
    outside = np.flatnonzero(y >= n)
    if outside.size:
        n, a, b, keys = (np.broadcast_to(part, x.shape) for part in (n, a, b, keys))
    while outside.size:
        walked = _network(y[outside], a[outside], b[outside], keys[outside], rounds)
        y[outside] = walked
        outside = outside[walked >= n[outside]]
    return y


def _network(x: _UInts, a: _UInts, b: _UInts, keys: _UInts, rounds: int) -> _UInts:
    """Apply the Feistel network over 0..a*b-1, with a and b less than 2**32."""
    right = x // a
    left = x - right * a
    for number in range(rounds):
        drawn = right * GAMMA
        drawn += keys + _ROUND_KEYS[number]
        mix(drawn)
        # The upper half times a, its upper half: uniform in [0, a).
        drawn >>= _SHIFT32
        drawn *= a
        drawn >>= _SHIFT32
        left += drawn
        # left - a wraps to a huge number where left is less than a.
        np.minimum(left, left - a, out=left)
        left, right = right, left
        a, b = b, a
    # An even number of rounds leaves each half where it was.
    right *= a
    right += left
    return right

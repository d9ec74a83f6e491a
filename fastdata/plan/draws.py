"""Counter-based random numbers: each is a pure function of where it is used.

A generator with a state gives other numbers when threads, workers or a resumed run draw in another
order. Here a number depends only on its key and its place in the key's stream.

Keys, each a child of the one before:

1. seed, then epoch (:func:`epoch_key`);
2. rank, only for samplers that may give several ranks one sample; rank 0 keeps the key above
   (:func:`rank_key`);
3. view, then sample (:func:`sample_keys`);
4. occurrence: how often the sample was drawn before. The first time keeps the key above;
5. batch, only for draws for all of it, from the key of its first sample (`Planned.batch_key`).

Python code that is called for a sample, off the native path, draws from a key of its own
(`Planned.call_keys`), so that it is independent of native draws.

The occurrence is

- in an order of fastdata's: the position in the epoch, all ranks together and padding counted on,
  // the number of samples. So it is 0 but for padding, however ranks share an epoch;
- 0 for torch's samplers without replacement;
- for any other sampler: counted along the stream of the rank;
- in torch's loader and its workers, which seed each batch separately: counted along the batch;
- of a substitute for a bad sample: drawn, from 2**20 on (``fastdata.plan.schedule``).

The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
OOPSLA 2014): number ``d`` of the stream seeded ``k`` is ``mix(k + (d + 1) * GAMMA)``, with the
finaliser that Stafford calls variant 13. Keys are made by the same function, level by level.
All of it is integer arithmetic modulo 2**64 and the same on every platform. The core makes the
keys, and draws the numbers of samples (``native/draws.h``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.errors import UsageError

# The odd integer nearest 2**64 divided by the golden ratio.
GAMMA = np.uint64(0x9E3779B97F4A7C15)
# Multipliers and shifts of variant 13.
_FIRST64, _SECOND64 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT27, _SHIFT30, _SHIFT31 = np.uint64(27), np.uint64(30), np.uint64(31)

_BITS = 0xFFFF_FFFF_FFFF_FFFF

# A child of the key of an epoch: negative, so that no view of samples (0 or more) has it. Orders
# have -2 to -5 (`fastdata.plan.order`), calls of Python code and substitutes -7 and -8
# (`fastdata.plan.schedule`).
_RANKS = -6


def child(key: int, number: int) -> int:
    """Return number ``number`` of the stream of ``key``, as the key of something below it.

    Both are ints, taken modulo 2**64, and so is the child. Different numbers give different ones.
    """
    return _native.draw_bits(key & _BITS, number & _BITS)


def children(
    keys: np.uint64 | npt.NDArray[np.uint64], numbers: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Return the `child` of one key for each number, or of each key for its own, as an array."""
    return mix(keys + (numbers + np.uint64(1)) * GAMMA)


def mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply SplitMix64's finaliser, a bijection of the 64-bit integers, in place; return ``z``."""
    shifted = z >> _SHIFT30
    z ^= shifted
    z *= _FIRST64
    np.right_shift(z, _SHIFT27, out=shifted)
    z ^= shifted
    z *= _SECOND64
    np.right_shift(z, _SHIFT31, out=shifted)
    z ^= shifted
    return z


def epoch_key(seed: int, epoch: int) -> int:
    """Return the key of one epoch of one run, in [0, 2**64).

    Seed and epoch are any ints, taken modulo 2**64: -1 and 2**64 - 1 are the same seed. Keys of
    neighbouring ones have nothing in common.
    """
    return child(child(int(seed), 0), int(epoch))


def rank_key(key: int, rank: int) -> int:
    """Return the key of one rank, for samplers that may give several ranks the same sample.

    Rank 0 has the epoch's own key (:func:`epoch_key`).
    """
    return child(child(key, _RANKS), rank) if rank else key


def sample_keys(
    key: int,
    indices: npt.NDArray[np.int64],
    view: int = 0,
    occurrences: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.uint64]:
    """Return the keys of samples, from which their numbers are drawn: uint64, as ``indices``.

    ``key`` is an epoch's or a rank's. ``indices`` and ``occurrences`` are int64, of one shape; the
    latter say how often each was drawn before, None for never. ``view`` is 0 or more, else
    UsageError. Keys differ by sample, view and occurrence.
    """
    if view < 0:
        raise UsageError(f"view {view} is negative.", "Views are numbered from 0.")
    return _native.sample_keys(child(key, view), indices, occurrences)

"""Counter-based random numbers: the generator that they claim to be, uniform, independent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_draws import bits, integers, uniforms

from fastdata.plan.draws import child, epoch_key, rank_key, sample_keys

ANY_INT = st.integers(-(2**200), 2**200)
WORDS = st.integers(0, 2**64 - 1)


def keys_of(seed: int, epoch: int, n: int, view: int = 0) -> np.ndarray:
    return sample_keys(epoch_key(seed, epoch), np.arange(n), view)


def chi_square(counts: np.ndarray) -> float:
    """By how many standard deviations chi-square is off what it is for a uniform distribution."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


# The first numbers of Vigna's splitmix64.c and of Java's SplittableRandom.
VECTORS = {
    1234567: [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ],
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F],
}


@pytest.mark.parametrize("seed", VECTORS)
def test_it_is_splitmix64(seed: int) -> None:
    for draw, expected in enumerate(VECTORS[seed]):
        assert bits(np.array([seed], np.uint64), draw).tolist() == [expected]
        assert child(seed, draw) == expected


def test_golden_values() -> None:
    """These may never change: what a seed means would change for everybody."""
    assert epoch_key(0, 0) == 0xA706DD2F4D197E6F
    assert epoch_key(42, 7) == 0xBC16A3D4CC48678E
    assert epoch_key(-1, 0) == 0x5DC20AA7B2A27137
    keys = sample_keys(epoch_key(42, 7), np.array([0, 1, 1281166]), view=1)
    assert keys.tolist() == [0x95A36FF191AF1608, 0x6BC2AEC50B72787E, 0xA0B6FE411FFEB03B]
    again = sample_keys(epoch_key(42, 7), np.array([0, 1, 1]), 1, np.array([0, 1, 2]))
    assert again.tolist() == [0x95A36FF191AF1608, 0x31BC25396DC419FD, 0xC766074BEE2E52D2]
    assert rank_key(epoch_key(42, 7), 0) == epoch_key(42, 7)
    assert rank_key(epoch_key(42, 7), 3) == 0x8D29CAF786A702CC
    assert uniforms(keys, 3).tolist() == [
        0.1628397835284855,
        0.30183584215689097,
        0.6648642198615746,
    ]
    assert integers(keys, 4, np.array([10, 500, 2**62])).tolist() == [0, 173, 615380514780015950]


@given(ANY_INT, ANY_INT)
def test_any_int_is_a_seed_modulo_2_to_the_64(seed: int, epoch: int) -> None:
    key = epoch_key(seed, epoch)
    assert 0 <= key < 2**64
    assert key == epoch_key(seed % 2**64, epoch % 2**64)


@given(
    WORDS, st.lists(st.integers(0, 2**63 - 1), max_size=20), st.integers(0, 9), st.integers(0, 9)
)
def test_numbers_do_not_depend_on_the_batch(
    key: int, indices: list[int], view: int, draw: int
) -> None:
    together = uniforms(sample_keys(key, np.array(indices, np.int64), view), draw)
    alone = [uniforms(sample_keys(key, np.array([i]), view), draw)[0] for i in indices]
    assert together.dtype == np.float64
    assert together.tolist() == alone


@pytest.mark.parametrize(("seed", "draw"), [(0, 0), (-1, 1), (2**70, 7)])
def test_uniform(seed: int, draw: int) -> None:
    keys = keys_of(seed, 3, 200_000)
    assert abs(chi_square(np.histogram(uniforms(keys, draw), 256, (0, 1))[0])) < 5
    counts = np.bincount(integers(keys, draw, np.array([97])), minlength=97)
    assert abs(chi_square(counts)) < 5
    for bit in range(64):
        ones = int(((bits(keys, draw) >> np.uint64(bit)) & np.uint64(1)).sum())
        assert abs(ones - 100_000) < 5 * np.sqrt(50_000)


def test_neighbours_are_independent() -> None:
    """Seeds, epochs, views and draws side by side, also shifted against each other."""
    n = 20_000
    streams = {
        (seed, epoch, view, draw): uniforms(keys_of(seed, epoch, n, view), draw)
        for seed, epoch, view, draw in itertools.product((-1, 0, 1), (0, 1), (0, 1), (0, 1))
    }
    for (one, x), (other, y) in itertools.combinations(streams.items(), 2):
        for shift in (0, 1, 2):
            correlation = np.corrcoef(x[shift:], y[: n - shift])[0, 1]
            assert abs(correlation) < 5.5 / np.sqrt(n), (one, other, shift)
    # Nor does one sample have the number of another, whatever it is drawn for.
    assert np.unique(np.concatenate(list(streams.values()))).size == n * len(streams)


def test_neighbouring_samples_are_independent() -> None:
    x = uniforms(keys_of(5, 5, 200_000), 0)
    counts = np.histogram2d(x[:-1:2], x[1::2], 16, ((0, 1), (0, 1)))[0]
    assert abs(chi_square(counts.ravel())) < 5

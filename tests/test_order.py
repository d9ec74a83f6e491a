"""Orders: bijections, near to uniform, in constant memory; quasi-random ones stay local."""

from __future__ import annotations

import itertools
import math
import pickle
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastdata.errors import UsageError
from fastdata.plan.draws import epoch_key
from fastdata.plan.order import (
    ORDERS,
    Grouped,
    Order,
    QuasiRandom,
    Random,
    Windowed,
    make_order,
)

KEYS = st.integers(0, 2**64 - 1)


def whole(order: Order) -> np.ndarray:
    return order(np.arange(len(order)))


def assert_bijection(order: Order, n: int) -> None:
    found = whole(order)
    assert len(order) == n and found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(n))


def deviations(counts: np.ndarray) -> float:
    """By how many standard deviations chi-square is off what it is for a uniform distribution."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@given(st.lists(st.integers(1, 90), min_size=1, max_size=60), st.integers(1, 70), KEYS)
def test_given_blocks_are_shuffled_and_mixed_within_windows(
    sizes: list[int], window: int, key: int
) -> None:
    n, starts = sum(sizes), np.cumsum([0, *sizes])[:-1]
    order = Grouped(n, key, starts, window)
    assert_bijection(order, n)
    blocks = np.searchsorted(starts, whole(order), "right") - 1
    # Each block is begun and ended while at most `window` are.
    first = {block: at for at, block in reversed(list(enumerate(blocks.tolist())))}
    last = {block: at for at, block in enumerate(blocks.tolist())}
    for at in range(n):
        assert sum(first[block] <= at <= last[block] for block in first) <= window


# Tables end and networks begin at 65,536.
@settings(max_examples=60)
@given(st.one_of(st.integers(0, 3000), st.sampled_from([65_535, 65_536, 65_537, 99_991])), KEYS)
def test_random_is_a_bijection(n: int, key: int) -> None:
    assert_bijection(Random(n, key), n)


@given(st.integers(0, 1500), KEYS, st.integers(1, 50), st.integers(1, 50))
@example(1, 0, 1, 1)
@example(33, 1, 32, 1)
@example(1500, 2, 2**70, 2**70)
def test_quasi_random_is_a_bijection(n: int, key: int, block: int, window: int) -> None:
    assert_bijection(Windowed(n, key, block=block, window=window), n)


@pytest.mark.parametrize("name", ORDERS)
@given(st.integers(0, 20_000), st.integers(), st.integers(0, 1000))
@settings(max_examples=20)
def test_orders_by_name(name: str, n: int, seed: int, epoch: int) -> None:
    order = make_order(name, n, seed, epoch)
    assert_bijection(order, n)
    assert np.array_equal(whole(pickle.loads(pickle.dumps(order))), whole(order))
    assert np.array_equal(whole(make_order(name, n, seed, epoch)), whole(order))


@pytest.mark.parametrize("n", [30_000, 70_001])
@pytest.mark.parametrize("name", ORDERS)
def test_positions_may_be_asked_for_in_any_way(name: str, n: int) -> None:
    order = make_order(name, n, 1, 2)
    everything = whole(order)
    asked = np.random.default_rng(0).integers(0, n, (4, 50))
    kept = asked.copy()
    assert np.array_equal(order(asked), everything[asked])
    assert np.array_equal(asked, kept)
    assert [int(order(np.array([p]))[0]) for p in asked[0]] == everything[asked[0]].tolist()
    assert order(np.arange(0)).shape == (0,)


@pytest.mark.parametrize("name", ["random", "quasi-random"])
@pytest.mark.parametrize("n", [1000, 30_000, 200_000])
def test_seeds_and_epochs_differ(name: str, n: int) -> None:
    orders = [whole(make_order(name, n, seed, epoch)) for seed in (-1, 0, 1) for epoch in (0, 1, 2)]
    for one, other in itertools.combinations(orders, 2):
        # Two random permutations agree at one position on average.
        assert (one == other).sum() < 12


@pytest.mark.parametrize("name", ORDERS)
def test_constant_memory(name: str) -> None:
    n = 10**12
    order = make_order(name, n, 3, 4)
    positions = np.array([0, 1, 255, 10**6, n // 2, n - 2, n - 1])
    found = order(positions)
    assert len(set(found.tolist())) == len(positions)
    assert found.min() >= 0 and found.max() < n
    assert len(pickle.dumps(order)) < 4096


def test_golden_values() -> None:
    """These may never change: what a seed means would change for everybody."""
    first = np.arange(5)
    assert make_order("random", 10, 1, 2)(first).tolist() == [9, 7, 5, 4, 2]
    assert make_order("random", 10**12, 1, 2)(first).tolist() == [
        699599966030,
        528607168986,
        281285496784,
        438582512240,
        828060770953,
    ]
    assert make_order("quasi-random", 10**12, 1, 2)(first).tolist() == [
        595209258215,
        82310747447,
        550109558910,
        951163673258,
        915514565140,
    ]


@pytest.mark.parametrize("n", [70_001, pytest.param(1_281_167, marks=pytest.mark.slow)])
def test_large_permutations_look_random(n: int) -> None:
    order = Random(n, epoch_key(7, 7))
    # Few of them, so that drawing without putting back hardly differs from drawing.
    found = order(np.arange(4096))
    # |position - sample| of independent uniform numbers is n / 3 on average.
    displacement = np.abs(whole(order) - np.arange(n)).mean() / n
    assert abs(displacement - 1 / 3) < 5 * 0.236 / math.sqrt(n)
    assert abs(deviations(np.bincount(found * 256 // n, minlength=256))) < 5
    steps = (found[1:] - found[:-1]) % n
    assert abs(deviations(np.bincount(steps * 256 // n, minlength=256))) < 5
    low = np.bincount(found % 251, minlength=251)
    assert abs(deviations(low)) < 5
    rises = int((found[1:] > found[:-1]).sum())
    assert abs(rises - 4095 / 2) < 5 * math.sqrt(4096 / 12)


@given(st.integers(1, 2000), KEYS, st.integers(1, 20), st.integers(1, 20))
def test_a_window_touches_only_its_blocks(n: int, key: int, block: int, window: int) -> None:
    """The epoch falls into runs, each of which is all of at most ``window`` blocks."""
    blocks = whole(Windowed(n, key, block=block, window=window)) // block
    last_use = {int(number): at for at, number in enumerate(blocks)}
    start = 0
    open_until, seen, windows = 0, set(), 0
    for at, number in enumerate(blocks.tolist()):
        seen.add(number)
        open_until = max(open_until, last_use[number])
        if at == open_until:
            assert len(seen) <= window
            assert at + 1 - start <= window * block
            start, seen, windows = at + 1, set(), windows + 1
    assert start == n
    assert windows >= math.ceil(math.ceil(n / block) / window)


def test_what_is_no_order_names_itself() -> None:
    with pytest.raises(UsageError, match=r"'shuffled'.*\n.*random, quasi-random, sequential"):
        make_order("shuffled", 5, 0, 0)
    for name in ORDERS:
        with pytest.raises(UsageError, match="n=-1"):
            make_order(name, -1, 0, 0)
        for n, position in ((5, 5), (5, -1), (0, 0), (70_000, 70_000)):
            with pytest.raises(UsageError, match=f"position {position} .* {n} samples"):
                make_order(name, n, 0, 0)(np.array([position]))
    with pytest.raises(UsageError, match="block=0"):
        Windowed(5, 0, block=0)
    with pytest.raises(UsageError, match="window=-3"):
        Windowed(5, 0, window=-3)


def test_a_window_is_part_of_the_value() -> None:
    named = whole(make_order(QuasiRandom(window=3), 1000, 5, 2))
    assert np.array_equal(named, whole(Windowed(1000, epoch_key(5, 2), window=3)))
    default = whole(make_order("quasi-random", 10_000, 5, 2))
    assert np.array_equal(default, whole(make_order(QuasiRandom(), 10_000, 5, 2)))
    assert not np.array_equal(default, whole(make_order(QuasiRandom(3), 10_000, 5, 2)))
    assert QuasiRandom(np.int64(3)) == QuasiRandom(3)  # type: ignore[arg-type]
    for order in ("quasi-random:3", "random:3", 3, None, QuasiRandom):
        with pytest.raises(UsageError, match=re.escape(f"order={order!r}")):
            make_order(order, 10, 0, 0)  # type: ignore[arg-type]
    for window in (0, -1, 1.5, "3", True, None):
        with pytest.raises(UsageError, match=re.escape(f"window={window!r}")):
            QuasiRandom(window)  # type: ignore[arg-type]

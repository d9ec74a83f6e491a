"""Plans of batches by plain Python: buckets, packing, shares of ranks and states."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.errors import UsageError
from fastdata.plan.batches import Plan
from fastdata.plan.buckets import Buckets
from fastdata.plan.draws import epoch_key
from fastdata.plan.packing import Packed
from fastdata.plan.position import PLANNED, Fingerprint, Position

KEY = epoch_key(3, 1)


def plans() -> st.SearchStrategy[Plan]:
    switches = st.fixed_dictionaries({"shuffle": st.booleans(), "drop_last": st.booleans()})
    sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)

    def bucketed(sizes: list[int]) -> st.SearchStrategy[Plan]:
        rows = st.lists(st.integers(0, len(sizes) - 1), max_size=70)
        return st.builds(
            lambda rows, about: Buckets(
                np.array(rows, np.uint16), sizes, [(1, 1)] * len(sizes), **about
            ),
            rows,
            switches,
        )

    lengths = st.lists(st.integers(1, 30), max_size=70)
    packed = st.builds(
        lambda lengths, window, about: Packed(np.array(lengths, np.int32), 30, window, **about),
        lengths,
        st.integers(1, 80),
        switches,
    )
    return st.one_of(sizes.flatmap(bucketed), packed)


@given(plans(), st.integers(1, 7))
def test_ranks_share_the_rows(plan: Plan, world_size: int) -> None:
    rest = plan.rest(KEY, world_size)
    ranks = [list(rest.batches(rank)) for rank in range(world_size)]
    assert {len(one) for one in ranks} == {len(rest)}
    assert all(len({size for _, _, size in step}) == 1 for step in zip(*ranks, strict=True))
    flat = [draw for one in ranks for draws, _, _ in one for draw in draws.tolist()]
    assert len(set(flat)) == len(flat)
    once = {draw for draw in flat if draw < plan.samples}
    assert getattr(plan, "drop_last") or len(once) == plan.samples  # noqa: B009
    for draws, _, size in (batch for one in ranks for batch in one):
        if isinstance(plan, Packed):
            assert plan.lengths[draws % plan.samples].sum() <= 30
        else:
            assert len(draws) <= plan.batch_sizes[size]  # type: ignore[attr-defined]


@given(plans(), st.integers(1, 5), st.data())
def test_a_position_holds_what_is_left(plan: Plan, world_size: int, data: st.DataObject) -> None:
    """After some steps the rest is the same on as many ranks, and complete on any other number."""
    whole = list(plan.rest(KEY, world_size).batches(0))
    count = data.draw(st.integers(0, len(whole)))
    position = whole[count - 1][1] if count else ()
    fingerprint = Fingerprint(plan.samples, PLANNED, plan.digest)
    state = Position(fingerprint, 3, 1, position).to_dict()
    position = Position.from_dict(json.loads(json.dumps(state))).at
    plan.require(position, KEY)
    rest = plan.rest(KEY, world_size, position)
    assert [d.tolist() for d, _, _ in rest.batches(0)] == [d.tolist() for d, _, _ in whole[count:]]
    assert len(rest) == len(whole) - count
    other = data.draw(st.integers(1, 5))
    taken = [
        int(draw) % plan.samples
        for ranks, begin, end in ((world_size, (), count), (other, position, None))
        for rank in range(ranks)
        for draws, _, _ in list(plan.rest(KEY, ranks, begin).batches(rank))[:end]
        for draw in draws
        if draw < plan.samples
    ]
    assert len(set(taken)) == len(taken)
    drops = getattr(plan, "drop_last")  # noqa: B009
    assert drops or sorted(taken) == list(range(plan.samples))


def test_rows_do_not_stay_together() -> None:
    """Batches of two epochs have few rows in common, and steps of all buckets are mixed."""
    bucket = (np.arange(6000) % 3).astype(np.uint16)
    plan = Buckets(bucket, [10] * 3, [(1, 1), (2, 1), (3, 1)])
    one, other = ([d for d, _, _ in plan.rest(epoch_key(0, at)).batches(0)] for at in (0, 1))
    together = {frozenset(pair) for rows in one for pair in itertools.pairwise(rows)}
    again = {frozenset(pair) for rows in other for pair in itertools.pairwise(rows)}
    assert len(together & again) < 20
    sizes = [size for _, _, size in plan.rest(epoch_key(0, 0)).batches(0)]
    changes = sum(a != b for a, b in itertools.pairwise(sizes))
    assert 330 < changes < 470  # of 599, two thirds


def captions(count: int) -> Any:
    """Lengths of captions in tokens: their logarithm is about normal, as of alt texts."""
    drawn = np.random.default_rng(0).lognormal(np.log(60), 0.8, count)
    return np.clip(drawn, 3, 2048).astype(np.int32)


@pytest.mark.parametrize("world_size", [1, 8, 64])
def test_captions_fill_their_budget(world_size: int) -> None:
    lengths = captions(400_000)
    rest = Packed(lengths, 8192, 16384).rest(KEY, world_size)
    ranks = [rest.batches(rank) for rank in range(world_size)]
    cost = [[lengths[draws].sum() for draws, _, _ in step] for step in zip(*ranks, strict=True)]
    full = np.array(cost[:-1])
    assert full.mean() > 0.99 * 8192
    assert (full.max(1) / full.mean(1)).max() < 1.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"digest": 1}, "another mixture, sampler or Subset"),
        ({"at": [0, 1, 0, 0]}, "position"),
        ({"at": [1, 3, 0, 0]}, "position"),
        ({"at": [1, 0, 9, 0]}, "position"),
        ({"at": [1, 0, 0]}, "position"),
        ({"at": [1, 0, -1, 0]}, "position"),
        ({"at": [1 << 70, 0, 0, 0]}, "position"),
        ({"at": [1 << 40, 0, 0, 0]}, "position"),
        ({"at": 3}, "another mixture, sampler or Subset"),
        ({"extra": 3}, "has extra"),
    ],
)
def test_damaged_states_name_what_is_wrong(change: Any, message: str) -> None:
    plan = Buckets(np.array([0, 1, 1, 0], np.uint16), [2, 2], [(1, 1), (2, 1)])
    fingerprint = Fingerprint(4, PLANNED, plan.digest)

    def resume(state: Any) -> None:
        position = Position.from_dict(state)
        position.require(Position(fingerprint, 1, position.epoch, ()), 1)
        plan.require(position.at, KEY)

    good = Position(fingerprint, 1, 2, (2, 1, 0, 0)).to_dict()
    resume(good)
    with pytest.raises(UsageError, match=message):
        resume({**good, **change})


@pytest.mark.parametrize("budget", [(1 << 20) + 1, 3_000_001, (1 << 31) - 1])
def test_a_row_may_have_the_whole_of_a_large_budget(budget: int) -> None:
    lengths = np.array([budget, budget - 1, budget // 2, 1, 1], np.int32)
    batches = [rows for rows, _, _ in Packed(lengths, budget, 16).rest(KEY).batches(0)]
    assert sorted(np.concatenate(batches).tolist()) == [0, 1, 2, 3, 4]
    assert max(lengths[rows].sum(dtype=np.int64) for rows in batches) <= budget

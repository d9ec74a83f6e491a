"""Sharding and state: every sample once, ranks alike, resumed anywhere on any number of ranks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from fastdata.errors import UsageError
from fastdata.plan.order import ORDERS, QuasiRandom
from fastdata.plan.sharding import Epoch, State

SAMPLES = st.integers(0, 300)
SIZES = st.integers(1, 40)
WORLDS = st.integers(1, 12)


def ranks(**arguments: Any) -> list[Epoch]:
    return [Epoch(rank=rank, **arguments) for rank in range(arguments["world_size"])]


@given(SAMPLES, SIZES, WORLDS, st.booleans(), st.data())
def test_every_sample_once_and_ranks_alike(
    samples: int, batch_size: int, world_size: int, drop_last: bool, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, samples))
    epochs = ranks(
        samples=samples,
        batch_size=batch_size,
        world_size=world_size,
        drop_last=drop_last,
        start=start,
    )
    batches = len(epochs[0])
    assert {len(epoch) for epoch in epochs} == {batches}
    wanted: list[int] = []
    consumed = start
    for batch in range(batches):
        positions = [epoch.positions(batch) for epoch in epochs]
        assert len({part.shape for part in positions}) == 1
        together = np.concatenate(positions)
        padded = together >= samples
        assert together.dtype == np.int64 and together.min() >= 0
        fresh = together[~padded].tolist()
        # A global batch is contiguous, in the order of the ranks.
        assert fresh == list(range(consumed, consumed + len(fresh)))
        wanted += fresh
        if batch < batches - 1 or drop_last:
            assert len(together) == len(fresh) == batch_size * world_size
        else:
            # No rank is padded more than it must be, and padding starts the epoch again.
            assert padded.sum() == -(samples - consumed) % world_size < world_size
            assert together[padded].tolist() == [samples + i for i in range(padded.sum())]
        consumed += len(fresh)
        assert {epoch.consumed(batch) for epoch in epochs} == {consumed}
    left = samples - consumed
    assert wanted == list(range(start, consumed))
    assert left < batch_size * world_size if drop_last else left == 0


@given(SAMPLES, st.lists(st.tuples(SIZES, WORLDS, st.integers(1, 5)), max_size=8))
def test_exactly_once_over_a_chain_of_resumes(
    samples: int, legs: list[tuple[int, int, int]]
) -> None:
    """World size and batch size change at every resume; the last leg goes to the end."""
    seen: list[int] = []
    start = 0
    for batch_size, world_size, steps in [*legs, (3, 2, samples)]:
        epochs = ranks(samples=samples, batch_size=batch_size, world_size=world_size, start=start)
        for batch in range(min(steps, len(epochs[0]))):
            for epoch in epochs:
                seen += [at for at in epoch.positions(batch).tolist() if at < samples]
            start = epochs[0].consumed(batch)
    assert seen == list(range(samples))


@given(SAMPLES, SIZES, WORLDS, st.booleans(), st.data())
def test_resuming_changes_nothing(
    samples: int, batch_size: int, world_size: int, drop_last: bool, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    whole = Epoch(samples, batch_size, rank, world_size, drop_last)
    if not len(whole):
        return
    stop = data.draw(st.integers(0, len(whole) - 1))
    rest = Epoch(samples, batch_size, rank, world_size, drop_last, whole.consumed(stop))
    assert len(rest) == len(whole) - stop - 1
    for batch in range(len(rest)):
        assert np.array_equal(rest.positions(batch), whole.positions(batch + stop + 1))


@given(st.integers(0, 100), st.integers(1, 30), st.booleans())
def test_one_rank_has_torchs_batches(samples: int, batch_size: int, drop_last: bool) -> None:
    epoch = Epoch(samples, batch_size, drop_last=drop_last)
    loader = DataLoader(
        TensorDataset(torch.arange(samples)), batch_size=batch_size, drop_last=drop_last
    )
    assert len(epoch) == len(loader)
    for batch, (expected,) in enumerate(loader):
        assert epoch.positions(batch).tolist() == expected.tolist()


def test_fewer_samples_than_ranks() -> None:
    epochs = ranks(samples=2, batch_size=4, world_size=5)
    assert [epoch.positions(0).tolist() for epoch in epochs] == [[0], [1], [2], [3], [4]]
    assert {epoch.consumed(0) for epoch in epochs} == {2}


def test_no_samples_no_batches() -> None:
    assert len(Epoch(0, 8, 1, 2)) == 0
    assert len(Epoch(10, 8, start=10)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": -1}, "samples -1 is less than 0"),
        ({"batch_size": 0}, "batch_size 0 is less than 1"),
        ({"world_size": 0}, "world_size 0 is less than 1"),
        ({"rank": 4, "world_size": 4}, "rank 4 is not among 4 ranks"),
        ({"rank": -1}, "rank -1"),
        ({"start": 11}, "start 11 .* 10 samples"),
        ({"start": -1}, "start -1"),
        ({"batch_size": 2.5}, "batch_size 2.5 is not a whole number"),
        ({"batch_size": True}, "batch_size True is not a whole number"),
        ({"rank": None}, "rank None"),
    ],
)
def test_arguments_out_of_range_name_themselves(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Epoch(**{"samples": 10, "batch_size": 2, **arguments})


@pytest.mark.parametrize("batch", [-1, 3])
def test_a_batch_that_is_not_there(batch: int) -> None:
    epoch = Epoch(10, 4)
    for ask in (epoch.positions, epoch.consumed):
        with pytest.raises(UsageError, match=f"batch {batch} is not among the 3 batches"):
            ask(batch)


@given(
    st.integers(0, 10**12),
    st.integers(),
    st.integers(0, 10**6),
    st.sampled_from([*ORDERS, QuasiRandom(7)]),
    st.data(),
)
def test_states_survive_json(
    samples: int, seed: int, epoch: int, order: Any, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, samples))
    number, ended = data.draw(st.sampled_from([0, epoch])), data.draw(st.integers(0, epoch and 1))
    state = State(samples, seed, epoch, position, order, 0, number, ended)
    assert State.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_numpys_ints_become_pythons() -> None:
    state = State(np.int64(10), np.uint8(1), np.int32(2), np.int64(3), "random")  # type: ignore[arg-type]
    assert json.loads(json.dumps(state.to_dict()))["position"] == 3
    assert len(Epoch(np.int64(10), np.int32(3))) == 4  # type: ignore[arg-type]


GOOD = State(10, 1, 2, 3, "random").to_dict()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({**GOOD, "version": 1}, "version 1; this fastdata reads 2"),
        ({**GOOD, "version": True}, "version True"),
        ({}, "lacks version, samples, seed, epoch, number, named, plan, position, order, window"),
        ({**GOOD, "extra": 1}, "has extra, which is not known"),
        ({key: GOOD[key] for key in GOOD if key != "seed"}, r"lacks seed\."),
        ({"version": 2, "x": 1}, "lacks samples, .*, and has x, which is not known"),
        ({**GOOD, "order": "shuffled"}, r"'shuffled'(.|\n)*random, quasi-random, sequential"),
        ({**GOOD, "order": 3}, "order=3"),
        ({**GOOD, "position": 11}, "position 11 .* 10 samples"),
        ({**GOOD, "position": "3"}, "position '3' is not a whole number"),
        ({**GOOD, "epoch": -1}, "epoch -1 is less than 0"),
        ({**GOOD, "epoch": 1 << 32}, "epoch 4294967296 is too large"),
        ({**GOOD, "number": 1}, "number 1"),
        ({**GOOD, "named": 3}, "named 3"),
        ({**GOOD, "named": -2}, "named -2"),
        ({**GOOD, "samples": 11}, "with 11 samples; this one has 10.*\nResume with the dataset"),
        (None, "NoneType, not a dict"),
    ],
)
def test_damaged_states_name_what_is_wrong(state: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        State.from_dict(state).require(State(10, 1, 2, 0, "random"), None)

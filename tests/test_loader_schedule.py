"""Schedules: substitutes fill the slots of bad samples, however far decoding is ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fastdata.errors import SampleError  # noqa: E402
from fastdata.plan.order import make_order  # noqa: E402
from fastdata.plan.schedule import Numbering, Planned, Schedule, ordered, sampled  # noqa: E402
from fastdata.plan.sharding import Epoch  # noqa: E402


def cut(order: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[np.ndarray, int, int]]:
    at = 0
    for size in sizes:
        yield np.array(order[at : at + size], np.int64), at + size, 0
        at += size


def delivered(
    schedule: Schedule, bad: set[int], prefetch: Sequence[int]
) -> Iterator[tuple[list[int], list[int], int]]:
    """Return the batches of a consumer that learns only by decoding which samples are bad.

    Gives (samples, draws, position) and takes ``prefetch`` batches ahead, which varies.
    """
    under_way: list[Planned] = []
    number = 0
    while True:
        while len(under_way) < prefetch[number % len(prefetch)]:
            planned = schedule.take()
            if planned is None:
                break
            under_way.append(planned)
        number += 1
        if not under_way:
            return
        planned = under_way.pop(0)
        while wrong := [slot for slot, i in enumerate(planned.indices.tolist()) if i in bad]:
            schedule.exclude(planned.indices[wrong].tolist())
            draws = schedule.substitutes(planned, wrong)
            schedule.numbering.place(planned, wrong, draws)
        yield planned.indices.tolist(), planned.draws.tolist(), planned.position


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=8)


@st.composite
def epochs(draw: st.DrawFn) -> tuple[list[int], list[int], set[int]]:
    """An order, batch sizes, and bad samples: not all of them."""
    sizes = draw(SIZES)
    order = draw(st.permutations(range(sum(sizes))))
    bad = draw(st.sets(st.sampled_from(order), max_size=len(order) - 1))
    return order, sizes, bad


PREFETCH = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(epochs(), PREFETCH, st.booleans())
def test_substitutes_fill_the_slots_of_bad_samples(
    epoch: tuple[list[int], list[int], set[int]], prefetch: list[int], sampler: bool
) -> None:
    order, sizes, bad = epoch
    schedule = Schedule(cut(order, sizes), Numbering(len(order)), 7, sampler=sampler)
    found = list(delivered(schedule, bad, prefetch))
    assert [len(batch) for batch, *_ in found] == sizes
    assert [position for *_, position in found] == np.cumsum(sizes).tolist()
    stream = [index for batch, *_ in found for index in batch]
    assert not bad & set(stream)
    assert all(got == want for got, want in zip(stream, order, strict=True) if want not in bad)
    draws = [draw for _, batch, _ in found for draw in batch]
    assert len(set(draws)) == len(draws) and max(draws) < 1 << 63


@given(epochs(), PREFETCH, PREFETCH, st.booleans(), st.data())
def test_substitutes_do_not_depend_on_when_a_sample_is_known_to_be_bad(
    epoch: tuple[list[int], list[int], set[int]],
    one: list[int],
    other: list[int],
    sampler: bool,
    data: st.DataObject,
) -> None:
    order, sizes, bad = epoch
    known = data.draw(st.sets(st.sampled_from(sorted(bad)))) if bad else set()
    numbering = Numbering(len(order))
    first = Schedule(cut(order, sizes), numbering, 7, sampler=sampler)
    second = Schedule(cut(order, sizes), numbering, 7, known, sampler=sampler)
    assert list(delivered(first, bad, one)) == list(delivered(second, bad, other))


@given(epochs(), PREFETCH, PREFETCH, st.data())
def test_an_epoch_goes_on_from_its_position_alone(
    epoch: tuple[list[int], list[int], set[int]],
    prefetch: list[int],
    later: list[int],
    data: st.DataObject,
) -> None:
    order, sizes, bad = epoch
    numbering = Numbering(len(order))
    whole = list(delivered(Schedule(cut(order, sizes), numbering, 7), bad, prefetch))
    done = data.draw(st.integers(0, len(sizes)), "batches done")
    position = whole[done - 1][-1] if done else 0
    rest = Schedule(cut(order[position:], sizes[done:]), numbering, 7)
    found = [batch[:2] for batch in delivered(rest, bad, later)]
    assert found == [batch[:2] for batch in whole[done:]]


def test_other_keys_give_other_substitutes() -> None:
    first, second = (
        Schedule(cut(range(1000), [1000]), Numbering(1000), key, set(range(500))).take()
        for key in (1, 2)
    )
    assert first is not None and second is not None
    assert np.count_nonzero(first.indices[:500] != second.indices[:500]) > 450
    assert len(set(first.indices[:500].tolist())) > 250  # of 500, about 316


def test_a_substitute_for_a_sampler_is_one_that_it_has_drawn() -> None:
    """Others may belong to another split: here those from 20 on."""
    schedule = Schedule(
        cut(range(20), [10, 10]), Numbering(1000), 7, set(range(1, 20)), sampler=True
    )
    for _ in range(2):
        planned = schedule.take()
        assert planned is not None and set(planned.indices.tolist()) == {0}


def test_a_sampler_whose_first_batches_are_bad() -> None:
    bad = set(range(9))
    schedule = Schedule(cut(range(12), [3] * 4), Numbering(12), 7, bad, sampler=True)
    batches = [planned.indices.tolist() for _ in range(4) if (planned := schedule.take())]
    assert len(batches) == 4 and batches[3] == [9, 10, 11]
    assert all(set(batch) <= {9, 10, 11} for batch in batches)
    assert schedule.take() is None


@pytest.mark.parametrize("sampler", [False, True])
def test_all_are_bad(sampler: bool) -> None:
    schedule = Schedule(cut(range(6), [3, 3]), Numbering(6), 7, sampler=sampler)
    planned = schedule.take()
    assert planned is not None
    schedule.exclude(range(6))
    for _ in range(2):
        with pytest.raises(SampleError, match="no sample is left"):
            schedule.substitutes(planned, [0])
    known = Schedule(cut(range(6), [3, 3]), Numbering(6), 7, set(range(6)), sampler=sampler)
    with pytest.raises(SampleError, match="no sample is left"):
        known.take()


def test_batches_of_an_order() -> None:
    plan = Epoch(23, 4, 1, 2, start=3)
    order = make_order("random", 23, 5, 1)
    found = list(ordered(plan, order))
    assert [len(indices) for indices, _, _ in found] == [4, 4, 2]
    assert [position for _, position, _ in found] == [11, 19, 23]
    assert found[0][0].tolist() == order(np.arange(7, 11)).tolist()


def test_batches_of_a_sampler() -> None:
    batches = [[0, -1], [torch.tensor(3)], (np.int64(2), 1)]
    assert [indices.tolist() for indices, _, _ in sampled(batches, 5)] == [[0, 4], [3], [2, 1]]
    again = [[4, 4, -1], [0, 4]]
    assert [draws.tolist() for draws, _, _ in sampled(again, 5)] == [[4, 9, 14], [0, 19]]
    once = sampled(again, 5, replacing=False)
    assert [draws.tolist() for draws, _, _ in once] == [[4, 4, 4], [0, 4]]
    for wrong in (5, -6):
        with pytest.raises(IndexError, match=f"sample {wrong} of 5"):
            list(sampled([[0, wrong]], 5))

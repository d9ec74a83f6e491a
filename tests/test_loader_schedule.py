"""Schedules: batches keep their sizes when samples are left out, however far decoding is ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fastdata.errors import SampleError  # noqa: E402
from fastdata.plan.order import make_order  # noqa: E402
from fastdata.plan.schedule import Numbering, Planned, Schedule, ordered, sampled  # noqa: E402
from fastdata.plan.sharding import Epoch  # noqa: E402


def cut(order: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[np.ndarray, int]]:
    at = 0
    for size in sizes:
        yield np.array(order[at : at + size], np.int64), at + size
        at += size


def delivered(
    schedule: Schedule, bad: set[int], prefetch: Sequence[int]
) -> Iterator[tuple[list[int], int, int]]:
    """What a consumer gets that finds out only by decoding which samples are bad.

    Gives (batch, position, ahead) and takes ``prefetch`` batches ahead, which varies.
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
        batch = planned.indices.tolist()
        holes = [place for place, index in enumerate(batch) if index in bad]
        if holes:
            schedule.exclude(batch[place] for place in holes)
            schedule.put_back(under_way)
            under_way.clear()
        while holes:
            more = schedule.more(len(holes))
            assert more is not None, "no sample is left"
            found = more.indices.tolist()
            schedule.exclude(index for index in found if index in bad)
            good = [index for index in found if index not in bad]
            batch = [index for index in batch if index not in bad] + good
            holes = holes[len(good) :]
        ahead = schedule.ahead - sum(len(p.taken) - len(p.indices) for p in under_way)
        yield batch, planned.position, ahead


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=8)


@st.composite
def epochs(draw: st.DrawFn) -> tuple[list[int], list[int], set[int]]:
    """An order, batch sizes, and bad samples: not all of them."""
    sizes = draw(SIZES)
    order = draw(st.permutations(range(sum(sizes))))
    bad = draw(st.sets(st.sampled_from(order), max_size=len(order) - 1))
    return order, sizes, bad


PREFETCH = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(epochs(), PREFETCH)
def test_bad_samples_are_as_if_they_had_never_been_in_the_order(
    epoch: tuple[list[int], list[int], set[int]], prefetch: list[int]
) -> None:
    order, sizes, bad = epoch
    found = list(delivered(Schedule(cut(order, sizes), Numbering(len(order))), bad, prefetch))
    assert [len(batch) for batch, _, _ in found] == sizes
    assert [position for _, position, _ in found] == np.cumsum(sizes).tolist()
    stream = [index for batch, _, _ in found for index in batch]
    good = [index for index in order if index not in bad]
    # At the end the first good samples come again, in their order, round and round.
    assert stream == [good[i % len(good)] for i in range(len(order))]


@given(epochs(), PREFETCH, PREFETCH)
def test_what_is_delivered_does_not_depend_on_how_far_decoding_is_ahead(
    epoch: tuple[list[int], list[int], set[int]], one: list[int], other: list[int]
) -> None:
    order, sizes, bad = epoch
    first = list(delivered(Schedule(cut(order, sizes), Numbering(len(order))), bad, one))
    second = list(delivered(Schedule(cut(order, sizes), Numbering(len(order))), bad, other))
    assert first == second


@given(epochs(), PREFETCH)
def test_bad_samples_known_before_give_the_order_without_them(
    epoch: tuple[list[int], list[int], set[int]], prefetch: list[int]
) -> None:
    order, sizes, bad = epoch
    found = list(
        delivered(Schedule(cut(order, sizes), Numbering(len(order)), bad=set(bad)), bad, prefetch)
    )
    good = [index for index in order if index not in bad]
    stream = [index for batch, _, _ in found for index in batch]
    assert stream == [good[i % len(good)] for i in range(len(order))]


@given(epochs(), PREFETCH, PREFETCH, st.data())
def test_an_epoch_goes_on_from_where_it_was(
    epoch: tuple[list[int], list[int], set[int]],
    prefetch: list[int],
    later: list[int],
    data: st.DataObject,
) -> None:
    """A new schedule has forgotten which samples are bad, and knows position and ahead alone."""
    order, sizes, bad = epoch
    whole = list(delivered(Schedule(cut(order, sizes), Numbering(len(order))), bad, prefetch))
    done = data.draw(st.integers(0, len(sizes)), "batches done")
    position, ahead = whole[done - 1][1:] if done else (0, 0)
    rest = Schedule(cut(order[position:], sizes[done:]), Numbering(len(order)), ahead)
    good = [index for index in order if index not in bad]
    before = [index for batch, _, _ in whole[:done] for index in batch]
    left = good[len(before) :]
    # What is repeated at the end may come from where this part begins.
    assume(done == len(sizes) or set(order[position:]) - bad)
    after = [index for batch, _, _ in delivered(rest, bad, later) for index in batch]
    assert len(before) + len(after) == len(order)
    assert after[: len(left)] == left


def test_all_are_bad() -> None:
    schedule = Schedule(cut(range(6), [3, 3]), Numbering(6))
    planned = schedule.take()
    assert planned is not None
    schedule.exclude(range(6))
    assert schedule.more(3) is None
    with pytest.raises(SampleError, match="no sample is left"):
        Schedule(cut(range(6), [3, 3]), Numbering(6), bad=set(range(6))).take()


def test_batches_of_an_order() -> None:
    plan = Epoch(23, 4, 1, 2, start=3)
    order = make_order("random", 23, 5, 1)
    found = list(ordered(plan, order))
    assert [len(indices) for indices, _ in found] == [4, 4, 2]
    assert [position for _, position in found] == [11, 19, 23]
    assert found[0][0].tolist() == order(np.arange(7, 11)).tolist()


def test_batches_of_a_sampler() -> None:
    batches = [[0, -1], [torch.tensor(3)], (np.int64(2), 1)]
    assert [indices.tolist() for indices, _ in sampled(batches, 5)] == [[0, 4], [3], [2, 1]]
    again = [[4, 4, -1], [0, 4]]
    assert [draws.tolist() for draws, _ in sampled(again, 5)] == [[4, 9, 14], [0, 19]]
    once = sampled(again, 5, replacing=False)
    assert [draws.tolist() for draws, _ in once] == [[4, 4, 4], [0, 4]]
    for wrong in (5, -6):
        with pytest.raises(IndexError, match=f"sample {wrong} of 5"):
            list(sampled([[0, wrong]], 5))

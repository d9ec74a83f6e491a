"""Plan whole epochs by the loader's own code, without decoding: keys stand for pixels.

Only decoding is replaced: two keys are equal only if sample, occurrence, epoch and seed are.
"""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from fastdata.errors import SampleError
from fastdata.loading.arguments import Arguments
from fastdata.loading.fields.computed import NumberField
from fastdata.loading.fields.field import Batch, BatchField, Context
from fastdata.loading.fields.pipeline import Pipeline
from fastdata.loading.fields.stats import Counters
from fastdata.loading.iterator import Begun, NativeIterator
from fastdata.plan.batches import Plan, Rest
from fastdata.plan.buckets import Buckets
from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.plan.mixture import MixedRows, MixturePlan
from fastdata.plan.order import Order, OrderLike, QuasiRandom, make_order
from fastdata.plan.packing import Packed
from fastdata.plan.position import PLANNED, Fingerprint, LatestPass, PassProgress, Position
from fastdata.plan.sampling import PerClass, Race, Repeated, Weighted
from fastdata.plan.schedule import BatchSchedule, Numbering, ordered
from fastdata.plan.sharding import Epoch


class Keys(BatchField):
    """In the place of images: a sample's pixels are its key; bad ones fail when finished."""

    in_place = True

    def __init__(self, bad: frozenset[int], context: Context) -> None:
        super().__init__("image", context)
        self._bad = bad

    def begin(self, batch: Batch, state: Any) -> None:
        planned = batch.planned
        keys = sample_keys(batch.key, planned.numbers, 0, planned.occurrences).astype(np.int64)
        state.samples = keys
        state.after(None, self._fail, in_turn=True)

    def _fail(self, batch: Batch, state: Any) -> None:
        wrong = [s for s, i in enumerate(batch.planned.indices.tolist()) if i in self._bad]
        state.failed = {slot: SampleError("bad") for slot in wrong}

    def deliver(self, batch: Batch) -> torch.Tensor:
        return torch.from_numpy(batch.states[self].samples)

    def clear(self, batch: Batch, slots: list[int]) -> None:
        batch.states[self].samples[slots] = 0

    def patch(self, batch: Batch, other: Batch, to: list[int], good: list[int]) -> None:
        batch.states[self].samples[to] = other.states[self].samples[good]


class Shares(NamedTuple):
    rank: int
    world_size: int
    batch_size: int


@dataclass(frozen=True)
class Delivered:
    """A batch: the samples' numbers and keys, and the key of what is drawn for all of it."""

    numbers: tuple[int, ...]
    keys: tuple[int, ...]
    batch_key: int


@dataclass
class Run:
    """Settings that all segments of a run share, with its bad samples, known and unknown."""

    n: int
    seed: int
    epoch: int
    order: OrderLike
    drop_last: bool
    on_error: str
    bad: frozenset[int]
    known: frozenset[int]
    subset: Any
    #: Positions that belong to one batch, and the order of a sampler of fastdata's.
    group: int = 1
    sampling: Order | None = None
    plan: Plan | None = None
    small: bool = False
    key: int = field(init=False)

    def __post_init__(self) -> None:
        self.key = epoch_key(self.seed, self.epoch)

    @property
    def positions(self) -> int:
        return self.n if self.sampling is None else len(self.sampling)

    @property
    def good(self) -> set[int]:
        if not self.bad:
            return set(range(self.n))
        numbering = Numbering(self.n, self.subset)
        return {number for number in range(self.n) if int(numbering(number)) not in self.bad}

    def iterate(
        self,
        batches: Iterator[Any],
        key: int,
        progress: PassProgress,
        threads: int,
        length: int | None,
    ) -> NativeIterator:
        config = Arguments(
            fields=("image", "index"),
            on_error=self.on_error,
            num_workers=threads,
            prefetch_factor=None if threads < 2 else threads,
        )
        numbering = Numbering(self.n, self.subset)
        known = set(self.known) if self.on_error in ("skip", "drop") else set()
        how: Any = {"among": self.sampling, "drops": self.on_error == "drop"}
        schedule = BatchSchedule(batches, numbering, key, known, **how)
        source: Any = SimpleNamespace(end_epoch=lambda: None)
        about: Any = {"keys": (), "as_torch": False, "transforms_targets": False}
        images: Any = SimpleNamespace(fields=("image", "label"), **about)
        none: Any = None
        context = Context(images, source, none, none, none, Counters(1))
        index = NumberField("index", context, lambda planned: planned.numbers)
        pipeline = Pipeline(context, {"image": Keys(self.bad, context), "index": index})
        begun = Begun(pipeline, schedule, key, config, progress, length, None, lambda: None)
        return NativeIterator(lambda: begun, lambda: length, LatestPass())

    def start(self, state: dict[str, Any] | None) -> Position:
        own = Position(Fingerprint(self.positions, str(self.order)), self.seed, self.epoch)
        if self.plan is not None:
            fingerprint = Fingerprint(self.n, PLANNED, self.plan.digest)
            own = Position(fingerprint, self.seed, self.epoch, ())
        if state is None:
            return own
        position = Position.from_dict(json.loads(json.dumps(state)))
        position.require(own, self.seed)
        return position

    def rank(self, state: dict[str, Any] | None, shares: Shares, threads: int = 0) -> Rank:
        if self.plan is not None:
            return self.planned(self.plan, state, shares, threads)
        start = self.start(state)
        about = shares.batch_size, shares.rank, shares.world_size, self.drop_last, start.at
        plan = Epoch(self.positions, *about, full=self.group > 1)
        progress = PassProgress(start, len(plan))
        order = self.sampling or make_order(self.order, self.n, self.seed, self.epoch)
        planned = ordered(plan, order, self.n)
        batches = self.iterate(planned, self.key, progress, threads, len(plan))
        return Rank(self, plan, progress, batches)

    def planned(
        self, plan: Plan, state: dict[str, Any] | None, shares: Shares, threads: int
    ) -> Rank:
        """The same, of planned batches, whose sizes are the plan's."""
        start = self.start(state)
        plan.require(start.at, self.key)
        rest = plan.rest(self.key, shares.world_size, start.at)
        progress = PassProgress(start, len(rest))
        batches = rest.batches(shares.rank)
        made = self.iterate(batches, self.key, progress, threads, len(rest))
        return Rank(self, rest, progress, made)


@dataclass
class Rank:
    run: Run
    plan: Epoch | Rest
    progress: PassProgress
    batches: NativeIterator

    def take(self, count: int) -> list[Delivered]:
        found = []
        for _ in range(count):
            batch = next(self.batches, None)
            if batch is None:
                break
            found.append(
                Delivered(
                    tuple(batch["index"].tolist()),
                    tuple(batch["image"].tolist()),
                    self.progress.batch_key,
                )
            )
        return found

    def state(self, progress: PassProgress | None = None) -> dict[str, Any]:
        return (progress or self.progress).reached().to_dict()


def simulate(seed: int, small: bool = False) -> tuple[str, int]:
    """Draws a combination and runs it; returns its kind and epochs. Raises AssertionError."""
    draw = random.Random(seed)
    n = draw.randint(1, draw.choice([6, 12] if small else [6, 12, 24, 24, 48, 48, 300]))
    orders = ["random", "sequential", "quasi-random", QuasiRandom(draw.randint(1, 4))]
    subset = None
    if draw.random() < 0.2:
        subset = np.array(draw.sample(range(2 * n), n), np.int64)
    numbers = range(n) if subset is None else subset.tolist()
    bad: list[int] = []
    if draw.random() < 0.5:
        bad = draw.sample(list(numbers), draw.choice([min(n, 2), draw.randint(0, n - 1)]))
    on_error = draw.choice(["skip", "drop", "zero"] if bad else ["skip", "zero", "raise"])
    if len(bad) == n:
        on_error = "zero"  # nothing could be delivered
    known = draw.sample(bad, draw.choice([0, 0, len(bad) // 2, len(bad)]))
    run = Run(
        n, draw.randint(-(2**65), 2**65), draw.randint(0, 200), draw.choice(orders),
        draw.random() < 0.3, on_error, frozenset(bad), frozenset(known), subset, small=small,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what was left out
        kinds: list[Callable[[Run, random.Random], int]]
        kinds = [_resumed_alike, _changed, _changed, _mixed, _mixed, _planned]
        kind = _resumed_alike if on_error == "drop" else draw.choice(kinds)
        if kind in (_resumed_alike, _changed) and draw.random() < (1 if small else 0.4):
            run.plan = _plan(run, draw)
            if isinstance(run.plan, Packed) and run.on_error == "skip":
                run.on_error = "zero"  # a substitute may be longer
        epochs = kind(run, draw)
    return kind.__name__, epochs


def _plan(run: Run, draw: random.Random) -> Plan:
    about: Any = {"shuffle": draw.random() < 0.8, "drop_last": run.drop_last}
    if draw.random() < 0.5:
        buckets = draw.choice([1, 2, 3, 7])
        bucket = np.array([draw.randrange(buckets) for _ in range(run.n)], np.uint16)
        sizes = [draw.choice([1, 2, 3, 7, 16]) for _ in range(buckets)]
        return Buckets(bucket, sizes, [(1 + at, 1) for at in range(buckets)], **about)
    budget = draw.choice([1, 5, 20, 100])
    lengths = np.array([draw.randint(1, budget) for _ in range(run.n)], np.int32)
    return Packed(lengths, budget, draw.choice([1, 3, 10, 1000]), **about)


def _threads(draw: random.Random) -> int:
    return draw.choice([0, 1, 1, 2, 3, 5])


def _resumed_alike(run: Run, draw: random.Random) -> int:
    """A run that is broken off gives what a whole one gives, batch for batch, on every rank."""
    alone = run.on_error == "drop"  # as is required
    world, size = 1 if alone else draw.choice([1, 1, 2, 3, 5, 8]), draw.choice([1, 2, 3, 7, 16, 64])
    first: list[Delivered] = []
    for rank in range(world):
        shares = Shares(rank, world, size)
        whole = run.rank(None, shares, _threads(draw))
        expected = whole.take(len(whole.plan) + 1)
        assert alone or len(expected) == len(whole.plan)
        first += expected
        found: list[Delivered] = []
        state = None
        while True:
            part = run.rank(state, shares, _threads(draw))
            count = draw.randint(0, 1 + len(part.plan))
            new = part.take(count)
            found += new
            mark = replace(part.progress)
            part.take(draw.choice([0, 0, 3]))  # on their way to a device, and never there
            state = part.state(mark)
            if len(new) == len(part.plan) or len(new) < count:
                break
        assert found == expected, (shares, found, expected)
    _once(run, first, run.drop_last)
    return 1


def _changed(run: Run, draw: random.Random) -> int:
    """The number of ranks and the batch size change wherever a run is broken off."""
    _once(run, _broken_off(run, draw), run.drop_last)
    return 1


def _broken_off(run: Run, draw: random.Random) -> list[Delivered]:
    states: list[dict[str, Any]] = []
    found: list[Delivered] = []
    while True:
        world, size = draw.choice([1, 2, 3, 4, 7]), draw.choice([1, 2, 5, 16, 50])
        if run.group > 1:
            at = states[0]["at"] if states else 0
            size = draw.choice(
                [s for s in range(1, run.group + 1) if not (run.group % s or at % s)]
            )
        ranks = []
        if draw.random() < 0.3:
            states = states[:1]  # all go on from one rank's
        for rank in range(world):
            # Each its own; new ranks have that of another.
            state = states[rank % len(states)] if states else None
            ranks.append(run.rank(state, Shares(rank, world, size), _threads(draw)))
        lengths = {len(rank.plan) for rank in ranks}
        assert len(lengths) == 1
        count = draw.randint(0, max(lengths) + 1)
        taken = [rank.take(count) for rank in ranks]
        of_step = len if not isinstance(run.plan, Packed) else bool
        sizes = {tuple(of_step(batch.numbers) for batch in one) for one in taken}
        assert len(sizes) == 1, "a rank would wait for another"
        found += [batch for one in taken for batch in one]
        states = [rank.state() for rank in ranks]
        assert all(state == states[0] for state in states)
        if len(taken[0]) == max(lengths):
            break
    return found


def _mixed(run: Run, draw: random.Random) -> int:
    """Over several epochs, each row of a source comes once before any comes again."""
    count, group = draw.randint(1, 6), draw.choice([1, 1, 4, 6])
    most = [1, 2, 7] if run.small else [1, 2, 7, 20, 60, 300]
    sizes = [draw.choice(most) for _ in range(count)]
    by_epoch = [
        [draw.choice([0.0, 0.1, 1, 1, 7]) for _ in sizes] for _ in range(draw.randint(1, 3))
    ]
    by_epoch = [one if any(one) else [1.0] * count for one in by_epoch]
    samples = group * draw.randint(1, draw.choice([2, 5] if run.small else [5, 50, 600]))
    changing = len(by_epoch) > 1 or draw.random() < 0.5

    def shares(epoch: int) -> list[float]:
        return by_epoch[min(epoch, len(by_epoch) - 1)]

    plan = MixturePlan(sizes, shares, changing, samples, group, run.seed)
    drawn = np.zeros(sum(sizes), np.int64)
    epochs = draw.randint(1, 5)
    for epoch in range(epochs):
        rows = MixedRows(plan, epoch, None)
        one = replace(
            run, n=samples, epoch=epoch, order="sequential", drop_last=False, subset=rows,
            bad=frozenset(), known=frozenset(), group=group,
        )  # fmt: skip
        found = _broken_off(one, draw)
        _once(one, found, one.drop_last)
        delivered = {number for batch in found for number in batch.numbers}
        sources, _ = plan(epoch, np.arange(samples))
        for batch in found:
            assert group == 1 or len(set(sources[list(batch.numbers)].tolist())) == 1
        np.add.at(drawn, rows[np.array(sorted(delivered))], 1)
        weights = np.array(shares(epoch)) / sum(shares(epoch))
        for first in range(0, samples // group, 1000):
            part = sources[first * group : (first + 1000) * group : group]
            wrong = np.bincount(part, minlength=count) - len(part) * weights
            assert np.abs(wrong).max() < 1 + 1e-6, "a window has other shares"
    for first, size in zip(plan.starts.tolist(), sizes, strict=True):
        times = drawn[first : first + size]
        assert times.max() - times.min() <= 1, "a row came again before all had come"
    return epochs


def _planned(run: Run, draw: random.Random) -> int:
    """What a sampler of fastdata's says, once each, however ranks and batches change."""
    weights = np.array([draw.choice([0.0, 0.5, 1, 3, 20]) for _ in range(run.n)])
    weights[draw.randrange(run.n)] = 2
    positive, labels = np.flatnonzero(weights).astype(np.uint64), (weights * 2).astype(int)
    m, total = draw.randint(1, 4), max(round(weights.sum()), 1)
    rows = np.argsort(labels, kind="stable").astype(np.uint64)
    starts = np.append(np.flatnonzero(np.diff(np.sort(labels), prepend=-1)), run.n)
    length = draw.randint(1, 2 * run.n)
    made: list[Callable[[], Order]] = [
        lambda: Weighted(length, np.cumsum(weights), run.key),
        lambda: Repeated(total, np.cumsum(weights) * total / weights.sum(), run.key),
        lambda: Race(min(length, len(positive)), weights[weights > 0], positive, run.key),
        lambda: PerClass(length, rows, starts, m, len(starts) - 1, run.epoch, run.key),
    ]
    order = draw.choice(made)()
    one = replace(run, sampling=order, drop_last=False, bad=frozenset(), known=frozenset())
    found = _broken_off(one, draw)
    positions = np.arange(len(order))
    wanted = sample_keys(run.key, order(positions), 0, positions).astype(np.int64).tolist()
    keys = [key for batch in found for key in batch.keys]
    assert len(set(keys)) == len(keys), "a crop would come twice"
    assert set(wanted) <= set(keys), "a position was lost"
    assert len(keys) - len(wanted) < 7, "more padding than ranks"
    return 1


def _once(run: Run, found: Sequence[Delivered], dropped: bool) -> None:
    """Each sample once, but for padding and substitutes, which are other occurrences of it."""
    first = sample_keys(run.key, np.arange(run.n)).astype(np.int64).tolist()
    drawn = Counter(
        number
        for batch in found
        for number, key in zip(batch.numbers, batch.keys, strict=True)
        if key == first[number]
    )
    known = {0, *first}  # those of bad samples are zeroed
    again = [key for batch in found for key in batch.keys if key not in known]
    assert set(drawn) <= run.good, "a bad sample was delivered"
    if not dropped:
        assert set(drawn) == run.good, f"lost {sorted(run.good - set(drawn))}"
    assert max(drawn.values(), default=1) == 1, f"doubled {drawn.most_common(3)}"
    assert len(set(again)) == len(again), "a crop that is repeated would come twice"

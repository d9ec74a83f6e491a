"""Plan whole epochs by the loader's own code, without decoding: keys stand for pixels.

Only decoding is replaced: two keys are equal only if sample, occurrence, epoch and seed are. Sizes
of batches are drawn for a few batches in an epoch, so a million epochs take less than half an hour.
"""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fastdata.errors import SampleError
from fastdata.loading.arguments import Arguments
from fastdata.loading.batching import find_batching, planned_batching
from fastdata.loading.fields.buffers import BufferPool
from fastdata.loading.fields.computed import NumberField
from fastdata.loading.fields.field import Batch, BatchField, Context
from fastdata.loading.fields.pipeline import Pipeline
from fastdata.loading.fields.stats import Counters
from fastdata.loading.iterator import NativeIterator, OpenedPass
from fastdata.loading.mixture import Mixture
from fastdata.loading.samplers import (
    BalancedSampler,
    MPerClassSampler,
    PlannedBatches,
    PlannedSampler,
    RepeatSampler,
    WeightedSampler,
)
from fastdata.plan.batches import Plan
from fastdata.plan.buckets import Buckets
from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.plan.mixture import WINDOW, MixedRows
from fastdata.plan.order import OrderLike, QuasiRandom
from fastdata.plan.packing import Packed
from fastdata.plan.position import LatestPass, PassProgress, Position
from fastdata.plan.schedule import BatchSchedule, Numbering

Ints: TypeAlias = npt.NDArray[np.int64]

#: Kinds of runs.
KINDS = {"resumed alike", "changed", "mixed", "planned"}


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


class Delivered(NamedTuple):
    """A batch: the samples' numbers and keys, and the key of what is drawn for all of it."""

    numbers: Ints
    keys: Ints
    batch_key: int


class Samples:
    """Samples of several batches, one after the other."""

    def __init__(self, batches: Sequence[Delivered]) -> None:
        none = np.empty(0, np.int64)
        self.numbers = np.concatenate([none, *(batch.numbers for batch in batches)])
        self.keys = np.concatenate([none, *(batch.keys for batch in batches)])
        self.batches = [(len(batch.numbers), batch.batch_key) for batch in batches]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Samples)
        same = self.batches == other.batches and np.array_equal(self.numbers, other.numbers)
        return same and np.array_equal(self.keys, other.keys)


@dataclass
class Run:
    """Settings that all segments of a run share, with its bad samples, known and unknown.

    ``dataset`` is what a loader is given; only its length matters, unless it is a `Mixture`.
    """

    dataset: Any
    seed: int
    epoch: int
    order: OrderLike | None
    drop_last: bool
    on_error: str
    bad: frozenset[int]
    known: frozenset[int]
    subset: Any
    sampler: PlannedSampler | None = None
    plan: Plan | None = None
    small: bool = False
    #: Epochs by kind of run, and how often one was resumed, and with how many samples in all.
    counts: Counter[str] = field(default_factory=Counter)
    key: int = field(init=False)

    def __post_init__(self) -> None:
        self.key = epoch_key(self.seed, self.epoch)

    @property
    def n(self) -> int:
        return len(self.dataset)

    @property
    def positions(self) -> int:
        return self.n if self.sampler is None else len(self.sampler)

    @property
    def group(self) -> int:
        """Positions that belong to one batch."""
        return getattr(self.sampler or self.dataset, "group", 1)

    @property
    def good(self) -> npt.NDArray[np.bool_]:
        if not self.bad:
            return np.ones(self.n, np.bool_)
        indices = Numbering(self.n, self.subset)(np.arange(self.n))
        return np.isin(indices, list(self.bad), invert=True)

    def rank(self, state: dict[str, Any] | None, shares: Shares, threads: int = 0) -> Rank:
        """Begin a rank's pass as a loader does, from a state if there is one."""
        planned = self.plan is not None
        arguments = Arguments(
            batch_size=1 if planned else shares.batch_size,
            sampler=self.sampler,
            batch_sampler=PlannedBatches(self.plan, 0, None) if self.plan is not None else None,
            num_workers=threads,
            prefetch_factor=None if threads < 2 else threads,
            drop_last=self.drop_last and not planned,
            order=None if planned else self.order,
            seed=self.seed,
            shard=shares[:2],
            fields=("image", "index"),
            on_error=self.on_error,
        )
        batching = find_batching(
            arguments, self.dataset, planned_batching(arguments, self.dataset), None
        )
        batching.check_on_error()
        start = batching.beginning(self.epoch, self.seed, 0)
        if state is not None:
            saved = Position.from_dict(json.loads(json.dumps(state)))
            start = batching.require(saved, start, self.seed)
            self.counts["resumes"] += 1
        batches, key, length, among = batching.draw(start, self.n)
        assert key == self.key and length is not None
        known = set(self.known) if self.on_error in ("skip", "drop") else set()
        how: Any = {"among": among, "drops": self.on_error == "drop"}
        schedule = BatchSchedule(batches, Numbering(self.n, self.subset), key, known, **how)
        progress = PassProgress(start, length)
        about: Any = arguments, progress, length, lambda: None
        opened = OpenedPass(self._pipeline(), schedule, key, *about)
        batches = NativeIterator(lambda *_: opened, lambda: length, LatestPass())
        return Rank(length, progress, batches)

    def _pipeline(self) -> Pipeline:
        source: Any = SimpleNamespace(end_epoch=lambda: None)
        about: Any = {"keys": (), "as_torch": False, "transforms_targets": False}
        images: Any = SimpleNamespace(fields=("image", "label"), **about)
        none: Any = None
        context = Context(images, source, none, BufferPool(0, False), none, Counters(1))
        index = NumberField("index", context, lambda planned: planned.numbers)
        return Pipeline(context, {"image": Keys(self.bad, context), "index": index})


@dataclass
class Rank:
    length: int
    progress: PassProgress
    batches: NativeIterator

    def take(self, count: int) -> list[Delivered]:
        taken = []
        for _ in range(count):
            batch = next(self.batches, None)
            if batch is None:
                break
            values = batch["index"].numpy(), batch["image"].numpy()
            taken.append(Delivered(*values, self.progress.batch_key))
        return taken

    def state(self, progress: PassProgress | None = None) -> dict[str, Any]:
        return (progress or self.progress).reached().to_dict()


def simulate(seed: int, small: bool = False) -> Counter[str]:
    """Draw a combination and run it; return its counts, as `Run` has them.

    Raise AssertionError if a sample is lost or comes twice.
    """
    draw = random.Random(seed)
    n = draw.randint(1, draw.choice([6, 12] if small else [6, 12, 24, 24, 48, 48, 300, 4000]))
    orders = ["random", "sequential", "quasi-random", QuasiRandom(draw.randint(1, 4))]
    subset = None
    if draw.random() < 0.2:
        subset = np.array(draw.sample(range(2 * n), n), np.int64)
    numbers = range(n) if subset is None else subset.tolist()
    bad: list[int] = []
    if draw.random() < 0.5:
        bad = draw.sample(list(numbers), draw.choice([min(n, 2), draw.randint(0, min(n - 1, 48))]))
    on_error = draw.choice(["skip", "drop", "zero"] if bad else ["skip", "zero", "raise"])
    if len(bad) == n:
        on_error = "zero"  # nothing could be delivered
    known = draw.sample(bad, draw.choice([0, 0, len(bad) // 2, len(bad)]))
    run = Run(
        range(n), draw.randint(-(2**65), 2**65), draw.randint(0, 200), draw.choice(orders),
        draw.random() < 0.3 and on_error != "drop", on_error, frozenset(bad), frozenset(known),
        subset, small=small,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what was left out
        kinds: list[Callable[[Run, random.Random], None]]
        kinds = [_resumed_alike, _changed, _changed, _mixed, _mixed, _planned]
        kind = _resumed_alike if on_error == "drop" else draw.choice(kinds)
        if kind in (_resumed_alike, _changed) and draw.random() < (1 if small else 0.4):
            run.plan = plan = _plan(run, draw)
            unsuited = isinstance(plan, Packed) or not plan.shuffle
            if unsuited and run.on_error == "skip":
                run.on_error = "zero"  # a substitute may be longer, or counts twice
        kind(run, draw)
    return run.counts


def _plan(run: Run, draw: random.Random) -> Buckets | Packed:
    about: Any = {"shuffle": draw.random() < 0.8, "drop_last": run.drop_last}
    drawn, scale = np.random.default_rng(draw.getrandbits(64)), draw.randint(1, 1 + run.n // 4)
    if draw.random() < 0.5:
        buckets = draw.choice([1, 2, 3, 7])
        bucket = drawn.integers(buckets, size=run.n, dtype=np.uint16)
        sizes = [scale * draw.choice([1, 2, 3, 7, 16]) for _ in range(buckets)]
        return Buckets(bucket, sizes, [(1 + at, 1) for at in range(buckets)], **about)
    longest = draw.choice([1, 5, 20, 100])
    lengths = drawn.integers(1, longest, size=run.n, dtype=np.int32, endpoint=True)
    return Packed(lengths, longest * scale, draw.choice([1, 3, 10, 1000]) * scale, **about)


def _threads(draw: random.Random) -> int:
    return draw.choice([0, 1, 1, 2, 3, 5])


def _batch_size(run: Run, draw: random.Random, at: int) -> int:
    """Return a batch size for what comes after a position; it takes no group apart."""
    if run.group == 1:
        return draw.choice([1, 2, 5, 16]) * draw.randint(1, 1 + run.positions // 2)
    divisors = [s for s in range(1, run.group + 1) if not (run.group % s or at % s)]
    return max(draw.choices(divisors, k=2))


def _steps(draw: random.Random, left: int) -> int:
    """Return after how many batches a run is broken off, if not at its end."""
    return draw.randint(0, left + 1) if draw.random() < 0.7 else left + 1


def _resumed_alike(run: Run, draw: random.Random) -> None:
    """A run that is broken off gives what a whole one gives, batch for batch, on every rank."""
    alone = run.on_error == "drop"  # as is required
    world = 1 if alone else draw.choice([1, 1, 1, 1, 2, 2, 2, 3, 5, 8])
    size = _batch_size(run, draw, 0)
    first: list[Delivered] = []
    for rank in range(world):
        shares = Shares(rank, world, size)
        whole = run.rank(None, shares, _threads(draw))
        expected = whole.take(whole.length + 1)
        assert alone or len(expected) == whole.length
        first += expected
        found: list[Delivered] = []
        state = None
        while True:
            part = run.rank(state, shares, _threads(draw))
            count = _steps(draw, part.length)
            new = part.take(count)
            found += new
            mark = replace(part.progress)
            part.take(draw.choice([0, 0, 3]))  # on their way to a device, and never there
            state = part.state(mark)
            if len(new) == part.length or len(new) < count:
                break
        assert Samples(found) == Samples(expected), (shares, found, expected)
    _once(run, Samples(first), run.drop_last)
    run.counts["resumed alike"] += 1


def _changed(run: Run, draw: random.Random) -> None:
    """The number of ranks and the batch size change wherever a run is broken off."""
    _once(run, _broken_off(run, draw), run.drop_last)
    run.counts["changed"] += 1


def _broken_off(run: Run, draw: random.Random) -> Samples:
    states: list[dict[str, Any]] = []
    found: list[Delivered] = []
    while True:
        world = draw.choice([1, 1, 1, 1, 2, 2, 2, 3, 4, 7])
        size = _batch_size(run, draw, states[0]["at"] if states else 0)
        ranks = []
        if draw.random() < 0.3:
            states = states[:1]  # all go on from one rank's
        for rank in range(world):
            # Each its own; new ranks have that of another.
            state = states[rank % len(states)] if states else None
            ranks.append(run.rank(state, Shares(rank, world, size), _threads(draw)))
        lengths = {rank.length for rank in ranks}
        assert len(lengths) == 1
        count = _steps(draw, max(lengths))
        taken = [rank.take(count) for rank in ranks]
        of_step = len if not isinstance(run.plan, Packed) else bool
        sizes = {tuple(of_step(batch.numbers.tolist()) for batch in one) for one in taken}
        assert len(sizes) == 1, "a rank would wait for another"
        found += [batch for one in taken for batch in one]
        states = [rank.state() for rank in ranks]
        assert all(state == states[0] for state in states)
        if len(taken[0]) == max(lengths):
            return Samples(found)


def _mixed(run: Run, draw: random.Random) -> None:
    """Over several epochs, each row of a source comes once before any comes again."""
    count, group = draw.randint(1, 6), draw.choice([1, 1, 4, 6])
    most = [1, 2, 7] if run.small else [1, 2, 7, 20, 60, 300]
    sizes = {str(source): draw.choice(most) for source in range(count)}
    by_epoch = [
        {name: draw.choice([0.0, 0.1, 1, 1, 7]) for name in sizes}
        for _ in range(draw.randint(1, 3))
    ]
    by_epoch = [one if any(one.values()) else dict.fromkeys(sizes, 1.0) for one in by_epoch]
    groups = [2, 5] if run.small else [5, 5, 50]
    if group == 1 and not run.small:
        groups = [5, 5, 5, 50, 50, 50, 600, 2 * WINDOW]
    samples = group * draw.randint(1, draw.choice(groups))
    changing = len(by_epoch) > 1 or draw.random() < 0.5
    mixture = Mixture(
        {name: range(size) for name, size in sizes.items()},
        (lambda epoch: by_epoch[min(epoch, len(by_epoch) - 1)]) if changing else by_epoch[0],
        samples=samples, group=group, seed=run.seed,
    )  # fmt: skip
    drawn = np.zeros(sum(sizes.values()), np.int64)
    for epoch in range(draw.randint(1, 5)):
        rows = MixedRows(mixture.plan, epoch, None)
        one = replace(
            run, dataset=mixture, epoch=epoch, order=None, drop_last=False, subset=rows,
            bad=frozenset(), known=frozenset(),
        )  # fmt: skip
        found = _broken_off(one, draw)
        _once(one, found, one.drop_last)
        sources, _ = mixture.plan(epoch, np.arange(samples))
        if group > 1:
            batch = np.repeat(np.arange(len(found.batches)), [size for size, _ in found.batches])
            pairs = np.unique(batch * count + sources[found.numbers])
            assert len(pairs) == len(found.batches), "a batch has two sources"
        drawn += np.bincount(rows[np.unique(found.numbers)], minlength=len(drawn))
        weights = np.array(mixture.shares(epoch))
        for first in range(0, samples // group, WINDOW):
            part = sources[first * group : (first + WINDOW) * group : group]
            wrong = np.bincount(part, minlength=count) - len(part) * weights
            assert np.abs(wrong).max() < 1 + 1e-6, "a window has other shares"
        run.counts["mixed"] += 1
    for first, size in zip(mixture.plan.starts.tolist(), sizes.values(), strict=True):
        times = drawn[first : first + size]
        assert times.max() - times.min() <= 1, "a row came again before all had come"


def _planned(run: Run, draw: random.Random) -> None:
    """What a sampler of fastdata's says, once each, however ranks and batches change."""
    drawn = np.random.default_rng(draw.getrandbits(64))
    weights = drawn.choice([0.0, 0.5, 1, 3, 20], run.n)
    weights[draw.randrange(run.n)] = 2
    labels, classes = (weights * 2).astype(int), len(np.unique(weights))
    length, m, seed = draw.randint(1, 2 * run.n), draw.randint(1, 4), run.seed
    group = m * draw.randint(1, classes)
    fewer = min(length, np.count_nonzero(weights))
    factors = weights * min(1, 1000 / weights.sum())
    made: list[Callable[[], PlannedSampler]] = [
        lambda: WeightedSampler(weights, length, seed=seed),
        lambda: WeightedSampler(weights, fewer, False, seed=seed),
        lambda: RepeatSampler(factors, seed=seed),
        lambda: BalancedSampler(labels, length, seed=seed),
        lambda: MPerClassSampler(labels, m, None, length + m, seed=seed),
        lambda: MPerClassSampler(labels, m, group, min(length, 100) + group, seed=seed),
    ]
    sampler = draw.choice(made)()
    nothing: Any = {"drop_last": False, "bad": frozenset(), "known": frozenset()}
    one = replace(run, sampler=sampler, order=None, **nothing)
    keys = _broken_off(one, draw).keys
    positions = np.arange(len(sampler))
    rows = sampler.order(run.epoch)(positions)
    wanted = sample_keys(run.key, rows, 0, positions).astype(np.int64)
    assert len(np.unique(keys)) == len(keys), "a crop would come twice"
    assert np.isin(wanted, keys).all(), "a position was lost"
    assert len(keys) - len(wanted) < 7 * one.group, "more padding than ranks"
    run.counts["samples"] += len(wanted)
    run.counts["planned"] += 1


def _once(run: Run, found: Samples, dropped: bool) -> None:
    """Each sample once, but for padding and substitutes, which are other occurrences of it."""
    first = sample_keys(run.key, np.arange(run.n)).astype(np.int64)
    own = found.keys == first[found.numbers]
    times, good = np.bincount(found.numbers[own], minlength=run.n), run.good
    assert not times[~good].any(), "a bad sample was delivered"
    if not dropped:
        assert times[good].all(), f"lost {np.flatnonzero(good & (times == 0))}"
    assert times.max() <= 1, f"doubled {np.flatnonzero(times > 1)}"
    again = found.keys[~own & (found.keys != 0)]  # those of bad samples are zeroed
    assert len(np.unique(again)) == len(again), "a crop that is repeated would come twice"
    assert not np.isin(again, first).any(), "a repeated crop is another sample's"
    run.counts["samples"] += len(found.numbers)

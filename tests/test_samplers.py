"""Samplers that draw by weight, factor or class: torch's distributions, shared out and resumed."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loader_data import SAMPLES, images, tree
from scipy import stats
from test_concat import SMALL
from torch.utils.data import BatchSampler, Subset, TensorDataset, WeightedRandomSampler
from torchvision_stub import import_torchvision

from fastdata import DataLoader, DeviceLoader, ImageDataset, Mixture
from fastdata.errors import UsageError
from fastdata.plan import sampling
from fastdata.samplers import (
    AspectRatioBatches,
    BalancedSampler,
    MPerClassSampler,
    RepeatSampler,
    TokenBudgetBatches,
    WeightedSampler,
)

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")

LABELS = np.array([n * n % 7 for n in range(SAMPLES)])  # 0, 1, 2, 4
FACTORS = 0.5 + np.arange(SAMPLES) % 4 / 2
SAMPLERS: dict[str, Callable[[], Any]] = {
    "weighted": lambda: WeightedSampler(FACTORS, 77, seed=3),
    "without replacement": lambda: WeightedSampler(FACTORS, 40, False, seed=3),
    "repeated": lambda: RepeatSampler(FACTORS, seed=3),
    "balanced": lambda: BalancedSampler(LABELS, seed=3),
    "of a class": lambda: MPerClassSampler(LABELS, 3, 6, seed=3),
}


def loader_of(sampler: Any, size: int = 6, transform: Any = SMALL, **options: Any) -> Any:
    options = {"fields": ("image", "index"), "seed": 9, **options}
    return DataLoader(images(transform), size, sampler=sampler, require_native=True, **options)


def rows_of(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["index"].tolist()]


@pytest.mark.parametrize("name", SAMPLERS)
def test_torchs_loader_and_ours_deliver_its_rows(name: str) -> None:
    make = SAMPLERS[name]
    alone, loader = make(), loader_of(make())
    before: list[int] = []
    for epoch in range(3):
        alone.set_epoch(epoch)
        rows = list(alone)
        assert len(rows) == len(alone)
        data = TensorDataset(torch.arange(SAMPLES))
        torchs = torch.utils.data.DataLoader(data, 6, sampler=alone)
        assert [row for (batch,) in torchs for row in batch.tolist()] == rows
        assert rows_of(loader) == rows != before
        before = rows
    assert len(loader) == -(-len(alone) // 6)
    assert f"order: by the {type(alone).__name__}" in loader.explain()


def test_a_state_is_of_one_sampler() -> None:
    state = loader_of(SAMPLERS["weighted"]()).state_dict()
    for weights, seed in ((FACTORS, 4), (FACTORS[::-1].copy(), 3)):
        with pytest.raises(UsageError, match="another mixture, sampler or Subset"):
            loader_of(WeightedSampler(weights, 77, seed=seed)).load_state_dict(state)


def drawn(sampler: Any, epochs: int, n: int) -> np.ndarray:
    found = np.zeros(n, int)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        found += np.bincount(list(sampler), minlength=n)
    return found


def test_weighted_draws_have_torchs_distribution() -> None:
    weights = torch.tensor([0.0, 1, 1, 2, 0, 5, 0.5, 3, 0])
    found = drawn(WeightedSampler(weights, 20_000, seed=1), 5, 9)
    torch.manual_seed(0)
    torchs = np.bincount(list(WeightedRandomSampler(weights, 100_000)), minlength=9)
    positive = weights.numpy() > 0
    assert not found[~positive].any()
    wanted = 100_000 * weights.numpy()[positive] / weights.sum().item()
    assert stats.chisquare(found[positive], wanted).pvalue > 0.01
    both = np.stack([found[positive], torchs[positive]])
    assert stats.chi2_contingency(both).pvalue > 0.01


@pytest.mark.parametrize("window", [1 << 16, 2000])
def test_draws_without_replacement_have_torchs_distribution(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows are dealt into windows: a weight's chance, and its mean place."""
    monkeypatch.setattr(sampling, "RACE_WINDOW", window)
    kinds = np.arange(10_000) % 4
    weights = np.array([0.0, 1, 2, 8])[kinds]
    generator = torch.Generator().manual_seed(0)
    ours, torchs = np.zeros((2, 4), int)
    for epoch in range(5):
        sampler = WeightedSampler(weights, 3000, False, seed=2)
        sampler.set_epoch(epoch)
        rows = np.array(list(sampler))
        assert len(set(rows.tolist())) == 3000
        ours += np.bincount(kinds[rows], minlength=4)
        theirs = list(WeightedRandomSampler(weights.tolist(), 3000, False, generator))
        torchs += np.bincount(kinds[theirs], minlength=4)
    assert not ours[0]
    assert stats.chi2_contingency(np.stack([ours[1:], torchs[1:]])).pvalue > 0.01
    every = WeightedSampler(weights, 7500, False, seed=2)
    assert sorted(every) == np.flatnonzero(weights).tolist()


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300])
def test_a_handful_of_rows_without_replacement_is_drawn_as_by_torch(scale: float) -> None:
    for rows in (1, 2, 5):
        weights = np.arange(rows) * scale
        weights[0] = scale / 2
        for count in range(1, rows + 1):
            drawn = rows_of(loader_of(WeightedSampler(np.resize(weights, SAMPLES), count, False)))
            assert len(set(drawn)) == len(drawn) == count
        assert sorted(WeightedSampler([*weights, 0], rows, False)) == list(range(rows))
    sampler, ours = WeightedSampler(weights, 3, False, seed=4), []
    for epoch in range(500):
        sampler.set_epoch(epoch)
        ours.append(list(sampler))
    generator = torch.Generator().manual_seed(4)
    plain = (weights / scale).tolist()
    theirs = [list(WeightedRandomSampler(plain, 3, False, generator)) for _ in range(500)]
    for place in range(3):
        both = [np.bincount([draw[place] for draw in some], minlength=5) for some in (ours, theirs)]
        assert stats.chi2_contingency(np.stack(both)).pvalue > 0.01


def test_factors_are_met_on_average() -> None:
    factors = np.array([0.25, 1, 2.5, 3.25, 0, 1, 2])
    sampler = RepeatSampler(factors, seed=1)
    assert len(sampler) == 10
    counts = []
    for epoch in range(400):
        sampler.set_epoch(epoch)
        counts.append(np.bincount(list(sampler), minlength=7))
    assert (np.array(counts) >= np.floor(factors)).all()
    assert (np.array(counts) <= np.ceil(factors)).all()
    assert np.mean(counts, 0) == pytest.approx(factors, abs=0.08)


def test_classes_come_equally_often_and_their_rows_in_turn() -> None:
    sampler = BalancedSampler(LABELS, 40, seed=1)
    times: Counter[int] = Counter()
    for epoch in range(9):
        sampler.set_epoch(epoch)
        rows = np.array(list(sampler))
        for some in LABELS[rows].reshape(-1, 4):
            assert sorted(some.tolist()) == [0, 1, 2, 4]
        times.update(rows.tolist())
        for label in (0, 1, 2, 4):
            of_class = [times[row] for row in np.flatnonzero(label == LABELS).tolist()]
            assert max(of_class) - min(of_class) <= 1


def test_a_batch_has_m_of_a_class() -> None:
    """As pytorch-metric-learning's sampler of the same name has."""
    for batch_size, m in ((8, 4), (12, 4), (6, 2), (3, 3)):
        sampler = MPerClassSampler(LABELS, m, batch_size, 10 * batch_size, seed=1)
        classes: Counter[int] = Counter()
        for epoch in range(20):
            sampler.set_epoch(epoch)
            for batch in BatchSampler(sampler, batch_size, drop_last=False):
                labels = LABELS[batch]
                assert set(Counter(labels.tolist()).values()) == {m}
                assert len(set(batch)) == batch_size  # classes have 7 rows and more
                classes.update(labels.tolist())
        assert stats.chisquare(list(classes.values())).pvalue > 0.001
    few = MPerClassSampler([0, 0, 1, 1, 1], 4, 8, 80)
    assert set(Counter(np.array([0, 0, 1, 1, 1])[list(few)].tolist()).values()) == {40}


def test_a_long_epoch_takes_no_memory() -> None:
    """Nothing is made that is as long as the epoch: only its order is asked for."""
    order = WeightedSampler(np.ones(1000), 10**12, seed=1).order(5)
    assert order(np.array([10**12 - 1])) < 1000
    cumulated = np.arange(1, 11, dtype=np.float64) * 10**8
    assert sampling.Repeated(10**9, cumulated, 3)(np.arange(10)).max() < 10


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "negative": (lambda: WeightedSampler([1, -1]), "finite numbers from 0"),
    "nothing": (lambda: WeightedSampler([]), "finite numbers from 0"),
    "nan": (lambda: RepeatSampler([1, float("nan")]), "finite numbers from 0"),
    "words": (lambda: WeightedSampler(["a"]), "finite numbers"),  # type: ignore[list-item]
    "too many": (lambda: WeightedSampler([1, 0, 2], replacement=False), "2 weights are positive"),
    "half": (lambda: WeightedSampler([1], 1.5), "num_samples=1.5"),  # type: ignore[arg-type]
    "little": (lambda: RepeatSampler([0.1, 0.1]), "less than 1"),
    "names": (lambda: BalancedSampler(["a", "b"]), "Give a list of ints"),  # type: ignore[list-item]
    "m": (lambda: MPerClassSampler(LABELS, 0), "m=0"),
    "no multiple": (lambda: MPerClassSampler(LABELS, 4, 6), "multiple of 4"),
    "classes": (lambda: MPerClassSampler(LABELS, 4, 20), "needs 5 classes, and there are 4"),
    "short": (lambda: MPerClassSampler(LABELS, 4, 8, 7), "no batch of 8"),
    "a rank's batches": (
        lambda: loader_of(SAMPLERS["of a class"](), 5),
        "batch_size=5 does not divide 6",
    ),
    "shuffle": (
        lambda: DataLoader(images(SMALL), sampler=BalancedSampler(LABELS), order="random"),
        "order= or shard= as well",
    ),
    "other data": (
        lambda: DataLoader(Subset(images(SMALL), range(9)), sampler=BalancedSampler(LABELS)),
        "for 53 samples, and the dataset has 9",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(UsageError, match=message):
        make()


def test_a_sampler_excludes_shuffle_as_in_torch() -> None:
    with pytest.raises(ValueError, match="mutually exclusive with shuffle"):
        DataLoader(images(SMALL), shuffle=True, sampler=BalancedSampler(LABELS))


def mixture() -> Mixture:
    sources = {"a": (images(SMALL), 3), "b": (images(SMALL), 1)}
    return Mixture(sources, samples=20, seed=5)


def budgets() -> TokenBudgetBatches:
    return TokenBudgetBatches(images(SMALL), np.full(SAMPLES, 7), 20, seed=4)


RESUMABLE: dict[str, Callable[[], Any]] = {
    "random": lambda: DataLoader(images(SMALL), 4, shuffle=True),
    "sampler": lambda: loader_of(SAMPLERS["weighted"]()),
    "mixture": lambda: DataLoader(mixture(), 4),
    "planned": lambda: DataLoader(images(SMALL), batch_sampler=budgets()),
    "device": lambda: DeviceLoader(DataLoader(images(SMALL), 4, shuffle=True), "cpu"),
}
ABSURD: list[Any] = [
    *(-1, -(2**63), 2**62, 2**64, 10**30, math.nan, math.inf, 1.5, "4", b"4", None, {}, (), []),
    *([-1], [10**30] * 4, ["x"] * 4, [math.nan] * 4, torch.tensor([3.5, 1]), np.zeros(3)),
]


@pytest.mark.parametrize("name", RESUMABLE)
def test_absurd_states_are_refused_and_the_loader_goes_on(name: str) -> None:
    loader = RESUMABLE[name]()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    want = len(list(batches))
    others: list[Any] = [None, [], "x", 5, {"a": 1}, {1: 2}, [("position", 1)], {**state, "x": 1}]
    others += [{one: state[one] for one in state if one != missing} for missing in state]
    for key in state:
        others += [{**state, key: value} for value in ABSURD]
    refused = 0
    for other in others:
        try:
            loader.load_state_dict(other)
        except UsageError as error:
            assert error.hint
            refused += 1
    # Any seed and number of an epoch may be one of a state.
    assert refused >= len(others) - 2 * len(ABSURD)
    loader.load_state_dict(state)
    assert len(list(loader)) == want


def test_they_print_what_they_are_and_can_be_inspected() -> None:
    sampler, planned = SAMPLERS["of a class"](), budgets()
    for thing, words in (
        (SAMPLERS["weighted"](), ("WeightedSampler", "77", str(SAMPLES), "seed=3")),
        (sampler, ("MPerClassSampler", "m=3", "batch_size=6")),
        (mixture(), ("Mixture", "'a'", "75.0%", str(SAMPLES), "samples=20", "seed=5")),
        (planned, ("TokenBudgetBatches", str(SAMPLES), "budget 20", "seed=4")),
        (AspectRatioBatches(images(SMALL), 4, ratios=[1.0]), ("AspectRatioBatches", str(SAMPLES))),
        (DataLoader(images(SMALL), 4, shard=(0, 2)).sampler, ("rank 0 of 2", "sequential")),
    ):
        assert all(word in repr(thing) for word in words), repr(thing)
        assert len(repr(thing)) < 200
    folder = ImageDataset(import_torchvision().datasets.ImageFolder(tree()), SMALL)
    loader = DataLoader(folder, 4, seed=1)  # which Accelerate would take apart
    for thing in (loader, DeviceLoader(loader, "cpu"), folder, images(SMALL), sampler, planned):
        assert dict(inspect.getmembers(thing))
    assert not hasattr(folder, "manifest")
    with pytest.raises(UsageError):
        _ = folder.manifest

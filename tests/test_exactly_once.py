"""Each sample of an epoch exactly once, however it is run; a short form of ``make simulation``."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from exactly_once import simulate

from fastdata.machine import usable_cpus

#: Combinations that are drawn, and the seed of the first.
RUNS = int(os.environ.get("FASTDATA_SIMULATION_RUNS", "600"))
SEED = int(os.environ.get("FASTDATA_SIMULATION_SEED", "0"))
#: Whether only mixtures and plans of a few samples are drawn, of which a million take an hour.
SMALL = bool(os.environ.get("FASTDATA_SIMULATION_SMALL"))
#: Combinations that a process runs at a time; fewer than that are run in this one.
_AT_ONCE = 1000


def several(seeds: range, small: bool = SMALL) -> tuple[Counter[str], list[str]]:
    kinds: Counter[str] = Counter()
    wrong = []
    for seed in seeds:
        try:
            kind, epochs = simulate(seed, small)
            kinds[kind] += epochs
        except Exception as error:  # an error of the loader's is as wrong as a lost sample
            wrong.append(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
    return kinds, wrong


@pytest.mark.slow
def test_every_sample_once_or_as_the_sampler_says() -> None:
    parts = [
        range(at, min(at + _AT_ONCE, SEED + RUNS)) for at in range(SEED, SEED + RUNS, _AT_ONCE)
    ]
    kinds: Counter[str] = Counter()
    wrong: list[str] = []
    if len(parts) == 1:
        found = map(several, parts)
    else:
        pool = ProcessPoolExecutor(usable_cpus(), get_context("spawn"))
        found = pool.map(several, parts)
    for ran, failures in found:
        kinds += ran
        wrong += failures
    print(f"{sum(kinds.values()):,} epochs: {dict(kinds)}; {len(wrong)} failures")
    assert not wrong, "\n".join(wrong[:20])
    assert len(kinds) == 4


def test_every_sample_once_in_small_mixtures_and_plans() -> None:
    kinds, wrong = several(range(SEED, SEED + 200), small=True)
    assert not wrong, "\n".join(wrong[:20])
    assert kinds.keys() == {"_resumed_alike", "_changed", "_mixed", "_planned"}

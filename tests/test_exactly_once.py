"""Each sample of an epoch exactly once, however it is run; a short form of ``make simulation``."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from exactly_once import KINDS, simulate

from fastdata.machine import usable_cpus

#: Combinations that are drawn, and the seed of the first.
RUNS = int(os.environ.get("FASTDATA_SIMULATION_RUNS", "2000"))
SEED = int(os.environ.get("FASTDATA_SIMULATION_SEED", "0"))
#: Whether only mixtures and plans of a few samples are drawn.
SMALL = bool(os.environ.get("FASTDATA_SIMULATION_SMALL"))
#: Combinations that a process runs at a time.
_AT_ONCE = 1000


def several(seeds: range, small: bool = SMALL) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    wrong = []
    for seed in seeds:
        try:
            counts += simulate(seed, small)
        except Exception as error:  # an error of the loader's is as wrong as a lost sample
            wrong.append(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
    return counts, wrong


@pytest.mark.slow
def test_every_sample_once_or_as_the_sampler_says() -> None:
    parts = [
        range(at, min(at + _AT_ONCE, SEED + RUNS)) for at in range(SEED, SEED + RUNS, _AT_ONCE)
    ]
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    with ProcessPoolExecutor(usable_cpus(), get_context("spawn")) as pool:
        for part, failures in pool.map(several, parts):
            counts += part
            wrong += failures
    epochs = sum(counts[kind] for kind in KINDS)
    print(f"{epochs:,} epochs, {len(wrong)} failures; {dict(counts)}")
    assert not wrong, "\n".join(wrong[:20])
    assert counts.keys() >= KINDS


def test_every_sample_once_in_small_mixtures_and_plans() -> None:
    counts, wrong = several(range(SEED, SEED + 400), small=True)
    assert not wrong, "\n".join(wrong[:20])
    assert counts.keys() >= KINDS

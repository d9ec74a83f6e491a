"""Global random generators, seeded for what is drawn for a batch as a whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fastdata.plan.draws import child


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Within, Python's, NumPy's and torch's global generators (of the CPU) draw from a key.

    Afterwards they are as they were. They are the whole process's: a thread that draws from them
    meanwhile gets numbers of the key's.

    Args:
        key: In [0, 2**64).
    """
    with reseeding() as seed:
        seed(key)
        yield


@contextmanager
def reseeding() -> Iterator[Callable[[int], None]]:
    """As `seeded`, for several keys, one after the other: each call seeds with the next one.

    Keeping the generators costs ten times as much as seeding them.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield _seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def _seed(key: int) -> None:
    random.seed(child(key, 0))
    np.random.seed([child(key, number) & 0xFFFF_FFFF for number in (1, 2)])
    torch.default_generator.manual_seed(child(key, 3))

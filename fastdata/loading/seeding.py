"""Seeding of global random generators, for the draws of a batch as a whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fastdata.plan.draws import child


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the global CPU generators of Python, NumPy and torch with a key inside the block.

    The block's end restores them. They belong to the whole process: other threads that draw
    meanwhile get the key's numbers, too. The key is in [0, 2**64).
    """
    with reseeding() as seed:
        seed(key)
        yield


@contextmanager
def reseeding() -> Iterator[Callable[[int], None]]:
    """Yield a function that seeds the generators with a key; restore them at the end.

    Saving the generators costs ten times as much as seeding them, so this saves them once for
    several keys. See `seeded`.
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

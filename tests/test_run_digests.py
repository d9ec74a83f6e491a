"""A run's digest is the same over containers, threads, instruction sets and restarts."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from loader_data import CONTAINERS, images

from fastdata import DataLoader, _native
from fastdata.transforms import (
    ColorJitter,
    Compose,
    Normalize,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
)

TRAINING = Compose(
    [
        RandomResizedCrop(32),
        RandomHorizontalFlip(),
        ColorJitter(0.4, 0.4, 0.4),
        Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)),
        RandomErasing(0.25),
    ]
)
BATCHES = 2 * 8  # two epochs of 53 samples, seven a batch


@pytest.fixture(autouse=True)
def simd() -> Iterator[None]:
    before = _native.simd()
    yield
    _native.set_simd(before)


def run(container: str, threads: int, level: str, stops: tuple[int, ...]) -> str:
    """Digest of two epochs, saved and restarted after as many batches as ``stops`` says."""
    _native.set_simd(level)
    digest = hashlib.sha256()
    state: dict[str, Any] | None = None
    done = 0
    for stop in (*stops, BATCHES):
        loader = DataLoader(
            images(TRAINING, container), 7, shuffle=True, seed=5, num_workers=threads,
            fields=("image", "label", "key"), require_native=True,
        )  # fmt: skip
        if state is not None:
            loader.load_state_dict(state)
        while done < stop:
            for batch in itertools.islice(loader, stop - done):
                digest.update(batch["image"].numpy().tobytes())
                digest.update(repr((batch["label"].tolist(), batch["key"])).encode())
                done += 1
        state = loader.state_dict()
    return digest.hexdigest()


def test_digests_of_whole_runs() -> None:
    levels = _native.simd_levels()
    runs = [(container, 2, levels[0], ()) for container in CONTAINERS]
    runs += [("lmdb", threads, levels[0], ()) for threads in (0, 1, 5)]
    runs += [("shards", 2, level, (11,)) for level in levels]
    runs += [("parquet", 3, levels[0], stops) for stops in ((1, 2, 3), (7, 8, 9), (15,))]
    digests = {a_run: run(*a_run) for a_run in runs}
    assert len(set(digests.values())) == 1, digests

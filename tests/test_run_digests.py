"""A run's digest is the same over containers, threads, instruction sets and restarts."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import target_data
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
TARGET_BATCHES = 2 * 4  # likewise, of 26


@pytest.fixture(autouse=True)
def simd() -> Iterator[None]:
    before = _native.simd()
    yield
    _native.set_simd(before)


def run(container: str, threads: int, level: str, stops: tuple[int, ...]) -> str:
    """Digest of two epochs, saved and restarted after as many batches as ``stops`` says."""

    def loader() -> Any:
        return DataLoader(
            images(TRAINING, container), 7, shuffle=True, seed=5, num_workers=threads,
            fields=("image", "label", "key"), require_native=True,
        )  # fmt: skip

    return digest(loader, level, (*stops, BATCHES))


def digest(open_loader: Callable[[], Any], level: str, stops: tuple[int, ...]) -> str:
    """Digest of the batches of loaders, each of which goes on where the one before stopped."""
    _native.set_simd(level)
    digest = hashlib.sha256()
    state: dict[str, Any] | None = None
    done = 0
    for stop in stops:
        loader = open_loader()
        if state is not None:
            loader.load_state_dict(state)
        while done < stop:
            for batch in itertools.islice(loader, stop - done):
                digest.update(repr(target_data.plain(batch)).encode())
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


@pytest.mark.parametrize("collate_fn", [None, list])
def test_digests_of_targets(v2: Any, collate_fn: Any) -> None:
    """Images, boxes, labels, key points, and masks, from files and painted."""
    levels = _native.simd_levels()
    runs = [(container, 2, levels[0], ()) for container in CONTAINERS]
    runs += [("lmdb", threads, levels[0], ()) for threads in (0, 1, 4)]
    runs += [("shards", 2, level, (5,)) for level in levels]
    runs += [("parquet", 3, levels[0], (1, 2, 4, 7))]

    def run(container: str, threads: int, level: str, stops: tuple[int, ...]) -> str:
        def loader() -> Any:
            return DataLoader(
                target_data.images(target_data.training(v2), container), 7, shuffle=True, seed=5,
                num_workers=threads, collate_fn=collate_fn, require_native=True,
            )  # fmt: skip

        return digest(loader, level, (*stops, TARGET_BATCHES))

    digests = {a_run: run(*a_run) for a_run in runs}
    assert len(set(digests.values())) == 1, digests

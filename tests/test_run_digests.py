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


@pytest.fixture(autouse=True)
def simd() -> Iterator[None]:
    before = _native.simd()
    yield
    _native.set_simd(before)


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


def loader(kind: str, container: str, threads: int, v2: Any) -> Any:
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "num_workers": threads}
    options |= {"require_native": True}
    if kind == "images":
        fields = ("image", "label", "key")
        return DataLoader(images(TRAINING, container), 7, fields=fields, **options)
    dataset = target_data.images(target_data.training(v2), container)
    return DataLoader(dataset, 7, collate_fn=list if kind == "lists" else None, **options)


@pytest.mark.parametrize(
    ("kind", "batches"),
    [("images", 16), ("targets", 8), pytest.param("lists", 8, marks=pytest.mark.slow)],
)
def test_digests(v2: Any, kind: str, batches: int) -> None:
    """Of two epochs of images, and of images, boxes, labels, key points, and masks."""
    levels = _native.simd_levels()
    runs: list[Any] = [(container, 2, levels[0], ()) for container in CONTAINERS]
    runs += [("lmdb", threads, levels[0], ()) for threads in (0, 1, 4)]
    runs += [("shards", 2, level, (5,)) for level in levels]
    runs += [("parquet", 3, levels[0], stops) for stops in ((1, 2, 4), (7,))]
    digests = {
        (container, threads, level, stops): digest(
            lambda: loader(kind, container, threads, v2), level, (*stops, batches)
        )
        for container, threads, level, stops in runs
    }
    assert len(set(digests.values())) == 1, digests

"""Samples that are drawn several times in an epoch: each time they have another crop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from loader_data import CROPS, SAMPLES, as_it_is, images

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
)

from fastdata import DataLoader  # noqa: E402
from fastdata.transforms import Compose  # noqa: E402

# Python from 3.12 on warns of every fork in a process with threads; torch of few CPUs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

EIGHT = [7, 2, 7, 7, 0, 7, 7, 2, 7, 7, 7]


def crops(loader: Any) -> list[bytes]:
    return [image.numpy().tobytes() for batch in loader for image in batch[0]]


def of_seven(found: list[bytes]) -> set[bytes]:
    assert len(found) == len(EIGHT)
    return {crop for index, crop in zip(EIGHT, found, strict=True) if index == 7}


def once() -> list[bytes]:
    return crops(DataLoader(images(), 10, seed=3))


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_eight_draws_are_eight_crops_whatever_the_threads_and_batches(threads: int) -> None:
    options: dict[str, Any] = {"sampler": EIGHT, "seed": 3, "num_workers": threads}
    loader = DataLoader(images(), 11, **options)
    assert "native" in loader.explain()
    found = crops(loader)
    assert len(of_seven(found)) == 8
    assert len(set(found)) == len(EIGHT)
    first = once()
    assert [found[place] for place in (0, 1, 4)] == [first[7], first[2], first[0]]
    assert crops(DataLoader(images(), 3, **options)) == found
    # Another epoch has others.
    assert not of_seven(found) & of_seven(crops(loader))


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [False, True])
def test_eight_draws_in_torchs_loaders(workers: int, own: bool) -> None:
    """torch's loader over an `ImageDataset`, and ours in torch's workers."""
    loader: Any = (
        DataLoader(images(Compose([CROPS, as_it_is])), 11, sampler=EIGHT, num_workers=workers)
        if own
        else torch.utils.data.DataLoader(images(), 11, sampler=EIGHT, num_workers=workers)
    )
    assert not own or "workers" in loader.explain()
    assert len(of_seven(crops(loader))) == 8


@pytest.mark.parametrize("kind", ["sequential", "random", "distributed", "batches"])
def test_samplers_without_replacement_have_the_crops_of_our_orders(kind: str) -> None:
    source = images()
    samplers: list[Any] = {
        "sequential": [SequentialSampler(source)],
        "random": [RandomSampler(source)],
        # 53 samples: the last rank has one of the first again.
        "distributed": [DistributedSampler(source, 2, rank) for rank in range(2)],
        "batches": [BatchSampler(RandomSampler(source), 10, False)],
    }[kind]
    first, seen = once(), []
    for sampler in samplers:
        if kind == "batches":
            numbers = BatchSampler(SequentialSampler(source), 10, False)
            assert crops(DataLoader(source, batch_sampler=numbers, seed=3)) == first
            options: dict[str, Any] = {"batch_sampler": sampler}
        else:
            options = {"batch_size": 10, "sampler": sampler}
        seen += crops(DataLoader(source, seed=3, num_workers=2, **options))
    assert len(seen) == (54 if kind == "distributed" else 53)
    assert set(seen) == set(first)


class Repeating(Sampler[int]):
    """As ``RASampler`` of torchvision's reference: each sample three times, then a rank's share."""

    def __init__(self, rank: int, ranks: int, samples: int = SAMPLES) -> None:
        self.rank, self.ranks, self.samples, self.epoch = rank, ranks, samples, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.samples // self.ranks

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        shuffled = torch.randperm(self.samples, generator=generator)
        repeated = shuffled.repeat_interleave(3).tolist()
        return iter(repeated[self.rank :: self.ranks][: len(self)])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_repeated_augmentation(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    for epoch in range(2):
        found, numbers = [], []
        for rank in range(ranks):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(ranks))
            sampler = Repeating(rank, ranks)
            loader = DataLoader(images(), 5, sampler=sampler, seed=3, require_native=True)
            loader.set_epoch(epoch)
            found += crops(loader)
            numbers += list(sampler)
            assert sampler.epoch == epoch and len(loader) == -(-len(sampler) // 5)
        assert len(found) == len(numbers) == SAMPLES // ranks * ranks
        # Three of each, of one perhaps fewer; all different, but of images of a few pixels.
        assert len(set(numbers)) <= SAMPLES // 3 + 1
        large = [crop for number, crop in zip(numbers, found, strict=True) if number % 13 != 9]
        assert len(set(large)) == len(large) > 40


@pytest.mark.parametrize("size", [3, SAMPLES])
def test_what_fills_up_the_last_batch_is_drawn_anew(size: int) -> None:
    """In orders of ours; what is not repeated has the crop that it has in one process."""
    source = Subset(images(), list(range(size)))
    first = crops(DataLoader(source, 10, seed=3))
    ranks = [DataLoader(source, 10, seed=3, shard=(rank, 8)) for rank in range(8)]
    found = [crop for loader in ranks for crop in crops(loader)]
    assert len(found) == (8 if size == 3 else 56)
    assert len(set(found)) == len(found)
    assert set(first) < set(found)

"""``DataLoader(shard=)`` over any map-style dataset; and what "auto" is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_data import CROPS, SAMPLES, images

torch = pytest.importorskip("torch")

from torch import distributed as dist  # noqa: E402
from torch.utils.data import IterableDataset  # noqa: E402

from fastdata import DataLoader  # noqa: E402
from fastdata.errors import UsageError  # noqa: E402

# Python from 3.12 on warns of every fork in a process with threads; torch of few CPUs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


class Numbers:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        assert 0 <= index < self.count
        return index


class Stream(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def loaded(dataset: Any, rank: int, world: int, size: int = 4, **options: Any) -> list[int]:
    loader: Any = DataLoader(dataset, batch_size=size, shard=(rank, world), **options)
    return [int(x) for batch in loader for x in batch]


def check_shares(shares: list[list[int]], count: int, drop_last: bool, workers: int = 1) -> None:
    """Disjoint, complete and of equal size, but for what padding or dropping needs."""
    assert len({len(share) for share in shares}) == 1
    times = Counter(number for share in shares for number in share)
    slack = len(shares) * workers
    if drop_last:
        assert set(times.values()) <= {1}
        assert 0 <= count - len(times) < slack
    elif count:
        assert set(times) == set(range(count))
        assert 0 <= sum(times.values()) - count < slack


@pytest.mark.parametrize(
    ("start", "drop_last"),
    [("fork", False), ("fork", True), pytest.param("spawn", False, marks=pytest.mark.slow)],
)
def test_ranks_with_workers(start: str, drop_last: bool) -> None:
    options = {"num_workers": 2, "multiprocessing_context": start, "drop_last": drop_last}
    # With batches of one no worker's short batch is dropped.
    shares = [loaded(Numbers(21), rank, 2, 1, **options) for rank in range(2)]
    check_shares(shares, 21, drop_last, workers=2)


@pytest.mark.parametrize("option", [{"order": "random"}, {"seed": 1}, {"shard": (0, 2)}])
def test_a_stream_has_its_own_order_and_share(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no meaning with an IterableDataset"):
        DataLoader(Stream(4), **option)


# Ranks of launchers.


def numbers(loader: DataLoader) -> list[int]:  # type: ignore[type-arg]
    return [number for batch in loader for number in batch["index"].tolist()]


def loader_of(shard: object) -> DataLoader:  # type: ignore[type-arg]
    return DataLoader(images(CROPS), 8, shuffle=True, seed=2, shard=shard, fields=("index",))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.mark.parametrize("rank", [0, 2])
def test_auto_takes_the_launchers_ranks(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "3")
    found = loader_of("auto")
    assert f"rank {rank} of 3" in found.explain()
    assert numbers(found) == numbers(loader_of((rank, 3)))


def test_auto_is_all_samples_in_a_single_process() -> None:
    assert sorted(numbers(loader_of("auto"))) == list(range(SAMPLES))


def test_auto_prefers_the_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert "rank 0 of 1" in loader_of("auto").explain()
    finally:
        dist.destroy_process_group()


def test_auto_is_not_what_it_was_before_the_process_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    early = loader_of("auto")
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(UsageError, match="rank 1 of 2, and this is now rank 0 of 1"):
            next(iter(early))
    finally:
        dist.destroy_process_group()


def test_whole_numbers_of_any_kind_are_a_share() -> None:
    assert numbers(loader_of(np.array([0, 2]))) == numbers(loader_of((0, 2)))


@pytest.mark.parametrize("said", [("0", None), (None, "2"), ("2", "2"), ("x", "2"), ("-1", "2")])
def test_an_environment_that_is_half_set_is_an_error(
    said: tuple[str | None, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(("RANK", "WORLD_SIZE"), said, strict=True):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"RANK={said[0]} and WORLD_SIZE={said[1]}") as caught:
        loader_of("auto")
    assert "torchrun" in caught.value.hint


def test_targets_are_the_labels_and_a_packed_dataset_has_no_files() -> None:
    data = images(CROPS)
    assert data.targets == [data.row(number).label for number in range(SAMPLES)]
    assert not hasattr(data, "samples")
    with pytest.raises(AttributeError, match="Take targets for the labels"):
        _ = data.imgs


@pytest.mark.parametrize("transform", [5, [CROPS]])
def test_a_transform_that_cannot_be_called_is_an_error(transform: object) -> None:
    with pytest.raises(UsageError, match="transform="):
        images(transform)

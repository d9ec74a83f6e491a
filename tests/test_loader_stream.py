"""``DataLoader(shard=)`` over any map-style dataset, and over streams."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.data import IterableDataset, get_worker_info  # noqa: E402

from fastdata import DataLoader  # noqa: E402
from fastdata.errors import UsageError  # noqa: E402

# Python from 3.12 on warns of every fork in a process with threads; torch of few CPUs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


class Numbers:
    """Sample i is i."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        assert 0 <= index < self.count
        return index


class Stream(IterableDataset[int]):
    """Numbers in order, the same in every process."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class SplitByWorker(Stream):
    """Splits itself as torch's documentation has it."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        if worker is None:
            return iter(range(self.count))
        return iter(range(worker.id, self.count, worker.num_workers))


class Sized(Stream):
    def __len__(self) -> int:
        return self.count


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


@given(st.integers(0, 60), st.integers(1, 6), st.booleans())
def test_ranks_share_a_stream_without_workers(count: int, world: int, drop_last: bool) -> None:
    shares = [loaded(Stream(count), rank, world, 1, drop_last=drop_last) for rank in range(world)]
    check_shares(shares, count, drop_last)
    assert all(a < b for share in shares for a, b in pairwise(share[:-1]))


@pytest.mark.parametrize(
    ("dataset", "start", "drop_last"),
    [
        *((SplitByWorker, "fork", drop) for drop in (False, True)),
        (Numbers, "fork", False),
        (SplitByWorker, "spawn", False),
    ],
)
def test_ranks_with_workers(dataset: Any, start: str, drop_last: bool) -> None:
    options = {"num_workers": 2, "multiprocessing_context": start, "drop_last": drop_last}
    # With batches of one no worker's short batch is dropped.
    shares = [loaded(dataset(21), rank, 2, 1, **options) for rank in range(2)]
    check_shares(shares, 21, drop_last, workers=2)


def test_persistent_workers_have_the_same_share_in_each_epoch() -> None:
    loader: Any = DataLoader(Stream(20), 5, shard=(1, 2), num_workers=2, persistent_workers=True)
    first, second = ([int(x) for batch in loader for x in batch] for _ in range(2))
    assert first == second and len(set(first)) == 10


def test_hugging_faces_streams_split_themselves_by_worker() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": list(range(24))}).to_iterable_dataset(num_shards=4)
    shares = []
    for rank in range(2):
        loader: Any = DataLoader(rows, 3, shard=(rank, 2), num_workers=2)
        shares.append([x for batch in loader for x in batch["x"].tolist()])
    check_shares(shares, 24, drop_last=False, workers=2)


def test_torchruns_ranks_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    loader: Any = DataLoader(Stream(9), batch_size=2, shard="auto")
    assert [batch.tolist() for batch in loader] == [[1, 4], [7]]
    assert "rank 1 of 3" in loader.explain()
    again = pickle.loads(pickle.dumps(loader))
    assert [batch.tolist() for batch in again] == [[1, 4], [7]]
    assert isinstance(loader.dataset, Stream)


def test_the_length_is_this_ranks() -> None:
    for drop_last in (False, True):
        for count in range(12):
            loader: Any = DataLoader(Sized(count), 2, shard=(0, 2), drop_last=drop_last)
            assert len(loader) == len(list(loader))
    with pytest.raises(TypeError, match="has no len"):
        len(DataLoader(Stream(3), shard=(0, 2)))  # type: ignore[arg-type]


def test_single_samples_of_a_stream() -> None:
    loader: Any = DataLoader(Stream(5), batch_size=None, shard=(1, 2))
    assert list(loader) == [1, 3, 0]


@pytest.mark.parametrize("option", [{"order": "random"}, {"seed": 1}])
def test_a_stream_has_its_own_order(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no meaning with an IterableDataset"):
        DataLoader(Stream(4), shard=(0, 2), **option)  # type: ignore[arg-type]

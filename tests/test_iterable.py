"""ShardedIterable: shares among ranks and workers, in torch's own DataLoader."""

from __future__ import annotations

import copy
import pickle
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import pack_tree
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Subset  # noqa: E402

from fastdata import ImageDataset, ShardedIterable, fast_collate  # noqa: E402
from fastdata.errors import UsageError  # noqa: E402
from fastdata.loading.iterable import _positions, _turns  # noqa: E402
from fastdata.plan.order import ORDERS, make_order  # noqa: E402
from fastdata.plan.sharding import Epoch  # noqa: E402

# Python from 3.12 on warns of every fork in a process with threads; torch of few CPUs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


class Numbers:
    """Sample i is i; picklable."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        assert type(index) is int and 0 <= index < self.count
        return index


class Chunks(Numbers):
    """Many samples at once, and never one."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.asked: list[list[int]] = []

    def __getitem__(self, index: int) -> int:
        raise AssertionError("__getitems__ was to be asked")

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        return list(indices)


def loaded(dataset: Any, **arguments: Any) -> list[int]:
    return [int(x) for batch in DataLoader(dataset, batch_size=4, **arguments) for x in batch]


def check_shares(shares: list[list[int]], count: int, drop_last: bool) -> None:
    """Disjoint, complete and of equal size, but for what padding or dropping needs."""
    world = len(shares)
    each = count // world if drop_last else -(-count // world)
    assert [len(share) for share in shares] == [each] * world
    times = Counter(number for share in shares for number in share)
    if drop_last:
        assert set(times.values()) <= {1}
        assert len(times) == count // world * world
    elif count:
        assert set(times) == set(range(count))
        assert sum(times.values()) - count < world


SHARING = {
    "count": st.integers(0, 700),
    "world_size": st.integers(1, 9),
    "workers": st.integers(1, 9),
    "drop_last": st.booleans(),
}


@given(**SHARING)
def test_positions_are_disjoint_complete_and_equal(
    count: int, world_size: int, workers: int, drop_last: bool
) -> None:
    shares = []
    for rank in range(world_size):
        epoch = Epoch(count, 1, rank, world_size, drop_last)
        by_worker = [
            [int(i) for numbers in _turns(len(epoch), workers, worker) for i in numbers]
            for worker in range(workers)
        ]
        sizes = [len(numbers) for numbers in by_worker]
        assert max(sizes) - min(sizes) <= 1
        assert sorted(i for numbers in by_worker for i in numbers) == list(range(len(epoch)))
        positions = [
            int(position)
            for worker in range(workers)
            for numbers in _turns(len(epoch), workers, worker)
            for position in _positions(epoch, numbers)
        ]
        assert sorted(positions) == sorted(
            int(epoch.positions(batch)[0]) for batch in range(len(epoch))
        )
        shares.append(positions)
    check_shares(shares, count, drop_last)


@given(
    st.integers(0, 300),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(ORDERS),
    st.integers(-(2**40), 2**40),
    st.integers(0, 1000),
)
def test_ranks_without_workers(
    count: int, world_size: int, drop_last: bool, order: str, seed: int, epoch: int
) -> None:
    wanted = make_order(order, count, seed, epoch)(np.arange(count))
    shares = []
    for rank in range(world_size):
        dataset = ShardedIterable(
            Numbers(count),
            order=order,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        dataset.set_epoch(epoch)
        shares.append(list(dataset))
        assert len(dataset) == len(shares[-1])
        # Together the ranks go through the order from its beginning.
        whole = wanted[rank::world_size].tolist()
        assert shares[-1][: len(whole)] == whole[: len(dataset)]
    check_shares(shares, count, drop_last)


@pytest.mark.parametrize(
    ("start", "drop_last"), [("fork", False), ("fork", True), ("spawn", False)]
)
def test_ranks_with_workers(start: str, drop_last: bool) -> None:
    shares = []
    for rank in range(2):
        dataset = ShardedIterable(
            Numbers(101), shuffle=True, seed=3, drop_last=drop_last, rank=rank, world_size=2
        )
        shares.append(loaded(dataset, num_workers=2, multiprocessing_context=start))
        assert sorted(shares[-1]) == sorted(dataset)
    check_shares(shares, 101, drop_last)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_number_of_workers_changes_no_share(workers: int) -> None:
    dataset = ShardedIterable(Numbers(50), shuffle=True)
    assert len(dataset) == 50
    assert sorted(loaded(dataset, num_workers=workers)) == list(range(50))
    # More workers than samples.
    assert sorted(loaded(ShardedIterable(Numbers(2)), num_workers=workers)) == [0, 1]


def test_the_last_batch_of_each_worker_is_short() -> None:
    dataset = ShardedIterable(Numbers(21))
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    assert sorted(len(batch) for batch in loader) == [2, 3, 4, 4, 4, 4]
    dropping = DataLoader(dataset, batch_size=4, num_workers=2, drop_last=True)
    assert [len(batch) for batch in dropping] == [4, 4, 4, 4]


def test_shuffle_and_order() -> None:
    sequential = list(range(2000))
    assert list(ShardedIterable(Numbers(2000))) == sequential
    shuffled = {}
    for name in ("random", "quasi-random"):
        shuffled[name] = list(ShardedIterable(Numbers(2000), order=name))
        assert shuffled[name] != sequential and sorted(shuffled[name]) == sequential
    assert list(ShardedIterable(Numbers(2000), shuffle=True)) == shuffled["random"]
    again = ShardedIterable(Numbers(2000), shuffle=True, order="quasi-random")
    assert list(again) == shuffled["quasi-random"]
    assert list(ShardedIterable(Numbers(2000), shuffle=True, seed=1)) != shuffled["random"]


def test_epochs() -> None:
    dataset = ShardedIterable(Numbers(100), shuffle=True)
    assert dataset.epoch == 0
    first = list(dataset)
    assert list(dataset) == first
    begun = iter(dataset)
    dataset.set_epoch(np.int64(1))
    assert dataset.epoch == 1
    assert list(begun) == first  # an epoch goes on as it began
    assert list(dataset) != first
    dataset.set_epoch(0)
    assert list(dataset) == first


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_persistent_workers_see_the_epoch(start: str) -> None:
    dataset = ShardedIterable(Numbers(100), shuffle=True)
    loader = DataLoader(
        dataset,
        batch_size=4,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context=start,
    )
    for epoch in (0, 1, 7, 1):
        dataset.set_epoch(epoch)
        wanted = make_order("random", 100, 0, epoch)(np.arange(100)).tolist()
        assert [int(x) for batch in loader for x in batch] == wanted == list(dataset)


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_has_an_epoch_of_its_own(duplicate: Any) -> None:
    dataset = ShardedIterable(Numbers(100), shuffle=True)
    dataset.set_epoch(3)
    other = duplicate(dataset)
    assert other.epoch == 3
    other.set_epoch(4)
    assert dataset.epoch == 3
    orders = [make_order("random", 100, 0, epoch)(np.arange(100)).tolist() for epoch in (3, 4)]
    assert [loaded(dataset, num_workers=1), loaded(other, num_workers=1)] == orders
    assert [list(dataset), list(other)] == orders


def test_chunks() -> None:
    chunks = Chunks(75)
    dataset = ShardedIterable(chunks, shuffle=True, seed=5)
    assert list(dataset) == list(ShardedIterable(Numbers(75), shuffle=True, seed=5))
    assert [len(asked) for asked in chunks.asked] == [32, 32, 11]
    assert sorted(loaded(dataset, num_workers=2)) == list(range(75))
    subset = Subset(Numbers(75), range(10, 20))  # torch's own, which has __getitems__
    assert list(ShardedIterable(subset)) == list(range(10, 20))


class TooFew(Chunks):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices[1:]


def test_chunks_that_lack_samples() -> None:
    with pytest.raises(UsageError, match=r"of test_iterable\.TooFew gave 9 samples for 10 indices"):
        list(ShardedIterable(TooFew(10)))


def test_a_packed_dataset(made_tree: Path, tmp_path: Path) -> None:
    pack_tree(made_tree / "val", tmp_path / "packed", "lmdb")
    packed = ImageDataset(tmp_path / "packed", transform=lambda image: image.resize((8, 8)))
    found = []
    for rank in range(2):
        dataset = ShardedIterable(packed, shuffle=True, rank=rank, world_size=2)
        for images, labels in DataLoader(
            dataset, batch_size=8, num_workers=2, collate_fn=fast_collate
        ):
            pixels = images.permute(0, 2, 3, 1).numpy()
            found += [(one.tobytes(), int(i)) for one, i in zip(pixels, labels, strict=True)]
    assert sorted(found) == sorted((image.tobytes(), label) for image, label in packed)


#: Numbers of workers, and how they are started.
_WORKERS = [(0, None), (2, "fork"), (2, "spawn")]


def _rank(rank: int, dataset: Any, port: int, folder: str) -> None:
    """One process of a job. The dataset was made before it had a rank."""
    assert len(dataset) == 21  # not yet initialised: all of it
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    assert len(dataset) == 11
    # Ranks do not set each other's epochs, though they were started with one dataset.
    dataset.set_epoch(rank)
    torch.distributed.barrier()
    epoch = dataset.epoch
    dataset.set_epoch(6)
    torch.distributed.barrier()
    found = [
        loaded(dataset, num_workers=workers, multiprocessing_context=start)
        for workers, start in _WORKERS
    ]
    inner = ShardedIterable(Numbers(21), shuffle=True)
    inner.set_epoch(6)
    torch.save((epoch, found, list(inner)), f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


def test_the_rank_is_that_of_torch_distributed(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dataset = ShardedIterable(Numbers(21), shuffle=True)
    torch.multiprocessing.spawn(_rank, (dataset, port, str(tmp_path)), nprocs=2)
    results = [torch.load(tmp_path / str(rank)) for rank in range(2)]
    assert [epoch for epoch, _, _ in results] == [0, 1]
    for shares in zip(*(found for _, found, _ in results), strict=True):
        check_shares(list(shares), 21, drop_last=False)
    order = make_order("random", 21, 0, 6)(np.arange(21)).tolist()
    for rank, (_, found, inner) in enumerate(results):
        wanted = (order + order)[rank:22:2]
        assert inner == wanted
        assert [sorted(share) for share in found] == [sorted(wanted)] * len(_WORKERS)
    assert dataset.epoch == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "sorted"}, r"no order 'sorted'(.|\n)*quasi-random"),
        ({"order": "sequential", "shuffle": True}, "contradict"),
        ({"rank": 1}, "rank is 1 and world_size is None"),
        ({"world_size": 2}, "rank is None and world_size is 2"),
        ({"rank": 2, "world_size": 2}, "rank 2"),
        ({"rank": -1, "world_size": 2}, "rank -1"),
        ({"rank": 0, "world_size": 0}, "world_size 0"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ShardedIterable(Numbers(10), **arguments)


def test_what_is_not_map_style() -> None:
    with pytest.raises(UsageError, match="generator is not a map-style dataset"):
        ShardedIterable(number for number in range(3))
    with pytest.raises(UsageError, match="ShardedIterable is not a map-style dataset"):
        ShardedIterable(ShardedIterable(Numbers(3)))


@pytest.mark.parametrize("epoch", [-1, 0.5, True, "1", None])
def test_bad_epochs(epoch: Any) -> None:
    with pytest.raises(UsageError, match="is not a whole number from 0"):
        ShardedIterable(Numbers(10)).set_epoch(epoch)

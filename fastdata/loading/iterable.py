"""`ShardedIterable`: any map-style dataset as a stream, split by rank and by worker process.

For what takes only iterable datasets, and for sharding without a sampler: order and share are
computed where the samples are read, and no list of indices is made or sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

from fastdata.errors import UsageError
from fastdata.loading.neighbours import tell_neighbours
from fastdata.plan.order import ORDER_NAMES, is_order, make_order
from fastdata.plan.sharding import Epoch
from fastdata.text import class_name

__all__ = ["ShardedIterable"]

# Samples that are asked for at once. Enough for reads to overlap and for an order to be computed
# fast; few enough to be held in memory, decoded, by each worker.
_CHUNK = 32


class ShardedIterable(IterableDataset[Any]):
    """A map-style dataset as an iterable one, split among ranks and torch's worker processes.

    Each rank gets its share of the epoch's order, and each worker process of the rank its share of
    that: shares are disjoint, and every rank yields as many samples as the others, however many
    workers each has. What is missing for that is padded with samples from the beginning of the
    epoch, at most one a rank; or what is too many is left out (``drop_last``). ``len()`` is the
    number of samples of this rank, all its workers together.

    Workers take samples in turns, so all of them are at about the same place of the order. If the
    dataset has ``__getitems__``, it is asked for up to 32 samples at once.

    Note on batches: ``DataLoader`` makes batches of each worker's samples separately. So the last
    batch of *each worker* may be short, a loader with W workers may yield up to W - 1 batches
    more than its own ``len()`` says (it divides ``len(dataset)`` by the batch size), and its
    ``drop_last`` drops the short batch of each worker: up to W * (batch size - 1) samples. Ranks
    with the same number of workers and the same batch size still have the same number of batches.

    Example::

        dataset = ShardedIterable(ImageDataset("imagenet-train-lmdb"), shuffle=True)
        loader = DataLoader(dataset, batch_size=256, num_workers=8, collate_fn=fast_collate)
        for epoch in range(90):
            dataset.set_epoch(epoch)
            for images, labels in loader:
                ...

    Args:
        dataset: Anything with ``__len__`` and ``__getitem__``; picklable where workers are
            spawned.
        shuffle: Whether samples come in random order, another one each epoch.
        order: Name of the order: ``"random"``, ``"quasi-random"`` (neighbours stay near each
            other) or ``"sequential"``. By default random with ``shuffle``, else sequential.
        seed: Seed of the order, any int; the same on every rank.
        drop_last: Whether samples that do not go evenly into the ranks are left out; else shares
            are padded. (Not the loader's ``drop_last``, which is about batches.)
        rank: This process's rank, in [0, ``world_size``). By default that of
            ``torch.distributed``, if it is initialised when the stream is begun, else 0.
        world_size: Number of ranks; by default likewise, else 1.

    Attributes:
        dataset: The dataset.
        order: Name of the order.
        seed: Its seed.
        drop_last: As given.

    Raises:
        UsageError: An argument cannot be honoured.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: bool = False,
        order: str | None = None,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__()
        map_style = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        # Iterable datasets inherit a __getitem__ that does nothing.
        if not map_style or isinstance(dataset, IterableDataset):
            raise UsageError(
                f"{class_name(dataset)} is not a map-style dataset, with __getitem__ and __len__",
                "An iterable dataset has to split itself; see torch.utils.data.get_worker_info.",
            )
        if order is None:
            order = "random" if shuffle else "sequential"
        elif not is_order(order):
            raise UsageError(f"there is no order {order!r}", f"Choose one of {ORDER_NAMES}.")
        elif shuffle and order == "sequential":
            raise UsageError(
                "shuffle=True and order='sequential' contradict each other",
                "Leave out one of them.",
            )
        if (rank is None) != (world_size is None):
            raise UsageError(
                f"rank is {rank} and world_size is {world_size}",
                "Give both, or neither for those of torch.distributed.",
            )
        self.dataset = dataset
        self.order = order
        self.seed = seed
        self.drop_last = drop_last
        self._given = None if rank is None or world_size is None else (rank, world_size)
        # What torch.distributed said in the process that started this one.
        self._inherited: tuple[int, int] | None = None
        self._epoch = 0
        self._share_epoch()
        tell_neighbours(dataset, order)
        self._shares()  # finds out whether rank and world size are good

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration yields."""
        # Running workers see what their parent sets; any other process has its own number, so
        # that ranks that were started with the same dataset do not set each other's epochs.
        return self._epoch if get_worker_info() is None else int(self._shared)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, which decides the order; call it before iterating the loader.

        Workers that persist between epochs see it too. Without it every epoch has one order.

        Args:
            epoch: Its number from 0; the same on every rank.

        Raises:
            UsageError: It is not a whole number of 0 or more.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int | np.integer) or epoch < 0:
            raise UsageError(f"epoch {epoch!r} is not a whole number from 0", "Count from 0.")
        self._epoch = int(epoch)
        if self._owner == os.getpid():
            self._shared.fill_(self._epoch)
        else:
            self._share_epoch()

    def _share_epoch(self) -> None:
        """Put the epoch where this process's workers will see it, and no other's."""
        self._owner = os.getpid()
        shared: Any = torch.tensor(self._epoch, dtype=torch.int64, device="cpu")
        self._shared = shared.share_memory_()

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker has no torch.distributed to ask.
        return {**self.__dict__, "_epoch": self.epoch, "_inherited": self._ranks()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Only a child process shares the epoch of the object it came from; a copy has its own.
        if self._owner == os.getpid() or not self._shared.is_shared():
            self._share_epoch()

    def _ranks(self) -> tuple[int, int]:
        """Rank and world size."""
        if self._given is not None:
            return self._given
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        # Only for workers: a process that is told its rank later must not keep its parent's.
        if self._inherited is not None and get_worker_info() is not None:
            return self._inherited
        return 0, 1

    def _shares(self) -> Epoch:
        """How samples are shared among ranks: as batches of one."""
        rank, world_size = self._ranks()
        return Epoch(len(self.dataset), 1, rank, world_size, self.drop_last)

    def __len__(self) -> int:
        """Samples that this rank yields in an epoch, all its workers together."""
        return len(self._shares())

    def __iter__(self) -> Iterator[Any]:
        """The samples of this rank, or of this worker of it, as the dataset gives them."""
        # Not a generator itself: what holds now is to hold for the whole epoch.
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        shares = self._shares()
        order = make_order(self.order, shares.samples, self.seed, self.epoch)
        return self._samples(
            order(_positions(shares, numbers)) for numbers in _turns(len(shares), workers, number)
        )

    def _samples(self, chunks: Iterator[npt.NDArray[np.int64]]) -> Iterator[Any]:
        fetch = getattr(self.dataset, "__getitems__", None)
        for chunk in chunks:
            indices = chunk.tolist()
            if fetch is None:
                for index in indices:
                    yield self.dataset[index]
                continue
            samples = fetch(indices)
            if len(samples) != len(indices):
                raise UsageError(
                    f"__getitems__ of {class_name(self.dataset)} gave {len(samples)} samples "
                    f"for {len(indices)} indices",
                    "Let it return one for each.",
                )
            yield from samples


def _turns(count: int, workers: int, worker: int) -> Iterator[npt.NDArray[np.int64]]:
    """Which of ``count`` samples a worker takes: every ``workers``-th, a chunk at a time."""
    for first in range(worker, count, workers * _CHUNK):
        yield np.arange(first, min(first + workers * _CHUNK, count), workers, dtype=np.int64)


def _positions(shares: Epoch, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What ``shares.positions`` gives for many of its batches of one, computed at once."""
    return (numbers * shares.world_size + shares.rank) % shares.samples

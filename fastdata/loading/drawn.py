"""Seeded draws for torch's own loader: functions of (seed, epoch, sample).

The sampler passes the epoch's key with each batch. So draws do not depend on which worker process
builds the batch, on their number, or on whether they persist. Each sample's key seeds the global
generators, which are restored afterwards, in this process, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch.utils.data
from torch.utils.data import Dataset, Subset, default_collate, default_convert

from fastdata.dataset import ImageDataset
from fastdata.loading.collate import fast_collate
from fastdata.loading.prefix import PrefixDataset
from fastdata.loading.progress import Progress
from fastdata.loading.sampler import ShardedSampler
from fastdata.loading.seeding import reseeding, seeded
from fastdata.plan.draws import epoch_key
from fastdata.plan.order import make_order
from fastdata.plan.schedule import Indices, Numbering, Planned, ordered

#: Functions that draw nothing.
_COLLATES = (default_collate, default_convert, fast_collate)


class Drawn(NamedTuple):
    """Draws of one batch, and the key of their random numbers.

    Attributes:
        draws: The draws, as in `fastdata.plan.schedule.Numbering`.
        key: Key of the epoch.
        n: Number of the dataset's samples.
    """

    draws: Indices
    key: int
    n: int

    def planned(self) -> Planned:
        """Return the samples' numbers and occurrences."""
        return Numbering(self.n).plan(self.draws)


class DrawnBatches:
    """Batch sampler for torch's loader, which yields `Drawn` batches.

    Args:
        sampler: Sampler with the order, seed, epoch and shard of the next pass.

    Attributes:
        begun: Keys of the batches under way in the latest pass: torch's loader has taken but not
            delivered them.
    """

    def __init__(self, sampler: ShardedSampler) -> None:
        self._sampler = sampler
        self.begun: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._sampler.plan)

    def __iter__(self) -> Iterator[Drawn]:
        sampler = self._sampler
        key, n = epoch_key(sampler.seed, sampler.epoch), sampler.plan.samples
        order = make_order(sampler.order, n, sampler.seed, sampler.epoch)
        self.begun = begun = deque[int]()

        def batches() -> Iterator[Drawn]:
            for draws, _ in ordered(sampler.plan, order):
                batch = Drawn(draws, key, n)
                begun.append(batch.planned().batch_key(key))
                yield batch

        return batches()  # not a generator itself, so that `begun` is set before the first batch


class DrawnPass(Iterator[Any]):
    """Pass of torch's loader that records the key of the batch delivered last.

    Args:
        batches: The pass.
        drawn: Its batch sampler, whose latest pass is this one.
        progress: Receives the key.
    """

    def __init__(self, batches: Iterator[Any], drawn: DrawnBatches, progress: Progress) -> None:
        self._batches, self._begun, self._progress = batches, drawn.begun, progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        finally:  # also of an error in a batch's place
            if self._begun:
                self._progress.batch_key = self._begun.popleft()


class _Samples(list[Any]):
    """Samples of a batch and its key, for the ``collate_fn``."""

    key = 0


class DrawnDataset(Dataset[Any]):
    """Dataset whose items are `Drawn` batches.

    Args:
        dataset: The wrapped dataset. A `PrefixDataset` decodes natively, with the same draws as
            the native path. A dataset with its own ``__getitems__`` loads the batch as a whole,
            and draws from the batch's key.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        # A worker_init_fn may look at the dataset by get_worker_info().
        if name == "_dataset":  # unpickling asks before it exists
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, batch: Drawn) -> list[Any]:
        return self.__getitems__(batch)

    def __getitems__(self, batch: Drawn) -> list[Any]:
        """Return the samples of a batch, for torch's fetcher."""
        planned = batch.planned()
        key = planned.batch_key(batch.key)
        if isinstance(self._dataset, PrefixDataset):
            samples = self._dataset.prefix.drawn(batch.draws, batch.key)
        elif (fetch := _own_fetch(self._dataset)) is not None:
            with seeded(key):
                samples = fetch(planned.numbers.tolist())
        else:
            samples = []
            with reseeding() as seed:
                keys = planned.call_keys(batch.key)
                for number, own in zip(planned.numbers.tolist(), keys, strict=True):
                    seed(own)
                    samples.append(self._dataset[number])
        found = _Samples(samples)
        found.key = key
        return found


def _own_fetch(dataset: Any) -> Callable[[Sequence[int]], Any] | None:
    """Return a dataset's own ``__getitems__``; None if it has none."""
    whole = dataset
    while type(whole) is Subset:
        whole = whole.dataset
    if isinstance(whole, ImageDataset):
        return None
    return getattr(dataset, "__getitems__", None) if hasattr(whole, "__getitems__") else None


class DrawnCollate:
    """Wrapper of a ``collate_fn`` that seeds its draws with the batch's key.

    Args:
        collate_fn: The user's or torch's function.
        batched: Whether it collates batches, rather than converting single samples.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], batched: bool) -> None:
        self._collate_fn, self._batched = collate_fn, batched

    def __call__(self, samples: _Samples) -> Any:
        """Collate samples, for torch's fetcher."""
        given = list(samples) if self._batched else samples[0]
        if self._collate_fn in _COLLATES:
            return self._collate_fn(given)
        with seeded(samples.key):
            return self._collate_fn(given)


def drawn_options(loader: torch.utils.data.DataLoader[Any], dataset: Any) -> dict[str, Any]:
    """Return a torch loader's arguments for draws that depend on (seed, epoch, sample) alone.

    Args:
        loader: Loader with the sampler and ``collate_fn``.
        dataset: The dataset to load.
    """
    batched = loader.batch_sampler is not None
    sampler: Any = loader.sampler
    batches = DrawnBatches(sampler)
    options = {"batch_sampler": batches} if batched else {"sampler": batches, "batch_size": None}
    return {
        "dataset": DrawnDataset(dataset),
        "collate_fn": DrawnCollate(loader.collate_fn, batched),
        **options,
    }

"""Torch's own loader with a seed: what its samples draw is a function of (seed, epoch, sample).

The sampler hands each batch over with the epoch's key, so it does not matter which worker process
makes the batch, how many there are, or whether they persist. Around each sample the global
generators are seeded by its key; afterwards they are as they were, in this process, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch.utils.data
from torch.utils.data import Dataset, Subset, default_collate, default_convert

from fastdata.dataset import ImageDataset
from fastdata.loading.collate import fast_collate
from fastdata.loading.iterator import Progress
from fastdata.loading.prefix import PrefixDataset
from fastdata.loading.sampler import ShardedSampler
from fastdata.loading.seeding import reseeding, seeded
from fastdata.plan.draws import epoch_key
from fastdata.plan.order import make_order
from fastdata.plan.schedule import Indices, Numbering, Planned, ordered

#: Those that draw nothing.
_COLLATES = (default_collate, default_convert, fast_collate)


class Drawn(NamedTuple):
    """The samples of one batch, and the key that their numbers are drawn from.

    Attributes:
        draws: As `fastdata.plan.schedule.Numbering` has them.
        key: Key of the epoch.
        n: Number of the dataset's samples.
    """

    draws: Indices
    key: int
    n: int

    def planned(self) -> Planned:
        """Return their numbers and occurrences."""
        return Numbering(self.n).plan(self.draws)


class DrawnBatches:
    """The batches of each pass, as torch's loader takes them from a batch sampler.

    Args:
        sampler: Says order, seed, epoch and share of the pass that begins.

    Attributes:
        begun: Keys of the batches of the pass begun last, which torch's loader has been handed and
            has not delivered.
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

        return batches()  # not a generator itself: torch's iterator asks when it is made


class DrawnPass(Iterator[Any]):
    """A pass of torch's loader that knows the key of the batch it delivered last.

    Args:
        batches: The pass.
        drawn: What it takes its samples from; the pass is the one begun last.
        progress: Gets the key.
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
    """The samples of a batch, on their way to its ``collate_fn``."""

    key = 0


class DrawnDataset(Dataset[Any]):
    """A dataset that is asked for `Drawn` batches.

    Args:
        dataset: The dataset; a `PrefixDataset` decodes natively, by the same draws as the native
            path. One with a ``__getitems__`` of its own is asked for the batch as a whole, and
            draws from the batch's key.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        # A worker_init_fn may look at the dataset by get_worker_info().
        if name == "_dataset":  # not there yet
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, batch: Drawn) -> list[Any]:
        return self.__getitems__(batch)

    def __getitems__(self, batch: Drawn) -> list[Any]:
        """The samples of a batch, for torch's fetcher."""
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
    """A dataset's own way of making whole batches."""
    whole = dataset
    while type(whole) is Subset:
        whole = whole.dataset
    if isinstance(whole, ImageDataset):
        return None
    return getattr(dataset, "__getitems__", None) if hasattr(whole, "__getitems__") else None


class DrawnCollate:
    """A ``collate_fn`` that draws from its batch's key.

    Args:
        collate_fn: The user's, or torch's.
        batched: Whether it makes batches, rather than converting single samples.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], batched: bool) -> None:
        self._collate_fn, self._batched = collate_fn, batched

    def __call__(self, samples: _Samples) -> Any:
        """Collate, for torch's fetcher."""
        given = list(samples) if self._batched else samples[0]
        if self._collate_fn in _COLLATES:
            return self._collate_fn(given)
        with seeded(samples.key):
            return self._collate_fn(given)


def drawn_options(loader: torch.utils.data.DataLoader[Any], dataset: Any) -> dict[str, Any]:
    """Arguments of a loader of torch's whose samples are functions of (seed, epoch, sample).

    Args:
        loader: Says batches and how they are collated.
        dataset: What is loaded.
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

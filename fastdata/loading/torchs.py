"""Torch's own loader, for what the native path does not do; its draws with a seed.

With a seed, draws are functions of (seed, epoch, sample). The sampler passes the epoch's key with
each batch, so draws do not depend on which worker process builds the batch, on their number, or on
whether they persist. Each sample's key seeds the global generators, which are restored afterwards,
in this process, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch.utils.data
from torch.utils.data import Subset, default_collate, default_convert

from fastdata.dataset import ImageDataset
from fastdata.device.delivery import transformed
from fastdata.device.transfer import map_tensors
from fastdata.loading.arguments import TorchLoader
from fastdata.loading.collate import fast_collate
from fastdata.loading.mixture import Mixture, WrappedDataset
from fastdata.loading.passes import WrappedPass
from fastdata.loading.seeding import reseeding, seeded
from fastdata.loading.sharded import ShardedSampler
from fastdata.plan.draws import epoch_key
from fastdata.plan.position import LatestPass, PassProgress
from fastdata.plan.schedule import Indices, Numbering, Planned, ordered


def torch_loader(loader: Any, dataset: Any, prefixed: bool) -> torch.utils.data.DataLoader[Any]:
    """Return torch's loader over the dataset of a `fastdata.DataLoader`, with its arguments.

    ``prefixed``: use the decoder of the `fastdata.loading.fields.samples.NativeSamples`.
    """
    options: dict[str, Any] = {"collate_fn": loader.collate_fn}
    if loader.seed is not None:
        options |= _drawn_options(loader, dataset, prefixed)
    elif loader.batch_sampler is not None:
        options |= {"dataset": dataset, "batch_sampler": loader.batch_sampler}
    else:
        options |= {"dataset": dataset, "sampler": loader.sampler, "batch_size": None}
    same = {name: getattr(loader, name) for name in _SAME}
    return TorchLoader(**same, **options)


#: Arguments that torch's loader takes over.
_SAME = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def zero_invalid(batch: Any, batch_transform: Callable[[Any], Any] | None, key: str) -> Any:
    """Zero bad samples on the device, which has normalised the host's zeros; then transform."""
    if isinstance(batch, Mapping):
        images, valid = batch.get(key, []), batch["valid"]
    else:
        images, valid = batch[0], batch[-1]
    map_tensors(images, lambda view: view.masked_fill_(~valid.view(-1, 1, 1, 1), 0))
    return transformed(batch, batch_transform)


#: Functions that draw nothing.
_COLLATES = (default_collate, default_convert, fast_collate)


class Drawn(NamedTuple):
    """Draws (`fastdata.plan.schedule.Numbering`) of one batch of n samples; the epoch's key."""

    draws: Indices
    key: int
    n: int

    def planned(self) -> Planned:
        """Return the samples' numbers and occurrences."""
        return Numbering(self.n).plan(self.draws)


class DrawnBatches:
    """Batch sampler for torch's loader, which yields `Drawn` batches.

    ``begun`` are keys of the batches that torch's loader has taken but not delivered in the latest
    pass.
    """

    def __init__(self, sampler: ShardedSampler) -> None:
        self._sampler = sampler
        self.begun: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._sampler.plan)

    def __iter__(self) -> Iterator[Drawn]:
        sampler = self._sampler
        key, n = epoch_key(sampler.seed, sampler.epoch), sampler.rows
        order = sampler.order_of(sampler.seed, sampler.epoch)
        self.begun = begun = deque[int]()

        def batches() -> Iterator[Drawn]:
            for draws, _, _ in ordered(sampler.plan, order, n):
                batch = Drawn(draws, key, n)
                begun.append(batch.planned().batch_key(key))
                yield batch

        return batches()  # not a generator itself, so that `begun` is set before the first batch


class DrawnPass(WrappedPass):
    """Pass of torch's loader that records the key of the batch delivered last in ``progress``.

    ``latest`` gets the progress with each batch.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        drawn: DrawnBatches,
        progress: PassProgress,
        latest: LatestPass,
    ) -> None:
        super().__init__(batches)
        self._begun, self._progress, self._latest = drawn.begun, progress, latest

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        finally:  # also of an error in a batch's place
            if self._begun:
                self._progress.batch_key = self._begun.popleft()
                self._latest.progress = self._progress


class _Samples(list[Any]):
    """Samples of a batch and its key, for the ``collate_fn``."""

    key = 0


class DrawnDataset(WrappedDataset):
    """Dataset whose items are `Drawn` batches.

    One with its own ``__getitems__`` loads the batch as a whole, and draws from the batch's key.
    ``prefixed``: its decoder decodes, with the same draws as the native path.
    """

    def __init__(self, dataset: Any, prefixed: bool) -> None:
        super().__init__(dataset)
        self._prefixed = prefixed

    def __getitem__(self, batch: Drawn) -> list[Any]:
        return self.__getitems__(batch)

    def __getitems__(self, batch: Drawn) -> list[Any]:
        """Return the samples of a batch, for torch's fetcher."""
        planned = batch.planned()
        key = planned.batch_key(batch.key)
        if self._prefixed:
            with reseeding() as seed:
                samples = self._dataset.decoder.drawn(batch.draws, batch.key, seed)
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
        batched = _Samples(samples)
        batched.key = key
        return batched


def _own_fetch(dataset: Any) -> Callable[[Sequence[int]], Any] | None:
    """Return a dataset's own ``__getitems__``; None if it has none."""
    whole = dataset
    while type(whole) is Subset:
        whole = whole.dataset
    if isinstance(whole, ImageDataset | Mixture):
        return None
    return getattr(dataset, "__getitems__", None) if hasattr(whole, "__getitems__") else None


class DrawnCollate:
    """Wrapper that seeds the draws of a ``collate_fn`` with the batch's, or sample's, key."""

    def __init__(self, collate_fn: Callable[[Any], Any], batched: bool) -> None:
        self._collate_fn, self._batched = collate_fn, batched

    def __call__(self, samples: _Samples) -> Any:
        """Collate samples, for torch's fetcher."""
        given = list(samples) if self._batched else samples[0]
        if self._collate_fn in _COLLATES:
            return self._collate_fn(given)
        with seeded(samples.key):
            return self._collate_fn(given)


def _drawn_options(
    loader: torch.utils.data.DataLoader[Any], dataset: Any, prefixed: bool
) -> dict[str, Any]:
    """Return a torch loader's arguments for draws that depend on (seed, epoch, sample) alone."""
    batched = loader.batch_sampler is not None
    sampler: Any = loader.sampler
    batches = DrawnBatches(sampler)
    options = {"batch_sampler": batches} if batched else {"sampler": batches, "batch_size": None}
    return {
        "dataset": DrawnDataset(dataset, prefixed),
        "collate_fn": DrawnCollate(loader.collate_fn, batched),
        **options,
    }

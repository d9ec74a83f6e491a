"""`RankStream`: one rank's share of an iterable dataset, for ``DataLoader(shard=)``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

__all__ = ["RankStream"]


class RankStream(IterableDataset[Any]):
    """Every ``world_size``-th sample of a stream, the same number on every rank.

    In worker processes it is also this worker's share. A dataset that asks torch's
    ``get_worker_info()`` which worker it is has split itself, and is split by rank alone.

    The order of the stream must be the same on all ranks. Samples are taken in groups of one for
    each rank, so that no rank gets a sample more than another.

    Args:
        dataset: The stream.
        rank: This rank, in [0, ``world_size``).
        world_size: Number of ranks.
        drop_last: Whether to drop the last group if it is not full; else the stream's first sample
            fills it.
    """

    def __init__(
        self, dataset: IterableDataset[Any], rank: int, world_size: int, drop_last: bool
    ) -> None:
        super().__init__()
        self._dataset = dataset
        self._rank, self._world_size, self._drop_last = rank, world_size, drop_last

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's samples, in the stream's order."""
        info = _watch_worker_info()
        workers, worker, count = 1, 0, 0
        first = held = None
        for sample in self._dataset:
            if not count:
                first = sample
                if info is not None and not info.asked:
                    workers, worker = info.torchs.num_workers, info.torchs.id
            group, place = divmod(count, self._world_size)
            count += 1
            if group % workers != worker:
                continue
            if place == self._rank:
                held = sample
            if place == self._world_size - 1:
                yield held
        group, rest = divmod(count, self._world_size)
        if rest and group % workers == worker and not self._drop_last:
            yield held if self._rank < rest else first


class _WatchedInfo:
    """A worker's info; records whether anything asked it for the worker's number.

    Attributes:
        torchs: The info that torch made.
        asked: Whether ``id`` or ``num_workers`` was read.
    """

    def __init__(self, torchs: Any) -> None:
        self.torchs = torchs
        self.asked = False

    def __getattr__(self, name: str) -> Any:
        if name in ("id", "num_workers"):
            self.asked = True
        return getattr(self.torchs, name)


def _watch_worker_info() -> _WatchedInfo | None:
    """Make ``get_worker_info()`` return a watched info from now on; None outside of workers."""
    info: Any = get_worker_info()
    if info is None or isinstance(info, _WatchedInfo):
        return info
    # Torch has no public way to see whether a dataset splits itself.
    module: Any = importlib.import_module("torch.utils.data._utils.worker")
    module._worker_info = _WatchedInfo(info)
    watched: _WatchedInfo = module._worker_info
    return watched

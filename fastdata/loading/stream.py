"""`RankStream`: one rank's share of an iterable dataset, for ``DataLoader(shard=)``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

__all__ = ["RankStream"]


class RankStream(IterableDataset[Any]):
    """Every ``world_size``-th sample of a stream, the same number on every rank.

    In worker processes it is the rank's share of what the stream yields there: as with torch's own
    loader, a stream splits itself by ``torch.utils.data.get_worker_info()``.

    The order of the stream must be the same on all ranks. Samples are taken in groups of one for
    each rank, so that no rank gets a sample more than another. ``drop_last`` drops the last group
    if it is not full; else the stream's first sample fills it.
    """

    def __init__(
        self, dataset: IterableDataset[Any], rank: int, world_size: int, drop_last: bool
    ) -> None:
        super().__init__()
        self._dataset = dataset
        self._rank, self._world_size, self._drop_last = rank, world_size, drop_last

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's samples, in the stream's order."""
        first = held = None
        count = 0
        for count, sample in enumerate(self._dataset, 1):
            place = (count - 1) % self._world_size
            if count == 1:
                first = sample
            if place == self._rank:
                held = sample
            if place == self._world_size - 1:
                yield held
        rest = count % self._world_size
        if rest and not self._drop_last:
            yield held if self._rank < rest else first

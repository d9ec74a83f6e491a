"""Accelerate: loaders that it leaves unchanged."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch.utils.data
from torch.utils.data import IterableDataset

from fastdata.errors import SlowPathWarning, UsageError, warn
from fastdata.loading.batching import LoadersOwn
from fastdata.loading.resolved import Resolved

T = TypeVar("T", covariant=True)

_HINT = 'Give the DataLoader shard="auto" and device=accelerator.device: it is left alone.'


class LeftAlone(torch.utils.data.DataLoader[T], Generic[T]):
    """Loader that Accelerate leaves unchanged if it shards; else a warning or an error."""

    require_native = False
    _resolved: Resolved
    _warned_taken_apart = False

    def __dir__(self) -> list[str]:
        """Leave out the question of Accelerate's, which may raise, for ``inspect``."""
        return [name for name in super().__dir__() if name != "_is_accelerate_prepared"]

    @property
    def _shares_samples(self) -> bool:
        """Whether this loader takes a rank's share of a dataset that is not a stream."""
        batching = self._resolved.batching
        return batching is not None and batching.shares_samples

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether Accelerate's ``prepare``, which asks for this, leaves this loader alone.

        Accelerate rebuilds others as torch's loaders from their attributes: those that do not
        shard, and those of a stream, whose end it knows by reading ahead.
        """
        if not self._shares_samples:
            self._warn_taken_apart()
        return self._shares_samples

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Ignore Accelerate's mark of loaders that it has seen."""

    def _warn_taken_apart(self) -> None:
        defaults = {"seed": None, "fields": None, "batch_transform": None, "on_error": "raise"}
        lost = [name for name, value in defaults.items() if getattr(self, name) != value]
        if lost:
            what = f"Accelerate rebuilds this loader as one of torch's, without {', '.join(lost)}"
            may_share = not isinstance(self.dataset, IterableDataset)
            raise UsageError(what, _HINT if may_share else "Leave them out.")
        if not self._resolved.native or self._warned_taken_apart:
            return
        self._warned_taken_apart = True
        slow = "Accelerate rebuilds this loader as one of torch's, which decodes in Python"
        if self.require_native:
            raise UsageError(f"require_native=True, but {slow}", _HINT)
        warn(f"{slow}. {_HINT}", SlowPathWarning)
        if isinstance(self.sampler, LoadersOwn):
            self.sampler.native = False  # the other loader iterates it, as was said

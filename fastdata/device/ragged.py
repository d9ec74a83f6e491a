"""Lists of different lengths in one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Ragged"]

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of a batch's samples, which have different lengths, in one tensor.

    Attributes:
        values: The items of all lists, one after the other, shape (M,) or (M, K, …).
        offsets: int64, shape (N + 1,): sample i has ``values[offsets[i] : offsets[i + 1]]``.
    """

    values: torch.Tensor
    offsets: torch.Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def list(self) -> list[torch.Tensor]:
        """Return each sample's items, shape (m,) or (m, K, …); views of `values`."""
        return list(torch.split(self.values, self.lengths.tolist()))

    @property
    def lengths(self) -> torch.Tensor:
        """Number of items of each sample, int64, shape (N,)."""
        return self.offsets.diff()

    @property
    def batch_index(self) -> torch.Tensor:
        """The sample that each item belongs to, int64, shape (M,)."""
        samples = torch.arange(len(self), device=self.offsets.device)
        return samples.repeat_interleave(self.lengths)

    def padded(self, value: float = 0) -> torch.Tensor:
        """Return items as one tensor, shape (N, L) or (N, L, K, …); L: the longest length.

        Args:
            value: Fills the places after each list.
        """
        longest = int(self.lengths.max()) if len(self) else 0
        shape = (len(self), longest, *self.values.shape[1:])
        padded = torch.full(shape, value, dtype=self.values.dtype, device=self.values.device)
        places = torch.arange(len(self.values), device=self.values.device)
        samples = self.batch_index
        # torch assigns no unsigned integers of more than 8 bits by index.
        kind = _SIGNED.get(self.values.dtype, self.values.dtype)
        padded.view(kind)[samples, places - self.offsets[samples]] = self.values.view(kind)
        return padded

    def to(self, *args: Any, **options: Any) -> Ragged:
        """Return it on a device; takes the arguments of ``torch.Tensor.to``."""
        values = self.values.to(*args, **options)
        # A dtype is for the values alone.
        kept = {name: options[name] for name in ("copy", "non_blocking") if name in options}
        return Ragged(values, self.offsets.to(values.device, **kept))

    def pin_memory(self) -> Ragged:
        """Return it in page-locked memory."""
        return Ragged(self.values.pin_memory(), self.offsets.pin_memory())

"""Memory for batches, used again when the user has dropped a batch, and never before."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

_TORCH = {
    "uint8": torch.uint8,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_NUMPY = {"uint8": np.uint8, "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


class BatchMemory(NamedTuple):
    """Memory of one batch, seen twice.

    Attributes:
        tensor: As the user gets it: N x 3 x H x W.
        array: As the core fills it: N x H x W x 3; bfloat16 as uint16.
    """

    tensor: torch.Tensor
    array: npt.NDArray[Any]


class BufferPool:
    """Gives out memory for batches.

    A fresh batch of 256 images of 224 x 224 is 38 MB whose pages the kernel has to clear, so
    blocks are kept. A block comes back when nothing refers to it any more: no tensor of the
    user's, no view of one, no batch that is being decoded.

    Args:
        keep: How many free blocks to keep.
        pinned: Use page-locked memory. It comes from torch's own pool, which waits for copies
            to the GPU that are under way before it gives a block out again.
    """

    def __init__(self, keep: int, pinned: bool) -> None:
        self._keep = keep
        self._pinned = pinned
        self._free: list[npt.NDArray[np.uint8]] = []

    def batch(
        self, count: int, size: tuple[int, int], dtype: str, channels_last: bool
    ) -> BatchMemory:
        """Memory for ``count`` images of ``size`` (width, height); not cleared."""
        width, height = size
        shape = (count, height, width, 3) if channels_last else (count, 3, height, width)
        if self._pinned:
            tensor = torch.empty(shape, dtype=_TORCH[dtype], pin_memory=True)
            bits = tensor.view(torch.int16) if dtype == "bfloat16" else tensor
            array = bits.numpy().view(_NUMPY[dtype])
        else:
            array = self._array(shape, np.dtype(_NUMPY[dtype]))
            tensor = torch.from_numpy(array)
            if dtype == "bfloat16":
                tensor = tensor.view(torch.bfloat16)
        if channels_last:
            return BatchMemory(tensor.permute(0, 3, 1, 2), array)
        return BatchMemory(tensor, array.transpose(0, 2, 3, 1))

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        needed = math.prod(shape) * dtype.itemsize
        block = None
        while self._free and block is None:
            # One that is too small is of another shape of batch: it goes.
            block = self._free.pop()
            block = block if block.nbytes >= needed else None
        if block is None:
            block = np.empty(needed, np.uint8)
        whole = np.asarray(_Lease(block, self._free, self._keep))
        return whole[:needed].view(dtype).reshape(shape)

    def clear(self) -> None:
        """Frees the blocks that nobody uses."""
        self._free.clear()


class _Lease:
    """Lends a block through numpy's array interface; gives it back when the array is gone.

    Views of an array refer to the array that owns the memory. For numpy that is the one made
    from this object, which is not an array itself, so it lives exactly as long as any view.
    """

    def __init__(
        self, block: npt.NDArray[np.uint8], free: list[npt.NDArray[np.uint8]], keep: int
    ) -> None:
        self._block, self._free, self._keep = block, free, keep
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        # May run in any thread; appending to a list is one step.
        if len(self._free) < self._keep:
            self._free.append(self._block)

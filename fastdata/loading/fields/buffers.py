"""Pool of batch memory, reused only after the user has dropped a batch."""

from __future__ import annotations

import math
import mmap
import weakref
from collections import defaultdict
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

#: A field, and the number of one of its views.
View: TypeAlias = tuple[str, int]


def _numpy(dtype: str) -> np.dtype[Any]:
    """Return NumPy's dtype of torch's; of bfloat16, which NumPy lacks, its bits'."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


class BatchMemory(NamedTuple):
    """Memory of one batch, as two views. Of images of several sizes they are lists.

    ``tensor``: N x C x H x W, or N of C x H x W; ``array``, for the core: N x H x W x C, or N of H
    x W x C; bfloat16 as uint16.
    """

    tensor: Any
    array: Any

    # Slot by slot: a list of slots would be copied to the GPU, from memory that is not page-locked.

    def clear(self, slots: list[int]) -> None:
        """Make the images of some slots zeros."""
        for slot in slots:
            if isinstance(self.array, list):
                self.array[slot][...] = 0
            else:
                self.array[slot] = 0

    def patch(self, other: BatchMemory, to: list[int], good: list[int]) -> None:
        """Take the images at places ``good`` of another batch for the slots ``to``."""
        for slot, at in zip(to, good, strict=True):
            if isinstance(self.array, list):
                self.tensor[slot] = other.tensor[at]
            self.array[slot] = other.array[at]


class BufferPool:
    """Pool of memory blocks for batches.

    A new batch of 256 images of 224 x 224 has 38 MB whose pages the kernel must clear, so the pool
    keeps blocks. A block returns when the last reference to it is gone: a user's tensor, a view of
    one, or a batch that is being decoded. It keeps ``keep`` free blocks for each view. With
    ``pinned``, memory is page-locked, from torch's own pool, which reuses a block only after the
    copies to the GPU that read it.
    """

    def __init__(self, keep: int, pinned: bool) -> None:
        self._keep = keep
        self.pinned = pinned
        # By field and view: blocks of one view have one size.
        self._free: defaultdict[View, list[_Block]] = defaultdict(list)

    def batch(
        self,
        view: View,
        count: int,
        size: tuple[int, int],
        dtype: str,
        channels_last: bool,
        channels: int = 3,
    ) -> BatchMemory:
        """Return memory for ``count`` images of ``size`` (width, height); not cleared."""
        import torch  # here, as listing and converting datasets needs none

        width, height = size
        planes = (count, channels, height, width)
        shape = (count, height, width, channels) if channels_last else planes
        if self.pinned:
            # torch's default device may be a GPU.
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="cpu", pin_memory=True)
            bits = tensor.view(torch.int16) if dtype == "bfloat16" else tensor
            array = bits.numpy().view(_numpy(dtype))
            if channels_last:
                tensor = tensor.permute(0, 3, 1, 2)
        else:
            array = self._array(view, shape, dtype)
            # numpy transposes in a tenth of torch's time.
            tensor = torch.from_numpy(array.transpose(0, 3, 1, 2) if channels_last else array)
            if dtype == "bfloat16":
                tensor = tensor.view(torch.bfloat16)
        return BatchMemory(tensor, array if channels_last else array.transpose(0, 2, 3, 1))

    def images(
        self,
        view: View,
        sizes: npt.NDArray[np.int32],
        dtype: str,
        channels_last: bool,
        channels: int = 3,
    ) -> BatchMemory:
        """Return memory for images of several ``sizes``, (N, 2) of width, height; not cleared."""
        each = np.prod(sizes, axis=1, dtype=np.int64) * channels
        each += -each % _ALIGNED
        ends = np.cumsum(each).tolist()
        values, row = self.flat(view, ends[-1], dtype)
        memory = BatchMemory([], [])
        for end, step, (width, height) in zip(ends, each.tolist(), sizes.tolist(), strict=True):
            begin, count = end - step, width * height * channels
            shape = (height, width, channels) if channels_last else (channels, height, width)
            tensor = values[begin : begin + count].view(shape)
            array = row[begin : begin + count].reshape(shape)
            memory.tensor.append(tensor.permute(2, 0, 1) if channels_last else tensor)
            memory.array.append(array if channels_last else array.transpose(1, 2, 0))
        return memory

    def flat(self, view: View, count: int, dtype: str) -> tuple[Any, npt.NDArray[Any]]:
        """Return memory for ``count`` values, as a flat tensor and array; not cleared."""
        # A row of so many values: blocks of about one size serve batch after batch.
        total = -(-max(count, 1) // _ROUNDED) * _ROUNDED
        memory = self.batch(view, 1, (total, 1), dtype, True, 1)
        return memory.tensor.view(-1)[:count], memory.array.reshape(-1)[:count]

    def _array(self, view: View, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        block = self._take(view, shape, dtype)
        if block is None:
            needed = math.prod(shape) * _numpy(dtype).itemsize
            try:
                memory = _new_block(needed)
            except (OSError, OverflowError):
                raise MemoryError(
                    f"no memory for a batch of shape {shape}, {needed / 1e9:.3g} GB: give the "
                    "transform a smaller size, or the loader a smaller batch_size"
                ) from None
            block = _Block(memory, shape, dtype)
        return np.asarray(_Lease(block, self, view))

    def _take(self, view: View, shape: tuple[int, ...], dtype: str) -> _Block | None:
        while True:
            try:
                block = self._free[view].pop()  # two iterators of a loader may share the pool
            except IndexError:
                return None
            if block.shape == shape and block.dtype == dtype:
                return block
            # The shape of batches has changed. Drop blocks that are too small.
            if math.prod(shape) * _numpy(dtype).itemsize <= block.memory.nbytes:
                return _Block(block.memory, shape, dtype)

    def close(self) -> None:
        """Drop all free blocks, and keep none that return later."""
        self._keep = 0
        self._free.clear()

    def give_back(self, block: _Block, view: View) -> None:
        """Take back an unused block of a view; callable in any thread."""
        free = self._free[view]
        if len(free) < self._keep:
            free.append(block)  # atomic


def _new_block(size: int) -> npt.NDArray[np.uint8]:
    """Return memory that the system gets back when it is freed, unlike the C library's."""
    if size < _LARGE:
        return np.empty(size, np.uint8)
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


#: Values that an image of several sizes begins at a multiple of, and blocks of them end at.
_ALIGNED, _ROUNDED = 64, 1 << 20

#: Bytes from which a block gets its own mapping.
_LARGE = 1 << 20


class _Block:
    """Memory of one batch, described as numpy's array interface wants it."""

    def __init__(self, memory: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: str) -> None:
        self.memory, self.shape, self.dtype = memory, shape, dtype
        self.interface = {
            "data": (memory.ctypes.data, False),
            "shape": shape,
            "typestr": _numpy(dtype).str,
            "version": 3,
        }


class _Lease:
    """Lease of a block through numpy's array interface; returns it when the array is gone.

    Views refer to the array that owns the memory. For numpy, that is the array made from this
    object, which is no array itself. So the lease lives exactly as long as any view.
    """

    def __init__(self, block: _Block, pool: BufferPool, view: View) -> None:
        # Weak: a tensor that the user keeps for long must not keep all free blocks.
        self._block, self._pool, self._view = block, weakref.ref(pool), view
        self.__array_interface__ = block.interface

    def __del__(self) -> None:
        pool = self._pool()
        if pool is not None:
            pool.give_back(self._block, self._view)

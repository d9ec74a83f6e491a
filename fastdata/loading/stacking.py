"""Stacking without a copy: the samples of a batch that a collate function stacks lie so already."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Stacking(TorchFunctionMode):
    """Context in which `torch.stack` of a batch's samples gives their own memory.

    `torch.cat` of ``sample[None]`` does so, too. The result behaves as the copy that torch makes:
    if the samples may be seen beside it, because the collate function goes on to use them or
    keeps one, it becomes that copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loans: dict[int, _Loan] = {}

    def lend(self, batch: torch.Tensor) -> list[torch.Tensor]:
        """Return the samples of a batch, views of its memory, shape (N, …)."""
        if batch.dtype == torch.bfloat16 or not batch.numel():  # numpy has no bfloat16
            return list(batch.unbind())
        # An array of its own lives exactly as long as the views made of it.
        array = batch.numpy()
        self._loans[batch.untyped_storage().data_ptr()] = _Loan(batch, weakref.ref(array))
        return list(torch.from_numpy(array).unbind())

    def settle(self) -> None:
        """Separate stacks from samples that the collate function has kept.

        The caller has no reference to samples any more.
        """
        for loan in self._loans.values():
            if loan.views() is not None:
                loan.separate()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _STACKS and kwargs.get("out") is None:
            whole = self._whole(func, *args, **kwargs)
            return func(*args, **kwargs) if whole is None else whole
        if func not in _HARMLESS:
            for loan in self._used((args, kwargs)):
                loan.escaped |= getattr(func, "__name__", "") in _ESCAPES
                loan.separate()
        return func(*args, **kwargs)

    def _used(self, values: Any) -> Iterator[_Loan]:
        """Yield the loans whose memory some arguments lie in."""
        if isinstance(values, torch.Tensor):
            with suppress(RuntimeError):  # a sparse tensor has no storage
                loan = self._loans.get(values.untyped_storage().data_ptr())
                if loan is not None:
                    yield loan
        elif isinstance(values, (list, tuple, Mapping)):
            for value in values.values() if isinstance(values, Mapping) else values:
                yield from self._used(value)

    def _whole(
        self, func: Any, tensors: Any = (), dim: int = 0, **others: Any
    ) -> torch.Tensor | None:
        """Return the memory that has what ``func`` would make of tensors; None if there is none."""
        plain = isinstance(tensors, (list, tuple)) and all(
            type(one) is torch.Tensor for one in tensors
        )
        if not plain or not tensors or dim != 0 or others.get("axis"):
            return None
        loan = next(self._used(tensors[0]), None)
        if loan is None or loan.escaped or loan.given is not None:
            return None
        if func is not torch.stack:
            if any(one.ndim == 0 or len(one) != 1 for one in tensors):
                return None
            tensors = [one[0] for one in tensors]
        first = tensors[0]
        shape, stride, dtype = first.shape, first.stride(), first.dtype
        like = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        found = torch.stack([like] * len(tensors))
        if found.stride()[1:] != stride:
            return None
        step, begin = found.stride(0) * found.element_size(), first.data_ptr()
        for number, one in enumerate(tensors):
            same = (one.shape, one.stride(), one.dtype) == (shape, stride, dtype)
            if not same or one.data_ptr() != begin + number * step:
                return None
        return loan.give(found.shape, found.stride(), begin)


class _Loan:
    """Memory of a batch, whose samples a collate function has.

    Attributes:
        views: Weak reference to what all samples refer to.
        given: A stack of samples that lies in this memory.
        escaped: Whether something else than torch may write to the samples.
    """

    def __init__(self, batch: torch.Tensor, views: weakref.ref[Any]) -> None:
        self.views, self.escaped = views, False
        self.given: torch.Tensor | None = None
        self._batch = batch

    def give(
        self, shape: tuple[int, ...], stride: tuple[int, ...], begin: int
    ) -> torch.Tensor | None:
        """Return the part of the memory from an address."""
        batch = self._batch
        offset = (begin - batch.untyped_storage().data_ptr()) // batch.element_size()
        self.given = torch.as_strided(batch, shape, stride, offset)
        return self.given

    def separate(self) -> None:
        """Give the stack memory of its own, as torch's copy has."""
        if self.given is not None:
            self.given.data = self.given.clone()
            self.given = None


_STACKS = (torch.stack, torch.cat, torch.concat, torch.concatenate)

#: Functions that neither write to a tensor nor return another view of it.
_HARMLESS = frozenset(
    {
        torch.nn.functional.interpolate,
        *(getattr(torch.Tensor, name) for name in ("size", "stride", "dim", "numel", "__len__")),
        *(getattr(torch.Tensor, name) for name in ("to", "float", "contiguous", "clone", "cuda")),
        *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
    }
)

#: Functions that let others than torch write to a tensor.
_ESCAPES = frozenset(
    {
        "numpy",
        "data_ptr",
        "storage",
        "untyped_storage",
        "_typed_storage",
        "__array__",
        "__dlpack__",
        "__cuda_array_interface__",
    }
)

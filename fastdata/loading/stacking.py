"""Stacking without a copy: the samples of a batch that a collate function stacks lie so already.

Many functions stack by hand: ``batch = image.new(n, *shape).fill_(0)``, then ``copy_`` for each
image, which leaves the fill where an image is smaller. These steps are put off until something
reads their result. If the images fill the batch, it becomes their own memory. Only torch's calls
in this thread are seen. So steps are put off for functions that can do nothing else (`is_closed`).
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from types import CellType, CodeType, FunctionType
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from fastdata.errors import UsageError
from fastdata.transforms.tracing import codes_in

_Held = TypeVar("_Held")


class Stacking(TorchFunctionMode):
    """Context in which `torch.stack` of a batch's samples gives their own memory.

    `torch.cat` of ``sample[None]`` does so, too. The result behaves as the copy that torch makes:
    if the samples may be seen beside it, because the collate function goes on to use them or
    keeps one, it becomes that copy.

    Args:
        collate: The function.
    """

    def __init__(self, collate: Callable[..., Any]) -> None:
        super().__init__()
        # By the address of their memory.
        self._loans: dict[int, _Loan] = {}
        self._canvases: dict[int, _Canvas] = {}
        self._defers = is_closed(collate)

    def lend(self, batch: torch.Tensor) -> list[torch.Tensor]:
        """Return the samples of a batch, views of its memory, shape (N, …)."""
        if batch.dtype == torch.bfloat16 or not batch.numel():  # numpy has no bfloat16
            return list(batch.unbind())
        array = batch.numpy()
        samples = list(torch.from_numpy(array).unbind())
        self._loans[_address(batch)] = _Loan(batch, weakref.ref(array), samples[0])
        return samples

    def settle(self) -> None:
        """Do what was put off; separate stacks from samples that the collate function has kept.

        The caller has no reference to samples any more.

        Raises:
            UsageError: Samples were changed where that was not seen, after they were stacked.
        """
        for loan in self._loans.values():
            loan.end()
        for canvas in self._canvases.values():
            if not self._replaced(canvas):
                canvas.write()
        for loan in self._loans.values():
            if loan.views() is not None:
                loan.separate()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._defers and not kwargs and (deferred := self._deferred(func, args)):
            return deferred[0]
        stacks = func in _STACKS and kwargs.get("out") is None
        harmless = stacks or func in _HARMLESS
        self._write_what_is_read(func, (args, kwargs), harmless)
        if stacks:
            whole = self._whole(func, *args, **kwargs)
            return func(*args, **kwargs) if whole is None else whole
        if not harmless:
            for loan in _used(self._loans, (args, kwargs)):
                loan.escaped |= getattr(func, "__name__", "") in _ESCAPES
                loan.separate()
        return func(*args, **kwargs)

    def _deferred(self, func: Any, args: tuple[Any, ...]) -> tuple[Any] | None:
        """Return the result of a step of stacking by hand, which is put off; None for others."""
        first = args[0] if args else None
        if type(first) is not torch.Tensor:
            return None
        if func in _NEW:
            return self._new(func, *args)
        canvas = self._canvases.get(_address(first))
        if canvas is None:
            return None
        if func in _FILLS and first is canvas.tensor and not canvas.copies:
            zero = func is torch.Tensor.zero_ and len(args) == 1
            return (first,) if canvas.fill(*((0,) if zero else args[1:])) else None
        if func in _VIEWS:
            found = func(*args)
            several = (found,) if isinstance(found, torch.Tensor) else found
            return (found,) if all(map(canvas.has, several)) else None
        if func is torch.Tensor.__setitem__ and len(args) == 3:
            return (None,) if canvas.copy(first[args[1]], args[2], self._loans) else None
        if func is torch.Tensor.copy_ and len(args) == 2:
            return (first,) if canvas.copy(first, args[1], self._loans) else None
        return None

    def _new(self, func: Any, like: torch.Tensor, *about: Any) -> tuple[Any] | None:
        """Return memory for a batch, not filled yet."""
        if _address(like) not in self._loans:
            return None
        value = (0,) if func is torch.Tensor.new_zeros else ()
        if func is torch.Tensor.new_full:
            about, value = about[:1], about[1:]
        sides = about and all(type(side) is int and side > 0 for side in about)
        if func is torch.Tensor.new and not sides:
            return None  # it copies what it is given
        array = like.new_empty(*about).numpy()
        tensor = torch.from_numpy(array)
        canvas = _Canvas(tensor, weakref.ref(array))
        if func in _FILLED and not canvas.fill(*value):
            return None
        self._canvases[_address(tensor)] = canvas
        return (tensor,)

    def _write_what_is_read(self, func: Any, values: Any, harmless: bool) -> None:
        """Do what was put off, if a call needs its result or changes what it takes."""
        if not self._canvases or func in _METADATA:
            return
        needed = next(_used(self._canvases, values), None)
        if needed is None and (harmless or next(_used(self._loans, values), None) is None):
            return
        for canvas in self._canvases.values():
            canvas.write()
        self._canvases.clear()

    def _replaced(self, canvas: _Canvas) -> bool:
        """Replace a tensor that samples fill by their memory; say whether they fill it."""
        if not canvas.is_full():
            return False
        whole = self._whole(torch.stack, [source for _, source in canvas.copies])
        if whole is None:
            return False
        canvas.copies.clear()
        tensor, loan = canvas.tensor, self._loans[_address(whole)]
        loan.given, tensor.data = tensor, whole
        array = canvas.memory()
        if array is not None:  # the function has kept a view of it
            kept = torch.from_numpy(array)
            tensor.data, loan.given = kept.copy_(whole), None
        return True

    def _whole(
        self, func: Any, tensors: Any = (), dim: int = 0, **others: Any
    ) -> torch.Tensor | None:
        """Return the memory that has what ``func`` would make of tensors; None if there is none."""
        plain = isinstance(tensors, (list, tuple)) and all(
            type(one) is torch.Tensor for one in tensors
        )
        if not plain or not tensors or dim != 0 or others.get("axis"):
            return None
        loan = next(_used(self._loans, tensors[0]), None)
        if loan is None or loan.escaped or loan.given is not None:
            return None
        if func is not torch.stack:
            if any(one.ndim == 0 or len(one) != 1 for one in tensors):
                return None
            tensors = [one[0] for one in tensors]
        first = tensors[0]
        shape, stride, dtype = first.shape, first.stride(), first.dtype
        step, *inner = _stacked(shape, stride, len(tensors))
        if tuple(inner) != stride:
            return None
        begin, size = first.data_ptr(), first.element_size()
        for number, one in enumerate(tensors):
            same = (one.shape, one.stride(), one.dtype) == (shape, stride, dtype)
            if not same or one.data_ptr() != begin + number * step * size:
                return None
        return loan.give((len(tensors), *shape), (step, *stride), begin)


class _Loan:
    """Memory of a batch, whose samples a collate function has.

    Attributes:
        views: Weak reference to an array that all samples refer to, and nothing else after `end`.
        given: A stack of samples that lies in this memory.
        escaped: Whether something else than torch may write to the samples.
    """

    def __init__(self, batch: torch.Tensor, views: weakref.ref[Any], sample: torch.Tensor) -> None:
        self.views, self.escaped = views, False
        self.given: torch.Tensor | None = None
        self._batch = batch
        # All samples have one counter of changes.
        self._sample: torch.Tensor | None = None if sample.is_inference() else sample
        self._version = 0

    def give(
        self, shape: tuple[int, ...], stride: tuple[int, ...], begin: int
    ) -> torch.Tensor | None:
        """Return the part of the memory from an address, with a shape and strides."""
        offset = (begin - _address(self._batch)) // self._batch.element_size()
        self.given = torch.as_strided(self._batch, shape, stride, offset)
        self._version = 0 if self._sample is None else self._sample._version
        return self.given

    def end(self) -> None:
        """Drop what it has of the samples; raise `UsageError` if the stack has changed with one."""
        sample, self._sample = self._sample, None
        if self.given is not None and sample is not None and sample._version != self._version:
            raise UsageError(
                "collate_fn has changed samples in a thread or in compiled code, after torch.stack",
                "Change them before, or change copies: sample.clone().",
            )

    def separate(self) -> None:
        """Give the stack memory of its own, as torch's copy has."""
        if self.given is not None:
            self.given.data = self.given.clone()
            self.given = None


class _Canvas:
    """Tensor that a collate function has made to copy samples to.

    Attributes:
        tensor: The tensor.
        memory: Weak reference to an array that it and its views refer to, and nothing else.
        value: The fill that was put off; None if there is none.
        copies: (target, source) of each copy that was put off.
    """

    def __init__(self, tensor: torch.Tensor, memory: weakref.ref[Any]) -> None:
        self.tensor, self.memory = tensor, memory
        self.value: float | None = None
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def has(self, view: torch.Tensor) -> bool:
        """Return whether a tensor is a view of it."""
        return _address(view) == _address(self.tensor)

    def fill(self, *given: Any) -> bool:
        """Put off filling it with a number; return False if that is something else."""
        if [type(one) for one in given] not in ([int], [float]):
            return False
        self.tensor.flatten()[:1].fill_(*given)  # torch's error, if the dtype cannot have it
        (self.value,) = given
        return True

    def copy(self, target: torch.Tensor, source: Any, loans: Mapping[int, _Loan]) -> bool:
        """Put off copying a sample to a view of its shape; return False if it is something else."""
        if not self.has(target) or type(source) is not torch.Tensor:
            return False
        same = (source.dtype, source.shape) == (target.dtype, target.shape)
        if not same or _address(source) not in loans:
            return False
        self.copies.append((target, source))
        return True

    def is_full(self) -> bool:
        """Return whether one sample after the other is all that it has."""
        tensor = self.tensor
        if not self.copies or tensor.ndim == 0 or len(self.copies) != len(tensor):
            return False
        step, shape, stride = tensor[0].nbytes, tensor.shape[1:], tensor.stride()[1:]
        return all(
            target.data_ptr() == tensor.data_ptr() + number * step
            and (target.shape, target.stride(), source.stride()) == (shape, stride, stride)
            for number, (target, source) in enumerate(self.copies)
        )

    def write(self) -> None:
        """Do what was put off."""
        if self.value is not None:
            self.tensor.fill_(self.value)
        for target, source in self.copies:
            target.copy_(source)
        self.copies.clear()


@lru_cache(64)
def _stacked(shape: tuple[int, ...], stride: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the strides of what torch makes of some tensors of one shape and strides."""
    like = torch.empty_strided(shape, stride, device="meta")
    return torch.stack([like] * count).stride()


def _address(tensor: torch.Tensor) -> int:
    with suppress(RuntimeError):  # a sparse tensor has no storage
        return tensor.untyped_storage().data_ptr()
    return 0


def _used(held: Mapping[int, _Held], values: Any) -> Iterator[_Held]:
    """Yield what holds memory that some arguments lie in."""
    if isinstance(values, torch.Tensor):
        found = held.get(_address(values))
        if found is not None:
            yield found
    elif isinstance(values, (list, tuple, Mapping)):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _used(held, value)


def is_closed(function: Any) -> bool:
    """Return whether a function can call no more than torch, some builtins, and such functions.

    All that its code can reach is known: a function of Python that is closed, torch, a constant, a
    builtin that calls nothing else, or an attribute of tensors and containers.
    """
    return _is_closed(function, set())


def _is_closed(value: Any, seen: set[int]) -> bool:
    if not isinstance(value, FunctionType):
        return value is torch or value is None or type(value) in (int, float, str, bool)
    if id(value) in seen:
        return True
    seen.add(id(value))
    names, attributes = _names(value.__code__)
    own, cells = value.__globals__, value.__closure__ or ()
    if not attributes <= _ATTRIBUTES or not names - own.keys() <= _BUILTINS:
        return False
    if CellType() in cells:  # an empty one
        return False
    held = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    held += [cell.cell_contents for cell in cells]
    return all(_is_closed(one, seen) for one in (*held, *map(own.get, names & own.keys())))


@lru_cache(64)
def _names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of globals that some code reads; and all others, such as attributes."""
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for one in chain.from_iterable(map(dis.get_instructions, codes_in(code))):
        if one.opcode in dis.hasname:
            names[one.opname == "LOAD_GLOBAL"].add(one.argval)
    return frozenset(names[True]), frozenset(names[False])


_BUILTINS = frozenset(
    {
        *("all", "any", "bool", "dict", "enumerate", "float", "int", "isinstance", "len", "list"),
        *("max", "min", "range", "reversed", "sum", "tuple", "zip"),
    }
)

_ATTRIBUTES = frozenset(
    {
        *("Tensor", "append", "as_tensor", "cat", "copy_", "device", "dtype", "extend", "fill_"),
        *("float32", "get", "int64", "items", "keys", "long", "ndim", "new", "new_empty"),
        *("new_full", "new_zeros", "shape", "size", "stack", "tensor", "values", "zero_"),
    }
)

_STACKS = (torch.stack, torch.cat, torch.concat, torch.concatenate)
_NEW = (torch.Tensor.new, torch.Tensor.new_empty, torch.Tensor.new_full, torch.Tensor.new_zeros)
_FILLED = (torch.Tensor.new_full, torch.Tensor.new_zeros)
_FILLS = (torch.Tensor.fill_, torch.Tensor.zero_)
_VIEWS = (torch.Tensor.__getitem__, torch.Tensor.unbind, torch.unbind)

#: Functions that read no values.
_METADATA = frozenset(
    {
        *(getattr(torch.Tensor, name) for name in ("size", "stride", "dim", "numel", "__len__")),
        *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
    }
)

#: Functions that neither write to a tensor nor return another view of it.
_HARMLESS = _METADATA | {
    torch.nn.functional.interpolate,
    *(getattr(torch.Tensor, name) for name in ("to", "float", "contiguous", "clone", "cuda")),
}

#: Functions that let others than torch write to a tensor.
_ESCAPES = frozenset(
    {
        *("__array__", "__cuda_array_interface__", "__dlpack__", "_typed_storage", "data_ptr"),
        *("numpy", "storage", "untyped_storage"),
    }
)

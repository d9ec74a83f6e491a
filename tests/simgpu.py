"""GPUs simulated on the CPU: their work runs late, in the worst order that streams allow.

Within `simulated`, torch has "cuda" devices. A tensor there is a CPU tensor whose operations wait
in the queue of the current stream until a schedule runs them: what a program has not ordered by an
event happens in the wrong order, for some schedule.

Modelled, as CUDA and torch do it:

- A wait for an event holds up its own stream alone.
- The current device, and the current stream of each device, belong to a thread.
- The allocator keeps free blocks for each stream by itself; a block is poisoned when it is made
  and, in its stream's order, when it is freed. `record_stream` delays that.
- Page-locked memory is read when a copy runs. A copy from pageable memory waits for its stream and
  reads at once, as does one that changes the order or the type, unless it is contiguous. Without
  ``non_blocking``, a copy waits until it is done.
- ``item``, ``cpu`` and indexing by a mask wait for their stream.
- An index that is not on the GPU is copied there from pageable memory.
- Streams and events open a context on their device; after a fork everything is an error.

Not modelled: time, kernels, autograd.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fastdata.device import transfer

#: Bytes of memory that is nobody's; as a float, none that occurs.
FRESH, FREED = 0xAB, 0xEE

#: The allocator's blocks are multiples of it, as torch's.
_ROUND = 512

aten = torch.ops.aten


@dataclass(frozen=True)
class Schedule:
    """When queued work runs.

    Attributes:
        pace: Steps that the GPU does, on average, whenever the host does anything; inf for all
            that it can, 0 for none before the host waits.
        starve: Whether a stream goes on only when no stream before it can, in an order that is
            drawn once; else any stream may.
        seed: Of what is drawn.
    """

    pace: float
    starve: bool
    seed: int


def schedules(count: int) -> list[Schedule]:
    paces = [0.0, 0.3, 2.0, float("inf")]
    return [Schedule(paces[n % 4], n // 4 % 4 != 3, n) for n in range(count)]


class CUDAError(RuntimeError):
    """Stand-in for torch's error of the driver."""


class GPUs:
    """The simulated machine: counts what its programs must not do, in ``faults`` and numbers."""

    def __init__(self, schedule: Schedule, devices: int) -> None:
        self.schedule, self.devices = schedule, devices
        self.rng = random.Random(schedule.seed)
        self.contexts: set[int] = set()
        self.faults: list[str] = []
        self.host_memory = sys.maxsize  # bytes that one page-locked allocation may have
        self.pageable = self.blocking = self.locked = 0  # copies; bytes asked of torch's pool
        self.spins = self.needless = 0  # waits without sleep; streams recorded that own the memory
        #: Errors of the next copies from the host; None for a copy that goes well.
        self.outcomes: list[BaseException | None] = []
        self.process = os.getpid()
        self._streams: list[Stream] = []
        self._free: dict[tuple[Stream, int], list[torch.Tensor]] = defaultdict(list)
        self._late: list[tuple[Stream, torch.Tensor, list[Callable[[], bool]]]] = []
        self.page_locked: dict[int, _Pinned] = {}
        self._polls = self._restless = 0
        self._looked_at: Any = None
        self._thread = _Thread([Stream(n, machine=self, default=True) for n in range(devices)])

    # Devices.

    def check(self) -> None:
        if os.getpid() != self.process:
            raise CUDAError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
                "multiprocessing, you must use the 'spawn' start method"
            )

    def index(self, device: Any = None) -> int:
        if device is None:
            return self._thread.device
        if isinstance(device, int):
            found = device
        else:
            device = torch.device(device)
            assert device.type == "cuda", device
            found = self._thread.device if device.index is None else device.index
        if not 0 <= found < self.devices:
            raise CUDAError("CUDA error: invalid device ordinal")
        return found

    def set_device(self, device: Any) -> None:
        """As `cudaSetDevice`, which opens a context."""
        self.check()
        self._thread.device = self.index(device)
        self.contexts.add(self._thread.device)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """As `torch.cuda.device`, which opens no context when it goes back."""
        before = self._thread.device
        self.set_device(device)
        try:
            yield
        finally:
            self._thread.device = before

    def visit(self, device: int) -> None:
        """Make a device the current one and restore the one before, as streams and events do."""
        self.check()
        self.contexts |= {device, self._thread.device}

    # Streams.

    def stream(self, device: Any = None) -> Stream:
        self.check()
        return self._thread.streams[self.index(device)]

    def set_stream(self, stream: Stream) -> None:
        if stream.device.index != self._thread.device:
            self.set_device(stream.device)
        self._thread.streams[stream.device.index] = stream

    @contextmanager
    def using(self, stream: Stream) -> Iterator[Stream]:
        before, device = self._thread.streams[stream.device.index], self._thread.device
        self.set_stream(stream)
        try:
            yield stream
        finally:
            self.set_stream(before)
            if device != self._thread.device:
                self.set_device(device)

    def add(self, stream: Stream) -> int:
        """Takes a new stream in, at any place of the order; returns its number."""
        self._streams.insert(self.rng.randint(0, len(self._streams)), stream)
        return len(self._streams)

    # Time.

    def pass_time(self) -> None:
        """The GPU goes on for as long as the host needs for a call."""
        self.check()
        pace = self.schedule.pace
        if pace == float("inf"):
            steps = sys.maxsize
        else:
            steps = int(self.rng.expovariate(1 / pace)) if pace else 0
        while steps and self.step():
            steps -= 1

    def step(self) -> bool:
        can = [stream for stream in self._streams if stream.can_go_on]
        if not can:
            return False
        (can[0] if self.schedule.starve else self.rng.choice(can)).go_on()
        return True

    def wait(self, done: Callable[[], bool]) -> None:
        while not done():
            if not self.step():
                raise CUDAError("the GPU would wait for ever")

    def sleep(self, seconds: float) -> None:
        self._restless = 0
        _SLEEP(seconds)

    def poll(self, done: Callable[[], bool]) -> bool:
        """The host looks. Whoever looks again and again is not held off for ever."""
        self.pass_time()
        if done() or done is not self._looked_at:
            self._restless, self._looked_at = 0, done
        self._restless += not done()
        self.spins += self._restless > _LOOKS
        self._polls = 0 if done() else self._polls + 1
        if self._polls > 1:
            steps = [self.step() for _ in range(self.rng.randint(1, 20))]
            if self._polls > 20 and not any(steps):
                raise CUDAError("the GPU would wait for ever")
        return done()

    def synchronize(self, device: Any = None) -> None:
        self.visit(self.index(device))
        streams = [one for one in self._streams if one.device.index == self.index(device)]
        self.wait(lambda: not any(stream.queue for stream in streams))

    # Memory.

    def take(self, size: int, stream: Stream) -> Block:
        self.check()
        self.contexts.add(stream.device.index)
        size = -(-max(size, 1) // _ROUND) * _ROUND
        late, self._late = self._late, []
        for place, raw, marks in late:
            if all(mark() for mark in marks):
                self._give_back(place, raw)
            else:
                self._late.append((place, raw, marks))
        free = self._free[stream, size]
        if free:
            return Block(self, free.pop(self.rng.randrange(len(free))), stream)
        return Block(self, torch.full((size,), FRESH, dtype=torch.uint8, device="cpu"), stream)

    def free(self, block: Block) -> None:
        """Takes memory back: its stream may write to it from now on, others when they are done."""
        if os.getpid() != self.process or self is not machine():
            return
        others = [stream for stream in block.used if stream is not block.stream]
        if others:
            marks = [stream.mark() for stream in others]
            self._late.append((block.stream, block.raw, marks))
        else:
            self._give_back(block.stream, block.raw)

    def _give_back(self, stream: Stream, raw: torch.Tensor) -> None:
        stream.queue.append(lambda: raw.fill_(FREED))
        self._free[stream, len(raw)].append(raw)

    def register(self, array: np.ndarray[Any, Any]) -> None:
        """Makes an array page-locked while it lives; a copy that runs later is a fault."""
        self._register(array, pooled=False)

    def _register(self, array: np.ndarray[Any, Any], pooled: bool) -> None:
        if not self.contexts:
            self.contexts.add(self._thread.device)
        start = array.__array_interface__["data"][0]
        self.page_locked[start] = _Pinned(start + array.nbytes, weakref.ref(array), pooled)
        weakref.finalize(array, self.page_locked.pop, start, None)

    def pinned(self, tensor: torch.Tensor) -> _Pinned | None:
        at = tensor.data_ptr() or tensor.untyped_storage().data_ptr()
        for start, found in self.page_locked.items():
            if start <= at < found.end:
                return found
        return None

    def new_pinned(self, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """A page-locked tensor of torch's own pool, which keeps it until copies have run."""
        self.check()
        count = size.numel()
        self.locked += count * dtype.itemsize
        if count * dtype.itemsize > self.host_memory:
            raise CUDAError("CUDA error: out of memory")
        array = np.full(max(count * dtype.itemsize, 1), FRESH, np.uint8)
        self._register(array, pooled=True)
        return torch.from_numpy(array)[: count * dtype.itemsize].view(dtype).view(size)

    def when_read(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor | None]:
        found = self.pinned(tensor)
        array = None if found is None else found.array()
        if found is None or array is None:
            now = tensor.clone()
            return lambda: now
        at, shape, strides, dtype = (
            tensor.data_ptr() - array.__array_interface__["data"][0],
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )
        kept = array if found.pooled else None
        reference = found.array

        def read() -> torch.Tensor | None:
            memory = reference() if kept is None else kept
            if memory is None:
                self.faults.append("a copy has read memory that was gone")
                return None
            usable = (len(memory) - at) // dtype.itemsize * dtype.itemsize
            flat = torch.from_numpy(memory[at : at + usable]).view(dtype)
            return flat.as_strided(shape, strides)

        return read


class _Thread(threading.local):
    def __init__(self, defaults: list[Stream]) -> None:
        self.device, self.streams = 0, list(defaults)


class _Pinned(NamedTuple):
    end: int
    array: Callable[[], Any]
    pooled: bool


class Stream:
    def __init__(
        self,
        device: Any = None,
        *,
        priority: int = 0,
        machine: GPUs | None = None,
        default: bool = False,
    ) -> None:
        self.machine = machine or _machine()
        self.device = torch.device("cuda", self.machine.index(device))
        self.queue: deque[Any] = deque()
        self.stream_id = self.cuda_stream = self.machine.add(self)
        if not default:
            self.machine.visit(self.device.index)

    @property
    def can_go_on(self) -> bool:
        return bool(self.queue) and (not isinstance(self.queue[0], Hold) or self.queue[0].mark())

    def go_on(self) -> None:
        what = self.queue.popleft()
        if not isinstance(what, Hold):
            with _disable_current_modes():
                what()

    def run(self, work: Callable[[], Any]) -> None:
        self.queue.append(work)
        self.machine.pass_time()

    def mark(self) -> Callable[[], bool]:
        done: list[bool] = []
        self.queue.append(lambda: done.append(True))
        return lambda: bool(done)

    def wait_event(self, event: Event) -> None:
        self.machine.visit(self.device.index)
        self.queue.append(Hold(event.mark))
        self.machine.pass_time()

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.machine.visit(self.device.index)
        self.machine.spins += bool(self.queue)
        self.machine.wait(lambda: not self.queue)

    def query(self) -> bool:
        return self.machine.poll(lambda: not self.queue)

    def __enter__(self) -> Stream:
        self._entered = self.machine.using(self)
        return self._entered.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._entered.__exit__(*exc)

    def __repr__(self) -> str:
        return f"<simulated stream {self.stream_id} of {self.device}>"


@dataclass
class Hold:
    mark: Callable[[], bool]


class Event:
    def __init__(self, device: Any = None, **options: Any) -> None:
        self.mark: Callable[[], bool] = lambda: True
        self._device: int | None = None
        self._machine: GPUs | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = _machine().stream() if stream is None else stream
        self._device, self._machine = stream.device.index, stream.machine
        stream.machine.visit(self._device)
        self.mark = stream.mark()

    def wait(self, stream: Stream | None = None) -> None:
        (_machine().stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        return _machine().poll(self.mark)

    def synchronize(self) -> None:
        here = _machine()
        here.spins += not self.mark()
        here.wait(self.mark)

    def __del__(self) -> None:
        here = self._machine
        if here is None or here is not machine():
            return
        if os.getpid() != here.process:
            here.faults.append("an event was freed after a fork")
        elif self._device is not None:
            here.visit(self._device)


class Block:
    """Memory of a tensor and its views; free when they are gone."""

    def __init__(self, home: GPUs, raw: torch.Tensor, stream: Stream) -> None:
        self.home, self.raw, self.stream = home, raw, stream
        self.used: set[Stream] = set()

    # While the interpreter ends, names of this module may be gone.
    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            self.home.free(self)


class GPUTensor(torch.Tensor):
    """A tensor on a simulated GPU."""

    memory: torch.Tensor
    block: Block

    @staticmethod
    def __new__(cls, memory: torch.Tensor, block: Block) -> GPUTensor:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            memory.shape,
            strides=memory.stride(),
            storage_offset=memory.storage_offset(),
            dtype=memory.dtype,
            device=block.stream.device,
        )
        made.memory, made.block = memory, block
        return made  # type: ignore[no-any-return]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<{tuple(self.shape)} {self.dtype} on simulated {self.device}>"

    def record_stream(self, stream: Any) -> None:  # type: ignore[override]
        _machine().needless += stream is self.block.stream
        self.block.used.add(stream)

    # These want a guard of the device from C++, which a torch without CUDA has not.

    def copy_(self, source: Any, non_blocking: bool = False) -> Any:  # type: ignore[override]
        return aten.copy_.default(self, source, non_blocking)

    def contiguous(self, memory_format: Any = torch.contiguous_format) -> Any:
        if self.is_contiguous(memory_format=memory_format):
            return self
        return aten.clone.default(self, memory_format=memory_format)

    def __invert__(self) -> Any:
        return aten.bitwise_not.default(self)

    def __getitem__(self, index: Any) -> Any:
        places = self._places(index)
        if places is not None:
            return aten.index.Tensor(self, [_counted(place) for place in places])
        with _disable_current_modes():
            return GPUTensor(self.memory[index], self.block)

    def __setitem__(self, index: Any, value: Any) -> None:
        places = self._places(index)
        if places is not None:
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                places = [_counted(place) for place in places]
            elif not isinstance(value, torch.Tensor):
                value = torch.tensor(value, dtype=self.dtype, device="cpu")
            aten.index_put_.default(self, places, value)
        elif isinstance(value, torch.Tensor):
            aten.copy_.default(self[index], value)
        else:
            aten.fill_.Scalar(self[index], value)

    def _places(self, index: Any) -> list[Any] | None:
        """Return an index by lists or tensors as tensors on the GPU; None for another index."""
        several = index if isinstance(index, tuple) else (index,)
        listed = [isinstance(one, (list, np.ndarray, torch.Tensor)) for one in several]
        if not any(listed):
            return None
        assert all(listed), f"not modelled: {index}"
        return [torch.as_tensor(one).to(self.device) for one in several]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


def _counted(mask: Any) -> Any:
    """Return an index as numbers; the host counts what a mask selects."""
    if mask.dtype != torch.bool:
        return mask
    (found,) = mask.cpu().nonzero(as_tuple=True)
    return found.pin_memory().to(mask.device, non_blocking=True)


def _empty(like: torch.Tensor, device: Any) -> GPUTensor:
    """A tensor of another one's shape, strides and dtype on the current stream."""
    here = _machine()
    size = sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True)) + 1
    size = size * like.dtype.itemsize if like.numel() else 0
    block = here.take(size, here.stream(device))
    memory = block.raw[:size].view(like.dtype).as_strided(like.shape, like.stride())
    return GPUTensor(memory, block)


def _nothing(value: Any) -> Any:
    """A CPU tensor instead of any, to see what an operation makes of it."""
    if not isinstance(value, GPUTensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()


def _host(value: Any) -> Any:
    """Return an argument's value for later work: its memory, or a copy of pageable memory."""
    if isinstance(value, GPUTensor):
        return value.memory
    return value.clone() if isinstance(value, torch.Tensor) else value


def _stream_of(tensors: list[GPUTensor]) -> Stream:
    return _machine().stream(tensors[0].device)


def _finish(tensors: list[GPUTensor]) -> None:
    """The host wants values, so waits for the stream that makes them."""
    stream = _stream_of(tensors)
    stream.machine.wait(lambda: not stream.queue)


#: What gives values to the host.
_TO_HOST = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default}

_FACTORIES_OF_NOTHING = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


def _dispatch(func: Any, args: Any, kwargs: Any) -> Any:
    with _disable_current_modes():
        return _run(func, args, kwargs)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    here = _machine()
    here.pass_time()
    name = func._schema.name.removeprefix("aten::")
    leaves = pytree.tree_leaves((args, kwargs))
    there = [one for one in leaves if isinstance(one, GPUTensor)]
    device = kwargs.get("device")
    if kwargs.get("pin_memory"):
        like = func(*args, **{**kwargs, "pin_memory": False, "device": "cpu"})
        if device is not None and torch.device(device).type != "cpu":
            raise CUDAError("Only dense CPU tensors can be pinned")
        return here.new_pinned(like.shape, like.dtype)
    if name == "_pin_memory":
        (source, *_) = args
        if isinstance(source, GPUTensor):
            raise CUDAError("cannot pin a tensor that is not on the CPU")
        return here.new_pinned(source.shape, source.dtype).copy_(source)
    if func in _TO_HOST:
        _finish(there)
        return func(*pytree.tree_map(_host, args), **pytree.tree_map(_host, kwargs))
    if name == "copy_":
        return _copy(*args, **kwargs)
    if name == "_to_copy" and (device is not None or not there):
        target = torch.device(device)
        if target.type == "cpu":
            like = func(_nothing(args[0]), **{**kwargs, "non_blocking": False})
            blocking = not kwargs.get("non_blocking", False)
            out = like if blocking else here.new_pinned(like.shape, like.dtype)
            return _copy(out, args[0], not blocking)
        like = func(_nothing(args[0]), **{**kwargs, "device": "cpu", "non_blocking": False})
        return _copy(_empty(like, target), args[0], kwargs.get("non_blocking", False))
    if func.is_view:
        (first, *rest) = args
        return pytree.tree_map_only(
            torch.Tensor,
            lambda found: GPUTensor(found, first.block),
            func(first.memory, *rest, **kwargs),
        )
    if func._schema.is_mutable:
        arguments = pytree.tree_map(_host, (args, kwargs))
        stream = _stream_of(there)
        stream.run(lambda: func(*arguments[0], **arguments[1]))
        return kwargs["out"] if "out" in kwargs else args[0]
    on_host = {**kwargs, "device": "cpu"} if "device" in kwargs else kwargs
    likes = func(*pytree.tree_map(_nothing, args), **pytree.tree_map(_nothing, on_host))
    place = there[0].device if device is None else device
    found = pytree.tree_map_only(torch.Tensor, lambda like: _empty(like, place), likes)
    if name not in _FACTORIES_OF_NOTHING:
        arguments = pytree.tree_map(_host, (args, on_host))
        outputs = pytree.tree_leaves(found)

        def compute() -> None:
            results = pytree.tree_leaves(func(*arguments[0], **arguments[1]))
            for out, result in zip(outputs, results, strict=True):
                out.memory.copy_(result)

        here.stream(place).run(compute)
    return found


def _as_it_is(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether torch copies host memory itself, not another copy of it (Copy.cu's temporaries)."""
    if source.dtype != target.dtype or source.shape != target.shape:
        return False
    dense = source.stride() == torch.empty_like(source).stride()
    return source.is_contiguous() or (dense and source.stride() == target.stride())


def _copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
    here = _machine()
    if not isinstance(target, GPUTensor):
        if non_blocking and here.pinned(target) is not None:
            from_gpu = source.memory
            here.stream(source.device).run(lambda: target.copy_(from_gpu))
            return target
        _finish([source])
        return target.copy_(source.memory)
    if isinstance(source, GPUTensor):
        _copy_there(target, source)
    else:
        _copy_from_host(target, source, non_blocking)
    return target


def _copy_from_host(target: GPUTensor, source: torch.Tensor, non_blocking: bool) -> None:
    here, memory = _machine(), target.memory
    stream = here.stream(target.device)
    error = here.outcomes.pop(0) if here.outcomes else None
    if error is not None:
        raise error
    source = source if _as_it_is(source, target) else source.clone()
    waits = source.numel() > 0 and source.dim() > 0  # one number is an argument of a kernel
    if waits and here.pinned(source) is None:
        here.pageable += 1
        here.wait(lambda: not stream.queue)
    read = here.when_read(source)

    def copy() -> None:
        found = read()
        if found is not None:
            memory.copy_(found)

    stream.run(copy)
    if waits and not non_blocking:
        here.blocking += 1
        here.wait(lambda: not stream.queue)


def _copy_there(target: GPUTensor, source: GPUTensor) -> None:
    here, memory, from_gpu = _machine(), target.memory, source.memory
    stream, other = here.stream(source.device), here.stream(target.device)
    if other is not stream:  # from device to device, as torch orders it
        stream.queue.append(Hold(other.mark()))
    stream.run(lambda: memory.copy_(from_gpu))
    if other is not stream:
        other.queue.append(Hold(stream.mark()))


class _Mode(TorchDispatchMode):
    """Sees what makes a tensor on the GPU, or page-locked memory, of none that is there."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch would import it, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        on_gpu = device is not None and torch.device(device).type == "cuda"
        pins = kwargs.get("pin_memory") or func._schema.name == "aten::_pin_memory"
        leaves = pytree.tree_leaves((args, kwargs))
        if on_gpu or pins or any(isinstance(one, GPUTensor) for one in leaves):
            return _dispatch(func, args, kwargs)
        return func(*args, **kwargs)


_SLEEP = time.sleep

#: How often the host may look at an event without sleeping before that is a spin.
_LOOKS = 3

_MACHINES: list[GPUs] = []


def machine() -> GPUs | None:
    return _MACHINES[-1] if _MACHINES else None


def _machine() -> GPUs:
    found = machine()
    assert found is not None, "outside of simulated()"
    return found


@contextmanager
def simulated(schedule: Schedule | None = None, devices: int = 2) -> Iterator[GPUs]:
    """Has torch find GPUs, simulated ones."""
    here = GPUs(schedule or Schedule(float("inf"), False, 0), devices)
    cuda: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "device": here.device,
        "stream": here.using,
        "set_stream": here.set_stream,
        "set_device": here.set_device,
        "current_stream": here.stream,
        "current_device": here.index,
        "device_count": lambda: devices,
        "is_available": lambda: True,
        "is_initialized": lambda: bool(here.contexts),
        "synchronize": here.synchronize,
        "_lazy_init": here.check,
    }
    accelerator: dict[str, Any] = {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "is_available": lambda: True,
        "device_count": lambda: devices,
        "current_device_index": here.index,
        "set_device_index": here.set_device,
        "current_stream": here.stream,
        "set_stream": here.set_stream,
        "synchronize": here.synchronize,
    }
    to = torch.Tensor.to

    def numbered(value: Any) -> Any:
        if isinstance(value, (str, torch.device)) and str(value) == "cuda":
            return torch.device("cuda", here.index())
        return value

    of_torch = torch.from_dlpack

    def from_dlpack(source: Any) -> Any:
        return source.on_gpu() if hasattr(source, "on_gpu") else of_torch(source)

    tensor = {
        "to": lambda one, *args, **kwargs: to(
            one, *map(numbered, args), **{name: numbered(kwargs[name]) for name in kwargs}
        ),
        "cuda": lambda one: to(one, numbered("cuda")),
        "is_pinned": lambda one, device=None: (
            not isinstance(one, GPUTensor) and here.pinned(one) is not None
        ),
        "is_cuda": property(lambda one: isinstance(one, GPUTensor)),
    }
    torch._C._ensureCUDADeviceGuardSet()
    transfer.copy_stream.cache_clear()
    _MACHINES.append(here)
    try:
        with (
            mock.patch.multiple(torch, Stream=Stream, Event=Event, from_dlpack=from_dlpack),
            mock.patch.multiple(torch.cuda, create=True, **cuda),
            mock.patch.multiple(torch.accelerator, **accelerator),
            mock.patch.multiple(torch.Tensor, **tensor),
            mock.patch.object(transfer, "_POLL", 0.0),
            mock.patch.object(time, "sleep", here.sleep),
            _Mode(),
        ):
            yield here
    finally:
        _MACHINES.pop()
        transfer.copy_stream.cache_clear()

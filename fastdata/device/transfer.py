"""Copies of batches to an accelerator, where uint8 images are normalised.

Four rules keep memory from being reused while a stream still reads or writes it:

- The consumer's tensors are allocated on the *consumer's* stream. The copy stream waits for that
  stream's earlier work, because freed memory may still be in use there. So torch's allocator sees
  one stream, and memory does not grow.
- The consumer's stream waits for the copy's event when the consumer takes the batch. A batch that
  is never taken stays until its copy ends.
- Host batches are kept, and staging memory is not refilled, before that event.
- Intermediate bytes, before normalisation, are allocated and used on the copy stream alone.

Bytes cross the bus in a quarter of the time of float32, so normalisation follows the copy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from fastdata.device.ragged import Ragged
from fastdata.errors import UsageError

#: Dtypes of images, by name.
_DTYPES = {
    "uint8": torch.uint8,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a batch with ``change`` applied to each tensor, in containers of any depth."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Ragged):
        return Ragged(change(batch.values), change(batch.offsets))
    if isinstance(batch, Mapping):
        values = {key: map_tensors(value, change) for key, value in batch.items()}
        try:
            return type(batch)(values)  # type: ignore[call-arg]
        except TypeError:  # its constructor takes no dict
            return values
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, change) for value in batch))
    if isinstance(batch, (list, tuple)):
        several = [map_tensors(value, change) for value in batch]
        return several if isinstance(batch, list) else tuple(several)
    return batch


def is_asynchronous(device: torch.device) -> bool:
    """Return whether a device runs work asynchronously on streams, unlike the CPU and Metal."""
    return device.type not in ("cpu", "mps")


def numbered(device: torch.device) -> torch.device:
    """Return the device with a number: its own, or the current device's."""
    if not is_asynchronous(device) or device.index is not None:
        return device
    return torch.accelerator.current_stream(device).device


@dataclass(frozen=True)
class Destination:
    """Destination of batches: device, dtype and memory format.

    Attributes:
        device: An accelerator, or the CPU. An accelerator without a number is the current one
            when a pass begins.
        normalisation: Normalisation of uint8 images; None to leave them.
        channels_last: Whether images are in channels-last memory, else contiguous; None to keep
            their format.
        prefetch: Number of batches to prefetch.
        copy: Whether to copy tensors that are already on the device, too: set for tensors that
            only the copy stream may use.
    """

    device: torch.device
    normalisation: Normalisation | None
    channels_last: bool | None
    prefetch: int
    copy: bool = False

    def describe(self) -> str:
        """Return a description for users."""
        if self.normalisation is None:
            return str(self.device)
        dtype = str(self.normalisation.dtype).removeprefix("torch.")
        return f"{self.device}, uint8 images converted to {dtype} there"


@cache
def copy_stream(device: torch.device) -> torch.Stream:
    """Return this process's stream for copies to an accelerator, a device with its number.

    All loaders and epochs share it: torch's allocator keeps free memory per stream, so new
    streams would increase memory.
    """
    with on_device(device):
        return torch.Stream(device)


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Make an accelerator the current one.

    Streams and events switch to their device and back. If the previous device is another GPU,
    CUDA opens a context there, some 500 MB of its memory. This switches back without one.
    """
    # torch.accelerator.device_index needs torch 2.8.
    with torch.get_device_module(device).device(device):
        yield


@contextmanager
def on_stream(stream: torch.Stream) -> Iterator[None]:
    """Make a stream the current one of its device, which must be the current device."""
    before = torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


class Staging:
    """Page-locked memory, unless not ``pin``, for copies of batches that are not page-locked.

    It grows to the largest batch, and serves every batch.
    """

    def __init__(self, pin: bool) -> None:
        self._pin = pin
        self._blocks: list[torch.Tensor] = []
        self._used = 0

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return sum(block.numel() for block in self._blocks)

    def begin(self) -> None:
        """Begin a new batch; the previous one is no longer read."""
        self._used = 0

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a dense copy of a tensor, with the same order of dimensions in memory."""
        needed = tensor.numel() * tensor.element_size()
        if self._used == len(self._blocks):
            self._blocks.append(self._block(0))
        if self._blocks[self._used].numel() < needed:
            self._blocks[self._used] = self._block(needed)
        block = self._blocks[self._used][:needed]
        self._used += 1
        copy = block.view(tensor.dtype).as_strided(tensor.shape, _dense_strides(tensor))
        return copy.copy_(tensor)

    def _block(self, size: int) -> torch.Tensor:
        # torch's default device may be a GPU.
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=self._pin and size > 0)


def _dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's strides without gaps, in the same order of dimensions."""
    return torch.empty_like(tensor, device="meta", requires_grad=False).stride()


class Arrival:
    """Batch under way to a device: copies may still write to ``tensors``.

    ``stream`` allocated them, and ``copied`` follows the copies; None if the device is synchronous.
    """

    def __init__(
        self,
        batch: Any,
        tensors: list[torch.Tensor],
        stream: torch.Stream | None = None,
        copied: torch.Event | None = None,
    ) -> None:
        self._batch, self._tensors = batch, tensors
        self._stream, self._copied = stream, copied

    def take(self) -> Any:
        """Return the batch, for use on the current stream."""
        if self._stream is not None and self._copied is not None:
            device = self._stream.device
            with on_device(device):
                current = torch.accelerator.current_stream(device)
                current.wait_event(self._copied)
                if current != self._stream:
                    for tensor in self._tensors:
                        tensor.record_stream(current)
        return self._batch


#: Seconds between two queries of an event. Waiting on an event spins, which takes a core from
#: decoding: torch.Event's ``blocking`` does nothing (torch 2.13). The waiting thread is a batch
#: ahead, so half a millisecond is early enough.
_POLL = 0.0005


class _Slot:
    """Host memory and event of one batch, until its copy ends."""

    def __init__(self, device: torch.device) -> None:
        self.staging = Staging(pin=True)
        self.sources: list[torch.Tensor] = []
        self.copied = torch.Event(device)
        self.busy = False

    def release(self, wait: bool) -> None:
        """Release the batch if its copy has ended, or after waiting for it."""
        if not self.busy:
            return
        if wait:
            while not self.copied.query():
                time.sleep(_POLL)
        elif not self.copied.query():
            return
        self.busy = False
        self.sources.clear()


_FORMATS = {
    True: torch.channels_last,
    False: torch.contiguous_format,
    None: torch.preserve_format,
}


class Transfer:
    """Transfer of one pass's batches; to the CPU, unchanged tensors are not copied."""

    def __init__(self, where: Destination) -> None:
        self._device = device = numbered(where.device)
        self._normalisation = where.normalisation
        self._format = _FORMATS[where.channels_last]
        self._always = where.copy
        self._constants: tuple[torch.Tensor, torch.Tensor] | None = None
        self._stream = copy_stream(device) if is_asynchronous(device) else None
        # One slot more than `prefetch`: the batch just taken may still be copying.
        slots = 0 if self._stream is None else where.prefetch + 1
        self._slots = [_Slot(device) for _ in range(slots)]
        self._next = 0

    def here(self) -> AbstractContextManager[None]:
        """Make an accelerator the current device; its events must also be freed inside."""
        return nullcontext() if self._stream is None else on_device(self._device)

    def begin(self, batch: Any) -> Arrival:
        """Start the copy of a batch; raise UsageError if it has no uint8 images to normalise."""
        # The consumer may take the batch in another autograd mode.
        with torch.inference_mode(False), torch.no_grad(), self.here():
            return self._begin(batch)

    def _begin(self, batch: Any) -> Arrival:
        jobs: list[tuple[torch.Tensor, torch.Tensor]] = []
        images: list[torch.Tensor] = []

        def change(tensor: torch.Tensor) -> torch.Tensor:
            if _is_image(tensor):
                images.append(tensor)
            if tensor.layout != torch.strided:
                return tensor.to(self._device)  # rare: synchronously, on the current stream
            out = self._destination(tensor)
            if out is not tensor:
                jobs.append((tensor.detach(), out))
            return out

        # Allocates on the current stream.
        moved = map_tensors(batch, change)
        if self._normalisation is not None:
            _check_images(images)
        if self._stream is not None:
            return self._send(moved, jobs, self._stream)
        for source, out in jobs:
            self._finish(source.to(self._device), out)
        return Arrival(moved, [])

    def _destination(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for the result of a tensor; the tensor itself if it stays unchanged."""
        dtype, layout = tensor.dtype, torch.preserve_format
        if _is_image(tensor):
            layout = self._format
            if self._normalisation is not None and dtype == torch.uint8:
                dtype = self._normalisation.dtype
        as_it_is = layout == torch.preserve_format or tensor.is_contiguous(memory_format=layout)
        stays = tensor.device == self._device and not self._always
        if stays and dtype == tensor.dtype and as_it_is:
            return tensor
        return torch.empty_like(
            tensor, dtype=dtype, device=self._device, memory_format=layout, requires_grad=False
        )

    def _send(
        self,
        moved: Any,
        jobs: list[tuple[torch.Tensor, torch.Tensor]],
        stream: torch.Stream,
    ) -> Arrival:
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        slot.release(wait=True)
        for other in self._slots:
            other.release(wait=False)
        slot.staging.begin()
        consumer = torch.accelerator.current_stream(self._device)
        stream.wait_stream(consumer)
        try:
            with on_stream(stream):
                for source, out in jobs:
                    self._copy(source, out, slot)
            stream.record_event(slot.copied)
        except BaseException:
            # Copies that have begun use memory that the error frees.
            stream.synchronize()
            slot.sources.clear()
            raise
        slot.busy = True
        return Arrival(moved, [out for _, out in jobs], consumer, slot.copied)

    def _copy(self, source: torch.Tensor, out: torch.Tensor, slot: _Slot) -> None:
        if source.device.type == "cpu":
            # A copy of a tensor with gaps would block in pageable memory.
            if not source.is_pinned() or source.stride() != _dense_strides(source):
                source = slot.staging.place(source)
            if source.dtype == out.dtype and source.stride() == out.stride():
                out.copy_(source, non_blocking=True)
                slot.sources.append(source)
                return
            there = torch.empty_like(source, device=self._device)
            there.copy_(source, non_blocking=True)
        else:
            there = source.to(self._device, non_blocking=True)
        slot.sources.append(source)
        self._finish(there, out)

    def _finish(self, source: torch.Tensor, out: torch.Tensor) -> None:
        """Normalise images on the device, or convert their memory format."""
        if source.dtype == out.dtype:
            out.copy_(source)
            return
        assert self._normalisation is not None
        if self._constants is None:
            self._constants = self._normalisation.constants(self._device)
        _normalise(source, self._constants, out)

    def close(self) -> None:
        """Wait for copies under way, and release their host memory."""
        with self.here():
            while self._slots:
                self._slots.pop().release(wait=True)


def _check_images(images: list[torch.Tensor]) -> None:
    if any(image.dtype == torch.uint8 for image in images):
        return
    found = f"images of {str(images[0].dtype).removeprefix('torch.')}" if images else "no images"
    raise UsageError(
        f"dtype=, mean= and std= are for uint8 images, N x 3 x H x W; the batch has {found}",
        "Leave these arguments out, or remove the conversion to floats from the transform "
        "(ToTensor, ConvertImageDtype, Normalize).",
    )


def _is_image(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a batch of images: N x 3 x H x W, uint8 or floats."""
    return (
        tensor.dim() == 4
        and tensor.size(1) == 3
        and (tensor.dtype == torch.uint8 or tensor.dtype.is_floating_point)
    )


def _three(name: str, values: Sequence[float] | None) -> tuple[float, float, float] | None:
    """Return the three finite numbers of an argument, positive for "std"; None if it is None."""
    if values is None:
        return None
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
        hint = "Give three finite numbers in units of 0 to 1, for red, green and blue."
        raise UsageError(f"{name}={values!r}", hint)
    if name == "std" and not all(value > 1e-6 for value in numbers):
        raise UsageError(f"std={numbers} has values that are not above 0", "Give positive values.")
    return numbers[0], numbers[1], numbers[2]


@dataclass(frozen=True)
class Normalisation:
    """Normalisation of uint8 images to ``(value / 255 - mean) / std``.

    Attributes:
        dtype: Dtype of the result.
        scale: Factor of each channel's bytes.
        offset: Value added to each channel afterwards.
    """

    dtype: torch.dtype
    scale: tuple[float, ...]
    offset: tuple[float, ...]

    def constants(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and offset as float32 tensors, 1 x 3 x 1 x 1."""
        both = torch.empty((2, 1, 3, 1, 1), dtype=torch.float32, device=device)
        for which, values in enumerate((self.scale, self.offset)):
            for channel, value in enumerate(values):
                both[which, :, channel] = value  # unlike a copy, does not wait for the GPU
        return both[0], both[1]


def normalisation(
    dtype: str | torch.dtype | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> Normalisation | None:
    """Return the normalisation for a `DeviceLoader`'s arguments; None to leave images unchanged."""
    if dtype is None and mean is None and std is None:
        return None
    name = "float32" if dtype is None else dtype
    if isinstance(name, torch.dtype):
        name = str(name).removeprefix("torch.")
    if name not in _DTYPES:
        raise UsageError(f"dtype={dtype!r}", f"Give one of {', '.join(_DTYPES)}.")
    means = _three("mean", mean) or (0.0, 0.0, 0.0)
    stds = _three("std", std) or (1.0, 1.0, 1.0)
    if name == "uint8":
        if not (mean is std is None):
            raise UsageError("mean= and std= are for floats, but dtype is uint8", "Leave one out.")
        return None
    scale = tuple(1 / (255 * value) for value in stds)
    offset = tuple(-value / by for value, by in zip(means, stds, strict=True))
    return Normalisation(_DTYPES[name], scale, offset)


def _normalise(
    images: torch.Tensor, constants: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor
) -> None:
    """Normalise N x 3 x H x W, uint8, into ``out``, of any float dtype, on the same device."""
    scale, offset = constants
    # One kernel on a GPU: it converts as it loads, computes in float32, and rounds as it stores.
    # Other ways to write this make a float copy first.
    torch.addcmul(offset, images, scale, out=out)

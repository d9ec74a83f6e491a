"""Batches to an accelerator: pinned staging, a stream of their own, and who waits for whom.

What keeps memory from being used again while it is still read, or written:

- What the consumer gets is allocated on *its* stream, as if it had made it. The copy stream waits
  for what that stream had been given before, because freed memory may still be in use there. So
  torch's allocator needs to know of no other stream, and memory does not grow.
- The consumer's stream waits for the copy's event when the batch is handed over. A batch that never
  is stays until its copy has ended.
- Batches on the host are kept, and staging memory is not filled again, before that event.
- What is in between, bytes to be normalised, is allocated and used on the copy stream alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

from fastdata.device.normalise import Normalisation, is_image, normalise
from fastdata.errors import UsageError


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """A batch with each of its tensors changed; lists, tuples and mappings of any depth.

    Anything else in it (strings, numbers) stays as it is.
    """
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        values = {key: map_tensors(value, change) for key, value in batch.items()}
        try:
            return type(batch)(values)  # type: ignore[call-arg]
        except TypeError:  # one that is not made of a dict
            return values
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, change) for value in batch))
    if isinstance(batch, (list, tuple)):
        several = [map_tensors(value, change) for value in batch]
        return several if isinstance(batch, list) else tuple(several)
    return batch


def is_asynchronous(device: torch.device) -> bool:
    """Whether a device works on after it was told to, on streams. Metal's is told by one thread."""
    return device.type not in ("cpu", "mps")


@cache
def copy_stream(device: torch.device) -> torch.Stream:
    """This process's stream for copies to an accelerator.

    One for all loaders and epochs: torch's allocator keeps free memory for each stream by itself,
    so new streams would make it grow.

    Args:
        device: With its number.
    """
    with on_device(device):
        return torch.Stream(device)


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Makes an accelerator the current one.

    Streams and events make theirs the current device for a moment, and then the one before again:
    if that is another GPU, CUDA opens a context there, some 500 MB of its memory. This goes
    back without.
    """
    # torch.accelerator.device_index is not there before torch 2.8.
    with torch.get_device_module(device).device(device):
        yield


@contextmanager
def on_stream(stream: torch.Stream) -> Iterator[None]:
    """Makes a stream the current one of its device, which is the current one already."""
    before = torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


class Staging:
    """Page-locked memory that batches are copied into when they are not page-locked themselves.

    It grows to the largest batch, and is then used for every one.

    Args:
        pin: Whether the memory is page-locked.
    """

    def __init__(self, pin: bool) -> None:
        self._pin = pin
        self._blocks: list[torch.Tensor] = []
        self._used = 0

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return sum(block.numel() for block in self._blocks)

    def begin(self) -> None:
        """A new batch begins; nobody reads the one before any more."""
        self._used = 0

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A dense copy of a tensor of the batch, with the same order of dimensions in memory."""
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
    """The tensor's own strides if it has no gaps; those of a copy of it otherwise."""
    return torch.empty_like(tensor, device="meta", requires_grad=False).stride()


class Arrival:
    """A batch on its way.

    Args:
        batch: The batch; its tensors may still be being written.
        tensors: Those of them that are.
        stream: The stream that they were allocated on; None where nothing is asynchronous.
        copied: Told when they have been written; None where nothing is asynchronous.
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
        """The batch, for use on the current stream."""
        if self._stream is not None and self._copied is not None:
            device = self._stream.device
            with on_device(device):
                current = torch.accelerator.current_stream(device)
                current.wait_event(self._copied)
                if current != self._stream:
                    for tensor in self._tensors:
                        tensor.record_stream(current)
        return self._batch


class _DeviceWait(threading.local):
    """How long this thread has waited for a GPU to be done with batches before, in seconds."""

    seconds = 0.0


#: Of all transfers. A thread that is ahead of the GPU waits where it asks for a batch, but not for
#: data: `fastdata.profile` tells the two apart by this.
DEVICE_WAIT = _DeviceWait()

#: Seconds between two looks at an event. One that is waited for spins, which takes a core from
#: decoding: torch.Event's ``blocking`` does nothing (torch 2.13). Whoever waits is a batch ahead,
#: so half a millisecond is early enough.
_POLL = 0.0005


class _Slot:
    """What one batch needs on the host until it has been copied."""

    def __init__(self, device: torch.device) -> None:
        self.staging = Staging(pin=True)
        self.sources: list[torch.Tensor] = []
        self.copied = torch.Event(device)
        self.busy = False

    def release(self, wait: bool) -> None:
        """Lets go of the batch, if it has been copied."""
        if not self.busy:
            return
        if wait:
            begun = time.perf_counter()
            while not self.copied.query():
                time.sleep(_POLL)
            DEVICE_WAIT.seconds += time.perf_counter() - begun
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
    """Puts batches on a device.

    Args:
        device: An accelerator with its number, or the CPU, where what need not change stays.
        normalisation: What is done to uint8 images; None to leave them.
        channels_last: Whether images come in channels-last memory, else contiguous; None for as
            they are.
        slots: How many batches may be on their way at a time.
        copy: Whether tensors that are there already are copied, too.
    """

    def __init__(
        self,
        device: torch.device,
        normalisation: Normalisation | None,
        channels_last: bool | None,
        slots: int,
        copy: bool = False,
    ) -> None:
        self._device = device
        self._normalisation = normalisation
        self._format = _FORMATS[channels_last]
        self._always = copy
        self._constants: tuple[torch.Tensor, torch.Tensor] | None = None
        self._stream = copy_stream(device) if is_asynchronous(device) else None
        self._slots = [_Slot(device) for _ in range(slots)] if self._stream is not None else []
        self._next = 0

    def here(self) -> AbstractContextManager[None]:
        """Makes the device the current one, where that is to be: its events end here, too."""
        return nullcontext() if self._stream is None else on_device(self._device)

    def begin(self, batch: Any) -> Arrival:
        """Sends a batch on its way.

        Raises:
            UsageError: Images are to be normalised, and it has none of uint8.
        """
        # It may be taken when these are no longer as they are now.
        with torch.inference_mode(False), torch.no_grad(), self.here():
            return self._begin(batch)

    def _begin(self, batch: Any) -> Arrival:
        jobs: list[tuple[torch.Tensor, torch.Tensor]] = []
        images: list[torch.Tensor] = []

        def change(tensor: torch.Tensor) -> torch.Tensor:
            if is_image(tensor):
                images.append(tensor)
            if tensor.layout != torch.strided:
                return tensor.to(self._device)  # rare: at once, on the current stream
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
        """Memory for what becomes of a tensor; the tensor itself if nothing does."""
        dtype, layout = tensor.dtype, torch.preserve_format
        if is_image(tensor):
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
            # Copies that have begun read and write memory that is free from now on.
            stream.synchronize()
            slot.sources.clear()
            raise
        slot.busy = True
        return Arrival(moved, [out for _, out in jobs], consumer, slot.copied)

    def _copy(self, source: torch.Tensor, out: torch.Tensor, slot: _Slot) -> None:
        if source.device.type == "cpu":
            # A copy of what has gaps would go through pageable memory, and wait.
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
        """The last step, on the device: normalises images, or puts them into another layout."""
        if source.dtype == out.dtype:
            out.copy_(source)
            return
        assert self._normalisation is not None
        if self._constants is None:
            self._constants = self._normalisation.constants(self._device)
        normalise(source, self._constants, out)

    def close(self) -> None:
        """Waits for copies under way, and lets go of what they read."""
        with self.here():
            while self._slots:
                self._slots.pop().release(wait=True)


def _check_images(images: list[torch.Tensor]) -> None:
    if any(image.dtype == torch.uint8 for image in images):
        return
    found = f"images of {str(images[0].dtype).removeprefix('torch.')}" if images else "no images"
    raise UsageError(
        f"dtype=, mean= and std= are for uint8 images, N x 3 x H x W; the batch has {found}",
        "Leave these arguments out, or leave out of the transform what makes floats of images "
        "(ToTensor, ConvertImageDtype, Normalize).",
    )

"""Fixed device memory for all batches, which a replayed CUDA graph needs."""

from __future__ import annotations

from typing import Any

import torch

from fastdata.device.transfer import is_asynchronous, map_tensors, on_device
from fastdata.errors import UsageError

_HINT = (
    "Leave static out, or make all batches alike: drop_last=True in the loader, padding in its "
    "collate_fn."
)


class StaticMemory:
    """Memory that every batch is copied into; it has the shapes of the first batch.

    The copy runs on the current stream, after that stream's work on the previous batch. If
    another stream took the previous batch, the current one waits for it.
    """

    def __init__(self) -> None:
        self._homes: list[torch.Tensor] = []
        self._stream: torch.Stream | None = None

    def place(self, batch: Any) -> Any:
        """Copy a batch into the memory and return it; a smaller batch uses the first rows."""
        tensors: list[torch.Tensor] = []
        map_tensors(batch, tensors.append)
        for tensor in tensors:
            if tensor.layout != torch.strided:
                raise UsageError(
                    f"static=True: a batch has a tensor of layout {tensor.layout}", _HINT
                )
        with torch.inference_mode(False), torch.no_grad():
            if not self._homes:
                self._homes = [torch.empty_like(one, requires_grad=False) for one in tensors]
            if len(tensors) != len(self._homes):
                raise UsageError(
                    f"static=True: a batch has {len(tensors)} tensors, the first had "
                    f"{len(self._homes)}",
                    _HINT,
                )
            pairs = list(zip(tensors, self._homes, strict=True))
            places = [_part(home, tensor) for tensor, home in pairs]
            self._follow(self._homes)
            for tensor, place in zip(tensors, places, strict=True):
                place.copy_(tensor)
        found = iter(places)
        return map_tensors(batch, lambda _: next(found))

    def _follow(self, homes: list[torch.Tensor]) -> None:
        """Make the current stream wait for the stream of the previous batch."""
        there = next((home.device for home in homes if is_asynchronous(home.device)), None)
        if there is None:
            return
        with on_device(there):
            current = torch.accelerator.current_stream(there)
            if self._stream is not None and current != self._stream:
                current.wait_stream(self._stream)
                for home in homes:
                    home.record_stream(current)
            self._stream = current


def _part(home: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of the fixed memory that holds a later batch's tensor."""
    if tensor.shape == home.shape and tensor.dtype == home.dtype:
        return home
    alike = tensor.dim() == home.dim() > 0 and tensor.shape[1:] == home.shape[1:]
    if not alike or tensor.dtype != home.dtype or len(tensor) > len(home):
        found, first = (
            f"{tuple(one.shape)} of {str(one.dtype).removeprefix('torch.')}"
            for one in (tensor, home)
        )
        raise UsageError(f"static=True: a tensor is {found}, the first was {first}", _HINT)
    return home[: len(tensor)]

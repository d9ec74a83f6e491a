"""Every batch in the same memory of a device, as a CUDA graph needs that is replayed over it."""

from __future__ import annotations

from typing import Any

import torch

from fastdata.device.transfer import is_asynchronous, map_tensors, on_device
from fastdata.errors import UsageError

_HINT = (
    "Leave static out, or have all batches alike: drop_last=True in the loader, padding in its "
    "collate_fn."
)


class StaticMemory:
    """Memory that batches are copied into, one after the other; that of the first one's tensors.

    The copy runs on the current stream, so after whatever that stream was given to do with the
    batch before. A stream that the batch before was taken on is waited for.
    """

    def __init__(self) -> None:
        self._homes: list[torch.Tensor] = []
        self._stream: torch.Stream | None = None

    def place(self, batch: Any) -> Any:
        """The batch in that memory; one with fewer samples takes its first ones.

        Raises:
            UsageError: It is not as the first one was, or has no dense tensors.
        """
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
                    f"static=True: a batch has {len(tensors)} tensors, and the first had "
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
        """Has the current stream wait for the one of the batch before."""
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
    """The part of a first batch's memory for a tensor of a later one."""
    if tensor.shape == home.shape and tensor.dtype == home.dtype:
        return home
    alike = tensor.dim() == home.dim() > 0 and tensor.shape[1:] == home.shape[1:]
    if not alike or tensor.dtype != home.dtype or len(tensor) > len(home):
        found, first = (
            f"{tuple(one.shape)} of {str(one.dtype).removeprefix('torch.')}"
            for one in (tensor, home)
        )
        raise UsageError(f"static=True: a tensor is {found}, and the first was {first}", _HINT)
    return home[: len(tensor)]

"""How fast finished batches are copied: in memory, and to a GPU."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import numpy as np

#: Bytes that are copied at a time: more than processors' caches hold.
_BYTES = 128 << 20


def memory_copy(batch_bytes: int, seconds: float) -> float:
    """Batches a second that one thread copies from memory to memory.

    Args:
        batch_bytes: Bytes of a batch.
        seconds: How long to measure.
    """
    copies = max(1, _BYTES // max(batch_bytes, 1))
    source = np.ones(copies * batch_bytes, np.uint8)
    target = np.zeros_like(source)  # its pages are there before it is timed
    np.copyto(target, source)
    done = 0
    begun = time.perf_counter()
    while not done or time.perf_counter() < begun + seconds:
        np.copyto(target, source)
        done += copies
    return done / (time.perf_counter() - begun)


def host_to_device(batch_bytes: int, seconds: float) -> tuple[float | None, str]:
    """Batches a second that go from page-locked memory to the current GPU.

    Returns:
        The rate; None and why, where there is no GPU or no torch.
    """
    torch = _torch()
    if torch is None:
        return None, "torch is not installed"
    if not torch.cuda.is_available():
        return None, "no CUDA device"
    source = torch.ones(batch_bytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(batch_bytes, dtype=torch.uint8, device="cuda")
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    done = 0
    begun = time.perf_counter()
    while not done or time.perf_counter() < begun + seconds:
        for _ in range(16):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        done += 16
    return done / (time.perf_counter() - begun), torch.cuda.get_device_name()


def gpus() -> int:
    """CUDA devices of this machine; 0 without torch."""
    torch = _torch()
    return 0 if torch is None or not torch.cuda.is_available() else torch.cuda.device_count()


def _torch() -> Any:
    """The module; None where it is not installed."""
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None

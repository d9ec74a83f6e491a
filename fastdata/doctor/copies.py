"""Rate of copying finished batches to a GPU."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any


def host_to_device(batch_bytes: int, seconds: float) -> tuple[float | None, str]:
    """Measure batches a second from page-locked memory to the current accelerator.

    Returns:
        The rate; None and why, where there is no GPU or no torch.
    """
    torch = import_torch()
    if torch is None:
        return None, "torch is not installed"
    if not torch.accelerator.is_available():
        return None, "no accelerator"
    device = torch.accelerator.current_accelerator()
    source = torch.ones(batch_bytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(batch_bytes, dtype=torch.uint8, device=device)
    target.copy_(source, non_blocking=True)
    torch.accelerator.synchronize()
    done = 0
    begun = time.perf_counter()
    while not done or time.perf_counter() < begun + seconds:
        for _ in range(16):
            target.copy_(source, non_blocking=True)
        torch.accelerator.synchronize()
        done += 16
    return done / (time.perf_counter() - begun), torch.get_device_module(device).get_device_name()


def gpus() -> int:
    """Return the number of accelerators; 0 without torch."""
    torch = import_torch()
    return 0 if torch is None else int(torch.accelerator.device_count())


def import_torch() -> Any:
    """Import torch; return None if it is not installed."""
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None

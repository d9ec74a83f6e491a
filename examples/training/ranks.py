"""This process among the others of its job, as torchrun has told it, and its device."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from fastdata.errors import UsageError


@dataclass(frozen=True)
class Ranks:
    """Who this process is.

    Attributes:
        rank: Of all processes of the job, on all nodes.
        world_size: Their number.
        local_rank: On this node.
        device: Where it trains.
        distributed: Whether there is a process group.
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    distributed: bool

    @property
    def first(self) -> bool:
        """Whether it is the one that writes and prints."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over all ranks, in place."""
        if self.distributed:
            dist.all_reduce(values)
        return values

    def share(self, tensors: Iterable[torch.Tensor]) -> None:
        """Gives every rank the first one's values, in place."""
        if self.distributed:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def gather(self, value: Any) -> list[Any]:
        """What each rank has, on every rank."""
        if not self.distributed:
            return [value]
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, value)
        return found


@contextmanager
def join(wanted: str) -> Iterator[Ranks]:
    """Joins the job: NCCL between GPUs, gloo between CPUs.

    Args:
        wanted: "auto", "cpu" or "cuda".

    Raises:
        UsageError: There is no GPU for this process.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cuda" or (wanted == "auto" and gpus):
        if local_rank >= gpus:
            raise UsageError(
                f"process {local_rank} of this machine has no GPU: there are {gpus}",
                "Start no more processes than GPUs (--nproc-per-node), or give --device cpu.",
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if "WORLD_SIZE" not in os.environ:
        yield Ranks(0, 1, 0, device, False)
        return
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), local_rank, device, True)
    finally:
        dist.destroy_process_group()

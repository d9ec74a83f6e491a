"""How a remote dataset is read: how much at once, how far ahead, how patiently."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from fastdata.errors import UsageError


@dataclass(frozen=True)
class RemoteOptions:
    """How a remote dataset is read; the ``remote`` of `fastdata.ImageDataset`.

    Attributes:
        concurrency: Most requests under way at once, in one process.
        merge_gap: Neighbours are fetched by one request where at most so many bytes lie between
            them, and where what lies between is at most 1/32 of what is needed.
        max_request: Most bytes that neighbours are merged to. A single sample may be larger.
        memory: Most bytes that are fetched ahead and held until their batch begins.
            Half of it is how far neighbours are looked for.
        piece_bytes: Size of the pieces that a cache folder holds.
        timeout: Seconds after which a request that gives no whole answer is given up and made
            again; a second is added for each 256 KiB that were asked for.
        tries: How often a request is made in all before it is an error. Of answers that were cut,
            two count as one.
        patience: Seconds that requests of a pass may fail with no answer in between; each answer
            gives one back. Then the pass ends with an OutageError, whatever ``on_error`` says.
        progress: Whether the filling of a cache folder is reported on standard error.
    """

    concurrency: int = 32
    merge_gap: int = 4096
    max_request: int = 512 << 10
    memory: int = 512 << 20
    piece_bytes: int = 8 << 20
    timeout: float = 30.0
    tries: int = 6
    patience: float = 300.0
    progress: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name == "progress":
                continue
            value = getattr(self, field.name)
            seconds = field.name in ("timeout", "patience")
            kinds = (int, float) if seconds else (int,)
            least = 0 if field.name == "merge_gap" else 1
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise UsageError(f"{field.name}={value!r}", "Give a number.")
            if not value >= least and not (seconds and value > 0):
                raise UsageError(f"{field.name}={value!r}", f"Give {least} or more.")


class RemoteStats(NamedTuple):
    """What was read remotely since the iteration began.

    Attributes:
        requests: Byte ranges asked for, tried again ones included.
        bytes_requested: Their lengths together.
        bytes_needed: Bytes of the samples that were asked for.
        retries: Requests that failed and were made again.
        refetched: Samples whose checksum was wrong, so that they were fetched again.
        memory_peak: Most bytes that were held or under way at once.
        cache_reads: Pieces of the cache folder that were there when they were needed.
        cache_fills: Pieces that this process has put there.
        cache_bytes: What the pieces in the folder, of all datasets, came to when last counted.
    """

    requests: int = 0
    bytes_requested: int = 0
    bytes_needed: int = 0
    retries: int = 0
    refetched: int = 0
    memory_peak: int = 0
    cache_reads: int = 0
    cache_fills: int = 0
    cache_bytes: int = 0

"""Options and statistics of reading a remote dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from fastdata.errors import UsageError


@dataclass(frozen=True)
class RemoteOptions:
    """Options of reading a remote dataset; the ``remote`` of `fastdata.ImageDataset`.

    Attributes:
        concurrency: Most requests under way at once, in one process.
        merge_gap: Most bytes between two samples that share a request. All gaps of a request
            together are at most 64 KiB, or 1/32 of its samples' bytes.
        max_request: Most bytes of a request for several samples. A single sample may be larger.
        memory: Most bytes requested or held at once; several sources of a loader share them.
            Samples of one request are held until the last of them has its batch. Requests are made
            for the next half of it; samples to merge are sought in all of it. Of row groups that a
            library decodes: most bytes of these, unless three have more.
        piece_bytes: Size of the pieces in a cache folder.
        timeout: Seconds after which an incomplete request is cancelled and retried; each
            256 KiB requested add a second.
        tries: Most tries of a request before it is an error. Two truncated responses count
            as one try.
        patience: Seconds for which a pass's requests may fail without a response between them;
            each response restores one second. Then the pass ends with an OutageError, whatever
            ``on_error`` is.
    """

    concurrency: int = 32
    merge_gap: int = 4096
    max_request: int = 4 << 20
    memory: int = 1 << 30
    piece_bytes: int = 8 << 20
    timeout: float = 30.0
    tries: int = 6
    patience: float = 300.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            seconds = field.name in ("timeout", "patience")
            kinds = (int, float) if seconds else (int,)
            least = 0 if field.name == "merge_gap" else 1
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise UsageError(f"{field.name}={value!r}", "Give a number.")
            if not value >= least and not (seconds and value > 0):
                raise UsageError(f"{field.name}={value!r}", f"Give {least} or more.")


class RemoteStats(NamedTuple):
    """Statistics of remote reads since the iteration began.

    Attributes:
        requests: Byte ranges requested, retries included.
        bytes_requested: Sum of their lengths.
        bytes_needed: Bytes of the samples that batches needed.
        retries: Requests that failed and were retried.
        refetched: Samples fetched again because their checksum was wrong.
        memory_peak: Most bytes held or under way at once; decoded row groups included.
        cache_reads: Pieces read from the cache folder; values taken from row groups in memory.
        cache_fills: Pieces that this process added to the folder; row groups decoded.
        cache_bytes: Bytes of all datasets' pieces in the folder, when last counted; those of row
            groups in memory.
        client: Name of the client that requests ranges: http (fastdata's own) or fsspec. Several
            are joined by commas.
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
    client: str = ""

    @classmethod
    def total(cls, parts: Sequence[RemoteStats]) -> RemoteStats:
        """Return the sums of the statistics of several sources."""
        sums = {name: sum(getattr(one, name) for one in parts) for name in cls._fields[:-1]}
        return cls(**sums, client=", ".join(sorted({one.client for one in parts} - {""})))

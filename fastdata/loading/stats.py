"""What a loader has done, and where its time went."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from fastdata.decode.codecs import PILLOW
from fastdata.remote.options import RemoteStats
from fastdata.remote.prefetch import RemotePass


class Stats(NamedTuple):
    """What a loader has done since its iteration began; see `fastdata.DataLoader.stats`.

    Attributes:
        samples: Samples delivered.
        batches: Batches delivered.
        seconds: Wall time.
        images_per_second: Samples by wall time.
        wait_seconds: What the consumer has waited for batches.
        read_share: Part of the decode threads' time spent on reading and checking bytes, 0 to 1.
        decode_share: Part spent on decoding.
        queue_share: Part spent on waiting for work: the consumer is what is slow.
        by_pillow: Samples that Pillow decoded, as neither the core nor a codec does.
        kinds: Samples decoded, by kind and then by what decoded them: ``{"jpeg": {"native": 900},
            "webp": {"libwebp": 100}}``. Kinds are named as in the index, ways as
            `fastdata.decode.codecs.Encoded.way` says.
        bad_seek_points: Samples whose seek points were not those of their image: decoded without.
        with_seek_points: Samples whose seek points were there.
        seek_points_built: Seek tables built for files that were not packed.
        skipped: Samples left out by ``on_error="skip"``, or zeroed by ``"zero"``.
        remote: What was asked of a bucket or server; None for a local dataset.
        bytes_read: Bytes of samples and their seek points that decode threads have read from files.
            Of a large JPEG that is only what its crop needs.
    """

    samples: int
    batches: int
    seconds: float
    images_per_second: float
    wait_seconds: float
    read_share: float
    decode_share: float
    queue_share: float
    by_pillow: int
    kinds: dict[str, dict[str, int]]
    bad_seek_points: int
    with_seek_points: int
    seek_points_built: int
    skipped: int
    remote: RemoteStats | None = None
    bytes_read: int = 0


@dataclass
class Counters:
    """Counted by the consumer's thread alone: a few additions a batch."""

    threads: int
    remote: RemotePass | None = None
    started: float = field(default_factory=time.perf_counter)
    ended: float | None = None
    samples: int = 0
    batches: int = 0
    wait: float = 0.0
    read: float = 0.0
    decode: float = 0.0
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)
    bad_seek_points: int = 0
    seekable: int = 0
    built: int = 0
    skipped: int = 0
    bytes_read: int = 0

    def add_work(self, read: float, decode: float, bytes_read: int = 0) -> None:
        """Adds seconds of the decode threads, and what they have read."""
        self.read += read
        self.decode += decode
        self.bytes_read += bytes_read

    def count(self, kind: str, way: str, samples: int = 1) -> None:
        """Counts samples of a kind that were decoded in one way."""
        ways = self.kinds.setdefault(kind, {})
        ways[way] = ways.get(way, 0) + samples

    def stats(self) -> Stats:
        """As `Stats`."""
        seconds = (time.perf_counter() if self.ended is None else self.ended) - self.started
        available = max(seconds * self.threads, 1e-9)
        busy = min(self.read + self.decode, available)
        return Stats(
            samples=self.samples,
            batches=self.batches,
            seconds=seconds,
            images_per_second=self.samples / max(seconds, 1e-9),
            wait_seconds=self.wait,
            read_share=min(self.read / available, 1.0),
            decode_share=min(self.decode / available, 1.0),
            queue_share=1 - busy / available,
            by_pillow=sum(ways.get(PILLOW, 0) for ways in self.kinds.values()),
            kinds={kind: dict(ways) for kind, ways in sorted(self.kinds.items())},
            bad_seek_points=self.bad_seek_points,
            with_seek_points=self.seekable,
            seek_points_built=self.built,
            skipped=self.skipped,
            remote=None if self.remote is None else self.remote.stats(),
            bytes_read=self.bytes_read,
        )

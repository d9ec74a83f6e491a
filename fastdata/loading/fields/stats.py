"""Statistics of a loader: counts, rates, and the use of its time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fastdata.decode.decoders import PILLOW
from fastdata.remote.options import RemoteStats

if TYPE_CHECKING:
    from fastdata.remote.prefetch import RemotePass


class Stats(NamedTuple):
    """Statistics since a loader's iteration began; see `fastdata.DataLoader.stats`.

    Attributes:
        samples: Samples delivered.
        batches: Batches delivered.
        seconds: Wall time.
        images_per_second: Samples per second of wall time.
        wait_seconds: Seconds for which the consumer waited for batches.
        read_share: Share of the decode threads' time spent reading and checking bytes, 0 to 1.
        decode_share: Share of it spent decoding.
        queue_share: Share of it spent waiting for work, because the consumer is slower.
        by_pillow: Samples that Pillow decoded, because the core does not.
        kinds: Samples decoded, by kind and then by decoder: ``{"jpeg": {"native": 900},
            "png": {"native": 100}}``. Kinds have the index's names, decoders those of
            `fastdata.decode.codecs.Encoded.decoder`.
        bad_seek_points: Samples decoded without their seek points, which belong to another image.
        with_seek_points: Samples that had seek points.
        seek_points_built: Seek tables built for unpacked files.
        bad_samples: Bad samples, which ``on_error`` replaced, dropped or zeroed.
        remote: Statistics of remote reads; None for a local dataset.
        bytes_read: Bytes of samples and their seek points that decode threads read from files.
            For a large JPEG, only the bytes that its crop needs.
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
    bad_samples: int
    remote: RemoteStats | None = None
    bytes_read: int = 0


@dataclass
class Counters:
    """Counters of a loader, updated by the consumer's thread alone: a few additions a batch."""

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
    bad_samples: int = 0
    bytes_read: int = 0

    def add_work(self, read: float, decode: float, bytes_read: int = 0) -> None:
        """Add seconds of the decode threads, and the bytes that they read."""
        self.read += read
        self.decode += decode
        self.bytes_read += bytes_read

    def count(self, kind: str, decoder: str, samples: int = 1) -> None:
        """Count samples of a kind that one decoder decoded."""
        decoders = self.kinds.setdefault(kind, {})
        decoders[decoder] = decoders.get(decoder, 0) + samples

    def stats(self) -> Stats:
        """Return the counts and their shares of time."""
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
            by_pillow=sum(decoders.get(PILLOW, 0) for decoders in self.kinds.values()),
            kinds={kind: dict(decoders) for kind, decoders in sorted(self.kinds.items())},
            bad_seek_points=self.bad_seek_points,
            with_seek_points=self.seekable,
            seek_points_built=self.built,
            bad_samples=self.bad_samples,
            remote=None if self.remote is None else self.remote.stats(),
            bytes_read=self.bytes_read,
        )

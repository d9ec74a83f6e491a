"""Findings of a diagnosis: plain values, from which advice is computed."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote


@dataclass(frozen=True)
class DatasetFacts:
    """Facts about a dataset.

    Attributes:
        path: The folder that the user named.
        location: The folder to read: a staged copy, if there is one.
        container: The container; ``files`` for a tree of images that was never converted.
        root: The folder of a tree's images; None if they are in a container.
        convert: The command that packs it.
        samples: Number of samples.
        bytes: Bytes of all images; of ``files``, estimated from some.
        stage_bytes: Bytes of a staged copy.
        in_memory: Whether its file system is in memory.
        seekable_share: Share of the sampled images that have seek points, or need none.
        other_share: Share of images other than JPEGs that the core decodes.
        other_kinds: Kinds and decoders of these images: ``png (native)``, ``webp (Pillow)``, …,
            the most frequent first.
        rewritable_share: Share of JPEGs that the core decodes, but that are not baseline.
        sampled: Number of images that were measured.
        damaged: Number of those that cannot be read or decoded.
    """

    path: str
    location: str
    container: str
    root: str | None
    convert: str
    samples: int
    bytes: int
    stage_bytes: int
    in_memory: bool
    seekable_share: float = 1.0
    other_share: float = 0.0
    other_kinds: tuple[str, ...] = ()
    rewritable_share: float = 0.0
    sampled: int = 0
    damaged: int = 0

    @property
    def checker(self) -> str:
        """The command that names damaged images."""
        return (self.container == "files" and self.convert) or f"fastdata verify {quote(self.path)}"


@dataclass(frozen=True)
class Machine:
    """Resources for loading.

    Attributes:
        cpus: CPUs that this process may use, by affinity and cgroup.
        ranks: Training processes on this machine, one a GPU.
        rank_cpus: CPUs of each rank: its share, or those that it is bound to.
        threads: Measured decode threads: the loader's ``num_workers``, at least 1.
        memory: Available bytes of memory, the page cache's included.
        stage_place: Default place of ``fastdata stage``.
        stage_room: Bytes that fit there.
    """

    cpus: int
    ranks: int
    rank_cpus: int
    threads: int
    memory: int
    stage_place: str
    stage_room: int


@dataclass(frozen=True)
class Rates:
    """Images a second of each stage, for one rank; None if not measured.

    Attributes:
        storage_warm: Reads from the page cache, on `Machine.threads`, checksums included.
        decode: Decoding, the transform and making batches, on the same threads.
        storage_cold: Reads from storage in random order, on as many threads.
        step: The training step, by its given time.
    """

    storage_warm: float
    decode: float
    storage_cold: float | None = None
    step: float | None = None


@dataclass(frozen=True)
class Findings:
    """All measurements; ``cold_note`` says why there is no rate of cold reads, if so."""

    data: DatasetFacts
    machine: Machine
    rates: Rates
    cold_note: str = ""
    batch_size: int = 64
    transform: str = ""

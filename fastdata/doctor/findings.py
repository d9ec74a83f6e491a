"""Findings of a diagnosis: plain values, from which advice is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Data:
    """Facts about a dataset.

    Attributes:
        path: The folder that was asked for.
        location: The folder that is really read: a staged copy's, where there is one.
        container: ``lmdb``, ``parquet``, ``shards`` or ``folder``; ``files`` for a tree of images
            that was never converted.
        root: Where a tree's images are; None where they are in a container.
        convert: The command that packs its source, as far as the manifest tells.
        samples: Their number; estimated where ``estimated``.
        bytes: Of all images; estimated where ``estimated``.
        estimated: Whether the tree was too large to be listed whole.
        stage_bytes: What a staged copy would take.
        in_memory: Whether it is read from a file system in memory.
        cached_share: Part of it that the page cache holds, 0 to 1; None if not known.
        cached_how: How that was found, or why it was not.
        seekable_share: Part of the sampled images that have seek points, or can have none, 0 to 1.
        pillow_share: Part that are not JPEGs which the core decodes, 0 to 1: the codec table's, or
            Pillow's.
        pillow_kinds: What these are: ``png``, ``webp``, …, the most frequent first.
        rewritable_share: Part that is progressive or arithmetic-coded JPEGs, which have no seek
            points, 0 to 1.
        learnt_share: Part of a tree whose seek points the loader learns in its first epoch.
        sampled: Images that were measured.
        damaged: How many more could not be read or decoded.
        damage: What is wrong with the first of those.
        left_out: Files of a tree without an image's suffix, of those that were listed, by suffix.
    """

    path: str
    location: str
    container: str
    root: str | None
    convert: str
    samples: int
    bytes: int
    estimated: bool
    stage_bytes: int
    in_memory: bool
    cached_share: float | None = None
    cached_how: str = ""
    seekable_share: float = 1.0
    pillow_share: float = 0.0
    pillow_kinds: tuple[str, ...] = ()
    rewritable_share: float = 0.0
    learnt_share: float = 0.0
    sampled: int = 0
    damaged: int = 0
    damage: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """Resources for loading.

    Attributes:
        cpus: CPUs that this process may use: its affinity, its cgroup's quota.
        ranks: Training processes on this machine, one a GPU.
        rank_cpus: CPUs for each: its part of those that they share, or those it is bound to.
        threads: Decode threads that were measured: the loader's ``num_workers``, at least 1.
        memory: Bytes of memory that can be had, also by the page cache.
        stage_place: Where ``fastdata stage`` puts copies.
        stage_room: Bytes that fit there.
        cpu_lost: The part of the decode threads' time, 0 to 1, in which others had the CPUs.
    """

    cpus: int
    ranks: int
    rank_cpus: int
    threads: int
    memory: int
    stage_place: str
    stage_room: int
    cpu_lost: float = 0.0


@dataclass(frozen=True)
class Rates:
    """Images a second of each stage, for one rank; None if not measured.

    Attributes:
        storage_cold: Reads in random order of what is not in memory, on `Machine.threads`.
        storage_warm: Reads of what is in the page cache, checksums included.
        read_cpu_s: CPU seconds that reading one image takes.
        decode_core: Decoding (crop, resize, flip) on one core.
        decode: Decoding on `Machine.threads`.
        decode_all: Decoding on all usable CPUs.
        host_to_device: Copying finished batches from page-locked memory to the GPU.
        step: What the training step takes; from its time.
        loader: The loader as a whole, of images that are in the page cache.
    """

    storage_cold: float | None = None
    storage_warm: float | None = None
    read_cpu_s: float = 0.0
    decode_core: float | None = None
    decode: float | None = None
    decode_all: float | None = None
    host_to_device: float | None = None
    step: float | None = None
    loader: float | None = None


@dataclass(frozen=True)
class Alternatives:
    """Measured rates of alternatives, in images/s; None if already in use.

    Attributes:
        storage_in_order: Cold reads of neighbours: ``order="quasi-random"``.
        decode_seekable: `Rates.decode`, had all JPEGs seek points.
        decode_scaled: `Rates.decode` with ``ImageDataset(dct_scaling=True)``.
    """

    storage_in_order: float | None = None
    decode_seekable: float | None = None
    decode_scaled: float | None = None


@dataclass(frozen=True)
class Findings:
    """All measurements.

    Attributes:
        data: The dataset.
        machine: The machine.
        rates: The stages.
        alternatives: What could be done instead.
        notes: By stage, what is to be known of its rate.
        image_bytes: Mean bytes of one encoded image.
        batch_bytes: Bytes of one decoded image in a batch.
        batch_size: Images in a batch.
        transform: What is done to the images, in words.
        seconds: What measuring took.
        import_seconds: What importing torch took before.
    """

    data: Data
    machine: Machine
    rates: Rates
    alternatives: Alternatives = field(default_factory=Alternatives)
    notes: dict[str, str] = field(default_factory=dict)
    image_bytes: float = 0.0
    batch_bytes: int = 0
    batch_size: int = 64
    transform: str = ""
    seconds: float = 0.0
    import_seconds: float = 0.0


class Speed(NamedTuple):
    """Speed of some threads.

    Attributes:
        images_per_second: As measured.
        lost: The share of their CPU time, 0 to 1, that other processes or virtual machines took.
    """

    images_per_second: float
    lost: float

    def undisturbed(self, most: float) -> float:
        """Return the images/s without the others.

        The correction is an estimate; CPU time bounds it.

        Args:
            most: What one core decodes by its CPU time, times the cores in use.
        """
        alone = self.images_per_second / max(1 - self.lost, 1e-9)
        return max(self.images_per_second, min(alone, most))

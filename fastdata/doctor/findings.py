"""Findings of a diagnosis: plain values, from which advice is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Data:
    """Facts about a dataset.

    Attributes:
        path: The given folder.
        location: The folder to read: a staged copy, if there is one.
        container: ``lmdb``, ``parquet``, ``shards`` or ``folder``; ``files`` for a tree of images
            that was never converted.
        root: The folder of a tree's images; None if they are in a container.
        convert: The command that packs its source, as far as the manifest shows.
        samples: Number of samples; estimated if ``estimated``.
        bytes: Bytes of all images; estimated if ``estimated``.
        estimated: Whether the tree was too large to list it whole.
        stage_bytes: Bytes of a staged copy.
        in_memory: Whether its file system is in memory.
        cached_share: Share in the page cache, 0 to 1; None if unknown.
        cached_how: How that was measured, or why it was not.
        seekable_share: Share of the sampled images that have seek points, or can have none, 0 to 1.
        pillow_share: Share that the codec table or Pillow decodes, not the core's JPEG decoder.
        pillow_kinds: Kinds of these images: ``png``, ``webp``, …, the most frequent first.
        rewritable_share: Share of progressive JPEGs, which have no seek points.
        learnt_share: Share of a tree whose seek points the loader learns in its first epoch.
        sampled: Number of images that were measured.
        damaged: Number of further images that cannot be read or decoded.
        damage: The problem of the first of those.
        left_out: Numbers of listed files that are no images, by suffix.
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
        cpus: CPUs that this process may use, by affinity and cgroup.
        ranks: Training processes on this machine, one a GPU.
        rank_cpus: CPUs of each rank: its share, or those that it is bound to.
        threads: Measured decode threads: the loader's ``num_workers``, at least 1.
        memory: Available bytes of memory, the page cache's included.
        stage_place: Default place of ``fastdata stage``.
        stage_room: Bytes that fit there.
        cpu_lost: Share of the decode threads' time in which other processes had the CPUs, 0 to 1.
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
        storage_cold: Reads from storage in random order, on `Machine.threads`.
        storage_warm: Reads from the page cache, checksums included.
        read_cpu_s: CPU seconds of reading one image.
        decode_core: Decoding (crop, resize, flip) on one core.
        decode: Decoding on `Machine.threads`.
        decode_all: Decoding on all usable CPUs.
        host_to_device: Copying finished batches from page-locked memory to the GPU.
        step: The training step, by its given time.
        loader: The loader as a whole, with images in the page cache.
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
    """

    storage_in_order: float | None = None
    decode_seekable: float | None = None


@dataclass(frozen=True)
class Findings:
    """All measurements.

    Attributes:
        data: The dataset.
        machine: The machine.
        rates: The stages.
        alternatives: Rates of alternatives.
        notes: Remark on the rate of each stage.
        image_bytes: Mean bytes of one encoded image.
        batch_bytes: Bytes of one decoded image in a batch.
        batch_size: Images in a batch.
        transform: Description of the transform.
        seconds: Seconds of measuring.
        import_seconds: Seconds of importing torch before.
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
            most: Images/s of one core by its CPU time, times the cores in use.
        """
        alone = self.images_per_second / max(1 - self.lost, 1e-9)
        return max(self.images_per_second, min(alone, most))

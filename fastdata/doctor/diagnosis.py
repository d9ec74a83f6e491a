"""`diagnose`: the loader's rates of reading and decoding one dataset on this machine."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastdata.dataset import ImageDataset
from fastdata.decode.decoders import NATIVE
from fastdata.doctor import page_cache
from fastdata.doctor.advice import Diagnosis, judge
from fastdata.doctor.findings import DatasetFacts, Findings, Machine, Rates
from fastdata.doctor.opening import Opened, extents, open_any
from fastdata.errors import DataError, FastdataError, UsageError
from fastdata.machine import available_memory, cpus_for_this_rank, local_ranks, usable_cpus
from fastdata.staging.staged import default_place
from fastdata.storage.cache import room
from fastdata.storage.source import Source
from fastdata.text import human_count
from fastdata.transforms.containers import Compose
from fastdata.transforms.crops import RandomHorizontalFlip
from fastdata.transforms.resizes import RandomResizedCrop

if TYPE_CHECKING:
    from fastdata.loading.fields.stats import Stats

#: Most threads that read at the same time.
_READERS = 128
#: Most samples to read: more do not make rates more precise.
_SAMPLES = 2_048
#: Share of images from which on the core's time for them counts as the time for all.
_MOST = 0.95
#: Images that are read once more where the core does not time it.
_ALONE = 64
#: Largest share of dropped pages that may remain in memory, for a read to count as cold.
_LEFT = 0.1


def training_transform(size: int = 224) -> Compose:
    """Return the default transform: a random crop of ``size`` pixels, and a flip."""
    return Compose((RandomResizedCrop(size), RandomHorizontalFlip()))


def diagnose(
    dataset: str | os.PathLike[str] | ImageDataset,
    *,
    transform: Any = None,
    step_ms: float | None = None,
    batch_size: int | None = None,
    num_workers: int | None = None,
    ranks: int | None = None,
    seconds: float = 10.0,
) -> Diagnosis:
    """Measure reading and decoding with the loader, and compare them with a training step.

    Samples are drawn at random, always the same. They alone are dropped from the page cache, to
    be read cold.

    Args:
        dataset: An `ImageDataset`, or the folder of a packed dataset or of images.
        transform: The transform for a folder; None for `training_transform`. An `ImageDataset` has
            its own.
        step_ms: Milliseconds of a training step on one GPU; None if unknown.
        batch_size: Images in a batch, on one GPU; None for 64.
        num_workers: The script's argument of the loader; None for the recommended number.
        ranks: Training processes on this machine; None for as many as torchrun or srun says, or the
            number of GPUs, or 1.
        seconds: About how long to measure.

    Raises:
        UsageError: An argument is out of range, the transform cannot be measured, or torch is not
            installed.
        DatasetError: There is no dataset, and no image.
        DataError: No sample can be read and decoded.
    """
    _check(step_ms, batch_size, num_workers, ranks, seconds)
    try:
        from fastdata.loading.loader import DataLoader
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        hint = "Install it: pip install 'fastdata-torch[torch]'."
        raise UsageError("a diagnosis needs torch, as the loader does", hint) from None
    if isinstance(dataset, ImageDataset) and transform is not None:
        raise UsageError("a transform beside an ImageDataset, which has its own", "Give one.")
    opened = open_any(dataset, training_transform() if transform is None else transform)
    machine, batch_size = _machine(num_workers, ranks), batch_size or 64

    def loader(sampler: Any, threads: int) -> Any:
        return DataLoader(
            opened.dataset, batch_size, sampler=sampler, num_workers=threads, on_error="zero"
        )

    count = len(opened.dataset)
    samples = np.random.default_rng(0).choice(count, min(count, _SAMPLES), replace=False)
    note = _try_to_drop(opened, samples)
    # All ranks read from it at the same time, and each has its part.
    readers = min(machine.threads * machine.ranks, _READERS)
    first = _run(loader(samples.tolist(), readers), seconds * 0.4)
    if first.bad_samples == first.samples:
        raise DataError(
            f"{opened.data.location}: none of {human_count(first.samples, 'sample')} can be read "
            "and decoded",
            f"See what is damaged with {opened.data.checker}.",
        )
    again = loader(_endless(samples[: first.samples]), machine.threads)
    _run(again, seconds * 0.3, first.samples + batch_size)  # a tree's seek points are learnt
    warm = _run(again, seconds * 0.3)
    cold = first.samples / (_read_share(first) * first.seconds + 1e-6) / machine.ranks
    reads = warm.samples / (_read_share(warm) * warm.seconds + 1e-6)
    if warm.remote is None and not _is_timed(warm):
        note = note or "only reads of JPEGs are timed"
        reads = _read_alone(opened.dataset.source, samples) * machine.threads
    findings = Findings(
        data=_described(opened, samples, first),
        machine=machine,
        rates=Rates(
            storage_cold=None if note else cold,
            storage_warm=reads,
            decode=warm.samples / (_decode_share(warm) * warm.seconds + 1e-6),
            step=None if step_ms is None else batch_size / (step_ms / 1000),
        ),
        cold_note=note,
        batch_size=batch_size,
        transform=repr(opened.dataset.transform),
    )
    return Diagnosis(findings, judge(findings))


def _run(loader: Any, seconds: float, samples: float = np.inf) -> Stats:
    """Iterate a loader until the time is over, or so many samples came; return its statistics."""
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report counts damaged samples
        for _ in loader:
            stats: Stats = loader.stats()  # later it would count what was prefetched
            if stats.samples >= samples or time.perf_counter() - begun > seconds:
                break
    return stats


def _read_share(stats: Stats) -> float:
    """Return the share of the time for reading; rows of tables are read while none is decoded."""
    return stats.read_share if stats.remote is None else 1 - stats.decode_share


def _decode_share(stats: Stats) -> float:
    """Return the share of the threads' time for decoding, of which the core counts JPEGs' alone."""
    return stats.decode_share if _is_timed(stats) else 1 - stats.read_share


def _is_timed(stats: Stats) -> bool:
    """Return whether the core has read nearly all images, and timed that."""
    return sum(_by_core(stats).values()) + stats.bad_samples >= _MOST * stats.samples


def _read_alone(source: Source, samples: npt.NDArray[np.int64]) -> float:
    """Return images/s that one thread reads, of those that the core does not time."""
    begun, rows = time.perf_counter(), samples[:_ALONE].tolist()
    for row in rows:
        with suppress(FastdataError):
            source.encoded(row)
    return len(rows) / (time.perf_counter() - begun)


def _by_core(stats: Stats) -> dict[str, int]:
    """Return how many images of each kind the core has read and decoded itself."""
    kinds = stats.kinds.items()
    return {kind: by.get(NATIVE, 0) for kind, by in kinds if kind == "raw" or kind[:4] == "jpeg"}


def _endless(samples: npt.NDArray[np.int64]) -> Iterator[int]:
    """Yield samples in random order, endlessly."""
    generator = np.random.default_rng(0)
    while True:
        yield from generator.permutation(samples).tolist()


def _try_to_drop(opened: Opened, samples: npt.NDArray[np.int64]) -> str:
    """Drop samples from the page cache; return the reason if that fails, else ""."""
    if opened.data.in_memory:
        return "in memory already"
    try:
        parts = extents(opened.dataset, samples)
        page_cache.drop(parts)
        left = page_cache.resident_share(parts[:256])
    except OSError as error:
        return f"the page cache could not be dropped: {error.strerror or error}"
    if left > _LEFT:
        return (
            f"the kernel kept {left:.0%} in its page cache: another process may have the "
            "files mapped, or they are not yet on the disk"
        )
    return ""


def _described(opened: Opened, samples: npt.NDArray[np.int64], stats: Stats) -> DatasetFacts:
    """Return the facts about a dataset, with those that the loader's statistics show."""
    jpegs, others = _by_core(stats), Counter[str]()
    for kind, decoders in stats.kinds.items():
        for decoder, count in decoders.items():
            if decoder != NATIVE or kind not in jpegs:
                others[f"{kind} ({decoder})"] += count
    decoded = max(sum(jpegs.values()) + others.total(), 1)
    seekable = 1.0
    if opened.data.container != "files":
        images = opened.dataset.source.gather(samples).blobs["image"].extents
        lacking = jpegs.get("jpeg", 0) / decoded - np.count_nonzero(images.seekable) / len(samples)
        seekable -= max(lacking, 0.0)
    return replace(
        opened.data,
        seekable_share=seekable,
        other_share=others.total() / decoded,
        other_kinds=tuple(kind for kind, _ in others.most_common()),
        rewritable_share=jpegs.get("jpeg-progressive", 0) / decoded,
        sampled=stats.samples,
        damaged=stats.bad_samples,
    )


def _check(
    step_ms: float | None,
    batch_size: int | None,
    num_workers: int | None,
    ranks: int | None,
    seconds: float,
) -> None:
    if step_ms is not None and not step_ms > 0:
        raise UsageError(f"step_ms={step_ms}", "Give the milliseconds that a step takes.")
    if step_ms is not None and batch_size is None:
        raise UsageError("a step's time without its batch size", "Give both.")
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("num_workers", num_workers, 0),
        ("ranks", ranks, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"{name}={value}", f"Give {least} or more.")
    if not 0 < seconds < 3600:
        raise UsageError(f"seconds={seconds}", "Give how long to measure, for example 10.")


def _machine(num_workers: int | None, ranks: int | None) -> Machine:
    import torch

    cpus, started = usable_cpus(), local_ranks()
    ranks = ranks or started or torch.accelerator.device_count() or 1
    share = cpus_for_this_rank() if ranks == started else max(1, cpus // ranks)
    place = default_place()
    return Machine(
        cpus=cpus,
        ranks=ranks,
        rank_cpus=share,
        threads=share if num_workers is None else max(1, num_workers),
        memory=available_memory(),
        stage_place=str(place),
        stage_room=room(place)[0],
    )

"""`diagnose`: measurement of every stage of loading one dataset on this machine."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from fastdata.dataset import ImageDataset
from fastdata.doctor import copies, decoding, loading, opening, reading
from fastdata.doctor.advice import Verdict, judge
from fastdata.doctor.decoding import Encoded
from fastdata.doctor.findings import Alternatives, Data, Findings, Machine, Rates
from fastdata.doctor.opening import Opened
from fastdata.doctor.reading import Storage
from fastdata.errors import UsageError
from fastdata.machine import available_memory, cpus_for_this_rank, local_ranks, usable_cpus
from fastdata.staging.staged import default_place
from fastdata.storage.room import room
from fastdata.storage.seek_cache import DEFAULT_BYTES
from fastdata.text import human_share
from fastdata.transforms.compile import Recipe, compile_recipe
from fastdata.transforms.containers import Compose
from fastdata.transforms.crops import RandomHorizontalFlip
from fastdata.transforms.outcomes import Refusal
from fastdata.transforms.resizes import RandomResizedCrop

#: Most threads that read at the same time.
_READERS = 128
#: Bytes that the loader keeps for an image file beside its seek points.
_OVERHEAD = 500


class Diagnosis(NamedTuple):
    """Measurements and conclusions.

    Attributes:
        found: The measurements.
        verdict: The stage that limits, and advice.
    """

    found: Findings
    verdict: Verdict


def training_transform(size: int = 224) -> Compose:
    """Return the default transform: a random crop of ``size`` pixels, and a flip."""
    return Compose((RandomResizedCrop(size), RandomHorizontalFlip()))


@contextmanager
def _without_pillows_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings of broken EXIF."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        yield


@_without_pillows_warnings()
def diagnose(
    dataset: str | os.PathLike[str] | ImageDataset,
    *,
    transform: Any = None,
    step_ms: float | None = None,
    batch_size: int | None = None,
    num_workers: int | None = None,
    ranks: int | None = None,
    seconds: float = 10.0,
    progress: Callable[[str], None] = lambda stage: None,
) -> Diagnosis:
    """Measure each stage that images pass on their way to a training step.

    Samples are drawn at random, always the same. They alone are dropped from the page cache, to
    be read cold.

    Args:
        dataset: An `ImageDataset`, or the folder of a packed dataset or of images.
        transform: The transform; None for the dataset's own, or `training_transform`.
        step_ms: Milliseconds of a training step on one GPU; None if unknown.
        batch_size: Images in a batch, on one GPU; None for 64.
        num_workers: The script's argument of the loader; None for the recommended number.
        ranks: Training processes on this machine; None for those of torchrun or srun, or the
            number of GPUs, or 1.
        seconds: About how long to measure, once torch is imported.
        progress: Called with the name of each stage before it is measured.

    Raises:
        UsageError: An argument is out of range, or the transform cannot be measured.
        DatasetError: There is no dataset, and no image.
        DataError: No sample can be read and decoded.
    """
    _check(step_ms, batch_size, num_workers, ranks, seconds)
    batch_size = batch_size or 64
    begun = time.perf_counter()
    progress("opening")
    opened = opening.open_any(dataset, seconds * 0.3)
    if transform is None and isinstance(dataset, ImageDataset):
        transform = dataset.transform
    transform = training_transform() if transform is None else transform
    recipe = _compiled(transform)
    importing = time.perf_counter()
    progress("importing torch")
    copies.import_torch()
    import_seconds = time.perf_counter() - importing
    found = _measure(
        opened, recipe, transform, step_ms, batch_size, num_workers, ranks, seconds, progress
    )
    took = time.perf_counter() - begun - import_seconds
    found = replace(found, seconds=took, import_seconds=import_seconds)
    return Diagnosis(found, judge(found))


def _measure(
    opened: Opened,
    recipe: Recipe,
    transform: Any,
    step_ms: float | None,
    batch_size: int,
    num_workers: int | None,
    ranks: int | None,
    seconds: float,
    progress: Callable[[str], None],
) -> Findings:
    """Measure all stages; see `diagnose`."""
    machine = _machine(num_workers, ranks)
    progress("storage")
    # All ranks read from it at the same time, and each has its part.
    readers = min(machine.threads * machine.ranks, _READERS)
    storage = reading.measure(opened, reading.draw_samples(opened), readers, seconds * 0.35)
    images, problems = decoding.load(opened, storage.first.blobs, recipe)
    problems |= storage.first.problems

    progress("decoding")
    learnt = _learnt(opened, images)
    decoded = _measure_decoding(images, recipe, machine, seconds, learns=learnt == 1)
    machine = replace(machine, cpu_lost=decoded.lost)

    progress("copies")
    image_bytes = sum(
        program.size[0]
        * program.size[1]
        * program.output.channels
        * decoding.output_dtype(program).itemsize
        for program in recipe.programs
    )
    to_device, device = copies.host_to_device(batch_size * image_bytes, seconds * 0.03)

    progress("the loader")
    speed, path = loading.rate(
        opened,
        [image.number for image in images],
        transform,
        batch_size=batch_size,
        num_workers=machine.rank_cpus if num_workers is None else num_workers,
        learns=learnt == 1,
        seconds=seconds * 0.15,
    )
    parallel = min(machine.threads, machine.cpus)
    loader = None if speed is None else speed.undisturbed(decoded.core * parallel)
    # Decoding is at least as fast as the loader: a lower figure is scatter, or the cost of
    # measuring from Python.
    slack = 1.0 if loader is None else max(1.0, loader / decoded.threads)
    rates, in_order = _storage_rates(storage, readers, machine)
    return Findings(
        data=_described(opened, images, problems, learnt),
        machine=machine,
        rates=replace(
            rates,
            decode_core=max(decoded.core, decoded.threads * slack / parallel),
            decode=decoded.threads * slack,
            decode_all=decoded.every * slack,
            host_to_device=None if to_device is None else to_device * batch_size,
            step=None if step_ms is None else batch_size / (step_ms / 1000),
            loader=loader,
        ),
        alternatives=Alternatives(
            storage_in_order=in_order,
            **{f"decode_{name}": rate * slack for name, rate in decoded.others.items()},
        ),
        notes={
            "storage, cold": storage.note,
            "decode": _decoding_note(learnt, images, bool(recipe.unknown)),
            "host to device": device,
            "step": "not given: --step-ms, --batch-size" if step_ms is None else "as given",
            "loader": path,
        },
        image_bytes=storage.first.size / storage.first.images,
        batch_bytes=image_bytes,
        batch_size=batch_size,
        transform=recipe.describe(),
    )


def _compiled(transform: Any) -> Recipe:
    recipe = compile_recipe(transform)
    if isinstance(recipe, Refusal):
        raise UsageError(
            f"this transform cannot be measured: {recipe.reason}",
            "Leave it out to measure a random crop of 224 pixels and a flip.",
        )
    return recipe


def _storage_rates(storage: Storage, readers: int, machine: Machine) -> tuple[Rates, float | None]:
    """Return the rates of reading for one rank; and that of neighbours, cold."""
    read_cpu_s = storage.warm.cpu_seconds / max(storage.warm.images, 1)

    def reads(rate: float | None) -> float | None:
        alone = _alone(rate, readers, read_cpu_s, machine.cpu_lost)
        return None if alone is None else alone / machine.ranks

    cold = None if storage.note else reads(storage.first.rate)
    # Memory is no slower than the disk: a lower figure is scatter.
    warm = max(filter(None, (cold, reads(storage.warm.rate))), default=None)
    rates = Rates(storage_cold=cold, storage_warm=warm, read_cpu_s=read_cpu_s)
    return rates, reads(storage.in_order)


def _described(
    opened: Opened, images: Sequence[Encoded], problems: dict[int, str], learnt: float
) -> Data:
    """Return the facts about a dataset, with those of the sampled images."""
    return replace(
        opened.data,
        seekable_share=decoding.seekable_share(images),
        pillow_share=decoding.pillow_share(images),
        pillow_kinds=decoding.pillow_kinds(images),
        rewritable_share=decoding.rewritable_share(images),
        learnt_share=learnt,
        sampled=len(images),
        damaged=len(problems),
        damage="; ".join(f"sample {n}: {problems[n]}" for n in sorted(problems)[:1]),
    )


def _alone(rate: float | None, readers: int, cpu_s: float, lost: float) -> float | None:
    """Estimate images/s of reading without other processes on the CPUs.

    ``cpu_s`` are an image's CPU seconds; the rest is waiting for the disk. Other processes have a
    thread's CPU for the share ``lost`` of its time.
    """
    if rate is None:
        return None
    return readers / max(cpu_s, readers / rate - cpu_s * lost / (1 - lost), 1e-9)


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
    cpus, started = usable_cpus(), local_ranks()
    ranks = ranks or started or copies.gpus() or 1
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


def _learnt(opened: Opened, images: Sequence[Encoded]) -> float:
    """Return the share of a tree's images whose seek points the loader has after an epoch."""
    if opened.dataset is not None:
        return 0.0
    tables = [len(image.learnable) for image in images if image.learnable is not None]
    mean = sum(tables) / max(len(tables), 1) + _OVERHEAD
    return min(1.0, DEFAULT_BYTES / (opened.data.samples * mean))


class _Decoded(NamedTuple):
    """Images/s of decoding.

    Attributes:
        core: Of one core.
        threads: Of the loader's threads.
        every: Of all CPUs.
        lost: Share of the threads' time that other processes took, 0 to 1.
        others: Of faster ways to decode, on the loader's threads.
    """

    core: float
    threads: float
    every: float
    lost: float
    others: dict[str, float]


def _measure_decoding(
    images: Sequence[Encoded],
    recipe: Recipe,
    machine: Machine,
    seconds: float,
    *,
    learns: bool,
) -> _Decoded:
    """Measure decoding, and faster ways to decode.

    ``learns``: the loader knows all seek points after an epoch.
    """
    seekable = decoding.with_seek_points(images)
    current = seekable if learns else images
    variants = {"core": current}
    if decoding.seekable_share(current) < 1:
        variants["seekable"] = seekable
    others = decoding.core_rates(variants, recipe, seconds * (0.05 + 0.05 * len(variants)))
    core = others.pop("core")
    speed = decoding.rate(current, recipe, machine.threads, seconds * 0.1)
    threads = every = speed.undisturbed(core * min(machine.threads, machine.cpus))
    if machine.cpus != machine.threads:
        whole = decoding.rate(current, recipe, machine.cpus, seconds * 0.06)
        every = whole.undisturbed(core * machine.cpus)
    # Assume that all threads gain as much as one core.
    faster = {name: rate * threads / core for name, rate in others.items()}
    return _Decoded(core, threads, every, speed.lost, faster)


def _decoding_note(learnt: float, images: Sequence[Encoded], tail: bool) -> str:
    """Return the note on the rates of decoding."""
    parts = []
    if learnt == 1:
        parts.append("from the 2nd epoch, with the seek points that the first builds")
    elif learnt:
        parts.append(f"without seek points; the first epoch builds those of {learnt:.0%}")
    if share := decoding.pillow_share(images):
        parts.append(f"{human_share(share)} by the codec table or Pillow")
    if tail:
        parts.append("the transform's own functions not counted")
    return "; ".join(parts)

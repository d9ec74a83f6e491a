"""Diagnosis as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fastdata.converters.listing import describe_left_out
from fastdata.doctor.advice import Verdict, held_later, stage_rates
from fastdata.doctor.findings import Findings, Machine
from fastdata.errors import printable
from fastdata.storage.files import human_bytes
from fastdata.text import aligned, human_count

if TYPE_CHECKING:
    from fastdata.doctor.diagnosis import Diagnosis

#: Share of the CPUs' time that other processes may take before the report mentions it.
_BUSY = 0.1
_WHOLE = "the loader as a whole"


class StageLine(NamedTuple):
    """Measured stage.

    Attributes:
        name: For people.
        stage: ``storage``, ``decode``, ``host to device`` or ``step``; empty for the loader.
        rate: Images/s; None if it was not measured.
        bytes: Bytes of an image in this stage; 0 where they do not matter.
        note: What else is to be known.
    """

    name: str
    stage: str
    rate: float | None
    bytes: float
    note: str


def stage_lines(diagnosis: Diagnosis) -> list[StageLine]:
    """Return every stage, in the order that images pass them."""
    found, lines = diagnosis.found, []
    rates, machine = found.rates, found.machine

    def add(name: str, stage: str, rate: float | None, size: float = 0.0, note: str = "") -> None:
        lines.append(StageLine(name, stage, rate, size, found.notes.get(note, "")))

    add("storage, cold", "storage", rates.storage_cold, found.image_bytes, "storage, cold")
    add("storage, warm", "storage", rates.storage_warm, found.image_bytes)
    add("decode, one core", "", rates.decode_core)
    threads = human_count(machine.threads, "thread")
    add(f"decode, {threads}", "decode", rates.decode, note="decode")
    if machine.threads != machine.cpus:
        add(f"decode, all {human_count(machine.cpus, 'CPU')}", "", rates.decode_all)
    to_device = "host to device"
    add(to_device, to_device, rates.host_to_device, found.batch_bytes, to_device)
    add("training step", "step", rates.step, note="step")
    add(_WHOLE, "", rates.loader, note="loader")
    return lines


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return all findings as JSON values."""
    found, verdict = diagnosis
    return {
        "limit": verdict.limit,
        "images_per_second": verdict.images_per_second,
        "stages": [line._asdict() for line in stage_lines(diagnosis)],
        "verdict": asdict(verdict),
        **asdict(found),
    }


def show(diagnosis: Diagnosis) -> None:
    """Print tables to standard output."""
    found, verdict = diagnosis
    title = f"{found.data.path}: {found.transform}, batches of {found.batch_size}"
    click.secho(printable(title), bold=True)
    rows, limiting = [("stage", "images/s", "bytes/s", "")], [False]
    together = _limits_as_a_whole(verdict, found)
    for line in stage_lines(diagnosis):
        limits = line.name == _WHOLE if together else line.stage == verdict.limit
        if line.stage == "storage":  # of its two rates the one that counts is marked
            limits = limits and line.name.endswith("cold") == _reads_cold(diagnosis)
        note = "; ".join(part for part in ("limits" * limits, line.note) if part)
        rate = "-" if line.rate is None else human_rate(line.rate)
        size = f"{human_bytes(line.rate * line.bytes)}/s" if line.rate and line.bytes else ""
        rows.append((line.name, rate, size, note))
        limiting.append(limits)
    for text, limits in zip(aligned(rows, right=(1, 2)), limiting, strict=True):
        click.secho(text, fg="red" if limits else None, bold=limits)
    click.echo()
    for text in aligned(fact_lines(diagnosis)):
        click.echo(printable(text))
    for advice in verdict.advice:
        gain = ""
        if advice.images_per_second is not None:
            gain = f" → {human_rate(advice.images_per_second)} images/s ({advice.basis})"
        click.echo("\n" + printable(f"• {advice.text}{gain}"))
        if advice.command:
            click.echo(printable(f"    {advice.command}"))


def fact_lines(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return the conclusions as lines of text."""
    (found, verdict), data, machine = diagnosis, diagnosis.found.data, diagnosis.found.machine
    about = "about " if data.estimated else ""
    limits = f"{verdict.limit}: {human_rate(verdict.images_per_second)} images/s"
    if _limits_as_a_whole(verdict, found):
        limits = (
            f"{_WHOLE}: {human_rate(verdict.images_per_second)} images/s, as its stages share "
            f"the CPUs; the slowest of them is {verdict.limit}"
        )
    if verdict.first_epoch_limit != verdict.limit:
        limits += (
            f"; in the first epoch {verdict.first_epoch_limit}: "
            f"{human_rate(verdict.first_epoch_images_per_second)}"
        )
    core = verdict.core_images_per_second
    cores = "" if core is None else f"a core reads and decodes {human_rate(core)} images/s"
    if verdict.cores_per_gpu is None:
        cores += "; give --step-ms to learn how many"
    else:
        cores = f"{verdict.cores_per_gpu} at this step; {cores}"
    memory = "it is read from memory already"
    if not data.in_memory:
        fits = "fits" if verdict.fits_stage else "does not fit"
        sizes = human_bytes(data.stage_bytes), human_bytes(machine.stage_room)
        memory = f"{about}{sizes[0]} of {sizes[1]} free: {fits}"
    cache = f"unknown: {data.cached_how}"
    if data.cached_share is not None:
        cache = f"holds {data.cached_share:.0%} of the dataset ({data.cached_how})"
    images = human_count(data.samples, "image")
    dataset = f"{data.container}, {about}{images}, {about}{human_bytes(data.bytes)}"
    if data.location != data.path:
        dataset += f", read from {data.location}"
    if data.left_out:
        dataset += f" ({describe_left_out(data.left_out)} left out)"
    workers = f"{human_count(machine.cpus, 'CPU')}, {human_count(machine.ranks, 'rank')}"
    if machine.rank_cpus * machine.ranks > machine.cpus:
        workers = f"{human_count(machine.ranks, 'rank')}, this one bound to CPUs of its own"
    lines = [
        ("limits", limits),
        *([] if machine.cpu_lost < _BUSY else [("busy", _busy(machine))]),
        ("cores a GPU needs", cores),
        ("num_workers", f"{verdict.num_workers} ({workers})"),
        (machine.stage_place, memory),
        ("page cache", cache),
        ("dataset", dataset),
        ("measured", _measured(found)),
    ]
    if data.damaged:
        lines.append(("damaged", f"{human_count(data.damaged, 'image')} more; {data.damage}"))
    return lines


def _measured(found: Findings) -> str:
    took = f"{human_count(found.data.sampled, 'image')} in {found.seconds:.0f} s"
    if found.import_seconds >= 1:
        took += f", after {found.import_seconds:.0f} s of importing torch"
    return took


def _busy(machine: Machine) -> str:
    return (
        f"others had the CPUs for {machine.cpu_lost:.0%} of the time that decoding wanted them; "
        "rates are corrected for that, as far as CPU time allows"
    )


def human_rate(rate: float) -> str:
    """Return a rate as text with three digits, the precision of such measurements."""
    if rate >= 100:
        return f"{float(f'{rate:.3g}'):,.0f}"
    return f"{rate:.3g}"


def _limits_as_a_whole(verdict: Verdict, found: Findings) -> bool:
    """Return whether the loader is slower than each of its stages and the step."""
    stages = stage_rates(found, held_later(found))
    loader = found.rates.loader
    return loader is not None and verdict.limit != "step" and loader < stages[verdict.limit]


def _reads_cold(diagnosis: Diagnosis) -> bool:
    """Return whether storage mostly reads data that are not in memory."""
    found = diagnosis.found
    return (
        found.rates.storage_cold is not None
        and not found.data.in_memory
        and found.machine.memory < found.data.bytes
    )

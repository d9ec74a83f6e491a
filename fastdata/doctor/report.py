"""Diagnosis as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from fastdata.doctor.advice import Diagnosis, held
from fastdata.errors import printable
from fastdata.storage.files import human_bytes
from fastdata.text import aligned, human_count


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return all findings as JSON values."""
    findings, verdict = diagnosis
    conclusions = asdict(verdict)
    first = {name: conclusions[name] for name in ("limit", "images_per_second")}
    return {**first, "verdict": conclusions, **asdict(findings)}


def show(diagnosis: Diagnosis) -> None:
    """Print tables to standard output."""
    findings, verdict = diagnosis
    rates = findings.rates
    title = f"{findings.data.path}, in batches of {findings.batch_size}"
    click.secho(printable(title), bold=True)
    threads = human_count(findings.machine.threads, "thread")
    # Mark the one of storage's two rates that counts.
    reads = "storage, cold" if rates.storage_cold and held(findings) < 1 else "storage, warm"
    limiting = {"storage": reads, "decode": f"decode, {threads}", "step": "training step"}
    rows = [("stage", "images/s", "")]
    for name, rate, note in (
        ("storage, cold", rates.storage_cold, findings.cold_note),
        ("storage, warm", rates.storage_warm, ""),
        (f"decode, {threads}", rates.decode, ""),
        ("reading and decoding", verdict.loader_images_per_second, "on the same threads"),
        ("training step", rates.step, ""),
    ):
        limits = "limits" * (name == limiting[verdict.limit])
        note = "; ".join(part for part in (limits, note) if part)
        rows.append((name, "-" if rate is None else human_rate(rate), note))
    for text in aligned(rows, right=(1,)):
        click.echo(text)
    click.echo()
    for text in aligned(fact_lines(diagnosis)):
        click.echo(printable(text))
    for advice in verdict.advice:
        gain = ""
        if advice.images_per_second is not None:
            gain = f" → up to {human_rate(advice.images_per_second)} images/s"
        click.echo("\n" + printable(f"• {advice.text}{gain}"))
        if advice.command:
            click.echo(printable(f"    {advice.command}"))


def fact_lines(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return the conclusions as lines of text."""
    (_, verdict), data, machine = diagnosis, diagnosis.findings.data, diagnosis.findings.machine
    about = "about " if data.container == "files" else ""
    cores = f"a core reads and decodes {human_rate(verdict.core_images_per_second)} images/s"
    if verdict.cores_per_gpu is None:
        cores += "; give --step-ms to learn how many"
    else:
        cores = f"{verdict.cores_per_gpu} at this step; {cores}"
    memory = "it is read from memory already"
    if not data.in_memory:
        fits = "fits" if verdict.fits_stage else "does not fit"
        sizes = human_bytes(data.stage_bytes), human_bytes(machine.stage_room)
        memory = f"a copy of {about}{sizes[0]} {fits}: {sizes[1]} free"
    images = human_count(data.samples, "image")
    dataset = f"{data.container}, {images}, {about}{human_bytes(data.bytes)}"
    if data.location != data.path:
        dataset += f", read from {data.location}"
    workers = f"{human_count(machine.cpus, 'CPU')}, {human_count(machine.ranks, 'rank')}"
    if machine.rank_cpus * machine.ranks > machine.cpus:
        workers = f"{human_count(machine.ranks, 'rank')}, this one bound to CPUs of its own"
    lines = [
        ("limits", f"{verdict.limit}: {human_rate(verdict.images_per_second)} images/s"),
        ("cores a GPU needs", cores),
        ("num_workers", f"{verdict.num_workers} ({workers})"),
        (machine.stage_place, memory),
        ("dataset", dataset),
        ("measured", human_count(data.sampled, "image")),
        ("transform", diagnosis.findings.transform),
    ]
    if data.damaged:
        lines.append(("damaged", f"{human_count(data.damaged, 'image')}: see {data.checker}"))
    return lines


def human_rate(rate: float) -> str:
    """Return a rate as text with three digits, the precision of such measurements."""
    if rate >= 100:
        return f"{float(f'{rate:.3g}'):,.0f}"
    return f"{rate:.3g}"

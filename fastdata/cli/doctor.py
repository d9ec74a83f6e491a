"""``fastdata doctor``: measure what limits loading on this machine, and advise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastdata.cli.locations import Location, json_option, print_json, say
from fastdata.storage.peek import peek


@click.command("doctor")
@click.argument("dataset", type=Location())
@click.option(
    "--step-ms",
    type=click.FloatRange(0, min_open=True),
    metavar="MS",
    help="Milliseconds that a training step takes on one GPU.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1, 1 << 20),
    help="Images in a batch of one GPU.  [default: 64]",
)
@click.option(
    "--num-workers",
    type=click.IntRange(0, 1024),
    help="Decode threads to measure with.  [default: the recommended number]",
)
@click.option(
    "--ranks",
    type=click.IntRange(1, 1024),
    help="Training processes on this machine.  [default: GPUs, or 1]",
)
@click.option(
    "--size",
    type=click.IntRange(1, 65_535),
    default=224,
    show_default=True,
    help="Pixels of the random crop.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600, min_open=True, max_open=True),
    default=10,
    show_default=True,
    help="About how long to measure.",
)
@json_option
def command(dataset: Path | str, size: int, as_json: bool, **options: Any) -> None:
    """Find out what limits loading DATASET, and how to change it.

    Measures reading and decoding on this machine. With --step-ms and --batch-size, also compares
    them with the training step. DATASET may be a folder of class folders of images, a tar or
    Parquet that was never converted.

    \b
    Examples:
      $ fastdata doctor imagenet-train-lmdb --seconds 1
      $ fastdata doctor imagenet-train-lmdb --seconds 1 --step-ms 120 --batch-size 256 --json
      fastdata doctor imagenet/train --size 160
    """
    from fastdata.doctor import report
    from fastdata.doctor.diagnosis import diagnose, training_transform

    diagnosis = diagnose(dataset, transform=training_transform(size), **options)
    if not diagnosis.findings.data.convert:
        recognised = peek(diagnosis.findings.data.path)
        say(f"{diagnosis.findings.data.path}: {recognised.what}. {recognised.hint}", err=True)
    if as_json:
        print_json(report.as_json(diagnosis))
    else:
        report.show(diagnosis)

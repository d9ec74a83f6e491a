"""Generator of a sample dataset: synthetic photographs like ImageNet's, none of them copied.

They have the layout, sizes, chroma samplings, bits a pixel and oddities of ImageNet's files, and a
model can learn the classes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import UsageError
from fastdata.executors import local_executor
from fastdata.sample.photograph import make_photograph
from fastdata.storage.files import PARTIAL_SUFFIX


class SampleSummary(NamedTuple):
    """Summary of a generated sample: its folder, and numbers of files, classes and bytes."""

    out: Path
    images: int
    val_images: int
    classes: int
    bytes: int


def wnid(class_index: int) -> str:
    """Return the name of a class's folder: "n" and eight digits that rise with the index."""
    return f"n{1_440_000 + 12_347 * class_index:08d}"


def make_sample(
    out: str | os.PathLike[str],
    *,
    images: int = 1000,
    val_images: int = 100,
    classes: int = 10,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] = lambda done: None,
) -> SampleSummary:
    """Write <out>/train/<wnid>/<wnid>_<n>.JPEG and <out>/val/<wnid>/ILSVRC2012_val_<n>.JPEG.

    The same options and seed give the same bytes in every file, for any number of workers, with
    the same release of Pillow, whose encoder writes them. An interrupted call leaves no file.

    Args:
        out: Folder to write to, empty; created if missing.
        images: Files under train/: 0, or at least one a class.
        val_images: Files under val/: 0, or at least one a class.
        classes: Number of classes, 1 to 1000; consecutive pictures belong to consecutive classes.
        seed: Any whole number from 0.
        workers: Processes to share the work; more than one start new interpreters.
        progress: Called in this process with the number of files written so far.

    Raises:
        UsageError: An option is out of range, or ``out`` is not empty.
        OSError: It cannot be written.
    """
    out = Path(out)
    _check_numbers(images, val_images, classes, seed)
    processes = local_executor(workers)
    partial = out / f".sample{PARTIAL_SUFFIX}"
    tasks = (
        (partial, seed, split, place % classes, place // classes, classes)
        for split, count in enumerate((images, val_images))
        for place in range(count)
    )
    size = 0
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise UsageError(f"{out}: is not empty", "Choose a new folder with --out.")
    try:
        with processes as executor:
            for done, written in enumerate(executor.run(_write, tasks), start=1):
                size += written
                progress(done)
        for folder in partial.glob("*"):
            folder.rename(out / folder.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return SampleSummary(out, images, val_images, classes, size)


def _check_numbers(images: int, val_images: int, classes: int, seed: int) -> None:
    if not 1 <= classes <= 1000:
        raise UsageError(f"--classes {classes}: out of range", "Use 1 to 1000.")
    for flag, count in (("--images", images), ("--val-images", val_images)):
        if count != 0 and count < classes:
            hint = f"Use 0, or {classes} or more, or fewer --classes."
            raise UsageError(f"{flag} {count}: too few for {classes} classes", hint)
    if seed < 0:
        raise UsageError(f"--seed {seed}: out of range", "Use a whole number from 0.")


def _write(task: tuple[Path, int, int, int, int, int]) -> int:
    """Write one file; return its bytes."""
    folder, _, split, class_index, number, classes = task
    name = wnid(class_index)
    path = folder / "train" / name / f"{name}_{number}.JPEG"
    if split:
        ordinal = number * classes + class_index + 1
        path = folder / "val" / name / f"ILSVRC2012_val_{ordinal:08d}.JPEG"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_bytes(make_photograph(*task[1:]))

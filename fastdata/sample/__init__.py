"""Make a sample data set of made photographs, laid out and coded as ImageNet is.

Nothing in it is copied from anywhere. A decoder meets the sizes, the chroma samplings, the bits a
pixel and the oddities of ImageNet's files; a model can learn the classes.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fastdata.errors import UsageError
from fastdata.sample.photograph import MAX_CLASSES
from fastdata.sample.shots import make_shot

_SPLITS = ("train", "val")


@dataclass(frozen=True)
class SampleSummary:
    """What was written.

    Attributes:
        out: The folder that holds train/ and val/.
        images: Files under train/.
        val_images: Files under val/.
        classes: Number of classes.
        bytes: Size of all files together, in bytes.
        pixels: Pixels of all pictures together.
        kinds: How many files of each sampling ("4:4:4", "4:2:0", "4:2:2", "4:4:0", "grey",
            "cmyk", "png") and of each oddity ("progressive", "broken-exif", "standard-huffman",
            "large") there are; a file may count as both.
    """

    out: Path
    images: int
    val_images: int
    classes: int
    bytes: int
    pixels: int
    kinds: dict[str, int]


def wnid(class_index: int) -> str:
    """Return the made name of a class's folder, "n" and eight digits, rising with the index."""
    return f"n{1_440_000 + 12_347 * class_index:08d}"


def make_sample(
    out: Path,
    *,
    images: int = 1000,
    val_images: int = 100,
    classes: int = 10,
    seed: int = 0,
    workers: int = 1,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> SampleSummary:
    """Write <out>/train/<wnid>/<wnid>_<n>.JPEG and <out>/val/<wnid>/ILSVRC2012_val_<n>.JPEG.

    The same options and seed give the same bytes in every file (with the same release of Pillow,
    whose encoder writes them), whatever the number of workers. Each file appears whole or not at
    all.

    Args:
        out: Folder to write to; made if missing.
        images: Files under train/: 0, or at least one a class.
        val_images: Files under val/: 0, or at least one a class.
        classes: Number of classes, 1 to 1000; pictures are dealt to them in turn.
        seed: Any whole number from 0.
        workers: Processes to share the work. More than one starts new interpreters, so a script
            that asks for them needs the usual `if __name__ == "__main__":`.
        force: Write even where out is not empty. Files of the same names are replaced, others
            stay.
        progress: Called in this process with the number of files written so far.

    Returns:
        What was written.

    Raises:
        UsageError: An option is out of range, or out is a file, or is not empty and force is not
            set.
        OSError: A file cannot be written.
    """
    out = Path(out)
    _check_numbers(images, val_images, classes, seed, workers)
    _check_folder(out, force)
    tasks = [
        _Task(out, split, class_index=place % classes, number=place // classes, classes=classes,
              seed=seed)
        for split, count in enumerate((images, val_images))
        for place in range(count)
    ]  # fmt: skip
    for split, count in zip(_SPLITS, (images, val_images), strict=True):
        for class_index in range(min(classes, count)):
            (out / split / wnid(class_index)).mkdir(parents=True, exist_ok=True)
    size = pixels = 0
    kinds: Counter[str] = Counter()
    for done, written in enumerate(_written(tasks, workers), start=1):
        size += written.bytes
        pixels += written.pixels
        kinds.update(written.kinds)
        if progress is not None:
            progress(done)
    return SampleSummary(out, images, val_images, classes, size, pixels, dict(kinds))


@dataclass(frozen=True)
class _Task:
    out: Path
    split: int
    class_index: int
    number: int
    classes: int
    seed: int

    @property
    def path(self) -> Path:
        name = wnid(self.class_index)
        if self.split == 0:
            file = f"{name}_{self.number}.JPEG"
        else:
            file = f"ILSVRC2012_val_{self.number * self.classes + self.class_index + 1:08d}.JPEG"
        return self.out / _SPLITS[self.split] / name / file


@dataclass(frozen=True)
class _Written:
    bytes: int
    pixels: int
    kinds: frozenset[str]


def _check_numbers(images: int, val_images: int, classes: int, seed: int, workers: int) -> None:
    if not 1 <= classes <= MAX_CLASSES:
        raise UsageError(f"classes is {classes}: give a number from 1 to {MAX_CLASSES}")
    for name, count in (("images", images), ("val_images", val_images)):
        if count != 0 and count < classes:
            raise UsageError(
                f"{name} is {count}, too few for one of each of {classes} classes: give 0, or at "
                f"least {classes}, or fewer classes"
            )
    if seed < 0:
        raise UsageError(f"seed is {seed}: give a whole number from 0")
    if workers < 1:
        raise UsageError(f"workers is {workers}: give at least 1")


def _check_folder(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: give a folder for the sample")
    if not force and out.is_dir() and next(out.iterdir(), None) is not None:
        raise UsageError(
            f"{out} is not empty: give a new folder for the sample, or force writing into this one"
        )


def _written(tasks: list[_Task], workers: int) -> Iterator[_Written]:
    if workers == 1:
        yield from map(_write, tasks)
        return
    # Threads would not help, for Pillow encodes under the interpreter lock; a forked child could
    # inherit a lock that some other thread of the caller holds.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            yield from pool.map(_write, tasks, chunksize=8)
        finally:
            # Without this an error would wait for every picture still to be made.
            pool.shutdown(wait=False, cancel_futures=True)


def _write(task: _Task) -> _Written:
    shot, file = make_shot(task.seed, task.split, task.class_index, task.number, task.classes)
    path = task.path
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(file)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    kinds = {shot.sampling, shot.kind} - {"usual"}
    return _Written(len(file), shot.width * shot.height, frozenset(kinds))

"""Generator of a sample dataset: synthetic photographs in ImageNet's layout and encoding.

All files are generated, none is copied. They have the sizes, chroma samplings, bits a pixel and
oddities of ImageNet's files, and a model can learn the classes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import PIL

from fastdata import __version__
from fastdata.errors import BusyError, UsageError, is_no_space
from fastdata.executors import local_executor
from fastdata.sample.photograph import MAX_CLASSES
from fastdata.sample.shots import make_shot
from fastdata.storage.files import PARTIAL_SUFFIX, file_lock, no_space

_SPLITS = ("train", "val")
_LOCK_NAME = ".sample.lock"


@dataclass(frozen=True)
class SampleSummary:
    """Summary of a generated sample.

    Attributes:
        out: The folder that holds train/ and val/.
        images: Files under train/.
        val_images: Files under val/.
        classes: Number of classes.
        bytes: Size of all files together, in bytes.
        pixels: Pixels of all pictures together.
        kinds: Number of files by sampling ("4:4:4", "4:2:0", "4:2:2", "4:4:0", "grey",
            "cmyk", "png") and by oddity ("progressive", "broken-exif", "standard-huffman",
            "large"); a file may count for both.
    """

    out: Path
    images: int
    val_images: int
    classes: int
    bytes: int
    pixels: int
    kinds: dict[str, int]


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
    progress: Callable[[int], None] | None = None,
) -> SampleSummary:
    """Write <out>/train/<wnid>/<wnid>_<n>.JPEG and <out>/val/<wnid>/ILSVRC2012_val_<n>.JPEG.

    The same options and seed give the same bytes in every file, for any number of workers, with
    the same release of Pillow, whose encoder writes them. Unfinished files are in
    <out>/.sample-<digits of the options>.partial; after an interruption, the same call resumes.

    Args:
        out: Folder to write to, empty; created if missing.
        images: Files under train/: 0, or at least one a class.
        val_images: Files under val/: 0, or at least one a class.
        classes: Number of classes, 1 to 1000; consecutive pictures belong to consecutive classes.
        seed: Any whole number from 0.
        workers: Processes to share the work. More than one starts new interpreters, so the
            calling script needs the usual `if __name__ == "__main__":`.
        progress: Called in this process with the number of files written so far.

    Returns:
        Counts of the files written.

    Raises:
        UsageError: An option is out of range; or ``out`` is not empty, or cannot be written.
        SpaceError: The disk is full.
        BusyError: Another process is writing a sample there.
    """
    out = Path(out)
    _check_numbers(images, val_images, classes, seed)
    processes = local_executor(workers)
    # Everything that the bytes depend on.
    options = images, val_images, classes, seed, __version__, PIL.__version__
    digits = hashlib.sha256(repr(options).encode()).hexdigest()[:8]
    partial = out / f".sample-{digits}{PARTIAL_SUFFIX}"
    counts = images, val_images
    tasks = (
        _Task(partial, split, place % classes, place // classes, classes, seed)
        for split, count in enumerate(counts)
        for place in range(count)
    )
    size = pixels = 0
    kinds: Counter[str] = Counter()
    busy = BusyError(
        f"{out}: another process is writing a sample there", "Wait for it, or choose another --out."
    )
    with _writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
        with file_lock(out / _LOCK_NAME, busy), processes as executor:
            _begin(out, partial)
            for split, count in zip(_SPLITS, counts, strict=True):
                for number in range(min(count, classes)):
                    (partial / split / wnid(number)).mkdir(parents=True, exist_ok=True)
            for done, written in enumerate(executor.run(_write, tasks), start=1):
                size += written.bytes
                pixels += written.pixels
                kinds.update(written.kinds)
                if progress is not None:
                    progress(done)
            for folder in partial.iterdir():
                folder.rename(out / folder.name)
            partial.rmdir()
    return SampleSummary(out, images, val_images, classes, size, pixels, dict(kinds))


@dataclass(frozen=True)
class _Task:
    folder: Path
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
        return self.folder / _SPLITS[self.split] / name / file


@dataclass(frozen=True)
class _Written:
    bytes: int
    pixels: int
    kinds: frozenset[str]


def _check_numbers(images: int, val_images: int, classes: int, seed: int) -> None:
    if not 1 <= classes <= MAX_CLASSES:
        raise UsageError(f"--classes {classes}: out of range", f"Use 1 to {MAX_CLASSES}.")
    for flag, count in (("--images", images), ("--val-images", val_images)):
        if count != 0 and count < classes:
            raise UsageError(
                f"{flag} {count}: too few for one of each of {classes} classes",
                f"Use 0, or {classes} or more, or fewer --classes.",
            )
    if seed < 0:
        raise UsageError(f"--seed {seed}: out of range", "Use a whole number from 0.")


@contextmanager
def _writing_to(out: Path) -> Iterator[None]:
    """Turn write errors into errors that name the folder and the fix."""
    try:
        if out.exists() and not out.is_dir():
            raise UsageError(f"{out}: is a file", "Choose a folder for the sample with --out.")
        yield
    except BrokenPipeError:  # of the progress output, not of the folder
        raise
    except OSError as error:
        if is_no_space(error):
            hint = "Make room and run the same command again; it resumes."
            raise no_space(out, error, hint) from error
        raise UsageError(
            f"{error.filename or out}: cannot be written: {error.strerror}",
            "Choose another folder with --out, or check its permissions (ls -ld).",
        ) from error


def _begin(out: Path, partial: Path) -> None:
    """Remove unfinished samples of other options; refuse a folder with other files."""
    for path in out.iterdir():
        if path.match(f".sample-*{PARTIAL_SUFFIX}"):
            if path != partial:
                shutil.rmtree(path)
        elif path.name != _LOCK_NAME:
            raise UsageError(f"{out}: is not empty", "Choose a new folder with --out.")


def _write(task: _Task) -> _Written:
    what = task.seed, task.split, task.class_index, task.number, task.classes
    try:
        size = task.path.stat().st_size  # an earlier run wrote it; files appear only when complete
        shot, _ = make_shot(*what, plan_only=True)
    except FileNotFoundError:
        shot, file = make_shot(*what)
        size = len(file)
        # A fixed temporary name: the next run overwrites what a killed run left.
        temporary = task.path.with_name(task.path.name + PARTIAL_SUFFIX)
        temporary.write_bytes(file)
        os.replace(temporary, task.path)
    kinds = {shot.sampling, shot.kind} - {"usual"}
    return _Written(size, shot.width * shot.height, frozenset(kinds))

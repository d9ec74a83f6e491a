"""Make a sample data set of made photographs, laid out and coded as ImageNet is.

Nothing in it is copied from anywhere. A decoder meets the sizes, the chroma samplings, the bits a
pixel and the oddities of ImageNet's files; a model can learn the classes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import PIL

from fastdata.errors import BusyError, UsageError
from fastdata.executors import local_executor
from fastdata.sample.photograph import MAX_CLASSES
from fastdata.sample.shots import make_shot
from fastdata.storage.files import PARTIAL_SUFFIX, file_lock, is_no_space, no_space, sync
from fastdata.version import VERSION

_SPLITS = ("train", "val")

#: Holds the options of a sample that is not finished, in its folder.
MARKER_NAME = ".sample.json"
_LOCK_NAME = ".sample.lock"


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
    out: str | os.PathLike[str],
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
    all. If this is interrupted, the same call goes on from there; until it is done, the options
    stand in <out>/.sample.json.

    Args:
        out: Folder to write to; made if missing.
        images: Files under train/: 0, or at least one a class.
        val_images: Files under val/: 0, or at least one a class.
        classes: Number of classes, 1 to 1000; pictures are dealt to them in turn.
        seed: Any whole number from 0.
        workers: Processes to share the work. More than one starts new interpreters, so a script
            that asks for them needs the usual `if __name__ == "__main__":`.
        force: Write even where out is not empty. Files of the same names are replaced, others
            stay; those of an interrupted sample of the same options are kept.
        progress: Called in this process with the number of files written so far.

    Returns:
        What was written.

    Raises:
        UsageError: An option is out of range; or out is a file, cannot be written to, or is not
            empty and force is not set.
        SpaceError: The disk is full.
        BusyError: Another process is making a sample there.
    """
    out = Path(out)
    _check_numbers(images, val_images, classes, seed, workers)
    tasks = [
        _Task(out, split, class_index=place % classes, number=place // classes, classes=classes,
              seed=seed)
        for split, count in enumerate((images, val_images))
        for place in range(count)
    ]  # fmt: skip
    options: dict[str, int | str] = {
        "images": images,
        "val_images": val_images,
        "classes": classes,
        "seed": seed,
        # On these, the bytes depend as well.
        "fastdata": VERSION,
        "pillow": PIL.__version__,
    }
    busy = BusyError(
        f"{out}: another process is making a sample there", "Wait for it, or choose another --out."
    )
    size = pixels = 0
    kinds: Counter[str] = Counter()
    with _writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
        with file_lock(out / _LOCK_NAME, busy), local_executor(workers) as executor:
            _begin(out, options, tasks, force)
            for done, written in enumerate(executor.run(_write, tasks), start=1):
                size += written.bytes
                pixels += written.pixels
                kinds.update(written.kinds)
                if progress is not None:
                    progress(done)
            (out / MARKER_NAME).unlink()
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
        raise UsageError(
            f"--classes {classes}: not a number of classes", f"Use 1 to {MAX_CLASSES}."
        )
    for flag, count in (("--images", images), ("--val-images", val_images)):
        if count != 0 and count < classes:
            raise UsageError(
                f"{flag} {count}: too few for one of each of {classes} classes",
                f"Use 0, or {classes} or more, or fewer --classes.",
            )
    if seed < 0:
        raise UsageError(f"--seed {seed}: not a seed", "Use a whole number from 0.")
    if workers < 1:
        raise UsageError(f"--workers {workers}: no work would be done", "Use 1 or more.")


@contextmanager
def _writing_to(out: Path) -> Iterator[None]:
    """Say what a failure to write there means for the sample."""
    try:
        if out.exists() and not out.is_dir():
            raise UsageError(f"{out}: is a file", "Choose a folder for the sample with --out.")
        yield
    except BrokenPipeError:  # of who is told of the progress
        raise
    except OSError as error:
        if is_no_space(error):
            hint = "Make room and run the same command again; it goes on from here."
            raise no_space(out, error, hint) from error
        raise UsageError(
            f"{error.filename or out}: cannot be written: {error.strerror}",
            "Choose another folder with --out, or check that you may write there (ls -ld).",
        ) from error


def _begin(out: Path, options: dict[str, int | str], tasks: list[_Task], force: bool) -> None:
    """Prepare the folder; if it holds a sample begun with the same options, as it is."""
    marker, text = out / MARKER_NAME, json.dumps(options) + "\n"
    try:
        found = marker.read_text("utf-8", "replace")
    except FileNotFoundError:
        found = ""
    if found != text:
        if not force:
            _require_empty(out, found)
        # The marker first and last: while it is there, all that is there belongs to it.
        marker.unlink(missing_ok=True)
        for task in tasks:
            task.path.unlink(missing_ok=True)
    for folder in {task.path.parent for task in tasks}:
        folder.mkdir(parents=True, exist_ok=True)
    if found != text:
        _write_whole(marker, text.encode())


def _require_empty(out: Path, marker: str) -> None:
    if marker:
        raise UsageError(
            f"{out}: holds an unfinished sample of other options ({marker.strip()})",
            "Use those options to finish it, choose another --out, or start over with --force.",
        )
    if any(path.name != _LOCK_NAME for path in out.iterdir()):
        raise UsageError(
            f"{out}: is not empty", "Choose a new folder with --out, or write into it with --force."
        )


def _write(task: _Task) -> _Written:
    what = task.seed, task.split, task.class_index, task.number, task.classes
    try:
        size = task.path.stat().st_size  # an earlier run has made it, and files appear whole
        shot, _ = make_shot(*what, plan_only=True)
    except FileNotFoundError:
        shot, file = make_shot(*what)
        size = len(file)
        _write_whole(task.path, file)
    kinds = {shot.sampling, shot.kind} - {"usual"}
    return _Written(size, shot.width * shot.height, frozenset(kinds))


def _write_whole(path: Path, data: bytes) -> None:
    # Always the same temporary name: what a killed run leaves of it, the next one uses.
    temporary = path.with_name(path.name + PARTIAL_SUFFIX)
    try:
        temporary.write_bytes(data)
        # Not `publish`: a name that is lost with the power costs no more than its picture.
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

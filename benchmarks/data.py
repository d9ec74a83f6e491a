"""Data of contenders: each has its own, converted once, and read into the page cache.

Every peer's data is written by the peer's own writer, in the peer's own environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from fastdata.benchmarks.adapters._transforms import image_folder
from fastdata.benchmarks.contenders import Contender
from fastdata.benchmarks.processes import ContenderError, run_preparation

from fastdata.errors import SourceError
from fastdata.machine import available_memory


def repeat_tree(tree: Path, out: Path, images: int) -> Path:
    """Make a tree of links to a number of a tree's images: some of all classes, or repeated."""
    files = listing(tree)
    stamp = out.with_name(out.name + ".stamp")
    wanted = json.dumps([str(tree.resolve()), len(files), images])
    if stamp.exists() and stamp.read_text() == wanted:
        return out
    shutil.rmtree(out, ignore_errors=True)
    for number in range(images):
        repeated = images > len(files)
        at = number % len(files) if repeated else number * len(files) // images
        source = Path(files[at][0])
        folder = out / source.relative_to(tree).parts[0]
        folder.mkdir(parents=True, exist_ok=True)
        os.symlink(source.resolve(), folder / f"{number:08d}-{source.name}")
    stamp.write_text(wanted)
    return out


def small_tree(tree: Path, out: Path, images: int, classes: int = 8) -> Path:
    """Make a tree of few images of several classes, so that wrong labels show early."""
    by_class: dict[int, list[str]] = {}
    for path, label in listing(tree):
        by_class.setdefault(label, []).append(path)
    shutil.rmtree(out, ignore_errors=True)
    each = -(-images // min(classes, len(by_class)))
    chosen: list[str] = []
    for paths in by_class.values():  # more classes, where they are small
        if len(chosen) < images:
            chosen += paths[:each]
    for path in chosen:
        target = out / Path(path).relative_to(tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(Path(path).resolve(), target)
    return out


def listing(tree: Path) -> list[tuple[str, int]]:
    """Return paths and labels of a tree, in torchvision's order."""
    files = image_folder(str(tree)) if tree.is_dir() else []
    if not files:
        raise SourceError(f"{tree}: no images in class folders", "Name the folder of the classes.")
    return files


def prepare(contender: Contender, tree: Path, work: Path, case: str = "") -> Path:
    """Prepare a contender's data, unless they exist; return their path."""
    if contender.folder == "tree":
        return tree
    folder = contender.folder.format(case=case)
    out, stamp = work / folder, work / f"{folder}.stamp"
    # What follows from the tree and the writer is there already if neither has changed.
    content = hashlib.sha256(contender.path.read_bytes())
    for path, label in listing(tree):
        content.update(f"{path}\0{label}\0{os.stat(path).st_size}\0".encode())
    wanted = content.hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return out
    print(f"preparing {out}", file=sys.stderr)
    stamp.unlink(missing_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    variant = contender.variant if contender.prepared_as is None else contender.prepared_as
    variant = case if folder != contender.folder else variant
    run_preparation(contender.interpreter, contender.path, tree, out, variant)
    if not out.exists():
        raise ContenderError(f"preparing {out.name} made nothing")
    stamp.write_text(wanted)
    return out


def fill(data: Path, most: int = sys.maxsize) -> bool:
    """Read the data into the page cache; return False if they are too many, or do not fit."""
    if size(data) > min(most, available_memory()):
        return False
    buffer = bytearray(1 << 20)
    seen = set()
    for path in _files(data):
        stat = path.stat()
        if (stat.st_dev, stat.st_ino) in seen:
            continue  # a tree of links has each image many times
        seen.add((stat.st_dev, stat.st_ino))
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return True


def size(data: Path) -> int:
    """Return the bytes of all files of a folder, or of one file."""
    return sum(path.stat().st_size for path in _files(data))


def _files(data: Path) -> Iterator[Path]:
    if data.is_file():
        yield data
    for folder, _, names in os.walk(data, followlinks=True):
        yield from (Path(folder, name) for name in names)

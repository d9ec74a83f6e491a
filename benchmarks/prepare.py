"""Conversion of a tree of images for each contender, once.

Every peer's data is written by the peer's own writer, in the peer's own environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

from fastdata.benchmarks.adapters._transforms import image_folder
from fastdata.benchmarks.contender_process import ContenderError, run_preparation
from fastdata.benchmarks.contenders import Contender

from fastdata.errors import SourceError


def repeat_tree(tree: Path, out: Path, images: int) -> Path:
    """Make a tree of links that repeats a tree's images.

    Raises:
        SourceError: There are no images in ``tree``.
    """
    files = listing(tree)
    stamp = out.with_name(out.name + ".stamp")
    wanted = json.dumps([str(tree.resolve()), len(files), images])
    if _read(stamp) == wanted:
        return out
    shutil.rmtree(out, ignore_errors=True)
    for number in range(images):
        source = Path(files[number % len(files)][0])
        folder = out / source.relative_to(tree).parts[0]
        folder.mkdir(parents=True, exist_ok=True)
        name = "-".join(source.relative_to(tree).parts[1:])
        os.symlink(source.resolve(), folder / f"{number // len(files):06d}-{name}")
    stamp.write_text(wanted)
    return out


def small_tree(tree: Path, out: Path, images: int, classes: int = 8) -> Path:
    """Make a tree of few images of several classes, so that wrong labels show early."""
    files = listing(tree)
    by_class: dict[int, list[str]] = {}
    for path, label in files:
        by_class.setdefault(label, []).append(path)
    labels = list(by_class)[:classes]
    shutil.rmtree(out, ignore_errors=True)
    for label in labels:
        for path in by_class[label][: -(-images // len(labels))]:
            target = out / Path(path).relative_to(tree)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(Path(path).resolve(), target)
    return out


def listing(tree: Path) -> list[tuple[str, int]]:
    """Return paths and labels of a tree, in torchvision's order.

    Raises:
        SourceError: There are none.
    """
    files = image_folder(str(tree)) if tree.is_dir() else []
    if not files:
        raise SourceError(f"{tree}: no images in class folders", "Name the folder of the classes.")
    return files


def prepare(contender: Contender, tree: Path, work: Path, environments: Path) -> Path:
    """Prepare a contender's data, unless they exist; return their path.

    Raises:
        ContenderError: The writer failed; says why.
    """
    if contender.folder == "tree":
        return tree
    out = work / contender.folder
    stamp = work / f"{contender.folder}.stamp"
    # What follows from the tree and the writer is there already if neither has changed.
    content = hashlib.sha256(contender.path.read_bytes())
    for path, label in listing(tree):
        content.update(f"{path}\0{label}\0{os.stat(path).st_size}\0".encode())
    wanted = content.hexdigest()
    if _read(stamp) == wanted:
        return out
    print(f"preparing {out}", file=sys.stderr)
    stamp.unlink(missing_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    variant = contender.variant if contender.prepared_as is None else contender.prepared_as
    interpreter = contender.interpreter(environments)
    run_preparation(interpreter, contender.path, tree, out, variant)
    if not out.exists():
        raise ContenderError(f"preparing {out.name} made nothing")
    stamp.write_text(wanted)
    return out


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None

"""Packing and indexing, beside tar."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _workload import Workload, contenders, write_tars
from fastdata.benchmarks.adapters._serve import CPU, PRIVATE, Request, serve, total
from fastdata.benchmarks.adapters._transforms import image_folder

_CONVERT = ["convert", "imagefolder", "--root", "{tree}", "--no-shuffle"]
#: Arguments of fastdata. Those without seek points compare with tar, which copies bytes: building
#: seek points is a full entropy decode of every JPEG.
_COMMANDS = {
    "lmdb": [*_CONVERT, "--to", "lmdb", "--no-seek-points"],
    "parquet": [*_CONVERT, "--to", "parquet", "--no-seek-points"],
    "shards": [*_CONVERT, "--to", "shards", "--no-seek-points"],
    "lmdb, seek points": [*_CONVERT, "--to", "lmdb"],
    "shards, seek points": [*_CONVERT, "--to", "shards"],
    "index of tars": ["index", "{tars}"],
}

WORKLOAD = Workload(
    "Packing",
    contenders(__file__, {"tar, sync": "", **dict.fromkeys(_COMMANDS, "")}),
    columns=("images/s", "times", "CPU ms an image", "private, MB"),
    against="tar, sync",
    options={"threads": (2,), "rounds": 5},
)


def prepare(tree: str, out: str, variant: str) -> None:
    """Write tars, and note the tree."""
    write_tars(tree, Path(out) / "tars")
    (Path(out) / "tree").symlink_to(Path(tree).resolve())


def _run(request: Request, out: Path) -> dict[str, Any]:
    """Run a contender; return its figures."""
    folder = Path(request.data)
    command = ["tar", "-chf", str(out), "-C", str(folder / "tree"), "."]
    if request.variant in _COMMANDS:
        places = {"tree": folder / "tree", "tars": folder / "tars"}
        arguments = [one.format(**places) for one in _COMMANDS[request.variant]]
        command = [sys.executable, "-m", "fastdata", *arguments, "--out", str(out)]
        command += ["--workers", str(request.threads)]
    if out.exists():
        shutil.rmtree(out) if out.is_dir() else out.unlink()
    own, cpu, begun, peak = total(*PRIVATE), total(*CPU), time.perf_counter(), 0
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        while process.poll() is None:
            peak = max(peak, total(*PRIVATE) - own)
            time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(f"{command} failed")
    subprocess.run(["sync"], check=True)
    return {
        "images": len(image_folder(str(folder / "tree"))),
        "seconds": time.perf_counter() - begun,
        "cpu_s": total(*CPU) - cpu,
        "peak_private_bytes": peak,
    }


def figures(request: Request) -> dict[str, Any]:
    """Time a contender."""
    return _run(request, Path(request.data, "out"))


def open_loader(request: Request) -> Iterator[Any]:
    """Yield the bytes of each image that a contender wrote, in the order of the tree."""
    out, tree = Path(request.data, "out"), Path(request.data, "tree")
    _run(request, out)
    if request.variant in _COMMANDS:
        from fastdata import ImageDataset

        dataset = ImageDataset(out)
        for row in range(min(request.check, len(dataset))):
            yield bytes(dataset.read([row])[0]), [0]
        return
    with tarfile.open(out) as tar:
        for path, _ in image_folder(str(tree))[: request.check]:
            file: Any = tar.extractfile(f"./{Path(path).relative_to(tree)}")
            yield file.read(), [0]


if __name__ == "__main__":
    serve(open_loader, prepare, figures=figures, packages=["fastdata"])

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
from fastdata.benchmarks.adapters._serve import CPU, PRIVATE, ContenderRequest, serve, total
from fastdata.benchmarks.adapters._transforms import image_folder

_CONVERT = "convert imagefolder --root tree --out out --no-shuffle --to"
#: Commands in the folder of the data. Those without seek points compare with tar, which copies
#: bytes: building seek points is a full entropy decode of every JPEG.
_COMMANDS = {
    "tar, sync": "tar -C tree -chf out .",
    **{name: f"{_CONVERT} {name} --no-seek-points" for name in ("lmdb", "parquet", "shards")},
    **{f"{name}, seek points": f"{_CONVERT} {name}" for name in ("lmdb", "shards")},
    "index of tars": "index tars --out out",
}

WORKLOAD = Workload(
    "Packing",
    contenders(__file__, dict.fromkeys(_COMMANDS, ""), needs="webdataset"),
    columns=("images/s", "times", "CPU ms an image", "private, MB"),
    against="tar, sync",
    options={"threads": (2,), "rounds": 5},
)


def prepare(tree: str, out: str, variant: str) -> None:
    """Write tars, and note the tree."""
    write_tars(tree, Path(out) / "tars")
    (Path(out) / "tree").symlink_to(Path(tree).resolve())


def figures(request: ContenderRequest) -> dict[str, Any]:
    """Run and time a contender's command."""
    folder, command = Path(request.data), _COMMANDS[request.variant].split()
    if command[0] != "tar":
        workers = ["--workers", str(request.threads)]
        command = [sys.executable, "-m", "fastdata", *command, *workers]
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").unlink(missing_ok=True)
    own, cpu, begun, peak = total(*PRIVATE), total(*CPU), time.perf_counter(), 0
    with subprocess.Popen(command, cwd=folder, stdout=sys.stderr) as process:
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


def open_loader(request: ContenderRequest) -> Iterator[Any]:
    """Yield the bytes of each image that a contender wrote, in the order of the tree."""
    from fastdata import ImageDataset

    figures(request)
    out, tree = Path(request.data, "out"), Path(request.data, "tree")
    files = [Path(path).relative_to(tree) for path, _ in image_folder(str(tree))][: request.check]
    if request.variant == WORKLOAD.against:
        with tarfile.open(out) as tar:
            written: Any = [tar.extractfile(f"./{path}") for path in files]
            written = [file.read() for file in written]
    else:
        written = map(bytes, ImageDataset(out).read(range(len(files))))
    yield from ((image, [0]) for image in written)


if __name__ == "__main__":
    serve(open_loader, prepare, figures=figures, packages=["fastdata"])

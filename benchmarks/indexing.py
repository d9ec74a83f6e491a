"""Cost of an index over tars of others: samples a second of CPU time, memory, opening.

    python -m fastdata.benchmarks.indexing imagenet/train --out indexing.json

Makes a WebDataset of small JPEGs, a million samples in a thousand tars (6 GB), and runs
``fastdata index`` on it, with one worker unless told otherwise. Each measurement is a process of
its own.
"""

from __future__ import annotations

import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import click
from fastdata.benchmarks.measure import Figures, machine, out_option, report, run_command
from fastdata.benchmarks.prepare import listing
from PIL import Image

from fastdata.storage.files import human_bytes
from fastdata.storage.records import INDEX_NAME

#: Photographs that the samples repeat.
_DISTINCT = 100
#: Shorter side of their copies, in pixels.
_SIDE = 64
_OPEN = """
import json, sys, time
from fastdata import ImageDataset
wall, cpu = time.perf_counter(), time.process_time()
dataset = ImageDataset(sys.argv[1])
times = time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps([len(dataset), *times]))
"""


def members(key: str, jpeg: bytes, label: int) -> bytes:
    """Return the tar members of a sample: its JPEG, class and JSON, as img2dataset writes them."""
    about = json.dumps({"key": key, "label": label, "status": "success"}).encode()
    parts = []
    for extension, data in (("cls", str(label).encode()), ("jpg", jpeg), ("json", about)):
        info = tarfile.TarInfo(f"{key}.{extension}")
        info.size = len(data)
        padding = bytes(-len(data) % tarfile.BLOCKSIZE)
        parts += [info.tobuf(tarfile.USTAR_FORMAT), data, padding]
    return b"".join(parts)


def write(root: Path, out: Path, shards: int, rows: int) -> int:
    """Write tars of small copies of photographs; return the bytes of the tars."""
    files = listing(root)
    jpegs = [_small(path) for path, _ in files[:: max(1, len(files) // _DISTINCT)][:_DISTINCT]]
    out.mkdir()
    size = 0
    for shard in range(shards):
        with (out / f"{shard:06}.tar").open("wb") as file:
            for row in range(rows):
                number = shard * rows + row
                jpeg = jpegs[number * 31 % len(jpegs)]
                file.write(members(f"{number:010}", jpeg, number % 1000))
            size += file.write(bytes(2 * tarfile.BLOCKSIZE)) and file.tell()
    return size


def _small(path: str) -> bytes:
    with Image.open(path) as image:
        scale = _SIDE / min(image.size)
        small = image.convert("RGB").resize([round(side * scale) for side in image.size])
    file = io.BytesIO()
    small.save(file, "JPEG", quality=85)
    return file.getvalue()


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(
    root: Path, shards: int, rows: int, workers: int, rounds: int, folder: Path | None
) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        tars, out = Path(scratch, "tars"), Path(scratch, "index")
        size = write(root, tars, shards, rows)
        command = [sys.executable, "-m", "fastdata", "index", str(tars), "--out", str(out)]
        command += [f"--workers={workers}", "--force"]
        runs = []
        for number in range(rounds):
            before = _cpu()
            # Sampling memory slows the command down, but costs CPU time of this process alone.
            run = run_command(command, sample_memory=True)
            runs.append([_cpu() - before, run.private_bytes])
            print(f"run {number + 1}: {runs[-1]}", file=sys.stderr)
        opened = []
        for _ in range(5):
            arguments = [sys.executable, "-c", _OPEN, str(out)]
            done = subprocess.run(arguments, check=True, capture_output=True, text=True)
            opened.append(json.loads(done.stdout))
        if {one[0] for one in opened} != {shards * rows}:
            raise SystemExit(f"the index has {opened[0][0]} samples, not {shards * rows}")
        return {
            "benchmark": "indexing",
            "machine": machine(),
            "shards": shards,
            "samples": shards * rows,
            "workers": workers,
            "tar_bytes": size,
            "index_bytes": sum(one.stat().st_size for one in out.rglob(INDEX_NAME)),
            "load": os.getloadavg()[0],
            "runs": runs,
            "open": [one[1:] for one in opened],
        }


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results: medians of the runs."""
    cpu, memory = (statistics.median(of) for of in zip(*result["runs"], strict=True))
    opened, opened_cpu = (statistics.median(of) * 1e3 for of in zip(*result["open"], strict=True))
    samples = result["samples"]
    rows = [
        ["samples per second of CPU time", f"{samples / cpu:,.0f}"],
        ["CPU time a sample, µs", f"{cpu / samples * 1e6:.0f}"],
        ["memory of all processes", human_bytes(int(memory))],
        ["index", human_bytes(result["index_bytes"])],
        ["`ImageDataset(index)`, ms", f"{opened:.1f}"],
        ["of CPU", f"{opened_cpu:.1f}"],
    ]
    title = f"{samples:,} samples, {result['shards']:,} tars, " + human_bytes(result["tar_bytes"])
    return Figures(title, ["", "`fastdata index`"], rows)


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--shards", default=1000, show_default=True, help="Tars.")
@click.option("--rows", default=1000, show_default=True, help="Samples of a tar.")
@click.option("--workers", default=1, show_default=True, help="Processes of `fastdata index`.")
@click.option("--rounds", default=1, show_default=True, help="Runs of `fastdata index`.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the tars are made. [default: the system's folder for such]",
)
@out_option
def main(root: Path, out_path: Path | None, **options: Any) -> None:
    """Measure `fastdata index` on a WebDataset of small copies of photographs.

    ROOT is a folder with a folder of photographs for each class.

    Example: python -m fastdata.benchmarks.indexing imagenet/train --folder /data
    """
    result = measure(root, **options)
    report(result, out_path, figures(result))


if __name__ == "__main__":
    main()

"""What listing and packing cost on a cluster: measured pieces, and the arithmetic over them.

The work of one worker is measured here; the driver's share is run at full size, over a listing
whose shards are links to one: it cannot tell, since it reads lengths alone.

    python -m fastdata.benchmarks.listing_plan
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from fastdata.benchmarks.measure import machine
from fastdata.converters.listing import (
    Fingerprints,
    Listing,
    ListShard,
    RepeatedHashes,
    write_listing,
)
from fastdata.converters.packing import SHARD_SIZE
from fastdata.converters.parts import Part
from fastdata.converters.records import Listable, Record

from fastdata.executors import InProcess
from fastdata.storage.files import sync
from fastdata.storage.index import SCHEMA, Row, rows_to_batch, write_index
from fastdata.storage.manifest import FileEntry

_SHARD_ROWS = 100_000
_MEAN_BYTES = 110_000
#: Bytes of an image's seek points, at the default stride.
_SEEK_BYTES = 900

# What is assumed of others' machines.
_STAT_SECONDS, _STATS_AT_MOST = 0.2e-3, 100_000  # of a shared file system: each, a second
_PAGE_SECONDS, _PAGE_NAMES, _PAGES_AT_MOST = 0.1, 1_000, 1_000  # LIST of an object store
_PACKED_A_SECOND = 1_085  # images a CPU, shards with seek points: docs/packing.md

_SIZES = (1_280_000, 100_000_000, 5_000_000_000)
_WORKERS = (1, 10, 1_000)


class Synthetic(NamedTuple):
    """Records as of one class of a large tree."""

    number: int
    rows: int

    def records(self) -> Iterator[Record]:
        """Yields them."""
        folder = f"n{self.number:08d}"
        for at in range(self.rows):
            name = f"{folder}/{folder}_{at:08d}"
            length = 20_000 + (at * 7919 + self.number) % 180_000
            yield Record(name, self.number, f"/data/train/{name}.JPEG", 0, length, 1 << 60)


class SyntheticSource:
    """A source of so many shards."""

    classes = ("synthetic",)

    def __init__(self, shards: int, rows: int) -> None:
        self._shards = [Synthetic(number, rows) for number in range(shards)]
        self.about = {"kind": "synthetic", "root": "synthetic"}

    def shards(self) -> list[Listable]:
        """They."""
        return list(self._shards)


def measure_worker(folder: Path) -> dict[str, float]:
    """Images a second of each of a worker's tasks, and the sizes of what it writes."""
    source: Any = SyntheticSource(2, _SHARD_ROWS)
    found: dict[str, float] = {}
    with InProcess() as executor:
        begun = time.perf_counter()
        for numbered in enumerate(source.shards()):
            ListShard(folder)(numbered)
        found["list"] = 2 * _SHARD_ROWS / (time.perf_counter() - begun)
        written = sum(path.stat().st_size for path in folder.iterdir())
        found["listing_bytes"] = written / (2 * _SHARD_ROWS)
        listing = write_listing(source, folder, lambda count: None, executor)
    begun = time.perf_counter()
    RepeatedHashes(folder, 2, 1)(0)
    found["check"] = 2 * _SHARD_ROWS / (time.perf_counter() - begun)
    runs = list(listing.runs(0, len(listing), SHARD_SIZE, 1 << 62))
    begun = time.perf_counter()
    Fingerprints(folder, "{}")(runs)
    found["fingerprint"] = 2 * _SHARD_ROWS / (time.perf_counter() - begun)
    return found


def measure_join(folder: Path) -> dict[str, float]:
    """Images a second of joining parts to the index, and the bytes of an index row."""
    rows = [
        Row(f"n01440764/n01440764_{at:08d}", 0, 0, None, at * _MEAN_BYTES, _MEAN_BYTES, 500, 375,
            3, "jpeg", at, os.urandom(_SEEK_BYTES))
        for at in range(2_048)
    ]  # fmt: skip
    batches = [rows_to_batch(rows).cast(SCHEMA)] * 250
    begun = time.perf_counter()
    count = write_index(folder / "index.arrow", batches)
    sync(folder / "index.arrow")
    seconds = time.perf_counter() - begun
    size = (folder / "index.arrow").stat().st_size
    return {"join": count / seconds, "index_bytes": size / count}


_DRIVER = """
import sys
from pathlib import Path
from fastdata.benchmarks.listing_plan import drive
drive(Path(sys.argv[1]))
"""


def measure_driver(folder: Path, images: int) -> dict[str, float]:
    """Runs the driver's share over a listing of so many images, in a process of its own."""
    with InProcess() as executor:
        write_listing(_source(1), folder, lambda count: None, executor)
    shards = images // _SHARD_ROWS
    for number in range(1, shards):
        os.link(folder / "000000.arrow", folder / f"{number:06d}.arrow")
    about = json.loads((folder / "shards.json").read_text())
    total = {"rows": about["rows"] * shards, "bytes": about["bytes"] * shards}
    (folder / "shards.json").write_text(json.dumps(total))
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, str(folder)], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found | {"images": shards * _SHARD_ROWS}


def _source(shards: int) -> Any:
    return SyntheticSource(shards, _SHARD_ROWS)


class _Elsewhere(InProcess):
    """An executor whose tasks cost this process nothing: their results come from elsewhere."""

    def run(
        self,
        function: Callable[[Any], Any],
        items: Iterable[Any],
        tick: Callable[[], None] = lambda: None,
        ahead: int = 0,
    ) -> Iterator[Any]:
        """Yields a fingerprint for each unit."""
        for runs in items:
            yield [f"{start:032x}" for start, _, _ in runs]


def drive(folder: Path) -> None:
    """What the driver does between listing and packing; prints seconds, units and memory."""
    before = _peak()
    begun = time.perf_counter()
    listing = Listing(folder)
    with _Elsewhere() as executor:
        units = list(listing.units(SHARD_SIZE, 1 << 18, {}, chained=False, executor=executor))
    seconds = time.perf_counter() - begun
    # What it holds in the end, when it has read what each part says of its file.
    parts = [
        Part(
            unit.fingerprint[::-1],
            unit.stop - unit.start,
            unit.size,
            FileEntry(f"shard-{unit.number:06d}.tar", unit.size + unit.number, f"{unit.start:08x}"),
            [],
        )
        for unit in units
    ]
    memory = _peak() - before
    assert len(parts) == len(units)
    print(json.dumps({"seconds": seconds, "units": len(units), "memory": memory}))


def _peak() -> int:
    """The most memory that this process has had, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    return 0


def arithmetic(worker: dict[str, float], driver: list[dict[str, float]]) -> list[list[str]]:
    """A row for each number of images and workers."""
    small, large = driver[0], driver[-1]
    per_unit = (large["memory"] - small["memory"]) / (large["units"] - small["units"])
    fixed = large["memory"] - per_unit * large["units"]
    table = []
    for images in _SIZES:
        units = images * _MEAN_BYTES / SHARD_SIZE
        cut = images * large["seconds"] / large["images"]
        for workers in _WORKERS:
            stats = max(images * _STAT_SECONDS / workers, images / _STATS_AT_MOST)
            pages = images / _PAGE_NAMES
            listing = max(pages * _PAGE_SECONDS / workers, pages / _PAGES_AT_MOST)
            cpu = sum(images / worker[task] for task in ("list", "check", "fingerprint"))
            packing = images / (_PACKED_A_SECOND * workers)
            table.append(
                [
                    f"{images:,}",
                    f"{workers:,}",
                    f"{images:,} / {pages:,.0f}",
                    _size(images * worker["listing_bytes"]),
                    _size(images * 8),
                    _size(fixed + units * per_unit),
                    f"{_time(stats)} / {_time(listing)}",
                    _time(cpu / workers),
                    _time(cut),
                    _time(packing),
                    _size(_PACKED_A_SECOND * workers * _MEAN_BYTES) + "/s",
                    _time(images / worker["join"]),
                ]
            )
    return table


def _time(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.0f} {name}"
    return f"{seconds:,.1f} s"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@click.command()
@click.option(
    "--images",
    default="1_200_000,100_000_000",
    show_default=True,
    help="Sizes, for the driver.",
)
@click.option("--work", type=click.Path(path_type=Path), help="[default: a temporary folder]")
def main(images: str, work: Path | None) -> None:
    """Measure the listing's pieces and print the plan as Markdown."""
    with tempfile.TemporaryDirectory(dir=work, prefix="fastdata-bench-") as folder:
        worker = measure_worker(_made(Path(folder) / "worker"))
        worker |= measure_join(_made(Path(folder) / "join"))
        driver = [
            measure_driver(_made(Path(folder) / count), int(count)) for count in images.split(",")
        ]
    about = machine()
    print(f"{about['cpu']}, {about['cpus']} CPUs; {about['system']}; Python {about['python']}.\n")
    rows = [
        ["list, one worker", f"{worker['list']:,.0f}"],
        ["look for repeated keys, one worker", f"{worker['check']:,.0f}"],
        ["fingerprints, one worker", f"{worker['fingerprint']:,.0f}"],
        ["join the index, the driver", f"{worker['join']:,.0f}"],
    ]
    print(markdown(["task", "images/s"], rows) + "\n")
    print(f"Bytes an image: {worker['listing_bytes']:.0f} of listing and hashes, "
          f"{worker['index_bytes']:,.0f} of index.\n")  # fmt: skip
    rows = [
        [f"{d['images']:,}", f"{d['units']:,}", f"{d['seconds']:.1f}", f"{d['memory'] / 1e6:.1f}"]
        for d in driver
    ]
    print(markdown(["images", "files", "driver, s", "driver's memory, MB"], rows) + "\n")
    head = ["images", "CPUs", "stats / LIST pages", "listing written", "driver reads",
            "driver's memory", "wait for stats / pages", "listing tasks", "driver cuts", "packing",
            "reads and writes, each", "index joined"]  # fmt: skip
    print(markdown(head, arithmetic(worker, driver)))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()

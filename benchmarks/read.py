"""Reading what is to be decoded: pread against a memory map, checksums, read-ahead.

    fastdata convert imagefolder --root imagenet/val --to shards --out shards
    python -m fastdata.benchmarks.read --dataset shards

A dataset in few files, warm in the page cache; RandomResizedCrop(224) from seek points to
uint8, one thread (pin it: ``taskset -c 1``), CPU time. All contenders take turns within one
run. Then bytes alone, by their extents, beside the containers' own readers (`read_extents`).
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from fastdata.benchmarks import read_extents
from fastdata.benchmarks.decode import BATCH, SIZE, random_resized_crop
from fastdata.benchmarks.measure import Spread, interleave

from fastdata import ImageDataset, _native
from fastdata.decode import PendingBatch, jpeg_info
from fastdata.errors import UsageError
from fastdata.storage.blobs import Blobs
from fastdata.storage.extents import ExtentTable


class Work:
    """The JPEGs of a dataset in an order that is not theirs, and a crop each."""

    def __init__(self, folder: Path) -> None:
        blobs = Blobs(folder)
        manifest = blobs.manifest
        self.files = [folder / entry.name for entry in manifest.files]
        sizes = [entry.size for entry in manifest.files]
        self.table = ExtentTable(blobs.index, self.files, sizes, None)
        order = np.random.default_rng(0).permutation(len(blobs.index))
        rows = [blobs.index[i] for i in order.tolist()]
        dataset = ImageDataset(folder, staged=False)
        chosen = [
            i
            for i, row in enumerate(rows)
            if row.encoding == "jpeg"
            and row.path is None
            and jpeg_info(dataset.read([int(order[i])])[0]).native
        ]
        if not chosen:
            raise UsageError(f"{folder} has no JPEGs in shared files", "Name another dataset.")
        self.order = order[chosen]
        self.rows = [rows[i] for i in chosen]
        rng = random.Random(0)
        crops = [random_resized_crop(row.width, row.height, rng) for row in self.rows]
        self.boxes = np.array(crops, np.int32)
        self.out = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)

    def decode(self, begin: int, samples: Any, **options: Any) -> None:
        """One batch in this thread."""
        boxes = self.boxes[begin : begin + BATCH]
        pending = PendingBatch(samples, self.out[: len(boxes)], regions=boxes, **options)
        pending._job.run()
        if failures := pending.raw_failures():
            sys.exit(f"not all were decoded: {failures[0]}")

    def by_pread(self, *, check: bool) -> None:
        """The core reads extents."""
        for begin in range(0, len(self.order), BATCH):
            extents = self.table.gather(self.order[begin : begin + BATCH])
            self.decode(begin, extents, check=check)

    def by_map(self, maps: list[memoryview] | None, *, check: bool) -> None:
        """The core decodes what is mapped; None: mapped anew, so that pages must be found."""
        maps = maps or self.map()
        for begin in range(0, len(self.order), BATCH):
            rows = self.rows[begin : begin + BATCH]
            parts = [maps[r.file][r.offset : r.offset + r.length] for r in rows]
            if check and any(
                _native.crc32c(part) != row.crc32c for part, row in zip(parts, rows, strict=True)
            ):
                sys.exit("a checksum is wrong")
            self.decode(begin, parts, seek_points=[row.seek_points for row in rows])

    def map(self) -> list[memoryview]:
        """Maps all files."""
        maps = []
        for file in self.files:
            with file.open("rb") as opened:
                maps.append(memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)))
        return maps

    def advise(self) -> None:
        """The read-ahead that a batch of extents asks for, alone."""
        descriptors = [os.open(file, os.O_RDONLY) for file in self.files]
        for row in self.rows:
            os.posix_fadvise(descriptors[row.file], row.offset, row.length, os.POSIX_FADV_WILLNEED)
        for descriptor in descriptors:
            os.close(descriptor)


@click.command()
@click.option("--dataset", type=click.Path(path_type=Path), required=True, multiple=True)
@click.option("--rounds", default=9, show_default=True)
@click.option("--cold", is_flag=True, help="Drop the page cache before each reading of extents.")
def main(dataset: tuple[Path, ...], rounds: int, cold: bool) -> None:
    """Compare ways to read; --dataset may be given once for each container."""
    for path in dataset:
        try:
            ways_of_the_core(path, rounds)
        except UsageError as error:
            print(error, file=sys.stderr)  # folders and pixels have extents all the same
    read_extents.measure(dataset, rounds, cold=cold).show()


def ways_of_the_core(dataset: Path, rounds: int) -> None:
    """Prints what reading and decoding costs the core, by pread and through memory maps."""
    work = Work(dataset)
    maps = work.map()

    def microseconds(run: Callable[[], None]) -> Callable[[], float]:
        def timed() -> float:
            start = time.process_time()  # a machine may have other work
            run()
            return 1e6 * (time.process_time() - start) / len(work.order)

        return timed

    contenders: dict[str, Callable[[], None]] = {
        "pread, checksum": lambda: work.by_pread(check=True),
        "pread": lambda: work.by_pread(check=False),
        "map, checksum": lambda: work.by_map(maps, check=True),
        "map": lambda: work.by_map(maps, check=False),
        "map anew, checksum": lambda: work.by_map(None, check=True),
        "map anew": lambda: work.by_map(None, check=False),
        "read-ahead alone": work.advise,
    }
    for run in contenders.values():
        run()
    figures = interleave({name: microseconds(run) for name, run in contenders.items()}, rounds)
    mean = sum(row.length for row in work.rows) / len(work.rows)
    print(f"{len(work.order)} JPEGs of {mean / 1000:.0f} kB, {_native.simd()}; us an image")
    for name, values in figures.items():
        print(f"  {name:20} {Spread.of(values)}")


if __name__ == "__main__":
    main()

"""Reading encoded images alone: fastdata's extents against LMDB's and pyarrow's own reads.

Every way reads the same images, in the order of the data and in another, one thread, wall time.
What a way gives is compared with fastdata's bytes before anything is timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import lmdb
import numpy as np
import pyarrow.parquet as pq
from fastdata.benchmarks import page_cache
from fastdata.benchmarks.measure import Figures, Spread, interleave

from fastdata import ImageDataset

_BATCH = 64
#: Images of a reading at most: pyarrow reads a row group for each that is taken at random.
_MOST = 1000

#: Bytes of samples in an order.
Reader = Callable[[Sequence[int]], Iterator[bytes]]


def readers(dataset: Path) -> dict[str, Reader]:
    """Ways to read a dataset, by name."""
    opened = ImageDataset(dataset, staged=False)

    def extents(order: Sequence[int]) -> Iterator[bytes]:
        for begin in range(0, len(order), _BATCH):
            yield from opened.read(list(order[begin : begin + _BATCH]))

    container = opened._blobs.manifest.container
    found: dict[str, Reader] = {f"fastdata, {container}": extents}
    if container == "lmdb":
        found["py-lmdb, get"] = partial(_lmdb, dataset)
    if container == "parquet":
        found["pyarrow, row groups"] = partial(_parquet, dataset)
    return found


def _lmdb(dataset: Path, order: Sequence[int]) -> Iterator[bytes]:
    environment = lmdb.open(str(dataset), readonly=True, lock=False)
    with environment, environment.begin() as transaction:
        for index in order:
            value = transaction.get(index.to_bytes(8, "big"))
            if value is None:
                raise SystemExit(f"{dataset}: there is no sample {index}")
            yield value


def _parquet(dataset: Path, order: Sequence[int]) -> Iterator[bytes]:
    """A row group is the least that pyarrow reads; one is kept until another is needed."""
    groups = []
    for path in sorted(dataset.glob("*.parquet")):
        file = pq.ParquetFile(path)
        for number in range(file.num_row_groups):
            groups += [
                (file, number, row) for row in range(file.metadata.row_group(number).num_rows)
            ]
    kept, column = None, None
    for index in order:
        file, number, row = groups[index]
        if kept != (file, number):
            kept, column = (file, number), file.read_row_group(number, columns=["image"])["image"]
        assert column is not None
        yield column[row].as_py()


def measure(datasets: Sequence[Path], rounds: int, *, cold: bool) -> Figures:
    """Reads every dataset in every way.

    Args:
        datasets: One for each container.
        rounds: How often.
        cold: Whether the page cache is dropped before each.

    Raises:
        SystemExit: A way gave other bytes.
    """
    runs: dict[str, Callable[[], float]] = {}
    for dataset in datasets:
        count = len(ImageDataset(dataset, staged=False))
        orders = {
            "in order": range(min(count, _MOST)),
            "at random": np.random.default_rng(0).permutation(count)[:_MOST].tolist(),
        }
        ways = readers(dataset)
        wanted, *others = (list(read(range(min(count, 2 * _BATCH)))) for read in ways.values())
        if any(other != wanted for other in others):
            raise SystemExit(f"{dataset}: {', '.join(ways)} do not give the same bytes")
        for way, read in ways.items():
            for name, order in orders.items():
                runs[f"{way}, {name}"] = partial(_microseconds, read, order, dataset, cold)
    times = interleave(runs, rounds)
    how = "page cache dropped" if cold else "page cache filled"
    rows = [[name, str(Spread.of(values))] for name, values in times.items()]
    return Figures(f"Reading alone, {how}; fastdata checks checksums", ["", "us an image"], rows)


def _microseconds(read: Reader, order: Sequence[int], dataset: Path, cold: bool) -> float:
    if not cold:
        page_cache.fill(dataset)
    elif not page_cache.drop(dataset):
        print("the page cache could not be dropped: this is not a cold start", file=sys.stderr)
    begun = time.perf_counter()
    for _ in read(order):
        pass
    return 1e6 * (time.perf_counter() - begun) / len(order)

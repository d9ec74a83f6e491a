"""Order of packing: the source's, or a permutation by a seed.

A loader that reads neighbours together, from a disk or an object store, mixes within windows. A
source that is sorted by class then gives batches of few classes (docs/remote.md). So
containers for such reading are shuffled here: the rows of the listing are written in another
order, and the later steps pack them as any listing.

Single files are permuted one by one, because any of them is read equally fast. Images in
archives are read a *block* at a time: neighbours of about 2 MiB, or the rows of a Parquet row
group. The blocks are permuted. Then the images of each *window*, consecutive blocks of about
64 MiB, are permuted among each other. A task reads a window in the archive's order and holds it
in memory. So a loader's block of 32 images mixes images of many of the source's blocks.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastdata.converters.listing import (
    AHEAD,
    ROWS_PER_BATCH,
    Listing,
    open_shards,
    shard_path,
    write_shard,
    write_summary,
)

from fastdata.executors import Executor
from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.storage.arrow import as_numpy, unsliced, validity

#: Names of the orders.
SHUFFLED, SOURCE = ORDERS = ("shuffled", "source")

#: Bytes of neighbours to read together, and of blocks to mix in memory.
BLOCK_BYTES = 2 << 20
WINDOW_BYTES = 64 << 20

#: Rows to sort in memory at a time, on average; and rows to spread at a time.
_BUCKET_ROWS, _SPREAD_ROWS = 131_072, 32_768
#: Bytes of pixels in a listing that count as one more row.
_BYTES_PER_ROW = 256

#: Columns that are added to a listing's, to sort by.
_KEYS = ("block", "draw")

#: Names of splits for evaluation and for training.
_EVALUATION = {"val", "valid", "validation", "test", "testing", "eval", "evaluation", "dev"}
_TRAINING = {"train", "training"}


def is_split(name: str) -> bool:
    """Return whether a file or folder has the name of a split; train2017 and val.csv have, too."""
    stem = re.sub(r"[\W\d_]+$", "", name.partition(".")[0].lower())
    return stem in _TRAINING | _EVALUATION


def split_to_pack(classes: Iterable[str]) -> str | None:
    """Return the folder to pack by itself if all class folders have names of splits.

    It is the split for training, else the first in order; None if the folders are classes.
    """
    names = sorted(classes, key=lambda name: (name.lower() not in _TRAINING, name))
    if not names or not {name.lower() for name in names} <= _TRAINING | _EVALUATION:
        return None
    return names[0]


def default_order(container: str, about: Mapping[str, Any]) -> str:
    """Return the default order of packing.

    The split or the folder's name in the source's ``about`` shows whether it is for evaluation.
    """
    if container not in ("parquet", "shards") or _is_evaluation(about):
        return SOURCE
    return SHUFFLED


def _is_evaluation(about: Mapping[str, Any]) -> bool:
    if "of" in about:  # a packed dataset as the source
        return _is_evaluation(about["of"])
    name = about.get("split") or str(about.get("root", "")).rstrip("/").rpartition("/")[2]
    return not _EVALUATION.isdisjoint(re.split(r"[^a-z]+", str(name).lower()))


def shuffle_listing(
    listing: Listing,
    folder: Path,
    seed: int,
    executor: Executor,
    *,
    bucket_rows: int = _BUCKET_ROWS,
    spread_rows: int = _SPREAD_ROWS,
) -> Listing:
    """Write a listing in another order, by an external sort with keys of the seed and row."""
    shutil.rmtree(folder, ignore_errors=True)
    spread = folder / "spread"
    spread.mkdir(parents=True)
    buckets = 1 + (len(listing) + listing.totals.held // _BYTES_PER_ROW) // bucket_rows
    key = epoch_key(seed, -1)  # loaders never use this epoch
    task = partial(_spread, listing.folder, spread, key, buckets, spread_rows)
    shards = len(listing.starts) - 1
    for _ in executor.run(task, range(shards), ahead=AHEAD):
        pass
    gather = partial(_gather, spread, folder, shards, buckets)
    rows = list(executor.run(gather, range(buckets), ahead=AHEAD))
    write_summary(folder, rows, listing.totals, listing.left_out)
    shutil.rmtree(spread, ignore_errors=True)
    return Listing(folder)


def _spread(
    source: Path, folder: Path, key: int, buckets: int, rows_at_once: int, shard: int
) -> None:
    """Write a shard's rows with their keys, as one record batch per bucket and group of rows."""
    listing = Listing(source)
    start, stop = listing.starts[shard : shard + 2]
    schema = keyed_schema = listing.schema
    for name in _KEYS:
        keyed_schema = keyed_schema.append(pa.field(name, pa.uint64()))

    def batches() -> Any:
        for first in range(start, stop, rows_at_once):
            rows = _joined(listing.batches(first, min(stop, first + rows_at_once)), schema)
            numbers = np.arange(first, first + len(rows), dtype=np.int64)
            blocks = sample_keys(key, first + _block_starts(rows))
            draws = sample_keys(key, numbers, view=1)
            keyed = pa.RecordBatch.from_arrays(
                [*rows.columns, _array(blocks), _array(draws)], schema=keyed_schema
            )
            # Upper half of the product: maps 32-bit fractions evenly to buckets.
            bucket = (blocks >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)
            ends = np.searchsorted(np.sort(bucket), np.arange(buckets), side="right")
            keyed = _taken(keyed, np.argsort(bucket, kind="stable"))
            for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
                yield keyed.slice(begin, end - begin)

    write_shard(shard_path(folder, shard), batches(), keyed_schema)


def _block_starts(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return for each row the first row of its block, whose rows are read together."""
    places = np.arange(len(rows))
    path = as_numpy(rows.column("path").dictionary_encode().indices)
    grouped = rows.column("group")
    group = np.where(validity(grouped), as_numpy(grouped), -1)
    begins = np.empty(len(rows), np.bool_)
    begins[0] = True
    begins[1:] = (path[1:] != path[:-1]) | (group[1:] != group[:-1])
    # Pixels in the listing need no reading, so each row is a block.
    pixels = rows.column("pixels")
    if pixels.null_count < len(rows):
        begins |= validity(pixels)
    run = np.maximum.accumulate(np.where(begins, places, 0))
    before = np.cumsum(as_numpy(rows.column("size"))) - as_numpy(rows.column("size"))
    piece = (before - before[run]) // BLOCK_BYTES
    piece[group >= 0] = 0
    begins[1:] |= piece[1:] != piece[:-1]
    return np.maximum.accumulate(np.where(begins, places, 0))


def _gather(spread: Path, folder: Path, shards: int, buckets: int, bucket: int) -> int:
    """Sort one bucket's rows and write them as a shard of the new listing."""
    found = []
    for reader in open_shards(spread, range(shards)):
        schema = reader.schema
        numbers = range(bucket, reader.num_record_batches, buckets)
        found += [reader.get_batch(number) for number in numbers]
    rows = _joined(found, schema)
    if len(rows):
        rows = _shuffled(rows, bucket)
    rows = rows.select([name for name in schema.names if name not in _KEYS])
    pieces = (rows.slice(at, ROWS_PER_BATCH) for at in range(0, len(rows), ROWS_PER_BATCH))
    write_shard(shard_path(folder, bucket), pieces, rows.schema)
    return len(rows)


def _shuffled(rows: pa.RecordBatch, bucket: int) -> pa.RecordBatch:
    rows = _taken(rows, np.argsort(as_numpy(rows.column("block")), kind="stable"))
    block = as_numpy(rows.column("block"))
    begins = np.append(True, block[1:] != block[:-1])
    if begins.all():
        return rows
    before = np.cumsum(as_numpy(rows.column("size"))) - as_numpy(rows.column("size"))
    starts = before[np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))]
    window = starts // WINDOW_BYTES
    order = np.lexsort((as_numpy(rows.column("draw")), window))
    # Windows of different buckets have different numbers.
    numbers = (window[order] + (bucket << 32)).astype(np.int64)
    at = rows.schema.get_field_index("window")
    return _taken(rows, order).set_column(at, rows.schema.field(at), _array(numbers))


def _joined(batches: Any, schema: pa.Schema) -> pa.RecordBatch:
    found = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema=schema)


def _taken(rows: pa.RecordBatch, numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
    columns = [unsliced(column).take(_array(numbers)) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _array(values: npt.NDArray[Any]) -> pa.Array:
    # pa.array() would import pandas.
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])

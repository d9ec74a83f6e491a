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

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastdata.converters.listing import (
    ROWS_PER_BATCH,
    RecordListing,
    shard_path,
    write_shard,
    write_summary,
)

from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.storage.arrow import as_numpy, validity

#: Bytes of neighbours to read together, and of blocks to mix in memory.
BLOCK_BYTES = 2 << 20
WINDOW_BYTES = 64 << 20

#: Rows to write at a time, and neighbours to compare at a time.
_SHARD_ROWS, _ROWS_COMPARED = 262_144, 32_768
#: Bytes of fields in a listing that count as one more row.
_BYTES_PER_ROW = 256


def shuffle_listing(
    listing: RecordListing, folder: Path, seed: int, *, shard_rows: int = _SHARD_ROWS
) -> RecordListing:
    """Write a listing in another order, by keys of the seed and row.

    Holds some numbers of every row in memory, and whole rows a shard at a time.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    order, window = _permutation(listing, epoch_key(seed, -1))  # loaders never use this epoch
    shards = 1 + (len(listing) + listing.totals.held // _BYTES_PER_ROW) // shard_rows
    counts = []
    for number, places in enumerate(np.array_split(np.arange(len(order)), shards)):
        rows = _rows(listing, order[places])
        if window is not None:
            at = rows.schema.get_field_index("window")
            rows = rows.set_column(at, rows.schema.field(at), _array(window[places]))
        batches = rows.to_batches(ROWS_PER_BATCH)
        write_shard(shard_path(folder, number), iter(batches), rows.schema)
        counts.append(len(rows))
    write_summary(folder, counts, listing.totals, listing.left_out)
    return RecordListing(folder)


def _permutation(
    listing: RecordListing, key: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Return the rows in their new order, and the window of each; None if no blocks are mixed."""
    block, size = np.empty(len(listing), np.uint64), np.empty(len(listing), np.int64)
    for start, stop in pairwise(listing.starts):
        for first in range(start, stop, _ROWS_COMPARED):
            end = min(stop, first + _ROWS_COMPARED)
            batches = listing.batches(first, end)
            columns = (batch.select(["path", "group", "size"]) for batch in batches)
            rows = pa.Table.from_batches(columns).combine_chunks().to_batches()[0]
            block[first:end] = sample_keys(key, first + _block_starts(rows))
            size[first:end] = as_numpy(rows.column("size"))
    order = np.argsort(block, kind="stable")
    block, size = block[order], size[order]
    begins = np.append(True, block[1:] != block[:-1])
    if begins.all():
        return order, None
    before = np.cumsum(size) - size
    window = before[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
    window //= WINDOW_BYTES
    mixed = np.lexsort((sample_keys(key, order, view=1), window))
    return order[mixed], window[mixed]


def _block_starts(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return for each row the first row of its block, whose rows are read together."""
    places = np.arange(len(rows))
    path = as_numpy(rows.column("path").dictionary_encode().indices)
    grouped = rows.column("group")
    group = np.where(validity(grouped), as_numpy(grouped), -1)
    begins = np.empty(len(rows), np.bool_)
    begins[0] = True
    begins[1:] = (path[1:] != path[:-1]) | (group[1:] != group[:-1])
    run = np.maximum.accumulate(np.where(begins, places, 0))
    before = np.cumsum(as_numpy(rows.column("size"))) - as_numpy(rows.column("size"))
    piece = (before - before[run]) // BLOCK_BYTES
    piece[group >= 0] = 0
    begins[1:] |= piece[1:] != piece[:-1]
    return np.maximum.accumulate(np.where(begins, places, 0))


def _rows(listing: RecordListing, numbers: npt.NDArray[np.int64]) -> pa.Table:
    """Return rows of a listing in the order of their numbers."""
    ascending = np.sort(numbers)

    def taken() -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in listing.batches(0, len(listing)):
            begin, end = np.searchsorted(ascending, [first, first + len(batch)])
            if begin < end:
                yield batch.take(_array(ascending[begin:end] - first))
            first += len(batch)

    rows = pa.Table.from_batches(taken(), listing.schema).combine_chunks()
    return rows.take(_array(np.searchsorted(ascending, numbers)))


def _array(values: npt.NDArray[Any]) -> pa.Array:
    # pa.array() would import pandas.
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])

"""Seek points for a dataset's JPEGs: built while packing, or added to a packed dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from fastdata.decode.jpeg import SEEK_BATCH, seek_tables
from fastdata.decode.pillow import ImageInfo
from fastdata.errors import BusyError, SampleError, UsageError
from fastdata.executors import local_executor, report
from fastdata.machine import usable_cpus
from fastdata.remote.opening import open_packed
from fastdata.storage.arrow import array
from fastdata.storage.encodings import DEFAULT_STRIDE
from fastdata.storage.files import crc32c_file, file_lock, whole_file, write_whole
from fastdata.storage.manifest import MANIFEST_NAME, FileEntry
from fastdata.storage.packed import IndexedSource
from fastdata.storage.records import SCHEMA, write_index

_LOCK_NAME = "_index.lock"
#: Names of indexes, and of indexes and manifests while they are written.
_OURS = re.compile(
    r"(_index(-\d+)?\.rows|_learnt\.points)(\.\d+\.partial)?|_dataset\.json\.\d+\.partial"
)

#: Samples whose seek points one task builds.
_ROWS = 256

#: Columns of the index but the seek points: damage to these is no reason to stop here.
_OTHERS = tuple(name for name in SCHEMA.names if name != "seek_points")

#: Pixels of the widest JPEG.
_WIDEST = 65_535


class Seeking(NamedTuple):
    """Result of adding seek points.

    Attributes:
        samples: Number of the dataset's samples.
        with_seek_points: How many of them have seek points now.
        seek_bytes: Bytes of all seek tables.
        blob_bytes: Bytes of all source.
    """

    samples: int
    with_seek_points: int
    seek_bytes: int
    blob_bytes: int


def add_seek_points(
    path: str | os.PathLike[str],
    *,
    stride: int | None = DEFAULT_STRIDE,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Seeking:
    """Add seek points to a dataset with an index, or replace or remove those that it has.

    Blobs are read and not written; those whose seek points loaders have learnt are not read. A new
    index is written beside the old one, and then a new manifest that names it: readers see either
    the old or the new index.

    Args:
        path: The dataset's folder. Its images may lie behind a URL.
        stride: Pixels between points; None removes them.
        workers: Worker processes; None for one a CPU.
        progress: Called now and then with the number of samples done and of all.
        storage_options: Options of the driver of the images' URL.

    Raises:
        UsageError: ``stride`` or ``workers`` is out of range.
        DatasetError: There is no dataset at ``path``, or a blob cannot be read.
        BusyError: Another process does so at this moment.
        OSError: The folder cannot be written to.
    """
    if stride is not None and not 1 <= stride <= _WIDEST:
        raise UsageError(f"--stride {stride} is not a distance", f"Use 1 to {_WIDEST:,} pixels.")
    folder = Path(path)
    busy = BusyError(f"{folder}: another process is indexing it", "Run this again when it is done.")
    with file_lock(folder / _LOCK_NAME, busy):
        return _add(folder, open_packed(folder, storage_options), stride, workers, progress)


def _add(
    folder: Path,
    source: IndexedSource,
    stride: int | None,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Seeking:
    old = source.manifest
    total = old.samples
    tables: list[int] = []
    names = (f"_index-{number}.rows" for number in count(1))
    name = next(name for name in names if not (folder / name).exists())
    runs = [range(at, min(at + _ROWS, total)) for at in range(0, total, _ROWS)]
    build = partial(_build, source, stride)
    with local_executor(workers) as executor:

        def tick() -> None:
            if progress is not None:
                progress(executor.reported[0], total)

        def batches() -> Iterator[pa.RecordBatch]:
            field = SCHEMA.field("seek_points")
            for run, made in zip(runs, executor.run(build, runs, tick), strict=True):
                tables.extend(len(table) for table in made if table is not None)
                start = 0
                for batch in source.index.batches(run.start, run.stop, _OTHERS):
                    values = made[start : start + batch.num_rows]
                    start += batch.num_rows
                    yield batch.append_column(field, array(values, pa.binary()))

        with whole_file(folder / name) as temporary:
            write_index(temporary, batches(), total, old.generation)
    index = folder / name
    entry = FileEntry(name, index.stat().st_size, f"{crc32c_file(index, usable_cpus()):08x}")
    manifest = replace(old, index=entry, options={**old.options, "seek_points": stride})
    write_whole(folder / MANIFEST_NAME, manifest.to_json())
    (folder / old.index.name).unlink(missing_ok=True)
    for path in folder.iterdir():  # what killed runs have left
        if path.name != name and _OURS.fullmatch(path.name):
            path.unlink()
    return Seeking(total, len(tables), sum(tables), old.blob_bytes)


def _build(source: IndexedSource, stride: int | None, run: range) -> list[bytes | None]:
    """Return the seek tables of a run of rows; None for rows without one."""
    tables_of_rows: list[bytes | None] = []
    for start in range(run.start, run.stop, SEEK_BATCH):
        numbers = range(start, min(start + SEEK_BATCH, run.stop))
        rows = list(source.index.rows(numbers.start, numbers.stop, seek_points=False))
        images: dict[int, tuple[bytes, ImageInfo]] = {}
        tables: dict[int, bytes | None] = {}
        for number, row in zip(numbers, rows, strict=True):
            if stride is None or row.encoding != "jpeg":
                continue
            tables[number] = source.learnt(number) if stride == DEFAULT_STRIDE else None
            if tables[number] is None:
                info = ImageInfo(row.encoding, row.width, row.height, row.channels)
                images[number] = source.read([row], number)[0], info
        # A damaged image is no reason to stop here: it was packed as it is.
        for number, table in zip(images, seek_tables([*images.values()], stride), strict=True):
            tables[number] = None if isinstance(table, SampleError) else table
        tables_of_rows += map(tables.get, numbers)
        report(len(rows), sum(row.length for row in rows))
    return tables_of_rows

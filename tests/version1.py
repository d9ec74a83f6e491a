"""Datasets of version 1 of the format: the writer that made them, and datasets turned into them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from containers import edit_manifest

from fastdata.storage.blobs import Blobs
from fastdata.storage.checksum import crc32c_file
from fastdata.storage.index import ROWS_PER_BATCH, SCHEMA


def write_index(
    path: Path, batches: Iterable[pa.RecordBatch], *, rows_per_batch: int = ROWS_PER_BATCH
) -> int:
    """Writes an index from batches of any size, as fastdata did; the number of rows."""
    total = 0
    pending: list[pa.RecordBatch] = []
    held = 0
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, SCHEMA) as writer,
    ):
        for batch in batches:
            total += batch.num_rows
            pending.append(batch)
            held += batch.num_rows
            while held >= rows_per_batch:
                joined = pa.concat_batches(pending)
                writer.write_batch(joined.slice(0, rows_per_batch))
                pending = [joined.slice(rows_per_batch)]
                held -= rows_per_batch
        if held:
            writer.write_batch(pa.concat_batches(pending))
    return total


def make_version_1(dataset: Path, *, checksum: bool = True) -> Path:
    """Turns a packed dataset into one of version 1, in place: other names, another index.

    Without ``checksum``, the manifest has none, as the first ones.
    """
    index = dataset / "index.arrow"
    blobs = Blobs(dataset)
    write_index(index, blobs.index.batches())
    (dataset / blobs.manifest.index.name).unlink()
    (dataset / "_dataset.json").rename(dataset / "dataset.json")
    if (dataset / "_bad-samples.jsonl").exists():
        (dataset / "_bad-samples.jsonl").rename(dataset / "bad-samples.jsonl")
    edit_manifest(dataset, lambda fields: fields.update(format_version=1, index=_entry(index)))
    if not checksum:
        fields = json.loads((dataset / "dataset.json").read_text("utf-8"))
        del fields["checksum"]
        (dataset / "dataset.json").write_text(json.dumps(fields), "utf-8")
    return dataset


def edit_index(dataset: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Writes an index of version 1 anew with other rows, and its manifest with it."""
    index = dataset / "index.arrow"
    table = change(pa.ipc.open_file(index.read_bytes()).read_all())
    with pa.OSFile(str(index), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    edit_manifest(dataset, lambda fields: fields.update(index=_entry(index)))


def _entry(index: Path) -> dict[str, Any]:
    size, crc = index.stat().st_size, f"{crc32c_file(index):08x}"
    return {"name": index.name, "size": size, "crc32c": crc}

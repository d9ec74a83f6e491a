"""Parts: the index rows of one unit, kept until the whole dataset is packed.

A part is written after its output has reached the disk. So a unit is done exactly if its part
exists and has the right fingerprint. Resuming needs nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from fastdata.storage.arrow import array
from fastdata.storage.jsontext import parse_json
from fastdata.storage.manifest import FileEntry
from fastdata.storage.records import SCHEMA, Row, rows_to_batch

#: Rows held as Python objects before they become a batch, which needs a fifth of the memory.
_ROWS_HELD = 1024


class Bad(NamedTuple):
    """Image that cannot be packed.

    Attributes:
        key: The sample's key.
        path: The file that contains it.
        reason: The problem.
        unread: Whether reading failed, so that a later try may succeed with the same file.
        size: Its bytes in the source's listing.
    """

    key: str
    path: str
    reason: str
    unread: bool
    size: int


class Prepared(NamedTuple):
    """Run of records, ready to write.

    Attributes:
        rows: Their index rows, without offsets.
        blobs: Their bytes, one per row; None to read them again from the source.
        bad: The images that cannot be packed.
    """

    rows: list[Row]
    blobs: list[bytes] | None
    bad: list[Bad]


class Part(NamedTuple):
    """Metadata of a part.

    Attributes:
        fingerprint: The unit's fingerprint.
        samples: Number of its index rows.
        blob_bytes: Sum of their blobs' lengths.
        file: The unit's own output file; None without one.
        bad: The unit's images that were not packed.
    """

    fingerprint: str
    samples: int
    blob_bytes: int
    file: FileEntry | None
    bad: list[Bad]


class PartBuilder:
    """Builder of a part, which collects index rows while the unit is written."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._batches: list[pa.RecordBatch] = []
        self._bad: list[Bad] = []
        self.samples = 0
        self._blob_bytes = 0

    def add(self, row: Row) -> None:
        """Append the row of a sample that has been written."""
        self._rows.append(row)
        self.samples += 1
        self._blob_bytes += row.length
        if len(self._rows) == _ROWS_HELD:
            self._flush()

    def add_bad(self, bad: Bad) -> None:
        """Record an image that cannot be packed."""
        self._bad.append(bad)

    def _flush(self) -> None:
        self._batches.append(rows_to_batch(self._rows))
        self._rows = []

    def write(
        self,
        path: Path,
        fingerprint: str,
        *,
        file_number: int,
        file: FileEntry | None = None,
        offsets: Sequence[int] | None = None,
    ) -> None:
        """Write the part.

        ``offsets`` replaces the rows' own.
        """
        self._flush()
        about = Part(fingerprint, self.samples, self._blob_bytes, None, self._bad)._asdict()
        about["file"] = asdict(file) if file else None
        schema = SCHEMA.with_metadata({"part": json.dumps(about)})
        rows = pa.Table.from_batches(self._batches, SCHEMA)
        rows = _with_column(rows, "file", [file_number] * self.samples)
        if offsets is not None:
            rows = _with_column(rows, "offset", offsets)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_table(rows.cast(schema))


def _with_column(rows: pa.Table, name: str, values: Sequence[int]) -> pa.Table:
    at = SCHEMA.get_field_index(name)
    return rows.set_column(at, SCHEMA.field(at), array(values, SCHEMA.field(at).type))


def read_part(path: Path) -> Part | None:
    """Return a part's metadata; None if there is no readable part."""
    try:
        with pa.memory_map(str(path)) as source:
            metadata = pa.ipc.open_file(source).schema.metadata
        about = parse_json(metadata[b"part"])
        file = FileEntry(**about["file"]) if about["file"] else None
        bad = [Bad(*entry) for entry in about["bad"]]
        return Part(about["fingerprint"], about["samples"], about["blob_bytes"], file, bad)
    except (OSError, pa.ArrowException, TypeError, KeyError, ValueError):
        return None


def read_rows(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the index rows of a part."""
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number).replace_schema_metadata(None)

"""Parts: the index rows of one unit, kept until the whole dataset is packed.

A part is written after its output has reached the disk. So a unit is done exactly if its part
exists and has the right fingerprint. Resuming needs nothing else. An LMDB's part is written before
its commit, and the number of samples in the file shows whether that came.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pyarrow as pa

from fastdata.storage.arrow import array, as_numpy, has_nulls
from fastdata.storage.fields import Field
from fastdata.storage.formats import Sample
from fastdata.storage.jsontext import parse_json
from fastdata.storage.manifest import FileEntry
from fastdata.storage.records import ROWS_PER_BATCH, SCHEMA, Row, rows_to_batch

#: Rows held as Python objects before they become a batch, which needs a fifth of the memory.
_ROWS_HELD = 1024


class Bad(NamedTuple):
    """Image that cannot be packed; if it is ``unread``, a later try may succeed with its file."""

    key: str
    path: str
    reason: str
    unread: bool


class Part(NamedTuple):
    """Metadata of a part.

    ``file`` is the unit's own output file. ``nulls`` names fields that a sample lacks, or that have
    nulls in their values. ``turned`` has keys of some samples whose annotations are for the stored
    image, and of some for which they are for the image as EXIF turns it.
    """

    fingerprint: str
    samples: int
    blob_bytes: int
    file: FileEntry | None
    bad: list[Bad]
    field_bytes: dict[str, int]
    nulls: list[str]
    digest: str
    turned: list[list[str]]


class PartBuilder:
    """Builder of a part, which collects index rows while the unit is written."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields
        self._schema = SCHEMA
        for field in fields:
            kind = field.type or pa.struct(list(SCHEMA))
            self._schema = self._schema.append(pa.field(FIELD + field.name, kind))
        self._held: list[Sample] = []
        self._batches: list[pa.RecordBatch] = []
        self._bad: list[Bad] = []
        self._turned: list[list[str]] = [[], []]
        self.samples = 0
        self._blob_bytes = 0

    def add(self, sample: Sample | Bad) -> TypeGuard[Sample]:
        """Append a sample, or an image that cannot be packed; return whether it is a sample."""
        if isinstance(sample, Bad):
            self._bad.append(sample)
            return False
        self._held.append(sample.without_blobs())
        if sample.is_turned is not None and not self._turned[sample.is_turned]:
            self._turned[sample.is_turned].append(sample.row.key)
        self.samples += 1
        self._blob_bytes += sample.blob_bytes
        if len(self._held) == _ROWS_HELD:
            self._flush()
        return True

    def _flush(self) -> None:
        held, self._held = self._held, []
        self._batches += self._batches_of(held)

    def _batches_of(self, held: Sequence[Sample]) -> list[pa.RecordBatch]:
        """Return samples in one batch; in several if their values have more than 2 GiB."""
        columns = list(rows_to_batch([sample.row for sample in held]).columns)
        for place, field in enumerate(self._fields):
            values = [sample.fields[place] for sample in held]
            if field.type is not None:
                try:
                    columns.append(array(values, field.type))
                except (OverflowError, pa.ArrowCapacityError):
                    if len(held) == 1:
                        raise
                    half = len(held) // 2
                    return self._batches_of(held[:half]) + self._batches_of(held[half:])
                continue
            rows = rows_to_batch([_NO_BLOB if value is None else value[0] for value in values])
            columns.append(pa.StructArray.from_arrays(rows.columns, fields=list(SCHEMA)))
        return [pa.RecordBatch.from_arrays(columns, schema=self._schema)]

    def write(
        self,
        path: Path,
        fingerprint: str,
        *,
        file_number: int,
        file: FileEntry | None = None,
        offsets: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Write the part; ``offsets`` by field replace the rows' own."""
        self._flush()
        rows = pa.Table.from_batches(self._batches, self._schema).combine_chunks()
        given = offsets or {}
        own = [_column(rows, name) for name in SCHEMA.names]
        columns: list[Any] = _placed(own, file_number, given.get("image")).columns
        sizes, nulls = {}, []
        for field in self._fields:
            if field.type is not None:
                values = rows.column(FIELD + field.name)  # of several chunks beyond 2 GiB
                columns.append(values)
                sizes[field.name] = values.nbytes
                null = any(map(has_nulls, values.chunks))
            else:
                blobs = _column(rows, FIELD + field.name).flatten()
                placed = _placed(blobs, file_number, given.get(field.name))
                columns.append(pa.StructArray.from_arrays(placed.columns, fields=list(SCHEMA)))
                null = not as_numpy(placed.column("channels")).all()
            nulls += [field.name] * null
        digest = hashlib.blake2b(digest_size=16)
        for batch in pa.Table.from_arrays(columns, schema=self._schema).to_batches(ROWS_PER_BATCH):
            digest.update(batch.serialize())
        known = fingerprint, self.samples, self._blob_bytes, None
        about: Any = Part(*known, self._bad, sizes, nulls, digest.hexdigest(), self._turned)
        about = about._asdict() | {"file": asdict(file) if file else None}
        schema = self._schema.with_metadata({"part": json.dumps(about)})
        written = pa.Table.from_arrays(columns, schema=schema)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_table(written, max_chunksize=ROWS_PER_BATCH)


#: Begins the names of columns for further fields.
FIELD = "field."
#: Row of a blob that a sample does not have.
_NO_BLOB = Row("", 0, 0, None, 0, 0, 0, 0, 0, "other", 0)


def _column(rows: pa.Table, name: str) -> pa.Array:
    chunks = rows.column(name).chunks
    return chunks[0] if chunks else pa.nulls(0, rows.schema.field(name).type)


def _placed(
    columns: Sequence[pa.Array], file_number: int, offsets: Sequence[int] | None
) -> pa.RecordBatch:
    """Return index rows with the file and the offsets of their blobs."""
    rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    present = as_numpy(rows.column("channels")) > 0
    placed: dict[str, Any] = {"file": np.where(present, file_number, 0)}
    if offsets is not None:
        placed["offset"] = offsets
    for name, values in placed.items():
        at = SCHEMA.get_field_index(name)
        rows = rows.set_column(at, SCHEMA.field(at), array(list(values), SCHEMA.field(at).type))
    return rows


def read_part(path: Path) -> Part | None:
    """Return a part's metadata; None if there is no readable part."""
    try:
        with pa.memory_map(str(path)) as source:
            metadata = pa.ipc.open_file(source).schema.metadata
        about = parse_json(metadata[b"part"])
        about["file"] = FileEntry(**about["file"]) if about["file"] else None
        about["bad"] = [Bad(*entry) for entry in about["bad"]]
        return Part(**about)
    except (OSError, pa.ArrowException, TypeError, KeyError, ValueError):
        return None


def read_rows(path: Path, field: str | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the index rows of a part: of its images, or of a further field's blobs."""
    for batch in _read(path, SCHEMA.names if field is None else [FIELD + field]):
        if field is None:
            yield batch.replace_schema_metadata(None)
        else:
            yield pa.RecordBatch.from_arrays(batch.column(0).flatten(), schema=SCHEMA)


def read_values(path: Path, field: str) -> Iterator[pa.Array]:
    """Yield the values of a further column of a part."""
    for batch in _read(path, [FIELD + field]):
        yield batch.column(0)


def _read(path: Path, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        places = [pa.ipc.open_file(source).schema.get_field_index(name) for name in names]
        reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=places))
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)

"""Parts: the index rows of one unit, kept until the whole dataset is packed.

A part is written after its output has reached the disk. So a unit is done exactly if its part
exists and has the right fingerprint. Resuming needs nothing else. An LMDB's part is written before
its commit, and the number of samples in the file shows whether that came.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pyarrow as pa

from fastdata.storage.arrow import array, as_numpy, has_nulls
from fastdata.storage.fields import IMAGE, Field
from fastdata.storage.formats import NewSample
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


class UnitPart(NamedTuple):
    """Metadata of a part.

    ``file`` is the unit's own output file. ``nulls`` names fields that a sample lacks, or that have
    nulls in their values. ``turned`` has keys of some samples whose annotations are for the stored
    image, and of some for which they are for the image as EXIF turns it. ``sections`` has the
    offset of each field's Arrow stream in the part: each reader would parse a schema of all fields.
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
    sections: dict[str, int]


class PartBuilder:
    """Builder of a part, which collects index rows while the unit is written."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields
        self._held: list[NewSample] = []
        #: Batches of the images' index rows, then of each field's values or index rows.
        self._batches: list[list[pa.RecordBatch]] = [[] for _ in range(1 + len(fields))]
        self._bad: list[Bad] = []
        self._turned: list[list[str]] = [[], []]
        self.samples = 0
        self._blob_bytes = 0

    def add(self, sample: NewSample | Bad) -> TypeGuard[NewSample]:
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
        self._batches[0].append(rows_to_batch([sample.row for sample in held]))
        for place, (field, batches) in enumerate(zip(self._fields, self._batches[1:], strict=True)):
            values = [sample.fields[place] for sample in held]
            if field.type is not None:
                batches += _batches_of(values, field)
            else:
                rows = [_NO_BLOB if value is None else value[0] for value in values]
                batches.append(rows_to_batch(rows))

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
        new_offsets = offsets or {}
        sizes, nulls, sections = {}, [], {}
        digest = hashlib.blake2b(digest_size=16)
        # Many fields make many small writes.
        with pa.output_stream(str(path), compression=None, buffer_size=1 << 20) as sink:
            for field, batches in zip((IMAGE, *self._fields), self._batches, strict=True):
                schema = SCHEMA if field.type is None else _schema_of(field)
                rows = pa.Table.from_batches(batches, schema).combine_chunks()
                if field.type is not None:  # of several chunks beyond 2 GiB
                    sizes[field.name] = rows.nbytes
                    null = any(map(has_nulls, rows.column(0).chunks))
                else:
                    rows = _placed(rows, file_number, new_offsets.get(field.name))
                    null = not all(as_numpy(one).all() for one in rows.column("channels").chunks)
                nulls += [field.name] * null
                sections[field.name] = sink.tell()
                with pa.ipc.new_stream(sink, schema) as writer:
                    for batch in rows.to_batches(ROWS_PER_BATCH):
                        digest.update(batch.serialize())
                        writer.write_batch(batch)
            known = fingerprint, self.samples, self._blob_bytes, None
            more = nulls, digest.hexdigest(), self._turned, sections
            metadata: Any = UnitPart(*known, self._bad, sizes, *more)._asdict()
            metadata["file"] = asdict(file) if file else None
            data = json.dumps(metadata).encode()
            sink.write(data + _LENGTH.pack(len(data)))


#: Ends a part: the length of the metadata before it.
_LENGTH = struct.Struct("<Q")


def _schema_of(field: Field) -> pa.Schema:
    return pa.schema([(field.name, field.type)])


def _batches_of(values: Sequence[Any], field: Field) -> list[pa.RecordBatch]:
    """Return values in one batch; in several if they have more than 2 GiB."""
    try:
        column = array(values, field.type)
    except (OverflowError, pa.ArrowCapacityError):
        if len(values) == 1:
            raise
        half = len(values) // 2
        return _batches_of(values[:half], field) + _batches_of(values[half:], field)
    return [pa.RecordBatch.from_arrays([column], schema=_schema_of(field))]


#: Number of the file of a blob that stays where it is.
NO_FILE = -1
#: Row of a blob that a sample does not have.
_NO_BLOB = Row("", 0, 0, None, 0, 0, 0, 0, 0, "other", 0)


def _placed(rows: pa.Table, file_number: int, offsets: Sequence[int] | None) -> pa.Table:
    """Return index rows with the file and the offsets of their blobs."""
    if file_number == NO_FILE and offsets is None:
        return rows
    channels = [as_numpy(chunk) for chunk in rows.column("channels").chunks]
    present = np.concatenate([*channels, np.empty(0, np.uint8)]) > 0
    placed: dict[str, Any] = {"file": np.where(present, file_number, 0)}
    if offsets is not None:
        placed["offset"] = offsets
    for name, values in placed.items():
        at = SCHEMA.get_field_index(name)
        rows = rows.set_column(at, SCHEMA.field(at), array(list(values), SCHEMA.field(at).type))
    return rows


def read_part(path: Path) -> UnitPart | None:
    """Return a part's metadata; None if there is no readable part."""
    try:
        with path.open("rb") as file:
            end = file.seek(-_LENGTH.size, os.SEEK_END)
            (length,) = _LENGTH.unpack(file.read())
            file.seek(end - length)
            metadata = parse_json(file.read(length))
        metadata["file"] = FileEntry(**metadata["file"]) if metadata["file"] else None
        metadata["bad"] = [Bad(*entry) for entry in metadata["bad"]]
        return UnitPart(**metadata)
    except (OSError, TypeError, KeyError, ValueError):
        return None


def read_section(path: Path, part: UnitPart, field: str) -> Iterator[pa.RecordBatch]:
    """Yield the index rows of a part's images or of a field's blobs, or a column's values."""
    with pa.memory_map(str(path)) as source:
        source.seek(part.sections[field])
        yield from pa.ipc.open_stream(source)

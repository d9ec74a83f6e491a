"""Rows of an index, and the layout of its file: a record of fixed size per row, then a heap.

`fastdata.storage.index` reads the file. The normative layout is docs/formats/index.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata._native import crc32c
from fastdata.errors import DatasetError
from fastdata.storage.arrow import array, as_numpy
from fastdata.storage.descriptors import write_exactly

INDEX_NAME = "_index.rows"

#: Rows that are read and written at a time. With their seek points (about 1 kB a row) they need
#: little memory; a read of so many is limited by its bytes, not by the call.
ROWS_PER_BATCH = 16_384

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("label", pa.int32(), nullable=False),
        pa.field("file", pa.int32(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field("channels", pa.uint8(), nullable=False),
        pa.field("encoding", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
        pa.field("seek_points", pa.binary()),
        pa.field("orientation", pa.uint8(), nullable=False),
    ]
)
#: The dictionary of the column ``encoding``, and the place of each name in it.
_DICTIONARY = array(_native.ENCODINGS, pa.string())
_CODES = {name: code for code, name in enumerate(_native.ENCODINGS)}

MAGIC = b"FDROWS3\n"
#: Magic, bytes of a record, zeros, rows, bytes of the heap, generation, zeros; then the checksum.
_HEADER = struct.Struct("<8sIIQQ8s20x")
_CRC = struct.Struct("<I")
#: Bytes before the first record.
RECORDS_AT = _HEADER.size + _CRC.size

RECORD = np.dtype(
    [
        ("offset", "<i8"),
        ("length", "<i8"),
        ("heap_at", "<i8"),
        ("file", "<i4"),
        ("label", "<i4"),
        ("width", "<i4"),
        ("height", "<i4"),
        ("crc32c", "<u4"),
        ("names_crc", "<u4"),
        ("key_size", "<u2"),
        ("path_size", "<u2"),
        ("table_size", "<u4"),
        ("encoding", "u1"),
        ("channels", "u1"),
        ("orientation", "u1"),
        ("zero", "u1"),
        ("crc", "<u4"),
    ]
)
#: Columns whose values the record itself holds.
_FIXED = frozenset(RECORD.names or ()) & frozenset(SCHEMA.names) - {"encoding"}
#: Columns whose values the heap holds.
IN_HEAP = frozenset({"key", "path", "seek_points"})
_OTHER = _CODES["other"]
_TABLE_CRC = _CRC.size
#: Most bytes of a key, and of a path: 16 bits store their sizes.
_MOST = 0xFFFF

#: Generation of an index of no packing, 16 hexadecimal digits.
NO_GENERATION = "0" * 16

Records = npt.NDArray[Any]
#: All keys, all paths and all seek tables of some rows, each one behind the other.
Values = tuple[bytes, bytes, bytes]


class Row(NamedTuple):
    """One sample's entry in the index.

    Attributes:
        key: The sample's name, unique in the dataset.
        label: Index of its class, from 0.
        file: Which of the manifest's files holds the blob; -1 where ``path`` does.
        path: The blob's own file, relative to the manifest's root; else None.
        offset: Where in the file the blob begins, in bytes; -1 while not yet known.
        length: The blob's length in bytes.
        width: Columns of the image, in pixels.
        height: Rows of the image, in pixels.
        channels: Colour components as stored: 1, 3 or 4.
        encoding: One of `fastdata.storage.encodings.ENCODINGS`.
        crc32c: CRC-32C of the blob.
        seek_points: Where a JPEG decoder may start; None where there are none.
        orientation: EXIF orientation of the image, 1 to 8.
    """

    key: str
    label: int
    file: int
    path: str | None
    offset: int
    length: int
    width: int
    height: int
    channels: int
    encoding: str
    crc32c: int
    seek_points: bytes | None = None
    orientation: int = 1


def rows_to_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as a record batch of `SCHEMA`."""
    columns: list[pa.Array] = []
    values = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    for field, column in zip(SCHEMA, values, strict=True):
        if field.name == "encoding":
            codes = array([_CODES[name] for name in column], pa.int8())
            columns.append(pa.DictionaryArray.from_arrays(codes, _DICTIONARY))
        else:
            columns.append(array(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def write_index(
    path: Path, batches: Iterable[pa.RecordBatch], rows: int, generation: str = NO_GENERATION
) -> None:
    """Write an index from batches of any size; hold a part of one batch in memory.

    Args:
        path: The file to write; an existing one is overwritten.
        batches: Record batches of `SCHEMA`; a key or path that is too long is a DatasetError.
        rows: How many rows they have in all; another number is a ValueError.
        generation: The manifest's.
    """
    done = heap_size = 0
    heap_at, seed = RECORDS_AT + rows * RECORD.itemsize, seed_of(generation)
    with path.open("wb", buffering=0) as file:
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_PER_BATCH):
                piece = batch.slice(start, ROWS_PER_BATCH)
                records, heap = _pack(path, piece, done, heap_size, seed)
                if done + len(records) > rows:
                    raise ValueError(f"more than {rows} rows")
                write_exactly(file.fileno(), records.tobytes(), RECORDS_AT + done * RECORD.itemsize)
                write_exactly(file.fileno(), heap, heap_at + heap_size)
                done += len(records)
                heap_size += len(heap)
        if done != rows:
            raise ValueError(f"{done} rows, not {rows}")
        write_exactly(file.fileno(), pack_header(rows, heap_size, generation), 0)


def write_extents(
    path: Path, columns: Mapping[str, Sequence[int]], rows: int, generation: str = NO_GENERATION
) -> None:
    """Write an index of extents alone: rows without names and labels, of no image.

    ``columns`` has the columns of `SCHEMA` that differ by row, by name.
    """
    records, nothing = np.zeros(rows, RECORD), np.zeros(rows, np.int64)
    for name, values in columns.items():
        records[name] = values
    records["height"] = records["channels"] = records["orientation"] = 1
    records["encoding"] = _OTHER
    none = b"", nothing
    _native.seal_records(records.view(np.uint8), 0, 0, none, none, none, seed_of(generation))
    path.write_bytes(pack_header(rows, 0, generation) + records.tobytes())


def pack_header(rows: int, heap_size: int, generation: str = NO_GENERATION) -> bytes:
    """Return the beginning of an index; the inverse of `parse_header`."""
    header = _HEADER.pack(MAGIC, RECORD.itemsize, 0, rows, heap_size, bytes.fromhex(generation))
    return header + _CRC.pack(crc32c(header))


def seed_of(generation: str) -> int:
    """Return the CRC-32C with which the checksums of an index's rows begin."""
    return crc32c(bytes.fromhex(generation))


def _pack(
    path: Path, batch: pa.RecordBatch, first: int, heap_at: int, seed: int
) -> tuple[Records, bytes]:
    """Return the records of the rows from number ``first`` on, and their part of the heap."""
    records = np.zeros(batch.num_rows, RECORD)
    for name in _FIXED:
        records[name] = as_numpy(batch.column(name))
    records["encoding"] = _codes(batch.column("encoding"))
    columns = {name: _values(batch.column(name)) for name in ("key", "path", "seek_points")}
    for name in ("key", "path"):
        longest = int(columns[name][2].max(initial=0))
        if longest > _MOST:
            raise DatasetError(
                f"{path}: a {name} has {longest:,} bytes", f"Use names of at most {_MOST:,} bytes."
            )
    records["key_size"] = columns["key"][2]
    records["path_size"] = columns["path"][2]
    records["table_size"] = columns["seek_points"][2]
    keys, paths, tables = (column[:2] for column in columns.values())
    heap = _native.seal_records(records.view(np.uint8), first, heap_at, keys, paths, tables, seed)
    return records, heap


def _codes(column: pa.DictionaryArray) -> npt.NDArray[np.uint8]:
    """Return the codes of encodings; their dictionary may have another order, or other entries."""
    known = [_CODES.get(name, _OTHER) for name in column.dictionary.to_pylist()]
    codes: npt.NDArray[np.uint8] = np.array(known, np.uint8)[as_numpy(column.indices)]
    return codes


def _values(column: pa.Array) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return a column's values in one buffer, where each begins, and its length, 0 for null."""
    rows = len(column)
    if column.null_count == rows:
        return b"", np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    validity, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + rows + 1]
    ends = ends.astype(np.int64)
    lengths = np.diff(ends)
    if column.null_count:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        lengths[bits[column.offset : column.offset + rows] == 0] = 0
    return data or b"", ends[:-1].copy(), lengths


def parse_header(data: bytes) -> tuple[int, int, str]:
    """Return the number of rows, the bytes of the heap, and the generation of `RECORDS_AT` bytes.

    ValueError: the header is damaged, or no index has it; the text continues "the index".
    """
    magic, record_size, _, rows, heap_size, generation = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError("cannot be read: it does not begin as one of version 3")
    if _CRC.unpack_from(data, _HEADER.size) != (crc32c(data[: _HEADER.size]),):
        raise ValueError("is damaged: its header has another checksum")
    if record_size != RECORD.itemsize:
        raise ValueError(f"has records of {record_size} bytes, not {RECORD.itemsize}")
    return rows, heap_size, generation.hex()


def heap_span(records: Records) -> tuple[int, int]:
    """Return where in the heap the values of some rows begin and end."""
    last = records[-1]
    size = sum(int(last[name]) for name in ("key_size", "path_size", "table_size"))
    size += _TABLE_CRC if last["table_size"] else 0
    return int(records[0]["heap_at"]), int(last["heap_at"]) + size


def unpack_row(records: Records, values: Values) -> Row:
    """Return the row of a single record; raise UnicodeDecodeError for its key or path."""
    key, path, table = values
    record = dict(zip(RECORD.names or (), records[0].item(), strict=True))
    return Row(
        key=key.decode(),
        path=path.decode() or None,
        encoding=_native.ENCODINGS[_known(record["encoding"])],
        seek_points=table or None,
        **{name: record[name] for name in _FIXED},
    )


def unpack_batch(records: Records, values: Values | None, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch of some records; ``values`` may be None if ``schema`` needs none.

    pyarrow.ArrowException: a key or path is not UTF-8.
    """
    sizes = {"key": "key_size", "path": "path_size", "seek_points": "table_size"}
    in_heap = dict(zip(sizes, values or (), strict=False))
    arrays: list[pa.Array] = []
    for field in schema:
        if field.name == "encoding":
            codes = _known(records["encoding"]).astype(np.int8)
            arrays.append(pa.DictionaryArray.from_arrays(_fixed(codes), _DICTIONARY))
        elif field.name in in_heap:
            arrays.append(_variable(field, records[sizes[field.name]], in_heap[field.name]))
        else:
            arrays.append(_fixed(records[field.name]))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    batch.validate(full=True)  # that keys and paths are UTF-8
    return batch


def _known(codes: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Return codes that this fastdata knows, and "other" for unknown ones."""
    known: npt.NDArray[np.uint8] = np.where(np.less(codes, len(_native.ENCODINGS)), codes, _OTHER)
    return known


def _fixed(values: npt.NDArray[Any]) -> pa.Array:
    kind = pa.type_for_alias(str(values.dtype))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None, data])


def _variable(field: pa.Field, sizes: npt.NDArray[Any], data: bytes) -> pa.Array:
    """Return an array of values in one buffer; if nulls are allowed, empty values are null."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    validity = None
    if field.nullable:
        validity = pa.py_buffer(np.packbits(sizes > 0, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(field.type, len(sizes), buffers)

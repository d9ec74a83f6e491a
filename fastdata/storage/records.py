"""The index of the present version, ``_index.rows``: a record of fixed size a row, and a heap.

A record and what belongs to it in the heap have checksums that cover the row's number, and are read
by ``pread`` and checked where they are used. So opening costs the same for any number of rows, and
a file that is cut off, overwritten or cannot be read is an error. The normative layout is
docs/formats/index.md.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata.errors import CorruptionError, DatasetError
from fastdata.storage.arrow import as_numpy
from fastdata.storage.checksum import crc32c
from fastdata.storage.files import read_exactly
from fastdata.storage.index import (
    ENCODING_CODES,
    ENCODING_DICTIONARY,
    ROWS_PER_BATCH,
    SCHEMA,
    Index,
    Row,
)
from fastdata.storage.probe import ENCODINGS

INDEX_NAME = "_index.rows"

MAGIC = b"FDROWS2\n"
#: Magic, bytes of a record, zeros, rows, bytes of the heap, zeros; the checksum of these follows.
_HEADER = struct.Struct("<8sIIQQ28x")
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
        ("zeros", "<u2"),
        ("crc", "<u4"),
    ]
)
#: Columns whose values stand in the record itself, as they are.
_FIXED = frozenset(RECORD.names or ()) & frozenset(SCHEMA.names) - {"encoding"}
_IN_HEAP = frozenset({"key", "path", "seek_points"})
_OTHER = ENCODING_CODES["other"]
_TABLE_CRC = _CRC.size
#: Bytes that a key may have, and a path: their sizes are stored in 16 bits.
_MOST = 0xFFFF

Records = npt.NDArray[Any]


def write_index(path: Path, batches: Iterable[pa.RecordBatch], rows: int) -> None:
    """Writes an index from batches of any size; holds a part of one batch in memory.

    Args:
        path: Where to; an existing file is overwritten.
        batches: Record batches of `SCHEMA`, in the dataset's order.
        rows: How many rows they have in all.

    Raises:
        DatasetError: A key or path is too long.
        OSError: The file cannot be written.
        ValueError: There are more or fewer rows.
    """
    done = heap_size = 0
    heap_at = RECORDS_AT + rows * RECORD.itemsize
    with path.open("wb", buffering=0) as file:
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_PER_BATCH):
                piece = batch.slice(start, ROWS_PER_BATCH)
                records, heap = _pack(path, piece, done, heap_size)
                if done + len(records) > rows:
                    raise ValueError(f"more than {rows} rows")
                _write(file.fileno(), records.tobytes(), RECORDS_AT + done * RECORD.itemsize)
                _write(file.fileno(), heap, heap_at + heap_size)
                done += len(records)
                heap_size += len(heap)
        if done != rows:
            raise ValueError(f"{done} rows, not {rows}")
        header = _HEADER.pack(MAGIC, RECORD.itemsize, 0, rows, heap_size)
        _write(file.fileno(), header + _CRC.pack(crc32c(header)), 0)


def _write(descriptor: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(descriptor, rest, at)
        rest, at = rest[count:], at + count


def _pack(path: Path, batch: pa.RecordBatch, first: int, heap_at: int) -> tuple[Records, bytes]:
    """Records of the rows from number ``first`` on, and their part of the heap."""
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
    values = (column[:2] for column in columns.values())
    heap = _native.seal_records(records.view(np.uint8), first, heap_at, *values)
    return records, heap


def _known(codes: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Codes of this fastdata; a later one's are "other"."""
    known: npt.NDArray[np.uint8] = np.where(np.less(codes, len(ENCODINGS)), codes, _OTHER)
    return known


def _codes(column: pa.DictionaryArray) -> npt.NDArray[np.uint8]:
    """The codes of encodings, whose dictionary may be in another order, or have others."""
    known = [ENCODING_CODES.get(name, _OTHER) for name in column.dictionary.to_pylist()]
    codes: npt.NDArray[np.uint8] = np.array(known, np.uint8)[as_numpy(column.indices)]
    return codes


def _values(column: pa.Array) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A column's values one behind the other, where each begins, and its length; 0 of null."""
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


class RecordIndex(Index):
    """An index file of the present version that is open.

    Args:
        path: The index file.
        rows: How many rows the manifest says there are.

    Attributes:
        heap_size: Bytes of the heap, which follows the records.

    Raises:
        DatasetError: The user may not read the file.
        CorruptionError: The file is not an index of that many rows.
    """

    def __init__(self, path: Path, rows: int) -> None:
        super().__init__(path, rows)
        data = self._read(0, RECORDS_AT)
        magic, record_size, _, found, self.heap_size = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise self.corrupt("cannot be read: it does not begin as one of version 2")
        if _CRC.unpack_from(data, _HEADER.size) != (crc32c(data[: _HEADER.size]),):
            raise self.corrupt("is damaged: its header has another checksum")
        if record_size != RECORD.itemsize:
            raise self.corrupt(f"has records of {record_size} bytes, not {RECORD.itemsize}")
        if found != rows:
            raise self.corrupt(f"holds {found} rows, but the manifest says {rows}")
        self._heap_at = RECORDS_AT + rows * RECORD.itemsize
        if self._file.size != self._heap_at + self.heap_size:
            raise self.corrupt(
                f"has {self._file.size} bytes, its header says {self._heap_at + self.heap_size}"
            )

    def native_table(
        self, files: list[bytes], sizes: list[int], root: bytes | None, classes: int
    ) -> _native.RecordTable:
        """See `Index.native_table`."""
        file, rows = self._file.descriptor, len(self)
        return _native.RecordTable(
            file, RECORDS_AT, rows, self.heap_size, files, sizes, root, classes
        )

    def _read(self, at: int, size: int) -> bytes:
        self.require_unchanged()
        try:
            data = read_exactly(self._file.descriptor, at, size)
        except OSError as error:
            raise self.corrupt(f"cannot be read: {error.strerror}") from None
        if len(data) != size:
            raise self.corrupt(f"ends early, after {at + len(data)} bytes")
        return data

    def _records(self, start: int, stop: int) -> Records:
        """The records of some rows, checked."""
        size = RECORD.itemsize
        data = self._read(RECORDS_AT + start * size, (stop - start) * size)
        sound = _native.sound_records(data, start)
        if sound != stop - start:
            raise self._damaged(start + sound)
        return np.frombuffer(data, RECORD)

    def _heap(self, records: Records, start: int, with_tables: bool) -> tuple[bytes, bytes, bytes]:
        """All keys, paths and seek tables of some rows, checked."""
        begin, end = int(records[0]["heap_at"]), int(records[-1]["heap_at"])
        end += sum(int(records[-1][name]) for name in ("key_size", "path_size", "table_size"))
        end += _TABLE_CRC if records[-1]["table_size"] else 0
        if not 0 <= begin <= end <= self.heap_size:
            raise self._damaged(start)
        heap = self._read(self._heap_at + begin, end - begin)
        sound, *values = _native.split_heap(records.view(np.uint8), heap, start, with_tables)
        if sound != len(records):
            raise self._damaged(start + sound)
        keys, paths, tables = values
        return keys, paths, tables

    def _damaged(self, row: int) -> CorruptionError:
        return self.corrupt(f"is damaged at row {row}")

    def _row_at(self, position: int) -> Row:
        records = self._records(position, position + 1)
        key, path, table = self._heap(records, position, True)
        record = dict(zip(RECORD.names or (), records[0].item(), strict=True))
        try:
            return Row(
                key=key.decode(),
                path=path.decode() or None,
                encoding=ENCODINGS[_known(record["encoding"])],
                seek_points=table or None,
                **{name: record[name] for name in _FIXED},
            )
        except UnicodeDecodeError as error:
            raise self.corrupt(f"is damaged at row {position}: {error}") from None

    def batches(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `Index.batches`."""
        stop = self._rows if stop is None else stop
        schema = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in columns])
        for first in range(start, stop, ROWS_PER_BATCH):
            yield self._batch(first, min(first + ROWS_PER_BATCH, stop), schema)

    def _batch(self, start: int, stop: int, schema: pa.Schema) -> pa.RecordBatch:
        records = self._records(start, stop)
        data: dict[str, tuple[str, bytes]] = {}
        if not _IN_HEAP.isdisjoint(schema.names):
            tables = "seek_points" in schema.names
            keys, paths, tables_data = self._heap(records, start, tables)
            data["key"] = "key_size", keys
            data["path"] = "path_size", paths
            data["seek_points"] = "table_size", tables_data
        arrays: list[pa.Array] = []
        for field in schema:
            if field.name == "encoding":
                codes = _known(records["encoding"]).astype(np.int8)
                arrays.append(pa.DictionaryArray.from_arrays(_fixed(codes), ENCODING_DICTIONARY))
            elif field.name in data:
                size, values = data[field.name]
                arrays.append(_variable(field, records[size], values))
            else:
                arrays.append(_fixed(records[field.name]))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        try:
            batch.validate(full=True)  # that keys and paths are UTF-8
        except pa.ArrowException as error:
            raise self.corrupt(f"is damaged between rows {start} and {stop}: {error}") from None
        return batch

    def find_file(self, number: int) -> int:
        """See `Index.find_file`."""

        def file(row: int) -> int:
            return int(self._records(row, row + 1)[0]["file"])

        return bisect_left(range(self._rows), number, key=file)


def _fixed(values: npt.NDArray[Any]) -> pa.Array:
    kind = pa.type_for_alias(str(values.dtype))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None, data])


def _variable(field: pa.Field, sizes: npt.NDArray[Any], data: bytes) -> pa.Array:
    """Of values that lie one behind the other; where nulls may be, those of no bytes are."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    validity = None
    if field.nullable:
        validity = pa.py_buffer(np.packbits(sizes > 0, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(field.type, len(sizes), buffers)

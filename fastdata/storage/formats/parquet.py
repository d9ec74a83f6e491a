"""Parquet: one row a sample, images as Hugging Face writes them (docs/formats/parquet.md).

The column of blobs is uncompressed, PLAIN-encoded, never null, and each of its column chunks
is a single data page. Then a chunk is a page header followed by [4-byte length][blob] for
every row, and where each blob lies follows from the lengths alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fastdata.errors import CorruptionError
from fastdata.storage.arrow import array
from fastdata.storage.checksum import crc32c_file
from fastdata.storage.files import open_file, read_exactly
from fastdata.storage.records import Row

#: A row group ends at this many bytes of images, or rows. It is held in memory twice while
#: it is written, and is what readers like petastorm load at once.
ROW_GROUP_BYTES = 8 << 20
ROW_GROUP_ROWS = 8192  # pyarrow ends a page at 20,000 rows, and a row group must be one page

_FIELDS = (
    pa.field("key", pa.string(), nullable=False),
    # Hugging Face takes no other type for a ClassLabel, and none that cannot be null.
    pa.field("label", pa.int64()),
    pa.field("class", pa.string(), nullable=False),
    pa.field("width", pa.int32(), nullable=False),
    pa.field("height", pa.int32(), nullable=False),
)
_PLAIN = pa.field("image", pa.binary(), nullable=False)
#: Of Hugging Face's Image; its path may be null.
_STRUCT = pa.field("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
FILE_NAME = "part-{:06d}.parquet"
#: Columns as they are stored, where the blobs' is the same one by number.
_NAMES = [field.name for field in (*_FIELDS, _PLAIN)]
_STRUCT_NAMES = [*_NAMES, *(field.name for field in _STRUCT.type)]
_IMAGE_COLUMN = len(_FIELDS)
#: Errors of pyarrow on damaged files. Besides its own: for text that is not UTF-8, numbers out of
#: range, and sizes that a footer claims.
PARQUET_ERRORS = (pa.ArrowException, OSError, ValueError, LookupError, ArithmeticError, TypeError,
                  MemoryError, RecursionError)  # fmt: skip
_LENGTH_BYTES = 4  # PLAIN encoding of a BYTE_ARRAY: little-endian length, then the bytes


class ParquetWriter:
    """Writes one Parquet file.

    Args:
        path: The file.
        classes: Class names, by label.
        plain: Whether blobs are a column of bytes, not of Hugging Face's images.
    """

    def __init__(self, path: Path, classes: Sequence[str], *, plain: bool = False) -> None:
        self._path = path
        self._classes = classes
        self._schema = _schema(classes, plain)
        self._rows: list[Row] = []
        self._blobs: list[bytes] = []
        self._held = 0
        self._lengths: list[int] = []
        # A file, not a path, which pyarrow takes for a URI where it has a colon in it.
        self._file = pa.OSFile(str(path), "wb")
        self._writer = self._open(self._file)

    def _open(self, file: pa.NativeFile) -> pq.ParquetWriter:
        blobs = "image" if self._schema.field("image") == _PLAIN else "image.bytes"
        others = [field.name for field in _FIELDS] + ["image.path"]
        return pq.ParquetWriter(
            file,
            self._schema,
            compression=dict.fromkeys(others, "zstd") | {blobs: "none"},
            use_dictionary=["class"],
            write_statistics=["key", "label"],
            column_encoding={name: "PLAIN" for name in (*others, blobs) if name != "class"},
            # One data page a column chunk: more than a row group ever holds.
            data_page_size=1 << 30,
            write_batch_size=ROW_GROUP_ROWS,
        )

    def add(self, row: Row, blob: bytes) -> None:
        """Appends one sample; see `fastdata.storage.formats.Writer`."""
        if self._rows and (
            self._held + len(blob) > ROW_GROUP_BYTES or len(self._rows) == ROW_GROUP_ROWS
        ):
            self._flush()
        self._rows.append(row)
        self._blobs.append(blob)
        self._held += len(blob)

    def _flush(self) -> None:
        values: list[Sequence[object]] = [
            [row.key for row in self._rows],
            [row.label for row in self._rows],
            [self._classes[row.label] for row in self._rows],
            [row.width for row in self._rows],
            [row.height for row in self._rows],
        ]
        if self._rows:
            columns = [array(v, field.type) for v, field in zip(values, _FIELDS, strict=True)]
            blobs = array(self._blobs, pa.binary())
            if self._schema.field("image") == _STRUCT:
                kinds = list(_STRUCT.type)
                nulls = pa.nulls(len(blobs), pa.string())
                blobs = pa.StructArray.from_arrays([blobs, nulls], fields=kinds)
            table = pa.Table.from_arrays([*columns, blobs], schema=self._schema)
            self._writer.write_table(table, row_group_size=len(self._rows))
        self._lengths += map(len, self._blobs)
        self._rows, self._blobs, self._held = [], [], 0

    def finish(self) -> list[int]:
        """Complete the file; see `fastdata.storage.formats.Writer`."""
        self._flush()
        self.close()
        found = list(extents(self._path))
        if [length for _, length in found] != self._lengths:
            raise CorruptionError(f"{self._path}: pyarrow laid the image column out otherwise")
        return [offset for offset, _ in found]

    def checksum(self) -> int:
        """See `fastdata.storage.formats.Writer`."""
        return crc32c_file(self._path)

    def close(self) -> None:
        """Release the file, finished or not."""
        self._writer.close()
        self._file.close()


open_writer = ParquetWriter


def _schema(classes: Sequence[str], plain: bool) -> pa.Schema:
    """Return the columns, with the features that Hugging Face's ``datasets`` looks for."""
    features: dict[str, Any] = {"label": {"names": list(classes), "_type": "ClassLabel"}}
    if not plain:
        features["image"] = {"_type": "Image"}
    about = json.dumps({"info": {"features": features}}, ensure_ascii=False)
    return pa.schema([*_FIELDS, _PLAIN if plain else _STRUCT], {"huggingface": about})


def extents(path: Path) -> Iterator[tuple[int, int]]:
    """Find every blob of the image column: yield (offset, length) in bytes, in row order.

    Raises:
        CorruptionError: The file is not Parquet, or its image column is not laid out as
            docs/formats/parquet.md says.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            # Not by pyarrow: of some values in a footer, it ends the process.
            footer = _footer(file.fileno(), size)
            names = [element[_NAME].decode() for element in footer[_ELEMENTS][1:]]
            if names not in (_NAMES, _STRUCT_NAMES):
                raise ValueError(f"its columns are {', '.join(names)}")
            pages = [_image_pages(group) for group in footer[_GROUPS]]
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise CorruptionError(f"{path}: cannot be read as Parquet: {error}") from None
        for group, (rows, begin, end) in enumerate(pages):
            at = begin
            if 0 < begin <= end <= size:
                # With a single page, what is not page header is values.
                at = end - _page_size(read_exactly(file.fileno(), begin, 32))
                if names == _STRUCT_NAMES and begin < at:
                    # Values that may be null come after a list of those that are.
                    prefix = read_exactly(file.fileno(), at, _LENGTH_BYTES)
                    at += _LENGTH_BYTES + int.from_bytes(prefix, "little")
                for _ in range(rows if begin < at else 0):
                    prefix = read_exactly(file.fileno(), at, _LENGTH_BYTES)
                    length = int.from_bytes(prefix, "little")
                    at += _LENGTH_BYTES
                    yield at, length
                    at += length
                    if at > end:
                        break
            if at != end:
                raise CorruptionError(
                    f"{path}: the image column of row group {group} is not one plain data page"
                )


# Field numbers in parquet.thrift: of FileMetaData, SchemaElement, RowGroup, ColumnChunk and
# ColumnMetaData.
_ELEMENTS, _GROUPS = 2, 4
_NAME = 4
_COLUMNS, _ROWS = 1, 3
_ABOUT = 3
_CODEC, _STORED_SIZE, _PAGES_AT = 4, 7, 9
#: Bytes that a footer may have, and structures in each other.
_MOST_FOOTER, _MOST_DEPTH = 256 << 20, 16


def _footer(descriptor: int, size: int) -> dict[int, Any]:
    """Return a file's footer: its schema and row groups, by field numbers."""
    end = read_exactly(descriptor, max(size - 8, 0), 8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > min(size - 8, _MOST_FOOTER):
        raise ValueError("it does not end with a footer")
    found: dict[int, Any] = _Thrift(read_exactly(descriptor, size - 8 - length, length)).value(12)
    return found


def _image_pages(group: dict[int, Any]) -> tuple[int, int, int]:
    """Return a row group's rows, and where its images begin and end; -1 if compressed."""
    about = group[_COLUMNS][_IMAGE_COLUMN][_ABOUT]
    begin = about[_PAGES_AT]
    return group[_ROWS], begin, -1 if about[_CODEC] else begin + about[_STORED_SIZE]


class _Thrift:
    """Parser of Thrift's compact protocol: structures are dictionaries by field number."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _bytes(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise ValueError("its footer is cut short")
        self._at += count
        return found

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            (byte,) = self._bytes(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number in its footer has no end")

    def _number(self) -> int:
        zigzag = self._varint()
        return zigzag >> 1 ^ -(zigzag & 1)

    def value(self, kind: int, depth: int = 0) -> Any:
        """Return the next value; ``kind`` is the protocol's number of its type."""
        match kind:
            case 1 | 2 | 3:
                return self._bytes(1)
            case 4 | 5 | 6:
                return self._number()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._varint())
            case 9 | 10:
                (head,) = self._bytes(1)
                count = head >> 4 if head < 0xF0 else self._varint()
                if count > len(self._data) - self._at or depth > _MOST_DEPTH:
                    raise ValueError("a list in its footer is too long, or too deep")
                return [self.value(head & 15, depth + 1) for _ in range(count)]
            case 12 if depth <= _MOST_DEPTH:
                return self._structure(depth)
        raise ValueError("its footer is damaged")

    def _structure(self, depth: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while head := self._bytes(1)[0]:
            number = number + (head >> 4) if head >> 4 else self._number()
            kind = head & 15
            # A field's type says which boolean it is.
            found[number] = kind == 1 if kind in (1, 2) else self.value(kind, depth + 1)
        return found


def _page_size(header: bytes) -> int:
    """Return the bytes of a data page, from its header in Thrift's compact protocol.

    The header begins with three 32-bit fields: type, size, size when compressed. Each is a
    byte 0x15 (the next field, of type i32) and a zigzag-coded varint.
    """
    value, rest = 0, iter(header)
    for _ in range(3):
        if next(rest, None) != 0x15:
            return -1
        value = 0
        for shift, byte in zip(range(0, 35, 7), rest, strict=False):
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
    return value >> 1

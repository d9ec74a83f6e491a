"""Pages of Parquet files whose values are bytes, plain and uncompressed: each is an extent.

This reads files of any writer. It parses footers and page headers itself: of some values in them,
pyarrow ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

#: Reads bytes of a file, by offset and length; fewer at its end.
Read = Callable[[int, int], bytes]

# Field numbers in parquet.thrift: of FileMetaData, SchemaElement, RowGroup, ColumnChunk,
# ColumnMetaData, PageHeader, DataPageHeader and DataPageHeaderV2.
_ELEMENTS, _GROUPS = 2, 4
_REPETITION, _NAME, _CHILDREN = 3, 4, 5
_COLUMNS, _ROWS = 1, 3
_OTHER_FILE, _ABOUT = 1, 3
_TYPE, _ENCODINGS, _CODEC, _PLAIN_SIZE, _STORED_SIZE = 1, 2, 4, 6, 7
_PAGES_AT, _DICTIONARY_AT = 9, 11
_PAGE_TYPE, _PAGE_SIZE, _PAGE_V1, _PAGE_V2 = 1, 3, 5, 8
_VALUES, _ENCODING, _LEVEL_ENCODING = 1, 2, 3
_V2_ENCODING, _V2_DEFINITIONS, _V2_REPETITIONS = 4, 5, 6
#: Values of enumerations there.
_BYTE_ARRAY, _PLAIN, _RLE, _REPEATED = 6, 0, 3, 2
#: Levels may have the encoding BIT_PACKED, which the pages' headers say.
_PLAIN_ENCODINGS = {_PLAIN, _RLE, 4}
_CODECS = {1: "Snappy", 2: "gzip", 3: "LZO", 4: "Brotli", 5: "LZ4", 6: "ZSTD", 7: "LZ4"}
_LENGTH_BYTES = 4  # PLAIN encoding of a BYTE_ARRAY: little-endian length, then the bytes
#: Bytes that a footer may have, and structures in each other.
_MOST_FOOTER, _MOST_DEPTH = 256 << 20, 16
#: Bytes to read of a page's header, which may contain its smallest and largest value.
_HEADERS = (256, 64 << 10, 4 << 20)
#: Rows that a page may have: its levels are held in memory. Writers end it at some thousand.
_MOST_ROWS = 1 << 24
#: Errors on a damaged footer.
FOOTER_ERRORS = (LookupError, ValueError, TypeError, AttributeError)
#: Errors of pyarrow on damaged files. Besides its own: for text that is not UTF-8, numbers out of
#: range, and sizes that a footer claims.
PARQUET_ERRORS = (pa.ArrowException, OSError, ValueError, LookupError, ArithmeticError, TypeError,
                  MemoryError, RecursionError)  # fmt: skip


class Chunk(NamedTuple):
    """Values of one column in a row group.

    Attributes:
        begin: Where its pages begin in the file.
        end: Where they end.
        level: Level of a value that is not null; 0 if there are no nulls.
        size: Bytes of its pages before compression.
        otherwise: Why its values are no extents of the file; "" if they may be.
    """

    begin: int
    end: int
    level: int
    size: int
    otherwise: str


class Page(NamedTuple):
    """Data page of plain values.

    Attributes:
        version: Version of its format, 1 or 2.
        rows: Number of values, with nulls.
        levels: Where its definition levels begin, and where they end; equal without any.
        at: Where its values begin.
        end: Where they end.
    """

    version: int
    rows: int
    levels: tuple[int, int]
    at: int
    end: int


def chunks_of(footer: Mapping[int, Any]) -> list[tuple[int, dict[str, Chunk]]]:
    """Return (rows, chunks by the column's path) of each row group.

    LookupError, ValueError, TypeError, AttributeError: the footer is damaged.
    """
    leaves = list(_leaves(footer[_ELEMENTS]))
    groups = []
    for group in footer[_GROUPS]:
        chunks = {}
        for place, (path, level, repeated) in enumerate(leaves):
            chunks[path] = _chunk(group[_COLUMNS][place], level, repeated)
        groups.append((group[_ROWS], chunks))
    return groups


def file_chunks(metadata: pq.FileMetaData) -> list[dict[str, Chunk]]:
    """Return the chunks of each row group by path; none if the footer is too deep."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    data = sink.getvalue().to_pybytes()
    try:
        footer = read_footer(lambda at, size: data[at : at + size], len(data))
        return [chunks for _, chunks in chunks_of(footer)]
    except FOOTER_ERRORS:
        return [{} for _ in range(metadata.num_row_groups)]


def read_footer(read: Read, size: int) -> dict[int, Any]:
    """Return a file's footer, by field numbers; ValueError if it is damaged."""
    end = read(max(size - 8, 0), 8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > min(size - 8, _MOST_FOOTER):
        raise ValueError("it does not end with a footer")
    footer: dict[int, Any] = Thrift(read(size - 8 - length, length)).value(12)
    return footer


def _leaves(elements: list[dict[int, Any]]) -> Iterator[tuple[str, int, bool]]:
    """Yield each leaf column's path, level of values that are not null, and whether it repeats."""
    rest = iter(elements[1:])

    def walk(prefix: str, level: int, repeated: bool, depth: int) -> Iterator[Any]:
        element = next(rest, None)
        if element is None or not depth:
            raise ValueError("its schema ends early, or is too deep")
        path = prefix + element[_NAME].decode()
        repetition = element.get(_REPETITION, 0)
        level += repetition != 0
        repeated = repeated or repetition == _REPEATED
        if not element.get(_CHILDREN):
            yield path, level, repeated
        for _ in range(element.get(_CHILDREN, 0)):
            yield from walk(path + ".", level, repeated, depth - 1)

    for _ in range(elements[0][_CHILDREN]):
        yield from walk("", 0, False, _MOST_DEPTH)


def _chunk(column: Mapping[int, Any], level: int, repeated: bool) -> Chunk:
    metadata = column[_ABOUT]
    begin = metadata[_PAGES_AT]
    otherwise = ""
    if metadata[_CODEC]:
        otherwise = f"compressed by {_CODECS.get(metadata[_CODEC], 'an unknown codec')}"
    elif metadata.get(_DICTIONARY_AT):
        otherwise = "encoded with a dictionary"
    elif not _PLAIN_ENCODINGS.issuperset(metadata[_ENCODINGS]):
        otherwise = "not PLAIN-encoded"
    elif metadata[_TYPE] != _BYTE_ARRAY or repeated:
        otherwise = "no column of bytes"
    elif column.get(_OTHER_FILE):
        otherwise = "in another file"
    return Chunk(begin, begin + metadata[_STORED_SIZE], level, metadata[_PLAIN_SIZE], otherwise)


def plain_pages(read: Read, chunk: Chunk, rows: int) -> list[Page]:
    """Return the pages of a chunk of so many values and nulls; reads their headers alone.

    ValueError: its values are no extents of the file, or it is damaged.
    """
    if chunk.otherwise:
        raise ValueError(f"is {chunk.otherwise}")
    pages: list[Page] = []
    at, left = chunk.begin, rows
    while at < chunk.end:
        page = _page(read, at, chunk)
        pages.append(page)
        at, left = page.end, left - page.rows
    if left or at != chunk.end:
        raise ValueError(f"has pages of {rows - left:,} rows, not {rows:,}")
    return pages


def _page(read: Read, at: int, chunk: Chunk) -> Page:
    header, begin = _header(read, at, chunk.end)
    end = begin + header[_PAGE_SIZE]
    version = 2 if _PAGE_V2 in header else 1
    values = header.get(_PAGE_V2 if version == 2 else _PAGE_V1)
    if header[_PAGE_TYPE] not in (0, 3) or values is None:
        raise ValueError("has a page that is no data page")
    if values[_V2_ENCODING if version == 2 else _ENCODING] != _PLAIN:
        raise ValueError("has a page that is not PLAIN-encoded")
    if version == 2:
        size = values[_V2_DEFINITIONS]
        levels = begin + values[_V2_REPETITIONS], begin + values[_V2_REPETITIONS] + size
    elif chunk.level:
        if values[_LEVEL_ENCODING] != _RLE:
            raise ValueError("has levels that are BIT_PACKED")
        size = int.from_bytes(read(begin, _LENGTH_BYTES), "little")
        levels = begin + _LENGTH_BYTES, begin + _LENGTH_BYTES + size
    else:
        levels = begin, begin
    if not (
        begin <= levels[0] <= levels[1] <= end <= chunk.end and 0 <= values[_VALUES] <= _MOST_ROWS
    ):
        raise ValueError("has a page that does not end where its header says")
    return Page(version, values[_VALUES], levels, levels[1], end)


def _header(read: Read, at: int, end: int) -> tuple[dict[int, Any], int]:
    """Return a page's header, and where it ends."""
    for size in _HEADERS:
        thrift = Thrift(read(at, min(size, end - at)))
        try:
            header = thrift.value(12)
            if {_PAGE_TYPE, _PAGE_SIZE} <= header.keys():
                return header, at + thrift.at
        except ValueError:
            continue  # cut short
        except (LookupError, TypeError):
            break
    raise ValueError("has a page with a damaged header")


def page_extents(read: Read, page: Page, level: int) -> Iterator[tuple[int, int] | None]:
    """Yield (offset, length) of each value of a page, None for nulls; ValueError if damaged."""
    present: Iterable[bool] = repeat(True, page.rows)
    if level:
        start, stop = page.levels
        present = _levels(read(start, stop - start), level, page.rows)
    at = page.at
    for value in present:
        if not value:
            yield None
            continue
        length = int.from_bytes(read(at, _LENGTH_BYTES), "little")
        at += _LENGTH_BYTES
        if at + length > page.end:
            raise ValueError("has a value that does not end in its page")
        yield at, length
        at += length
    if at != page.end:
        raise ValueError("has a page with more bytes than values")


def _levels(data: bytes, most: int, rows: int) -> list[bool]:
    """Return which of a page's values are not null: their level is ``most``.

    Levels are a hybrid of runs and packed bits
    (https://parquet.apache.org/docs/file-format/data-pages/encodings).
    """
    runs: list[npt.NDArray[Any]] = []
    bits, place, decoded = most.bit_length(), 0, 0
    while decoded < rows and place < len(data):
        reader = Thrift(data[place : place + 10])
        head = reader.varint()
        place += reader.at
        if head & 1:
            count = (head >> 1) * bits
            packed = np.frombuffer(data[place : place + count], np.uint8)
            each = np.unpackbits(packed, bitorder="little").reshape(-1, bits)
            run = each @ (1 << np.arange(bits))
        else:
            count = (bits + 7) // 8
            value = int.from_bytes(data[place : place + count], "little")
            run = np.full(min(head >> 1, rows - decoded), value, np.int64)
        place += count
        decoded += len(run)
        runs.append(run)
    if decoded < rows:
        raise ValueError("has too few definition levels")
    levels = np.concatenate(runs) if runs else np.empty(0, np.int64)
    present: list[bool] = (levels[:rows] == most).tolist()
    return present


class Thrift:
    """Parser of Thrift's compact protocol: structures are dictionaries by field number."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def _bytes(self, count: int) -> bytes:
        data = self._data[self.at : self.at + count]
        if len(data) < count:
            raise ValueError("its footer is cut short")
        self.at += count
        return data

    def varint(self) -> int:
        """Return the next number, of 7 bits a byte."""
        value = 0
        for shift in range(0, 70, 7):
            (byte,) = self._bytes(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number in its footer has no end")

    def _number(self) -> int:
        zigzag = self.varint()
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
                return self._bytes(self.varint())
            case 9 | 10:
                (head,) = self._bytes(1)
                count = head >> 4 if head < 0xF0 else self.varint()
                if count > len(self._data) - self.at or depth > _MOST_DEPTH:
                    raise ValueError("a list in its footer is too long, or too deep")
                return [self.value(head & 15, depth + 1) for _ in range(count)]
            case 12 if depth <= _MOST_DEPTH:
                return self._structure(depth)
        raise ValueError("its footer is damaged")

    def _structure(self, depth: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._bytes(1)[0]:
            number = number + (head >> 4) if head >> 4 else self._number()
            kind = head & 15
            # A field's type says which boolean it is.
            fields[number] = kind == 1 if kind in (1, 2) else self.value(kind, depth + 1)
        return fields

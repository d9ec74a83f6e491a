"""Parquet: one row a sample, images as Hugging Face writes them (docs/formats/parquet.md).

The column of blobs is uncompressed, PLAIN-encoded, never null, and each of its column chunks
is a single data page. Then a chunk is a page header followed by [4-byte length][blob] for
every row, and where each blob lies follows from the lengths alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fastdata.errors import CorruptionError
from fastdata.storage.arrow import array
from fastdata.storage.checksum import crc32c_file
from fastdata.storage.fields import IMAGES, Field
from fastdata.storage.files import open_file, read_exactly
from fastdata.storage.formats import Sample

#: A row group ends at this many bytes of samples, or rows. It is held in memory twice while
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
#: Type of Hugging Face's Image; its path may be null.
_STRUCT = pa.field("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
FILE_NAME = "part-{:06d}.parquet"
#: Key of the schema's metadata that names the columns of blobs.
_BLOBS = "fastdata.blobs"
#: Errors of pyarrow on damaged files. Besides its own: for text that is not UTF-8, numbers out of
#: range, and sizes that a footer claims.
PARQUET_ERRORS = (pa.ArrowException, OSError, ValueError, LookupError, ArithmeticError, TypeError,
                  MemoryError, RecursionError)  # fmt: skip
_LENGTH_BYTES = 4  # PLAIN encoding of a BYTE_ARRAY: little-endian length, then the bytes


class ParquetWriter:
    """Writer of one Parquet file.

    Args:
        path: The file.
        classes: Class names, by label; empty if there are no labels.
        fields: Fields of samples besides image and label.
        plain: Whether blobs are a column of bytes, not of Hugging Face's images.
    """

    def __init__(
        self, path: Path, classes: Sequence[str], fields: Sequence[Field] = (), *,
        plain: bool = False,
    ) -> None:  # fmt: skip
        self._path = path
        self._classes = classes
        self._fields = fields
        self._schema = _schema(classes, fields, plain)
        self._samples: list[Sample] = []
        self._held = 0
        self._lengths: list[dict[str, int]] = []
        # A file, not a path, which pyarrow takes for a URI where it has a colon in it.
        self._file = pa.OSFile(str(path), "wb")
        self._writer = self._open(self._file)

    def _open(self, file: pa.NativeFile) -> pq.ParquetWriter:
        blobs = [path for path, _ in _blob_paths(self._schema)]
        others = [path for path in _paths(self._schema) if path not in blobs]
        return pq.ParquetWriter(
            file,
            self._schema,
            compression=dict.fromkeys(others, "zstd") | dict.fromkeys(blobs, "none"),
            use_dictionary=["class"] if self._classes else False,
            write_statistics=["key", "label"],
            column_encoding={name: "PLAIN" for name in (*others, *blobs) if name != "class"},
            # One data page a column chunk: more than a row group ever holds.
            data_page_size=1 << 30,
            write_batch_size=ROW_GROUP_ROWS,
        )

    def add(self, sample: Sample) -> None:
        """Append one sample; see `fastdata.storage.formats.Writer`."""
        size = sample.size
        full = self._held + size > ROW_GROUP_BYTES or len(self._samples) == ROW_GROUP_ROWS
        if self._samples and full:
            self._flush()
        self._samples.append(sample)
        self._held += size

    def _flush(self) -> None:
        rows = [sample.row for sample in self._samples]
        if rows:
            values: list[Sequence[Any]] = [[row.key for row in rows]]
            if self._classes:
                values.append([row.label for row in rows])
                values.append([self._classes[row.label] for row in rows])
            values += [[row.width for row in rows], [row.height for row in rows]]
            values.append([sample.blob for sample in self._samples])
            for place, field in enumerate(self._fields):
                column = [sample.fields[place] for sample in self._samples]
                if field.type is None:
                    column = [None if value is None else value[1] for value in column]
                values.append(column)
            columns = [_array(one, field) for one, field in zip(values, self._schema, strict=True)]
            table = pa.Table.from_arrays(columns, schema=self._schema)
            self._writer.write_table(table, row_group_size=len(rows))
        for sample in self._samples:
            lengths = {"image": sample.row.length}
            for field, value in zip(self._fields, sample.fields, strict=True):
                if field.type is None and value is not None:
                    lengths[field.name] = value[0].length
            self._lengths.append(lengths)
        self._samples, self._held = [], 0

    def finish(self) -> Mapping[str, Sequence[int]]:
        """Complete the file; see `fastdata.storage.formats.Writer`."""
        self._flush()
        self.close()
        blobs = [field.name for field in self._fields if field.type is None]
        found = list(extents(self._path, blobs))
        if [{name: one[name][1] for name in one} for one in found] != self._lengths:
            raise CorruptionError(f"{self._path}: pyarrow laid the columns of blobs out otherwise")
        return {name: [one.get(name, (0, 0))[0] for one in found] for name in ("image", *blobs)}

    def checksum(self) -> int:
        """See `fastdata.storage.formats.Writer`."""
        return crc32c_file(self._path)

    def close(self) -> None:
        """Release the file, finished or not."""
        self._writer.close()
        self._file.close()


open_writer = ParquetWriter


def _schema(classes: Sequence[str], fields: Sequence[Field], plain: bool) -> pa.Schema:
    """Return the columns, with the features that Hugging Face's ``datasets`` looks for."""
    labelled = (
        _FIELDS if classes else [one for one in _FIELDS if one.name not in ("label", "class")]
    )
    columns = [*labelled, _PLAIN if plain else _STRUCT]
    features: dict[str, Any] = {}
    if classes:
        features["label"] = {"names": list(classes), "_type": "ClassLabel"}
    if not plain:
        features["image"] = {"_type": "Image"}
    for field in fields:
        if field.kind in IMAGES and not plain:
            features[field.name] = {"_type": "Image"}
            columns.append(pa.field(field.name, _STRUCT.type))
        else:
            columns.append(pa.field(field.name, field.type or pa.binary()))
    about = json.dumps({"info": {"features": features}}, ensure_ascii=False)
    return pa.schema(columns, {"huggingface": about, _BLOBS: json.dumps(_blob_names(fields))})


def _blob_names(fields: Sequence[Field]) -> list[str]:
    return ["image", *(field.name for field in fields if field.type is None)]


def _paths(schema: pa.Schema) -> Iterator[str]:
    """Yield the paths of a schema's leaves, as Parquet names them."""

    def leaves(path: str, kind: pa.DataType) -> Iterator[str]:
        if pa.types.is_struct(kind):
            for child in kind:
                yield from leaves(f"{path}.{child.name}", child.type)
        elif pa.types.is_map(kind):
            yield from leaves(f"{path}.key_value.key", kind.key_type)
            yield from leaves(f"{path}.key_value.value", kind.item_type)
        elif pa.types.is_nested(kind):
            yield from leaves(f"{path}.list.element", kind.value_type)
        else:
            yield path

    for field in schema:
        yield from leaves(field.name, field.type)


def _blob_paths(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return (path of the leaf, name of the field) of each column of blobs."""
    found = []
    for name in json.loads(schema.metadata[_BLOBS.encode()]):
        nested = schema.field(name).type == _STRUCT.type
        found.append((f"{name}.bytes" if nested else name, name))
    return found


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    if field.type != _STRUCT.type:
        return array(values, field.type)
    blobs, paths = array(values, pa.binary()), pa.nulls(len(values), pa.string())
    present = [value is not None for value in values]
    mask = None if all(present) else pa.array([not one for one in present])
    return pa.StructArray.from_arrays([blobs, paths], fields=list(_STRUCT.type), mask=mask)


def extents(path: Path, fields: Sequence[str] = ()) -> Iterator[Mapping[str, tuple[int, int]]]:
    """Find every blob of the columns of blobs; see `fastdata.storage.formats.extents`.

    Raises:
        CorruptionError: The file is not Parquet, or a column of blobs is not laid out as
            docs/formats/parquet.md says.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            # Not by pyarrow: of some values in a footer, it ends the process.
            footer = _footer(partial(read_exactly, file.fileno()), size)
            places = _places(footer[_ELEMENTS], ("image", *fields))
            groups = [(g[_ROWS], {n: _chunk(g, at) for n, (at, _) in places.items()})
                      for g in footer[_GROUPS]]  # fmt: skip
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise CorruptionError(f"{path}: cannot be read as Parquet: {error}") from None
        for group, (rows, chunks) in enumerate(groups):
            found: dict[str, list[tuple[int, int] | None]] = {}
            for name, (begin, end) in chunks.items():
                if not 0 < begin <= end <= size:
                    raise _not_plain(path, name, group)
                try:
                    # With a single page, what is not page header is levels and values.
                    at = end - _page_size(read_exactly(file.fileno(), begin, 32))
                    if not begin < at <= end:
                        raise ValueError
                    level = places[name][1]
                    present, at = _present(file.fileno(), at, end, level, rows)
                    found[name] = list(_values(file.fileno(), at, end, present))
                except ValueError:
                    raise _not_plain(path, name, group) from None
            for row in range(rows):
                one = {name: column[row] for name, column in found.items()}
                yield {name: extent for name, extent in one.items() if extent is not None}


def _not_plain(path: Path, name: str, group: int) -> CorruptionError:
    return CorruptionError(
        f"{path}: the {name} column of row group {group} is not one plain data page"
    )


def _present(descriptor: int, at: int, end: int, most: int, rows: int) -> tuple[list[bool], int]:
    """Return which of a page's values are not null, and where these begin.

    Before the values are definition levels, a hybrid of runs and packed bits, if the column has
    nulls (https://parquet.apache.org/docs/file-format/data-pages/encodings).

    Args:
        descriptor: The file.
        at: Where the page's data begin.
        end: Where they end.
        most: Level of a value that is not null; 0 if there are no nulls.
        rows: Rows of the page.

    Raises:
        ValueError: The levels are damaged.
    """
    if not most:
        return [True] * rows, at
    size = int.from_bytes(read_exactly(descriptor, at, _LENGTH_BYTES), "little")
    at += _LENGTH_BYTES
    if size > end - at:
        raise ValueError
    data, place, levels = read_exactly(descriptor, at, size), 0, np.empty(0, np.int64)
    bits = most.bit_length()
    while len(levels) < rows and place < len(data):
        reader = _Thrift(data[place:])
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
            run = np.full(min(head >> 1, rows), value, np.int64)
        place += count
        levels = np.concatenate([levels, run])
    if len(levels) < rows:
        raise ValueError
    return (levels[:rows] == most).tolist(), at + size


def _values(
    descriptor: int, at: int, end: int, present: Iterable[bool]
) -> Iterator[tuple[int, int] | None]:
    """Yield (offset, length) of each value of a page; None for nulls.

    Raises:
        ValueError: They do not fill the page.
    """
    for value in present:
        if not value:
            yield None
            continue
        length = int.from_bytes(read_exactly(descriptor, at, _LENGTH_BYTES), "little")
        at += _LENGTH_BYTES
        yield at, length
        at += length
        if at > end:
            raise ValueError
    if at != end:
        raise ValueError


# Field numbers in parquet.thrift: of FileMetaData, SchemaElement, RowGroup, ColumnChunk and
# ColumnMetaData.
_ELEMENTS, _GROUPS = 2, 4
_REPETITION, _NAME, _CHILDREN = 3, 4, 5
_COLUMNS, _ROWS = 1, 3
_ABOUT = 3
_CODEC, _PLAIN_SIZE, _STORED_SIZE, _PAGES_AT = 4, 6, 7, 9
#: Bytes that a footer may have, and structures in each other.
_MOST_FOOTER, _MOST_DEPTH = 256 << 20, 16


def column_sizes(metadata: pq.FileMetaData) -> list[dict[str, int]]:
    """Return the bytes of each column of each row group, before compression.

    They are unknown, and missing, if the footer is too deep for this module.
    """
    # Not by pyarrow: of some values in a column's metadata, it ends the process.
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    data = sink.getvalue().to_pybytes()
    try:
        footer = _footer(lambda at, size: data[at : at + size], len(data))
        places = _leaf_places(footer[_ELEMENTS])
        return [
            {path: group[_COLUMNS][at][_ABOUT][_PLAIN_SIZE] for path, (at, _) in places.items()}
            for group in footer[_GROUPS]
        ]
    except (LookupError, ValueError, TypeError, AttributeError):
        return [{} for _ in range(metadata.num_row_groups)]


def _footer(read: Callable[[int, int], bytes], size: int) -> dict[int, Any]:
    """Return a file's footer: its schema and row groups, by field numbers."""
    end = read(max(size - 8, 0), 8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > min(size - 8, _MOST_FOOTER):
        raise ValueError("it does not end with a footer")
    found: dict[int, Any] = _Thrift(read(size - 8 - length, length)).value(12)
    return found


def _places(elements: list[dict[int, Any]], names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the leaf column of each column of blobs, and the level of values that are not null.

    Args:
        elements: The footer's schema, parents before their children.
        names: The columns.

    Raises:
        ValueError: There is no such column.
    """
    leaves, found = _leaf_places(elements), {}
    for name in names:
        place = leaves.get(name, leaves.get(f"{name}.bytes"))
        if place is None:
            raise ValueError(f"it has no column {name}")
        found[name] = place
    return found


def _leaf_places(elements: list[dict[int, Any]]) -> dict[str, tuple[int, int]]:
    """Return the number of each leaf column, and the level of values that are not null, by path."""
    rest = iter(elements[1:])
    leaves: dict[str, tuple[int, int]] = {}

    def walk(prefix: str, level: int, depth: int) -> None:
        element = next(rest, None)
        if element is None or not depth:
            raise ValueError("its schema ends early, or is too deep")
        path = prefix + element[_NAME].decode()
        level += element.get(_REPETITION, 0) != 0
        if not element.get(_CHILDREN):
            leaves[path] = len(leaves), level
        for _ in range(element.get(_CHILDREN, 0)):
            walk(path + ".", level, depth - 1)

    for _ in range(elements[0][_CHILDREN]):
        walk("", 0, _MOST_DEPTH)
    return leaves


def _chunk(group: dict[int, Any], column: int) -> tuple[int, int]:
    """Return where a row group's chunk of a column begins and ends; -1 if it is compressed."""
    about = group[_COLUMNS][column][_ABOUT]
    begin = about[_PAGES_AT]
    return begin, -1 if about[_CODEC] else begin + about[_STORED_SIZE]


class _Thrift:
    """Parser of Thrift's compact protocol: structures are dictionaries by field number."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def _bytes(self, count: int) -> bytes:
        found = self._data[self.at : self.at + count]
        if len(found) < count:
            raise ValueError("its footer is cut short")
        self.at += count
        return found

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

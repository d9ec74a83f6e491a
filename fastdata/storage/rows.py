"""Rows of the index, as tuples and as Arrow record batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from fastdata.storage.arrow import array
from fastdata.storage.encodings import ENCODINGS

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
    ]
)
#: The dictionary of the column ``encoding``, and the place of each name in it.
ENCODING_DICTIONARY = array(ENCODINGS, pa.string())
ENCODING_CODES = {name: code for code, name in enumerate(ENCODINGS)}


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


def rows_to_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as a record batch of `SCHEMA`."""
    columns: list[pa.Array] = []
    values = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    for field, column in zip(SCHEMA, values, strict=True):
        if field.name == "encoding":
            codes = array([ENCODING_CODES[name] for name in column], pa.int8())
            columns.append(pa.DictionaryArray.from_arrays(codes, ENCODING_DICTIONARY))
        else:
            columns.append(array(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

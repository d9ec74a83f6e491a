"""Estimate of the bytes that packing writes, from a listing and some of its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fastdata.converters.records import Record

from fastdata.storage.fields import Field
from fastdata.storage.formats import IN_PLACE
from fastdata.storage.formats.values import as_file

#: Containers that hold columns as text, a value a member or record.
_TEXTS = ("lmdb", "shards")
_TAR_BLOCK, _LMDB_PAGE = 512, 4096
#: Bytes of a record in LMDB beside its value, with its key; a value that is longer than half a
#: page has pages of its own.
_LMDB_RECORD = 48
#: Most bytes of a sample beside its image and fields: tar pads three members to blocks of 512 and
#: gives each a header; LMDB pads to a page of 4096.
_OVERHEAD = 4_500
#: Bytes of two index rows, because parts stay until the index is complete.
_INDEX_ROW = 400


class Estimate(NamedTuple):
    """Bytes that packing writes to a container, by those of the source.

    Attributes:
        growth: Bytes of a stored image per byte in the source.
        text: Bytes of columns in the container per byte of their values.
        beside: Bytes of a sample's further members or records beside their content.
    """

    growth: float = 1.0
    text: float = 1.0
    beside: float = 0.0

    def stored(self, length: Any, size: Any, values: Any) -> Any:
        """Return the bytes of samples in the container, by `Totals`; numbers or arrays of them."""
        return length * self.growth + (size - length - values) + values * self.text + self.beside

    def in_memory(self, record: Record) -> float:
        """Return the bytes that a sample takes in memory while it is packed."""
        stored: float = self.stored(record.length, record.size, record.values_size)
        return max(stored, record.size)


#: Of images that are stored as they are, without columns.
UNCHANGED = Estimate()


def with_fields(
    growth: float, container: str, fields: Sequence[Field], records: Sequence[Record]
) -> Estimate:
    """Return the estimate for a container, from some records of the listing."""
    if container not in _TEXTS or not records:
        return Estimate(growth)
    values = text = beside = 0
    for record in records:
        values += record.values_size
        for field, value in zip(fields, record.fields, strict=True):
            if value is None:
                continue
            size = value.length if isinstance(value, Record) else len(as_file(field, value)[1])
            text += 0 if isinstance(value, Record) else size
            if container == "shards":
                beside += _TAR_BLOCK + -size % _TAR_BLOCK
            else:
                beside += _LMDB_RECORD
                beside += -(size + 16) % _LMDB_PAGE if size > _LMDB_PAGE // 2 else 0
    return Estimate(growth, text / values if values else 1.0, beside / len(records))


def stored_with_index(container: str, fields: Sequence[Field], images: int, stored: int) -> int:
    """Return the bytes on the disk of samples and their index rows, without files of columns."""
    indices = 1 + sum(field.type is None for field in fields)
    if container in IN_PLACE:
        return images * indices * _INDEX_ROW
    return stored + images * (_OVERHEAD + (indices - 1) * _INDEX_ROW)

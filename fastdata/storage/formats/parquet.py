"""Parquet: one row a sample, images as Hugging Face writes them (docs/formats/parquet.md).

The column of blobs is uncompressed, PLAIN-encoded, never null, and each of its column chunks
is a single data page. Then a chunk is a page header followed by [4-byte length][blob] for
every row, and where each blob lies follows from the lengths alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fastdata.errors import CorruptionError
from fastdata.storage.arrow import array
from fastdata.storage.descriptors import read_exactly
from fastdata.storage.fields import IMAGES, Field
from fastdata.storage.files import crc32c_file, open_file
from fastdata.storage.formats import NewSample
from fastdata.storage.formats.parquet_pages import (
    FOOTER_ERRORS,
    chunks_of,
    page_extents,
    plain_pages,
    read_footer,
)

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


class ParquetWriter:
    """Writer of one Parquet file; see `fastdata.storage.formats.open_writer`."""

    def __init__(
        self, path: Path, classes: Sequence[str], fields: Sequence[Field] = (), *,
        plain: bool = False,
    ) -> None:  # fmt: skip
        self._path = path
        self._classes = classes
        self._fields = fields
        self._schema = _schema(classes, fields, plain)
        self._samples: list[NewSample] = []
        self._held = 0
        self._lengths: list[dict[str, int]] = []
        # A file, not a path, which pyarrow takes for a URI where it has a colon in it.
        self._file = pa.OSFile(str(path), "wb")
        self._writer = self._open(self._file)

    def _open(self, file: pa.NativeFile) -> pq.ParquetWriter:
        blobs = [path for path, _ in _blob_paths(self._schema)]
        columns = [path for path in _paths(self._schema) if path not in blobs]
        return pq.ParquetWriter(
            file,
            self._schema,
            compression=dict.fromkeys(columns, "zstd") | dict.fromkeys(blobs, "none"),
            use_dictionary=["class"] if self._classes else False,
            write_statistics=["key", "label"],
            column_encoding={name: "PLAIN" for name in (*columns, *blobs) if name != "class"},
            # One data page a column chunk: more than a row group ever holds.
            data_page_size=1 << 30,
            write_batch_size=ROW_GROUP_ROWS,
        )

    def add(self, sample: NewSample) -> None:
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
        rows = list(extents(self._path, blobs))
        if [{name: one[name][1] for name in one} for one in rows] != self._lengths:
            raise CorruptionError(f"{self._path}: pyarrow laid the columns of blobs out otherwise")
        return {name: [one.get(name, (0, 0))[0] for one in rows] for name in ("image", *blobs)}

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
    info = json.dumps({"info": {"features": features}}, ensure_ascii=False)
    return pa.schema(columns, {"huggingface": info, _BLOBS: json.dumps(_blob_names(fields))})


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
    paths = []
    for name in json.loads(schema.metadata[_BLOBS.encode()]):
        nested = schema.field(name).type == _STRUCT.type
        paths.append((f"{name}.bytes" if nested else name, name))
    return paths


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    if field.type != _STRUCT.type:
        return array(values, field.type)
    blobs, paths = array(values, pa.binary()), pa.nulls(len(values), pa.string())
    present = [value is not None for value in values]
    mask = None if all(present) else pa.array([not one for one in present])
    return pa.StructArray.from_arrays([blobs, paths], fields=list(_STRUCT.type), mask=mask)


def extents(path: Path, fields: Sequence[str] = ()) -> Iterator[Mapping[str, tuple[int, int]]]:
    """Find every blob of the columns of blobs; see `fastdata.storage.formats.extents`."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        read = partial(read_exactly, file.fileno())
        try:
            groups = chunks_of(read_footer(read, size))
        except FOOTER_ERRORS as error:
            raise CorruptionError(f"{path}: cannot be read as Parquet: {error}") from None
        for group, (rows, chunks) in enumerate(groups):
            columns: dict[str, list[tuple[int, int] | None]] = {}
            for name in ("image", *fields):
                chunk = chunks.get(name) or chunks.get(f"{name}.bytes")
                if chunk is None:
                    raise CorruptionError(
                        f"{path}: cannot be read as Parquet: it has no column {name}"
                    )
                try:
                    if not 0 < chunk.begin <= chunk.end <= size:
                        raise ValueError
                    (page,) = plain_pages(read, chunk, rows)
                    if page.version != 1:
                        raise ValueError
                    columns[name] = list(page_extents(read, page, chunk.level))
                except ValueError:
                    raise CorruptionError(
                        f"{path}: the {name} column of row group {group} is not one plain data page"
                    ) from None
            for row in range(rows):
                one = {name: column[row] for name, column in columns.items()}
                yield {name: extent for name, extent in one.items() if extent is not None}

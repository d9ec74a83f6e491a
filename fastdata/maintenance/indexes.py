"""Checks of a dataset's indexes, and of the columns that they find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata.errors import DatasetError, printable
from fastdata.storage.arrow import as_numpy
from fastdata.storage.fields import IMAGE, StoredField
from fastdata.storage.manifest import ELSEWHERE
from fastdata.storage.packed import PackedSource
from fastdata.storage.shapes import misshapen, why_misshapen


class Finding(NamedTuple):
    """Problem that a check found, and how many samples it kept from being checked."""

    where: str
    what: str
    samples: int = 0


def check_index(source: PackedSource, stored: StoredField) -> Iterator[Finding]:
    """Check all rows of a field's index against the manifest, without reading values."""
    if stored.file is not None:
        yield from _other_packing(source, stored.file)
        yield from _impossible_pieces(source, stored)
    else:
        yield from _impossible_rows(source, stored)


def _impossible_rows(source: PackedSource, stored: StoredField) -> Iterator[Finding]:
    manifest, (name, kind, _, nullable, _) = source.manifest, stored.field
    is_extra = stored.field != IMAGE
    sizes = np.array(source.files.sizes[: manifest.blob_files], np.int64)
    labels_of = 1 if is_extra else max(len(manifest.classes), 1)
    start = previous = 0
    names = ("label", "file", "offset", "length", "width")
    for batch in source.index_of(name).batches(columns=names):
        columns = (as_numpy(batch.column(one)) for one in names)
        labels, files, offsets, lengths, widths = columns
        bad = (labels < 0) | (labels >= labels_of)
        if kind == "blob":
            bad |= widths != 0
        # An empty file of a field of blobs has an offset, and is one.
        lacks = (lengths == 0) & is_extra & ((kind != "blob") | (offsets == 0))
        bad |= lacks & ((not nullable) | (files != 0) | (offsets != 0))
        if len(sizes):
            known = (files >= 0) & (files < len(sizes))
            end = sizes[np.where(known, files, 0)]
            wrong = ~known | (offsets < 0) | (lengths < 0) | (offsets > end - lengths)
            has = np.flatnonzero(~lacks)
            if manifest.container not in ELSEWHERE:  # they lie in any order
                wrong[has] |= np.diff(files[has], prepend=previous) < 0
            previous = int(files[has[-1]]) if len(has) else previous
        else:
            wrong = files != -1
        for at in np.flatnonzero(bad | (wrong & ~lacks)).tolist():
            row = source.index_of(name)[start + at]
            of_field = f" of {name}" if is_extra else ""
            yield Finding(
                f"sample {start + at} ({printable(source.index[start + at].key)})",
                f"its index row{of_field} is impossible: label {row.label}, file {row.file}, "
                f"offset {row.offset}, length {row.length}",
            )
        start += batch.num_rows


def _other_packing(source: PackedSource, name: str) -> Iterator[Finding]:
    """Check the generation that a column's file names."""
    path = source.location / name
    with suppress(pa.ArrowException, OSError):  # other checks report such a file
        with pa.OSFile(str(path)) as file:
            file.seek(8)  # past the magic bytes
            named = pa.ipc.read_schema(file).metadata or {}
        if named.get(b"generation") != source.generation.encode():
            yield Finding(str(path), "belongs to another packing than the manifest")


def _impossible_pieces(source: PackedSource, stored: StoredField) -> Iterator[Finding]:
    manifest, index = source.manifest, source.index_of(stored.field.name)
    assert stored.file is not None
    number = manifest.number_of(stored.file)
    size = manifest.files[number].size
    start = end = 0
    names = ("file", "offset", "length", "width")
    for batch in index.batches(columns=names):
        columns = (as_numpy(batch.column(one)).astype(np.int64) for one in names)
        files, offsets, lengths, rows = columns
        firsts: npt.NDArray[np.int64] = np.arange(start, start + len(files)) * stored.rows
        expected = np.minimum(stored.rows, manifest.samples - firsts)
        # The file's batches are in the order of the rows.
        before = np.append(end, (offsets + lengths)[:-1])
        bad = (files != number) | (lengths < 0) | (offsets < before) | (rows != expected)
        bad |= offsets > size - lengths
        for at in np.flatnonzero(bad).tolist():
            yield Finding(
                str(index.path),
                f"its row {start + at} is impossible for {expected[at]} rows in {stored.file}: "
                f"file {files[at]}, offset {offsets[at]}, length {lengths[at]}, {rows[at]} rows",
            )
        start, end = start + len(files), int(offsets[-1] + lengths[-1])


def check_pieces(source: PackedSource, stored: StoredField, start: int, stop: int) -> list[Finding]:
    """Read some pieces of a column."""
    assert stored.file is not None
    path = str(source.location / stored.file)
    name, meaning, findings = stored.field.name, stored.field.format, []
    for number in range(start, stop):
        try:
            piece = source.piece(name, number)
        except DatasetError as error:
            findings.append(Finding(path, error.what.removeprefix(f"{source.location}: ")))
            continue
        wrong = np.flatnonzero(misshapen(piece, meaning)).tolist() if meaning else ()
        for at in wrong:
            row = number * stored.rows + at
            where = f"sample {row} ({printable(source.index[row].key)})"
            findings.append(Finding(where, why_misshapen(name, meaning)))
    return findings


def check_column_file(source: PackedSource, stored: StoredField) -> Iterator[Finding]:
    """Check that a file, whose checksum is right, has the manifest's column."""
    assert stored.file is not None
    path = source.location / stored.file
    name, kind = stored.field.name, stored.field.type
    pieces = len(source.index_of(name))
    try:
        with pa.OSFile(str(path)) as opened, pa.ipc.open_file(opened) as file:
            schema, batches = file.schema, file.num_record_batches
            has = ", ".join(f"{one.name} {one.type}" for one in schema)  # names may be no UTF-8
    except (pa.ArrowException, OSError, ValueError) as error:
        yield Finding(str(path), f"cannot be read as Arrow: {error}")
        return
    if schema != pa.schema([(name, kind)]):
        yield Finding(str(path), f"holds {printable(has)}, the manifest says {name} {kind}")
    if batches != pieces:
        yield Finding(str(path), f"has {batches} record batches, its index has {pieces}")

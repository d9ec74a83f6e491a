"""Last step of packing: the index of all parts, and the list of bad samples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from fastdata.converters.listing import Unit
from fastdata.converters.parts import Bad, Part, read_rows, read_values
from fastdata.converters.records import Source, archives_of, tables_of
from fastdata.converters.tasks import Job

from fastdata.errors import BadSamplesError, CorruptionError
from fastdata.machine import usable_cpus
from fastdata.storage import formats
from fastdata.storage.arrow import array, as_numpy
from fastdata.storage.checksum import crc32c_file
from fastdata.storage.columns import rows_per_piece, write_column
from fastdata.storage.fields import IMAGE, LABEL, StoredField
from fastdata.storage.files import whole_file
from fastdata.storage.formats import lmdb
from fastdata.storage.manifest import BAD_SAMPLES_NAME, FileEntry
from fastdata.storage.records import INDEX_NAME, SCHEMA, write_index
from fastdata.storage.row_groups import named, runs_of
from fastdata.text import human_count


class Kind(NamedTuple):
    """Number and bytes of the images of one encoding."""

    images: int
    size: int


def entries_elsewhere(source: Source, job: Job) -> list[FileEntry]:
    """Return the manifest's entries of a source's archives or tables, which are not read again."""
    assert job.root is not None
    start = len(job.root.rstrip("/")) + 1
    tables = tables_of(source) if job.container == "tables" else None
    if tables is None:
        files = archives_of(source) or ()
        return [FileEntry(file.location[start:], file.size, "") for file in files]
    return [
        FileEntry(named(file.location[start:], column), file.size, "")
        for column in tables.columns
        for file in tables.files
    ]


def group_runs(source: Source, job: Job) -> list[list[list[int]]] | None:
    """Return the manifest's ``groups`` of a source's tables; None for other containers."""
    tables = tables_of(source) if job.container == "tables" else None
    return tables and [runs_of(rows) for rows in tables.groups] * len(tables.columns)


def join_parts(
    out: Path,
    job: Job,
    units: Sequence[Unit],
    samples: int,
    files: Sequence[FileEntry],
    generation: str,
) -> dict[str, Kind]:
    """Write the index; return its images by encoding, the most frequent first.

    Args:
        out: The dataset's folder.
        job: The parameters of packing.
        units: All units.
        samples: Number of their samples.
        files: The files of the container.
        generation: The manifest's.
    """
    kinds: dict[str, Kind] = {}
    with whole_file(out / INDEX_NAME) as temporary:
        batches = _counted(_index_batches(out, job, units, files), kinds)
        write_index(temporary, batches, samples, generation)
    return dict(sorted(kinds.items(), key=lambda kind: -kind[1].images))


def write_fields(
    out: Path,
    job: Job,
    units: Sequence[Unit],
    parts: Sequence[Part],
    files: list[FileEntry],
    generation: str,
) -> tuple[StoredField, ...]:
    """Write the files of further fields.

    Args:
        out: The dataset's folder.
        job: The parameters of packing.
        units: All units.
        parts: Their parts.
        files: The manifest's files; those of fields are added.
        generation: The manifest's.

    Returns:
        All fields of the dataset.
    """
    samples = sum(part.samples for part in parts)
    stored = [StoredField(IMAGE)]
    if job.classes:
        stored.append(StoredField(LABEL))
    for field in job.fields:
        field = field._replace(nullable=any(field.name in part.nulls for part in parts))
        index = out / f"_index-{field.name}.rows"
        if field.type is None:
            one = StoredField(field, index.name)
            with whole_file(index) as temporary:
                batches = _index_batches(out, job, units, files, field.name)
                write_index(temporary, batches, samples, generation)
        else:
            size = sum(part.field_bytes[field.name] for part in parts)
            path = out / f"_field-{field.name}.arrow"
            one = StoredField(field, index.name, path.name, rows_per_piece(size, samples))
            arrays = chain.from_iterable(read_values(job.part(u), field.name) for u in units)
            with whole_file(path) as temporary, whole_file(index) as pieces:
                write_column(temporary, pieces, one, len(files), arrays, samples, generation)
            files.append(entry_of(path))
        files.append(entry_of(index))
        stored.append(one)
    return tuple(stored)


def entry_of(path: Path) -> FileEntry:
    """Return the manifest's entry of a finished file of the dataset's folder."""
    return FileEntry(path.name, path.stat().st_size, f"{crc32c_file(path, usable_cpus()):08x}")


def _counted(batches: Iterable[pa.RecordBatch], kinds: dict[str, Kind]) -> Iterator[pa.RecordBatch]:
    """Yield the same batches, and count their images by encoding."""
    for batch in batches:
        column, lengths = batch.column("encoding"), as_numpy(batch.column("length"))
        codes = as_numpy(column.indices)
        for code in np.unique(codes).tolist():
            name, of_kind = column.dictionary[code].as_py(), lengths[codes == code]
            images, size = kinds.get(name, Kind(0, 0))
            kinds[name] = Kind(images + len(of_kind), size + int(of_kind.sum()))
        yield batch


def _index_batches(
    out: Path,
    job: Job,
    units: Sequence[Unit],
    files: Sequence[FileEntry],
    field: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the index rows of all units, of images or of a further field's blobs.

    For LMDB, with offsets of the finished file; for archives and tables, with their numbers.
    """
    if job.container in formats.ELSEWHERE:
        numbers = {entry.name: number for number, entry in enumerate(files)}
        for unit in units:
            for batch in read_rows(job.part(unit), field):
                yield _numbered(batch, numbers)
        return
    if job.container != "lmdb":
        for unit in units:
            yield from read_rows(job.part(unit), field)
        return
    data, name = out / lmdb.DATA_NAME, field or "image"
    extents = lmdb.extents(data, [name])
    at = SCHEMA.get_field_index("offset")
    for unit in units:
        for batch in read_rows(job.part(unit), field):
            found = [one.get(name, (0, 0)) for one in islice(extents, batch.num_rows)]
            if [length for _, length in found] != as_numpy(batch.column("length")).tolist():
                raise CorruptionError(
                    f"{data}: does not hold the blobs that were packed", "Start over: --force."
                )
            offsets = array([offset for offset, _ in found], pa.int64())
            yield batch.set_column(at, SCHEMA.field(at), offsets)
    if next(extents, None) is not None:
        raise CorruptionError(f"{data}: holds more than was packed", "Start over: --force.")


def _numbered(batch: pa.RecordBatch, numbers: Mapping[str, int]) -> pa.RecordBatch:
    """Return index rows with the numbers of archives instead of their paths."""
    paths = batch.column("path").dictionary_encode()
    known = [numbers[name] for name in paths.dictionary.to_pylist()]
    # Null: the sample has no such blob.
    found = np.array([*known, 0], np.int32)[as_numpy(paths.indices.fill_null(len(known)))]
    columns = {"file": array(found, pa.int32()), "path": pa.nulls(batch.num_rows, pa.string())}
    for name, column in columns.items():
        at = SCHEMA.get_field_index(name)
        batch = batch.set_column(at, SCHEMA.field(at), column)
    return batch


def list_bad(out: Path, bad: Sequence[Bad]) -> None:
    """Write the list of bad samples; remove an older list if there are none."""
    path = out / BAD_SAMPLES_NAME
    if not bad:
        path.unlink(missing_ok=True)
        return
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for entry in bad:
            line = {"key": entry.key, "path": entry.path, "reason": entry.reason}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def bad_samples(out: Path, bad: Sequence[Bad], samples: int, container: str) -> BadSamplesError:
    """Return the error for images that cannot be packed."""
    first = f"the first, {bad[0].key}: {bad[0].path}: {bad[0].reason}"
    listed = f"all are listed in {out / BAD_SAMPLES_NAME}"
    images = human_count(samples + len(bad), "image")
    if not samples:
        return BadSamplesError(
            f"{out}: {images}, none of which can be packed; {first}; {listed}",
            "Check that --root holds images.",
        )
    # An LMDB is written in order; samples cannot be inserted.
    again = "LMDB is then packed again" if container == "lmdb" else "it resumes"
    return BadSamplesError(
        f"{out}: {len(bad):,} of {images} cannot be packed; {first}; {listed}",
        "The others are packed. Finish without the bad ones with --skip-bad, or fix them "
        f"and run the same command again ({again}).",
    )

"""Last step of packing: the index of all parts, and the list of bad samples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from fastdata.converters.listing import Unit
from fastdata.converters.outputs import Outputs
from fastdata.converters.parts import Bad, Part, read_values
from fastdata.converters.records import Source, tables_of
from fastdata.converters.tasks import Job

from fastdata.errors import BadSamplesError
from fastdata.machine import usable_cpus
from fastdata.storage.arrow import as_numpy
from fastdata.storage.checksum import crc32c_file
from fastdata.storage.columns import rows_per_piece, write_column
from fastdata.storage.fields import IMAGE, LABEL, StoredField
from fastdata.storage.files import whole_file
from fastdata.storage.manifest import BAD_SAMPLES_NAME, FileEntry
from fastdata.storage.records import INDEX_NAME, write_index
from fastdata.storage.row_groups import runs_of
from fastdata.text import human_count


class Kind(NamedTuple):
    """Number and bytes of the images of one encoding."""

    images: int
    size: int


def group_runs(source: Source, job: Job) -> list[list[list[int]]] | None:
    """Return the manifest's ``groups`` of a source's tables; None for other containers."""
    tables = tables_of(source) if job.container == "tables" else None
    return tables and [runs_of(rows) for rows in tables.groups] * len(tables.columns)


def write_images(
    outputs: Outputs, units: Sequence[Unit], samples: int, files: Sequence[FileEntry], made: str
) -> dict[str, Kind]:
    """Write the index; return its images by encoding, the most frequent first.

    ``made`` is the manifest's generation.
    """
    kinds: dict[str, Kind] = {}
    with whole_file(outputs.job.out / INDEX_NAME) as temporary:
        write_index(temporary, _counted(outputs.rows(units, files, None), kinds), samples, made)
    return dict(sorted(kinds.items(), key=lambda kind: -kind[1].images))


def write_fields(
    outputs: Outputs,
    units: Sequence[Unit],
    parts: Sequence[Part],
    files: list[FileEntry],
    made: str,
) -> tuple[StoredField, ...]:
    """Write the files of further fields, add them to ``files``; return all fields."""
    job, samples = outputs.job, sum(part.samples for part in parts)
    stored = [StoredField(IMAGE), *([StoredField(LABEL)] if job.classes else [])]
    for field in job.fields:
        field = field._replace(nullable=any(field.name in part.nulls for part in parts))
        index = job.out / f"_index-{field.name}.rows"
        if field.type is None:
            one = StoredField(field, index.name)
            with whole_file(index) as temporary:
                write_index(temporary, outputs.rows(units, files, field.name), samples, made)
        else:
            size = sum(part.field_bytes[field.name] for part in parts)
            path = job.out / f"_field-{field.name}.arrow"
            one = StoredField(field, index.name, path.name, rows_per_piece(size, samples))
            arrays = chain.from_iterable(read_values(job.part(u), field.name) for u in units)
            with whole_file(path) as temporary, whole_file(index) as pieces:
                write_column(temporary, pieces, one, len(files), arrays, samples, made)
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


def bad_samples(out: Path, bad: Sequence[Bad], samples: int, again: str) -> BadSamplesError:
    """Return the error for images that cannot be packed."""
    first = f"the first, {bad[0].key}: {bad[0].path}: {bad[0].reason}"
    listed = f"all are listed in {out / BAD_SAMPLES_NAME}"
    images = human_count(samples + len(bad), "image")
    if not samples:
        return BadSamplesError(
            f"{out}: {images}, none of which can be packed; {first}; {listed}",
            "Check that --root holds images.",
        )
    return BadSamplesError(
        f"{out}: {len(bad):,} of {images} cannot be packed; {first}; {listed}",
        "The others are packed. Finish without the bad ones with --skip-bad, or fix them "
        f"and run the same command again ({again}).",
    )

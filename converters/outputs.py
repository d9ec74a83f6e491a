"""Output files of packing: one a unit, or a single one that units are committed to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from fastdata.converters.listing import RecordListing, Unit
from fastdata.converters.parts import PartBuilder, UnitPart, read_section
from fastdata.converters.records import ImageSource
from fastdata.converters.tasks import PackJob, Piece, pack_unit, pieces, prepare

from fastdata.errors import CorruptionError
from fastdata.executors import Executor
from fastdata.machine import usable_cpus
from fastdata.storage.arrow import array, as_numpy
from fastdata.storage.columns import rows_per_piece, write_column
from fastdata.storage.fields import IMAGE, LABEL, StoredField, in_file_name
from fastdata.storage.files import PARTIAL_SUFFIX, crc32c_file, publish, sync, whole_file
from fastdata.storage.formats import lmdb
from fastdata.storage.manifest import ELSEWHERE, FileEntry
from fastdata.storage.records import INDEX_NAME, ROWS_PER_BATCH, SCHEMA, write_index
from fastdata.storage.row_groups import named

#: Bytes of values in a commit to an LMDB: the most that a kill loses. LMDB holds the pages of an
#: uncommitted transaction in memory.
COMMIT_SIZE = 128 << 20
#: Most files that may finish ahead of a slow one, or of one whose worker was lost.
_FILES_AHEAD = 1024
#: Bytes of an offset and a length.
_EXTENT = 16
#: Returns a unit's part; None if it is not current.
Current: TypeAlias = Callable[[Unit], UnitPart | None]
#: Returns the names of files that have arrived in a bucket.
Arrived: TypeAlias = Callable[[Iterable[FileEntry]], set[str]]
Tick: TypeAlias = Callable[[], None]


class EncodingTotals(NamedTuple):
    """Number and bytes of the images of one encoding; ``turned`` have an EXIF orientation."""

    images: int
    size: int
    turned: int


class Outputs:
    """Output files of a packing: a file a unit, or none if images stay where they are.

    ``kept`` is the name of an unfinished file to resume.
    """

    kept = ""

    def __init__(
        self, job: PackJob, source: ImageSource, listing: RecordListing, units: Sequence[Unit]
    ) -> None:
        self.job, self._source, self._listing, self.units = job, source, listing, units

    def done(self, current: Current, arrived: Arrived) -> dict[int, UnitPart]:
        """Return the units that an earlier run has finished, by number."""
        parts = ((unit.number, current(unit)) for unit in self.units)
        done = {number: part for number, part in parts if part is not None}
        sent = arrived(part.file for part in done.values() if part.file is not None)
        return {n: p for n, p in done.items() if p.file is None or self._is_there(p.file, sent)}

    def _is_there(self, file: FileEntry, sent: set[str]) -> bool:
        path = self.job.out / file.name
        return file.name in sent or (path.exists() and path.stat().st_size == file.size)

    def names(self, done: Mapping[int, UnitPart]) -> set[str]:
        """Return the names of the files of finished units."""
        return {part.file.name for part in done.values() if part.file is not None}

    @property
    def is_exact(self) -> bool:
        """Whether the bytes to store are known before packing; there must be records."""
        fields, encoding = self.job.fields, self.job.options.encoding.kind
        if encoding != "original" or any(one.type is not None for one in fields):
            return False
        # Lengths of rows that a library decodes are estimates.
        return next(self._listing.records(0, 1)).column is None

    def pack(
        self, executor: Executor, done: Mapping[int, UnitPart], tick: Tick, *, uploads: bool
    ) -> Iterator[Unit]:
        """Pack the units that are not done; yield each one that is."""
        task = partial(pack_unit, self.job)
        todo = [unit for unit in self.units if unit.number not in done]
        # Files that wait for their upload occupy this disk.
        results = executor.run(task, todo, tick, 0 if uploads else _FILES_AHEAD)
        for unit, _ in zip(todo, results, strict=True):
            yield unit

    def finished(self, parts: Sequence[UnitPart]) -> list[FileEntry]:
        """Return the manifest's entries of the files, when all units are packed.

        A source's archives or tables are not read again.
        """
        if self.job.container not in ELSEWHERE:
            return [part.file for part in parts if part.file is not None]
        assert self.job.root is not None
        start = len(self.job.root.rstrip("/")) + 1
        tables = self._source.tables_in(self.job.container)
        files = (self._source.archives or ()) if tables is None else tables.files
        return [
            FileEntry(named(name, column) if column else name, file.size, "")
            for column in ([""] if tables is None else tables.columns)
            for file in files
            for name in [file.location[start:]]
        ]

    def rows(
        self, parts: Sequence[UnitPart], numbers: Mapping[str, int], field: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield the index rows of all units, of a field's blobs; ``numbers`` are the files'."""
        elsewhere = self.job.container in ELSEWHERE
        for batch in self._section(parts, field):
            yield _numbered(batch, numbers) if elsewhere else batch

    def _section(self, parts: Sequence[UnitPart], field: str) -> Iterator[pa.RecordBatch]:
        for unit, part in zip(self.units, parts, strict=True):
            yield from read_section(self.job.part(unit), part, field)

    def write(
        self, parts: Sequence[UnitPart], files: list[FileEntry], made: str
    ) -> tuple[dict[str, EncodingTotals], tuple[StoredField, ...]]:
        """Write the index, and the files of other fields, which are added to ``files``.

        Return images by encoding, the most frequent first, and all fields. ``made`` is the
        manifest's generation.
        """
        job, samples = self.job, sum(part.samples for part in parts)
        kinds: dict[str, EncodingTotals] = {}
        numbers = {entry.name: number for number, entry in enumerate(files)}
        nulls = {name for part in parts for name in part.nulls}
        cpus = usable_cpus()  # reads files of the kernel
        rows = self.rows(parts, numbers, IMAGE.name)
        written = [job.work / INDEX_NAME]
        write_index(written[0], _counted(rows, kinds), samples, made)
        stored = [StoredField(IMAGE), *([StoredField(LABEL)] if job.classes else [])]
        for place, field in enumerate(job.fields):
            field = field._replace(nullable=field.name in nulls)
            name = in_file_name(place, field.name)
            index = job.work / f"_index-{name}.rows"
            if field.type is None:
                one = StoredField(field, index.name)
                write_index(index, self.rows(parts, numbers, field.name), samples, made)
            else:
                size = sum(part.field_bytes[field.name] for part in parts)
                path = job.work / f"_field-{name}.arrow"
                one = StoredField(field, index.name, path.name, rows_per_piece(size, samples))
                arrays = (batch.column(0) for batch in self._section(parts, field.name))
                write_column(path, index, one, len(files), arrays, samples, made)
                files.append(entry_of(path, cpus))
                written.append(path)
            files.append(entry_of(index, cpus))
            written.append(index)
            stored.append(one)
        # All are flushed, then all renamed: a flush commits the names of all.
        for path in written:
            sync(path)
        for path in written:
            os.replace(path, job.out / path.name)
        sync(job.out)
        return dict(sorted(kinds.items(), key=lambda kind: -kind[1].images)), tuple(stored)


class OneFile(Outputs):
    """Output of LMDB: this process commits unit after unit, and workers only prepare them."""

    kept = lmdb.DATA_NAME + PARTIAL_SUFFIX

    def __init__(
        self, job: PackJob, source: ImageSource, listing: RecordListing, units: Sequence[Unit]
    ) -> None:
        super().__init__(job, source, listing, units)
        self._data, self._unfinished = job.out / lmdb.DATA_NAME, job.out / self.kept
        self._blobs = [IMAGE.name, *(field.name for field in job.fields if field.type is None)]
        self._extents, self._samples = job.work / "extents", 0

    def done(self, current: Current, arrived: Arrived) -> dict[int, UnitPart]:
        """Return the units committed to the LMDB, by number; none if it holds anything else."""
        if self._data.exists():
            # A kill came between renaming the file and writing the manifest: undo the renaming.
            os.replace(self._data, self._unfinished)
        left = lmdb.entries(self._unfinished)
        done: dict[int, UnitPart] = {}
        for unit in self.units:
            part = current(unit)
            # The file is written in order: samples cannot be inserted. A kill may have come
            # between writing a part and its commit.
            if part is None or part.samples > left:
                break
            done[unit.number] = part
            left -= part.samples
        # Commits cannot be undone without changing the file's bytes.
        return {} if left else done

    def names(self, done: Mapping[int, UnitPart]) -> set[str]:
        """Return the name of the file, if a unit is finished."""
        return {self.kept} if done else set()

    def pack(
        self, executor: Executor, done: Mapping[int, UnitPart], tick: Tick, *, uploads: bool
    ) -> Iterator[Unit]:
        """Commit the units that are not done, in order; yield each one that is."""
        job = self.job
        # LMDB stores the map size in the file, so it is a function of the source.
        map_size = lmdb.map_size(sum(unit.stored for unit in self.units), exact=self.is_exact)
        committed = sum(part.samples for part in done.values())

        def work() -> Iterator[Piece]:
            todo = (unit for unit in self.units if unit.number not in done)
            return (piece for unit in todo for piece in pieces(job, unit))

        prepared = zip(work(), executor.run(partial(prepare, job), work(), tick), strict=True)
        for unit, group in groupby(prepared, key=lambda entry: entry[0].unit):
            part = PartBuilder(job.fields)
            opened = lmdb.LmdbWriter(self._unfinished, committed, map_size, job.fields)
            with closing(opened) as writer:
                for _, samples in group:
                    for sample in samples:
                        if part.add(sample):
                            writer.add(sample)
                # The file knows what is committed, so a part may be early, but not late.
                with whole_file(job.part(unit)) as temporary:
                    part.write(temporary, unit.fingerprint, file_number=0)
                writer.finish()
            committed += part.samples
            yield unit

    def finished(self, parts: Sequence[UnitPart]) -> list[FileEntry]:
        """Name the file, note where its blobs lie, and return its entry."""
        publish(self._unfinished, self._data)
        self._samples = sum(part.samples for part in parts)
        extents = lmdb.extents(self._data, self._blobs)
        count = 0
        # Field after field, so that one walk through the file serves all fields.
        with self._extents.open("wb") as file:
            while held := list(islice(extents, ROWS_PER_BATCH)):
                for place, name in enumerate(self._blobs):
                    file.seek(_EXTENT * (place * self._samples + count))
                    np.array([one.get(name, (0, 0)) for one in held], np.int64).tofile(file)
                count += len(held)
        if count != self._samples:
            raise self._different()
        return [entry_of(self._data)]

    def _different(self) -> CorruptionError:
        what = f"{self._data}: does not hold the blobs that were packed, or holds more"
        return CorruptionError(what, "Start over: --force.")

    def rows(
        self, parts: Sequence[UnitPart], numbers: Mapping[str, int], field: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield the index rows of all units, with offsets in the finished file."""
        at = SCHEMA.get_field_index("offset")
        with self._extents.open("rb") as file:
            file.seek(_EXTENT * self._blobs.index(field) * self._samples)
            for batch in super().rows(parts, numbers, field):
                extents = np.fromfile(file, np.int64, 2 * batch.num_rows).reshape(-1, 2)
                if not np.array_equal(extents[:, 1], as_numpy(batch.column("length"))):
                    raise self._different()
                offsets = array(extents[:, 0].tolist(), pa.int64())
                yield batch.set_column(at, SCHEMA.field(at), offsets)


def _numbered(batch: pa.RecordBatch, numbers: Mapping[str, int]) -> pa.RecordBatch:
    """Return index rows with the numbers of archives instead of their paths."""
    # None: the sample has no such blob.
    files = [0 if name is None else numbers[name] for name in batch.column("path").to_pylist()]
    columns = dict(zip(SCHEMA.names, batch.columns, strict=True))
    columns |= {"file": array(files, pa.int32()), "path": pa.nulls(len(files), pa.string())}
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=SCHEMA)


def entry_of(path: Path, cpus: int | None = None) -> FileEntry:
    """Return the manifest's entry of a finished file of the dataset's folder."""
    checksum = crc32c_file(path, usable_cpus() if cpus is None else cpus)
    return FileEntry(path.name, path.stat().st_size, f"{checksum:08x}")


def _counted(
    batches: Iterable[pa.RecordBatch], kinds: dict[str, EncodingTotals]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        column, lengths = batch.column("encoding"), as_numpy(batch.column("length"))
        codes, turned = as_numpy(column.indices), as_numpy(batch.column("orientation")) > 1
        for code in np.unique(codes).tolist():
            name, of_kind = column.dictionary[code].as_py(), lengths[codes == code]
            images, size, before = kinds.get(name, EncodingTotals(0, 0, 0))
            added = len(of_kind), int(of_kind.sum()), int(turned[codes == code].sum())
            kinds[name] = EncodingTotals(images + added[0], size + added[1], before + added[2])
        yield batch

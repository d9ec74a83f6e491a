"""Output files of packing: one a unit, or a single one that units are committed to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby, islice

import numpy as np
import pyarrow as pa
from fastdata.converters.listing import Listing, Unit
from fastdata.converters.parts import Part, PartBuilder, read_rows
from fastdata.converters.records import Source, archives_of, tables_of
from fastdata.converters.tasks import (
    PIECE_BYTES,
    Job,
    Piece,
    pack_unit,
    pieces,
    prepare,
    with_blobs,
)

from fastdata.errors import CorruptionError
from fastdata.executors import Executor, InProcess
from fastdata.machine import usable_cpus
from fastdata.storage import formats
from fastdata.storage.arrow import array, as_numpy
from fastdata.storage.checksum import crc32c_file
from fastdata.storage.files import PARTIAL_SUFFIX, publish, sync
from fastdata.storage.formats import lmdb
from fastdata.storage.manifest import FileEntry
from fastdata.storage.records import SCHEMA
from fastdata.storage.row_groups import named

#: Bytes of values in a commit to an LMDB: the most that a kill loses. LMDB holds the pages of an
#: uncommitted transaction in memory.
COMMIT_SIZE = 128 << 20
#: Most files that may finish ahead of a slow one, or of one whose worker was lost.
_FILES_AHEAD = 1024
#: Returns a unit's part, with a suffix of its path; None if it is not current.
Current = Callable[[Unit, str], Part | None]


class Outputs:
    """Output files of a packing: a file a unit, or none if images stay where they are.

    Attributes:
        chained: Whether a unit's output depends on earlier units.
        again: What the same command does once bad images are fixed.
        kept: Name of an unfinished file to resume.
    """

    chained, again, kept = False, "it resumes", ""

    def __init__(self, job: Job, source: Source) -> None:
        self.job, self._source = job, source

    def done(
        self,
        units: Sequence[Unit],
        current: Current,
        arrived: Callable[[Iterable[FileEntry]], set[str]],
    ) -> dict[int, Part]:
        """Return the units that an earlier run has finished, by number."""
        parts = ((unit.number, current(unit, "")) for unit in units)
        found = {number: part for number, part in parts if part is not None}
        sent = arrived(part.file for part in found.values() if part.file is not None)
        return {n: p for n, p in found.items() if p.file is None or self._is_there(p.file, sent)}

    def _is_there(self, file: FileEntry, sent: set[str]) -> bool:
        path = self.job.out / file.name
        return file.name in sent or (path.exists() and path.stat().st_size == file.size)

    def names(self, done: Mapping[int, Part]) -> set[str]:
        """Return the names of the files of finished units."""
        return {part.file.name for part in done.values() if part.file is not None}

    def pack(
        self,
        executor: Executor,
        listing: Listing,
        units: Sequence[Unit],
        done: Mapping[int, Part],
        tick: Callable[[], None],
        *,
        uploads: bool,
    ) -> Iterator[Unit]:
        """Pack the units that are not done; yield each one that is."""
        task = partial(pack_unit, self.job)
        todo = [unit for unit in units if unit.number not in done]
        # Files that wait for their upload occupy this disk.
        results = executor.run(task, todo, tick, 0 if uploads else _FILES_AHEAD)
        for unit, _ in zip(todo, results, strict=True):
            yield unit

    def finished(self, parts: Sequence[Part]) -> list[FileEntry]:
        """Return the manifest's entries of the files, when all units are packed.

        A source's archives or tables are not read again.
        """
        if self.job.container not in formats.ELSEWHERE:
            return [part.file for part in parts if part.file is not None]
        assert self.job.root is not None
        start = len(self.job.root.rstrip("/")) + 1
        tables = tables_of(self._source) if self.job.container == "tables" else None
        files = (archives_of(self._source) or ()) if tables is None else tables.files
        return [
            FileEntry(named(name, column) if column else name, file.size, "")
            for column in ([""] if tables is None else tables.columns)
            for file in files
            for name in [file.location[start:]]
        ]

    def rows(
        self, units: Sequence[Unit], files: Sequence[FileEntry], field: str | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the index rows of all units, of images or of a further field's blobs."""
        numbers = {entry.name: number for number, entry in enumerate(files)}
        for unit in units:
            for batch in read_rows(self.job.part(unit), field):
                elsewhere = self.job.container in formats.ELSEWHERE
                yield _numbered(batch, numbers) if elsewhere else batch


class OneFile(Outputs):
    """Output of LMDB: this process commits unit after unit, and workers only prepare them."""

    # A file that is written in order: samples cannot be inserted.
    chained, again = True, "LMDB is then packed again"
    kept = lmdb.DATA_NAME + PARTIAL_SUFFIX

    def __init__(self, job: Job, source: Source) -> None:
        super().__init__(job, source)
        self._data, self._unfinished = job.out / lmdb.DATA_NAME, job.out / self.kept

    def done(
        self, units: Sequence[Unit], current: Current, arrived: Callable[..., set[str]]
    ) -> dict[int, Part]:
        """Return the units committed to the LMDB, by number; none if it holds anything else."""
        if self._data.exists():
            # A kill came between renaming the file and writing the manifest: undo the renaming.
            os.replace(self._data, self._unfinished)
        committed = lmdb.entries(self._unfinished)
        found: dict[int, Part] = {}
        samples = 0
        for unit in units:
            part = current(unit, "")
            if part is None:
                # A kill came after the commit, before the part was renamed.
                part = current(unit, PARTIAL_SUFFIX)
                if part is None or samples + part.samples != committed:
                    break
                path = self.job.part(unit)
                os.replace(path.with_name(path.name + PARTIAL_SUFFIX), path)
            found[unit.number] = part
            samples += part.samples
        # Commits cannot be undone without changing the file's bytes.
        return found if samples == committed else {}

    def names(self, done: Mapping[int, Part]) -> set[str]:
        """Return the name of the file, if a unit is finished."""
        return {self.kept} if done else set()

    def pack(
        self,
        executor: Executor,
        listing: Listing,
        units: Sequence[Unit],
        done: Mapping[int, Part],
        tick: Callable[[], None],
        *,
        uploads: bool,
    ) -> Iterator[Unit]:
        """Commit the units that are not done, in order; yield each one that is."""
        job = self.job
        # LMDB stores the map size in the file, so it is a function of the source.
        as_listed = job.encoding.kind == "original" and all(one.type is None for one in job.fields)
        stored, exact = sum(unit.stored for unit in units), listing.lengths_are_exact()
        map_size = lmdb.map_size(stored, exact=as_listed and exact)
        committed = sum(part.samples for part in done.values())
        # Results without blobs are small: workers need not wait for a commit.
        ahead = COMMIT_SIZE // PIECE_BYTES if job.encoding.kind == "original" else 0

        def work() -> Iterator[Piece]:
            todo = (unit for unit in units if unit.number not in done)
            return (piece for unit in todo for piece in pieces(job, unit))

        task = partial(prepare, job, isinstance(executor, InProcess))
        prepared = zip(work(), executor.run(task, work(), tick, ahead), strict=True)
        for unit, group in groupby(with_blobs(job, prepared), key=lambda entry: entry[0]):
            path, part = job.part(unit), PartBuilder(job.fields)
            opened = lmdb.LmdbWriter(self._unfinished, committed, map_size, job.fields)
            with closing(opened) as writer:
                for _, samples in group:
                    for sample in samples:
                        if part.add(sample):
                            writer.add(sample)
                # Sync the part before the commit, and rename it afterwards. So a kill at any
                # point leaves no doubt about what is committed.
                temporary = path.with_name(path.name + PARTIAL_SUFFIX)
                part.write(temporary, unit.fingerprint, file_number=0)
                sync(temporary)
                writer.finish()
            publish(temporary, path)
            committed += part.samples
            yield unit

    def finished(self, parts: Sequence[Part]) -> list[FileEntry]:
        """Name the file, and return its entry."""
        publish(self._unfinished, self._data)
        size, checksum = self._data.stat().st_size, crc32c_file(self._data, usable_cpus())
        return [FileEntry(self._data.name, size, f"{checksum:08x}")]

    def rows(
        self, units: Sequence[Unit], files: Sequence[FileEntry], field: str | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the index rows of all units, with offsets in the finished file."""
        name = field or "image"
        extents = lmdb.extents(self._data, [name])
        at = SCHEMA.get_field_index("offset")
        for batch in super().rows(units, files, field):
            found = [one.get(name, (0, 0)) for one in islice(extents, batch.num_rows)]
            if [length for _, length in found] != as_numpy(batch.column("length")).tolist():
                what = f"{self._data}: does not hold the blobs that were packed"
                raise CorruptionError(what, "Start over: --force.")
            offsets = array([offset for offset, _ in found], pa.int64())
            yield batch.set_column(at, SCHEMA.field(at), offsets)
        if next(extents, None) is not None:
            what = f"{self._data}: holds more than was packed"
            raise CorruptionError(what, "Start over: --force.")


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

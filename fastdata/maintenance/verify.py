"""Comparison of a dataset, or of the parts of an index, with its manifest."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import merge
from itertools import chain, islice, product
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fastdata.errors import CorruptionError, DatasetError, UsageError
from fastdata.executors import local_executor
from fastdata.machine import usable_cpus
from fastdata.maintenance.checks import (
    Check,
    Finding,
    check_column_file,
    check_index,
    check_loose_size,
    check_pieces,
    check_rows,
    check_sample,
    file_problem,
    reason,
)
from fastdata.remote.opening import RemoteSource, open_packed
from fastdata.remote.urls import join_url, redact
from fastdata.staging.copying import Origin
from fastdata.storage import formats
from fastdata.storage.arrow import as_numpy
from fastdata.storage.fields import BLOBS, IMAGE, LABEL, StoredField
from fastdata.storage.files import crc32c_file
from fastdata.storage.manifest import FileEntry, PartsError, PartsManifest
from fastdata.storage.packed import IndexedSource, PackedSource, own_files
from fastdata.storage.row_groups import split_name
from fastdata.text import human_count
from fastdata.threads import Result

#: Samples that one task decodes, and those whose file sizes one task checks.
_ROWS = 256
_LOOSE_ROWS = 4096
#: Pieces of a column that one task reads.
_PIECES = 256
#: Tasks that may finish ahead of a slower one.
_AHEAD = 1024
#: Threads that read a file for its checksum.
_THREADS = 4


class Problem(NamedTuple):
    """Problem of a dataset.

    Attributes:
        where: The file or sample.
        what: The problem.
    """

    where: str
    what: str


class Verification(NamedTuple):
    """Result of verifying.

    Attributes:
        samples: Number of samples the dataset has.
        files: Number of its files, the index included.
        problems: All problems; empty if the dataset is sound.
    """

    samples: int
    files: int
    problems: list[Problem]


def verify(
    path: str | os.PathLike[str],
    *,
    fast: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Verification:
    """Check a dataset.

    Checks that every file has its size and checksum; that every extent of an index lies in
    its file, and is where the container itself has the blob; that every blob has its
    checksum, decodes, and is an image of the size, channels and encoding that the index says;
    that seek points fit their image, and have the checksums of its parts; and that
    columns have the types, rows and nulls that the manifest says.

    A file that is missing, cut short or cannot be read is one problem, whatever is in it.
    Memory grows with the problems found, but not with the dataset.

    A dataset behind a URL is read by ranges: its samples and columns are checked, and the sizes of
    its files; ``fast`` fetches its manifest and indexes alone.

    Args:
        path: The dataset's folder or URL; a staged copy of it is not looked at.
        fast: Whether to check no more than that files have their sizes and are of this packing, of
            each the first image and blob.
        workers: Worker processes; None for one a CPU, 1 to work in this process.
        progress: Called now and then with the number of samples checked and of all.
        storage_options: Options of the driver of a URL.

    Raises:
        UsageError: ``workers`` is no number of processes.
        DatasetError: There is no dataset at ``path``, or none that can be opened at all.
        RemoteError: The URL cannot be reached.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers}: no work would be done", "Use 1 or more.")
    try:
        source = _opened(path, storage_options)
    except PartsError as error:
        parts = error.manifest
        return _verify_parts(os.fspath(path), parts, fast, workers, progress, storage_options)
    return _verify_one(source, fast, workers, progress)


def _verify_parts(
    place: str,
    parts: PartsManifest,
    fast: bool,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
    storage_options: Mapping[str, Any] | None,
) -> Verification:
    """Check each part of an index by itself, and against the index's manifest."""
    before, files, problems = 0, 1, list[Problem]()

    def advance(done: int, _: int) -> None:
        if progress is not None:
            progress(before + done, parts.samples)

    for part in parts.parts:
        where = join_url(place, part.name)
        try:
            source = _opened(where, storage_options)
            if difference := parts.problem_of(part, source.manifest):
                of_part = [Problem(redact(where), difference)]
            else:
                checked = _verify_one(source, fast, workers, advance)
                files, of_part = files + checked.files, checked.problems
        except DatasetError as error:
            of_part = [Problem(redact(where), error.what.removeprefix(f"{redact(where)}: "))]
        for one in of_part:
            name = one.where if part.name in one.where else f"{part.name}: {one.where}"
            problems.append(Problem(name, one.what))
        before += part.samples
    return Verification(parts.samples, files, problems)


def _verify_one(
    source: PackedSource | RemoteSource,
    fast: bool,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Verification:
    manifest, findings = source.manifest, _Findings()
    findings.add(_check_sizes(source))
    fields = _check_indexes(source, findings)
    names = _blobs_of(fields)
    if isinstance(source, RemoteSource):
        findings.add(_check_loose_sizes(source, names))
    elif fast:
        findings.add(_check_first_blobs(source, names, findings))
    # Each sample would report an impossible index again.
    if fields and not (fast and (manifest.blob_files or isinstance(source, RemoteSource))):
        _check_samples(source, fields, fast, workers, progress, findings)
    return Verification(manifest.samples, len(manifest.files) + 1, findings.problems())


def _opened(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> PackedSource | RemoteSource:
    source = open_packed(path, storage_options)
    if isinstance(source, PackedSource) and storage_options:
        raise UsageError(
            "--storage-option has no effect without a URL", "Leave it out, or give a URL."
        )
    return source


class _Findings:
    """Findings of all checks; equal findings about the same file are one problem."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], int] = {}

    def add(self, findings: Iterable[Finding]) -> bool:
        """Add findings; return whether there were any."""
        added = False
        for where, what, samples in findings:
            self._samples[where, what] = self._samples.get((where, what), 0) + samples
            added = True
        return added

    def has(self, path: str) -> bool:
        """Return whether there is a finding about a file."""
        return any(where == path for where, _ in self._samples)

    def of_files(self) -> dict[str, str]:
        """Return the problems found so far, by file or sample."""
        return dict(self._samples.keys())

    def problems(self) -> list[Problem]:
        """Return the problems, in the order in which each was found first."""
        return [
            Problem(
                where,
                f"{what}; {human_count(samples, 'sample')} in it not checked" if samples else what,
            )
            for (where, what), samples in self._samples.items()
        ]


def _check_sizes(source: PackedSource | RemoteSource) -> Iterator[Finding]:
    """Find files of the manifest that are missing or have another size."""
    if isinstance(source, PackedSource):
        for path, entry in zip(source.files.places, source.manifest.files, strict=True):
            if problem := file_problem(Path(path), entry.size):
                yield Finding(path, problem)
        return
    manifest, place = source.manifest, Origin(source.url, source.storage_options)
    yield from _sizes_at(place, manifest.own_files, "manifest")
    elsewhere: Iterable[FileEntry] = (one for one in manifest.files if not one.crc32c)
    if manifest.root is not None and manifest.container != "folder":
        if manifest.groups is not None:
            elsewhere = (replace(one, name=split_name(one.name)[0]) for one in elsewhere)
        yield from _sizes_at(place.root(manifest.root), elsewhere, "manifest")


def _check_loose_sizes(source: RemoteSource, names: Sequence[str]) -> Iterator[Finding]:
    """Find files of a ``folder``'s samples behind a URL that are missing or have another size."""
    manifest = source.manifest
    if manifest.container == "folder" and manifest.root is not None and names:
        place = Origin(source.url, source.storage_options).root(manifest.root)
        yield from _sizes_at(place, own_files(source, names, 0, manifest.samples), "index")


def _sizes_at(place: Origin, entries: Iterable[FileEntry], says: str) -> Iterator[Finding]:
    entries = list(entries)
    sizes = place.sizes([one.name for one in entries])
    for one in entries:
        size = sizes.get(one.name)
        if size is None:
            yield Finding(place.shown(one.name), os.strerror(errno.ENOENT))
        elif size != one.size:
            yield Finding(place.shown(one.name), f"has {size} bytes, the {says} says {one.size}")


def _check_first_blobs(
    source: PackedSource, names: Sequence[str], findings: _Findings
) -> Iterator[Finding]:
    """Read a blob of each field in each file: the container's files name no generation."""
    for name, (number, path) in product(names, enumerate(source.files.places)):
        row = source.index_of(name).find_file(number)
        if row == len(source) or findings.has(path):
            continue
        record = source.row(row, name)
        if record.file == number and record.length:
            try:
                source.read([record], row)
            except DatasetError as error:
                yield Finding(path, error.what.removeprefix(f"{source.location}: "))


def _check_indexes(source: IndexedSource, findings: _Findings) -> list[StoredField]:
    """Check all indexes; return the fields whose blobs to check, none without sound images."""
    usable: list[StoredField] = []
    for stored in source.manifest.fields:
        names = [name for name in (stored.index, stored.file) if name is not None]
        if stored.field == LABEL or any(
            findings.has(f"{source.location}/{name}") for name in names
        ):
            continue
        try:
            wrong = findings.add(check_index(source, stored))
        except DatasetError as error:
            if stored.index is None:
                raise
            path, wrong = f"{source.location}/{stored.index}", True
            findings.add([Finding(path, error.what.removeprefix(f"{path}: "))])
        if not wrong:
            usable.append(stored)
    return usable if usable and usable[0].field == IMAGE else []


def _blobs_of(fields: Iterable[StoredField]) -> list[str]:
    return [one.field.name for one in fields if one.field.kind in BLOBS]


def _check_samples(
    source: IndexedSource,
    fields: Sequence[StoredField],
    fast: bool,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
    findings: _Findings,
) -> None:
    """Check all files and samples; if ``fast``, only the sizes of a `folder`'s images."""
    samples = source.manifest.samples
    checks: Iterator[Callable[[], list[Finding]]]
    if fast:
        # Starting a process takes longer than looking at thousands of files.
        workers = max(1, min(workers or usable_cpus(), -(-samples // _LOOSE_ROWS)))
        checks = (task for _, task in _row_tasks(check_loose_size, source, fields, _LOOSE_ROWS))
    else:
        rows = _row_tasks(partial(check_sample, findings.of_files()), source, fields, _ROWS)
        # Check a file's samples at about the time of its checksum: so it is read from the disk
        # once, and the progress of samples is the progress of the whole.
        of_files = _file_tasks(source, fields) if isinstance(source, PackedSource) else ()
        mixed = (task for _, task in merge(of_files, rows, key=itemgetter(0)))
        checks = chain(mixed, _piece_tasks(source, fields))
    with local_executor(workers) as executor:

        def tick() -> None:
            if progress is not None:
                progress(executor.reported[0], samples)

        # A large file's checksum takes as long as thousands of samples.
        for of_task in executor.run(_call, checks, tick, _AHEAD):
            findings.add(of_task)
        tick()


def _call(task: Callable[[], Result]) -> Result:
    return task()


def _row_tasks(
    check: Check, source: IndexedSource, fields: Sequence[StoredField], rows: int
) -> Iterator[tuple[float, Callable[[], list[Finding]]]]:
    """Yield tasks for runs of samples, each with its relative position (0 to 1)."""
    end = source.manifest.samples
    for start in range(0, end, rows):
        stop = min(start + rows, end)
        yield start / end, partial(check_rows, source, _blobs_of(fields), start, stop, check)


def _piece_tasks(
    source: IndexedSource, fields: Sequence[StoredField]
) -> Iterator[Callable[[], list[Finding]]]:
    """Yield tasks for runs of the pieces of columns."""
    for stored in fields:
        if stored.file is not None:
            pieces = len(source.index_of(stored.field.name))
            for start in range(0, pieces, _PIECES):
                yield partial(check_pieces, source, stored, start, min(start + _PIECES, pieces))


def _file_tasks(
    source: PackedSource, fields: Sequence[StoredField]
) -> Iterator[tuple[float, Callable[[], list[Finding]]]]:
    """Yield tasks for files with a checksum, in order, each with its relative position (0 to 1).

    Leave out files that are missing or have another size, which `_check_sizes` finds.
    """
    # Archives have no checksum: each sample has its own.
    numbered = [(-1, source.manifest.index), *enumerate(source.manifest.files)]
    chosen = [(number, entry) for number, entry in numbered if entry.crc32c]
    total, before = sum(entry.size for _, entry in chosen), 0
    for number, entry in chosen:
        if not file_problem(source.location / entry.name, entry.size):
            yield before / max(total, 1), partial(_check_file, source, fields, number, entry)
        before += entry.size


def _check_file(
    source: PackedSource, fields: Sequence[StoredField], number: int, entry: FileEntry
) -> list[Finding]:
    """Check a file's checksum (-1: the index), then its structure unless it is damaged."""
    path = source.location / entry.name
    try:
        checksum = f"{crc32c_file(path, _THREADS):08x}"
        if checksum != entry.crc32c:
            what = f"has CRC-32C {checksum}, the manifest says {entry.crc32c}"
            return [Finding(str(path), what)]
        if number < 0:
            return []
        if number < source.manifest.blob_files:
            return _check_container(source, fields, number, path)
        columns = (stored for stored in fields if stored.file == entry.name)
        return [one for stored in columns for one in check_column_file(source, stored)]
    except OSError as error:
        return [Finding(str(path), reason(error))]


def _check_container(
    source: PackedSource, checked: Sequence[StoredField], number: int, path: Path
) -> list[Finding]:
    """Check that a container's file has the blobs of its indexes where they say."""
    start, stop = (source.index.find_file(at) for at in (number, number + 1))
    container, fields = source.manifest.container, source.fields
    names = _blobs_of(checked)
    try:
        walk = formats.extents(container, path, fields)
        indexes = [source.index_of(name).batches(start, stop, _EXTENT) for name in names]
        first = _first_difference(walk, names, indexes)
        if first is None:
            return []
        count = sum(1 for _ in formats.extents(container, path, fields))
    except CorruptionError as error:
        return [Finding(str(path), error.what)]
    what = (
        f"holds {human_count(count, 'sample')}, the index names {stop - start} in it; "
        f"they differ from its sample {first} on"
    )
    return [Finding(str(path), what)]


_EXTENT = ("offset", "length")


def _first_difference(
    walk: Iterator[Mapping[str, tuple[int, int]]],
    names: Sequence[str],
    indexes: Sequence[Iterator[pa.RecordBatch]],
) -> int | None:
    """Return the first sample on whose blobs container and indexes differ; None if none does."""
    before = 0
    for batches in zip(*indexes, strict=True):
        expected = np.stack([as_numpy(batch.column(n)) for batch in batches for n in _EXTENT], 1)
        # A blob that a sample does not have is of length 0, at 0.
        pairs = chain.from_iterable(
            chain.from_iterable(sample.get(name, (0, 0)) for name in names)
            for sample in islice(walk, len(expected))
        )
        stored = np.fromiter(pairs, np.int64).reshape(-1, expected.shape[1])
        differing = np.flatnonzero((stored != expected[: len(stored)]).any(axis=1))
        if len(differing):
            return before + int(differing[0])
        before += len(stored)
        if len(stored) < len(expected):
            return before
    return before if next(walk, None) is not None else None

"""Comparison of a dataset, or of the parts of an index, with its manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import chain, islice, product
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fastdata.errors import CorruptionError, DatasetError, UsageError
from fastdata.executors import Executor, Result, local_executor
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
from fastdata.remote.manifests import read_manifest
from fastdata.remote.urls import is_url, join_url, redact
from fastdata.staging.fetching import Fetching, fetching
from fastdata.storage import formats
from fastdata.storage.arrow import as_numpy
from fastdata.storage.fields import BLOBS, IMAGE, LABEL, StoredField
from fastdata.storage.files import crc32c_file
from fastdata.storage.manifest import FileEntry, Manifest, PartsError, PartsManifest
from fastdata.storage.packed import PackedSource
from fastdata.text import human_count

#: Samples that one task decodes, and those whose file sizes one task checks.
_ROWS = 256
_LOOSE_ROWS = 4096
#: Pieces of a column that one task reads.
_PIECES = 256
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

    A dataset behind a URL is fetched a file at a time to a temporary folder ($TMPDIR), which
    has to hold its columns and two of its files; ``fast`` fetches its manifest and indexes alone.

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
        SpaceError: The temporary folder is too full.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers}: no work would be done", "Use 1 or more.")
    try:
        return _verify_one(path, fast, workers, progress, storage_options)
    except PartsError as error:
        parts = error.manifest
    return _verify_parts(os.fspath(path), parts, fast, workers, progress, storage_options)


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
        where = join_url(place, part.name) if is_url(place) else f"{place.rstrip('/')}/{part.name}"
        try:
            manifest = Manifest.parse(read_manifest(where, storage_options), redact(where))
            if difference := parts.problem_of(part, manifest):
                of_part = [Problem(redact(where), difference)]
            else:
                checked = _verify_one(where, fast, workers, advance, storage_options)
                files, of_part = files + checked.files, checked.problems
        except DatasetError as error:
            of_part = [Problem(redact(where), error.what.removeprefix(f"{redact(where)}: "))]
        for one in of_part:
            name = one.where if part.name in one.where else f"{part.name}: {one.where}"
            problems.append(Problem(name, one.what))
        before += part.samples
    return Verification(parts.samples, files, problems)


def _verify_one(
    path: str | os.PathLike[str],
    fast: bool,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
    storage_options: Mapping[str, Any] | None,
) -> Verification:
    source = None if is_url(path) else PackedSource(Path(path))
    tables = source is not None and source.manifest.groups is not None
    if source is None or tables or is_url(source.manifest.root or ""):
        with fetching(os.fspath(path), storage_options) as fetched:
            return _verify_remote(fetched, fast, workers, progress)
    if storage_options:
        raise UsageError(
            "--storage-option has no effect without a URL", "Leave it out, or give a URL."
        )
    findings = _Findings()
    findings.add(_check_sizes(source))
    fields = _check_indexes(source, findings)
    if fields and fast:
        findings.add(_check_first_blobs(source, _blobs_of(fields), findings))
    # Each sample would report an impossible index again.
    if fields and not (fast and source.manifest.blob_files):
        _check_local(source, fields, fast, workers, progress, findings)
    manifest = source.manifest
    return Verification(manifest.samples, len(manifest.files) + 1, findings.problems())


def _verify_remote(
    fetched: Fetching,
    fast: bool,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> Verification:
    """Check a dataset whose files are fetched one after the other."""
    source, folder = fetched.blobs, str(fetched.blobs.location)
    manifest = source.manifest
    findings, of_copy = _Findings(), _Findings()
    of_copy.add(Finding(where, what) for where, what in fetched.size_problems())
    fetched.fetch_fields(columns=not fast)
    fields = _check_indexes(source, of_copy)
    names = _blobs_of(fields)
    if fields and fast:
        of_copy.add(Finding(where, what) for where, what in fetched.loose_problems(names))
    elif fields:
        with local_executor(workers) as executor:
            tick = _ticker(executor, manifest.samples, progress)
            column_files = range(manifest.blob_files, len(manifest.files))
            _check_files(executor, tick, source, column_files, 0, 0, fields, of_copy)
            if manifest.groups is not None:
                rows: Any = fetched.remote
                tasks = _row_tasks(check_sample, rows, fields, _ROWS, 0, manifest.samples)
                for of_rows in executor.run(_call, (task for _, task in tasks), tick):
                    of_copy.add(of_rows)
            views = fetched.views(names) if manifest.groups is None else ()
            for view, files, start, stop in views:
                of_view, part = _Findings(), PackedSource(view)
                _check_files(executor, tick, part, files, start, stop, fields, of_view)
                of_copy.add(of_view.named(str(view), fetched.name))
            tick()
    findings.add(of_copy.named(folder, fetched.name))
    return Verification(manifest.samples, len(manifest.files) + 1, findings.problems())


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

    def has(self, path: Path) -> bool:
        """Return whether there is a finding about a file."""
        return any(where == str(path) for where, _ in self._samples)

    def named(self, folder: str, name: str) -> Iterator[Finding]:
        """Yield the findings with another name for a folder."""
        for (where, what), samples in self._samples.items():
            yield Finding(where.replace(folder, name), what.replace(folder, name), samples)

    def problems(self) -> list[Problem]:
        """Return the problems, in the order in which each was found first."""
        return [
            Problem(
                where,
                f"{what}; {human_count(samples, 'sample')} in it not checked" if samples else what,
            )
            for (where, what), samples in self._samples.items()
        ]


def _check_sizes(source: PackedSource) -> Iterator[Finding]:
    for path, entry in zip(source.files.places, source.manifest.files, strict=True):
        problem = file_problem(Path(path), entry.size)
        if problem:
            yield Finding(path, problem)


def _check_first_blobs(
    source: PackedSource, names: Sequence[str], findings: _Findings
) -> Iterator[Finding]:
    """Read a blob of each field in each file: the container's files name no generation."""
    for name, (number, path) in product(names, enumerate(source.files.places)):
        row = source.index_of(name).find_file(number)
        if row == len(source) or findings.has(Path(path)):
            continue
        record = source.row(row, name)
        if record.file == number and record.length:
            try:
                source.read([record], row)
            except DatasetError as error:
                yield Finding(path, error.what.removeprefix(f"{source.location}: "))


def _check_indexes(source: PackedSource, findings: _Findings) -> list[StoredField]:
    """Check all indexes; return the fields to check further, none without sound images."""
    usable: list[StoredField] = []
    for stored in source.manifest.fields:
        names = [name for name in (stored.index, stored.file) if name is not None]
        if stored.field == LABEL or any(findings.has(source.location / name) for name in names):
            continue
        try:
            wrong = findings.add(check_index(source, stored))
        except DatasetError as error:
            if stored.index is None:
                raise
            path, wrong = source.location / stored.index, True
            findings.add([Finding(str(path), error.what.removeprefix(f"{path}: "))])
        if not wrong:
            usable.append(stored)
    return usable if usable and usable[0].field == IMAGE else []


def _blobs_of(fields: Iterable[StoredField]) -> list[str]:
    return [one.field.name for one in fields if one.field.kind in BLOBS]


def _check_local(
    source: PackedSource,
    fields: Sequence[StoredField],
    fast: bool,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
    findings: _Findings,
) -> None:
    """Check all files and samples; if ``fast``, only the sizes of a `folder`'s images."""
    samples = source.manifest.samples
    if fast:
        # Starting a process takes longer than looking at thousands of files.
        workers = max(1, min(workers or usable_cpus(), -(-samples // _LOOSE_ROWS)))
    with local_executor(workers) as executor:
        tick = _ticker(executor, samples, progress)
        if fast:
            rows = _row_tasks(check_loose_size, source, fields, _LOOSE_ROWS, 0, samples)
            for of_rows in executor.run(_call, (task for _, task in rows), tick):
                findings.add(of_rows)
        else:
            numbers = range(-1, len(source.manifest.files))
            _check_files(executor, tick, source, numbers, 0, samples, fields, findings)
        tick()


def _check_files(
    executor: Executor,
    tick: Callable[[], None],
    source: PackedSource,
    numbers: Sequence[int],
    start: int,
    stop: int,
    fields: Sequence[StoredField],
    findings: _Findings,
) -> None:
    """Check some fields in some files (-1: the index) and samples from ``start`` to ``stop``."""
    # Check a file's samples at about the time of its checksum: so it is read from the disk once,
    # and the progress of samples is the progress of the whole.
    of_files = _file_tasks(source, fields, numbers)
    rows = _row_tasks(check_sample, source, fields, _ROWS, start, stop)
    tasks = chain(
        (task for _, task in merge(of_files, rows, key=itemgetter(0))),
        _piece_tasks(source, fields, numbers),
    )
    for of_task in executor.run(_call, tasks, tick):
        findings.add(of_task)


def _ticker(
    executor: Executor, samples: int, progress: Callable[[int, int], None] | None
) -> Callable[[], None]:
    def tick() -> None:
        if progress is not None:
            progress(executor.reported[0], samples)

    return tick


def _call(task: Callable[[], Result]) -> Result:
    return task()


def _row_tasks(
    check: Check,
    source: PackedSource,
    fields: Sequence[StoredField],
    rows: int,
    first: int,
    end: int,
) -> Iterator[tuple[float, Callable[[], list[Finding]]]]:
    """Yield tasks for runs of samples, each with its relative position (0 to 1)."""
    for start in range(first, end, rows):
        stop = min(start + rows, end)
        task = partial(check_rows, source, _blobs_of(fields), start, stop, check)
        yield (start - first) / (end - first), task


def _piece_tasks(
    source: PackedSource, fields: Sequence[StoredField], numbers: Sequence[int]
) -> Iterator[Callable[[], list[Finding]]]:
    """Yield tasks for runs of the pieces of columns whose files are among ``numbers``."""
    for stored in fields:
        if stored.file is None or source.manifest.number_of(stored.file) not in numbers:
            continue
        pieces = len(source.index_of(stored.field.name))
        for start in range(0, pieces, _PIECES):
            yield partial(check_pieces, source, stored, start, min(start + _PIECES, pieces))


def _file_tasks(
    source: PackedSource, fields: Sequence[StoredField], numbers: Sequence[int]
) -> Iterator[tuple[float, Callable[[], list[Finding]]]]:
    """Yield tasks for files with a checksum, in order, each with its relative position (0 to 1).

    Leave out files that are missing or have another size, which `_check_sizes` finds.
    """
    entries = {-1: source.manifest.index} | dict(enumerate(source.manifest.files))
    # Archives have no checksum: each sample has its own.
    chosen = {number: entries[number] for number in numbers if entries[number].crc32c}
    total, before = sum(entry.size for entry in chosen.values()), 0
    for number, entry in chosen.items():
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
    except OSError as error:
        return [Finding(str(path), reason(error))]
    if checksum != entry.crc32c:
        what = f"has CRC-32C {checksum}, the manifest says {entry.crc32c}"
        return [Finding(str(path), what)]
    if number < 0:
        return []
    if number < source.manifest.blob_files:
        return _check_container(source, fields, number, path)
    columns = (stored for stored in fields if stored.file == entry.name)
    return [one for stored in columns for one in check_column_file(source, stored)]


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

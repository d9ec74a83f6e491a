"""Comparison of a dataset with its manifest: sizes, checksums, extents, images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import chain, islice, product
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from fastdata import _native
from fastdata._native import crc32c_combine
from fastdata.decode.codecs import open_image, probe
from fastdata.decode.pillow import ImageInfo
from fastdata.errors import CorruptionError, DatasetError, SampleError, UsageError, printable
from fastdata.executors import Executor, Result, local_executor, report
from fastdata.machine import usable_cpus
from fastdata.maintenance.indexes import Finding, check_column_file, check_index, check_pieces
from fastdata.maintenance.parts import verify_parts
from fastdata.remote.urls import is_url
from fastdata.staging.fetching import Fetching, fetching
from fastdata.storage import formats
from fastdata.storage.arrow import as_numpy
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.fields import BLOBS, IMAGE, IMAGES, LABEL, StoredField
from fastdata.storage.files import crc32c_range, open_file
from fastdata.storage.manifest import PartsError
from fastdata.storage.packed import PackedSource
from fastdata.storage.records import Row
from fastdata.storage.row_groups import split_name
from fastdata.text import human_count, human_size

#: Samples that one task decodes, and those whose file sizes one task checks.
_ROWS = 256
_LOOSE_ROWS = 4096
#: Pieces of a column that one task reads.
_PIECES = 256
#: Bytes that one task checksums: about a tenth of a second, so that other tasks wait little.
_RANGE = 128 << 20


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
    one = partial(_verify_one, fast=fast, workers=workers)
    files, problems = verify_parts(os.fspath(path), parts, one, progress, storage_options)
    return Verification(parts.samples, files, [Problem(*each) for each in problems])


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
    findings, found = _Findings(), _Findings()
    found.add(Finding(where, what) for where, what in fetched.size_problems())
    fetched.fetch_fields(columns=not fast)
    fields = _check_indexes(source, found)
    names = _blobs_of(fields)
    if fields and fast:
        found.add(Finding(where, what) for where, what in fetched.loose_problems(names))
    elif fields:
        with local_executor(workers) as executor:
            tick = _ticker(executor, manifest.samples, progress)
            further = range(manifest.blob_files, len(manifest.files))
            _check_files(executor, tick, source, further, 0, 0, fields, found)
            if manifest.groups is not None:
                rows: Any = fetched.remote
                tasks = _row_tasks(_check_sample, rows, fields, _ROWS, 0, manifest.samples)
                for of_rows in executor.run(_call, (task for _, task in tasks), tick):
                    found.add(of_rows)
            views = fetched.views(names) if manifest.groups is None else ()
            for view, files, start, stop in views:
                of_view, part = _Findings(), PackedSource(view)
                _check_files(executor, tick, part, files, start, stop, fields, of_view)
                found.add(of_view.named(str(view), fetched.name))
            tick()
    findings.add(found.named(folder, fetched.name))
    return Verification(manifest.samples, len(manifest.files) + 1, findings.problems())


class _Findings:
    """Findings of all checks; equal findings about the same file are one problem."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], int] = {}

    def add(self, findings: Iterable[Finding]) -> bool:
        """Add findings; return whether there were any."""
        found = False
        for where, what, samples in findings:
            self._samples[where, what] = self._samples.get((where, what), 0) + samples
            found = True
        return found

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
        problem = _file_problem(Path(path), entry.size)
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


def _file_problem(path: Path, size: int, says: str = "manifest") -> str | None:
    """Return why a file is wrong as a whole: it cannot be opened, or has another size."""
    try:
        with open_file(path) as file:
            return _size_problem(os.fstat(file.fileno()), size, says)
    except OSError as error:
        return _reason(error)


def _size_problem(found: os.stat_result, size: int, says: str) -> str | None:
    if found.st_size == size:
        return None
    return f"has {found.st_size} bytes, the {says} says {size}"


def _reason(error: OSError) -> str:
    return error.strerror or "cannot be read"


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
            rows = _row_tasks(_check_loose_size, source, fields, _LOOSE_ROWS, 0, samples)
            for found in executor.run(_call, (task for _, task in rows), tick):
                findings.add(found)
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
    checksums = _Checksums(source, numbers)
    # Check a file's samples at about the time of its checksum, so that it is read from the
    # disk once, and so that the progress of samples is the progress of the whole.
    rows = _row_tasks(_check_sample, source, fields, _ROWS, start, stop)
    mixed: Iterable[tuple[float, Callable[[], list[Finding] | _RangeChecksum]]]
    mixed = merge(checksums.tasks(), rows, key=itemgetter(0))
    for found in executor.run(_call, (task for _, task in mixed), tick):
        if isinstance(found, _RangeChecksum):
            checksums.add(found)
        else:
            findings.add(found)
    findings.add(checksums.findings())
    # A damaged file is not walked: its blobs are known to be in doubt.
    walk = partial(_check_container, source, fields)
    for walked in executor.run(walk, checksums.sound(), tick):
        findings.add(walked)
    for pieces in executor.run(_call, _piece_tasks(source, fields, numbers), tick):
        findings.add(pieces)


def _ticker(
    executor: Executor, samples: int, progress: Callable[[int, int], None] | None
) -> Callable[[], None]:
    def tick() -> None:
        if progress is not None:
            progress(executor.reported()[0], samples)

    return tick


class _RangeChecksum(NamedTuple):
    """CRC-32C of a part of a file (-1: the index), or the reason why it cannot be read."""

    number: int
    length: int
    crc: int | str


def _call(task: Callable[[], Result]) -> Result:
    return task()


def _row_tasks(
    check: _Check,
    source: PackedSource,
    fields: Sequence[StoredField],
    rows: int,
    first: int,
    end: int,
) -> Iterator[tuple[float, Callable[[], list[Finding]]]]:
    """Yield tasks for runs of samples, each with its relative position (0 to 1)."""
    for start in range(first, end, rows):
        stop = min(start + rows, end)
        task = partial(_check_rows, source, _blobs_of(fields), start, stop, check)
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


class _Checksums:
    """Checksums of the files in a dataset's folder, combined from checksums of ranges.

    Leaves out files that are missing or have another size, which `_check_sizes` finds.
    """

    def __init__(self, source: PackedSource, numbers: Iterable[int]) -> None:
        self._path = source.location
        entries = {-1: source.manifest.index} | dict(enumerate(source.manifest.files))
        self._entries = {
            number: entry
            for number, entry in ((number, entries[number]) for number in numbers)
            # Archives have no checksum: each sample has its own.
            if entry.crc32c and not _file_problem(source.location / entry.name, entry.size)
        }
        self._found: dict[int, int | str] = dict.fromkeys(self._entries, 0)

    def tasks(self) -> Iterator[tuple[float, Callable[[], _RangeChecksum]]]:
        """Yield tasks for all ranges, in order, each with its relative position (0 to 1)."""
        total = sum(entry.size for entry in self._entries.values())
        before = 0
        for number, entry in self._entries.items():
            for start in range(0, entry.size, _RANGE):
                length = min(_RANGE, entry.size - start)
                path = self._path / entry.name
                task = partial(_checksum_range, path, number, start, length)
                yield (before + start) / total, task
            before += entry.size

    def add(self, piece: _RangeChecksum) -> None:
        """Add the checksum of a file's next range."""
        found = self._found[piece.number]
        if isinstance(piece.crc, str):
            self._found[piece.number] = piece.crc
        elif isinstance(found, int):
            self._found[piece.number] = crc32c_combine(found, piece.crc, piece.length)

    def findings(self) -> Iterator[Finding]:
        """Yield the files whose checksum differs from the manifest's, or that cannot be read."""
        for number, entry in self._entries.items():
            found = self._found[number]
            if not self._is_right(number):
                if isinstance(found, int):
                    found = f"has CRC-32C {found:08x}, the manifest says {entry.crc32c}"
                yield Finding(str(self._path / entry.name), found)

    def sound(self) -> Iterator[int]:
        """Return the container's files whose checksum is right."""
        return (number for number in self._entries if number >= 0 and self._is_right(number))

    def _is_right(self, number: int) -> bool:
        return self._found[number] == int(self._entries[number].crc32c, 16)


def _checksum_range(path: Path, number: int, start: int, length: int) -> _RangeChecksum:
    """Return the checksum of a part of a file."""
    try:
        return _RangeChecksum(number, length, crc32c_range(path, start, length))
    except OSError as error:
        return _RangeChecksum(number, length, _reason(error))


def _check_container(
    source: PackedSource, checked: Sequence[StoredField], number: int
) -> list[Finding]:
    """Check that a file has the blobs of its indexes where they say, or the column."""
    entry = source.manifest.files[number]
    path = source.location / entry.name
    if number >= source.manifest.blob_files:
        columns = (stored for stored in checked if stored.file == entry.name)
        return [found for stored in columns for found in check_column_file(source, stored)]
    start, stop = (source.index.find_file(at) for at in (number, number + 1))
    container, fields = source.manifest.container, source.fields
    names = _blobs_of(checked)
    try:
        walk = formats.extents(container, path, fields)
        indexes = [source.index_of(name).batches(start, stop, _EXTENT) for name in names]
        first = _first_difference(walk, names, indexes)
        if first is None:
            return []
        found = sum(1 for _ in formats.extents(container, path, fields))
    except CorruptionError as error:
        return [Finding(str(path), error.what)]
    what = (
        f"holds {human_count(found, 'sample')}, the index names {stop - start} in it; "
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
        found = np.fromiter(pairs, np.int64).reshape(-1, expected.shape[1])
        differing = np.flatnonzero((found != expected[: len(found)]).any(axis=1))
        if len(differing):
            return before + int(differing[0])
        before += len(found)
        if len(found) < len(expected):
            return before
    return before if next(walk, None) is not None else None


#: Checks one sample; the dictionary caches the problem of each file.
_Check: TypeAlias = Callable[
    [PackedSource, str, Row, int, dict[Path, "str | None"]], Finding | None
]


def _check_rows(
    source: PackedSource, names: Sequence[str], start: int, stop: int, check: _Check
) -> list[Finding]:
    """Check the blobs of some fields of some samples."""
    files: dict[Path, str | None] = {}
    findings = []
    keys: list[str] = []
    for name in names:
        for number, row in enumerate(source.index_of(name).rows(start, stop), start):
            if name == IMAGE.name:
                keys.append(row.key)
                report(1, row.length)
            elif not row.length:
                continue
            row = row._replace(key=keys[number - start])
            finding = check(source, name, row, number, files)
            if finding is not None:
                findings.append(finding)
    return findings


def _sample(row: Row, number: int) -> str:
    return f"sample {number} ({printable(row.key)})"


def _check_loose_size(
    source: PackedSource, name: str, row: Row, number: int, files: dict[Path, str | None]
) -> Finding | None:
    """Check the size of a sample's file in a `folder`."""
    try:
        path = source.file(row, number)
    except CorruptionError as error:
        return Finding(_sample(row, number), error.what)
    try:
        problem = _size_problem(path.stat(), row.length, "index")
    except OSError as error:
        problem = _reason(error)
    return Finding(str(path), problem) if problem else None


def _check_sample(
    source: PackedSource, name: str, row: Row, number: int, files: dict[Path, str | None]
) -> Finding | None:
    """Read a blob of a sample, and decode it if it is an image."""
    path: Path | str = ""
    try:
        path = source.file(row, number)
        if not source.manifest.blob_files:
            problem = _file_problem(path, row.length, "index")
            if problem:
                return Finding(str(path), problem)
        elif source.manifest.groups is None and path not in files:
            files[path] = _file_problem(path, source.manifest.files[row.file].size)
        problem = files.get(path)
        if problem:
            return Finding(str(path), problem, samples=int(name == IMAGE.name))
        (data,) = source.read([row], number)
        problem = _blob_problem(row, data) if source.field(name).kind in IMAGES else None
    except DatasetError as error:
        problem = error.what
        table = split_name(str(path))[0]
        if problem.startswith(f"{table}: "):  # of all its rows
            return Finding(table, problem[len(table) + 2 :], samples=int(name == IMAGE.name))
    except SampleError as error:
        problem = error.line
    if problem is None:
        return None
    return Finding(
        _sample(row, number), problem if name == IMAGE.name else f"its {name}: {problem}"
    )


def _blob_problem(row: Row, data: bytes) -> str | None:
    """Return how an image differs from its row; None if it does not."""
    orientation = row.orientation if 1 <= row.orientation <= 8 else 1
    info = ImageInfo(row.encoding, row.width, row.height, row.channels, orientation)
    if row.encoding == "raw":
        if len(data) == row.width * row.height * 3:
            return None if row.channels == 3 else f"is raw, the index says {row.channels} channels"
        return f"has {len(data)} bytes, too many or too few for {human_size(row.width, row.height)}"
    # An encoding that is not known here is anything that decodes (docs/formats/index.md).
    found = probe(data) if row.encoding in ENCODINGS else None
    width, height = open_image(data, info).size
    if (width, height) != (row.width, row.height):
        said = human_size(row.width, row.height)
        return f"is {human_size(width, height)}, the index says {said}"
    if found is not None and found[:4] != info[:4]:
        return (
            f"is {found.encoding} of {found.channels} channels, "
            f"the index says {row.encoding} of {row.channels}"
        )
    if found is not None and found != info:
        return f"has EXIF orientation {found.orientation}, the index says {row.orientation}"
    if row.seek_points is not None:
        code, detail, _ = _native.check_seek_points(row.seek_points, data)
        if code != "ok":
            return f"has seek points of another image ({detail}): run fastdata seek-points"
    return None

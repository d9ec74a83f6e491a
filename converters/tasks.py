"""The tasks of packing: read, check and encode images, and write whole output files.

A task is a function of the job and of a run of its listing, so its result is the same wherever
and however often it runs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fastdata.converters.encode import Encoding
from fastdata.converters.listing import Listing, Unit, listed_at
from fastdata.converters.parts import Bad, PartBuilder, Prepared
from fastdata.converters.records import Record, read_record
from fastdata.converters.remote_reading import fetch, is_remote
from fastdata.converters.rows import read_row

from fastdata.decode.codecs import probe
from fastdata.decode.pillow import ImageInfo
from fastdata.errors import DataError, SampleError, SourceError, UnreadableError, printable
from fastdata.executors import report
from fastdata.maintenance.seek_points import SEEK_BATCH, seek_tables
from fastdata.remote.urls import redact
from fastdata.storage import formats
from fastdata.storage.checksum import crc32c
from fastdata.storage.files import publish, temporary_name, whole_file, written_behind
from fastdata.storage.manifest import FileEntry
from fastdata.storage.rows import Row

#: Bytes of blobs, and records, in a piece, which one process prepares and another writes.
#: Bounds memory: a few pieces a worker are in flight.
PIECE_BYTES = 4 << 20
PIECE_ROWS = 1024
#: Pieces whose blobs are read ahead of the writer.
_PIECES_AHEAD = 4


@dataclass(frozen=True)
class Job:
    """What all tasks of one packing have in common; picklable.

    Attributes:
        out: The dataset's folder.
        work: The folder of the packing's state, inside it.
        container: The container's name.
        classes: Class names, by label.
        encoding: How images are stored.
        plain_images: Whether blobs in Parquet are a column of bytes, not of Hugging Face's images.
        root: The folder that paths are relative to, for the ``folder`` container.
        stride: Pixels between seek points; None for none.
        growth: Estimated bytes of blobs per byte of the source.
        mean_blob: Estimated mean bytes of a blob.
        storage_options: Options of the drivers of a source that lies behind URLs.
    """

    out: Path
    work: Path
    container: str
    classes: tuple[str, ...]
    encoding: Encoding
    plain_images: bool
    root: str | None
    stride: int | None = None
    growth: float = 1.0
    mean_blob: float = 1.0
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @property
    def listing(self) -> Path:
        """The folder that the listing lies in."""
        return self.work / "listing"

    def part(self, unit: Unit) -> Path:
        """The path of a unit's part."""
        return self.work / f"{unit.number:06d}.part"


class Piece(NamedTuple):
    """A run of records that one task prepares."""

    unit: Unit
    start: int
    stop: int


@lru_cache(maxsize=2)
def _open_listing(folder: Path, mtime_ns: int) -> Listing:
    """Opens a listing once per process; ``mtime_ns`` identifies its version."""
    return Listing(folder)


def _listing(job: Job) -> Listing:
    try:
        return _open_listing(job.listing, listed_at(job.listing))
    except FileNotFoundError:
        raise DataError(
            f"{job.listing}: not there on {os.uname().nodename}",
            "--out must be a folder that all machines of the cluster share, at the same path.",
        ) from None


def pieces(job: Job, unit: Unit) -> Iterator[Piece]:
    """Cuts a unit into pieces."""
    size = PIECE_BYTES / max(job.growth, 1.0)
    rows = max(1, min(PIECE_ROWS, int(PIECE_BYTES / job.mean_blob)))
    for start, stop, _ in _listing(job).runs(unit.start, unit.stop, size, rows):
        yield Piece(unit, start, stop)


def samples(job: Job, start: int, stop: int) -> Iterator[tuple[Row, bytes] | Bad]:
    """Reads, checks and encodes the records from ``start`` to ``stop``, a few at a time.

    Yields:
        A sample's index row and blob, or the bad image.
    """
    for group, read in _groups(job, start, stop):
        judged: list[tuple[Record, bytes, ImageInfo] | Bad] = []
        for record in group:
            try:
                judged.append((record, *encode(record, job.encoding, read)))
            except SampleError as error:
                judged.append(_bad(record, error))
        images = [(entry[1], entry[2]) for entry in judged if not isinstance(entry, Bad)]
        tables = iter(seek_tables(images, job.stride))
        for entry in judged:
            if isinstance(entry, Bad):
                yield entry
                continue
            record, blob, info = entry
            table = next(tables)
            if isinstance(table, SampleError):
                yield _bad(record, table)
            else:
                yield _row(job, record, blob, info, table), blob
        report(len(group), sum(record.length for record in group))


Read: TypeAlias = Callable[[Record], bytes]


def _groups(job: Job, start: int, stop: int) -> Iterator[tuple[list[Record], Read]]:
    """Cuts records into groups small enough to be held in memory, with what reads them."""
    for window, records in groupby(_listing(job).records(start, stop), attrgetter("window")):
        if window is None:
            for group in _small_groups(job, records):
                yield group, reader(group, job.storage_options)
        else:
            together = list(records)
            read = _read_in_order(together, job.storage_options)
            for group in _small_groups(job, together):
                yield group, read


def _small_groups(job: Job, records: Iterable[Record]) -> Iterator[list[Record]]:
    group: list[Record] = []
    held = 0.0
    for record in records:
        group.append(record)
        held += record.length * max(job.growth, 1.0)
        if len(group) == SEEK_BATCH or held >= PIECE_BYTES:
            yield group
            group, held = [], 0.0
    if group:
        yield group


def _read_in_order(records: Sequence[Record], storage_options: Mapping[str, Any]) -> Read:
    """Reads records as they lie in their archives; returns what gives each one's bytes once."""
    ordered = sorted((one for one in records if not one.problem), key=attrgetter("path", "offset"))
    read = reader(ordered, storage_options)
    held: dict[str, bytes | SampleError] = {}
    for record in ordered:
        try:
            held[record.key] = read(record)
        except SampleError as error:
            held[record.key] = error

    def give(record: Record) -> bytes:
        found = held.pop(record.key)
        if isinstance(found, SampleError):
            raise found
        return found

    return give


def _bad(record: Record, error: SampleError) -> Bad:
    unread = isinstance(error, UnreadableError)
    path = printable(redact(record.path))
    return Bad(record.key, path, error.line, unread, record.length)


def _row(job: Job, record: Record, blob: bytes, info: ImageInfo, table: bytes | None) -> Row:
    return Row(
        key=record.key,
        label=record.label,
        file=-1,
        path=None if job.root is None else record.path[len(job.root) :].lstrip("/"),
        offset=0,
        length=len(blob),
        width=info.width,
        height=info.height,
        channels=info.channels,
        encoding=info.encoding,
        crc32c=crc32c(blob),
        seek_points=table,
    )


def reader(records: Sequence[Record], storage_options: Mapping[str, Any]) -> Read:
    """Returns a function that reads these records; those behind URLs are fetched now, at once."""
    return fetch(records, storage_options) if is_remote(records) else _read


def encode(record: Record, encoding: Encoding, read: Read) -> tuple[bytes, ImageInfo]:
    """Reads one record and makes its blob.

    Raises:
        SampleError: It cannot be read, or is no complete image.
    """
    if record.problem:
        raise SampleError(record.problem)
    data = read(record)
    if record.crc32c is not None and crc32c(data) != record.crc32c:
        raise SampleError("is damaged: its checksum is wrong")
    if record.pixels is None:
        return encoding.apply(data, probe(data))
    height, width, _ = record.pixels
    return encoding.apply(data, ImageInfo("raw", width, height, 3))


def _read(record: Record) -> bytes:
    if record.pixels is not None and record.pixels[2] is not None:
        return record.pixels[2]
    if record.column is not None:
        return read_row(record.path, record.column, record.offset, record.mtime_ns)
    return read_record(record.path, record.offset, record.length)


def pack_file(job: Job, unit: Unit) -> None:
    """Packs a unit into an output file of its own, and then writes its part."""
    part = PartBuilder()
    path = job.out / formats.file_name(job.container, unit.number)
    temporary = temporary_name(path)
    plain = job.plain_images
    with (
        closing(formats.open_writer(job.container, temporary, job.classes, plain=plain)) as writer,
        written_behind(temporary),
    ):
        for sample in samples(job, unit.start, unit.stop):
            if isinstance(sample, Bad):
                part.add_bad(sample)
            else:
                writer.add(*sample)
                part.add(sample[0])
        offsets = writer.finish()
        checksum = writer.checksum()
    entry = FileEntry(path.name, temporary.stat().st_size, f"{checksum:08x}")
    publish(temporary, path)
    with whole_file(job.part(unit)) as temporary:
        part.write(
            temporary, unit.fingerprint, file_number=unit.number, file=entry, offsets=offsets
        )


def index_files(job: Job, unit: Unit) -> None:
    """Writes the part of a unit whose files stay where they are."""
    part = PartBuilder()
    for sample in samples(job, unit.start, unit.stop):
        if isinstance(sample, Bad):
            part.add_bad(sample)
        else:
            part.add(sample[0])
    with whole_file(job.part(unit)) as temporary:
        part.write(temporary, unit.fingerprint, file_number=-1)


def prepare(job: Job, same_process: bool, piece: Piece) -> Prepared:
    """Prepares a piece for a file that another process, or this one, writes.

    Blobs that are the source's bytes are not sent to another process: they are in the page cache
    now, and reading them again (`with_blobs`) costs a third of sending them.
    """
    first = _listing(job).sample(1)
    read_again = (
        job.encoding.kind == "original"
        and not same_process
        and not is_remote(first)  # nothing of it is in the page cache
        and first[0].window is None  # rows of Parquet would be decoded in any order
    )
    prepared = Prepared([], None if read_again else [], [])
    for sample in samples(job, piece.start, piece.stop):
        if isinstance(sample, Bad):
            prepared.bad.append(sample)
            continue
        row, blob = sample
        prepared.rows.append(row)
        if prepared.blobs is not None:
            prepared.blobs.append(blob)
    return prepared


def with_blobs(
    job: Job, prepared: Iterable[tuple[Piece, Prepared]]
) -> Iterator[tuple[Unit, Prepared, list[bytes]]]:
    """Adds the blobs of prepared pieces, reading again those that were not sent.

    A thread reads a few pieces ahead, while LMDB commits earlier ones.

    Raises:
        SourceError: An image has changed since it was prepared.
    """
    with ThreadPoolExecutor(1, "fastdata-read") as reader:
        waiting: deque[tuple[Unit, Prepared, Future[list[bytes]]]] = deque()
        for piece, ready in prepared:
            records = (
                []
                if ready.blobs is not None
                else list(_listing(job).records(piece.start, piece.stop))
            )
            waiting.append((piece.unit, ready, reader.submit(_blobs, ready, records)))
            while len(waiting) > _PIECES_AHEAD:
                unit, ready, blobs = waiting.popleft()
                yield unit, ready, blobs.result()
        for unit, ready, blobs in waiting:
            yield unit, ready, blobs.result()


def _blobs(prepared: Prepared, records: Sequence[Record]) -> list[bytes]:
    if prepared.blobs is not None:
        return prepared.blobs
    by_key = {record.key: record for record in records}
    blobs = []
    for row in prepared.rows:
        record = by_key[row.key]
        try:
            blob = _read(record)
            if crc32c(blob) != row.crc32c:
                raise SampleError("its bytes have changed")
        except SampleError as error:
            raise SourceError(
                f"{printable(record.path)}: {error.what} while it was being packed",
                "Run the same command again when nothing writes to the source any more.",
            ) from None
        blobs.append(blob)
    return blobs

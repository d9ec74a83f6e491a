"""What a worker does: read, judge and encode images, and write whole output files.

Everything here is a function of the job and of a run of its listing, so the result is the
same wherever and however often it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fastdata.converters.encode import Encoding
from fastdata.converters.listing import Listing, Unit
from fastdata.converters.parts import Bad, PartBuilder, Prepared
from fastdata.converters.records import Record, read_record
from fastdata.converters.tree import printable

from fastdata import formats
from fastdata.checksum import crc32c, crc32c_file
from fastdata.engines import report
from fastdata.errors import SampleError, SourceError, UnreadableError
from fastdata.index import Row
from fastdata.manifest import FileEntry
from fastdata.probe import ImageInfo, probe
from fastdata.storage import PARTIAL_SUFFIX, publish, whole_file

#: Source bytes, and records, that are read, judged and encoded at a time. A few such pieces
#: a worker are in flight between processes, so this bounds memory.
PIECE_BYTES = 4 << 20
PIECE_ROWS = 1024


@dataclass(frozen=True)
class Job:
    """What all tasks of one packing have in common; picklable.

    Attributes:
        out: The dataset's folder.
        work: The folder of the packing's state, inside it.
        container: The container's name.
        classes: Class names, by label.
        encoding: How images are stored.
        root: The folder that paths are relative to, for the ``folder`` container.
    """

    out: Path
    work: Path
    container: str
    classes: tuple[str, ...]
    encoding: Encoding
    root: str | None

    @property
    def listing(self) -> Path:
        """Where the listing lies."""
        return self.work / "listing.arrow"

    def part(self, unit: Unit) -> Path:
        """Where a unit's part goes."""
        return self.work / f"{unit.number:06d}.part"


class Piece(NamedTuple):
    """A run of records that is prepared at a time."""

    unit: Unit
    start: int
    stop: int


@lru_cache(maxsize=2)
def open_listing(path: Path, mtime_ns: int) -> Listing:
    """A listing, opened once a process; ``mtime_ns`` tells a new one from an old one."""
    return Listing(path)


def _listing(job: Job) -> Listing:
    return open_listing(job.listing, job.listing.stat().st_mtime_ns)


def pieces(job: Job, unit: Unit) -> Iterator[Piece]:
    """Cuts a unit into pieces."""
    for start, stop in _listing(job).runs(unit.start, unit.stop, PIECE_BYTES, PIECE_ROWS):
        yield Piece(unit, start, stop)


@dataclass(frozen=True)
class Prepare:
    """Reads, judges and encodes the records of a piece."""

    job: Job

    def __call__(self, piece: Piece) -> Prepared:
        """Prepares a piece; bad images are listed, not raised."""
        prepared = Prepared([], [], [])
        size = 0
        for record in _listing(self.job).records(piece.start, piece.stop):
            size += record.length
            try:
                blob, info = encode(record, self.job.encoding)
            except SampleError as error:
                unread = isinstance(error, UnreadableError)
                prepared.bad.append(Bad(record.key, printable(record.path), error.what, unread))
                continue
            prepared.rows.append(
                Row(
                    key=record.key,
                    label=record.label,
                    file=-1,
                    path=self._relative(record.path),
                    offset=0,
                    length=len(blob),
                    width=info.width,
                    height=info.height,
                    channels=info.channels,
                    encoding=info.encoding,
                    crc32c=crc32c(blob),
                )
            )
            prepared.blobs.append(blob)
        report(piece.stop - piece.start, size)
        return prepared

    def _relative(self, path: str) -> str | None:
        """A sample's own path below the root, for ``folder``; None for other containers."""
        root = self.job.root
        return None if root is None else path[len(root) :].lstrip("/")


def encode(record: Record, encoding: Encoding) -> tuple[bytes, ImageInfo]:
    """Reads one record and makes its blob.

    Raises:
        SampleError: It cannot be read, or is not a whole image.
    """
    if record.problem:
        raise SampleError(record.problem)
    data = _read(record)
    if record.pixels is None:
        return encoding.apply(data, probe(data))
    height, width, _ = record.pixels
    return encoding.apply(data, ImageInfo("raw", width, height, 3))


def _read(record: Record) -> bytes:
    if record.pixels is not None:
        return record.pixels[2]
    return read_record(record.path, record.offset, record.length)


@dataclass(frozen=True)
class PackFile:
    """Packs a unit into an output file of its own."""

    job: Job

    def __call__(self, unit: Unit) -> None:
        """Writes the unit's output file, then its part."""
        job, prepare, part = self.job, Prepare(self.job), PartBuilder()
        path = job.out / formats.file_name(job.container, unit.number)
        temporary = path.with_name(path.name + PARTIAL_SUFFIX)
        with closing(formats.open_writer(job.container, temporary, job.classes)) as writer:
            for piece in pieces(job, unit):
                write(writer, prepare(piece), part)
            offsets = writer.finish()
        entry = FileEntry(path.name, temporary.stat().st_size, f"{crc32c_file(temporary):08x}")
        publish(temporary, path)
        with whole_file(job.part(unit)) as temporary:
            part.write(
                temporary, unit.fingerprint, file_number=unit.number, file=entry, offsets=offsets
            )


@dataclass(frozen=True)
class IndexFolder:
    """Makes a unit's index rows over files that stay where they are."""

    job: Job

    def __call__(self, unit: Unit) -> None:
        """Writes the unit's part."""
        prepare, part = Prepare(self.job), PartBuilder()
        for piece in pieces(self.job, unit):
            part.add(prepare(piece))
        with whole_file(self.job.part(unit)) as temporary:
            part.write(temporary, unit.fingerprint, file_number=-1)


@dataclass(frozen=True)
class PrepareRows:
    """Prepares a piece, but leaves out blobs that are the source's own bytes.

    They are in the page cache now, and reading them again where they are written costs a
    third of sending them between processes.
    """

    job: Job

    def __call__(self, piece: Piece) -> Prepared:
        """Prepares a piece; its blobs are empty where `read_again` is to supply them."""
        prepared = Prepare(self.job)(piece)
        if self.job.encoding.kind == "original":
            prepared.blobs.clear()
        return prepared


def read_again(job: Job, piece: Piece, prepared: Prepared) -> Prepared:
    """Supplies the blobs that `PrepareRows` left out.

    Raises:
        SourceError: An image is no longer what it was.
    """
    if prepared.blobs:
        return prepared
    records = {record.key: record for record in _listing(job).records(piece.start, piece.stop)}
    for row in prepared.rows:
        record = records[row.key]
        try:
            blob = _read(record)
            if crc32c(blob) != row.crc32c:
                raise SampleError("its bytes have changed")
        except SampleError as error:
            raise SourceError(
                f"{printable(record.path)}: {error.what} while it was being packed",
                "Run the same command again when nothing writes to the source any more.",
            ) from None
        prepared.blobs.append(blob)
    return prepared


def write(writer: formats.Writer, prepared: Prepared, part: PartBuilder) -> None:
    """Writes prepared samples to an output file and their rows to its part."""
    for row, blob in zip(prepared.rows, prepared.blobs, strict=True):
        writer.add(row, blob)
    part.add(prepared)

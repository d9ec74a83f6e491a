"""Tasks of packing: read, check and encode images, and write whole output files.

A task is a function of the job and a run of its listing. So its result is the same on any
machine, and however often it runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from fastdata.converters.encode import Encoding
from fastdata.converters.listing import UNCHANGED, Estimate, RecordListing, Unit, listed_at
from fastdata.converters.options import PackOptions
from fastdata.converters.parts import NO_FILE, Bad, PartBuilder
from fastdata.converters.records import Record, read_record
from fastdata.converters.rows import NullError, read_row

from fastdata._native import crc32c
from fastdata.decode.jpeg import SEEK_BATCH, seek_tables
from fastdata.decode.pillow import ImageInfo, probe
from fastdata.errors import DataError, SampleError, UnreadableError, printable
from fastdata.executors import report
from fastdata.remote.answers import ChangedError
from fastdata.remote.files import file_at
from fastdata.remote.filesystem import read_bytes
from fastdata.remote.ranges import UNCHECKED, FileRef, Numbers, Ranges, merge
from fastdata.remote.requests import in_threads
from fastdata.remote.retries import Patience
from fastdata.remote.urls import is_url, redact
from fastdata.storage import formats
from fastdata.storage.encodings import upright_size
from fastdata.storage.fields import IMAGES, Field
from fastdata.storage.files import publish, temporary_name, whole_file, written_behind
from fastdata.storage.formats import NewSample
from fastdata.storage.manifest import IN_PLACE, FileEntry
from fastdata.storage.records import Row
from fastdata.storage.row_groups import address, named
from fastdata.text import human_size

#: Most bytes of blobs, and records, in a piece, which one process prepares and another writes.
#: This limits memory: each worker has a few pieces in flight.
PIECE_BYTES = 4 << 20
PIECE_ROWS = 1024
#: Most bytes between two records of one request: tar's headers and labels.
_GAP = 64 << 10
_MOST_BYTES = 16 << 20  # of one request


@dataclass(frozen=True)
class PackJob:
    """Parameters that all tasks of one packing share; picklable.

    ``work`` is the packing's state, inside the dataset's folder ``out``. ``root`` is the base of
    relative paths, for containers that leave files in place. ``fields`` are besides image and
    label. ``upright``: annotations are for images as EXIF turns them.
    """

    out: Path
    work: Path
    container: str
    classes: tuple[str, ...]
    options: PackOptions
    root: str | None
    estimate: Estimate = UNCHANGED
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False, hash=False)
    fields: tuple[Field, ...] = ()
    upright: bool = False

    @property
    def listing(self) -> Path:
        """Folder of the listing."""
        return self.work / "listing"

    @property
    def plain_images(self) -> bool:
        """Whether Parquet's column of images contains bytes, not structs."""
        return self.options.plain_images or self.options.encoding.kind == "raw"

    def part(self, unit: Unit) -> Path:
        """Return the path of a unit's part."""
        return self.work / f"{unit.number:06d}.part"


class Piece(NamedTuple):
    """Run of records that one task prepares."""

    unit: Unit
    start: int
    stop: int


@lru_cache(maxsize=2)
def _open_listing(folder: Path, mtime_ns: int) -> RecordListing:
    """Open a listing once per process; ``mtime_ns`` identifies its version."""
    return RecordListing(folder)


def _listing(job: PackJob) -> RecordListing:
    try:
        return _open_listing(job.listing, listed_at(job.listing))
    except FileNotFoundError:
        raise DataError(
            f"{job.listing}: missing on {os.uname().nodename}",
            "--out must be a folder that all machines of the cluster share, at the same path.",
        ) from None


def pieces(job: PackJob, unit: Unit) -> Iterator[Piece]:
    """Cut a unit into pieces."""
    estimate = job.estimate._replace(growth=max(job.estimate.growth, 1.0))
    runs = _listing(job).runs(unit.start, unit.stop, PIECE_BYTES, PIECE_ROWS, estimate)
    for start, stop, *_ in runs:
        yield Piece(unit, start, stop)


#: Bytes, properties and pixels between seek points of a blob; `_MISSING` if it is null.
_Blob: TypeAlias = tuple[bytes, ImageInfo, int | None]


def samples(job: PackJob, start: int, stop: int) -> Iterator[NewSample | Bad]:
    """Read, check and encode records, a few at a time; yield samples, or bad images."""
    for group, read in _groups(job, start, stop):
        judged: list[list[_Blob] | SampleError] = []  # an image's blob first
        for record in group:
            try:
                image = (*encode(record, job.options.encoding, read), job.options.stride)
                judged.append([image, *_blobs_of(job, record, read, image[1])])
            except SampleError as error:
                judged.append(error)
        good = [blobs for blobs in judged if not isinstance(blobs, SampleError)]
        images = [(blob, info) for blobs in good for blob, info, stride in blobs if stride]
        tables = iter(seek_tables(images, job.options.stride))
        for record, blobs in zip(group, judged, strict=True):
            if isinstance(blobs, SampleError):
                yield _bad(record, blobs)
                continue
            made = [next(tables) if stride else None for _, _, stride in blobs]
            wrong = next((table for table in made if isinstance(table, SampleError)), None)
            yield _bad(record, wrong) if wrong else _sample(job, record, blobs, made)
        report(len(group), sum(record.size for record in group))


def _blobs_of(job: PackJob, record: Record, read: Read, image: ImageInfo) -> Iterator[_Blob]:
    """Read a record's other blobs; ``image`` are the properties of its image."""
    size = image.width, image.height
    for described, value in zip(job.fields, record.fields, strict=True):
        if not isinstance(value, Record):
            continue
        is_image = described.kind in IMAGES
        try:
            data = _read_sound(value, read)
            # In place, this is how an index says that there is no blob.
            in_place = job.root is not None and value.column is None
            if not data and (is_image or (in_place and not value.offset)):
                raise SampleError("is empty")
            info = probe(data) if is_image else _NO_IMAGE
            shown = size, upright_size(*size, image.orientation)
            if described.kind == "mask" and info[1:3] not in shown:
                raise SampleError(
                    f"is {human_size(info.width, info.height)}, and the image "
                    f"{human_size(image.width, image.height)}"
                )
        except NullError:
            yield b"", _MISSING, None
        except SampleError as error:
            raise type(error)(f"its {described.name} {error.what}") from None
        else:
            yield data, info, job.options.stride if is_image else None


def _read_sound(record: Record, read: Read) -> bytes:
    data = read(record)
    if record.crc32c is not None and crc32c(data) != record.crc32c:
        raise SampleError("is damaged: its checksum is wrong")
    return data


#: Properties of a blob that is not decoded, and of none.
_NO_IMAGE, _MISSING = ImageInfo("other", 0, 0, 1), ImageInfo("other", 0, 0, 0)


def _sample(
    job: PackJob, record: Record, blobs: Sequence[_Blob], tables: Sequence[Any]
) -> NewSample:
    fields, rest = [], iter(zip(blobs, tables, strict=True))
    (image, info, _), table = next(rest)
    for value in record.fields:
        if isinstance(value, Record):
            (blob, info_of_blob, _), points = next(rest)
            # The sample's key is in the first index.
            own = value._replace(key="")
            row = _row(job, own, blob, info_of_blob, points)
            value = None if info_of_blob is _MISSING else (row, blob)
        fields.append(value)
    row = _row(job, record, image, info, table)
    return NewSample(row, image, tuple(fields), _is_turned(job, record, info))


def _is_turned(job: PackJob, record: Record, image: ImageInfo) -> bool | None:
    """Return whether annotations are for the image as EXIF turns it; None if both are alike."""
    if job.upright:
        return True if image.orientation > 1 else None
    upright = upright_size(image.width, image.height, image.orientation)
    if record.annotated_size is None or upright == (image.width, image.height):
        return None
    width, height = record.annotated_size
    return (width > height) == (upright[0] > upright[1])


Read: TypeAlias = Callable[[Record], bytes]


def _groups(job: PackJob, start: int, stop: int) -> Iterator[tuple[list[Record], Read]]:
    """Yield (group, read function) for groups of records that fit in memory."""
    for window, records in groupby(_listing(job).records(start, stop), attrgetter("window")):
        if window is None:
            for group in _small_groups(job, records):
                yield group, reader(group, job.storage_options)
        else:
            together = list(records)
            read = _read_in_order(together, job.storage_options)
            for group in _small_groups(job, together):
                yield group, read


def _small_groups(job: PackJob, records: Iterable[Record]) -> Iterator[list[Record]]:
    group: list[Record] = []
    held = 0.0
    for record in records:
        group.append(record)
        held += job.estimate.in_memory(record)
        if len(group) == SEEK_BATCH or held >= PIECE_BYTES:
            yield group
            group, held = [], 0.0
    if group:
        yield group


def _read_in_order(records: Sequence[Record], storage_options: Mapping[str, Any]) -> Read:
    """Read records in the order of their archives; return a function that gives each once."""
    wanted = [one for one in records if not one.problem]
    wanted += [blob for one in wanted for blob in one.blobs]
    ordered = sorted(wanted, key=attrgetter("path", "offset"))
    read = reader(ordered, storage_options)
    held: dict[str, bytes | SampleError] = {}
    for record in ordered:
        try:
            held[record.key] = read(record)
        except SampleError as error:
            held[record.key] = error
    return _given_once(held)


def _given_once(held: dict[str, bytes | SampleError]) -> Read:
    """Return a function that gives each record's bytes once, or raises its error."""

    def give(record: Record) -> bytes:
        data = held.pop(record.key)
        if isinstance(data, SampleError):
            raise data
        return data

    return give


def _bad(record: Record, error: SampleError) -> Bad:
    unread = isinstance(error, UnreadableError)
    path = printable(redact(record.path))
    return Bad(record.key, path, error.line, unread)


def _row(job: PackJob, record: Record, blob: bytes, info: ImageInfo, table: bytes | None) -> Row:
    path, offset = None, 0
    if job.root is not None:
        path, offset = record.path[len(job.root) :].lstrip("/"), record.offset
        if record.column is not None:
            # An offset of 0 would say that there is no blob. Of an empty one, no byte is read.
            path, offset = named(path, record.column), address(offset) + (not blob)
    return Row(
        key=record.key,
        label=record.label,
        file=NO_FILE,
        path=path,
        offset=offset,
        length=len(blob),
        width=info.width,
        height=info.height,
        channels=info.channels,
        encoding=info.encoding,
        crc32c=crc32c(blob),
        seek_points=table,
        orientation=info.orientation,
    )


def reader(records: Sequence[Record], storage_options: Mapping[str, Any]) -> Read:
    """Return a function that reads these records and their other blobs.

    Those behind URLs are fetched now, concurrently.
    """
    if records and is_url(records[0].path):
        blobs = [blob for one in records if not one.problem for blob in one.blobs]
        extent = _fetch([*records, *blobs], storage_options)
    else:
        extent = read_record

    def read(record: Record) -> bytes:
        if record.column is not None:
            where = record.path, record.column, record.offset, record.mtime_ns
            return read_row(*where, partial(file_at, storage_options=storage_options))
        return extent(record)

    return read


def _fetch(records: Sequence[Record], storage_options: Mapping[str, Any] | None) -> Read:
    """Fetch records that are extents behind URLs; return a function that gives each one once.

    It raises UnreadableError if a record's file is gone, SampleError if it has changed.
    """
    fetched = [one for one in records if one.problem is None and one.column is None]
    names = list(dict.fromkeys(one.path for one in fetched))
    places = {name: place for place, name in enumerate(names)}
    files = [FileRef(one.path, 0, "", places[one.path]) for one in fetched]
    starts = np.array([one.offset for one in fetched], np.int64)
    stops = starts + np.array([one.length for one in fetched], np.int64)
    columns = np.array([file.place for file in files], np.int64), starts, stops
    ranges = Ranges(files, *columns, np.full(len(files), UNCHECKED))
    held: dict[str, bytes | SampleError] = {}
    patience = Patience()

    def read(members: Numbers) -> None:
        own = [fetched[number] for number in members.tolist()]
        start, stop = int(starts[members].min()), int(stops[members].max())
        of_file: dict[str, Any] = {"patience": patience, "state": own[0].mtime_ns}
        data = b""
        error: SampleError | None = None
        try:
            data = read_bytes(own[0].path, storage_options, start, stop, **of_file)
        except FileNotFoundError:
            error = UnreadableError("cannot be opened: it does not exist")
        except ChangedError:
            error = SampleError("has changed since it was listed")
        for one in own:
            held[one.key] = error or data[one.offset - start : one.offset + one.length - start]

    # The whole file will be read, so more requests would save no bytes.
    order, begins = merge(ranges, _GAP, _MOST_BYTES, waste=math.inf)
    in_threads(read, np.split(order, begins[1:]) if fetched else [])
    return _given_once(held)


def encode(record: Record, encoding: Encoding, read: Read) -> tuple[bytes, ImageInfo]:
    """Read one record and encode it as a blob."""
    if record.problem:
        raise SampleError(record.problem)
    data = _read_sound(record, read)
    if record.pixels is None:
        info = probe(data)
        size = info.width, info.height
        if record.annotated_size not in (None, size, upright_size(*size, info.orientation)):
            annotated = human_size(*(record.annotated_size or size))
            raise SampleError(
                f"is {human_size(info.width, info.height)}, and its annotations are for {annotated}"
            )
        return encoding.apply(data, info)
    height, width = record.pixels
    return encoding.apply(data, ImageInfo("raw", width, height, 3, record.orientation))


def pack_unit(job: PackJob, unit: Unit) -> None:
    """Pack a unit into its own output file, if it has one, and then write its part."""
    part = PartBuilder(job.fields)
    placed: dict[str, Any] = {"file_number": NO_FILE}
    packed = samples(job, unit.start, unit.stop)
    if job.container in IN_PLACE:
        for sample in packed:
            part.add(sample)
    else:
        path = job.out / formats.file_name(job.container, unit.number)
        temporary = temporary_name(path)
        known = job.container, temporary, job.classes, job.fields
        opened = formats.open_writer(*known, plain=job.plain_images)
        with closing(opened) as writer, written_behind(temporary):
            for sample in packed:
                if part.add(sample):
                    writer.add(sample)
            offsets = writer.finish()
            checksum = writer.checksum()
        entry = FileEntry(path.name, temporary.stat().st_size, f"{checksum:08x}")
        publish(temporary, path)
        placed = {"file_number": unit.number, "file": entry, "offsets": offsets}
    with whole_file(job.part(unit)) as temporary:
        part.write(temporary, unit.fingerprint, **placed)


def prepare(job: PackJob, piece: Piece) -> list[NewSample | Bad]:
    """Prepare a piece for a file that another process, or this one, writes."""
    return list(samples(job, piece.start, piece.stop))

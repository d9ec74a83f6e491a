"""Sources: classes, and records in a fixed order.

A record is an extent, the place of an image's bytes. So listing ImageNet reads no image, each
worker reads only the images that it packs, and archives are never unpacked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fastdata.errors import SampleError, UnreadableError
from fastdata.storage.arrow import size_of
from fastdata.storage.fields import Field
from fastdata.storage.files import open_descriptor, read_exactly
from fastdata.storage.source import MOST_BYTES

#: Most classes: the class list is in memory and in the manifest, so a stray label must not size it.
MOST_CLASSES = 1 << 22


class Record(NamedTuple):
    """One image of a source.

    Attributes:
        key: The sample's key, unique in the source: path below the split, no extension.
        label: Index of its class in the source's ``classes``.
        path: The file with the image's bytes, or its URL.
        offset: Offset of the bytes in that file.
        length: Number of bytes.
        mtime_ns: Modification time of that file in nanoseconds (behind a URL: any number that
            changes with it). It shows whether the output of an interrupted run is current.
        pixels: For a source of pixels: height, width, and the pixels, uint8 HWC RGB. None instead
            of the pixels if they are the bytes in ``path``. None for a source of files.
        orientation: For a source of pixels: EXIF orientation of the image that they were.
        annotated_size: Width and height that its annotations are for; an image of another size is
            a bad sample. None if they do not say it.
        problem: Why the image cannot be packed, if listing has found a problem.
        column: The column of images, if ``path`` is Parquet. Then ``offset`` is the row, and
            ``length`` the approximate size of its image.
        group: With ``column``, the row group, whose rows are decoded together.
        crc32c: CRC-32C of the bytes, if the source knows it; other bytes make a bad sample.
        window: Number of the window that a shuffled listing reads together
            (`fastdata.converters.shuffling`); sources leave it out.
        fields: Values of the source's further fields, in their order; None where there is none. A
            column has one of `fastdata.storage.arrow.python_values`, a blob the record of its
            bytes, whose key is the sample's, a null character, and the field's name.
    """

    key: str
    label: int
    path: str
    offset: int
    length: int
    mtime_ns: int
    pixels: tuple[int, int, bytes | None] | None = None
    problem: str | None = None
    column: str | None = None
    group: int | None = None
    crc32c: int | None = None
    window: int | None = None
    fields: tuple[Any, ...] = ()
    orientation: int = 1
    annotated_size: tuple[int, int] | None = None

    @property
    def blobs(self) -> list[Record]:
        """Records of its further blobs."""
        return [value for value in self.fields if isinstance(value, Record)]

    @property
    def size(self) -> int:
        """Bytes of all its blobs in the source, and of its columns' values."""
        return self.length + sum(blob.length for blob in self.blobs) + self.values_size

    @property
    def values_size(self) -> int:
        """Bytes of its columns' values, about."""
        return sum(size_of(value) for value in self.fields if not isinstance(value, Record))


class Tables(NamedTuple):
    """Files whose rows a library decodes, with rows of each row group by file.

    ``source`` is the same source, with ``column`` and ``group`` in all records. ``columns`` are
    those of its images and further blobs.
    """

    source: Source
    files: Sequence[Any]
    columns: Sequence[str]
    groups: Sequence[Sequence[int]]


class Source(Protocol):
    """Collection of images that can be packed.

    It may have attributes: ``fields``, a sequence of `Field`, without image and label;
    ``archives``, the files (`fastdata.converters.trees.SourceFile`) that all its records, and
    their further blobs, are extents of; ``tables``, a `Tables` if all of these can be rows that
    a library decodes; ``upright``, whether annotations are for images as EXIF turns them; and
    ``hint``, what to check where no image can be packed; ``key_hint``, how to make keys unique.

    Every source of a folder, a file or a URL takes ``storage_options``, options of the driver of
    the URL. It raises RemoteError if the URL cannot be reached, SourceError for data that are
    missing, damaged or contradictory, and UsageError for arguments that name nothing. Labels are
    indices into ``classes``; without these, there are no labels.
    """

    classes: list[str]

    @property
    def about(self) -> Mapping[str, Any]:
        """Origin of the data, for the manifest; JSON values."""

    @property
    def inputs(self) -> Sequence[Path | str]:
        """Files, folders and URLs that packing reads and must not write to."""

    @property
    def root(self) -> str | None:
        """Folder or URL with all images as single files; None if they are in archives.

        The ``folder`` container needs one; ``archives`` needs ``archives``.
        """

    def records(self) -> Iterator[Record]:
        """Yield every image, in an order that depends on the source alone."""


class Listable(Protocol):
    """Iterable of records: a source, or a shard of one, which is picklable.

    It may have a `Counter` ``left_out`` of the files that it skips, by suffix.
    """

    def records(self) -> Iterator[Record]:
        """Yield its images; see `Source.records`."""


class Sharded:
    """Source whose shards are listed by one task each."""

    def shards(self) -> Sequence[Listable]:
        """Return the shards of its listing, in order."""
        raise NotImplementedError

    def records(self) -> Iterator[Record]:
        """Yield the records of its shards, one after the other."""
        for shard in self.shards():
            yield from shard.records()


def further_fields(source: Source) -> Sequence[Field]:
    """Return a source's fields besides image and label."""
    found: Sequence[Field] = getattr(source, "fields", ())
    return found


def tables_of(source: Source, container: str) -> Tables | None:
    """Return the files whose rows a source's records are in a container; None if they are not."""
    found: Tables | None = getattr(source, "tables", None) if container == "tables" else None
    return found


def listing_shards(source: Source) -> Sequence[Listable]:
    """Return a source's shards; the source itself if it has no ``shards()``."""
    found: Sequence[Listable] = source.shards() if hasattr(source, "shards") else [source]
    return found


def read_record(record: Record) -> bytes:
    """Read a record's bytes from its file."""
    length = record.length
    if not 0 <= length <= MOST_BYTES:
        raise SampleError(f"has {length:,} bytes, and an image may have {MOST_BYTES:,} at most")
    try:
        descriptor = open_descriptor(record.path)
    except OSError as error:
        raise UnreadableError(f"cannot be opened: {error.strerror}") from None
    try:
        data = read_exactly(descriptor, record.offset, length)
        mtime_ns = os.fstat(descriptor).st_mtime_ns
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(data) != length:
        raise SampleError(f"has {len(data)} bytes now, but had {length} when it was listed")
    if record.crc32c is None and mtime_ns != record.mtime_ns:
        # In an archive, another image may lie there now.
        raise SampleError("has changed since it was listed")
    return data

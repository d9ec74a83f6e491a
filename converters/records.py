"""Sources: classes, and records in a fixed order.

A record is an extent, the place of an image's bytes. So listing ImageNet reads no image, each
worker reads only the images that it packs, and archives are never unpacked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fastdata.decode.pillow import probe
from fastdata.errors import SampleError, UnreadableError
from fastdata.storage.arrow import size_of
from fastdata.storage.descriptors import read_exactly
from fastdata.storage.fields import Field
from fastdata.storage.files import open_descriptor
from fastdata.storage.source import MOST_BYTES

#: Most classes: the class list is in memory and in the manifest, so a stray label must not size it.
MOST_CLASSES = 1 << 22
#: Values to check for images.
_LOOKED_AT = 8


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
        pixels: Height and width, if the bytes are pixels, uint8 HWC RGB; None for a file.
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
        fields: Values of the source's other fields, in their order; None where there is none. A
            column has one of `fastdata.storage.arrow.python_values`, a blob the record of its
            bytes, whose key is the sample's, a null character, and the field's name.
    """

    key: str
    label: int
    path: str
    offset: int
    length: int
    mtime_ns: int
    pixels: tuple[int, int] | None = None
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
        """Records of its other blobs."""
        return [value for value in self.fields if isinstance(value, Record)]

    @property
    def size(self) -> int:
        """Bytes of all its blobs in the source, and of its columns' values, about."""
        values = (value for value in self.fields if not isinstance(value, Record))
        return self.length + sum(blob.length for blob in self.blobs) + sum(map(size_of, values))


class Tables(NamedTuple):
    """Files whose rows a library decodes, with rows of each row group by file.

    ``source`` is the same source, with ``column`` and ``group`` in all records. ``columns`` are
    those of its images and other blobs.
    """

    source: ImageSource
    files: Sequence[Any]
    columns: Sequence[str]
    groups: Sequence[Sequence[int]]


class Listable(Protocol):
    """Iterable of records: a source, or a shard of one, which is picklable.

    It may have a `Counter` ``left_out`` of the files that it skips, by suffix.
    """

    def records(self) -> Iterator[Record]:
        """Yield its images; see `ImageSource.records`."""


class ImageSource:
    """Collection of images that can be packed; subclasses override ``shards`` or ``records``.

    Every source of a folder, a file or a URL takes ``storage_options``, options of the driver of
    the URL. It raises RemoteError if the URL cannot be reached, SourceError for data that are
    missing, damaged or contradictory, and UsageError for arguments that name nothing.

    Attributes:
        classes: Class names; labels are indices into them. Without these, there are no labels.
        origin: Origin of the data, for the manifest; JSON values.
        inputs: Files, folders and URLs that packing reads and must not write to.
        root: Folder or URL with all images as single files, which the container ``folder`` needs;
            None if they are in archives.
        fields: Fields besides image and label.
        archives: The files (`fastdata.remote.files.SourceFile`) that all records, and their
            other blobs, are extents of; None if any is not.
        tables: Files whose rows all of these can be, if a library decodes them.
        upright: Whether annotations are for images as EXIF turns them.
        packed_order: The manifest's fields for the order of its samples, if it was packed before.
        objects: Number of annotated objects of each class.
        hint: What to check where no image can be packed.
        key_hint: How to make keys unique.
    """

    classes: Sequence[str] = ()
    origin: dict[str, Any]
    inputs: Sequence[Path | str] = ()
    root: str | None = None
    fields: Sequence[Field] = ()
    archives: Sequence[Any] | None = None
    tables: Tables | None = None
    upright = False
    packed_order: Mapping[str, Any] = {}
    objects: Mapping[str, int] = {}
    hint = "Check --root; images are found by their extension (.jpg, …)."
    key_hint = "Rename one of them"

    def shards(self) -> Sequence[Listable]:
        """Return the shards of its listing, in order; one task lists each."""
        return [self]

    def records(self) -> Iterator[Record]:
        """Yield every image, in an order that depends on the source alone."""
        for shard in self.shards():
            yield from shard.records()

    def tables_in(self, container: str) -> Tables | None:
        """Return the files whose rows the records are in a container; None if they are not."""
        return self.tables if container == "tables" else None


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


def has_image(values: Iterable[bytes]) -> bool:
    """Return whether one of the first values is an image file."""
    for value in islice(values, _LOOKED_AT):
        with suppress(SampleError):
            probe(value)
            return True
    return False

"""Sources: classes, and records in a fixed order.

A record is an extent: it says where an image's bytes lie. So listing ImageNet reads no image,
each worker reads what it packs, and archives are never unpacked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fastdata.errors import SampleError, UnreadableError
from fastdata.storage.blobs import MOST_BYTES
from fastdata.storage.files import open_descriptor, read_exactly


class Record(NamedTuple):
    """One image of a source.

    Attributes:
        key: The sample's name, unique in the source: path below the split, no extension.
        label: Index of its class in the source's ``classes``.
        path: The file that holds the image's bytes, or its URL.
        offset: Where in that file they begin.
        length: How many they are.
        mtime_ns: Modification time of that file in nanoseconds (behind a URL: any number that
            changes with it); tells whether what an interrupted run packed is still current.
        pixels: Where the source holds pixels, not files: height, width, and the pixels
            themselves, uint8 HWC RGB, or None where they lie in ``path`` as they are.
        problem: Why the image cannot be packed, if listing has found out.
        column: The column of images, if ``path`` is Parquet. Then ``offset`` is the row, and
            ``length`` the approximate size of its image.
        group: With ``column``, the row group: its rows are decoded together.
        crc32c: CRC-32C of the bytes, where the source knows it: others are a bad sample's.
        window: What a shuffled listing reads together (`fastdata.converters.shuffling`); sources
            leave it out.
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


class Source(Protocol):
    """A collection of labelled images that can be packed.

    Attributes:
        classes: Class names; a label is an index into them.
    """

    classes: list[str]

    @property
    def about(self) -> Mapping[str, Any]:
        """Where the data came from, for the manifest; JSON values."""

    @property
    def inputs(self) -> Sequence[Path | str]:
        """The files, folders and URLs that are read: nothing may be written into them."""

    @property
    def root(self) -> str | None:
        """The folder or URL that holds all images as single files; None if they are in archives.

        The ``folder`` container needs one.
        """

    def records(self) -> Iterator[Record]:
        """Yields every image, in an order that depends on the source alone.

        Raises:
            SourceError: The source is unreadable or contradictory.
        """


class Listable(Protocol):
    """Something that yields records: a source, or a shard of one, which is picklable.

    It may have a `Counter` ``left_out``, of files that it leaves out by their suffix.
    """

    def records(self) -> Iterator[Record]:
        """Yields its images, as `Source.records`."""


class Sharded:
    """A source whose shards are listed by one task each."""

    def shards(self) -> Sequence[Listable]:
        """The shards of its listing, in order."""
        raise NotImplementedError

    def records(self) -> Iterator[Record]:
        """Yields the records of its shards in turn."""
        for shard in self.shards():
            yield from shard.records()


def listing_shards(source: Source) -> Sequence[Listable]:
    """A source's shards; the source itself if it has no ``shards()``."""
    found: Sequence[Listable] = source.shards() if hasattr(source, "shards") else [source]
    return found


def read_record(path: str, offset: int, length: int) -> bytes:
    """Reads a record's bytes.

    Raises:
        UnreadableError: The file cannot be read.
        SampleError: It has changed since it was listed.
    """
    if not 0 <= length <= MOST_BYTES:
        raise SampleError(f"has {length:,} bytes, and an image may have {MOST_BYTES:,} at most")
    try:
        descriptor = open_descriptor(path)
    except OSError as error:
        raise UnreadableError(f"cannot be opened: {error.strerror}") from None
    try:
        data = read_exactly(descriptor, offset, length)
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(data) != length:
        raise SampleError(f"has {len(data)} bytes now, but had {length} when it was listed")
    return data

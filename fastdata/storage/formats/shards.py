"""Shards: tar files in the WebDataset convention (docs/formats/shards.md).

A sample is three members in a row, ``<key>.<extension>``, ``<key>.cls``, ``<key>.json``.
A tar member's data is contiguous, an extent.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata._native import crc32c
from fastdata.errors import CorruptionError, SourceError, UsageError, printable
from fastdata.storage.descriptors import read_exactly
from fastdata.storage.encodings import EXTENSIONS
from fastdata.storage.fields import Field
from fastdata.storage.files import open_file
from fastdata.storage.formats import NewSample
from fastdata.storage.formats.npy import HEAD, head_of, read_header
from fastdata.storage.formats.tars import Member, members
from fastdata.storage.formats.values import as_file, member_name, member_names

FILE_NAME = "shard-{:06d}.tar"
_BUFFER = 1 << 20  # bytes of a write
_MOST_SIDE = (1 << 31) - 1  # the index stores 32 bits


class ShardWriter:
    """Writer of one tar file; UsageError if two members of a sample would have one name."""

    def __init__(self, path: Path, classes: Sequence[str], fields: Sequence[Field] = ()) -> None:
        self._classes, self._fields = classes, fields
        #: Owner of each member, by extension in lower case, as webdataset reads it.
        self._members: dict[str, str] = {}
        for field in fields:
            for name in sorted(member_names(field)):
                extension, what = name.lower(), f"the field {field.name}"
                other = self._members.setdefault(extension, what)
                if other != what:
                    raise _one_member(f"{what} and {other}", extension)
        self._about = "fastdata.json" if "json" in self._members else "json"
        self._has_cls = bool(classes) and "cls" not in self._members
        for extension in [self._about, "cls"] if self._has_cls else [self._about]:
            other = self._members.setdefault(extension, "fastdata's own")
            if other != "fastdata's own":
                raise _one_member(f"{other} and fastdata's own", extension)
        self._file = path.open("wb", _BUFFER)
        self._at = 0
        self._crc = 0
        blobs = [field.name for field in fields if field.type is None]
        self._offsets: dict[str, list[int]] = {name: [] for name in ("image", *blobs)}

    def add(self, sample: NewSample) -> None:
        """Append one sample; see `fastdata.storage.formats.Writer`."""
        row = sample.row
        name = sample_name(row.key)
        # Readers learn the size of raw pixels from the header.
        shape = row.height, row.width, 3
        header = head_of("|u1", shape) if row.encoding == "raw" else b""
        extension = EXTENSIONS[row.encoding]
        if extension in self._members:
            image = f"the image of {printable(row.key)}"
            raise _one_member(f"{image} and {self._members[extension]}", extension)
        start = self._member(f"{name}.{extension}", header, sample.blob)
        self._offsets["image"].append(start + len(header))
        metadata: dict[str, Any] = {"key": row.key}
        if self._classes:
            metadata |= {"label": row.label, "class": self._classes[row.label]}
        if self._has_cls:
            self._member(f"{name}.cls", str(row.label).encode())
        metadata |= {"width": row.width, "height": row.height}
        self._member(f"{name}.{self._about}", json.dumps(metadata, ensure_ascii=False).encode())
        for field, value in zip(self._fields, sample.fields, strict=True):
            if field.type is None:
                at = 0 if value is None else self._member(f"{name}.{field.name}", value[1])
                self._offsets[field.name].append(at)
            elif value is not None:
                suffix, data = as_file(field, value)
                self._member(f"{name}.{member_name(field, suffix)}", data)

    def _member(self, name: str, *parts: bytes) -> int:
        """Write a member; return where its data begins."""
        size = sum(map(len, parts))
        head = member_head(name, size)
        padding = bytes(-size % tarfile.BLOCKSIZE)
        for piece in (head, *parts, padding):
            self._write(piece)
        start = self._at + len(head)
        self._at = start + size + len(padding)
        return start

    def _write(self, data: bytes) -> None:
        # Checksum the data while it is in the processor's caches, not when reading the file again.
        self._crc = crc32c(data, self._crc)
        self._file.write(data)

    def finish(self) -> Mapping[str, Sequence[int]]:
        """Complete the file; see `fastdata.storage.formats.Writer`."""
        end = 2 * tarfile.BLOCKSIZE  # two zero blocks, then zeros to a whole record
        self._write(bytes(end + -(self._at + end) % tarfile.RECORDSIZE))
        self._file.close()
        return self._offsets

    def checksum(self) -> int:
        """See `fastdata.storage.formats.Writer`."""
        return self._crc

    def close(self) -> None:
        """Release the file, finished or not."""
        self._file.close()


open_writer = ShardWriter


def _one_member(what: str, extension: str) -> UsageError:
    return UsageError(
        f"{what} would be one member, .{extension}",
        "Rename the field, or take --to lmdb or parquet.",
    )


def member_head(name: str, size: int) -> bytes:
    """Return the header of a member: a regular file of so many bytes.

    Most names are short and ASCII. For these the header of an empty name is filled in, since
    tarfile takes 16 µs for its own and this one; the bytes are the same.
    """
    if len(name) > _SHORT_NAME or not name.isascii() or size >= _SHORT_SIZE:
        info = tarfile.TarInfo(name)
        info.size = size
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    name_bytes, size_bytes = name.encode(), b"%011o" % size
    total = b"%06o" % (_EMPTY_SUM + sum(name_bytes) + sum(size_bytes) - sum(b"0" * 11))
    return b"".join(
        (
            name_bytes.ljust(_SHORT_NAME, b"\0"),
            _EMPTY[_SHORT_NAME:_SIZE_AT],
            size_bytes,
            _EMPTY[_SIZE_AT + 11 : _SUM_AT],
            total,
            _EMPTY[_SUM_AT + 6 :],
        )
    )


# Of a ustar header: lengths and offsets of the name, the size and the checksum in bytes.
_SHORT_NAME, _SIZE_AT, _SUM_AT = 100, 124, 148
_SHORT_SIZE = 8**11
_EMPTY = tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT)
_EMPTY_SUM = int(_EMPTY[_SUM_AT : _SUM_AT + 6], 8)


def sample_name(key: str) -> str:
    """Return the name that a key's members share.

    WebDataset takes what follows the first dot of the last path component for the
    extension, so dots there are written as ``%2E`` and the per cent sign as ``%25``. The
    key itself is in the ``.json`` member.
    """
    folder, slash, last = key.rpartition("/")
    return folder + slash + last.replace("%", "%25").replace(".", "%2E")


def extents(path: Path, fields: Sequence[str] = ()) -> Iterator[Mapping[str, tuple[int, int]]]:
    """Find every blob in a shard; see `fastdata.storage.formats.extents`."""
    blobs: dict[str, tuple[int, int]] = {}
    sample = None
    try:
        for member in members(path):
            folder, slash, last = member.name.rpartition("/")
            stem, _, extension = last.partition(".")
            if sample != folder + slash + stem:
                if blobs:
                    yield blobs
                sample, blobs = folder + slash + stem, {"image": _image_extent(path, member)}
            elif extension in fields:
                blobs[extension] = member.offset, member.size
        if blobs:
            yield blobs
    except SourceError as error:
        raise CorruptionError(error.what) from None
    except ValueError as error:
        raise CorruptionError(f"{path}: {member.name} does not hold pixels: {error}") from None


def _image_extent(path: Path, member: Member) -> tuple[int, int]:
    """Return where a member's image lies; raw pixels begin after NumPy's header."""
    if not member.name.endswith("." + EXTENSIONS["raw"]):
        return member.offset, member.size
    with open_file(path) as file:
        head = read_exactly(file.fileno(), member.offset, min(member.size, HEAD))
    header, _, _ = npy_shape(head, member.size)
    return member.offset + header, member.size - header


def npy_shape(head: bytes, size: int) -> tuple[int, int, int]:
    """Return the bytes of the header of raw pixels, a .npy, and their rows and columns.

    ValueError: it is not one that this module writes.
    """
    if head[6:8] != b"\1\0":
        raise ValueError(f"version {tuple(head[6:8])}")
    kind, shape, by_column, length = read_header(head, size)
    if by_column or kind != np.uint8:
        raise ValueError(f"{kind}, Fortran order: {by_column}")
    if len(shape) != 3 or shape[2] != 3 or min(shape) < 1 or max(shape) > _MOST_SIDE:
        raise ValueError(f"shape {shape}")
    return length, shape[0], shape[1]

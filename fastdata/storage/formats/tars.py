"""Members of tar files as extents, so that archives are read where they are.

The headers are read strictly: a name, a size or a chain of headers that makes no sense is an
error, and no header makes the reader hold or pass over more than the file has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from fastdata.errors import SourceError
from fastdata.storage.files import open_file
from fastdata.storage.paths import is_inside

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
#: Of a header: name, size, checksum, type, magic, prefix of the name.
_HEADER = struct.Struct("100s 24x 12s 12x 8s c 100x 6s 82x 155s 12x")
_CHECKSUM = slice(148, 156)
_REGULAR, _FOLDER, _GNU_SPARSE = b"0\x007", b"5", b"S"
#: Headers of a header: GNU's long name and long link, PAX (POSIX's and Solaris's), PAX for all.
_LONG_NAME, _LONG_LINK, _PAX, _PAX_FOR_ALL = b"L", b"K", b"xX", b"g"
#: Bytes that a header of a header may have. A path has 4 kB; other attributes are passed over.
_MOST_EXTRA = 1 << 20
#: Bytes that a name may have: the index stores no longer key.
_MOST_NAME = 0xFFFF
#: Digits of a number in a PAX header; 2^63 has 19.
_MOST_DIGITS = 19


class Member(NamedTuple):
    """A regular file in a tar file: path without ``./``, and where its data lies."""

    name: str
    offset: int
    size: int


class Openable(Protocol):
    """A file that can be opened for reading; its text is its name in messages."""

    def open(self, mode: Literal["rb"] = "rb") -> Any:
        """Open it: something with ``read``, ``seek`` and ``tell``."""


def members(path: Path | Openable, offset: int = 0, size: int | None = None) -> Iterator[Member]:
    """Yield the regular files of a tar file, in the archive's order.

    ``offset`` and ``size`` place an archive that is itself a member of ``path``.

    Raises:
        SourceError: It cannot be read, is compressed or cut short, or holds a member that
            would lie outside the folder it is unpacked in.
    """
    try:
        with open_file(path, -1) if isinstance(path, Path) else path.open("rb") as file:
            end = file.seek(0, 2) if size is None else offset + size
            for name, start, length in _walk(file, offset, end):
                yield Member(_safe(path, name), start, length)
    except _OtherKindError as error:
        raise SourceError(
            f"{path}: {error}", "Pack the archive again with tar --dereference, without --sparse."
        ) from None
    except (TarError, OSError) as error:
        raise SourceError(
            f"{path}: cannot be read as an uncompressed tar file: {error}",
            "Check that it was downloaded whole; gunzip it if it is compressed.",
        ) from None


def read_member(file: Any, name: str, most: int) -> bytes:
    """Read one member of an open tar file, which may be ``most`` bytes long.

    Raises:
        TarError: It is no tar file, a damaged one, or has no such member.
    """
    for member, at, size in _walk(file, 0, most):
        if member.removeprefix("./") == name:
            return _read(file, at, size, most)
    raise TarError(f"it has no member {name}")


class TarError(ValueError):
    """Error of a file that is no tar file, or a damaged one."""


class _OtherKindError(TarError):
    """Error of a member that is no regular file."""


def _walk(file: Any, at: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size of each regular file."""
    pending: dict[bytes, dict[str, str]] = {}  # headers of the next header, by type
    while True:
        block = _read(file, at, _BLOCK, end)
        if block == _ZEROS and not pending:
            return
        header = _Header.parse(block)
        data_at = at + _BLOCK
        if header.kind in _LONG_NAME + _LONG_LINK + _PAX + _PAX_FOR_ALL:
            if not 0 <= header.size <= _MOST_EXTRA:
                what = "no size" if header.size < 0 else f"{header.size} bytes more"
                raise TarError(f"the header at {at} has {what}")
            fields = _extra(header.kind, _read(file, data_at, header.size, end))
            if header.kind == _PAX_FOR_ALL:
                _refuse_for_all(fields)
            elif header.kind in pending:
                raise TarError(f"a member has two headers of one kind at {at}")
            else:
                pending[header.kind] = fields
            at = data_at + _padded(header.size)
            continue
        name, size = _resolve(header, pending)
        pending = {}
        if header.kind == _FOLDER or (header.kind == b"\0" and name.endswith("/")):
            at = data_at
            continue
        if header.kind not in _REGULAR:
            what = "a sparse file" if header.kind == _GNU_SPARSE else "a link or a device"
            raise _OtherKindError(f"{name} is {what}")
        if not 0 <= size <= end - data_at:
            raise TarError(f"{name} has no size" if size < 0 else f"{name} goes beyond the end")
        yield name, data_at, size
        at = data_at + _padded(size)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _read(file: Any, at: int, size: int, end: int) -> bytes:
    data = b""
    if size <= end - at:
        file.seek(at)
        data = file.read(size)
    if len(data) != size:
        # Readers of tar take a damaged header, or none, for the end. The true end is zeros.
        raise TarError("it ends, or is damaged, before its end mark")
    return data


class _Header(NamedTuple):
    """Block of a header."""

    name: str
    size: int
    kind: bytes

    @classmethod
    def parse(cls, block: bytes) -> _Header:
        name, size, checksum, kind, magic, prefix = _HEADER.unpack(block)
        total = sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ")
        if (expected := _number(checksum)) != total:
            # Some old programs added the bytes as signed numbers.
            signed = total - 256 * sum(byte > 127 for byte in block[:148] + block[156:])
            if expected != signed:
                raise TarError("it ends, or is damaged, before its end mark")
        text = _text(name)
        # GNU's headers may have times where POSIX has the prefix.
        if magic == b"ustar\0" and (folder := _text(prefix)):
            text = f"{folder}/{text}"
        return cls(text, _number(size), kind)


def _number(field: bytes) -> int:
    """Return a number: octal digits, or base 256 behind a byte 0x80; -1 for anything else."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    # `int` also takes signs and underscores, and with these a walk could go back.
    return -1 if digits.strip(b"01234567") else int(digits or b"0", 8)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _extra(kind: bytes, data: bytes) -> dict[str, str]:
    """Return the fields of a header of a header."""
    if kind == _LONG_LINK:
        return {}
    if kind == _LONG_NAME:
        return {"path": _text(data)}
    fields: dict[str, str] = {}
    at = 0
    while at < len(data) and data[at]:
        digits, space, _ = data[at : at + _MOST_DIGITS].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = data[at + len(digits) + 1 : at + length]
        key, equals, value = record[:-1].partition(b"=")
        if not space or not equals or record[-1:] != b"\n" or at + length > len(data):
            raise TarError("a PAX header is not one")
        fields[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        at += length
    return fields


def _refuse_for_all(fields: dict[str, str]) -> None:
    if not fields.keys().isdisjoint(("path", "size")):
        raise TarError("a PAX header gives all members one name or size")


def _resolve(header: _Header, pending: dict[bytes, dict[str, str]]) -> tuple[str, int]:
    """Return a member's name and size, by its header and those before it."""
    names = [fields["path"] for fields in pending.values() if "path" in fields]
    if len(names) > 1 and len(set(names)) > 1:
        raise TarError(f"a member has two names, {names[0]} and {names[1]}")
    name = names[0] if names else header.name
    if len(name) > _MOST_NAME:
        raise TarError(f"a name has {len(name):,} characters, more than {_MOST_NAME:,}: {name}")
    size = header.size
    for fields in pending.values():
        if any(field.startswith("GNU.sparse.") for field in fields):
            raise _OtherKindError(f"{name} is a sparse file")
        if "size" in fields:
            digits = fields["size"]
            if len(digits) > _MOST_DIGITS or not (digits.isascii() and digits.isdigit()):
                raise TarError(f"the size of {name} is {digits}")
            size = int(digits)
    return name, size


def _safe(path: object, name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not is_inside(name) or not parts:
        raise SourceError(
            f"{path}: the member {name} would lie outside the folder it is unpacked in",
            "Archives that were not made with ill intent have no such names; do not use it.",
        )
    return "/".join(parts)

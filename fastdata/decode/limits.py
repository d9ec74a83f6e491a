"""Limits of what an image may cost, checked without decoding it.

Decoders take memory for the picture that they decode, and a container's header may state another
size. An AVIF's boxes state a size, and its AV1 data another; a TIFF of one pixel may have a tile of
a gigabyte; the directory of an icon says nothing of the PNGs in it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from fastdata import _native
from fastdata.errors import LEAVE_OUT, SampleError, UsageError
from fastdata.text import human_size

Size = tuple[int, int]

#: Most pixels of an image's tiles, transparency and thumbnail, as a multiple of its own.
_MOST_TILES = 16
_ANY = (1 << 31) - 1  # number of scans
_LARGER = f"Give ImageDataset larger limits=Limits(…), or {LEAVE_OUT}"


@dataclass(frozen=True)
class Limits:
    """Limits of what an image may cost to decode: the ``limits`` of `fastdata.ImageDataset`.

    Attributes:
        pixels: Most pixels (width times height); None for no limit of fastdata's. By default
            Pillow's limit, from which it warns of decompression bombs.
        scans: Most scans of a JPEG, each of which goes over all its pixels; None for no limit.
            libjpeg's own progressive JPEGs have 10.

    Raises:
        UsageError: A limit is not a whole number from 1, or None.
    """

    pixels: int | None = 89_478_485
    scans: int | None = 64

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and (type(limit) is not int or limit < 1):
                raise UsageError(
                    f"Limits({name}={limit!r})", "Give a whole number from 1, or None."
                )

    @property
    def most_scans(self) -> int:
        """The limit of scans, as the core takes it."""
        return _ANY if self.scans is None else min(self.scans, _ANY)

    def check(self, data: bytes) -> None:
        """Raise unless an image is within the limits; decode nothing.

        Sizes that Pillow finds when it opens an image are not checked here.

        Raises:
            SampleError: It is not; the hint names the limit.
        """
        encoding, width, height, *_ = _native.probe(data)
        self.check_size(width, height)
        if encoding == "unknown" and self.pixels is not None:
            total = 0
            for size in decoded_sizes(data):
                self.check_size(*size)
                total += size[0] * size[1]
            if total > _MOST_TILES * self.pixels:
                raise SampleError(
                    f"has parts of {total} pixels in all, more than {_MOST_TILES} times "
                    f"Limits(pixels={self.pixels})",
                    _LARGER,
                )
        if not encoding.startswith("jpeg") or self.scans is None:
            return
        scans = _native.count_scans(data)
        if scans > self.scans:
            raise SampleError(f"has {scans} scans, more than Limits(scans={self.scans})", _LARGER)

    def check_size(self, width: int, height: int) -> None:
        """Raise SampleError if an image is too large; the hint names the limit."""
        if self.pixels is not None and width * height > self.pixels:
            raise SampleError(
                f"has {human_size(width, height)} pixels, more than Limits(pixels={self.pixels})",
                _LARGER,
            )


#: Most parts of a file to inspect: a file with more was made to take long.
_MOST_PARTS = 10_000
#: Most images that a file of another kind may hold.
_MOST_NESTED = 100
_NESTED_HEADER = 1 << 20
_NESTED = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff")
_CODESTREAM = re.compile(rb"\xff\x4f\xff\x51.{4}(.{4})(.{4})", re.DOTALL)


def decoded_sizes(data: bytes) -> Iterator[Size]:
    """Return (width, height) of each picture that decoding a file may take memory for.

    Sizes that Pillow finds in the header itself are not among them. SampleError: it has more parts
    than an image needs.
    """
    if data[4:8] == b"ftyp":
        return _of_av1(data)
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return _of_tiles(data)
    if data[:4] in (b"\0\0\1\0", b"\0\0\2\0", b"icns") or data[:3] == b"BLP" or data[:1] == b"\x1c":
        return _of_nested(data)
    return iter(())


def boxes(data: bytes, at: int = 0, stop: int | None = None) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, begin and end of each box's contents in a container (ISO/IEC 14496-12, 4.2)."""
    stop = len(data) if stop is None else min(stop, len(data))
    while at + 8 <= stop:
        length, begin = int.from_bytes(data[at : at + 4], "big"), at + 8
        if length == 1:
            length, begin = int.from_bytes(data[begin : begin + 8], "big"), at + 16
        end = at + length if length else stop
        if end < begin:
            return
        yield data[at + 4 : at + 8], begin, end
        at = end


class _Bits:
    """Reader of bits, the highest first."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise EOFError
        return self._value >> self._left & ((1 << count) - 1)

    def skip_uvlc(self) -> None:
        zeros = 0
        while not self.take(1):
            zeros += 1
        self.take(zeros if zeros < 32 else 0)


def _of_av1(data: bytes) -> Iterator[Size]:
    """Yield the sizes in the AV1 sequence headers of an AVIF's items and first frames."""
    parts = 0
    for item in _items(data):
        for kind, payload in _units(item):
            parts += 1
            if parts > _MOST_PARTS:
                raise SampleError("has more parts than an image needs")
            if kind == _SEQUENCE_HEADER:
                try:
                    yield _sequence_size(_Bits(payload))
                except EOFError:
                    continue


_SEQUENCE_HEADER = 1
_SEQUENCE_HEADER_BYTES = 1024  # more than any takes


def _units(data: memoryview) -> Iterator[tuple[int, bytes]]:
    """Yield kind and first bytes of each open bitstream unit (AV1 specification, 5.3)."""
    at = 0
    while at < len(data):
        header = data[at]
        at += 2 if header & 4 else 1
        length = len(data) - at
        if header & 2:
            length = shift = 0
            while at < len(data) and shift < 56:
                byte = data[at]
                length |= (byte & 127) << shift
                at, shift = at + 1, shift + 7
                if byte < 128:
                    break
        if header & 0x80 or length < 0:
            return
        yield header >> 3 & 15, bytes(data[at : at + min(length, _SEQUENCE_HEADER_BYTES)])
        at += length


def _sequence_size(bits: _Bits) -> Size:
    """Return the largest frame that an AV1 sequence header allows (5.5)."""
    bits.take(4)  # profile, still picture
    if bits.take(1):  # a reduced header
        bits.take(5)
    else:
        delay = 0
        if bits.take(1):  # timing
            bits.take(64)
            if bits.take(1):
                bits.skip_uvlc()
            if bits.take(1):  # decoder model
                delay = bits.take(5) + 1
                bits.take(42)
        display_delay = bits.take(1)
        for _ in range(bits.take(5) + 1):
            bits.take(12)
            if bits.take(5) > 7:
                bits.take(1)
            if delay and bits.take(1):
                bits.take(2 * delay + 1)
            if display_delay and bits.take(1):
                bits.take(4)
    across, down = bits.take(4) + 1, bits.take(4) + 1
    return bits.take(across) + 1, bits.take(down) + 1


def _items(data: bytes) -> Iterator[memoryview]:
    """Yield the bytes of each item (ISO/IEC 14496-12, 8.11.3), and of tracks from frame 1 on."""
    view = memoryview(data)
    for kind, begin, end in boxes(data):
        if kind == b"meta":
            inside = {name: span for name, *span in boxes(data, begin + 4, end)}
            base, _ = inside.get(b"idat", (0, 0))
            if b"iloc" in inside:
                for extents in _locations(view[slice(*inside[b"iloc"])], base):
                    pieces = [view[at : at + size if size else None] for at, size in extents]
                    yield pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        elif kind == b"moov":
            for match in re.finditer(rb"(stco|co64).{8}(.{4})(.{4})", data[begin:end], re.DOTALL):
                offset = match[2] if match[1] == b"stco" else match[2] + match[3]
                yield view[int.from_bytes(offset, "big") :]


def _locations(iloc: memoryview, inside_meta: int) -> Iterator[list[tuple[int, int]]]:
    """Yield (begin, length) of each item's extents; a length of 0 means all the rest."""
    at = parts = 0

    def take(size: int) -> int:
        nonlocal at
        at += size
        return int.from_bytes(iloc[at - size : at], "big")

    version, _ = take(1), take(3)
    sizes = take(2)
    offset_size, length_size = sizes >> 12, sizes >> 8 & 15
    base_size, index_size = sizes >> 4 & 15, sizes & 15 if version else 0
    for _ in range(take(2 if version < 2 else 4)):
        if at >= len(iloc):
            return
        take(2 if version < 2 else 4)
        in_meta = version > 0 and take(2) & 15 == 1
        take(2)
        base = take(base_size) + (inside_meta if in_meta else 0)
        extents = []
        for _ in range(take(2)):
            take(index_size)
            extents.append((base + take(offset_size), take(length_size)))
            parts += 1
            if parts > _MOST_PARTS:
                raise SampleError("has more parts than an image needs")
        if extents:
            yield extents


_TILE_WIDTH, _TILE_LENGTH = 322, 323
_INTEGERS = {1: 1, 3: 2, 4: 4, 6: 1, 8: 2, 9: 4, 13: 4, 16: 8, 17: 8, 18: 8}  # bytes by TIFF type


def _of_tiles(data: bytes) -> Iterator[Size]:
    """Yield the size of a TIFF's tiles, which may be larger than the image."""
    order = "<" if data[:1] == b"I" else ">"
    large = 43 in data[2:4]
    first, count, entry = (8, "Q", "HHQ8s") if large else (4, "H", "HHL4s")
    sides = {}
    try:
        (at,) = struct.unpack_from(order + ("Q" if large else "L"), data, first)
        (entries,) = struct.unpack_from(order + count, data, at)
        at += struct.calcsize(order + count)
        for _ in range(min(entries, _MOST_PARTS)):
            tag, type_, _, value = struct.unpack_from(order + entry, data, at)
            at += struct.calcsize(order + entry)
            if tag in (_TILE_WIDTH, _TILE_LENGTH):
                value = value[: _INTEGERS.get(type_, 0)]
                sides[tag] = int.from_bytes(value, "little" if order == "<" else "big")
    except (struct.error, OverflowError):
        pass  # Pillow reports the error
    if len(sides) == 2:
        yield sides[_TILE_WIDTH], sides[_TILE_LENGTH]


def _of_nested(data: bytes) -> Iterator[Size]:
    """Yield the sizes of images in a file of icons or textures."""
    for number, match in enumerate(_NESTED.finditer(data)):
        if number == _MOST_NESTED:
            raise SampleError(f"holds more than {_MOST_NESTED} images")
        _, width, height, *_ = _native.probe(data[match.start() :][:_NESTED_HEADER])
        yield width, height
    for match in _CODESTREAM.finditer(data):
        yield int.from_bytes(match[1], "big"), int.from_bytes(match[2], "big")
    if data[:2] == b"\0\0":  # an icon's directory
        for number in range(int.from_bytes(data[4:6], "little")):
            at = int.from_bytes(data[18 + 16 * number : 22 + 16 * number], "little")
            header = data[at : at + 12]
            if int.from_bytes(header[:4], "little") == 40:  # a bitmap, twice as high for its mask
                width, height = struct.unpack_from("<ii", header, 4)
                yield abs(width), abs(height) // 2

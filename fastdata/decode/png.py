"""PNG: this module reads chunks, a library inflates, the core unfilters, without the GIL.

ISA-L inflates a PNG only as far as the last row that is needed. Without a checksum of its bytes,
all of it is inflated, by libdeflate: it compares zlib's checksum at the end, and refuses the sets
of codes that zlib refuses, which ISA-L takes. zlib takes 2.5 times as long as either.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native
from fastdata.decode.decoders import LeftToPillow

_CHUNK = Struct(">I4s")
_HEADER = Struct(">IIBBBBB")
_GREY = 0
#: Numbers of grey, by depth; uint8 of others.
_GREY_NUMBERS = {1: "?", 16: "<u2"}


class PngFile(NamedTuple):
    """Header and compressed data of a PNG.

    ``palette``: three bytes a colour; ``whole``: it is always inflated to its end; ``dtype``: that
    of numbers, as ``np.array(Image.open(file))`` has them, where it is not uint8.
    """

    width: int
    height: int
    header: _native.PngHeader
    palette: bytes
    data: bytes
    whole: bool
    dtype: str = ""

    def decode(self, box: tuple[int, int, int, int]) -> npt.NDArray[Any]:
        """Return the rows above a box's lower edge: (rows, width) grey, or (rows, width, 3) RGB.

        Numbers are uint8; of 1-bit grey bool, of 16-bit grey uint16. They have 2 to 4 channels
        where the image has as many.
        """
        rows = box[3]
        wanted = self.header.inflated_bytes(self.height if self.whole else rows)
        try:
            inflated = (_inflate_all if self.whole else _inflate)()(self.data, wanted)
        except Exception as error:  # each library has its own
            raise LeftToPillow(str(error)) from None
        if len(inflated) < wanted:
            raise LeftToPillow("the image's data end early")
        out = np.empty((rows, self.width, self.header.channels), np.uint8)
        code, detail, _ = self.header.pixels(inflated, self.palette, out)
        if code != "ok":
            raise LeftToPillow(detail)
        pixels: npt.NDArray[Any] = out.view(self.dtype) if self.dtype else out
        return pixels if pixels.shape[2] > 1 else pixels[..., 0]


def open_png(data: bytes, trusted: bool, numbers: bool = False) -> PngFile:
    """Read a PNG's chunks; ``trusted``: its bytes are known to be those that were stored.

    Raises:
        Exception: Another decoder must decide: some of 16-bit grey, animated, interlaced, damaged.
    """
    header: tuple[Any, ...] = ()
    palette = b""
    pieces: list[memoryview] = []
    others: list[memoryview] = []
    view = memoryview(data)
    at, size, kind = 8, len(data), b""
    while at + 12 <= size and kind != b"IEND":
        before = kind
        length, kind = _CHUNK.unpack_from(data, at)
        begin, end = at + 8, at + 8 + length
        if end + 4 > size:
            break
        if kind == b"IDAT":
            if pieces and before != b"IDAT":
                raise LeftToPillow("its image data lie in two places")
            pieces.append(view[begin:end])
        elif pieces and trusted:
            break  # Pillow accepted the rest when the file was packed
        elif zlib.crc32(view[at + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            raise LeftToPillow("a chunk's checksum is wrong")
        elif kind == b"IHDR" and length == 13 and not header:
            header = _HEADER.unpack_from(data, begin)
        elif kind in (b"acTL", b"fcTL", b"fdAT", b"CgBI"):
            raise LeftToPillow("it is animated, or of Apple's kind")
        elif kind == b"PLTE" and not pieces:
            palette = bytes(view[begin:end])
        elif kind != b"IEND":
            others.append(view[at : end + 4])
        at = end + 4
    if not header or not pieces:
        raise LeftToPillow("it has no header, or no data")
    if not trusted and kind != b"IEND":
        raise LeftToPillow("it has no end")
    width, height, depth, colour, compression, filters, interlaced = header
    if not numbers and (colour, depth) == (_GREY, 16):
        raise LeftToPillow("it is grey of 16 bits")
    if interlaced:
        raise LeftToPillow("it is interlaced")
    if width >> 24 or height >> 31 or compression or filters:
        raise LeftToPillow("its header is unusual")
    core = _native.PngHeader(width, height, depth, colour, numbers)
    if not core.valid:
        raise LeftToPillow("its header is unusual")
    if others and not trusted:
        _check_metadata(header, others)
    dtype = _GREY_NUMBERS.get(depth, "") if numbers and colour == _GREY else ""
    compressed = b"".join(pieces)
    return PngFile(width, height, core, palette, compressed, not trusted, dtype)


def _check_metadata(header: tuple[Any, ...], chunks: list[memoryview]) -> None:
    """Have Pillow read, or refuse, the chunks of a PNG that hold neither pixels nor palette."""
    start = b"IHDR" + _HEADER.pack(1, 1, *header[2:])
    checked = _CHUNK.pack(13, start[:4]) + start[4:] + zlib.crc32(start).to_bytes(4, "big")
    pixel = b"\x89PNG\r\n\x1a\n" + checked + b"".join(chunks) + _CHUNK.pack(0, b"IDAT")
    Image.open(io.BytesIO(pixel), formats=("PNG",))


@cache
def _inflate() -> Callable[[bytes, int], bytes]:
    """Return a function that inflates the first bytes of data, so many or fewer."""
    inflater: Callable[[], Any] = zlib.decompressobj
    with suppress(ImportError):
        from isal.isal_zlib import decompressobj as inflater
    return lambda data, size: bytes(inflater().decompress(data, size))


@cache
def _inflate_all() -> Callable[[bytes, int], bytes]:
    """Return a function that inflates all of data, at most so many bytes, and checks its end."""
    try:
        from imagecodecs import deflate_decode
    except ImportError:
        return _inflate_by_zlib
    return lambda data, size: bytes(deflate_decode(data, out=size))


def _inflate_by_zlib(data: bytes, size: int) -> bytes:
    inflater = zlib.decompressobj()
    # One byte more makes zlib read on to the checksum.
    inflated = inflater.decompress(data, size + 1)
    return inflated if inflater.eof else b""

"""What an image is, from its bytes: encoding, size, channels, and whether it is whole.

JPEG, which is what training sets are made of, is walked marker by marker, without
decoding. Everything else is Pillow's business. What this module accepts has headers that
Pillow decodes: where the walk finds anything unusual up to the first scan, Pillow decodes
the image and has the last word. What comes after the header of the first scan is not
looked at but for its end; that is left to ``fastdata verify``.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import mul, or_
from typing import NamedTuple

from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from fastdata import _native
from fastdata.errors import SampleError
from fastdata.storage.sizes import decoded_sizes

#: The encodings an index may name, in the order of their codes (docs/formats/index.md).
ENCODINGS = _native.ENCODINGS

#: The file extension of a blob in each encoding.
EXTENSIONS = {
    "raw": "npy",  # shards put NumPy's header before raw pixels (docs/formats/shards.md)
    "jpeg": "jpg",
    "jpeg-progressive": "jpg",
    "jpeg-other": "jpg",
    "png": "png",
    "webp": "webp",
    "bmp": "bmp",
    "gif": "gif",
    "tiff": "tiff",
    "ppm": "ppm",
    "avif": "avif",
    "heic": "heic",
    "jxl": "jxl",
    "other": "img",
    "jpeg-arithmetic": "jpg",
}

#: Those of JPEGs that the core decodes, if nothing else about them is unusual.
NATIVE_JPEGS = ("jpeg", "jpeg-progressive", "jpeg-arithmetic")

#: torchvision.datasets.folder.IMG_EXTENSIONS; compared in lower case.
_TORCHVISION = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
#: Those, and the kinds that torchvision leaves out (fastdata/decode/codecs.py decodes them).
IMAGE_EXTENSIONS = (*_TORCHVISION, ".gif", ".avif", ".heic", ".heif", ".jxl")


def is_image_name(name: str) -> bool:
    """Whether a file's name has an image's extension."""
    return name.lower().endswith(IMAGE_EXTENSIONS)


# Markers of ITU-T T.81, table B.1.
_SOF0, _SOF1, _SOF2, _SOF9, _SOF10 = 0xC0, 0xC1, 0xC2, 0xC9, 0xCA
_FRAMES = {_SOF0: "jpeg", _SOF1: "jpeg", _SOF2: "jpeg-progressive"}
_NOT_SOF = (0xC4, 0xC8, 0xCC)  # DHT, JPG, DAC: between the SOF markers, but none of them
_DHT, _SOI, _EOI, _SOS, _DQT, _DRI, _TEM = 0xC4, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0x01
_APP0, _APP1, _APP2, _APP14 = 0xE0, 0xE1, 0xE2, 0xEE
#: Segments that say nothing of whether the image decodes: APPn and COM.
_SKIPPED = frozenset((*range(0xE0, 0xF0), 0xFE))
_EXIF = b"Exif\0\0"

#: The largest side that libjpeg decodes (JPEG_MAX_DIMENSION of jmorecfg.h).
_MAX_SIDE = 65_500
_ALL_COLOURS = (1, 3, 4)  # component counts that Pillow knows: grey, colour, CMYK


class ImageInfo(NamedTuple):
    """What an image is.

    Attributes:
        encoding: One of `ENCODINGS`.
        width: Columns, in pixels, as stored (an EXIF orientation is not applied).
        height: Rows, in pixels, as stored.
        channels: Colour components: 1 grey, 3 colour (also by a palette), 4 CMYK or with alpha.
    """

    encoding: str
    width: int
    height: int
    channels: int


def probe(data: bytes) -> ImageInfo:
    """Says what an encoded image is, and that it is whole.

    A JPEG is whole if its headers are what Pillow decodes and an end marker follows its
    first scan; the entropy-coded data between, and headers of later scans, are not decoded
    (``fastdata verify`` does that). Anything else is decoded; of a PNG the chunks' checksums
    are verified, too.

    Args:
        data: The bytes of one image file.

    Raises:
        SampleError: The bytes are empty, not an image, or not all of one.
    """
    if not data:
        raise SampleError("the file is empty (0 bytes)")
    if data[:2] == b"\xff\xd8":
        info = _probe_jpeg(data)
        if info is not None:
            return info
    return _probe_with_pillow(data)


class _Frame(NamedTuple):
    """What a frame header says.

    Attributes:
        info: The image.
        components: The identifier of each component.
        quantisation: The quantisation tables that they name, as a bit set.
    """

    info: ImageInfo
    components: bytes
    quantisation: int


def _probe_jpeg(data: bytes) -> ImageInfo | None:
    """Walks a JPEG's markers up to its first scan; None if there is anything for Pillow to judge.

    libjpeg refuses a header for many reasons. So that none is forgotten, what is known to be
    good is let through, and not what is known to be bad kept out.
    """
    size = len(data)
    frame: _Frame | None = None
    quantisation = huffman = 0
    at = 2
    while True:
        if at + 4 > size or data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        length = data[at + 2] << 8 | data[at + 3]
        begin, end = at + 4, at + 2 + length
        if length < 2 or end > size:
            return None
        if marker in _SKIPPED:
            if _is_special(marker, data, begin, length - 2):
                return None
        elif marker == _DQT:
            found = _quantisation_tables(data[begin:end])
            if not found:
                return None
            quantisation |= found
        elif marker == _DHT:
            found = _huffman_tables(data[begin:end])
            if not found:
                return None
            huffman |= found
        elif marker in _FRAMES:
            if frame is not None:
                return None
            frame = _frame_header(marker, data[begin:end])
            if frame is None:
                return None
        elif marker == _SOS:
            break
        elif marker != _DRI or length != 4:
            return None
        at = end
    if frame is None or frame.quantisation & ~quantisation:
        return None
    if not _scan_header(data[begin:end], frame.components, frame.info.encoding, huffman):
        return None
    # Inside a scan every FF byte is followed by 00 or a restart marker, so an end marker
    # after the first SOS is the real one, wherever thumbnails may have theirs.
    return frame.info if data.rfind(b"\xff\xd9", end) >= 0 else None


def _is_special(marker: int, data: bytes, begin: int, length: int) -> bool:
    """Whether an application segment may keep Pillow from opening the image.

    It refuses those that are too short for what it reads from them, and looks closer where
    one file holds several pictures.
    """
    if marker == _APP0:
        return length < 7 and data.startswith(b"JFIF", begin)
    if marker == _APP2:
        icc = length < 14 and data.startswith(b"ICC_PROFILE", begin)
        return icc or data.startswith(b"MPF\0", begin)
    return marker == _APP14 and length < 7 and data.startswith(b"Adobe", begin)


def _frame_header(marker: int, segment: bytes) -> _Frame | None:
    """Reads a frame header (T.81, B.2.2); None unless it is of 8 bits and usual."""
    if len(segment) < 6 or segment[0] != 8 or segment[5] not in _ALL_COLOURS:
        return None
    height = segment[1] << 8 | segment[2]
    width = segment[3] << 8 | segment[4]
    if not (0 < width <= _MAX_SIDE and 0 < height <= _MAX_SIDE):
        return None
    # Where Image.open raises DecompressionBombError; users may change or lift the limit.
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > 2 * limit:
        return None
    tables = _components(segment[6:], segment[5])
    if not tables:
        return None
    info = ImageInfo(_FRAMES[marker], width, height, segment[5])
    return _Frame(info, segment[6::3], tables)


_SAMPLING = frozenset(across << 4 | down for across in (1, 2, 4) for down in (1, 2, 4))


@lru_cache(maxsize=256)
def _components(specification: bytes, count: int) -> int:
    """The quantisation tables that a frame's components name, as a bit set.

    0 unless their sampling is one of the usual: factors that divide each other, as libjpeg
    wants them, and 10 blocks an MCU at most (T.81, B.2.3).
    """
    identifiers, sampling, tables = (specification[i::3] for i in range(3))
    if len(specification) != 3 * count or len(set(identifiers)) != count:
        return 0
    if not _SAMPLING.issuperset(sampling) or max(tables) > 3:
        return 0
    if sum((factors >> 4) * (factors & 15) for factors in sampling) > 10:
        return 0
    return reduce(or_, (1 << table for table in tables))


@lru_cache(maxsize=1024)
def _quantisation_tables(segment: bytes) -> int:
    """The tables that a DQT segment defines, as a bit set; 0 if it is malformed."""
    found = at = 0
    while at < len(segment):
        precision, number = segment[at] >> 4, segment[at] & 15
        if precision > 1 or number > 3:
            return 0
        found |= 1 << number
        at += 1 + (64 << precision)
    return found if at == len(segment) else 0


#: The part of all 16-bit codes that a code of 1 to 16 bits takes up.
_CODE_SPACE = tuple(1 << 16 - bits for bits in range(1, 17))


def _huffman_tables(segment: bytes) -> int:
    """The tables that a DHT segment defines, as a bit set; 0 if it is malformed.

    Bits 0 to 3 are the tables for DC coefficients, 4 to 7 those for AC.
    """
    found = at = 0
    size = len(segment)
    while at < size:
        head, counts = segment[at], segment[at + 1 : at + 17]
        begin, at = at + 17, at + 17 + sum(counts)
        if head & 0xEC or not begin < at <= min(size, begin + 256):
            return 0
        # The code of all ones is none (T.81, C.2), so some of the space is always left.
        if sum(map(mul, counts, _CODE_SPACE)) >= 1 << 16:
            return 0
        if head < 16 and max(segment[begin:at]) > 15:  # a DC symbol is a number of bits
            return 0
        found |= 1 << (head >> 2) + (head & 3)
    return found


@lru_cache(maxsize=256)
def _scan_header(segment: bytes, components: bytes, encoding: str, huffman: int) -> bool:
    """Whether a first scan's header (T.81, B.2.3) is well-formed and has what it names."""
    count = segment[0] if segment else 0
    if len(segment) != 4 + 2 * count or not 1 <= count <= len(components):
        return False
    named = segment[1:-3:2]
    # In the frame's order, and none twice.
    if bytes(name for name in components if name in named) != named:
        return False
    progressive = encoding == "jpeg-progressive"
    start, stop, approximation = segment[-3:]
    if progressive:  # the DC coefficients come first
        usual = start == stop == 0 and approximation <= 13
    else:
        usual = (start, stop, approximation) == (0, 63, 0)
        # Motion JPEG leaves out the tables that everybody uses; libjpeg then supplies them.
        huffman = huffman or 0x33
    return usual and all(
        huffman & 0x0F & 1 << (table >> 4)
        and (progressive or huffman & 0xF0 & 0x10 << (table & 15))
        for table in segment[2:-3:2]
    )


_PILLOW_ENCODINGS = {
    "PNG": "png",
    "WEBP": "webp",
    "BMP": "bmp",
    "GIF": "gif",
    "TIFF": "tiff",
    "PPM": "ppm",
    "AVIF": "avif",
    "JPEG": "jpeg",
    "MPO": "jpeg",
}


#: Colour components by Pillow's mode. A palette holds colours; transparency is not counted
#: where there is no colour, since nothing reads it.
_CHANNELS = {"1": 1, "L": 1, "LA": 1, "I": 1, "F": 1, "I;16": 1, "RGBA": 4, "CMYK": 4}


def _probe_with_pillow(data: bytes) -> ImageInfo:
    try:
        # Not safe among threads, but only packing and verifying call this, and each of their
        # processes runs one task at a time.
        with warnings.catch_warnings():
            # Broken EXIF and the like: worth a warning to who looks at the image, not here.
            warnings.simplefilter("ignore")
            image = _opened(data)
            encoding = _PILLOW_ENCODINGS.get(image.format or "", "other")
            if encoding == "jpeg":
                encoding = _jpeg_encoding(data)
            info = ImageInfo(encoding, *image.size, _CHANNELS.get(image.mode, 3))
            if encoding == "png":
                image.verify()  # the checksums of all chunks, some of which decoding skips
                image = Image.open(io.BytesIO(data))
            image.load()
    except SampleError:
        raise
    except UnidentifiedImageError:
        raise SampleError(f"not an image (starts with {data[:8]!r})") from None
    except Exception as error:  # Pillow's decoders raise almost anything on broken bytes
        raise SampleError(f"cannot be decoded: {error or type(error).__name__}") from None
    return info


def _opened(data: bytes) -> ImageFile.ImageFile:
    """An image whose header Pillow has read.

    Raises:
        SampleError: Pillow would run a program to decode it, or open another file in it.
    """
    image = Image.open(io.BytesIO(data))
    if image.format == "EPS":
        raise SampleError(
            "is PostScript (EPS), a program that Ghostscript would run: it is never run",
            "Convert it to PNG or JPEG.",
        )
    if image.format == "IPTC" and any(
        tuple(tile.args or ())[:1] != ("raw",) for tile in image.tile
    ):
        # Of any kind and size: an EPS, too.
        raise SampleError(
            "is an IPTC file with an image file in it, which is not read",
            "Convert it to PNG or JPEG.",
        )
    if image.format in ("JPEG", "MPO"):
        # All bytes at once: libjpeg's arithmetic decoder cannot wait for more, as its others do.
        image.decodermaxblock = max(image.decodermaxblock, len(data))
    return image


def _jpeg_encoding(data: bytes) -> str:
    """The encoding of a JPEG that Pillow opens, which skips what is no marker, as this does."""
    at = 2
    while at + 4 <= len(data):
        marker = data[at + 1]
        if data[at] != 0xFF or marker == 0xFF:
            at += 1
        elif marker in (0, _TEM) or 0xD0 <= marker <= _SOI:  # without a length
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in _NOT_SOF:
            if marker in (_SOF9, _SOF10):
                return "jpeg-arithmetic"
            return _FRAMES.get(marker, "jpeg-other")
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return "jpeg-other"


#: Where Pillow begins to warn of decompression bombs (`PIL.Image.MAX_IMAGE_PIXELS`).
DEFAULT_MAX_PIXELS = 89_478_485
#: Most bytes of an image's file, which is read whole.
MOST_BYTES = 2 << 30
#: libjpeg's own progressive JPEGs have 10, or 6 if they are grey (jcparam.c).
DEFAULT_MAX_SCANS = 64

#: An image's tiles, transparency and thumbnail may have so many times its pixels.
_MOST_TILES = 16
_LARGER = 'Give ImageDataset a larger max_pixels, or leave such samples out: on_error="skip".'


@dataclass(frozen=True)
class Limits:
    """What an image may cost to decode, so that none holds up a batch for long.

    Attributes:
        max_pixels: Its width times its height; None for no limit.
        max_scans: Scans of a JPEG, each of which goes over all its pixels; None for no limit.
    """

    max_pixels: int | None = DEFAULT_MAX_PIXELS
    max_scans: int | None = DEFAULT_MAX_SCANS

    def check(self, data: bytes) -> None:
        """Raises unless an image is within the limits; decodes nothing.

        Args:
            data: The bytes of one image. Sizes that Pillow finds when it opens an image are not
                checked here.

        Raises:
            SampleError: It is not; the hint names the argument that would let it pass.
        """
        encoding, width, height, *_ = _native.probe(data)
        self.check_size(width, height)
        if encoding == "unknown" and self.max_pixels is not None:
            total = 0
            for size in decoded_sizes(data):
                self.check_size(*size)
                total += size[0] * size[1]
            if total > _MOST_TILES * self.max_pixels:
                raise SampleError(
                    f"has parts of {total} pixels in all, more than {_MOST_TILES} times "
                    f"max_pixels={self.max_pixels}",
                    _LARGER,
                )
        if encoding != "jpeg" or self.max_scans is None:
            return
        # Nearly always all that look like scans are few enough, and that takes microseconds.
        if data.count(b"\xff\xda") > self.max_scans and (scans := _scans(data)) > self.max_scans:
            raise SampleError(
                f"has {scans} scans, more than max_scans={self.max_scans}",
                'Give ImageDataset a larger max_scans, or leave such samples out: on_error="skip".',
            )

    def check_size(self, width: int, height: int) -> None:
        """Raises if an image is too large.

        Raises:
            SampleError: It is; the hint names the argument that would let it pass.
        """
        if self.max_pixels is not None and width * height > self.max_pixels:
            raise SampleError(
                f"has {width} x {height} pixels, more than max_pixels={self.max_pixels}",
                _LARGER,
            )


#: In a scan, what is neither data nor a restart marker.
_MARKER_IN_SCAN = re.compile(rb"\xff[^\0\xd0-\xd7\xff]", re.DOTALL)


def _scans(data: bytes) -> int:
    """How many scans a JPEG has; not those of a thumbnail in a segment of its own."""
    found, at = 0, 2
    while marker := _MARKER_IN_SCAN.search(data, at):
        at, kind = marker.end(), data[marker.start() + 1]
        if kind == _EOI:
            break
        found += kind == _SOS
        if kind != _TEM and kind != _SOI:
            at += max(2, int.from_bytes(data[at : at + 2], "big"))
    return found


#: Pillow's mode for each ``color`` of `ImageDataset`; None for the one that an image has.
COLORS = {"rgb": "RGB", "gray": "L", "rgba": "RGBA", "unchanged": None}


class Style(NamedTuple):
    """What images are brought to when they are opened.

    Attributes:
        color: A key of `COLORS`.
        exif_transpose: Whether they are turned as their EXIF orientation says.
    """

    color: str = "rgb"
    exif_transpose: bool = False

    def apply(self, image: Image.Image) -> Image.Image:
        """An image brought to it, loaded."""
        mode = COLORS[self.color]
        if mode in ("RGB", "L") and isinstance(image.info.get("transparency"), bytes):
            # A palette's alpha; converting would drop it with a warning.
            del image.info["transparency"]
        image.load()
        if self.exif_transpose:
            image = _upright(image)
        return image if mode is None else image.convert(mode)


#: What undoes each EXIF orientation, as in Pillow's `ImageOps.exif_transpose`.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _upright(image: Image.Image) -> Image.Image:
    """An image turned as its EXIF orientation says; EXIF data that cannot be read say nothing."""
    try:
        method = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # Pillow raises almost anything
        return image
    if method is None:
        return image
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # it writes the EXIF data anew, of which another tag is broken
        turned = image.transpose(method)
        turned.info.pop("exif", None)
        return turned


#: As torchvision's default loader has them.
RGB = Style()


def open_image(
    data: bytes,
    info: ImageInfo,
    limits: Limits | None = None,
    style: Style = RGB,
    decode: Callable[[bytes, Image.Image], Image.Image | None] = lambda data, image: None,
) -> Image.Image:
    """Decodes an image, to RGB unless told otherwise, as torchvision's default loader does.

    Safe to call from several threads.

    Args:
        data: The bytes of one image in ``info.encoding``.
        info: What the index says of it; only raw pixels need its size.
        limits: What it may cost; None for no limits but Pillow's own.
        style: What it is brought to.
        decode: Gives the pixels of an image that Pillow has opened, in RGB; None for those that
            Pillow is to decode.

    Returns:
        A loaded image, ``info.width`` x ``info.height`` unless it was turned. The EXIF data is in
        its ``info``, as Pillow has it.

    Raises:
        SampleError: The bytes cannot be decoded, or the image is beyond the limits.
    """
    try:
        if limits is not None and info.encoding != "raw":
            limits.check(data)
        if info.encoding == "raw":
            return style.apply(Image.frombytes("RGB", (info.width, info.height), data))
        # Pillow parses EXIF when it opens a JPEG, for the resolution, and warns where it is
        # broken. Filtering warnings is no way out: filters belong to the user's process, and
        # `warnings.catch_warnings` swaps them for all threads at once. So Pillow does not
        # get to see the EXIF data; who asks for it later still has it, warning and all.
        without, exif = _split_exif(data)
        image: Image.Image = _opened(without)
        if limits is not None:
            limits.check_size(*image.size)
        if exif:
            image.info["exif"] = exif
        if (decoded := decode(without, image)) is not None:
            decoded.info = image.info
            image = decoded
        return style.apply(image)
    except SampleError:
        raise
    except UnidentifiedImageError:
        raise SampleError(
            f"cannot be decoded: Pillow cannot identify an image in {len(data)} bytes"
        ) from None
    except Exception as error:
        raise SampleError(f"cannot be decoded: {error or type(error).__name__}") from None


def describe_kind(data: bytes) -> str:
    """What kind of image some bytes are, in words: "progressive arithmetic-coded JPEG of mode RGB".

    Raises:
        SampleError: They are no image.
    """
    try:
        image = Image.open(io.BytesIO(_split_exif(data)[0]))
    except Exception as error:
        raise SampleError(f"cannot be read: {error or type(error).__name__}") from None
    progressive = "progressive " if image.info.get("progressive") else ""
    arithmetic = "arithmetic-coded " if _native.probe(data)[6] else ""
    return f"{progressive}{arithmetic}{image.format} of mode {image.mode}"


def _split_exif(data: bytes) -> tuple[bytes, bytes]:
    """An image's bytes without EXIF, and the EXIF data as Pillow's ``info`` has it.

    Only where a JPEG has some; any other image comes back as it is.
    """
    if data[:2] != b"\xff\xd8":
        return data, b""
    kept, exif = [], b""
    start = at = 2
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != _SOS:
        if data[at + 1] == 0xFF:  # fill byte
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] == _APP1 and data.startswith(_EXIF, at + 4):
            exif += data[at + 4 + (len(_EXIF) if exif else 0) : end]
            kept.append(data[start:at])
            start = end
        at = end
    return b"".join((data[:2], *kept, data[start:])) if exif else data, exif

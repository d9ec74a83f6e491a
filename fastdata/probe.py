"""What an image is, from its bytes: encoding, size, channels, and whether it is whole.

JPEG, which is what training sets are made of, is walked marker by marker, without
decoding. Everything else is Pillow's business. What this module accepts is what Pillow
decodes: where the walk finds anything unusual, Pillow has the last word.
"""

from __future__ import annotations

import io
import warnings
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

from fastdata.errors import SampleError

#: The encodings an index may name, in the order of their codes (docs/formats/index.md).
ENCODINGS = (
    "raw",  # pixels, uint8, height x width x 3, RGB
    "jpeg",  # Huffman-coded, sequential, 8 bits a sample
    "jpeg-progressive",
    "jpeg-other",  # arithmetic-coded, 12 bits, lossless, hierarchical
    "png",
    "webp",
    "bmp",
    "gif",
    "tiff",
    "ppm",
    "other",  # anything else that Pillow opens
)

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
    "other": "img",
}

# Markers of ITU-T T.81, table B.1.
_SOF0, _SOF1, _SOF2 = 0xC0, 0xC1, 0xC2
_NOT_SOF = (0xC4, 0xC8, 0xCC)  # DHT, JPG, DAC: between the SOF markers, but none of them
_SOS, _EOI, _TEM = 0xDA, 0xD9, 0x01


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

    A JPEG is whole if its markers are well-formed and its end marker follows its last
    scan; the entropy-coded data between is not decoded (``fastdata verify`` does that).
    A PNG's chunk checksums are verified. Anything else is decoded.

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


def _probe_jpeg(data: bytes) -> ImageInfo | None:
    """Walks a JPEG's markers; None where there is anything for Pillow to judge."""
    size = len(data)
    info: ImageInfo | None = None
    at = 2
    while True:
        if at + 4 > size or data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker == _TEM or 0xD0 <= marker <= _EOI:
            return None
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if length < 2 or at + 2 + length > size:
            return None
        if 0xC0 <= marker <= 0xCF and marker not in _NOT_SOF:
            info = _frame_header(marker, data[at + 4 : at + 2 + length])
            if info is None:
                return None
        if marker == _SOS:
            break
        at += 2 + length
    # Inside a scan every FF byte is followed by 00 or a restart marker, so an end marker
    # after the first SOS is the real one, wherever thumbnails may have theirs.
    if info is None or data.rfind(b"\xff\xd9", at) < 0:
        return None
    return info


def _frame_header(marker: int, segment: bytes) -> ImageInfo | None:
    if len(segment) < 6:
        return None
    precision, channels = segment[0], segment[5]
    height = int.from_bytes(segment[1:3], "big")
    width = int.from_bytes(segment[3:5], "big")
    if not (width and height and channels) or len(segment) < 6 + 3 * channels:
        return None
    if precision != 8 or marker not in (_SOF0, _SOF1, _SOF2):
        return ImageInfo("jpeg-other", width, height, channels)
    encoding = "jpeg-progressive" if marker == _SOF2 else "jpeg"
    return ImageInfo(encoding, width, height, channels)


_PILLOW_ENCODINGS = {
    "PNG": "png",
    "WEBP": "webp",
    "BMP": "bmp",
    "GIF": "gif",
    "TIFF": "tiff",
    "PPM": "ppm",
    "JPEG": "jpeg",
    "MPO": "jpeg",
}


#: Colour components by Pillow's mode. A palette holds colours; transparency is not counted
#: where there is no colour, since nothing reads it.
_CHANNELS = {"1": 1, "L": 1, "LA": 1, "I": 1, "F": 1, "I;16": 1, "RGBA": 4, "CMYK": 4}


def _probe_with_pillow(data: bytes) -> ImageInfo:
    try:
        with warnings.catch_warnings():
            # Broken EXIF and the like: worth a warning to who looks at the image, not here.
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data))
            encoding = _PILLOW_ENCODINGS.get(image.format or "", "other")
            if encoding == "jpeg" and image.info.get("progressive"):
                encoding = "jpeg-progressive"
            info = ImageInfo(encoding, *image.size, _CHANNELS.get(image.mode, 3))
            if encoding == "png":
                image.verify()
            else:
                image.load()
    except UnidentifiedImageError:
        raise SampleError(f"not an image (starts with {data[:8]!r})") from None
    except Exception as error:  # Pillow's decoders raise almost anything on broken bytes
        raise SampleError(f"cannot be decoded: {error or type(error).__name__}") from None
    return info


def open_image(data: bytes, info: ImageInfo) -> Image.Image:
    """Decodes an image to RGB, as torchvision's default loader does.

    Args:
        data: The bytes of one image in ``info.encoding``.
        info: What the index says of it; only raw pixels need its size.

    Returns:
        A loaded image of mode RGB, ``info.width`` x ``info.height``. An EXIF orientation
        is not applied.

    Raises:
        SampleError: The bytes cannot be decoded.
    """
    try:
        if info.encoding == "raw":
            return Image.frombytes("RGB", (info.width, info.height), data)
        return Image.open(io.BytesIO(data)).convert("RGB")
    except Exception as error:
        raise SampleError(f"cannot be decoded: {error or type(error).__name__}") from None

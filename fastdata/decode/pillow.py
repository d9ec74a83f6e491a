"""Images that Pillow reads: their descriptions and their pixels.

`probe` describes an image and checks that it is whole. The core walks the headers of JPEGs. Pillow
decodes images with unusual headers, and its verdict counts. Behind the header of the first scan
only the end marker is checked; ``fastdata verify`` checks the rest.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from fastdata import _native
from fastdata.errors import SampleError

if TYPE_CHECKING:
    from fastdata.decode.limits import Limits


class ImageInfo(NamedTuple):
    """Encoding and size of an image.

    Attributes:
        encoding: One of `fastdata.storage.encodings.ENCODINGS`.
        width: Columns, in pixels, as stored (an EXIF orientation is not applied).
        height: Rows, in pixels, as stored.
        channels: Colour components: 1 grey, 3 colour (also by a palette), 4 CMYK or with alpha.
        orientation: EXIF orientation, 1 to 8.
    """

    encoding: str
    width: int
    height: int
    channels: int
    orientation: int = 1


def probe(data: bytes) -> ImageInfo:
    """Describe an encoded image, and check that it is whole.

    A JPEG is whole if Pillow decodes such headers and an end marker follows its first scan. The
    entropy-coded data between, and headers of later scans, are not decoded (``fastdata verify``
    does that). All other images are decoded; the checksums of a PNG's chunks are verified, too.

    Raises:
        SampleError: The bytes are empty, not an image, or not all of one.
    """
    if not data:
        raise SampleError("the file is empty (0 bytes)")
    return _probe_header(data) or _probe_with_pillow(data)


def _probe_header(data: bytes) -> ImageInfo | None:
    """Describe a JPEG by its header; return None if Pillow must decide."""
    encoding, width, height, components, _, _, orientation, *_ = _native.probe(data)
    if encoding not in ("jpeg", "jpeg-progressive"):
        return None
    # Where Image.open raises DecompressionBombError; users may change or lift the limit.
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > 2 * limit:
        return None
    if not _native.is_plain_jpeg(data) or _find_segments(data, _APP2, b"MPF\0"):
        return None
    if not orientation:  # unusual EXIF data, of which Pillow warns
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            orientation = _orientation(_without_exif(data))
    return ImageInfo(encoding, width, height, components, orientation)


_APP1, _APP2 = 0xE1, 0xE2
_EXIF = b"Exif\0\0"
_SOI, _EOI = b"\xff\xd8", b"\xff\xd9"


def _find_segments(jpeg: bytes, marker: int, name: bytes) -> list[tuple[int, int]]:
    """Return (begin, end) of each segment with this marker whose data begin with this name."""
    return [
        (begin, end)
        for each, begin, end in _native.jpeg_segments(jpeg)
        if each == marker and jpeg.startswith(name, begin + 4)
    ]


_PILLOW_ENCODINGS = {
    **{name.upper(): name for name in ("png", "webp", "bmp", "gif", "tiff", "ppm", "avif", "jpeg")},
    "MPO": "jpeg",
    "HEIF": "heic",
    "JXL": "jxl",
}
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def kind_of(data: bytes) -> str:
    """Return an image's kind by its first bytes: a name of `fastdata.storage.encodings`."""
    if (kind := _native.probe(data)[0]) != "unknown":
        return kind
    if data[4:8] == b"ftyp":
        brands = data[8 : int.from_bytes(data[:4], "big")]
        if b"avif" in brands or b"avis" in brands:
            return "avif"
        return "heic" if data[8:12] in _HEIC_BRANDS else "other"
    if data[:2] == b"\xff\x0a" or data[:12] == b"\0\0\0\x0cJXL \r\n\x87\n":
        return "jxl"
    if data[:4] in (b"II*\0", b"MM\0*"):
        return "tiff"
    return "ppm" if re.match(rb"P[1-6f]\s", data) else "other"


#: Kinds that Pillow opens by a plugin that may be missing, Pillow's own of 11.3 or another
#: package's: in words, their module, Pillow's name.
_PLUGINS = {"avif": ("AVIF", "PIL._avif", "AVIF"), "heic": ("HEIC", "pillow_heif", "HEIF")}


def missing_plugin(kind: str) -> str:
    """Say which plugin Pillow lacks for a kind of image; "" for none. Registers the plugin."""
    name, module, format_name = _PLUGINS.get(kind, ("", "", ""))
    Image.init()
    if not module or (format_name in Image.OPEN and kind != "avif"):
        return ""
    reason = _import_plugin(module)
    return reason and f"is a {name} image, which {module} decodes, and that {reason}"


@cache
def _import_plugin(module: str) -> str:
    """Import and register a plugin; return the reason if that fails, else ""."""
    try:
        plugin = import_module(module)
    except ModuleNotFoundError as error:
        return "is not installed" if error.name == module else f"cannot be imported: {error}"
    except Exception as error:  # a library that is broken may raise anything
        return f"cannot be imported: {error}"
    if module == "pillow_heif":
        plugin.register_heif_opener()
    return ""


#: Colour components by Pillow's mode. A palette holds colours; transparency is not counted
#: where there is no colour, since nothing reads it.
_CHANNELS = {"1": 1, "L": 1, "LA": 1, "I": 1, "F": 1, "I;16": 1, "RGBA": 4, "CMYK": 4}


@contextmanager
def decoding(unidentified: str = "", passing: type[Exception] = SampleError) -> Iterator[None]:
    """Turn Pillow's exceptions, almost any on broken bytes, into SampleErrors, but ``passing``.

    ``unidentified``: the message for bytes that Pillow takes for no image.
    """
    try:
        yield
    except (SampleError, passing):
        raise
    except Exception as error:
        words = f"cannot be decoded: {error or type(error).__name__}"
        if isinstance(error, UnidentifiedImageError):
            words = unidentified or words
        raise SampleError(words) from None


def _probe_with_pillow(data: bytes) -> ImageInfo:
    # Warnings of broken EXIF and the like are for users of the image. Ignoring them is not safe
    # among threads, but only packing and verifying call this, one task at a time in a process.
    with decoding(f"not an image (starts with {data[:8]!r})"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = _opened(data)
        encoding = _PILLOW_ENCODINGS.get(image.format or "", "other")
        if encoding == "jpeg":
            encoding = _native.probe(data)[0]
        info = ImageInfo(encoding, *image.size, _CHANNELS.get(image.mode, 3))
        if encoding == "png":
            image.verify()  # the checksums of all chunks, some of which decoding skips
            image = Image.open(io.BytesIO(data))
        image.load()  # which turns a TIFF, and finds the EXIF data behind the pixels of a PNG
        return info._replace(orientation=_orientation(image))


def _opened(data: bytes) -> ImageFile.ImageFile:
    """Open an image unless Pillow would run a program to decode it, or open another file in it."""
    try:
        image = Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        if missing := missing_plugin(kind_of(data)):
            raise SampleError(missing, 'pip install "fastdata-torch[codecs]"') from None
        image = Image.open(io.BytesIO(data))
    if image.format == "EPS":
        raise SampleError(
            "is PostScript (EPS), a program that Ghostscript would run: it is never run",
            "Convert it to PNG or JPEG.",
        )
    if image.format == "IPTC" and any(
        tuple(tile.args or ())[:1] != ("raw",) for tile in image.tile
    ):
        # It may have any kind and size: an EPS, too.
        raise SampleError(
            "is an IPTC file with an image file in it, which is not read",
            "Convert it to PNG or JPEG.",
        )
    if image.format in ("JPEG", "MPO"):
        # All bytes at once: libjpeg's arithmetic decoder cannot wait for more, as its others do.
        image.decodermaxblock = max(image.decodermaxblock, len(data))
    return image


#: Pillow's mode for each ``color`` of `ImageDataset`; None for the one that an image has.
COLORS = {"rgb": "RGB", "gray": "L", "rgba": "RGBA", "unchanged": None}


class Style(NamedTuple):
    """Colour mode, a key of `COLORS`, and whether images are turned as EXIF says."""

    color: str = "rgb"
    exif_transpose: bool = False

    def apply(self, image: Image.Image) -> Image.Image:
        """Load an image and convert it."""
        mode = COLORS[self.color]
        if mode in ("RGB", "L") and isinstance(image.info.get("transparency"), bytes):
            # A palette's alpha; converting would drop it with a warning.
            del image.info["transparency"]
        image.load()
        if self.exif_transpose:
            image = _upright(image)
        return image if mode is None else image.convert(mode)


#: Transposition that undoes each EXIF orientation, as in Pillow's `ImageOps.exif_transpose`.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _orientation(image: Image.Image) -> int:
    """Return a loaded image's EXIF orientation; 1 if its EXIF data cannot be read."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        return int(orientation) if orientation in _UPRIGHT else 1
    except Exception:  # Pillow raises almost anything
        return 1


def _upright(image: Image.Image) -> Image.Image:
    """Turn an image as its EXIF orientation says; ignore EXIF data that cannot be read."""
    orientation = _orientation(image)
    if orientation == 1:
        return image
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # it rewrites the EXIF data, and another tag is broken
        turned = image.transpose(_UPRIGHT[orientation])
        turned.info.pop("exif", None)
        return turned


#: Styles of torchvision's default loader, and of masks, whose pixels are numbers.
RGB, AS_STORED = Style(), Style("unchanged")


def open_image(
    data: bytes,
    info: ImageInfo,
    limits: Limits | None = None,
    style: Style = RGB,
) -> Image.Image:
    """Decode an image, by default to RGB as torchvision's default loader does.

    Safe to call from several threads. Only raw pixels need the size in ``info``. The EXIF data is
    in the result's ``info``, as Pillow has it.

    Raises:
        SampleError: The bytes cannot be decoded, or the image is beyond the limits.
    """
    unidentified = f"cannot be decoded: Pillow cannot identify an image in {len(data)} bytes"
    with decoding(unidentified):
        if limits is not None and info.encoding != "raw":
            limits.check(data)
        if info.encoding == "raw":
            image = Image.frombytes("RGB", (info.width, info.height), data)
            image.getexif()[ExifTags.Base.Orientation] = info.orientation
            return style.apply(image)
        image = _without_exif(data)
        if limits is not None:
            limits.check_size(*image.size)
        if style.color in ("gray", "rgba") and data[:2] == _SOI and data[-2:] == _EOI:
            image = _by_core(data, image)
        return style.apply(image)


def _without_exif(data: bytes) -> Image.Image:
    """Open an image.

    Pillow parses EXIF for the resolution when it opens a JPEG, and warns if it is broken. Warnings
    cannot be filtered here: `warnings.catch_warnings` swaps the filters of all threads. So Pillow
    opens the image without EXIF data, and gets them afterwards.
    """
    without, exif = _split_exif(data)
    image = _opened(without)
    if exif:
        image.info["exif"] = exif
    return image


def _by_core(data: bytes, image: Image.Image) -> Image.Image:
    """Decode a JPEG by the core, in three quarters of Pillow's time; return it if that declines."""
    out = np.empty((1, image.height, image.width, 3), np.uint8)
    job = _native.DecodeJob([data], [_native.Rendering(out)])
    job.run()
    if job.failures():
        return image
    decoded = Image.fromarray(out[0])
    decoded.info = image.info
    return decoded


def describe_kind(data: bytes) -> str:
    """Name the kind of an image in words: "progressive arithmetic-coded JPEG of mode RGB"."""
    try:
        image = Image.open(io.BytesIO(_split_exif(data)[0]))
    except Exception as error:
        raise SampleError(f"cannot be read: {error or type(error).__name__}") from None
    progressive = "progressive " if image.info.get("progressive") else ""
    arithmetic = "arithmetic-coded " if _native.probe(data)[0] == "jpeg-arithmetic" else ""
    return f"{progressive}{arithmetic}{image.format} of mode {image.mode}"


def _split_exif(data: bytes) -> tuple[bytes, bytes]:
    """Return a JPEG's bytes without EXIF, and the EXIF data as Pillow's ``info`` has it."""
    if data[:2] != _SOI:
        return data, b""
    kept, exif, start = [], b"", 0
    for begin, end in _find_segments(data, _APP1, _EXIF):
        exif += data[begin + 4 + (len(_EXIF) if exif else 0) : end]
        kept.append(data[start:begin])
        start = end
    return b"".join((*kept, data[start:])) if exif else data, exif

"""The codec table: decoders of images other than JPEGs.

`CODECS` has one entry per kind: a function that opens it, the library that decodes it without the
GIL, and Pillow's name for it. Pillow decodes whatever a library declines, or does not decode to the
pixels of Pillow's ``convert("RGB")``. A new kind is a function and an entry.

The core crops, resizes and normalises the pixels of every decoder.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native
from fastdata.decode import pillow as by_pillow
from fastdata.decode.decoders import NATIVE, PILLOW, LeftToPillow
from fastdata.decode.limits import Limits, boxes
from fastdata.decode.pillow import RGB, ImageInfo, Style
from fastdata.decode.png import open_png
from fastdata.errors import SampleError
from fastdata.storage.encodings import NATIVE_JPEGS
from fastdata.text import human_size

#: (left, upper, right, lower), in pixels.
Box = tuple[int, int, int, int]
Pixels = npt.NDArray[Any]


class Reader(Protocol):
    """Image whose header was read."""

    @property
    def width(self) -> int:
        """Columns."""

    @property
    def height(self) -> int:
        """Rows."""

    def decode(self, box: Box) -> Pixels:
        """Return at least the rows above the box's lower edge; only the box must be right."""


@dataclass(frozen=True)
class Codec:
    """Decoder of one kind of image.

    Attributes:
        name: The kind, in words.
        decoder: Name of the decoder, as in `Encoded.decoder`.
        open: Reads the header of (bytes, whether a checksum vouches for them); raises
            `LeftToPillow` or anything else to leave the image to Pillow.
        module: The module that ``open`` needs, if any.
        format: Pillow's name of the kind.
    """

    name: str
    decoder: str
    open: Callable[[bytes, bool], Reader]
    module: str = ""
    format: str = ""

    @property
    def missing(self) -> str:
        """Reason why its module cannot be used; "" if it can."""
        return _missing(self.module)

    @property
    def installed(self) -> bool:
        """Whether its module can be imported."""
        return not self.missing

    @property
    def pillow_opens(self) -> bool:
        """Whether Pillow has a plugin for it, its own or a registered one."""
        Image.init()
        return self.format in Image.OPEN


@cache
def _missing(module: str) -> str:
    try:
        if module:
            import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            return "is not installed"
        return f"cannot be imported: {error}"
    except Exception as error:  # a library that is broken may raise anything
        return f"cannot be imported: {error}"
    return ""


class _Whole(NamedTuple):
    """Image that its library decodes as a whole."""

    width: int
    height: int
    function: Callable[[], Any]

    def stored(self) -> Pixels:
        """Return all pixels: (height, width) grey, or 2 to 4 channels, the last one alpha."""
        pixels: npt.NDArray[Any] = self.function()
        shape = pixels.shape
        usual = shape[:2] == (self.height, self.width) and (len(shape) == 2 or shape[2:] < (5,))
        if pixels.dtype != np.uint8 or len(shape) > 3 or not usual:
            raise LeftToPillow(f"its pixels are {pixels.dtype}, of shape {shape}")
        return pixels

    def decode(self, box: Box) -> Pixels:
        pixels = self.stored()
        if pixels.ndim == 3:
            pixels = pixels[..., 0] if pixels.shape[2] < 3 else pixels[..., :3]
        return np.ascontiguousarray(pixels)


def _open_heic(data: bytes, trusted: bool) -> Reader:
    import pillow_heif

    image = pillow_heif.open_heif(data)
    width, height = image.size
    return _Whole(width, height, lambda: np.asarray(image))


def _open_jxl(data: bytes, trusted: bool) -> Reader:
    import imagecodecs

    size = _size_of_jxl(data)
    return _Whole(*size, lambda: imagecodecs.jpegxl_decode(data, numthreads=1))


class _Rows(NamedTuple):
    """Image whose rows lie in its file as they are: a view of the file for each of its strips."""

    width: int
    height: int
    strips: list[Pixels]

    def decode(self, box: Box) -> Pixels:
        """Return the rows above the box's lower edge."""
        channels = self.strips[0].shape[2]
        out = np.empty((box[3], self.width, channels), np.uint8)
        at = 0
        for strip in self.strips:
            rows = strip[: max(0, box[3] - at)]
            for channel in range(channels):  # much faster than all at once
                out[at : at + len(rows), :, channel] = rows[..., channel]
            at += len(rows)
        return out if channels > 1 else out[..., 0]


_CHANNELS = {"L": 1, "RGB": 3, "BGR": 3}


def _open_rows(data: bytes, trusted: bool) -> Reader:
    """Open a BMP or TIFF of 8 bits that is not compressed, as Pillow describes it."""
    image = Image.open(io.BytesIO(data))
    if getattr(image, "tag_v2", {}).get(274, 1) != 1:
        raise LeftToPillow("its orientation is not 1")
    strips, bottom = [], 0
    tiles: list[Any] = list(image.tile)
    for decoder, (left, top, right, lower), offset, arguments in tiles:
        if decoder != "raw":
            raise LeftToPillow("its pixels are compressed")
        with_defaults: Any = [*arguments, 0, 1]
        kind, stride, direction, *_ = with_defaults
        if kind not in _CHANNELS:
            raise LeftToPillow(f"its pixels are stored as {kind}, not as 8 bits of grey or RGB")
        if (left, top, right) != (0, bottom, image.width) or offset < 0:
            raise LeftToPillow("its pixels lie in tiles")
        channels = _CHANNELS[kind]
        shape = lower - top, image.width, channels
        steps = stride or image.width * channels, channels, 1
        if steps[0] < image.width * channels:
            raise LeftToPillow("its rows overlap")
        # NumPy raises where the file is too short.
        strip: Pixels = np.ndarray(shape, np.uint8, data, offset, steps)
        strip = strip[::-1] if direction < 0 else strip
        strips.append(strip[..., ::-1] if kind == "BGR" else strip)
        bottom = lower
    if bottom != image.height or image.mode not in ("L", "RGB"):
        raise LeftToPillow("parts of it are missing")
    return _Rows(*image.size, strips)


def _open_by_pillow(data: bytes, trusted: bool) -> Reader:
    raise LeftToPillow("no decoder is faster")


#: The table. Kinds are named as in the index where that has a name for them.
CODECS: dict[str, Codec] = {
    "png": Codec("PNG", NATIVE, open_png, format="PNG"),
    "avif": Codec("AVIF", PILLOW, _open_by_pillow, "PIL._avif", "AVIF"),
    "heic": Codec("HEIC", "pillow_heif", _open_heic, "pillow_heif", "HEIF"),
    "jxl": Codec("JPEG XL", "imagecodecs", _open_jxl, "imagecodecs", "JXL"),
    "tiff": Codec("TIFF", NATIVE, _open_rows, format="TIFF"),
    "bmp": Codec("BMP", NATIVE, _open_rows, format="BMP"),
}

#: The same for pixels that are numbers; see `Encoded`.
_NUMBER_CODECS = {
    "png": Codec("PNG", NATIVE, partial(open_png, numbers=True), format="PNG"),
}

#: The extra that installs all of their libraries.
EXTRA = 'pip install "fastdata-torch[codecs]"'

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


#: Beginnings of data with an orientation, by kind; `_open_rows` reads TIFF's own tag.
_EXIF_MARKS: dict[str, tuple[bytes, ...]] = {
    "png": (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp"),
    "tiff": (b"tiff:Orientation",),
    "bmp": (),
}


def may_be_turned(kind: str, data: bytes) -> bool:
    """Return whether an image of a kind that Pillow opens may have an EXIF orientation."""
    return kind not in _EXIF_MARKS or any(mark in data for mark in _EXIF_MARKS[kind])


def decoder_of(kind: str) -> str:
    """Return the decoder of a kind of image on this machine; "" for none."""
    if kind in (*NATIVE_JPEGS, "raw"):
        return NATIVE
    codec = CODECS.get(kind)
    if codec is None:
        return PILLOW
    if codec.installed:
        return codec.decoder
    return PILLOW if codec.pillow_opens else ""


class Foreseen(NamedTuple):
    """Kind and decoder of an image ("" for none), known without decoding it.

    ``sure``: the header confirms it; a library may leave some images of a kind to Pillow.
    """

    kind: str
    decoder: str
    sure: bool = True


def foresee(data: bytes, size: int, limits: Limits, **options: Any) -> Foreseen:
    """Return an image's kind and decoder, by its header.

    ``data``: its first bytes, or all ``size`` of them; ``options`` of `Encoded`.
    """
    kind, whole = kind_of(data), len(data) >= size
    if kind.startswith("jpeg"):
        *_, code, _, _ = _native.probe(data)
        if code == "truncated" and not whole:
            return Foreseen(kind, NATIVE, sure=False)
        return Foreseen(kind, NATIVE if code == "ok" else PILLOW)
    if not whole:
        return Foreseen(kind, decoder_of(kind), sure=False)
    try:
        return Foreseen(kind, Encoded(data, limits=limits, **options).decoder)
    except SampleError:
        return Foreseen(kind, "")


#: Rows that Pillow converts and copies at a time: all of an image in RGB takes four bytes a pixel.
_BAND = 512


def _as_array(image: Image.Image, rows: int) -> Pixels:
    """Return the first rows of an image of any mode, as RGB."""
    out = np.empty((rows, image.width, 3), np.uint8)
    for top in range(0, rows, _BAND):
        band = 0, top, image.width, min(top + _BAND, rows)
        with by_pillow.decoding(passing=MemoryError):  # Pillow cannot convert every mode
            out[top : band[3]] = np.asarray(RGB.apply(image.crop(band)))
    return out


def _as_numbers(image: Image.Image, rows: int) -> Pixels:
    """Return the first rows of an image of any mode, as NumPy has them."""
    pixels: Pixels = np.asarray(image)[:rows]
    return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)


class Encoded:
    """Encoded image: its size from the header, then its pixels. Not thread-safe.

    Args:
        data: Its bytes.
        info: Its description; only raw pixels need it.
        limits: Limits of its cost; None for Pillow's own alone.
        trusted: Whether a checksum vouches for the bytes, so that decoding may stop early.
        numbers: Whether pixels are numbers of classes or objects, rather than colours:
            ``np.array(Image.open(file))``, so that palettes' indices and 16 bits are kept.
        upright: Whether the image is turned as its EXIF orientation says.

    Attributes:
        kind: Result of `kind_of`, or ``raw``.
        decoder: Its decoder: ``native``, a library's name, or ``Pillow``.
        declined: Why the codec of its kind leaves it to Pillow, in a clause; "" if it does not.
        width: Columns, in pixels.
        height: Rows, in pixels.

    Raises:
        SampleError: It cannot be decoded, or is beyond the limits; or its decoder is not
            installed.
    """

    def __init__(
        self,
        data: bytes,
        info: ImageInfo | None = None,
        limits: Limits | None = None,
        *,
        trusted: bool = False,
        numbers: bool = False,
        upright: bool = False,
    ) -> None:
        self._style = Style("unchanged", upright)
        self._data, self._limits, self._numbers = data, limits, numbers
        self._info = info or ImageInfo("", 0, 0, 3)
        self.kind = "raw" if self._info.encoding == "raw" else kind_of(data)
        self._codec = (_NUMBER_CODECS if numbers else CODECS).get(self.kind)
        self._image: Image.Image | None = None
        self._reader: Reader | None = None
        pillow_opens = self._codec is not None and self._codec.pillow_opens
        self.declined = "" if self._codec else "no other decoder is known"
        if upright and pillow_opens and may_be_turned(self.kind, data):
            self._codec = None
            self.declined = "its EXIF data may turn it, as exif_transpose=True asks"
        if self._codec is not None and self._codec.installed:
            if limits is not None:
                limits.check(data)  # before a library sees it
            with self._or_pillow(self._codec):
                self._reader = self._codec.open(data, trusted)
                self.decoder = self._codec.decoder
        if self._reader is None:
            self._open_by_pillow()
            return
        self.width, self.height = self._reader.width, self._reader.height
        if limits is not None:
            limits.check_size(self.width, self.height)

    @contextmanager
    def _or_pillow(self, codec: Codec) -> Iterator[None]:
        """Leave the image to Pillow if its codec raises; raise SampleError if Pillow lacks it."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:  # a library may raise anything
            self._reader, self.declined = None, str(error).strip()
            if not codec.pillow_opens:
                raise SampleError(
                    f"cannot be decoded: {codec.decoder} does not decode this {codec.name} image: "
                    f"{self.declined}"
                ) from None

    def _open_by_pillow(self) -> None:
        codec = self._codec
        if codec is not None and not codec.installed and not codec.pillow_opens:
            raise SampleError(
                f"is a {codec.name} image, which {codec.decoder} decodes, and that {codec.missing}",
                f"{EXTRA}",
            )
        self._image = by_pillow.open_image(self._data, self._info, self._limits, self._style)
        self.width, self.height = self._image.size
        self.decoder = PILLOW

    def pixels(self, box: Box | None = None) -> Pixels:
        """Return its pixels: uint8, (rows, width, 3) RGB, or (rows, width) if it is grey.

        Numbers have Pillow's dtype and channels. Only pixels in the ``box`` are right: rows below
        it may be missing.
        """
        if self._reader is not None and self._codec is not None:
            with self._or_pillow(self._codec):
                return self._reader.decode(box or (0, 0, self.width, self.height))
            size = self.width, self.height
            self._open_by_pillow()
            if (self.width, self.height) != size:
                raise SampleError(
                    f"cannot be decoded: it is {human_size(*size)} by its header, "
                    f"and {human_size(self.width, self.height)} as Pillow decodes it"
                )
        assert self._image is not None
        rows = self.height if box is None else box[3]
        return (_as_numbers if self._numbers else _as_array)(self._image, rows)

    def image(self) -> Image.Image:
        """Return an image of a kind that Pillow lacks in its stored mode: L, LA, RGB or RGBA."""
        assert isinstance(self._reader, _Whole)
        assert self._codec is not None
        with self._or_pillow(self._codec):
            return Image.fromarray(self._reader.stored())
        raise AssertionError(f"Pillow opens {self._codec.name}")


def open_image(
    data: bytes, info: ImageInfo, limits: Limits | None = None, style: Style = RGB
) -> Image.Image:
    """Decode an image as `fastdata.decode.pillow.open_image`; also kinds that Pillow lacks."""
    known = info.encoding not in ("", "other")
    codec = CODECS.get(info.encoding if known else kind_of(data))
    if codec is None or codec.pillow_opens:
        return by_pillow.open_image(data, info, limits, style)
    return style.apply(Encoded(data, info, limits).image())


def probe(data: bytes) -> ImageInfo:
    """Describe an image as `fastdata.decode.pillow.probe`; also kinds that Pillow lacks."""
    kind = kind_of(data)
    codec = CODECS.get(kind)
    if codec is None or codec.pillow_opens:
        return by_pillow.probe(data)
    image = Encoded(data)
    channels = 1 if image.pixels().ndim == 2 else 3
    return ImageInfo(kind, image.width, image.height, channels)


_JXL_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))


def _size_of_jxl(data: bytes) -> tuple[int, int]:
    """Return (width, height) of a JPEG XL, turned as libjxl turns it (ISO/IEC 18181-1)."""
    begin = 0
    if data[:2] != b"\xff\x0a":
        # The codestream is one box, or several that each begin with a number of 4 bytes.
        behind = {b"jxlc": 0, b"jxlp": 4}
        begins = (at + behind[kind] for kind, at, _ in boxes(data) if kind in behind)
        begin = next(begins, len(data))
    if data[begin : begin + 2] != b"\xff\x0a":
        raise LeftToPillow("no codestream")
    bits = int.from_bytes(data[begin + 2 : begin + 16], "little")

    def take(count: int) -> int:
        nonlocal bits
        value = bits & ((1 << count) - 1)
        bits >>= count
        return value

    small = take(1)

    def side() -> int:
        return 8 * (take(5) + 1) if small else take((9, 13, 18, 30)[take(2)]) + 1

    height = side()
    ratio = take(3)
    width = side() if not ratio else height * _JXL_RATIOS[ratio - 1][0] // _JXL_RATIOS[ratio - 1][1]
    all_default = take(1)
    extra_fields = not all_default and take(1)
    turned = extra_fields and take(3) > 3  # EXIF's orientation, less 1
    return (height, width) if turned else (width, height)

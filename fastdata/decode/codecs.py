"""Images other than the core's JPEGs: PNGs by the core where it has Pillow's pixels, or by Pillow.

The core crops, resizes and normalises the pixels of either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native
from fastdata.decode.decoders import NATIVE, PILLOW
from fastdata.decode.limits import Limits
from fastdata.decode.pillow import (
    RGB,
    ImageInfo,
    Style,
    decoding,
    kind_of,
    open_image,
)
from fastdata.decode.png import PngFile, open_png
from fastdata.errors import SampleError
from fastdata.text import human_size

#: (left, upper, right, lower), in pixels.
Box = tuple[int, int, int, int]
Pixels = npt.NDArray[Any]

#: Beginnings of data with an orientation in a PNG.
_EXIF_MARKS = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
_MAY_TURN = "its EXIF or XMP data may turn it, as exif_transpose=True asks"

#: Rows that Pillow converts and copies at a time: all of an image in RGB takes four bytes a pixel.
_BAND = 512


def _as_array(image: Image.Image, rows: int) -> Pixels:
    """Return the first rows of an image of any mode, as RGB."""
    out = np.empty((rows, image.width, 3), np.uint8)
    for top in range(0, rows, _BAND):
        band = 0, top, image.width, min(top + _BAND, rows)
        with decoding(passing=MemoryError):  # Pillow cannot convert every mode
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
        decoder: Its decoder: ``native`` or ``Pillow``.
        declined: Why the core leaves it to Pillow, in a clause; "" if it does not.
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
        self._png: PngFile | None = None
        self._image: Image.Image | None = None
        self.declined = ""
        if self.kind.startswith("jpeg"):
            *_, orientation, _, self.declined, _ = _native.probe(data)
            if upright and not orientation:
                self.declined = _MAY_TURN
        elif self.kind != "png":
            self.declined = "no other decoder is known"
        elif upright and any(mark in data for mark in _EXIF_MARKS):
            self.declined = _MAY_TURN
        else:
            if limits is not None:
                limits.check(data)
            with self._or_pillow():
                self._png = open_png(data, trusted, numbers)
        if self._png is None:
            self._open_by_pillow()
            return
        self.decoder, self.width, self.height = NATIVE, self._png.width, self._png.height
        if limits is not None:
            limits.check_size(self.width, self.height)

    @contextmanager
    def _or_pillow(self) -> Iterator[None]:
        """Leave the image to Pillow if the core does not decode it."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:  # Pillow and libraries that inflate may raise anything
            self._png, self.declined = None, str(error).strip()

    def _open_by_pillow(self) -> None:
        self._image = open_image(self._data, self._info, self._limits, self._style)
        self.width, self.height = self._image.size
        self.decoder = PILLOW

    def pixels(self, box: Box | None = None) -> Pixels:
        """Return its pixels: uint8, (rows, width, 3) RGB, or (rows, width) if it is grey.

        Numbers have Pillow's dtype and channels. Only pixels in the ``box`` are right: rows below
        it may be missing.
        """
        if self._png is not None:
            with self._or_pillow():
                return self._png.decode(box or (0, 0, self.width, self.height))
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

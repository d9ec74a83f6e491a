"""Limits of what an image may cost, checked without decoding it."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata import _native
from fastdata.decode.sizes import decoded_sizes
from fastdata.errors import SampleError

#: Where Pillow begins to warn of decompression bombs (`PIL.Image.MAX_IMAGE_PIXELS`).
DEFAULT_MAX_PIXELS = 89_478_485
#: libjpeg's own progressive JPEGs have 10, or 6 if they are grey (jcparam.c).
DEFAULT_MAX_SCANS = 64

#: Most pixels of an image's tiles, transparency and thumbnail, as a multiple of its own.
_MOST_TILES = 16
_LARGER = 'Give ImageDataset a larger max_pixels, or leave such samples out: on_error="skip".'


@dataclass(frozen=True)
class Limits:
    """Limits of what an image may cost to decode, so that none holds up a batch for long.

    Attributes:
        max_pixels: Its width times its height; None for no limit.
        max_scans: Scans of a JPEG, each of which goes over all its pixels; None for no limit.
    """

    max_pixels: int | None = DEFAULT_MAX_PIXELS
    max_scans: int | None = DEFAULT_MAX_SCANS

    def check(self, data: bytes) -> None:
        """Raise unless an image is within the limits; decode nothing.

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
        if not encoding.startswith("jpeg") or self.max_scans is None:
            return
        scans = _native.count_scans(data)
        if scans > self.max_scans:
            raise SampleError(
                f"has {scans} scans, more than max_scans={self.max_scans}",
                'Give ImageDataset a larger max_scans, or leave such samples out: on_error="skip".',
            )

    def check_size(self, width: int, height: int) -> None:
        """Raise if an image is too large.

        Raises:
            SampleError: It is; the hint names the argument that would let it pass.
        """
        if self.max_pixels is not None and width * height > self.max_pixels:
            raise SampleError(
                f"has {width} x {height} pixels, more than max_pixels={self.max_pixels}",
                _LARGER,
            )

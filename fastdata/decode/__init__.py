"""Decoding images: JPEG regions from seek points, resampling.

Baseline and progressive JPEGs are decoded by the native core, to the same bytes
as libjpeg-turbo's accurate decoder (and therefore Pillow); of baseline ones only what a region
needs is touched. All else (PNG, WebP, CMYK, arithmetic coding, ...) is decoded whole
by `fastdata.decode.codecs`, then cropped::

    pixels = decode_jpeg(data)                                  # (H, W, 3) uint8
    crop = decode_jpeg(data, region=(40, 30, 340, 330), size=(224, 224))
    table = seek_points(data)                                   # once
    crop = decode_jpeg(data, region=(40, 30, 340, 330), seek_points=table)

Resampling equals Pillow's ``crop(region).resize(size, filter)`` within 1 level.
"""

from fastdata.decode.engine import decode_jpeg
from fastdata.decode.jpeg import (
    DecodeError,
    JpegInfo,
    jpeg_info,
    seek_points,
    seek_points_many,
)
from fastdata.decode.limits import Limits

__all__ = [
    "DecodeError",
    "JpegInfo",
    "Limits",
    "decode_jpeg",
    "jpeg_info",
    "seek_points",
    "seek_points_many",
]

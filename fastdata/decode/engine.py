"""Decoding of single images by the native core."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.decode.codecs import Encoded
from fastdata.decode.fallback import FALLBACKS, FallbackStep, Verdict
from fastdata.decode.jpeg import DecodeError, jpeg_info
from fastdata.errors import SampleError
from fastdata.text import human_size

Region: TypeAlias = tuple[int, int, int, int]
_Array: TypeAlias = npt.NDArray[Any]


def decode_jpeg(
    data: Any,
    region: Region | None = None,
    size: tuple[int, int] | None = None,
    *,
    seek_points: Any | None = None,
    flip: bool = False,
    filter: str = "bilinear",
    fallback: str = "unsupported",
) -> _Array:
    """Decode one image, or a region of it, and resize it.

    Args:
        data: the encoded image (bytes or anything with the buffer protocol), or its pixels:
            a uint8 array, (H, W) or (H, W, 3).
        region: (left, upper, right, lower) in pixels, as Pillow's ``crop``; default: all.
        size: (width, height) of the result, as Pillow's ``resize``; default: the region's.
        seek_points: the image's table from :func:`seek_points`.
        flip: mirror left to right, after cropping.
        filter: ``bilinear``, ``nearest``, ``bicubic`` or ``lanczos``, as Pillow's; all but nearest
            antialias. ``nearest_floor``: as torch's ``interpolate(mode="nearest")``.
        fallback: what Pillow decodes: ``unsupported``, images of other kinds; ``always``,
            damaged ones too, as well as it can, which is what loaders do; ``never``.

    Returns:
        uint8, (height, width, 3), RGB, 0 to 255. Grey images have three equal channels.

    Raises:
        DecodeError: the image is damaged; the seek points are not this image's.
        ValueError: a region outside the image, or an argument out of range.
    """
    if fallback not in FALLBACKS:
        raise ValueError(f"fallback must be one of {', '.join(FALLBACKS)}, not {fallback!r}")
    if filter not in _native.FILTERS:
        names = ", ".join(_native.FILTERS)
        raise ValueError(f"filter must be one of {names}, not {filter!r}")
    if region is not None and np.shape(region) != (4,):
        raise ValueError(f"region must be (left, upper, right, lower) in pixels, not {region!r}")
    if size is None and region is not None:
        size = (int(region[2]) - int(region[0]), int(region[3]) - int(region[1]))
    if size is None:
        size = _image_size(data)
    if size is None:  # the codec knows it
        if Verdict(_native.probe(data)[7]).step(fallback, redraws=False) is FallbackStep.CODEC:
            data = _by_codec(data)
            size = data.shape[1], data.shape[0]
        else:
            raise DecodeError(*_native.probe(data)[7:])
    width, height = _size(size)
    out = np.empty((1, height, width, 3), np.uint8)
    cut = np.zeros(1, _native.CUT)
    cut["size"] = cut["canvas"] = width, height
    cut["filter"], cut["flip"] = _native.FILTERS.index(filter), flip
    cut["whole"] = region is None
    if region is not None:
        cut["box"] = region
    views = [_native.Rendering(out, cuts=cut)]
    points = None if seek_points is None else [seek_points]
    verdict = decode_one(data, views, seek_points=points)
    if verdict is not None and verdict.code == "bad_seek_points" and fallback == "always":
        verdict = decode_one(data, views)
    if verdict is not None and verdict.step(fallback, redraws=False) is FallbackStep.CODEC:
        try:
            data = _by_codec(data)
        except DecodeError:
            if not verdict.is_damage:  # which the core describes better
                raise
        else:
            verdict = decode_one(data, views)
    if verdict is not None:
        code, detail, offset = verdict
        if code == "bad_region":
            (wide, high) = _image_size(data) or (0, 0)
            detail += f" of {human_size(wide, high)} pixels: {region}"
        raise DecodeError(code, detail, offset)
    return out[0]  # type: ignore[no-any-return]


def decode_one(sample: Any, views: Sequence[_native.Rendering], **options: Any) -> Verdict | None:
    """Decode one sample, or cut it out of pixels, in this thread; return why that failed.

    ``options`` are those of `_native.DecodeJob`.
    """
    job = _native.DecodeJob([sample], views, **options)
    job.run()
    return next((Verdict(*failure[1:]) for failure in job.failures()), None)


def _size(size: Any) -> tuple[int, int]:
    """Return (width, height), checked."""
    try:
        width, height = map(operator.index, size)
        if width > 0 < height:
            return width, height
    except (TypeError, ValueError):
        pass
    raise ValueError(f"size must be (width, height), 1 pixel or more each, not {size!r}")


def _image_size(data: Any) -> tuple[int, int] | None:
    """Return (width, height) of pixels or of an encoded image; None if unknown."""
    if isinstance(data, np.ndarray) and data.ndim > 1:
        return data.shape[1], data.shape[0]
    info = jpeg_info(data)
    return (info.width, info.height) if info.native else None


def _by_codec(data: Any) -> _Array:
    """Decode a whole image by `Encoded`: uint8 (H, W, 3), or (H, W) if it is grey."""
    try:
        return Encoded(bytes(data)).pixels()
    except SampleError as error:
        raise DecodeError("undecodable", f"it {error.line}") from None

"""JPEGs: headers and seek points by the native core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastdata import _native
from fastdata.decode.pillow import ImageInfo, open_image
from fastdata.errors import SampleError
from fastdata.storage.encodings import DEFAULT_STRIDE

#: Images whose seek points are built at a time: more gain nothing.
SEEK_BATCH = 32

#: Hints of errors, by their code.
_HINTS = {
    "bad_seek_points": "Give the points that seek_points() makes of this very image, or none.",
    "undecodable": "Give the bytes of an image file, whole; jpeg_info() says what they are.",
}


class DecodeError(SampleError, ValueError):
    """An image that cannot be decoded.

    Attributes:
        code: The kind of damage, in one word: ``truncated``, ``bad_scan_data``, ….
        detail: Why.
        offset: At about which byte of the image.
    """

    def __init__(self, code: str, detail: str, offset: int = 0) -> None:
        super().__init__(f"{detail} ({code}, at byte {offset})", _HINTS.get(code, ""))
        self.code, self.detail, self.offset = code, detail, offset

    def __reduce__(self) -> tuple[type[DecodeError], tuple[str, str, int]]:
        return DecodeError, (self.code, self.detail, self.offset)


@dataclass(frozen=True)
class JpegInfo:
    """Result of ``jpeg_info``. Sizes are 0 if the bytes end before them."""

    encoding: str  # "jpeg", "png", "webp", "gif", "bmp", "unknown"
    width: int
    height: int
    components: int
    sampling: str  # "4:4:4", "4:2:2", "4:2:0", "4:4:0", "grey", "other"; "" if no JPEG
    progressive: bool
    native: bool  # whether the native core decodes it
    reason: str  # if not, why not


def jpeg_info(data: Any) -> JpegInfo:
    """Describe an encoded image from its first bytes.

    Args:
        data: the image, or its beginning: bytes or anything with the buffer protocol.
            ``native`` needs all bytes up to the scan, the rest much less.

    Never raises for what is in ``data``.
    """
    header = _native.probe(data)
    code, detail = header[7:9]
    return JpegInfo(header[0].partition("-")[0], *header[1:6], code == "ok", detail)


def seek_points(data: Any, stride: int = DEFAULT_STRIDE) -> bytes:
    """Index a baseline JPEG, so that regions can be decoded without the data before them.

    Decodes all entropy-coded data, which proves that the JPEG is whole.

    Args:
        data: the JPEG.
        stride: pixels between two points of a row; twice as many in images of 16 strides and more.

    Returns:
        The packed table (docs/formats/seek-points.md), about 1% of the JPEG's size.

    Raises:
        DecodeError: the JPEG is damaged, or none for the native core (``unsupported``).
        ValueError: a stride below 1.
    """
    (table,) = seek_points_many([data], stride)
    if isinstance(table, DecodeError):
        raise table
    return table


def seek_points_many(
    data: Sequence[Any], stride: int = DEFAULT_STRIDE
) -> list[bytes | DecodeError]:
    """Index several baseline JPEGs in less time than one by one.

    One thread decodes them in turns: while one waits for memory or for its own last bits,
    another advances.

    Args:
        data: the JPEGs; some ten to a hundred at a time.
        stride: as for `seek_points`.

    Returns:
        For each JPEG what `seek_points` returns, or the error that it raises.

    Raises:
        ValueError: a stride below 1.
    """
    if stride < 1:
        raise ValueError(f"stride must be at least 1 pixel, not {stride}")
    return [
        packed if code == "ok" else DecodeError(code, detail, offset)
        for packed, code, detail, offset in _native.build_seek_points(data, stride)
    ]


def seek_tables(
    images: Sequence[tuple[bytes, ImageInfo]], stride: int | None
) -> list[bytes | SampleError | None]:
    """Return a table per image; None for those without one, or an error for undecodable ones.

    This decodes all entropy-coded data, so it also finds damage that the markers do not show. A
    damaged image that Pillow decodes gets no seek points; Pillow decodes it later, too.
    ``SEEK_BATCH`` images at a time are fast. Without a stride, there are no tables.
    """
    if stride is None:
        return [None] * len(images)
    jpegs = [blob for blob, info in images if info.encoding == "jpeg"]
    made = iter(seek_points_many(jpegs, stride))
    return [
        _judge(next(made), blob, info) if info.encoding == "jpeg" else None for blob, info in images
    ]


def _judge(made: bytes | DecodeError, blob: bytes, info: ImageInfo) -> bytes | SampleError | None:
    if not isinstance(made, DecodeError):
        return made
    if made.code != "unsupported":
        try:
            open_image(blob, info)
        except SampleError as error:
            return error
    return None

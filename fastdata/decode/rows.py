"""Decoding of single rows of a source, with errors that name the row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native
from fastdata.decode.codecs import Encoded
from fastdata.decode.limits import Limits
from fastdata.decode.pillow import RGB, ImageInfo, Style, open_image
from fastdata.errors import FastdataError, SampleError
from fastdata.storage.source import Blob, Source

Sizes: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]

#: Most rows whose headers `common_size` reads, and how many it reads first.
_MOST_HEADERS, _FEW = 1 << 17, 64


def open_row(
    source: Source,
    row: int,
    limits: Limits | None,
    data: bytes | None = None,
    *,
    numbers: bool = False,
) -> Encoded:
    """Return the image of a row, with its header read; ``data``: its bytes if read already.

    Raises:
        FastdataError: It cannot be read, has changed, or cannot be decoded.
    """
    blob = source.encoded(row, data=data)
    with _naming(source, row):
        return Encoded(
            blob.data,
            _info(blob),
            limits,
            trusted=blob.checked,
            numbers=numbers,
            upright=blob.orientation != 0,
        )


def decode_row(source: Source, row: int, limits: Limits, style: Style = RGB) -> Image.Image:
    """Return the image of a row; see `open_row`."""
    blob = source.encoded(row)
    with _naming(source, row):
        return open_image(blob.data, _info(blob), limits, style)


def _info(blob: Blob) -> ImageInfo:
    return ImageInfo(blob.encoding, blob.width, blob.height, blob.channels, blob.orientation)


@contextmanager
def _naming(source: Source, row: int) -> Iterator[None]:
    """Extend errors of an image with its row."""
    try:
        yield
    except SampleError as error:
        raise source.problem(row, f"it {error.what}", hint=error.hint) from None


def sizes_of(source: Source, rows: Any, limits: Limits | None = None) -> Sizes:
    """Return the widths and heights of rows' images, int32, (N,); 0 where they are not known.

    Read headers on this machine where the index has no sizes.
    """
    column = source.gather(rows, ("image",)).blobs["image"]
    widths, heights = (np.array(side, np.int32) for side in (column.widths, column.heights))
    unknown = np.flatnonzero(widths == 0)
    if len(unknown) and source.capabilities.local:
        extents = source.gather(rows[unknown], ("image",)).blobs["image"].extents
        probe = _native.ProbeJob(extents)
        probe.run()
        widths[unknown], heights[unknown] = extents.widths, extents.heights
        for slot in np.flatnonzero(widths == 0).tolist():
            with suppress(FastdataError, OSError):  # decoding it says why
                image = open_row(source, int(rows[slot]), limits)
                widths[slot], heights[slot] = image.width, image.height
    return widths, heights


def common_size(source: Source, limits: Limits | None) -> tuple[int, int] | None:
    """Return the size of every image, by their headers; None if one differs, or for too many.

    None, too, if any is a file, which may be replaced by one of another size.
    """
    sizes: set[tuple[int, int]] = set()
    at, step = 0, _FEW
    while at < len(source) <= _MOST_HEADERS and len(sizes) < 2:
        rows = np.arange(at, min(at + step, len(source)))
        extents = source.gather(rows).blobs["image"].extents
        if any(map(extents.path, range(len(rows)))):
            return None
        sizes.update(zip(*(side.tolist() for side in sizes_of(source, rows, limits)), strict=True))
        at, step = at + step, 4 * step
    return sizes.pop() if len(sizes) == 1 else None

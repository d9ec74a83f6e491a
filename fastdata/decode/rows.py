"""Decoding of single rows of a source, with errors that name the row."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native
from fastdata.decode.codecs import Encoded, Foreseen, decoder_of, foresee
from fastdata.decode.decoders import NATIVE
from fastdata.decode.limits import Limits
from fastdata.decode.pillow import RGB, ImageInfo, Style, open_image
from fastdata.errors import FastdataError, SampleError
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.files import open_file
from fastdata.storage.source import Blob, BlobColumn, Source
from fastdata.text import human_share

Sizes: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]

#: Rows whose kind `describe_kinds` inspects.
_INSPECTED = 200
#: Most rows whose headers `common_size` reads, and how many it reads first.
_MOST_HEADERS, _FEW = 1 << 17, 64
#: Bytes that hold most JPEGs' headers; and the largest image that is read whole to see whether the
#: codec of its kind takes it.
_HEAD, _WHOLE = 1 << 16, 1 << 22


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


def describe_kinds(source: Source, limits: Limits, rows: Any = None) -> str:
    """Return the share of each kind of image and its decoder among some of ``rows``, in words."""
    every = np.arange(len(source)) if rows is None else rows
    chosen = np.ascontiguousarray(every[:: max(1, len(every) // _INSPECTED)])
    counts: Counter[Foreseen] = Counter()
    with suppress(FastdataError):  # reading the row raises it
        images = source.gather(chosen).blobs["image"]
        for slot, row in enumerate(chosen.tolist()):
            with suppress(OSError, FastdataError):  # reading the row raises it, too
                counts[_foresee(source, images, slot, row, limits)] += 1
    return ", ".join(
        f"{human_share(count / counts.total())} {seen.kind} "
        f"({seen.decoder or 'which nothing here decodes'}"
        + ("" if seen.sure else ", by its kind alone")
        + ")"
        for seen, count in counts.most_common()
    )


def _foresee(source: Source, images: BlobColumn, slot: int, row: int, limits: Limits) -> Foreseen:
    """Return a row's kind and decoder; read no more of it than is needed."""
    extents, code = images.extents, int(images.encodings[slot])
    kind = ENCODINGS[code] if code >= 0 else ""
    if kind == "raw" or (kind and extents.seekable[slot]):
        return Foreseen(kind, NATIVE)
    if not source.capabilities.local:
        return Foreseen(kind, decoder_of(kind), sure=False)
    if path := extents.path(slot):
        with open_file(path) as file:
            size = int(extents.lengths[slot])
            if size < 0:
                size = os.fstat(file.fileno()).st_size
            file.seek(int(extents.offsets[slot]))
            foreseen = foresee(file.read(min(size, _HEAD)), size, limits)
        # Whether a codec takes other kinds depends on their checksum.
        if (foreseen.sure and foreseen.kind.startswith("jpeg")) or size > _WHOLE:
            return foreseen
    blob = source.encoded(row)
    return foresee(
        blob.data, len(blob.data), limits, trusted=blob.checked, upright=blob.orientation != 0
    )

"""Masks of a batch, which follow the geometry of their images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.decode.engine import PendingBatch
from fastdata.transforms.geometry import Cuts
from fastdata.transforms.reading import Step
from fastdata.transforms.tree import MASK_FILTER, Bytes, native_program


def moved_mask(
    pixels: npt.NDArray[Any],
    steps: tuple[Step, ...],
    cut: Cuts,
    size: tuple[int, int],
    targets: _native.Targets | None = None,
    fill: int = 0,
) -> npt.NDArray[Any]:
    """Return a mask after its image's geometry and steps.

    The core moves bytes. Up to three of a pixel's are channels of one image.

    Args:
        pixels: The mask, (rows, columns) or (rows, columns, channels). Rows below the cut's box may
            be missing.
        steps: The pixel program of its image.
        cut: The image's, (1,).
        size: (width, height) of the result.
        targets: Those of the image, for steps that crop by boxes.
        fill: The value of what the cut has outside the image (`Program.mask_fill`).

    Returns:
        (channels, height, width), of the same dtype.

    Raises:
        DecodeError: The steps cannot be done to it.
        UsageError: Geometry or a step fills with a value that it cannot have.
    """
    rows, columns = pixels.shape[:2]
    values = np.ascontiguousarray(pixels).view(np.uint8).reshape(rows, columns, -1)
    cut = cut.copy()
    cut["filter"] = _native.FILTERS.index(MASK_FILTER)
    parts = []
    for first in range(0, values.shape[2], 3):
        part = values[..., first : first + 3]
        bytes_of = Bytes(pixels.dtype.str, first, part.shape[2])
        about = {"program": native_program(steps, bytes_of), "fill": bytes_of.fill(fill)}
        parts.append(_moved(part, cut, size, {**about, "targets": targets}))
    found = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
    found = np.ascontiguousarray(found).view(pixels.dtype)
    return np.ascontiguousarray(found.transpose(2, 0, 1))


def _moved(
    values: npt.NDArray[np.uint8], cut: Cuts, size: tuple[int, int], options: dict[str, Any]
) -> npt.NDArray[np.uint8]:
    """Return one to three bytes of each pixel, (rows, columns, count), likewise."""
    count = values.shape[2]
    width, height = size
    channels = 1 if count == 1 else 3
    if count == 2:
        values = np.concatenate([values, values[..., :1]], axis=2)
    values = np.ascontiguousarray(values)
    out = np.empty((1, height, width, channels), np.uint8)
    pending = PendingBatch([values], out, fallback="never", cuts=cut, **options)
    pending.run()
    pending.result()
    return out[0, ..., :count]

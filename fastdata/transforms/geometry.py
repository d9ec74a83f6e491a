"""Leading steps of a pipeline, drawn by the core: one cut for each image.

The core folds crops, a resize and flips for each image (``native/geometry/folded.h``) and returns
one structured array (`_native.CUT`) for a batch. A row of it:

- ``box``: left, upper, right, lower in the source image.
- ``size``: (width, height) that the box is resized to.
- ``window``: (left, upper) of the canvas in the resized box.
- ``canvas``: (width, height) of the output, or of the image that a pixel program begins with.
- ``filter``: the number of the resize's filter in `_native.FILTERS`.
- ``flip``: bits. 1, 2: the canvas is mirrored left to right, top to bottom, last of all. 4, 8: the
  image was mirrored so before its resize, where nearest filters take other pixels.
- ``whole``: 1 where the box is all of the image, whatever its size; never drawn.
- ``padding``: 1 where the window reaches outside the resized box, 2 where the box reaches outside
  the image: a fill takes the place of what is missing.
- ``too_small``, ``found``: see `too_small`.
- ``key``: pixel programs draw from it.
- ``matrix``: float64, 3 x 3 row by row: from the source image to the canvas. It maps (x, y, 1) in
  pixels, where (0, 0) is the upper left corner of the image, not the middle of its first pixel. So
  corners of boxes map by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native
from fastdata.text import human_size
from fastdata.transforms.tree import native_program

#: Remedy for an image that is smaller than a random crop.
SMALL_HINT = "Resize before it, give a crop pad_if_needed=True, or RandomIoUCrop an option of 1."
#: Pixels: larger than any crop; a stand-in for sizes that only Pillow can tell.
ANY_SIZE = 1 << 15
#: The structured array of a batch, (N,).
Cuts: TypeAlias = "npt.NDArray[np.void]"


def draw(steps: tuple[Any, ...], widths: Any, heights: Any, keys: npt.NDArray[np.uint64]) -> Cuts:
    """Draw and compose the steps for each image; a row depends on its size and key alone.

    ``steps`` are crops, pads, flips, at most one resize, as `Reading` has put them together. Widths
    and heights are of the source images, (N,); keys are uint64, (N,).
    """
    return native_program((), leading=steps).cuts(widths, heights, keys)


def too_small(steps: Sequence[Any], cuts: Cuts) -> dict[int, str]:
    """Describe the images that are too small for a crop that may not pad, by their row.

    ``too_small`` is the number of that crop among the steps, from 1; 0: the image is large enough.
    ``found`` is the image's (width, height) there. The row's other values mean nothing.
    """
    described = {}
    if np.count_nonzero(cuts["too_small"]):
        for row in np.flatnonzero(cuts["too_small"]).tolist():
            step = steps[int(cuts["too_small"][row]) - 1]
            described[row] = (
                f"{human_size(*cuts['found'][row].tolist())} pixels, {step.size_reason}"
            )
    return described


def render(
    image: Image.Image, cut: np.void, fill: tuple[int, int, int] = (0, 0, 0)
) -> npt.NDArray[np.uint8]:
    """Crop, resize, cut and flip one image with Pillow: uint8, (height, width, 3), RGB.

    ``cut`` is a row of `draw`, whose canvas has the result's size; ``fill`` is R, G, B from 0 to
    255.
    """
    if image.mode != "RGB":
        image = image.convert("RGB")
    left, upper, right, lower = cut["box"].tolist()
    if (left, upper, right, lower) != (0, 0, *image.size):
        image = _cut(image, left, upper, (right - left, lower - upper), fill)
    resized, canvas = tuple(cut["size"].tolist()), tuple(cut["canvas"].tolist())
    if image.size != resized:
        before = int(cut["flip"]) >> 2
        image = _resized(_mirrored(image, before), resized, _native.FILTERS[cut["filter"]])
        image = _mirrored(image, before)
    x, y = cut["window"].tolist()
    if (x, y, *resized) != (0, 0, *canvas):
        image = _cut(image, x, y, canvas, fill)
    return np.array(_mirrored(image, int(cut["flip"])))


def _mirrored(image: Image.Image, bits: int) -> Image.Image:
    """Mirror an image left to right (1), top to bottom (2)."""
    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if bits & 1 else image
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if bits & 2 else image


def _resized(image: Image.Image, size: tuple[int, int], name: str) -> Image.Image:
    if name != "nearest_floor":
        return image.resize(size, Image.Resampling[name.upper()])
    columns, rows = (
        (np.arange(to, dtype=np.float32) * (np.float32(have) / np.float32(to))).astype(np.int64)
        for have, to in zip(image.size, size, strict=True)
    )
    last = image.height - 1, image.width - 1
    pixels = np.asarray(image)
    return Image.fromarray(pixels[np.minimum(rows, last[0])][:, np.minimum(columns, last[1])])


def _cut(
    image: Image.Image, left: int, upper: int, size: tuple[int, int], fill: tuple[int, int, int]
) -> Image.Image:
    """Crop an RGB image, with a fill outside it.

    Pillow's ``crop`` refuses large results as decompression bombs, which only inputs can be.
    """
    canvas = Image.new("RGB", size, tuple(fill))
    canvas.paste(image, (-left, -upper))
    return canvas


def rendered(cuts: Cuts) -> Cuts:
    """Return the geometry that remains after `render`: all pixels, unchanged."""
    left: Cuts = cuts.copy()
    left["size"] = cuts["canvas"]
    left["whole"], left["window"], left["flip"], left["padding"] = 1, 0, 0, 0
    return left

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
- ``too_small``: the number, from 1, of the crop that may not pad and that the image is too small
  for; 0: none. ``found``: the image's (width, height) there. Then no other value counts.
- ``key``: pixel programs draw from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.text import human_size

#: Remedy for an image that is smaller than a random crop.
SMALL_HINT = "Resize before it, give a crop pad_if_needed=True, or RandomIoUCrop an option of 1."
#: Pixels: larger than any crop; a stand-in for sizes that only Pillow can tell.
ANY_SIZE = 1 << 15
#: The structured array of a batch, (N,).
Cuts: TypeAlias = "npt.NDArray[np.void]"


def too_small(steps: Sequence[Any], cuts: Cuts) -> dict[int, str]:
    """Describe the images that are too small for one of the steps, by their row."""
    return {
        row: f"{human_size(*cuts['found'][row].tolist())} pixels, "
        f"{steps[cuts['too_small'][row] - 1].size_reason}"
        for row in np.flatnonzero(cuts["too_small"]).tolist()
    }

"""Which samples DALI is given: those that it decodes to what Pillow would.

It ends a whole pipeline over one that it cannot decode, and some that it can it decodes to other
colours. What it is not given, fastdata decodes by itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.dali.graph import ENCODED, RAW
from fastdata.loading.source import Gathered
from fastdata.storage.probe import ENCODINGS

_RAW = ENCODINGS.index("raw")
_JPEG = ENCODINGS.index("jpeg")
_ALSO = np.isin(ENCODINGS, ("jpeg-progressive", "png"))

_PNG = b"\x89PNG\r\n\x1a\n"
_EOI = b"\xff\xd9"
# Of PNG's colour types: grey, RGB, palette, RGB with alpha.
_PNG_COLOURS = (0, 2, 3, 6)


def candidates(gathered: Gathered) -> npt.NDArray[np.bool_]:
    """Which samples may be DALI's, by what is known before they are read: bool, (N,)."""
    encodings = np.asarray(gathered.extents.encodings)
    found = ~gathered.pillow
    also: npt.NDArray[np.bool_] = _ALSO[encodings] & (encodings >= 0)
    found |= also
    native = (encodings < 0) | (encodings == _JPEG) | (encodings == _RAW)
    found &= also | native
    return found


def kind_of(
    data: npt.NDArray[np.uint8], encoding: int, width: int, height: int, seekable: bool
) -> str | None:
    """How DALI is to take a sample.

    Args:
        data: Its bytes.
        encoding: Its place in ``fastdata.storage.probe.ENCODINGS``; -1 if nobody knows.
        width: Its width as the crop was drawn for, in pixels.
        height: Its height.
        seekable: Whether it has seek points: then it was decoded once already.

    Returns:
        `ENCODED` or `RAW`; None if it is not for DALI.
    """
    if encoding == _RAW:
        return RAW if data.size == width * height * 3 else None
    found, wide, high, components, _, progressive, code, _, _ = _native.probe(data)
    if found == "jpeg":
        if (wide, high) != (width, height) or components not in (1, 3):
            return None
        if not (code == "ok" or (progressive and code == "unsupported")):
            return None
        if seekable:
            return ENCODED
        # Cut short, it decodes in part, or not at all, depending on the crop.
        return ENCODED if data[-2:].tobytes() == _EOI and _is_ycc(data, progressive) else None
    head = data[:33].tobytes()
    if head[:8] == _PNG and len(head) == 33:
        size = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
        if size == (width, height) and head[24] == 8 and head[25] in _PNG_COLOURS:
            return ENCODED
    return None


def _is_ycc(data: npt.NDArray[np.uint8], progressive: bool) -> bool:
    """Whether Adobe's marker does not say that the colours are RGB."""
    if not progressive:
        return True  # the probe has looked
    head = data[: 1 << 16].tobytes()
    at = head.find(b"\xff\xee\x00\x0eAdobe")
    return at < 0 or at + 15 >= len(head) or head[at + 15] != 0

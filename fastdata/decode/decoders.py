"""Names of decoders, and the exception of codecs that leave an image to Pillow."""

from __future__ import annotations

#: Names of Pillow and the core in `fastdata.decode.codecs.Encoded.decoder`.
PILLOW, NATIVE = "Pillow", "native"


class LeftToPillow(Exception):  # noqa: N818 - not an error: Pillow decides
    """Image that a codec does not decode, or not to Pillow's pixels."""

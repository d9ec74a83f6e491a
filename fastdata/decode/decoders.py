"""Names of decoders, and the exception of codecs that leave an image to Pillow."""

from __future__ import annotations

#: Names of Pillow and the core in `fastdata.decode.codecs.Encoded.decoder`.
PILLOW, NATIVE = "Pillow", "native"


class Declined(Exception):  # noqa: N818 - not an error: Pillow decides
    """A codec does not decode an image, or not to Pillow's pixels."""

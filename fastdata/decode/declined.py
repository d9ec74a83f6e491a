"""Exception of codecs that leave an image to Pillow."""

from __future__ import annotations


class Declined(Exception):  # noqa: N818 - not an error: Pillow decides
    """A codec does not decode an image, or not to Pillow's pixels."""

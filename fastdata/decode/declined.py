"""What a codec raises where it leaves an image to Pillow."""

from __future__ import annotations


class Declined(Exception):  # noqa: N818 - no error of the user's: Pillow has the last word
    """A codec does not decode an image, or not as Pillow would."""

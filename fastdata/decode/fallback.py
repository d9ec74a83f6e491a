"""The fallback policy: the next attempt after the native core declines an image.

The core decodes baseline and progressive JPEGs that are whole. For every other
sample it returns a code (fastdata/native/status.h). A `Verdict` says what then decodes the sample
by itself, if anything can: for loaders, DALI and `fastdata.decode`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from fastdata.decode.decoders import NATIVE
from fastdata.errors import FastdataError
from fastdata.storage.encodings import NOT_NATIVE

#: Values of ``fallback=``: `codecs.Encoded` decodes images of kinds that the core does not know
#: ("unsupported"), damaged ones too ("always"), none ("never").
FALLBACKS = ("unsupported", "always", "never")

#: Codes that leave nothing for another decoder: the bytes are missing, or the batch was cancelled.
NOTHING_TO_DECODE = (
    "cancelled",
    "out_of_memory",
    "file_missing",
    "file_unreadable",
    "too_many_files",
    "cut_short",
    "changed",
    "corrupt_index",
)

#: Codes of images whose size differs from the one the region was computed for, or is too large.
_OTHER_SIZE = ("too_large", "other_size", "bad_region")


class FallbackStep(Enum):
    """Next attempt after a code of the core."""

    FAIL = 0
    WITHOUT_TABLE = 1  # decode natively, from the image's beginning
    CODEC = 2  # decode by `codecs.Encoded`: PNGs by the core, others by Pillow


class Verdict(NamedTuple):
    """The core's account of a sample that it did not decode.

    Attributes:
        code: One of `_native.CODES`; "" where the core was not asked.
        detail: The same in words.
        offset: At about which byte of the image.
    """

    code: str = ""
    detail: str = ""
    offset: int = 0

    def step(self, fallback: str = "always", *, redraws: bool = True) -> FallbackStep:
        """Return the next attempt at the sample.

        Args:
            fallback: One of `FALLBACKS`.
            redraws: Whether regions are drawn again for the size that another decoder finds.
        """
        if self.code in NOTHING_TO_DECODE or (self.code in _OTHER_SIZE and not redraws):
            return FallbackStep.FAIL
        if self.code == "bad_seek_points":
            return FallbackStep.WITHOUT_TABLE
        if fallback == "always" or (fallback == "unsupported" and self.code in NOT_NATIVE):
            return FallbackStep.CODEC
        return FallbackStep.FAIL

    @property
    def is_damage(self) -> bool:
        """Whether the core found damage, which it describes better than other decoders."""
        return self.code not in ("", *NOT_NATIVE, *_OTHER_SIZE)


class Outcome(NamedTuple):
    """Result for one sample that was decoded by itself.

    Attributes:
        verdict: Why the core declined it.
        error: Why no decoder decoded it; None if one did.
        kind: The image's kind, if known.
        decoder: Its decoder, as `fastdata.decode.codecs.Encoded.decoder`.
        declined: Why Pillow decoded it, as `Encoded.declined`.
        without_table: Whether the core decoded it once its seek points were left out.
    """

    verdict: Verdict
    error: FastdataError | None = None
    kind: str = "jpeg"
    decoder: str = NATIVE
    declined: str = ""
    without_table: bool = False

"""The fallback policy: what becomes of images that the native core declines.

The core decodes baseline, progressive and arithmetic-coded JPEGs that are whole. For every other
sample it returns a code (fastdata/native/status.h), and `next_step` says what follows, in batches
of a loader as in `fastdata.decode`. Pillow is the only other decoder.
"""

from __future__ import annotations

from enum import Enum

#: What ``fallback=`` may be: Pillow decodes images of kinds that the core does not know
#: ("unsupported"), damaged ones too ("always"), none ("never").
FALLBACKS = ("unsupported", "always", "never")

#: Failures that leave nothing for another decoder: the bytes cannot be had, or nobody waits.
NOTHING_TO_DECODE = (
    "cancelled",
    "out_of_memory",
    "file_missing",
    "file_unreadable",
    "cut_short",
    "changed",
    "corrupt_index",
)

#: What the core leaves to others, rather than finds fault with.
NOT_NATIVE = ("unsupported", "not_jpeg")

# The image's size is not the one that a region was computed for, or beyond the core's limit.
_OTHER_SIZE = ("too_large", "other_size")


class Step(Enum):
    """What follows on a code of the core's."""

    FAIL = 0
    WITHOUT_TABLE = 1  # decode natively, from the image's beginning
    PILLOW = 2


def next_step(code: str, fallback: str, *, redraws: bool = False) -> Step:
    """What to do about a sample that the core did not decode.

    Args:
        code: The core's.
        fallback: One of `FALLBACKS`.
        redraws: Whether regions are computed anew from the size that Pillow finds.
    """
    if code in NOTHING_TO_DECODE or (code in _OTHER_SIZE and not redraws):
        return Step.FAIL
    if code == "bad_seek_points":
        return Step.WITHOUT_TABLE
    if fallback == "always" or (fallback == "unsupported" and code in NOT_NATIVE):
        return Step.PILLOW
    return Step.FAIL


def pillow_knows_better(code: str) -> bool:
    """Whether, where Pillow fails too, its account is the one to give.

    Of a damaged JPEG the core's says more.
    """
    return code in NOT_NATIVE or code in _OTHER_SIZE

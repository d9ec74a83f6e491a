"""Errors and warnings of fastdata.

Commands exit with 2 for a `UsageError`, with 1 for a `DataError`. Every error names the problem and
its place, and then what the user can do about it.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

#: Control characters (C0, DEL, C1), line and paragraph separators, marks that change the direction
#: of writing, and surrogates, which stand for bytes that are not UTF-8.
_UNPRINTABLE = re.compile("[\0-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


#: Remedies for samples that cannot be loaded, as the end of a sentence.
LEAVE_OUT = 'leave such samples out (on_error="drop") or replace them (on_error="skip").'
#: Remedy where too many files are open.
MORE_FILES = "Allow this process more open files: ulimit -n 65536"
#: Most printed characters of a message or name. A name in an archive may have megabytes.
_MOST_PRINTED = 4000


def printable(text: str, keep: str = "") -> str:
    r"""Return a name or message that is safe to print and takes one line.

    Keys, class names and paths come from data. An escape sequence in one could hide or change
    the output, and a long one could flood a log. So long texts lose their middle.

    Args:
        text: The text to print.
        keep: Control characters that stay.

    Returns:
        The text with control characters, and bytes of a path that are not UTF-8, as ``\xNN``
        or ``\uNNNN``.
    """

    def escaped(match: re.Match[str]) -> str:
        code = ord(match[0])
        if match[0] in keep:
            return match[0]
        if 0xDC80 <= code <= 0xDCFF:  # a byte that os.fsdecode escaped
            code -= 0xDC00
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _shortened(_UNPRINTABLE.sub(escaped, _shortened(text)))


def _shortened(text: str) -> str:
    if len(text) <= _MOST_PRINTED:
        return text
    half = _MOST_PRINTED // 2 - 30
    return f"{text[:half]} … ({len(text):,} characters) … {text[-half:]}"


class FastdataError(Exception):
    """Base of all errors that fastdata raises on purpose.

    Args:
        what: The problem and its place (file, key, index).
        hint: What the user can do about it; "" for nothing.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        # torch rebuilds a worker's error from lines of a traceback, without a hint.
        what, hint = printable(what, keep="" if hint else "\n"), printable(hint, keep="\n")
        # Pickling passes `args` to this constructor, so they are both of its arguments.
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    @property
    def line(self) -> str:
        """Problem and hint, in one line."""
        return f"{self.what}: {self.hint}" if self.hint else self.what

    def __str__(self) -> str:
        return f"{self.what}\n{self.hint}" if self.hint else self.what


class UsageError(FastdataError, ValueError):
    """Error of an argument or option: out of range, or contradicting another."""


class NoAttributeError(UsageError, AttributeError):
    """Error of an attribute that an object lacks: ``hasattr`` and ``inspect`` do not find it."""


class DataError(FastdataError):
    """Error of data."""


class SourceError(DataError):
    """Error of a tree or archive to pack: missing, unreadable or contradictory."""


class SampleError(DataError):
    """Error of one image's bytes."""


class UnreadableError(SampleError):
    """Error of reading an image's file: a permission, a disk, a network."""


class BadSamplesError(DataError):
    """Error of packing that skipped bad images; the dataset has no manifest yet."""


class SpaceError(DataError):
    """Error of a disk or folder with too little room."""


class BusyError(DataError):
    """Error of a folder that another process has locked."""


class RemoteError(DataError):
    """Error of a bucket or server that cannot be reached, or refuses a request."""


class OutageError(RemoteError):
    """Error of a server that has failed for so long that the whole pass ends."""


class DatasetError(DataError):
    """Error of a folder that is no dataset, or cannot be opened."""


class VersionError(DatasetError):
    """Error of a dataset whose format version this fastdata does not read."""


class CorruptionError(DatasetError):
    """Error of a dataset that does not match its own manifest or index."""


def is_no_space(error: BaseException) -> bool:
    """Return whether an error means that the disk, or the user's quota, is full."""
    number = getattr(error, "errno", None)
    # LMDB and Arrow wrap the error: only its text is left.
    return number in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in str(error)


def without_frames(error: FastdataError) -> FastdataError:
    """Return an error that is kept for later, without the frames of its chain.

    Frames refer to the memory of a batch, which would come back only with garbage collection.
    """
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function and return its result.

    Raises:
        RuntimeError: It raised StopIteration, which would silently end the pass.
    """
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError(f"{function!r} raised StopIteration") from error


class SlowPathWarning(UserWarning):
    """Warning about a loader of images that does not use the native path."""


class FallbackWarning(UserWarning):
    """Warning about images that Pillow decodes, because the native core cannot."""


class MixingWarning(UserWarning):
    """Warning about a loader that mixes only neighbours, in a dataset of alike neighbours."""


#: Packages that call fastdata for their users; a warning must not point to their lines.
_LIBRARIES = {"fastdata", "torch", "accelerate", "lightning", "pytorch_lightning"}


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, like ``warnings.warn``, at the line of the user's code that led here.

    Constructors, subclasses, loops and frameworks reach the same warning, so no single
    ``stacklevel`` fits.
    """
    frames = enumerate(traceback.walk_stack(inspect.currentframe()), 1)
    depth = next((depth for depth, (frame, _) in frames if not _is_librarys(frame)), 1)
    warnings.warn(message, category, stacklevel=depth)


def _is_librarys(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names

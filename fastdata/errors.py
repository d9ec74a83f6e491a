"""What can go wrong, as one tree.

::

    FastdataError
    ├── UsageError                an argument that cannot be honoured (exit code 2)
    └── DataError                 data that is not what it must be (exit code 1)
        ├── SourceError           a tree or archive that is to be packed
        ├── SampleError           the bytes of one image
        │   ├── UnreadableError   they cannot be read at all
        │   └── DecodeError       they cannot be decoded (fastdata.decode)
        ├── BadSamplesError       packing ended, and some images are bad
        ├── SpaceError            no room for what is to be written
        ├── BusyError             another process holds what this one needs
        ├── RemoteError           a bucket or server that cannot be reached or will not obey
        │   └── OutageError       it has not answered for so long that reading ends
        └── DatasetError          a packed dataset
            ├── VersionError      written by a newer fastdata
            └── CorruptionError   it does not match its own manifest or index

Every error says what is wrong and where, and then what the user can do about it.
"""

from __future__ import annotations

import re
import sys
import warnings

#: Control characters (C0, DEL, C1), line and paragraph separators, marks that change the direction
#: of writing, and surrogates, which stand for bytes that are not UTF-8.
_UNPRINTABLE = re.compile("[\0-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


#: Characters of a message or name that are printed. A name in an archive may have megabytes.
_MOST_PRINTED = 4000


def printable(text: str, keep: str = "") -> str:
    r"""A name or message that does nothing to a terminal and takes one line.

    Keys, class names and paths come from data: an escape sequence in one could hide what is
    printed, or change it, and a long one could flood a log. So long ones lose their middle.

    Args:
        text: What is to be printed.
        keep: Control characters that stay.

    Returns:
        The text with control characters, and bytes of a path that are not UTF-8, as ``\xNN``
        or ``\uNNNN``.
    """

    def escaped(match: re.Match[str]) -> str:
        code = ord(match[0])
        if match[0] in keep:
            return match[0]
        if 0xDC80 <= code <= 0xDCFF:  # a byte as os.fsdecode has it
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
        what: What is wrong, and where (file, key, index).
        hint: What the user can do about it, where there is something to do.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        what, hint = printable(what, keep="\n"), printable(hint, keep="\n")
        # Both go into `args`, so that the error survives pickling between processes.
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    @property
    def line(self) -> str:
        """What is wrong and what to do about it, in one line."""
        return f"{self.what}: {self.hint}" if self.hint else self.what

    def __str__(self) -> str:
        return f"{self.what}\n{self.hint}" if self.hint else self.what


class UsageError(FastdataError, ValueError):
    """An argument or option that cannot be honoured."""


class DataError(FastdataError):
    """Data that is not what it must be."""


class SourceError(DataError):
    """A tree or archive that is to be packed is missing, unreadable or contradictory."""


class SampleError(DataError):
    """The bytes of one image are not an image that can be decoded."""


class UnreadableError(SampleError):
    """The file of an image cannot be read: a permission, a disk, a network."""


class BadSamplesError(DataError):
    """Packing ended with some images left out; the dataset has no manifest yet."""


class SpaceError(DataError):
    """There is no room for what is to be written."""


class BusyError(DataError):
    """Another process is at work on the same folder."""


class RemoteError(DataError):
    """A bucket or server cannot be reached, or refuses what is asked of it."""


class OutageError(RemoteError):
    """A server has not answered for so long that the whole pass ends, not a sample."""


class DatasetError(DataError):
    """A folder is not a dataset, or not one that can be opened."""


class VersionError(DatasetError):
    """The dataset has a version of the format that this fastdata does not read."""


class CorruptionError(DatasetError):
    """The dataset does not match its own manifest or index."""


class SlowPathWarning(UserWarning):
    """A loader of images takes another path than the native one."""


class FallbackWarning(UserWarning):
    """Pillow decodes some of a loader's images, as the native core cannot."""


class MixingWarning(UserWarning):
    """A loader mixes neighbours only, and neighbours in the dataset are alike."""


#: Packages that iterate and open for their users, whose lines a warning is not to name.
_LIBRARIES = {"fastdata", "torch", "accelerate", "lightning", "pytorch_lightning"}


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """``warnings.warn``, at the line of the user's code that has led here.

    The same warning is reached from constructors, subclasses, loops and frameworks, so no
    ``stacklevel`` fits all of them.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in _LIBRARIES and package not in sys.stdlib_module_names:
            break
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )

"""Trees of image files, ``<class>/**/<image>``, in torchvision's order.

Classes are the folders at the top, sorted by name; within one, ``sorted(os.walk())`` and
then the sorted file names, as torchvision's ``ImageFolder`` does it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fastdata.converters.records import Record

from fastdata.errors import SourceError
from fastdata.storage.probe import is_image_name


def scan(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """A folder's entries sorted by name.

    Raises:
        SourceError: The folder is missing or cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from None


def is_folder(path: Path) -> bool:
    """Whether there is a folder.

    Raises:
        SourceError: One may not even ask: a folder above it is closed.
    """
    try:
        return path.is_dir()
    except OSError as error:
        raise _unreadable(path, error) from None


def is_file(path: Path) -> bool:
    """Whether there is a file; raises as `is_folder` does."""
    try:
        return path.is_file()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str | os.PathLike[str], error: OSError) -> SourceError:
    return SourceError(
        f"{path}: cannot be read: {error.strerror}",
        "Check the path and that you may read it (ls -ld, chmod +rx).",
    )


def class_folders(root: Path) -> list[str]:
    """The names of the folders in ``root``, sorted; hidden ones too, as torchvision has it.

    Raises:
        SourceError: ``root`` cannot be read, or a name is not UTF-8.
    """
    names = [e.name for e in scan(root) if _is_class_folder(e)]
    for name in names:
        if not is_utf8(name):
            raise SourceError(
                f"{root}: the class folder {printable(name)} has a name that is not UTF-8",
                "Rename it; class names are stored as UTF-8.",
            )
    return names


def _is_class_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself is no more than one to nowhere
            return False
        # A class must not be missing in silence: the labels after it would be others.
        raise _unreadable(entry.path, error) from None


def is_utf8(name: str) -> bool:
    """Whether a file name, as Python gives it, was UTF-8 on the disk."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def printable(name: str) -> str:
    r"""A file name with what is not UTF-8 written as ``\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def storable(key: str) -> tuple[str, str | None]:
    """A key as it can be stored, and what is wrong with it where it is not UTF-8."""
    if is_utf8(key):
        return key, None
    return printable(key), "its name is not UTF-8; rename it"


def class_records(root: Path, name: str, label: int) -> Iterator[Record]:
    """Yields the images of one class folder; holds one folder's entries in memory.

    Keys are paths below ``root`` without extension, with ``/``.

    Raises:
        SourceError: A folder cannot be read, or links to a folder around it.
    """
    prefix = len(str(root)) + 1
    for folder in sorted(_walk(str(root / name), ())):
        for entry in scan(folder):
            if is_image_name(entry.name) and not _is_folder(entry):
                key = entry.path[prefix:].rpartition(".")[0].replace(os.sep, "/")
                yield record_of(entry, key, label)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _walk(folder: str, above: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yields a folder and all below it, following links; ``above`` guards against loops."""
    stat = os.stat(folder)
    here = (stat.st_dev, stat.st_ino)
    if here in above:
        raise SourceError(
            f"{printable(folder)}: this link leads back to a folder that it is in",
            "Remove the link.",
        )
    yield folder
    for entry in scan(folder):
        if _is_folder(entry):
            yield from _walk(entry.path, (*above, here))


def record_of(entry: os.DirEntry[str], key: str, label: int) -> Record:
    """The record of an image that is a file of its own."""
    key, problem = storable(key)
    try:
        stat = entry.stat()
    except OSError as error:  # a link to nowhere, most likely
        problem = f"cannot be read: {error.strerror}"
        return Record(key, label, entry.path, 0, 0, 0, problem=problem)
    return Record(key, label, entry.path, 0, stat.st_size, stat.st_mtime_ns, problem=problem)

"""Trees of image files, ``<class>/**/<image>``, in torchvision's order.

Classes are the folders at the top, sorted by name; within one, ``sorted(os.walk())`` and
then the sorted file names, as torchvision's ``ImageFolder`` does it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fastdata.converters.records import Record

from fastdata.errors import SourceError

#: torchvision.datasets.folder.IMG_EXTENSIONS; compared in lower case.
IMAGE_EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".ppm",
    ".bmp",
    ".pgm",
    ".tif",
    ".tiff",
    ".webp",
)


def is_image_name(name: str) -> bool:
    """Whether a file's name has one of torchvision's image extensions."""
    return name.lower().endswith(IMAGE_EXTENSIONS)


def scan(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """A folder's entries sorted by name.

    Raises:
        SourceError: The folder is missing or cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise SourceError(
            f"{folder}: cannot be listed: {error.strerror}",
            "Check the path and that you may read it (ls -ld, chmod +rx).",
        ) from None


def class_folders(root: Path) -> list[str]:
    """The names of the folders in ``root``, sorted; hidden ones are not classes.

    Raises:
        SourceError: ``root`` cannot be read, or a name is not UTF-8.
    """
    names = [e.name for e in scan(root) if e.is_dir() and not e.name.startswith(".")]
    for name in names:
        if not is_utf8(name):
            raise SourceError(
                f"{root}: the class folder {printable(name)} has a name that is not UTF-8",
                "Rename it; class names are stored as UTF-8.",
            )
    return names


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
    problem = None
    if not is_utf8(entry.path):
        key = printable(key)
        problem = "its name is not UTF-8; rename it"
    try:
        stat = entry.stat()
    except OSError as error:  # a link to nowhere, most likely
        problem = f"cannot be read: {error.strerror}"
        return Record(key, label, entry.path, 0, 0, 0, problem=problem)
    return Record(key, label, entry.path, 0, stat.st_size, stat.st_mtime_ns, problem=problem)

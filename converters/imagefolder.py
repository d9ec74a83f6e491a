"""A tree ``<class>/**/<image>``, as torchvision's ``ImageFolder`` reads it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from fastdata.converters.records import Record
from fastdata.converters.tree import class_folders, class_records, is_folder, is_utf8, printable

from fastdata.errors import SourceError


class ImageFolder:
    """The images of a tree whose top folders are the classes.

    Classes, labels and order are torchvision's. A key is the image's path below ``root``
    without its extension.

    Args:
        root: The folder that holds the class folders.
        allow_empty: Whether a class may be without images.

    Raises:
        SourceError: ``root`` is missing, unreadable, or has no folder in it.
    """

    def __init__(self, root: str | os.PathLike[str], *, allow_empty: bool = False) -> None:
        self._root = require_folder(Path(root))
        self._allow_empty = allow_empty
        self.classes = class_folders(self._root)
        if not self.classes:
            raise SourceError(
                f"{root}: has no class folders",
                "Images must lie in <root>/<class>/; name the folder above the classes.",
            )
        self.about = {"kind": "imagefolder", "root": str(self._root)}
        self.inputs = [self._root]
        self.root: str | None = str(self._root)

    def records(self) -> Iterator[Record]:
        """Yields the images by class, folder and name, each sorted."""
        yield from records_by_class(
            self._root, self.classes, self.classes, allow_empty=self._allow_empty
        )


def require_folder(root: Path) -> Path:
    """The absolute path of a folder that must be there.

    Raises:
        SourceError: It is not.
    """
    if not is_folder(root):
        reason = "is not a folder" if root.exists() else "no such folder"
        raise SourceError(f"{root}: {reason}", "Say where the images are with --root.")
    if not os.access(root, os.R_OK | os.X_OK):
        raise SourceError(
            f"{root}: cannot be read: {os.strerror(errno.EACCES)}",
            "Check that you may read it (ls -ld, chmod +rx).",
        )
    return require_utf8(root.resolve())


def require_utf8(root: Path) -> Path:
    """A path as it is, if it can be stored in a manifest.

    Raises:
        SourceError: It is not UTF-8.
    """
    if not is_utf8(str(root)):
        raise SourceError(f"{printable(str(root))}: this path is not UTF-8", "Rename the folder.")
    return root


def records_by_class(
    root: Path, folders: list[str], classes: list[str], *, allow_empty: bool
) -> Iterator[Record]:
    """Yields the images of some class folders in turn, labelled by rank in ``classes``.

    Raises:
        SourceError: A class has no images and ``allow_empty`` is not set.
    """
    labels = {name: label for label, name in enumerate(classes)}
    for name in folders:
        found = False
        for record in class_records(root, name, labels[name]):
            found = True
            yield record
        if not found and not allow_empty:
            raise SourceError(
                f"{root / name}: this class has no images",
                "Remove the folder, or keep an empty class with --allow-empty.",
            )

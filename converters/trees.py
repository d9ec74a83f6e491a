"""Where a tree of images lies: a folder of this machine, or a URL."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from fastdata.converters.records import Record
from fastdata.converters.tree import class_folders, class_records, is_image_name, storable

from fastdata.errors import SourceError
from fastdata.remote.filesystem import list_entries, list_folders
from fastdata.remote.urls import join_url, redact


class Tree(Protocol):
    """A folder whose folders are classes of images."""

    @property
    def root(self) -> str:
        """Its absolute path or its URL: what the paths of its records begin with."""

    @property
    def location(self) -> Path | str:
        """The same, as `fastdata.converters.records.Source.inputs` has it."""

    def __truediv__(self, name: str) -> Tree:
        """A folder in it."""

    def classes(self) -> list[str]:
        """The names of the folders in it, sorted.

        Raises:
            SourceError: It cannot be read.
        """

    def records(self, name: str, label: int) -> Iterator[Record]:
        """Yields the images of one class folder, in torchvision's order.

        Raises:
            SourceError: It cannot be read.
        """


class LocalTree:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.location = root

    def __str__(self) -> str:
        return str(self.location)

    def __truediv__(self, name: str) -> LocalTree:
        return LocalTree(self.location / name)

    @property
    def root(self) -> str:
        """See `Tree.root`."""
        return str(self.location)

    def classes(self) -> list[str]:
        """See `Tree.classes`."""
        return class_folders(self.location)

    def records(self, name: str, label: int) -> Iterator[Record]:
        """See `Tree.records`."""
        return class_records(self.location, name, label)


class RemoteTree:
    """A folder behind a URL.

    A class is listed at a time, so memory is bounded by the largest; a request of most drivers
    lists 1,000 images.

    Args:
        url: The folder's URL.
        storage_options: See `fastdata.remote.filesystem.open_filesystem`.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self.root = self.location = url.rstrip("/")
        self._options = storage_options

    def __str__(self) -> str:
        return redact(self.root)

    def __truediv__(self, name: str) -> RemoteTree:
        return RemoteTree(join_url(self.root, name), self._options)

    def classes(self) -> list[str]:
        """See `Tree.classes`."""
        return list_folders(self.root, self._options)

    def records(self, name: str, label: int) -> Iterator[Record]:
        """See `Tree.records`."""
        images = [
            (folder, file, entry)
            for path, entry in list_entries(join_url(self.root, name), self._options).items()
            for folder, _, file in [path.rpartition("/")]
            if is_image_name(file)
        ]
        # As a walk over sorted folders has it, each with its sorted files.
        images.sort(key=lambda image: (f"{name}/{image[0]}".rstrip("/"), image[1]))
        for folder, file, entry in images:
            path = "/".join(filter(None, (name, folder, file)))
            key, problem = storable(path.rpartition(".")[0])
            url = join_url(self.root, path)
            yield Record(key, label, url, 0, entry.size, entry.changed, problem=problem)


def tree_of(
    root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> RemoteTree:
    """The tree behind a URL.

    Raises:
        SourceError: There is nothing.
        RemoteError: It cannot be reached.
    """
    tree = RemoteTree(os.fspath(root), storage_options)
    if not tree.classes():
        raise SourceError(
            f"{tree}: no such folder, or no folders in it",
            "Say where the images are with --root: the folder above the classes.",
        )
    return tree

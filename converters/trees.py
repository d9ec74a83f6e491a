"""Where a tree of images lies: a folder of this machine, or a URL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from fastdata.converters.files import LocalFile, SourceFile
from fastdata.converters.records import Record
from fastdata.converters.tree import (
    class_folders,
    class_records,
    is_file,
    scan,
    storable,
)

from fastdata.remote.files import RemotePath, remote_path
from fastdata.remote.filesystem import list_entries, list_folders
from fastdata.remote.urls import join_url, listed_name, redact
from fastdata.storage.probe import is_image_name


class Tree(Protocol):
    """A folder whose folders are classes of images, or that archives or Parquet files lie in."""

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

    def file(self, name: str) -> SourceFile | None:
        """A file in it; None where there is none.

        Raises:
            SourceError: One may not even ask.
        """

    def files(self, extension: str) -> Mapping[str, SourceFile]:
        """The files of an extension at any depth, by their paths below it.

        They come in the order of folders and names. What begins with ``_`` or ``.``, a file or a
        folder, is left out: Spark and Hadoop keep there what is not data.

        Raises:
            SourceError: A folder cannot be read.
        """


#: What names begin with that are not data.
_NO_DATA = ("_", ".")


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

    def file(self, name: str) -> LocalFile | None:
        """See `Tree.file`."""
        path = self.location / name
        return LocalFile(path) if is_file(path) else None

    def files(self, extension: str) -> dict[str, LocalFile]:
        """See `Tree.files`."""
        paths = _data_files(self.location, extension)
        return {path.relative_to(self.location).as_posix(): LocalFile(path) for path in paths}


def _data_files(folder: Path, extension: str) -> Iterator[Path]:
    for entry in scan(folder):
        if entry.name.startswith(_NO_DATA):
            continue
        if entry.is_dir():
            yield from _data_files(Path(entry.path), extension)
        elif entry.name.endswith(extension):
            yield Path(entry.path)


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

    def file(self, name: str) -> RemotePath | None:
        """See `Tree.file`."""
        try:
            return remote_path(join_url(self.root, name), self._options)
        except FileNotFoundError:
            return None

    def files(self, extension: str) -> dict[str, RemotePath]:
        """See `Tree.files`."""
        found = {
            listed_name(self.root, name): RemotePath(
                join_url(self.root, name), entry.size, entry.changed, self._options
            )
            for name, entry in list_entries(self.root, self._options).items()
        }
        return {
            name: found[name]
            for name in sorted(found, key=lambda name: name.split("/"))
            if name.endswith(extension)
            and not any(part.startswith(_NO_DATA) for part in name.split("/"))
        }

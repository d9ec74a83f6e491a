"""Trees of a source's files, on this machine or behind a URL.

A tree of images is ``<class>/**/<image>``, in torchvision's order. Classes are the top folders,
sorted by name; inside, the order is ``sorted(os.walk())`` and then the sorted file names.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from fastdata.converters.records import Record

from fastdata.errors import SourceError, printable
from fastdata.remote.files import RemotePath, SourceFile, file_at, list_paths, remote_path
from fastdata.remote.filesystem import list_folders
from fastdata.remote.urls import is_url, join_url, listed_name, redact
from fastdata.storage.encodings import is_image_name
from fastdata.storage.local import LocalFile
from fastdata.text import is_utf8

#: Prefixes of names that are not data.
_NO_DATA = ("_", ".")


#: Numbers of files skipped because they are no images, by suffix.
LeftOut: TypeAlias = Counter[str]


def source_tree(
    root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Tree:
    """Return the folder of a source; a URL is not contacted yet."""
    if is_url(root):
        return RemoteTree(os.fspath(root), storage_options)
    folder = Path(root)
    if not is_folder(folder):
        reason = "is not a folder" if folder.exists() else "no such folder"
        raise SourceError(f"{root}: {reason}", "Give the folder of the images with --root.")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise unreadable(folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    return LocalTree(require_utf8(folder.resolve()))


class LocalTree:
    """Folder of this machine; ``root`` and ``location`` are its absolute path."""

    def __init__(self, root: Path) -> None:
        self.location, self.root = root, str(root)

    def __str__(self) -> str:
        return self.root

    def __truediv__(self, name: str) -> LocalTree:
        return LocalTree(self.location / name)

    def classes(self) -> list[str]:
        """Return the sorted names of its folders, also hidden ones, like torchvision.

        There are none if it does not exist.
        """
        entries = scan(self.location) if is_folder(self.location) else []
        names = [entry.name for entry in entries if is_folder(entry)]
        for name in names:
            if not is_utf8(name):
                raise SourceError(
                    f"{self}: the class folder {printable(name)} has a name that is not UTF-8",
                    "Rename it; class names are stored as UTF-8.",
                )
        return names

    def file(self, name: str) -> LocalFile | None:
        """Return a file of the folder; None if it does not exist."""
        path = self.location / name
        try:
            return LocalFile(path) if path.is_file() else None
        except OSError as error:
            raise unreadable(path, error) from None

    def listed(self) -> dict[str, LocalFile]:
        """Return all files at any depth, by their paths below the folder."""
        entries = chain.from_iterable(map(scan, walk(self.root)))
        paths = (entry.path for entry in entries if not is_folder(entry))
        return {path[len(self.root) + 1 :]: LocalFile(Path(path)) for path in paths}


class RemoteTree:
    """Folder behind a URL, with the methods of `LocalTree`.

    Lists one class at a time, to limit memory; most drivers list 1,000 images per request.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self.root = self.location = url.rstrip("/")
        self._options = storage_options

    def __str__(self) -> str:
        return redact(self.root)

    def __truediv__(self, name: str) -> RemoteTree:
        return RemoteTree(join_url(self.root, name), self._options)

    def classes(self) -> list[str]:
        """See `LocalTree`."""
        return list_folders(self.root, self._options)

    def file(self, name: str) -> RemotePath | None:
        """See `LocalTree`."""
        with suppress(FileNotFoundError):
            return remote_path(join_url(self.root, name), self._options)
        return None

    def listed(self) -> dict[str, RemotePath]:
        """See `LocalTree`."""
        return {
            listed_name(self.root, name): file
            for name, file in list_paths(self.root, self._options).items()
        }


#: Folder of class folders, archives or Parquet files.
Tree: TypeAlias = LocalTree | RemoteTree


def class_records(tree: Tree, name: str, label: int, left_out: LeftOut) -> Iterator[Record]:
    """Yield the images of one class folder, in torchvision's order.

    Keys are paths below the tree, with ``/``, without extension unless several images differ in it
    alone. Adds other files to ``left_out``.
    """
    files: Mapping[str, SourceFile] = (tree / name).listed()
    stems = Counter(path.rpartition(".")[0] for path in files if is_image_name(path))
    paths = ((*path.rpartition("/")[::2], path) for path in files)
    # The order of a walk over sorted folders and their sorted files.
    for _, file, path in sorted(paths, key=lambda one: (f"{name}/{one[0]}".rstrip("/"), one[1])):
        if not is_image_name(file):
            left_out[suffix_of(file)] += 1
            continue
        stem = path.rpartition(".")[0]
        key, problem = storable(f"{name}/{path if stems[stem] > 1 else stem}")
        size = mtime_ns = 0
        try:
            size, mtime_ns = files[path].size, files[path].mtime_ns
        except OSError as error:  # most likely a dangling link
            problem = f"cannot be read: {error.strerror}"
        yield Record(key, label, files[path].location, 0, size, mtime_ns, problem=problem)


def data_files(tree: Tree, extension: str) -> dict[str, SourceFile]:
    """Return the files with an extension at any depth, by their paths below the folder.

    They are sorted by folder, then name. Files and folders whose names begin with ``_`` or ``.``
    are skipped: Spark and Hadoop keep metadata there.
    """
    files: Mapping[str, SourceFile] = tree.listed()
    split = ((name.split("/"), name) for name in files if name.lower().endswith(extension))
    data = sorted(one for one in split if not any(part.startswith(_NO_DATA) for part in one[0]))
    return {name: files[name] for _, name in data}


def suffix_of(name: str) -> str:
    """Return a file's suffix in lower case; the name of a hidden file; else "no suffix"."""
    return printable(os.path.splitext(name)[1].lower() or (name if name[0] == "." else "no suffix"))


def scan(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """Return a folder's entries sorted by name."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise unreadable(folder, error) from None


def is_folder(path: Path | os.DirEntry[str]) -> bool:
    """Return whether a path is a folder; a link to itself, like a dangling one, is none."""
    try:
        return path.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        # Skipping a class silently would shift the labels after it.
        raise unreadable(os.fspath(path), error) from None


def read_file(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> bytes:
    """Read a file, or its URL, whole."""
    try:
        with file_at(os.fspath(path), storage_options).open() as file:
            data: bytes = file.read()
            return data
    except OSError as error:
        raise unreadable(printable(redact(os.fspath(path))), error) from None


def unreadable(place: object, error: OSError) -> SourceError:
    """Return the error for a file or folder that cannot be read."""
    return SourceError(
        f"{place}: cannot be read: {error.strerror or 'it does not exist'}",
        "Check the path and its permissions (ls -ld, chmod +rx).",
    )


def walk(folder: str, above: Sequence[tuple[int, int]] = ()) -> Iterator[str]:
    """Yield a folder and all below it, following links; ``above`` guards against loops."""
    stat = os.stat(folder)
    here = (stat.st_dev, stat.st_ino)
    if here in above:
        raise SourceError(
            f"{printable(folder)}: this link leads back to a folder that contains it",
            "Remove the link.",
        )
    yield folder
    for entry in scan(folder):
        if is_folder(entry):
            yield from walk(entry.path, (*above, here))


def storable(key: str) -> tuple[str, str | None]:
    """Return a key that can be stored, and its problem if it is not UTF-8."""
    if is_utf8(key):
        return key, None
    return printable(key), "its name is not UTF-8; rename it"


def require_utf8(root: Path) -> Path:
    """Return a path unchanged, if a manifest can store it."""
    if not is_utf8(str(root)):
        raise SourceError(f"{printable(str(root))}: this path is not UTF-8", "Rename the folder.")
    return root

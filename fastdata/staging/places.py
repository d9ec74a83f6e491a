"""Sources of a staged copy: a local folder, or a URL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fastdata.remote.filesystem import file_sizes, read_bytes
from fastdata.remote.manifests import images_url
from fastdata.remote.opening import RemoteSource
from fastdata.remote.urls import is_url, join_url, redact
from fastdata.staging.copying import CopiedFile, damaged
from fastdata.staging.staged import Original
from fastdata.storage.files import open_file, read_exactly, read_file
from fastdata.storage.manifest import FileEntry
from fastdata.storage.packed import IndexedSource, PackedSource


class Place:
    """Folder or URL to copy from.

    Args:
        location: The folder or URL.
        storage_options: Options of the driver of a URL.
    """

    def __init__(
        self, location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self._location, self._options = os.fspath(location), storage_options
        self.is_remote = is_url(location)

    def _at(self, name: str) -> str:
        join = join_url if self.is_remote else os.path.join
        return join(self._location, name)

    def copied(self, entry: FileEntry, target: Path, name: str | None = None) -> CopiedFile:
        """Return a file to copy; ``name`` overrides the entry's name in this place."""
        where = self._at(name or entry.name)
        read = partial(_read_local, where, entry.size)
        if self.is_remote:
            read = partial(read_bytes, where, self._options)
        return CopiedFile(entry, self.shown(name or entry.name), target, read)

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes in bytes of the files that exist, by name."""
        if self.is_remote:
            return file_sizes(self._location, names, self._options)
        paths = {name: self._at(name) for name in names}
        return {name: os.stat(path).st_size for name, path in paths.items() if os.path.exists(path)}

    def shown(self, name: str) -> str:
        """Return a file's name for messages."""
        return redact(self._at(name)) if self.is_remote else self._at(name)

    def read(self, name: str) -> bytes:
        """Return a small file's bytes."""
        if self.is_remote:
            return read_bytes(self._at(name), self._options)
        return read_file(self._at(name))

    def root(self, root: str) -> Place:
        """Return the folder of images or archives that a manifest names.

        Raises:
            DatasetError: The manifest is in a bucket, but the images are on some machine.
        """
        return Place(images_url(self._location, root), self._options)

    def opened(self, original: Original) -> IndexedSource:
        """Return the dataset that lies here, in its state ``original``."""
        if self.is_remote:
            return RemoteSource(self._location, None, self._options, text=original.text)
        return PackedSource(Path(self._location), manifest=original.manifest())

    def require_sizes(self, entries: Sequence[FileEntry]) -> None:
        """Check that files exist and have the right sizes.

        Raises:
            CorruptionError: A file is missing or has another size.
        """
        sizes = self.sizes([entry.name for entry in entries])
        for entry in entries:
            _require_size(self.shown(entry.name), sizes.get(entry.name), entry.size)


def _require_size(path: str, found: int | None, size: int) -> None:
    if found != size:
        problem = "is missing" if found is None else f"has {found} bytes, not {size}"
        raise damaged(path, f"it {problem}")


def _read_local(path: str, size: int, start: int, stop: int) -> bytes:
    with open_file(path) as file:
        _require_size(path, os.fstat(file.fileno()).st_size, size)
        return read_exactly(file.fileno(), start, stop - start)

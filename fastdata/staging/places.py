"""Sources of a staged copy: a local folder, or a URL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fastdata.errors import CorruptionError
from fastdata.remote.filesystem import download, file_sizes, read_bytes
from fastdata.remote.manifests import images_url
from fastdata.remote.urls import is_url, join_url, redact
from fastdata.staging.copying import CopiedFile
from fastdata.storage.checksum import crc32c_file
from fastdata.storage.files import read_file
from fastdata.storage.manifest import FileEntry


class Place:
    """Local folder to copy from; `RemotePlace` is its counterpart behind a URL."""

    def __init__(self, folder: Path, storage_options: Mapping[str, Any] | None = None) -> None:
        self._folder = folder
        self._options = storage_options

    def __str__(self) -> str:
        return str(self._folder)

    def copied(self, entry: FileEntry, target: Path, name: str | None = None) -> CopiedFile:
        """Return a file to copy; ``name`` overrides the entry's name in this place."""
        return CopiedFile(entry, self._folder / (name or entry.name), target)

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes in bytes of the files that exist, by name."""
        paths = {name: self._folder / name for name in names}
        return {name: path.stat().st_size for name, path in paths.items() if path.exists()}

    def shown(self, name: str) -> str:
        """Return a file's name for messages."""
        return str(self._folder / name)

    def read(self, name: str) -> bytes:
        """Return a small file's bytes."""
        return read_file(self._folder / name)

    def root(self, root: str) -> Place:
        """Return the folder of images or archives that a manifest names.

        Raises:
            DatasetError: The manifest is in a bucket, but the images are on some machine.
        """
        where = root if is_url(root) else self._folder / root
        return place_of(where, self._options)

    def local_index(self, entry: FileEntry, copy: Path) -> Path:
        """Return the index as a local file; ``copy`` is the folder of the copy."""
        return self._folder / entry.name

    def require_sizes(self, entries: Iterable[FileEntry]) -> None:
        """Check that files exist and have the right sizes.

        Raises:
            CorruptionError: A file is missing or has another size.
        """
        entries = list(entries)
        sizes = self.sizes([entry.name for entry in entries])
        for entry in entries:
            found = sizes.get(entry.name)
            if found != entry.size:
                what = "is missing" if found is None else f"has {found} bytes, not {entry.size}"
                raise CorruptionError(
                    f"{self.shown(entry.name)}: the original is damaged, or was changed after "
                    f"packing: it {what}",
                    "Run fastdata verify to find further damage; then copy or pack the dataset "
                    "again.",
                )


class RemotePlace(Place):
    """Folder behind a URL."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self.url = url
        self._options = storage_options

    def __str__(self) -> str:
        return redact(self.url)

    def copied(self, entry: FileEntry, target: Path, name: str | None = None) -> CopiedFile:
        """See `Place.copied`."""
        url = join_url(self.url, name or entry.name)
        return CopiedFile(entry, redact(url), target, partial(read_bytes, url, self._options))

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """See `Place.sizes`."""
        return file_sizes(self.url, names, self._options)

    def shown(self, name: str) -> str:
        """See `Place.shown`."""
        return redact(join_url(self.url, name))

    def read(self, name: str) -> bytes:
        """See `Place.read`."""
        return read_bytes(join_url(self.url, name), self._options)

    def root(self, root: str) -> RemotePlace:
        """See `Place.root`."""
        return RemotePlace(images_url(self.url, root), self._options)

    def local_index(self, entry: FileEntry, copy: Path) -> Path:
        """See `Place.local_index`; download it unless ``copy`` has it."""
        target = copy / entry.name
        if not (target.exists() and f"{crc32c_file(target):08x}" == entry.crc32c):
            url = join_url(self.url, entry.name)
            download(
                url,
                target,
                size=entry.size,
                crc32c=entry.crc32c,
                storage_options=self._options,
            )
        return target


def place_of(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Place:
    """Return the place of a path or URL."""
    if is_url(location):
        return RemotePlace(os.fspath(location), storage_options)
    return Place(Path(location), storage_options)

"""`DatasetPlace`: a dataset by its path or URL, its staged copy, or files indexed on use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastdata.errors import DatasetError, UsageError
from fastdata.remote.manifests import read_manifest
from fastdata.remote.options import RemoteOptions
from fastdata.remote.patterns import absolute, is_pattern
from fastdata.remote.urls import is_url, redact
from fastdata.staging.first_use import indexed, is_indexed_here
from fastdata.staging.staged import Original, note_of_copy
from fastdata.storage.cache import Cache
from fastdata.storage.manifest import PartsError
from fastdata.storage.packed import noted
from fastdata.storage.parts import open_local
from fastdata.storage.source import Source


class DatasetPlace:
    """Path or URL of a dataset, and the options of reading it.

    ``fixed``: it is a table's name or absolute path already.

    Attributes:
        path: The folder, absolute; or the URL without credentials.
        is_remote: Whether it is a URL.
        cache: What to keep on this machine from epoch to epoch, if anything.
        storage_options: Options of the URL's fsspec driver.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        cache: Cache | None,
        storage_options: Mapping[str, Any] | None,
        remote: RemoteOptions | None,
        fixed: bool = False,
    ) -> None:
        self._text = os.fspath(place) if fixed or is_pattern(place) else absolute(place)
        self.is_remote = is_url(self._text)
        self.path: Path | str = redact(self._text) if self.is_remote else Path(self._text)
        self.cache, self.storage_options, self._remote = cache, storage_options, remote
        # Of files indexed on first use; worker processes read the same index.
        self._index: Path | None = None

    def open(self) -> Source:
        """Open the dataset, a current copy of it, or the index of its files."""
        if self._index is None and is_indexed_here(self._text, self.storage_options):
            self._index = indexed(self._text, self.storage_options)
        if self._index is not None:
            return self._open_folder(self._index)
        original = Original.read(self._text, self.storage_options)
        copy = None if original is None else original.find_copy()
        if self.is_remote and copy is None:
            # Reading the manifest again would cost a round trip.
            return self._open_remote(self._text, None if original is None else original.text)
        return self._open_folder(copy or Path(self._text))

    def is_copy(self, location: Path | str) -> bool:
        """Return whether an opened source lies in a staged copy."""
        return str(location) not in (str(self.path), str(self._index))

    def require_local_options(self) -> None:
        """Raise `UsageError` for options that apply to URLs alone."""
        if self.storage_options is not None or self._remote is not None:
            raise UsageError(
                f"{self.path}: storage_options= and remote= are for URLs", "Leave them out."
            )

    def _open_folder(self, folder: Path) -> Source:
        note = note_of_copy(folder)
        try:
            source = open_local(folder)
        except DatasetError as error:
            raise noted(error, note) from None
        source.note = note
        here = source.manifest.groups is None and source.capabilities.local
        if here and not is_url(source.manifest.root or ""):
            return source
        return self._open_remote(str(folder))

    def _open_remote(self, url: str, text: bytes | None = None) -> Source:
        # Not for local datasets.
        from fastdata.remote.opening import Access, RemoteParts, RemoteSource

        access = Access(url, self.cache, self.storage_options, self._remote)
        text = read_manifest(url, self.storage_options) if text is None else text
        try:
            return RemoteSource(access, text)
        except PartsError as error:
            return RemoteParts(access, error.manifest, text)

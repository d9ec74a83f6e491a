"""An index of many parts whose files lie behind URLs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastdata import _native
from fastdata.remote.manifests import read_manifest
from fastdata.remote.opening import Fetched, RemoteSource
from fastdata.remote.options import RemoteOptions
from fastdata.remote.ranges import FileRef
from fastdata.remote.urls import is_url, join_url, redact
from fastdata.storage.cache import Cache
from fastdata.storage.manifest import PartsError
from fastdata.storage.packed import IndexedSource
from fastdata.storage.parted import Part, PartedSource, Parts


class RemoteParts(Fetched, PartedSource):
    """Source of an index of parts behind a URL, or of files behind one.

    A part's manifest and index are fetched when one of its rows is asked for. All parts share a
    reader and a cache folder. See `Fetched` for arguments.
    """

    def __init__(
        self,
        url: str,
        manifest: Parts,
        cache: Cache | None = None,
        storage_options: Mapping[str, Any] | None = None,
        options: RemoteOptions | None = None,
        text: bytes | None = None,
    ) -> None:
        Fetched.__init__(self, url, cache, storage_options, options, text)
        PartedSource.__init__(self, redact(url) if is_url(url) else Path(url), manifest)

    def __reduce__(self) -> tuple[object, ...]:
        about = self.url, self.manifest, self.given_cache, self.storage_options, self.options
        return RemoteParts, about

    def _open(self, part: Part) -> IndexedSource:
        about = self.given_cache, self.storage_options, self.options, self
        return RemoteSource(join_url(self.url, part.name), *about)

    @property
    def file_bytes(self) -> int:
        """See `Fetched.file_bytes`."""
        return sum(part.file_bytes for part in self.manifest.parts)

    @property
    def server(self) -> str:
        """See `Fetched.server`."""
        first = self._part(0)
        assert isinstance(first, Fetched)
        return self.url if is_url(self.url) else first.server

    def ref(self, extents: _native.Extents, slot: int, file: int, stop: int, row: int) -> FileRef:
        """See `Fetched.ref`."""
        part, own = self._place(row)
        assert isinstance(part, Fetched)
        return part.ref(extents, slot, file, stop, own)


def open_remote(
    url: str,
    cache: Cache | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: RemoteOptions | None = None,
    text: bytes | None = None,
) -> RemoteSource | RemoteParts:
    """Open a dataset, or an index of parts, behind a URL; see `RemoteSource`.

    ``text`` is its manifest, if the caller has read it.
    """
    text = read_manifest(url, storage_options) if text is None else text
    try:
        return RemoteSource(url, cache, storage_options, options, text=text)
    except PartsError as error:
        manifest = Parts.parse_found(error)
    return RemoteParts(url, manifest, cache, storage_options, options, text)

"""Download of a remote dataset, one file at a time, to verify it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastdata.errors import CorruptionError
from fastdata.remote.filesystem import download, file_info
from fastdata.remote.opening import RemoteSource
from fastdata.remote.urls import is_url
from fastdata.staging.copying import Place
from fastdata.staging.staged import IMAGES_NAME
from fastdata.storage.manifest import MANIFEST_NAME, FileEntry, with_root
from fastdata.storage.packed import PackedSource, own_files
from fastdata.storage.paths import is_inside
from fastdata.storage.row_groups import split_name

_THREADS = 16
_LOOSE_ROWS = 1024  # loose images in a view

#: Folder that looks like the dataset but holds only some of its files, their numbers, and the first
#: of their samples and one past the last.
View = tuple[Path, list[int], int, int]


@contextmanager
def fetching(url: str, storage_options: Mapping[str, Any] | None) -> Iterator[Fetching]:
    """Open a remote dataset, or one whose index is here; fetch files to a temporary folder."""
    remote = RemoteSource(url.rstrip("/"), None, storage_options)
    with TemporaryDirectory(prefix="fastdata-", ignore_cleanup_errors=True) as folder:
        yield Fetching(remote, Path(folder))


class Fetching:
    """Remote dataset whose manifest and index are here, and other files on request.

    ``blobs`` has the manifest, the index and what `fetch_fields` fetched; no files to read blobs
    from.
    """

    def __init__(self, remote: RemoteSource, folder: Path) -> None:
        self.remote, self.name, self._folder = remote, str(remote.location), folder
        self._manifest = remote.manifest
        self._place = Place(remote.url, remote.storage_options)
        (folder / MANIFEST_NAME).write_bytes(remote.text)
        (folder / self._manifest.index.name).symlink_to(remote.index.path.absolute())
        self.blobs = PackedSource(folder)

    def fetch_fields(self, *, columns: bool = True) -> None:
        """Fetch the indexes of further fields, and columns unless ``columns`` is False."""
        kept = {one.file for one in self._manifest.fields if not columns}
        for number in range(self._manifest.blob_files, len(self._manifest.files)):
            name = self._manifest.files[number].name
            if name not in kept:
                self._fetch_file(number, self._folder / name)

    def size_problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path, problem) for each file that is missing or has the wrong size."""
        manifest = self._manifest
        if manifest.blob_files and manifest.root is not None:
            files: Iterable[FileEntry] = manifest.files[: manifest.blob_files]
            if manifest.groups is not None:
                files = (replace(one, name=split_name(one.name)[0]) for one in files)
            yield from _wrong_sizes(self._place.root(manifest.root), files, "manifest")
        yield from _wrong_sizes(self._place, manifest.own_files, "manifest", self._folder)

    def loose_problems(self, fields: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield (file, problem) for the same of a ``folder`` dataset's images and blobs."""
        manifest = self._manifest
        if manifest.container == "folder" and manifest.root is not None:
            files = own_files(self.blobs, fields, 0, manifest.samples)
            yield from _wrong_sizes(self._place.root(manifest.root), files, "index")

    def views(self, fields: Sequence[str]) -> Iterator[View]:
        """Yield the dataset in parts; prefetch the next while one is in use, then remove that.

        Parts of a ``folder`` dataset have the images and blobs of ``fields``.
        """
        with ThreadPoolExecutor(1) as pool:
            ready = None
            for part in (*self._parts(), None):
                coming = part and pool.submit(self._make, fields, *part)
                if ready is not None:
                    yield ready.result()
                    shutil.rmtree(ready.result()[0], ignore_errors=True)
                ready = coming

    def _parts(self) -> Iterator[tuple[list[int], int, int]]:
        manifest, index = self._manifest, self.blobs.index
        if manifest.container == "folder":
            for start in range(0, manifest.samples, _LOOSE_ROWS):
                yield [], start, min(start + _LOOSE_ROWS, manifest.samples)
        for number in range(manifest.blob_files):
            yield [number], index.find_file(number), index.find_file(number + 1)

    def _make(self, fields: Sequence[str], files: list[int], start: int, stop: int) -> View:
        manifest, text = self._manifest, self.remote.text
        folder = self._folder / f"view-{start}-{files[0] if files else 0}"
        folder.mkdir()
        named = text if manifest.root is None else with_root(text, IMAGES_NAME)
        (folder / MANIFEST_NAME).write_bytes(named)
        for entry in (manifest.index, *manifest.files[manifest.blob_files :]):
            if (self._folder / entry.name).exists():
                os.link(self._folder / entry.name, folder / entry.name)
        targets = manifest.places(folder, folder / IMAGES_NAME)
        for number in files:
            self._fetch_file(number, Path(targets[number]))
        if manifest.container == "folder" and manifest.root is not None:
            root = self._place.root(manifest.root)

            def fetch(file: FileEntry) -> None:
                path = folder / IMAGES_NAME / file.name
                path.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # as below
                    path.write_bytes(root.read(file.name))

            loose = own_files(self.blobs, fields, start, stop)
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(fetch, (file for file in loose if is_inside(file.name))))
        return folder, files, start, stop

    def _fetch_file(self, number: int, path: Path) -> None:
        """Fetch a file unless it is missing, also a damaged one: the checks report both."""
        entry, url = self._manifest.files[number], self.remote.files.places[number]
        path.parent.mkdir(parents=True, exist_ok=True)
        if not is_url(url):
            path.symlink_to(os.path.abspath(url))
            return
        options: dict[str, Any] = {"size": entry.size, "storage_options": self._place.options}
        with suppress(FileNotFoundError):
            if file_info(url, self._place.options).size != entry.size:
                return
            try:
                download(url, path, crc32c=entry.crc32c or None, **options)
            except CorruptionError:
                download(url, path, **options)


def _wrong_sizes(
    place: Place, files: Iterable[FileEntry], says: str, folder: Path | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (path, problem) for files that are missing or have another size, below ``folder``."""
    files = list(files)
    sizes = place.sizes([one.name for one in files])
    for one in files:
        path = place.shown(one.name) if folder is None else f"{folder}/{one.name}"
        size = sizes.get(one.name)
        if size is None:
            yield path, os.strerror(errno.ENOENT)
        elif size != one.size:
            yield path, f"has {size} bytes, the {says} says {one.size}"

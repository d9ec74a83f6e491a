"""Download of a remote dataset, one file at a time, to verify or describe it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fastdata.errors import CorruptionError, SpaceError
from fastdata.remote.filesystem import download, file_info
from fastdata.remote.opening import RemoteSource
from fastdata.remote.urls import is_url
from fastdata.staging.places import Place
from fastdata.storage.files import free_space, human_bytes
from fastdata.storage.manifest import MANIFEST_NAME, with_root
from fastdata.storage.packed import PackedSource
from fastdata.storage.paths import is_inside
from fastdata.storage.row_groups import split_name

_THREADS = 16
_LOOSE_ROWS = 1024  # loose images in a view
_IMAGES_NAME = "images"


class View(NamedTuple):
    """Folder that looks like the dataset but holds only some of its files, and their samples."""

    folder: Path
    files: list[int]
    start: int
    stop: int


@contextmanager
def fetching(url: str, storage_options: Mapping[str, Any] | None) -> Iterator[Fetching]:
    """Open a remote dataset, whose files are fetched to a temporary folder.

    Args:
        url: The dataset's URL; or a folder of this machine, whose index names files behind URLs.
        storage_options: See `fastdata.remote.drivers.open_filesystem`.

    Raises:
        DatasetError: There is no finished dataset.
        CorruptionError: The index is missing or damaged.
        RemoteError: The server cannot be reached.
    """
    remote = RemoteSource(url.rstrip("/"), None, storage_options)
    with TemporaryDirectory(prefix="fastdata-", ignore_cleanup_errors=True) as folder:
        yield Fetching(remote, Path(folder))


class Fetching:
    """Remote dataset whose manifest and index are here, and other files as they are asked for.

    Attributes:
        remote: The dataset where it is.
        name: Its URL without credentials.
        blobs: The manifest, the index and what `fetch_fields` has fetched, without files to read
            blobs from.
    """

    def __init__(self, remote: RemoteSource, folder: Path) -> None:
        self.remote, self.name, self._folder = remote, str(remote.location), folder
        self._options = remote.storage_options
        self._place = Place(remote.url, self._options)
        (folder / MANIFEST_NAME).write_bytes(remote.text)
        (folder / remote.manifest.index.name).symlink_to(remote.index.path.absolute())
        self.blobs = PackedSource(folder)

    def fetch_fields(self, *, columns: bool = True) -> None:
        """Fetch the indexes of further fields, and columns unless told otherwise."""
        manifest = self.blobs.manifest
        kept = {one.file for one in manifest.fields} if not columns else ()
        for number in range(manifest.blob_files, len(manifest.files)):
            entry = manifest.files[number]
            if entry.name in kept:
                continue
            self._require_space(entry.size)
            # Checks report a missing file, and reading it fails.
            with suppress(FileNotFoundError):
                self._fetch_file(number, self._folder / entry.name)

    def size_problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path, problem) for each file that is missing or has the wrong size."""
        manifest, folder = self.blobs.manifest, self.blobs.location
        archives = [entry for entry in manifest.files if not entry.crc32c]
        groups = [(self._place, manifest.own_files)]
        if archives and manifest.root is not None:
            groups.insert(0, (self._place.root(manifest.root), archives))
        for place, entries in groups:
            tables = manifest.groups is not None and entries is archives
            names = [split_name(one.name)[0] if tables else one.name for one in entries]
            sizes = place.sizes(names)
            for name, entry in zip(names, entries, strict=True):
                found = sizes.get(name)
                if found != entry.size:
                    shown = place.shown(name) if entries is archives else f"{folder}/{name}"
                    yield shown, _size_problem(found, entry.size, "manifest")

    def loose_problems(self, fields: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield (file, problem) for the same of a ``folder`` dataset's images and blobs."""
        manifest = self.blobs.manifest
        if manifest.container != "folder" or manifest.root is None:
            return
        root = self._place.root(manifest.root)
        everything = self.blobs.own_files(fields, 0, manifest.samples)
        sizes = root.sizes(file.name for file in everything)
        for file in self.blobs.own_files(fields, 0, manifest.samples):
            found = sizes.get(file.name)
            if found != file.size:
                yield root.shown(file.name), _size_problem(found, file.size, "index")

    def views(self, fields: Sequence[str]) -> Iterator[View]:
        """Yield the dataset in parts; each is removed when the next is requested.

        The next part is prefetched while one is in use.

        Args:
            fields: Fields of images and blobs that a ``folder`` dataset's parts have.

        Raises:
            RemoteError: A file cannot be fetched.
            SpaceError: There is no room for two parts.
        """
        with ThreadPoolExecutor(1) as next_part, ThreadPoolExecutor(_THREADS) as self._pool:
            self._fields = fields
            parts = self._parts()
            first = next(parts, None)
            waiting = None if first is None else next_part.submit(self._make, *first)
            while waiting is not None:
                view = waiting.result()
                following = next(parts, None)
                waiting = None if following is None else next_part.submit(self._make, *following)
                yield view
                shutil.rmtree(view.folder, ignore_errors=True)

    def _parts(self) -> Iterator[tuple[list[int], int, int]]:
        manifest, index = self.blobs.manifest, self.blobs.index
        if manifest.container == "folder":
            for start in range(0, manifest.samples, _LOOSE_ROWS):
                yield [], start, min(start + _LOOSE_ROWS, manifest.samples)
            return
        for number in range(manifest.blob_files):
            yield [number], index.find_file(number), index.find_file(number + 1)

    def _make(self, files: list[int], start: int, stop: int) -> View:
        manifest = self.blobs.manifest
        folder = self._folder / f"view-{start}-{files[0] if files else 0}"
        folder.mkdir()
        text = self.remote.text
        named = text if manifest.root is None else with_root(text, _IMAGES_NAME)
        (folder / MANIFEST_NAME).write_bytes(named)
        for entry in (manifest.index, *manifest.files[manifest.blob_files :]):
            if (self._folder / entry.name).exists():
                os.link(self._folder / entry.name, folder / entry.name)
        targets = manifest.places(folder, folder / _IMAGES_NAME)
        for number in files:
            self._require_space(manifest.files[number].size)
            # The check of the part reports the missing file.
            with suppress(FileNotFoundError):
                self._fetch_file(number, Path(targets[number]))
        if manifest.container == "folder" and manifest.root is not None:
            self._fetch_loose(self._place.root(manifest.root), folder / _IMAGES_NAME, start, stop)
        return View(folder, files, start, stop)

    def _fetch_file(self, number: int, path: Path) -> None:
        """Fetch a file, even a damaged one: the check of the part reports it."""
        entry, url = self.blobs.manifest.files[number], self.remote.places[number]
        if not is_url(url):
            path.symlink_to(os.path.abspath(url))
            return
        if file_info(url, self._options).size != entry.size:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"size": entry.size, "storage_options": self._options}
        try:
            download(url, path, crc32c=entry.crc32c or None, **options)
        except CorruptionError:
            download(url, path, **options)

    def _fetch_loose(self, root: Place, folder: Path, start: int, stop: int) -> None:
        def fetch(name: str) -> None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                path.write_bytes(root.read(name))

        names = (file.name for file in self.blobs.own_files(self._fields, start, stop))
        for _ in self._pool.map(fetch, filter(is_inside, names)):
            pass

    def _require_space(self, needed: int) -> None:
        free = free_space(self._folder)
        if needed > free:
            raise SpaceError(
                f"{self._folder}: downloading a file of {self.name} needs {human_bytes(needed)}, "
                f"{human_bytes(free)} are free",
                "Make room, or set $TMPDIR to another folder; or fastdata stage … --to a larger "
                "disk, and verify the copy.",
            )


def _size_problem(found: int | None, size: int, says: str) -> str:
    if found is None:
        return os.strerror(2)
    return f"has {found} bytes, the {says} says {size}"

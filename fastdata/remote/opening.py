"""Remote datasets: the manifest and index are downloaded, the images stay remote."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.errors import CorruptionError, DatasetError, UsageError, printable
from fastdata.remote.filesystem import download, read_bytes
from fastdata.remote.options import RemoteOptions
from fastdata.remote.ranges import FileRef, Request, Wanted
from fastdata.remote.retries import wait_before
from fastdata.remote.urls import is_url, join_url, name_of, redact, resolve_url, split_query
from fastdata.storage.checksum import crc32c_file
from fastdata.storage.files import PARTIAL_SUFFIX, cache_folder, file_lock
from fastdata.storage.index import ExtentTable, Index
from fastdata.storage.manifest import MANIFEST_NAME, MOST_BYTES, FileEntry, Manifest
from fastdata.storage.paths import is_inside
from fastdata.storage.rows import Row
from fastdata.storage.trust import is_own_file, make_cache_folder

if TYPE_CHECKING:
    from fastdata.remote.cache import PieceCache
    from fastdata.remote.reader import RangeReader

#: Parts to fetch of samples that are fetched in part, by slot: `_native.Extents.plan_fetches`.
Fetches: TypeAlias = Mapping[int, Sequence[int]]

#: Value of ``cache=`` that caches nothing on this machine.
RANGES = "ranges"
_HINT = "Run fastdata verify to find further damage; then upload or pack the dataset again."
_ID_DIGITS = 12
_MANIFEST_READS = 3


def read_manifest(url: str, storage_options: Mapping[str, Any] | None) -> bytes:
    """Return the text of a remote dataset's manifest.

    Raises:
        DatasetError: There is no finished dataset.
        RemoteError: The server cannot be reached.
    """
    try:
        return fetch_manifest(join_url(url, MANIFEST_NAME), storage_options)
    except FileNotFoundError:
        raise DatasetError(
            f"{redact(url)}: no dataset here ({MANIFEST_NAME} is missing)",
            "Check the URL; fastdata convert … --out uploads the manifest last.",
        ) from None


def fetch_manifest(url: str, storage_options: Mapping[str, Any] | None) -> bytes:
    """Return the text of a manifest; read it again if it is not valid.

    Raises:
        FileNotFoundError: There is no manifest.
        RemoteError: The manifest cannot be read, or exceeds 64 MiB.
    """
    for number in range(1, _MANIFEST_READS + 1):
        text = read_bytes(url, storage_options, most=MOST_BYTES)
        try:
            Manifest.parse(text, redact(url))
        except CorruptionError:  # a server may send fewer bytes without an error
            if number < _MANIFEST_READS:
                time.sleep(wait_before(number))
            continue
        except DatasetError:
            pass
        break
    return text


class RemoteBlobs:
    """Index and files of a dataset behind a URL; the counterpart of `storage.blobs.Blobs`.

    Opening fetches the manifest. It also fetches the index, unless this machine has a copy
    with the right checksum. Safe to use from several threads, and after a fork. Not picklable.

    Args:
        url: The dataset.
        cache: "ranges", or the cache folder; as text, with a slash in it.
        cache_bytes: Most bytes of images in that folder; None for nine tenths of the free space.
        storage_options: See `fastdata.remote.filesystem.open_filesystem`.
        options: How to read the dataset.

    Raises:
        DatasetError: There is no finished dataset, or it cannot be read.
        RemoteError: The server cannot be reached.
        UsageError: The arguments contradict each other.
    """

    def __init__(
        self,
        url: str,
        cache: str | os.PathLike[str] = RANGES,
        cache_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        options: RemoteOptions | None = None,
    ) -> None:
        self.url = url
        self.path = redact(url)
        self.options = options or RemoteOptions()
        self._storage_options = dict(storage_options or {})
        self._cache_bytes = cache_bytes
        if is_url(cache):
            raise UsageError(
                f"cache={redact(os.fspath(cache))!r} is a URL",
                "Give a folder of this machine.",
            )
        if isinstance(cache, str) and cache != RANGES and os.sep not in cache:
            raise UsageError(
                f"cache={cache!r} is neither {RANGES!r} nor a path with a {os.sep}",
                f"Give cache={RANGES!r}; or cache={f'./{cache}'!r} for a folder of that name.",
            )
        self.cache = None if os.fspath(cache) == RANGES else Path(os.path.realpath(cache))
        if self.cache is None and cache_bytes is not None:
            raise UsageError(
                'cache_bytes= limits a cache folder, but cache is "ranges"',
                "Give cache= a folder, or leave out cache_bytes=.",
            )
        if cache_bytes is not None and cache_bytes < 4 * self.options.piece_bytes:
            raise UsageError(
                f"cache_bytes={cache_bytes} has no room for four pieces of "
                f"{self.options.piece_bytes} bytes",
                "Give more, or smaller pieces: remote=RemoteOptions(piece_bytes=...).",
            )
        text = read_manifest(url, self._storage_options)
        self.manifest = Manifest.parse(text, redact(join_url(url, MANIFEST_NAME)))
        self.id = hashlib.sha256(text).hexdigest()
        self.index = Index(self._fetch_index(text), self.manifest.samples)
        self._root = self._find_root()
        self._urls = [join_url(url, entry.name) for entry in self.manifest.files]
        # Keyed by process: a forked child does not use its parent's readers. It keeps them,
        # because closing a driver without its thread may hang.
        self._opened: dict[int, tuple[RangeReader, PieceCache | None]] = {}

    def _fetch_index(self, text: bytes) -> Path:
        name = f"{name_of(self.url)[:200]}-{self.id[:_ID_DIGITS]}"
        folder = (self.cache or Path(os.path.realpath(cache_folder())) / "remote") / name
        entry = self.manifest.index
        path = folder / Path(entry.name).name
        try:
            make_cache_folder(folder)
            if _is_sound(path, entry):
                return path
            # All processes of this machine need it at once: one fetches it. The folder is
            # writable by this user alone, so no other user can hold the lock.
            with file_lock(folder / "lock") as advance:
                if not _is_sound(path, entry):
                    for left in folder.glob(f"*{PARTIAL_SUFFIX}"):  # of a killed process
                        left.unlink()
                    download(
                        join_url(self.url, entry.name),
                        path,
                        size=entry.size,
                        crc32c=entry.crc32c,
                        storage_options=self._storage_options,
                        progress=advance,
                    )
        except FileNotFoundError:
            raise CorruptionError(
                f"{self.path}: {entry.name} is missing, though the manifest names it", _HINT
            ) from None
        except OSError as error:
            raise DatasetError(
                f"{folder}: cannot store the index of {self.path} here: {error.strerror or error}",
                "Set FASTDATA_CACHE_DIR or cache= to a writable folder.",
            ) from None
        return path

    def _find_root(self) -> str | None:
        root = self.manifest.root
        if root is None:
            return None
        if "://" in root:
            return root
        if root.startswith("/"):
            raise DatasetError(
                f"{self.path}: its images are files in {root} on the machine that indexed them",
                "Pack it: fastdata convert … --to shards.",
            )
        return resolve_url(self.url, root)

    def extents(self) -> ExtentTable:
        """Return the table of extents; its files are URLs, which the core never opens."""
        sizes = [entry.size for entry in self.manifest.files]
        # Without the query, which follows each file's name.
        root = None if self._root is None else split_query(self._root)[0].rstrip("/")
        return self.index.locate(self._urls, sizes, root, len(self.manifest.classes))

    def file(self, row: Row, number: int) -> str:
        """Return the URL of a row's blob; error messages name the row by ``number``.

        Raises:
            CorruptionError: The row names no file of this dataset.
        """
        return redact(self._ref(row, number).url)

    def _ref(self, row: Row, number: int) -> FileRef:
        if row.path is not None and self._root is not None:
            if not is_inside(row.path):
                raise self.corrupt(row, number, f"its path {row.path} leaves the dataset's root")
            if row.file != -1:
                raise self.corrupt(
                    row, number, f"the index gives it both a path and file {row.file}"
                )
            return own_file(join_url(self._root, row.path), row.offset + row.length)
        if not 0 <= row.file < len(self._urls):
            raise self.corrupt(
                row, number, f"the index puts it in file {row.file}, which does not exist"
            )
        return self.shared_file(row.file)

    def shared_file(self, number: int) -> FileRef:
        """Return a file of the manifest by its number."""
        return FileRef(self._urls[number], self.manifest.files[number].size, f"{number:06d}")

    def ref(self, extents: _native.Extents, slot: int, file: int, stop: int) -> FileRef:
        """Return the file of a gathered sample, which must not be corrupt."""
        if file >= 0:
            return self.shared_file(file)
        query = "" if self._root is None else split_query(self._root)[1]
        return own_file(extents.path(slot) + query, stop)

    def read(self, row: Row, number: int) -> bytes:
        """Read a row's blob and check it; error messages name the row by ``number``.

        Raises:
            RemoteError: The server cannot be reached.
            CorruptionError: The blob's checksum is wrong at every try.
        """
        ref = self._ref(row, number)
        start, stop = row.offset, row.offset + row.length
        if not 0 <= start <= stop <= ref.size:
            raise self.corrupt(
                row, number, f"the index puts it beyond the end of {redact(ref.url)}"
            )
        reader, cache = self._here()
        got: list[bytes] = []
        one = Wanted(number, ref, start, stop, row.crc32c)
        reader.run(
            reader.read_checked(
                Request(ref, start, stop, [one]), lambda _, data: got.append(data), cache
            )
        )
        if not got:
            raise self.corrupt(row, number, WRONG_BYTES)
        return got[0]

    @property
    def reader(self) -> RangeReader:
        """Reader of the dataset's files, for this process."""
        return self._here()[0]

    @property
    def local_cache(self) -> PieceCache | None:
        """Cache folder, for this process; None without one."""
        return self._here()[1]

    def _here(self) -> tuple[RangeReader, PieceCache | None]:
        found = self._opened.get(os.getpid())
        if found is not None:
            return found
        # Imported late: they need asyncio, which local datasets do not use.
        from fastdata.remote.cache import PieceCache
        from fastdata.remote.reader import RangeReader

        reader = RangeReader(self.url, self.options, self._storage_options)
        cache = None
        if self.cache is not None:
            total = sum(entry.size for entry in self.manifest.files)
            cache = PieceCache(
                self.cache, self.id, reader, self.options, self._cache_bytes, self.path, total
            )
        # Another thread may have been faster. No lock: a fork could copy it locked.
        return self._opened.setdefault(os.getpid(), (reader, cache))

    def wanted(
        self,
        extents: _native.Extents,
        numbers: npt.NDArray[np.int64],
        draws: npt.NDArray[np.int64] | None = None,
        fetches: Fetches | None = None,
    ) -> dict[int, list[Wanted]]:
        """Return the byte ranges of gathered samples, by slot; skip corrupt samples.

        Args:
            extents: The samples.
            numbers: Their numbers in the dataset.
            draws: Their draws, needed with ``fetches``: each draw has its own crop.
            fetches: A row of ``Extents.plan_fetches`` for each slot that is read in part.
        """
        columns = zip(
            numbers.tolist(),
            extents.files.tolist(),
            extents.offsets.tolist(),
            extents.lengths.tolist(),
            extents.checksums.tolist(),
            strict=True,
        )
        found: dict[int, list[Wanted]] = {}
        for slot, (number, file, offset, length, crc) in enumerate(columns):
            if extents.is_corrupt(slot):
                continue
            ref = self.ref(extents, slot, file, offset + length)
            if not fetches or slot not in fetches:
                found[slot] = [Wanted(number, ref, offset, offset + length, crc)]
                continue
            assert draws is not None
            draw = int(draws[slot])
            size, header_crc, start, stop, first, end = fetches[slot]
            sound = partial(extents.are_rows_sound, slot, start, first, end)
            found[slot] = [
                Wanted(number, ref, offset, offset + size, header_crc, (draw, "header")),
                Wanted(number, ref, offset + start, offset + stop, sound, (draw, "rows")),
            ]
        return found

    def corrupt(self, row: Row, number: int, problem: str) -> CorruptionError:
        """Return the error for a damaged sample."""
        return CorruptionError(
            f"{self.path}: sample {number} ({printable(row.key)}): {problem}", _HINT
        )


def _is_sound(path: Path, entry: FileEntry) -> bool:
    """Return whether the index file on disk matches the manifest; check once per process."""
    try:
        stat = path.lstat()
        state = stat.st_ino, stat.st_size, stat.st_mtime_ns, entry.crc32c
        if _sound.get(path) != state:
            threads = 1 if stat.st_size < _LARGE else _CHECKING
            if not is_own_file(stat):  # checksums can be forged
                return False
            if stat.st_size != entry.size or f"{crc32c_file(path, threads):08x}" != entry.crc32c:
                return False
            _sound[path] = state
    except OSError:  # missing or unreadable: the caller replaces it
        return False
    return True


#: Indexes that this process has checked, and their state at that time.
_sound: dict[Path, tuple[int, int, int, str]] = {}
_LARGE = 256 << 20  # bytes from which several threads check an index
_CHECKING = 4


def own_file(url: str, stop: int) -> FileRef:
    """Return the reference to a file that holds a single sample."""
    # Hash without the query: another token names the same file.
    name = split_query(url)[0]
    return FileRef(url, stop, "p" + hashlib.sha256(name.encode()).hexdigest()[:24])


#: Problem of a sample whose checksum is wrong.
WRONG_BYTES = "its bytes have changed since it was packed, and fetching again did not help"

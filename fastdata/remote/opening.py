"""Remote datasets: the manifest and index are downloaded, the images stay remote."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata import _native
from fastdata.errors import CorruptionError, DatasetError, FastdataError, RemoteError, UsageError
from fastdata.once import once
from fastdata.remote.cache import PieceCache
from fastdata.remote.filesystem import download
from fastdata.remote.manifests import images_url, read_manifest
from fastdata.remote.options import RemoteOptions
from fastdata.remote.prefetch import RemotePass, read_checked
from fastdata.remote.ranges import (
    UNCHECKED,
    WRONG_BYTES,
    Fetches,
    FileRef,
    RangeCache,
    Ranges,
    SampleRanges,
    merge,
)
from fastdata.remote.reader import RangeReader
from fastdata.remote.row_groups import ColumnGroups, RowGroups
from fastdata.remote.urls import is_url, join_url, name_of, redact, split_query
from fastdata.storage.cache import Cache
from fastdata.storage.fields import BLOBS
from fastdata.storage.files import PARTIAL_SUFFIX, cache_folder, crc32c_file, digest_name, file_lock
from fastdata.storage.index import Index
from fastdata.storage.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    PartEntry,
    PartsManifest,
    generation_of,
)
from fastdata.storage.packed import BlobFiles, IndexedSource, PackedSource, require_same
from fastdata.storage.parts import PartsSource
from fastdata.storage.records import Row
from fastdata.storage.row_groups import VALUE_BITS, split_name, starts_of
from fastdata.storage.source import Blocks, PassRequest, Rows, Source
from fastdata.storage.trust import is_own_file, make_cache_folder

#: Seconds until the generation is fetched again: thousands of samples may be missing.
_ASK_EVERY = 30.0


class Access(NamedTuple):
    """Place of a dataset, and how to read it.

    Attributes:
        url: Its URL; or a folder of this machine, whose index names files behind URLs.
        cache: See `Cache`.
        storage_options: Options of the driver.
        options: How to fetch.
    """

    url: str
    cache: Cache | None = None
    storage_options: Mapping[str, Any] | None = None
    options: RemoteOptions | None = None


class FetchedSource(Source):
    """Source whose blobs are fetched by ranges, with cached pieces of files if asked for.

    ``text`` is the manifest's, as it is in the file; fetched if None. Its digest is the ``id``.
    """

    location: Path | str

    def __init__(self, access: Access, text: bytes | None = None) -> None:
        self.access = access
        self.url = url = access.url
        self.location = redact(url) if is_url(url) else Path(url)
        self.options = access.options or RemoteOptions()
        self.storage_options = dict(access.storage_options or {})
        self.cache = access.cache or Cache()
        _check_cache(self.cache, self.options.piece_bytes)
        path = self.cache.path
        self.cache_folder = None if path is None else Path(os.path.realpath(path))
        self.text = read_manifest(url, self.storage_options) if text is None else text
        self.id = hashlib.sha256(self.text).hexdigest()
        # Keyed by process: a forked child does not use its parent's readers. It keeps them,
        # because closing a driver without its thread may hang.
        self._by_process: dict[int, tuple[RangeReader, RangeCache | None]] = {}
        self._present, self._ask_again = "", 0.0  # as of `generation_now`
        #: `FileRef.place` of each file, by its tag.
        self.places: dict[str, int] = {}
        #: Files by the number that `_native.Extents` have, if that suffices.
        self.shared: dict[int, FileRef] = {}

    @property
    @abstractmethod
    def server(self) -> str:
        """A URL of its files."""

    @abstractmethod
    def ref(self, extents: _native.Extents, slot: int, file: int, stop: int, row: int) -> FileRef:
        """Return the file of a gathered sample, which must not be corrupt."""

    def generation_now(self) -> str:
        """See `Source.generation_now`; if the server does not answer, nothing has changed."""
        if time.monotonic() >= self._ask_again:
            try:
                self._present = generation_of(read_manifest(self.url, self.storage_options))
            except RemoteError:
                self._present = self.generation
            except DatasetError:
                self._present = ""
            self._ask_again = time.monotonic() + _ASK_EVERY
        return self._present

    def start_pass(self, request: PassRequest) -> RemotePass:
        return RemotePass(self, self.ranges_of, *self.here(), self.options, request)

    def here(self) -> tuple[RangeReader, RangeCache | None]:
        """Return the reader of its files, and their cache, for this process."""
        opened = self._by_process.get(os.getpid())
        if opened is None:
            reader = RangeReader(self.server, self.storage_options, self.options)
            # Another thread may have been faster. No lock: a fork could copy it locked.
            opened = self._by_process.setdefault(os.getpid(), (reader, self._cache_of(reader)))
        return opened

    def _cache_of(self, reader: RangeReader) -> RangeCache | None:
        if self.cache_folder is None:
            return None
        return PieceCache(self.cache_folder, self.id, reader, self.options, self.cache.bytes)

    def ranges_of(
        self,
        extents: _native.Extents,
        numbers: Rows,
        draws: Rows,
        fetches: Fetches | None = None,
    ) -> SampleRanges:
        """Return the byte ranges of gathered samples; skip corrupt samples.

        ``fetches`` has a row of ``Extents.plan_fetches`` for each slot that is read in part. Each
        draw has its own crop.
        """
        slots = np.delete(np.arange(len(numbers)), extents.corrupt_slots())
        rows, starts = numbers[slots], extents.offsets[slots]
        stops, of = starts + extents.lengths[slots], extents.files[slots]
        columns = zip(*(one.tolist() for one in (slots, of, stops, rows)), strict=True)
        shared = self.shared
        files = [
            shared.get(file) or self.ref(extents, slot, file, stop, row)
            for slot, file, stop, row in columns
        ]
        places = np.array([file.place for file in files], np.int64)
        checks = extents.checksums[slots].astype(np.int64)
        ranges, at = Ranges(files, places, starts, stops, checks), np.full(len(slots), -1)
        found = SampleRanges(ranges, slots, at, rows * _KINDS)
        if not fetches:
            return found
        split = np.flatnonzero(np.isin(slots, list(fetches)))
        sizes, crcs, begins, ends, firsts, lasts = np.array(
            [fetches[slot] for slot in slots[split].tolist()], np.int64
        ).T
        header = starts[split]
        sound: dict[int, Callable[[Any], bool]] = {}
        for number, slot in enumerate(slots[split].tolist()):
            of_rows = int(begins[number]), int(firsts[number]), int(lasts[number])
            sound[len(slots) + number] = partial(extents.are_rows_sound, slot, *of_rows)
        stops[split], checks[split], at[split] = header + sizes, crcs, 0
        keys = np.append(found.keys, draws[slots[split]] * _KINDS + 2)
        keys[split] = draws[slots[split]] * _KINDS + 1
        ranges = Ranges(
            files + [files[one] for one in split.tolist()],
            np.append(places, places[split]),
            np.append(starts, header + begins),
            np.append(stops, header + ends),
            np.append(checks, np.full(len(split), UNCHECKED)),
            sound,
        )
        return SampleRanges(ranges, np.append(slots, slots[split]), np.append(at, begins), keys)


#: Kinds of ranges: whole samples, headers, and rows.
_KINDS = 3


class RemoteSource(FetchedSource, IndexedSource):
    """Source of a dataset behind a URL.

    Opening fetches the manifest. It also fetches the index, unless this machine has a copy
    with the right checksum.

    ``whole`` is the index of parts that it is a part of, which has the reader. Raise DatasetError
    if there is no finished dataset, UsageError if arguments contradict each other.
    """

    def __init__(
        self, access: Access, text: bytes | None = None, whole: FetchedSource | None = None
    ) -> None:
        FetchedSource.__init__(self, access, text)
        self._whole, url = whole, access.url
        manifest = Manifest.parse(self.text, redact(join_url(url, MANIFEST_NAME)))
        self.generation = manifest.generation
        index = self._open_index(manifest.index, manifest.samples)
        self._root = None if manifest.root is None else images_url(url, manifest.root)
        places = manifest.places(url, self._root, join_url)
        # Without the query, which follows each file's name.
        root = None if self._root is None else split_query(self._root)[0].rstrip("/")
        files = BlobFiles(manifest, places, root)
        IndexedSource.__init__(self, self.location, index, files, local=False)
        self._group_bytes = 0
        if manifest.groups is not None:
            if self.cache_folder is not None:
                raise UsageError(
                    f"{self.location}: cache= keeps ranges of files, and a library decodes these",
                    "Leave it out; or pack them: fastdata convert.",
                )
            groups = sum(many for runs in manifest.groups for _, many in runs)
            self._group_bytes = max(manifest.blob_bytes // max(groups, 1), 1)
            # A pass plans with the size of a piece, which is a row group here.
            self.options = replace(self.options, piece_bytes=self._group_bytes)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.generation, pickle.dumps(self.access))

    @once
    def blocks(self) -> Blocks | None:
        """See `Source.blocks`; reads where all rows lie from the index."""
        tables = self.manifest.groups
        if tables is None:
            return None
        rows = self.index.column("offset") >> VALUE_BITS
        rows = rows + (self.index.column("file").astype(np.int64) << VALUE_BITS)
        firsts = [starts_of(runs)[:-1] + (n << VALUE_BITS) for n, runs in enumerate(tables)]
        groups = np.searchsorted(np.concatenate(firsts), rows, "right")
        starts = np.append(0, np.flatnonzero(np.diff(groups)) + 1)[: len(rows)]
        fields = sum(one.kind in BLOBS for one in self.fields)
        return Blocks(starts, max(self.options.memory // (2 * self._group_bytes * fields), 1))

    def _open_index(self, entry: FileEntry, rows: int) -> Index:
        return Index(self._fetch_index(entry), rows, self.generation)

    def _fetch_index(self, entry: FileEntry) -> Path:
        if not is_url(self.url):
            return Path(self.url, entry.name)
        base = self.cache_folder or Path(os.path.realpath(cache_folder())) / "remote"
        folder = base / digest_name(name_of(self.url), self.id)
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
                    url, expected = join_url(self.url, entry.name), (entry.size, entry.crc32c)
                    download(url, path, *expected, self.storage_options, advance)
        except FileNotFoundError:
            raise CorruptionError(
                f"{redact(self.url)}: {entry.name} is missing, though the manifest names it",
                "Upload or pack the dataset again.",
            ) from None
        except OSError as error:
            raise DatasetError(
                f"{folder}: cannot store the index of {redact(self.url)} here: "
                f"{error.strerror or error}",
                "Set FASTDATA_CACHE_DIR or cache= to a writable folder.",
            ) from None
        return path

    @property
    def summary(self) -> str:
        if self.manifest.groups is not None:
            return super().summary + ", decoded a row group at a time"
        folder = self.cache_folder
        return super().summary + (f", cached in {folder}" if folder else ", by ranges")

    def file(self, record: Row, number: int | None) -> str:
        return redact(self._ref(record, number).url)

    def _ref(self, record: Row, number: int | None) -> FileRef:
        own = self._own_path(record, number)
        if own is None:
            return self.shared_file(record.file)
        assert self._root is not None
        return own_file(join_url(self._root, own), record.offset + record.length)

    def shared_file(self, number: int) -> FileRef:
        """Return a file of the manifest by its number."""
        ref = self.shared.get(number)
        if ref is None:
            whole = self._whole or self
            part = "" if self._whole is None else f"{name_of(self.url)}-"
            url, tag = self.files.places[number], f"{part}{number:06d}"
            place = whole.places.setdefault(tag, len(whole.places))
            ref = self.shared[number] = FileRef(url, self.files.sizes[number], tag, place)
        return ref

    def ref(self, extents: _native.Extents, slot: int, file: int, stop: int, row: int) -> FileRef:
        if file >= 0:
            return self.shared_file(file)
        query = "" if self._root is None else split_query(self._root)[1]
        return own_file(extents.path(slot) + query, stop)

    def read(self, records: Sequence[Row], number: int | None) -> list[bytes]:
        """See `IndexedSource.read`: all at once, neighbours by one request."""
        blobs = []
        for outcome in self.read_each([(record, number) for record in records]):
            if isinstance(outcome, FastdataError):
                raise outcome
            blobs.append(outcome)
        return blobs

    def read_each(self, records: Sequence[tuple[Row, int | None]]) -> list[bytes | FastdataError]:
        """Return the bytes of each blob, or why it cannot be read; see `file` for the numbers."""
        outcomes: list[bytes | FastdataError] = [b""] * len(records)
        wanted, files, spans = [], [], []
        for place, (record, number) in enumerate(records):
            start, stop = record.offset, record.offset + record.length
            try:
                ref = self._ref(record, number)
                if not 0 <= start <= stop <= ref.size:
                    problem = f"the index puts it beyond the end of {redact(ref.url)}"
                    raise self._corrupt(record, number, problem)
            except CorruptionError as error:
                outcomes[place] = error
                continue
            wanted.append(place)
            files.append(ref)
            spans.append((ref.place, start, stop, record.crc32c))
        ranges = Ranges(files, *np.array(spans, np.int64).reshape(-1, 4).T)
        # All of them are needed now, so bytes between them cost less than a request.
        order, begins = merge(ranges, self.options.merge_gap, self.options.max_request, math.inf)
        merged = np.split(order, begins[1:]) if len(order) else []
        requests = [ranges.request(members) for members in merged]
        reader, cache = self.here()
        reader.threads.map(partial(read_checked, reader, cache), requests)
        for members, request in zip(merged, requests, strict=True):
            for at, place in enumerate([wanted[member] for member in members.tolist()]):
                record, number = records[place]
                if request.error is not None:
                    outcomes[place] = request.error
                elif at in request.wrong:
                    problem = f"in {redact(request.file.url)}, {WRONG_BYTES}"
                    outcomes[place] = self._corrupt(record, number, problem)
                else:
                    begin = request.begins[at]
                    view = memoryview(request.data[at])[begin : begin + record.length]
                    outcomes[place] = bytes(view)
        return outcomes

    @property
    def server(self) -> str:
        return self.url if is_url(self.url) else self._root or self.files.places[0]

    def here(self) -> tuple[RangeReader, RangeCache | None]:
        return super().here() if self._whole is None else self._whole.here()

    def _cache_of(self, reader: RangeReader) -> RangeCache | None:
        groups = self.manifest.groups
        if groups is None:
            return super()._cache_of(reader)
        columns = {}
        # Fields' files follow the tables.
        names = zip(self.files.places, self.manifest.files, groups, strict=False)
        for name, entry, runs in names:
            table, column = split_name(entry.name)
            layout = entry.size, starts_of(runs), self.storage_options
            columns[name] = ColumnGroups(join_url(str(self._root), table), column, *layout)
        return RowGroups(columns, reader, self.options.memory)


class RemoteParts(FetchedSource, PartsSource):
    """Source of an index of parts behind a URL, or of files behind one.

    A part's manifest and index are fetched when one of its rows is asked for. All parts share a
    reader and a cache folder.
    """

    def __init__(self, access: Access, manifest: PartsManifest, text: bytes | None = None) -> None:
        FetchedSource.__init__(self, access, text)
        PartsSource.__init__(self, self.location, manifest)

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteParts, (self.access, self.manifest)

    def _open(self, entry: PartEntry) -> RemoteSource:
        access = self.access._replace(url=join_url(self.url, entry.name))
        return RemoteSource(access, whole=self)

    @property
    def server(self) -> str:
        first = self.part(0)
        assert isinstance(first, FetchedSource)
        return self.url if is_url(self.url) else first.server

    def ref(self, extents: _native.Extents, slot: int, file: int, stop: int, row: int) -> FileRef:
        part, own = self._place(row)
        assert isinstance(part, FetchedSource)
        return part.ref(extents, slot, file, stop, own)


def open_packed(
    place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> PackedSource | RemoteSource:
    """Open a packed dataset in a folder or behind a URL; raise PartsError for an index of parts.

    An index on this machine is a `RemoteSource` if its files lie behind URLs, or a library decodes
    them.
    """
    if not is_url(place):
        source = PackedSource(Path(place))
        if source.manifest.groups is None and not is_url(source.manifest.root or ""):
            return source
    return RemoteSource(Access(os.fspath(place).rstrip("/"), storage_options=storage_options))


@lru_cache(maxsize=1)
def _reopen(generation: str, access: bytes) -> RemoteSource:
    """Open a dataset in a worker, once for all tasks."""
    source = RemoteSource(pickle.loads(access))
    require_same(source, generation)
    return source


def _check_cache(cache: Cache, piece_bytes: int) -> None:
    if cache.path is None and cache.bytes:
        raise UsageError(
            f"cache={cache}: its bytes limit a folder, and it names none",
            "Give fastdata.Cache(folder, bytes), or leave out cache=.",
        )
    if cache.path is not None and cache.bytes is not None and cache.bytes < 4 * piece_bytes:
        raise UsageError(
            f"cache={cache} has no room for four pieces of {piece_bytes} bytes",
            "Give more, or smaller pieces: remote=RemoteOptions(piece_bytes=...).",
        )


def _is_sound(path: Path, entry: FileEntry) -> bool:
    """Return whether the index file on disk matches the manifest."""
    with suppress(OSError):  # missing or unreadable: the caller replaces it
        stat = path.lstat()
        if is_own_file(stat) and stat.st_size == entry.size:  # checksums can be forged
            return _checksum(path, stat.st_ino, stat.st_mtime_ns) == entry.crc32c
    return False


@lru_cache(maxsize=1024)
def _checksum(path: Path, *state: int) -> str:
    """Return the CRC-32C of a file in a state, computed once per process."""
    return f"{crc32c_file(path, 4):08x}"


def own_file(url: str, stop: int) -> FileRef:
    """Return the reference to a file that holds a single sample."""
    # Hash without the query: another token names the same file.
    name = split_query(url)[0]
    return FileRef(url, stop, "p" + hashlib.sha256(name.encode()).hexdigest()[:24])

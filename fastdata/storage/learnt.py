"""Seek points that a dataset gains while it is decoded, kept in a file.

The normative layout is docs/formats/learnt.md. Processes append to the file at once and see what
each has appended, so nothing is held in memory, and nothing is lost when one of them is killed.
"""

from __future__ import annotations

import fcntl
import os
import struct
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fastdata import _native
from fastdata._native import crc32c
from fastdata.errors import FastdataError, UsageError, warn
from fastdata.storage.cache import Cache
from fastdata.storage.descriptors import read_exactly, write_exactly
from fastdata.storage.encodings import DEFAULT_STRIDE
from fastdata.storage.files import (
    cache_folder,
    digest_name,
    file_lock,
    open_descriptor,
    wait_for_lock,
    whole_file,
)
from fastdata.storage.records import seed_of
from fastdata.storage.source import Rows, Source, Stamped
from fastdata.storage.trust import distrust, is_own_file, make_cache_folder

#: Name of the file.
NAME = "_learnt.points"
_HEADER = struct.Struct("<8sq8s40x")
_MAGIC = b"fdlearn3"
#: Offset and length of a row's table, size and time of its file; zeros: it has none.
_ENTRY = struct.Struct("<qqqq")
#: Most bytes of a table. The native core has the same bound (``io/record.h``).
_MOST = 1 << 24
#: Bytes of tables that are appended at once.
_AT_ONCE = 1 << 20
#: Seconds to wait for a process that appends and shows no progress.
_PATIENCE = 60.0


class Learnt:
    """Seek points of one dataset's rows, in a file that appears with the first of them.

    Args:
        path: The file. One of another generation is replaced.
        generation: 16 hexadecimal digits: the manifest's, or a digest of the dataset.
        rows: Number of the dataset's rows.
        owner: A user who is trusted beside this one: the owner of the index.
        limit: Most bytes of the file; None for no limit.

    Attributes:
        stopped: Whether no more are kept, as there is no room or the file cannot be written.
    """

    def __init__(
        self, path: Path, generation: str, rows: int, owner: int, limit: int | None = None
    ) -> None:
        self.path = path
        self._header = _HEADER.pack(_MAGIC, rows, bytes.fromhex(generation))
        self._seed = seed_of(generation)
        self._heap_at = _HEADER.size + rows * _ENTRY.size
        self._owner, self._limit = owner, limit
        self._pending: dict[int, Stamped] = {}
        self._pending_bytes = 0
        self._file: _native.Files | None = None
        self.stopped = False

    @property
    def file(self) -> _native.Files | None:
        """The file for reading; None while there is none of this index."""
        if self._file is None:
            self._file = self._opened()
        return self._file

    def _opened(self) -> _native.Files | None:
        """Open the file for reading; None if there is none of this index."""
        with suppress(OSError, ValueError):
            file = _native.Files([self.path], grows=True)
            # Open it first, so that the check is of the same file; a link is refused.
            header = file.read(0, 0, _HEADER.size)
            if self._is_ours(os.lstat(self.path), header):
                return file
        return None

    def _is_ours(self, state: os.stat_result, header: bytes) -> bool:
        """Return whether a file is of this index, and can be believed: it has no signature."""
        return is_own_file(state, (self._owner,)) and header == self._header

    def table(self, row: int) -> bytes | None:
        """Return a row's seek table; None if there is none that is sound."""
        if self.file is None:
            return None
        with suppress(OSError, ValueError):  # another process has replaced it
            return self._entry(partial(self.file.read, 0), row).table or None
        return None

    def find(self, extents: _native.Extents, rows: Rows) -> None:
        """Have the core read the seek points of images that are no rows of an index."""
        if self.file is not None:
            extents.learn(self.file, rows, self._seed)

    def put(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        """Keep seek tables, by their rows."""
        if self.stopped:
            return
        self._pending |= tables
        self._pending_bytes += sum(len(entry.table) for _, entry in tables)
        if self._pending_bytes >= _AT_ONCE:
            self.flush()

    def drop(self, row: int) -> None:
        """Forget a row's table, which is another image's."""
        with suppress(OSError):
            descriptor = self._open_to_write()
            try:
                os.pwrite(descriptor, bytes(_ENTRY.size), _HEADER.size + row * _ENTRY.size)
            finally:
                os.close(descriptor)

    def flush(self) -> None:
        """Write all tables; where that fails, warn and keep no more."""
        pending, self._pending, self._pending_bytes = self._pending, {}, 0
        if not pending or self.stopped:
            return
        try:
            self._append(pending)
        except (OSError, FastdataError) as error:
            self.stopped = True
            warn(
                f"{self.path}: seek points cannot be kept, so later epochs are as slow as the "
                f"first: {_reason(error)}. Give ImageDataset another cache="
            )

    def _append(self, tables: Mapping[int, Stamped]) -> None:
        descriptor = self._open_to_write()
        try:
            wait_for_lock(descriptor, _PATIENCE)
            end = os.fstat(descriptor).st_size
            heap, entries = bytearray(), []
            for row, new in tables.items():
                old = self._entry(partial(read_exactly, descriptor), row)
                if len(new.table) > _MOST or (old.table and old[1:] == new[1:]):
                    continue  # another process was faster
                entries.append((row, _ENTRY.pack(end + len(heap), len(new.table), *new[1:])))
                heap += new.table + self._checksum(row, new.table)
            if self._limit is not None and end + len(heap) > self._limit:
                self.stopped = True
                return
            write_exactly(descriptor, bytes(heap), end)
            for row, entry in entries:
                write_exactly(descriptor, entry, _HEADER.size + row * _ENTRY.size)
        finally:
            # A process forked meanwhile shares the descriptor, and with it the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _open_to_write(self) -> int:
        """Open the file; make it if there is none, or replace one of another index."""
        for _ in range(2):
            with suppress(FileNotFoundError):
                # Each lock needs a descriptor of its own.
                descriptor = open_descriptor(self.path, os.O_RDWR | os.O_NOFOLLOW)
                header = read_exactly(descriptor, 0, _HEADER.size)
                if self._is_ours(os.fstat(descriptor), header):
                    return descriptor
                os.close(descriptor)
            with file_lock(self.path.with_name(NAME + ".lock"), patience=_PATIENCE):
                if self._opened() is None:
                    with whole_file(self.path) as temporary:
                        temporary.unlink(missing_ok=True)  # a killed process of this number left it
                        with open(temporary, "xb", opener=partial(os.open, mode=0o600)) as file:
                            os.fchmod(file.fileno(), 0o644)  # whatever the umask
                            file.write(self._header)
                            file.truncate(self._heap_at)
        raise OSError(0, "another dataset's index replaces it again and again")

    def _entry(self, read: Callable[[int, int], bytes], row: int) -> Stamped:
        """Return what a row has; an empty table if it has none that is sound."""
        entry = read(_HEADER.size + row * _ENTRY.size, _ENTRY.size)
        at, size, *stamp = _ENTRY.unpack(entry) if len(entry) == _ENTRY.size else (0, 0, 0, 0)
        if not (at > 0 and 0 < size <= _MOST):
            return Stamped(b"")
        data = read(at, size + 4)
        table = data[:size]
        return Stamped(table if data[size:] == self._checksum(row, table) else b"", *stamp)

    def _checksum(self, row: int, table: bytes) -> bytes:
        """Return the checksum that follows a table, as in an index (docs/formats/index.md)."""
        crc = crc32c(table, crc32c(row.to_bytes(8, "little"), self._seed))
        return (crc << 16 & 0xFFFFFFFF | crc >> 16).to_bytes(4, "little")


class LearningSource(Source):
    """Source that keeps the seek points that are built while its images are decoded."""

    _learnt: Learnt | None = None

    @abstractmethod
    def _open_learnt(self, cache: Cache | None) -> Learnt | None:
        """Return the seek points that were kept; see `learnt_of`."""

    def learn(self, cache: Cache | None = None) -> None:
        """Keep seek points from now on, unless the index has them; see `learnt_of`."""
        if self._learnt is None and not self.capabilities.seek_points:
            self._learnt = self._open_learnt(cache)
            if self._learnt is not None:
                self.capabilities = replace(self.capabilities, stride=DEFAULT_STRIDE)
                self._use_learnt()

    def learnt(self, row: int) -> bytes | None:
        """Return the seek points that loaders have learnt of a row; None if there are none."""
        self.learn()
        return None if self._learnt is None else self._learnt.table(row)

    def _use_learnt(self) -> None:
        """Use new seek points; stop building them once no more are kept."""
        if self._learnt is not None and self._learnt.stopped:
            self.capabilities = replace(self.capabilities, stride=0)

    def _images_of(self, rows: Rows) -> Rows:
        """Return the numbers that rows have among the images whose seek points are kept."""
        return rows

    def declined(self, row: int, code: str) -> None:
        """See `Source.declined`. Drop the seek points of a replaced image."""
        if code == "bad_seek_points" and self._learnt is not None:
            self._learnt.drop(int(self._images_of(np.array([row]))[0]))

    def built(self, tables: Sequence[tuple[int, Stamped]]) -> None:
        if self._learnt is not None:
            numbers = self._images_of(np.array([row for row, _ in tables])).tolist()
            self._learnt.put(
                [(number, entry) for number, (_, entry) in zip(numbers, tables, strict=True)]
            )
            self._use_learnt()

    def end_epoch(self) -> None:
        """See `Source.end_epoch`. Write the seek points that were learnt last."""
        if self._learnt is not None:
            self._learnt.flush()
            self._use_learnt()


def learnt_of(
    folder: Path | str, generation: str, rows: int, cache: Cache | None, index: Path | None = None
) -> Learnt | None:
    """Return the learnt seek points of a dataset: beside its index, or in a cache folder.

    ``cache``: the cache folder to use, and the most bytes of the file; 0 bytes keep nothing.
    """
    cache = cache or Cache()
    if cache.bytes == 0:
        return None
    folder = Path(os.path.realpath(folder))
    owner = os.geteuid()
    if index is not None:
        try:
            owner = index.stat().st_uid
        except OSError:  # it is gone, as the first read will say
            return None
    # Where other users can write, they could exchange the file.
    if (
        index is None
        or cache.path is not None
        or not os.access(folder, os.W_OK | os.X_OK)
        or (distrust(folder, (os.geteuid(), owner)) is not None)
    ):
        base = Path(os.path.realpath(cache.path or cache_folder() / "learnt"))
        name, owner = digest_name(folder.name, generation), os.geteuid()
        try:
            make_cache_folder(base / name)
        except (OSError, UsageError) as error:
            warn(
                f"{base}: seek points cannot be kept here: {_reason(error)}. Give ImageDataset "
                "another cache=, or set FASTDATA_CACHE_DIR"
            )
            return None
        folder = base / name
    return Learnt(folder / NAME, generation, rows, owner, cache.bytes)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)

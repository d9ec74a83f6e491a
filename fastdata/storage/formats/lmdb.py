"""LMDB: one environment, 8-byte big-endian sample number -> image (docs/formats/lmdb.md).

Another field's key is this key, a dot and the field's name.

LMDB keeps a value that does not fit on a leaf page in consecutive overflow pages, and a
smaller one inside its leaf: either way it is contiguous in ``data.mdb``, an extent.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import lmdb
import numpy as np

from fastdata.errors import CorruptionError, is_no_space
from fastdata.storage.descriptors import read_exactly
from fastdata.storage.fields import Field
from fastdata.storage.files import free_space, open_file, written_behind
from fastdata.storage.formats import NewSample
from fastdata.storage.formats.values import as_file

FILE_NAME = DATA_NAME = "data.mdb"
#: A disk with fewer free bytes than this could not take a write of LMDB's, which are up to
#: 64 pages or a whole blob.
_FULL = 16 << 20
#: Largest map size for an estimate: a process has 47 bits of addresses.
_MOST_ESTIMATED = 1 << 45
_MOST_PAGE = 1 << 16  # bytes (MAX_PAGESIZE)
_PAGE_HEADER = 16  # bytes at the start of every page (PAGEHDRSZ in LMDB's mdb.c)


def sample_key(number: int) -> bytes:
    """Return the key of a sample: its number from 0, 8 bytes, big-endian, so that keys sort."""
    return number.to_bytes(8, "big")


def field_key(number: int, field: str) -> bytes:
    """Return the key of another field of a sample; it sorts behind the image's key."""
    return sample_key(number) + b"." + field.encode()


def map_size(size: int, *, exact: bool = True) -> int:
    """Return the map size to open with, for an expected sum of lengths of values.

    It is the same for every commit, since LMDB writes it into the file: the next power of
    two above twice the values and 1 GiB. Address space, not memory. If the sum is only an estimate,
    it is far larger, as long as a process has the addresses.
    """
    needed = 1 << (2 * size + (1 << 30)).bit_length()
    if exact:
        return needed
    return max(needed, min(1 << (128 * size + (1 << 40)).bit_length(), _MOST_ESTIMATED))


def entries(path: Path) -> int:
    """Return the number of samples committed to a ``data.mdb``; 0 if it is missing or torn."""
    if not path.exists():
        return 0
    try:
        with _open(path, readonly=True) as environment:
            whole = path.stat().st_size >= _used(environment)
            with environment.begin() as transaction, transaction.cursor() as cursor:
                last = cursor.key() if whole and cursor.last() else b""
            return int.from_bytes(last[:8], "big") + 1 if last else 0
    except lmdb.Error:
        return 0


class LmdbWriter:
    """Writer that appends samples to a ``data.mdb`` in one durable transaction.

    The environment is opened for this transaction alone. LMDB reuses the buffers of pages
    within a process without clearing them, so that unused bytes of a page would depend on
    what this process wrote before; with nothing kept from commit to commit, packing that was
    killed and resumed gives the same bytes as packing that was not.

    Args:
        path: The ``data.mdb``; created if it is missing.
        first: Number of the first sample: of samples that are there already.
        size: The map size, from `map_size`.
        fields: Fields of samples besides image and label.
    """

    def __init__(self, path: Path, first: int, size: int, fields: Sequence[Field] = ()) -> None:
        self._path = path
        # In the order of their keys.
        self._fields = sorted(enumerate(fields), key=lambda one: one[1].name.encode())
        self._next = first
        with _as_os_error(path):
            self._environment = _open(path, map_size=size)
        used = _used(self._environment)
        if path.stat().st_size > used:
            # A commit that a kill cut off may have left pages that this one will not reach.
            os.truncate(path, used)
        self._transaction = self._environment.begin(write=True)

    def add(self, sample: NewSample) -> None:
        """Append one sample; see `fastdata.storage.formats.Writer`."""
        self._put(sample_key(self._next), sample.blob)
        for place, field in self._fields:
            value = sample.fields[place]
            if value is not None:
                data = value[1] if field.type is None else as_file(field, value)[1]
                self._put(field_key(self._next, field.name), data)
        self._next += 1

    def _put(self, key: bytes, value: bytes) -> None:
        with _as_os_error(self._path):
            if not self._transaction.put(key, value, append=True):
                raise CorruptionError(f"{self._path}: sample {self._next} is already there")

    def finish(self) -> None:
        """Commit. `extents` finds the offsets: small blobs still move until the last commit."""
        # LMDB writes all pages first and then waits for them.
        with _as_os_error(self._path), written_behind(self._path):
            self._transaction.commit()
        self.close()

    def close(self) -> None:
        """Release the file; drop uncommitted samples."""
        self._transaction.abort()
        self._environment.close()


@contextmanager
def _as_os_error(path: Path) -> Iterator[None]:
    try:
        yield
    except lmdb.Error as error:
        # LMDB calls a write that was cut short EIO (mdb_page_flush, "what about ENOSPC?").
        cut_short = os.strerror(errno.EIO) in str(error) and free_space(path.parent) < _FULL
        if cut_short or is_no_space(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise OSError(errno.EIO, str(error), os.fspath(path)) from error


def extents(path: Path, fields: Sequence[str] = ()) -> Iterator[Mapping[str, tuple[int, int]]]:
    """Find every blob in a ``data.mdb``; see `fastdata.storage.formats.extents`.

    Walks LMDB's B+ tree, reading its leaf pages and no blob. LMDB's own bindings would do,
    but touch every page of every value that a cursor passes, which reads the whole file.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        tree = Tree(path, partial(read_exactly, file.fileno()), size)
        sample: dict[str, tuple[int, int]] = {}
        number = 0
        for key, offset, length, _ in tree.leaves():
            if key == sample_key(number):
                if sample:
                    yield sample
                sample = {"image": (offset, length)}
                number += 1
            elif not sample or not key.startswith(field_key(number - 1, "")):
                raise tree.corrupt(f"key {key.hex()} is where sample {number} should be")
            elif (name := key[9:].decode(errors="replace")) in fields:
                sample[name] = offset, length
        if sample:
            yield sample


class Entry(NamedTuple):
    """Entry of a database: its key, and where its value, perhaps another database's, lies."""

    key: bytes
    offset: int
    length: int
    is_database: bool


class _Meta(NamedTuple):
    """Contents of a meta page (``MDB_meta`` in mdb.c)."""

    magic: int
    version: int
    page_size: int
    flags: int
    root: int
    transaction: int


class Tree:
    """Pages of an environment, as mdb.c lays them out; little-endian, 64 bits.

    Holds one page for each level of the tree in memory. ``read`` returns bytes of the file, by
    offset and length; fewer at its end.
    """

    _META = struct.Struct("<II 16x I 44x 4xH 34x Q 8x Q")  # after a page's header
    _MAGIC, _VERSION = 0xBEEFC0DE, 1
    _PAGE = struct.Struct("<8x 2x HHH")  # number, pad; flags, lower, upper
    _BRANCH, _LEAF = 0x01, 0x02
    _NODE = struct.Struct("<HHHH")  # low and high size (or low child), flags, key size
    _BIG_DATA, _SUB_DATA = 0x01, 0x02
    _DATABASE = struct.Struct("<4xH 34x Q")  # MDB_db: flags, root
    _DUPLICATES = 0x04
    _NO_PAGE = (1 << 64) - 1
    _MOST_DEPTH = 32  # CURSOR_STACK

    def __init__(self, name: object, read: Callable[[int, int], bytes], size: int) -> None:
        self._name = name
        self._read = read
        self._size = size
        self._page_size = self._meta(0).page_size
        if not 256 <= self._page_size <= _MOST_PAGE or self._page_size & (self._page_size - 1):
            raise self.corrupt(f"its page size is {self._page_size}")
        self._last = self._newest()

    def corrupt(self, problem: str) -> CorruptionError:
        """Return the error for a damaged file."""
        return CorruptionError(f"{self._name}: cannot be read as LMDB: {problem}")

    def has_changed(self) -> bool:
        """Return whether a commit since opening may have overwritten pages that were walked."""
        return self._newest().transaction != self._last.transaction

    def _newest(self) -> _Meta:
        return max(self._meta(0), self._meta(self._page_size), key=lambda meta: meta.transaction)

    def _meta(self, offset: int) -> _Meta:
        data = self._read(offset + _PAGE_HEADER, self._META.size)
        if len(data) < self._META.size:
            raise self.corrupt("it is too short")
        meta = _Meta(*self._META.unpack(data))
        if (meta.magic, meta.version) != (self._MAGIC, self._VERSION):
            raise self.corrupt(f"it is not of data version {self._VERSION}")
        return meta

    def leaves(self, database: bytes | None = None) -> Iterator[Entry]:
        """Yield the entries of a database in the order of their keys; KeyError if there is none.

        The unnamed one, None, has an entry for each named one.
        """
        flags, root = self._last.flags, self._last.root
        if database is not None:
            databases = (one for one in self.leaves() if one.is_database and one.key == database)
            place = next(databases, None)
            if place is None:
                raise KeyError(database)
            data = self._read(place.offset, self._DATABASE.size)
            if len(data) < self._DATABASE.size:
                raise self.corrupt("the description of a database lies beyond its end")
            flags, root = self._DATABASE.unpack(data)
        if flags & self._DUPLICATES:
            raise CorruptionError(
                f"{self._name}: its keys may have several values each (dupsort)",
                "Write its entries to a database without that flag.",
            )
        #: Pages that may still be walked: a tree has each of them once.
        self._pages_left = self._size // self._page_size
        if root != self._NO_PAGE:
            yield from self._entries(root, self._MOST_DEPTH)

    def _entries(self, number: int, depth: int) -> Iterator[Entry]:
        start = number * self._page_size
        self._pages_left -= 1
        if self._pages_left < 0 or not depth:
            raise self.corrupt(f"page {number} is in its tree more than once")
        if start + self._page_size > self._size:
            raise self.corrupt(f"page {number} lies beyond its end")
        page = self._read(start, self._page_size)
        flags, lower, _ = self._PAGE.unpack_from(page)
        nodes = np.frombuffer(page[_PAGE_HEADER : max(lower, _PAGE_HEADER) & ~1], "<u2").tolist()
        try:
            for node in nodes:
                low, high, node_flags, key_size = self._NODE.unpack_from(page, node)
                key_at = node + self._NODE.size
                if flags & self._BRANCH:
                    child = low | high << 16 | node_flags << 32
                    yield from self._entries(child, depth - 1)
                elif flags & self._LEAF:
                    key = page[key_at : key_at + key_size]
                    offset = start + key_at + key_size
                    if node_flags & self._BIG_DATA:
                        (overflow,) = struct.unpack_from("<Q", page, key_at + key_size)
                        offset = overflow * self._page_size + _PAGE_HEADER
                    length = low | high << 16
                    if offset + length > self._size:
                        raise self.corrupt(f"a value of page {number} lies beyond its end")
                    yield Entry(key, offset, length, bool(node_flags & self._SUB_DATA))
                else:
                    raise self.corrupt(f"page {number} is neither branch nor leaf")
        except struct.error:
            raise self.corrupt(f"page {number} is damaged") from None


def _used(environment: lmdb.Environment) -> int:
    """Return the bytes of committed pages in the file."""
    return (int(environment.info()["last_pgno"]) + 1) * int(environment.stat()["psize"])


def _open(path: Path, *, readonly: bool = False, map_size: int = 1 << 20) -> lmdb.Environment:
    # One writer, and readers only of finished files: LMDB's lock file is not needed.
    return lmdb.open(
        str(path),
        map_size=map_size,
        subdir=False,
        readonly=readonly,
        lock=False,
        readahead=not readonly,
        create=not readonly,
    )

"""LMDB: one environment, 8-byte big-endian sample number -> blob (docs/formats/lmdb.md).

LMDB keeps a value that does not fit on a leaf page in consecutive overflow pages, and a
smaller one inside its leaf: either way it is contiguous in ``data.mdb``, an extent.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np

from fastdata.errors import CorruptionError
from fastdata.index import Row
from fastdata.storage import is_no_space

DATA_NAME = "data.mdb"
_PAGE_HEADER = 16  # bytes before the data of an overflow page (PAGEHDRSZ in LMDB's mdb.c)


def sample_key(number: int) -> bytes:
    """The key of a sample: its number from 0, 8 bytes, big-endian, so that keys sort."""
    return number.to_bytes(8, "big")


def map_size(blob_bytes: int) -> int:
    """The map size to open with, for an expected sum of blob lengths.

    It is the same for every commit, since LMDB writes it into the file: the next power of
    two above twice the blobs and 1 GiB. Address space, not memory.
    """
    return 1 << (2 * blob_bytes + (1 << 30)).bit_length()


def entries(path: Path) -> int:
    """Number of samples committed to a ``data.mdb``; 0 where there is none, or a torn one."""
    if not path.exists():
        return 0
    try:
        with _open(path, readonly=True) as environment:
            return int(environment.stat()["entries"])
    except lmdb.Error:
        return 0


class LmdbWriter:
    """Appends samples to a ``data.mdb`` in one durable transaction.

    The environment is opened for this transaction alone. LMDB reuses the buffers of pages
    within a process without clearing them, so that unused bytes of a page would depend on
    what this process wrote before; with nothing kept from commit to commit, the file is a
    function of the samples and of where the commits fall, and packing that was killed and
    resumed gives the same bytes as packing that was not.

    Args:
        path: The ``data.mdb``; made if it is missing.
        first: Number of the first sample, which is how many are there already.
        size: The map size, from `map_size`.
    """

    def __init__(self, path: Path, first: int, size: int) -> None:
        self._path = path
        self._first = self._next = first
        self._environment = _open(path, map_size=size)
        self._transaction = self._environment.begin(write=True)

    def add(self, row: Row, blob: bytes) -> None:
        """Appends one sample; see `fastdata.formats.Writer`."""
        with _disk_full_as_os_error():
            if not self._transaction.put(sample_key(self._next), blob, append=True):
                raise CorruptionError(f"{self._path}: sample {self._next} is already there")
        self._next += 1

    def finish(self) -> list[int]:
        """Commits. The offsets are -1: small blobs still move until the last commit."""
        with _disk_full_as_os_error():
            self._transaction.commit()
        self.close()
        return [-1] * (self._next - self._first)

    def close(self) -> None:
        """Releases the file; what is not committed is dropped."""
        self._transaction.abort()
        self._environment.close()


@contextmanager
def _disk_full_as_os_error() -> Iterator[None]:
    try:
        yield
    except lmdb.Error as error:
        if is_no_space(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def extents(path: Path) -> Iterator[tuple[int, int]]:
    """Finds every blob in a ``data.mdb``: yields (offset, length) in bytes, in key order.

    Raises:
        CorruptionError: It cannot be opened, or its keys are not 0, 1, 2, ….
    """
    try:
        with (
            _open(path, readonly=True) as environment,
            environment.begin(buffers=True) as txn,
            path.open("rb") as file,
        ):
            page_size = int(environment.stat()["psize"])
            base: int | None = None
            for number, (key, value) in enumerate(txn.cursor()):
                if bytes(key) != sample_key(number):
                    raise CorruptionError(
                        f"{path}: key {bytes(key).hex()} stands where sample {number} should"
                    )
                address = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
                if base is None:
                    base = _map_base(address, page_size)
                    file.seek(address - base)
                    if file.read(len(value)) != bytes(value):
                        raise CorruptionError(f"{path}: sample {number} is not where LMDB has it")
                yield address - base, len(value)
    except lmdb.Error as error:
        raise CorruptionError(f"{path}: LMDB cannot read it: {error}") from None


def _map_base(address: int, page_size: int) -> int:
    """Address of LMDB's memory map, from that of one value in it.

    LMDB's bindings do not tell where the map begins. But every page starts with its own
    number (``mp_pgno`` in mdb.c), and the value's page starts at the page boundary below.
    """
    page = address & -page_size
    return page - page_size * int.from_bytes(ctypes.string_at(page, 8), "little")


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

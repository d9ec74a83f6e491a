"""Row groups of tables, decoded by pyarrow and held in memory while their rows are wanted.

A row group is a piece, so a pass prefetches those of batches to come, and decodes each once as long
as memory suffices.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fastdata.errors import CorruptionError, DatasetError, FastdataError
from fastdata.remote.answers import ChangedError
from fastdata.remote.files import RemotePath, remote_path
from fastdata.remote.ranges import FileRef, Piece, RangeCache
from fastdata.remote.reader import RangeReader
from fastdata.remote.urls import is_url, redact
from fastdata.storage.arrow import chunks_of, column_path
from fastdata.storage.formats.arrow_ipc import MappedArrow
from fastdata.storage.formats.parquet_pages import PARQUET_ERRORS
from fastdata.storage.local import LocalFile
from fastdata.storage.row_groups import VALUE_BITS

#: Row groups that are decoded at once. pyarrow decompresses several times faster than cores decode.
_DECODING = 2
#: Row groups that stay in memory however large they are: one in use, and the next ones.
_LEAST = 3
#: Begins a Parquet file.
_PARQUET = b"PAR1"


@dataclass(eq=False)
class ColumnGroups:
    """Column of a file, by row group. Safe to use from several threads.

    ``column`` may have a struct's field after a dot. ``size`` are the bytes that the file must
    have; ``starts`` has the first row of each row group, and the number of rows.
    """

    place: str
    column: str
    size: int
    starts: npt.NDArray[np.int64]
    storage_options: Mapping[str, Any]

    def group_of(self, row: int) -> int:
        """Return the row group that holds a row; the last one for a row beyond all."""
        return int(np.searchsorted(self.starts[:-1], row, "right")) - 1

    def decode(self, group: int) -> pa.ChunkedArray:
        """Return the values of a row group, bytes; raise CorruptionError for a changed file."""
        file, metadata = self._open()
        try:
            if metadata is None:
                arrow = MappedArrow(file.location)
                top = column_path(arrow.schema, self.column)[0]
                table = pa.Table.from_batches([arrow.batch(group, top)])
            else:
                # A copy: several threads may read one file behind a URL.
                with copy(file).open() as source:
                    # pyarrow compares a page with its checksum if there is one.
                    opened = pq.ParquetFile(
                        source, metadata=metadata, page_checksum_verification=True
                    )
                    table = opened.read_row_group(group, [self.column], use_threads=False)
            values = pa.chunked_array(chunks_of(table, column_path(table.schema, self.column)))
            if len(values) != self.starts[group + 1] - self.starts[group]:
                raise ValueError("it has another number of rows than when it was indexed")
        except ChangedError:
            raise self._changed("has changed since it was opened") from None
        except FastdataError:
            raise
        except PARQUET_ERRORS as error:
            raise self._changed(f"row group {group} cannot be decoded: {error}") from None
        return values

    def _changed(self, problem: str) -> CorruptionError:
        hint = "Put the file back as it was, or index it again with --force."
        return CorruptionError(f"{redact(self.place)}: {problem}", hint)

    @lru_cache(maxsize=32)  # noqa: B019 - metadata may have megabytes a file
    def _open(self) -> tuple[LocalFile | RemotePath, pq.FileMetaData | None]:
        """Return the file, and its metadata if it is Parquet; raises as `decode` does."""
        file: LocalFile | RemotePath = LocalFile(Path(self.place))
        try:
            if is_url(self.place):
                file = remote_path(self.place, self.storage_options)
            if file.size != self.size:
                raise self._changed(f"has {file.size} bytes, the manifest says {self.size}")
            with file.open() as source:
                magic = source.read(len(_PARQUET))
                source.seek(0)
                metadata = pq.read_metadata(source) if magic == _PARQUET else None
        except FileNotFoundError:
            what = f"{redact(self.place)}: no such file, though the index names it"
            raise DatasetError(what, "Put it back, or index the files again.") from None
        except PARQUET_ERRORS as error:
            raise self._changed(f"cannot be read: {error}") from None
        if metadata is not None and metadata.num_row_groups != len(self.starts) - 1:
            raise self._changed("has other row groups than when it was indexed")
        return file, metadata


class RowGroups(RangeCache):
    """Row groups of a dataset's tables, as one process holds them.

    Tables have the names of `FileRef`; ``reader`` reads other files. ``limit`` are bytes to hold,
    unless three row groups have more; ``used`` those held.
    """

    only = True

    def __init__(self, tables: Mapping[str, ColumnGroups], reader: RangeReader, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self._tables, self._reader = tables, reader
        self._held: OrderedDict[Piece, pa.ChunkedArray] = OrderedDict()  # last used last
        self._damaged: dict[Piece, DatasetError] = {}
        self._slots = threading.Semaphore(_DECODING)

    def pieces(self, file: FileRef, start: int, stop: int) -> list[Piece]:
        """See `RangeCache.pieces`; none for an empty value, or no table."""
        table = self._tables.get(file.url)
        if table is None or start == stop:
            return []
        return [(file, table.group_of(start >> VALUE_BITS))]

    def read(self, file: FileRef, start: int, stop: int) -> Any:
        for piece in self.pieces(file, start, stop):
            values = self._group(piece)
            row, first = start >> VALUE_BITS, start & ((1 << VALUE_BITS) - 1)
            at = row - int(self._tables[file.url].starts[piece[1]])
            data = values[at].as_py() if at < len(values) else None
            with self._lock:
                self._reads += 1
            return (data or b"")[first : first + stop - start]
        return self._reader.read(file.url, start, stop)

    def ensure(self, piece: Piece) -> None:
        self._group(piece)

    def drop(self, file: FileRef, start: int, stop: int) -> None:
        with self._lock:
            for piece in self.pieces(file, start, stop):
                self._forget(piece)

    def _find(self, piece: Piece) -> pa.ChunkedArray | None:
        """Return a row group if it is held, which is a use of it."""
        with self._lock:
            if piece in self._held:
                self._held.move_to_end(piece)
            return self._held.get(piece)

    def _group(self, piece: Piece) -> pa.ChunkedArray:
        values = self._find(piece)
        return self._once(piece, self._decode) if values is None else values

    def _decode(self, piece: Piece) -> pa.ChunkedArray:
        if piece in self._damaged:
            raise self._damaged[piece]
        values = self._find(piece)
        if values is not None:
            return values  # another thread decoded it meanwhile
        with self._slots:
            try:
                values = self._tables[piece[0].url].decode(piece[1])
            except DatasetError as error:
                if type(error) in (CorruptionError, DatasetError):
                    self._damaged[piece] = error  # decode it once, not for each row
                raise
        size = values.get_total_buffer_size()
        with self._lock:
            while len(self._held) >= _LEAST and self.used + size > self.limit:
                self._forget(next(iter(self._held)))
            self._held[piece] = values
            self.used += size
            self.peak = max(self.peak, self.used)
            self._fills += 1
        return values

    def _forget(self, piece: Piece) -> None:
        """Free a row group if it is held; the caller holds the lock."""
        values = self._held.pop(piece, None)
        if values is not None:
            self.used -= values.get_total_buffer_size()

"""Arrow IPC files and streams of any writer: values of columns of bytes are extents.

A record batch that is not compressed lies in the file as it does in memory. So in a memory-mapped
file, a buffer's address shows where in the file it lies.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata.storage.files import open_file

#: Begins a file; a stream begins with a message.
_MAGIC = b"ARROW1"


class MappedArrow:
    """Arrow IPC file or stream of this machine, memory-mapped; ValueError if it is none."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with open_file(path) as file:
            self._map = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._is_file = self._map[: len(_MAGIC)].to_pybytes() == _MAGIC
        self.schema: pa.Schema = self._open()[0]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches in order, with some columns of the schema; checks them."""
        for batch in self._open(columns)[1]:
            chosen = batch.select(columns)
            chosen.validate(full=True)
            yield chosen

    def batch(self, number: int, column: str) -> pa.RecordBatch:
        """Return a column of one record batch, and decode no other batch.

        Of a stream with dictionaries, it decodes the column in the batches before, too; of another
        stream, all columns.
        """
        if self._is_file:
            wanted = [self.schema.get_field_index(column)]
            options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
            return pa.ipc.open_file(self._map, options=options).get_batch(number)
        if any(map(pa.types.is_dictionary, self.schema.types)):
            return next(islice(self._open([column])[1], number, None))
        messages = pa.ipc.MessageReader.open_stream(self._map)
        batches = (one for one in messages if one.type == "record batch")
        return pa.ipc.read_record_batch(next(islice(batches, number, None)), self.schema)

    def _open(
        self, columns: Sequence[str] | None = None
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema, and the record batches in order; a file's have all columns."""
        wanted = None
        if columns is not None and not self._is_file:  # a file's chosen columns would be copies
            wanted = [self.schema.get_field_index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=wanted)
        if self._is_file:
            file = pa.ipc.open_file(self._map, options=options)
            return file.schema, map(file.get_batch, range(file.num_record_batches))
        stream = pa.ipc.open_stream(self._map, options=options)
        return stream.schema, iter(stream)

    def extents(
        self, column: pa.Array
    ) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64]]:
        """Return where the values of a column of bytes begin and their lengths, (N,).

        They begin nowhere, None, if they were compressed. Nulls have any place.
        """
        _, offsets, data = column.buffers()
        rows = len(column)
        if not rows:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        kind = np.int64 if pa.types.is_large_binary(column.type) else np.int32
        ends = np.frombuffer(offsets, kind)[column.offset : column.offset + rows + 1]
        ends = ends.astype(np.int64)
        at = 0
        if data is not None and data.size:
            at = data.address - self._map.address
            if not 0 <= at <= self._map.size - data.size:
                return None, np.diff(ends)
        return at + ends[:-1], np.diff(ends)

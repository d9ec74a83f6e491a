"""Where samples lie, gathered from an index for the native core without Python for a row."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastdata import _native
from fastdata.storage.index import Index
from fastdata.storage.probe import ENCODINGS

_FIXED = ("file", "offset", "length", "width", "height", "crc32c", "label")
_CODES = {name: code for code, name in enumerate(ENCODINGS)}
_NO_CODE = 255


class ExtentTable:
    """An index's columns as the native core reads them: in place, in the mapped file.

    Takes memory for the record batches that were used, not for their rows. Safe to use from
    several threads, and after a fork.

    Args:
        index: The index.
        files: The dataset's files, in the order that the index counts them.
        file_sizes: Their sizes in bytes, as the manifest says. A file that has another size
            when it is opened is not read.
        root: The folder of rows that have a path of their own; None if there is none.
        classes: How many there are. A row of another label is not read.

    Raises:
        DatasetError: The index cannot be read.
    """

    def __init__(
        self,
        index: Index,
        files: Sequence[str | os.PathLike[str]],
        file_sizes: Sequence[int],
        root: str | os.PathLike[str] | None,
        classes: int = 1 << 31,
    ) -> None:
        self._index = index
        self._reader = index.unchecked()
        self._table = _native.ExtentTable(
            [os.fsencode(file) for file in files],
            list(file_sizes),
            None if root is None else os.fsencode(root),
            len(index),
            index.batch_rows,
            classes,
        )

    def gather(self, indices: npt.NDArray[np.int64]) -> _native.Extents:
        """The extents of some rows.

        A row whose values make no sense is an error only when it is read: its code is then
        ``corrupt_index``.

        Args:
            indices: int64, (N,), from 0 to the number of samples - 1, in any order.

        Raises:
            IndexError: There is no such row.
            CorruptionError: A record batch is damaged, or the index has changed since it was
                opened.
        """
        self._index.require_unchanged()
        indices = np.ascontiguousarray(indices, np.int64)
        for number in self._table.missing(indices):
            self._add(number)
        return self._table.gather(indices)

    def _add(self, number: int) -> None:
        try:
            batch = self._reader.get_batch(number)
            # Not in full: that would read all of it. The core checks each value that it uses.
            batch.validate()
            encoding = batch.column("encoding")
            self._table.add(
                number,
                batch.num_rows,
                **{name: _fixed(batch.column(name)) for name in _FIXED},
                encoding=_fixed(encoding.indices),
                encoding_codes=_encoding_codes(encoding.dictionary),
                path=_variable(batch.column("path")),
                seek_points=_variable(batch.column("seek_points")),
            )
        except (OSError, ValueError, TypeError, pa.ArrowException) as error:
            raise self._index.corrupt(f"is damaged at record batch {number}: {error}") from None


def _fixed(column: pa.Array) -> _native.FixedColumn:
    if column.null_count:
        raise ValueError("a column that must not have nulls has some")
    return column.offset, column.buffers()[1]


def _variable(column: pa.Array) -> _native.VariableColumn | None:
    if column.null_count == len(column):
        return None
    validity, offsets, data = column.buffers()
    return column.offset, validity, offsets, data


def _encoding_codes(dictionary: pa.Array) -> bytes:
    """For each entry of a dictionary, which another tool may have put in another order."""
    entries = dictionary.slice(0, 128)  # int8 reaches no further
    entries.validate(full=True)
    return bytes(_CODES.get(name, _NO_CODE) for name in entries.to_pylist())

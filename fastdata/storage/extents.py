"""Where samples lie, gathered from an index by the native core, without Python for a row."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.storage.index import Index


class ExtentTable:
    """An index as the native core reads it.

    Safe to use from several threads, and after a fork.

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
        self._table = index.native_table(
            [os.fsencode(file) for file in files],
            list(file_sizes),
            None if root is None else os.fsencode(root),
            classes,
        )

    def gather(self, indices: npt.NDArray[np.int64]) -> _native.Extents:
        """The extents of some rows.

        A row that is damaged, or whose values make no sense, is an error only when it is read: its
        code is then ``corrupt_index``.

        Args:
            indices: int64, (N,), from 0 to the number of samples - 1, in any order.

        Raises:
            IndexError: There is no such row.
            CorruptionError: The index has changed since it was opened; or, in version 1, a record
                batch is damaged.
        """
        self._index.require_unchanged()
        return self._table.gather(np.ascontiguousarray(indices, np.int64))

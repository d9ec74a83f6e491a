"""Rows of tables that a library decodes, a row group at a time: addresses, and groups.

A *row group* is what the library decodes at once: one of Parquet, or a record batch of Arrow. Each
value of a column has an address instead of its offset in a file: an address space of 1 GiB a row,
as no image is larger. So it is an extent like any other to what lies above.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.errors import SlowPathWarning, warn

#: Bits of an address that count the bytes of a value.
VALUE_BITS = 30
#: End of the addresses of a file.
ADDRESSES = 1 << 60
#: Separates the name of a table from the name of a column.
_MARK = "!"
#: Most row groups of a file.
_MOST_GROUPS = 1 << 24


def address(row: int) -> int:
    """Return the address of a value by its row in the file."""
    return row << VALUE_BITS


def named(name: str, column: str) -> str:
    """Return the name of a column of a table, as manifests have it."""
    return f"{name}{_MARK}{column}"


def split_name(name: str) -> tuple[str, str]:
    """Return (name of the table, column)."""
    table, _, column = name.rpartition(_MARK)
    return table, column


def runs_of(rows: Iterable[int]) -> list[list[int]]:
    """Return the rows of row groups, in order, as runs of (rows, groups)."""
    return [[count, len(list(run))] for count, run in groupby(rows)]


def starts_of(runs: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """Return the first row of each group, and the number of rows."""
    counts, times = np.array(runs, np.int64).reshape(-1, 2).T
    return np.cumsum([0, *np.repeat(counts, times)])


def require_groups(groups: Any, files: int) -> None:
    """Raise ValueError unless a manifest's ``groups`` are those of so many files."""
    if not isinstance(groups, list) or len(groups) != files:
        raise ValueError("groups are not a list for each table")
    for runs in groups:
        if not isinstance(runs, list) or not all(map(_is_run, runs)):
            raise ValueError("groups are not runs of (rows, groups)")
        rows, times = sum(one * many for one, many in runs), sum(many for _, many in runs)
        if rows > ADDRESSES >> VALUE_BITS or times > _MOST_GROUPS:
            raise ValueError("a table has too many rows, or row groups")


def _is_run(run: Any) -> bool:
    if not isinstance(run, list) or [type(one) for one in run] != [int, int]:
        return False
    return all(0 <= one < 1 << 31 for one in run)


def warn_of_row_groups(place: str) -> None:
    """Warn, once for each dataset, that a library decodes its row groups."""
    if place in _warned:
        return
    _warned.add(place)
    warn(
        f"{place}: its images lie in compressed or encoded columns, so pyarrow decodes them a "
        "row group at a time, which is slower and takes memory. Shuffled loaders decode each "
        "row group once, in windows. For full speed pack it (fastdata convert dataset --root "
        f"{place}), or write the files again without compression",
        SlowPathWarning,
    )


_warned: set[str] = set()

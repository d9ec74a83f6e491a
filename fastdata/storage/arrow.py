"""Arrow arrays made from buffers, and read as buffers.

``pyarrow.array`` and ``to_numpy`` import pandas on their first call where it is installed:
0.2 s and 40 MB in every worker process, for nothing. From buffers it is also less copying.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of values; None is null.

    Args:
        values: Its values; strings and bytes below 2 GiB in all.
        kind: Its type. Integers, ``string`` and ``binary`` need no pandas.
    """
    if not (pa.types.is_integer(kind) or kind in (pa.string(), pa.binary())):
        return pa.array(values, kind)
    valid = [value is not None for value in values]
    if not any(valid):
        return pa.nulls(len(values), kind)
    bitmap = None
    if not all(valid):
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        empty: Any = "" if kind == pa.string() else b"" if kind == pa.binary() else 0
        values = [empty if value is None else value for value in values]
    if kind == pa.string():
        values = [value.encode("utf-8") for value in values]
    if kind in (pa.string(), pa.binary()):
        offsets = np.fromiter(accumulate(map(len, values), initial=0), np.int32, len(values) + 1)
        buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    else:
        buffers = [bitmap, pa.py_buffer(np.asarray(values, _dtype(kind)))]
    return pa.Array.from_buffers(kind, len(valid), buffers)


def as_numpy(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an array of integers without nulls, as a view of its memory."""
    values = np.frombuffer(column.buffers()[1], _dtype(column.type))
    return values[column.offset : column.offset + len(column)]


def has_nulls(column: pa.Array) -> bool:
    """Return whether a null is anywhere in an array, or in the items of its lists and structs."""
    if column.null_count:
        return True
    kind = column.type
    if pa.types.is_struct(kind):
        return any(map(has_nulls, column.flatten()))
    if pa.types.is_map(kind):
        return has_nulls(column.items)
    return pa.types.is_nested(kind) and has_nulls(column.flatten())


def update_digest(digest: Any, column: pa.Array) -> None:
    """Add a column's values to a hashlib hash; independent of pyarrow's version."""
    digest.update(b"%d %d;" % (len(column), column.null_count))
    if column.null_count == len(column):
        return
    kind = column.type
    if kind in (pa.string(), pa.binary()):
        offsets = np.frombuffer(column.buffers()[1], np.int32)
        offsets = offsets[column.offset : column.offset + len(column) + 1]
        digest.update(np.diff(offsets).tobytes())
        digest.update(memoryview(column.buffers()[2])[offsets[0] : offsets[-1]])
    elif pa.types.is_integer(kind):
        digest.update(as_numpy(column).tobytes())
    else:
        digest.update(repr(column.to_pylist()).encode("utf-8", "surrogatepass"))


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    # Arrow and NumPy call integer types by the same names. `to_pandas_dtype` asks for pandas.
    return np.dtype(str(kind))

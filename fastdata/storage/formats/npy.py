"""NumPy's ``.npy`` files: arrays of numbers; pickled objects are refused."""

from __future__ import annotations

import io
import math
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

#: Longest header in bytes that is read: NumPy's own have 128.
HEAD = 4096
_MAGIC = b"\x93NUMPY"


class Header(NamedTuple):
    """Header of a file: the array's type and shape, its order, and the header's bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_column: bool
    size: int


def read_header(head: bytes, size: int) -> Header:
    """Read the header in a file's first `HEAD` bytes; ``size``: the file's.

    Raises:
        ValueError: It is none, the file has pickled objects, or not the bytes of its shape.
    """
    if len(head) < 12 or not head.startswith(_MAGIC):
        raise ValueError("is not a .npy file")
    # The header's own length is in it. Most files of a dataset have the same one.
    version, start = head[6], 10 if head[6:7] == b"\1" else 12
    length = start + int.from_bytes(head[8:start], "little")
    if version not in (1, 2) or length > len(head):
        raise ValueError(f"is a .npy file of version {version} with a header of {length:,} bytes")
    header = _parse(head[:length])
    expected = length + header.dtype.itemsize * math.prod(header.shape)
    if expected != size:
        raise ValueError(f"has {size:,} bytes for shape {header.shape}, not {expected:,}")
    return header


@lru_cache(maxsize=256)
def _parse(head: bytes) -> Header:
    file = io.BytesIO(head)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what Python 2 wrote
            version = np.lib.format.read_magic(file)
            if version == (1, 0):
                shape, by_column, kind = np.lib.format.read_array_header_1_0(file)
            else:
                shape, by_column, kind = np.lib.format.read_array_header_2_0(file)
    except Exception as error:  # NumPy's parser raises almost anything on foreign bytes
        raise ValueError(f"has a damaged header of .npy: {error}") from None
    if kind.hasobject:
        raise ValueError("has pickled Python objects, which are never read")
    if any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"has the shape {shape}")
    return Header(kind, shape, by_column, len(head))


def read_array(data: bytes) -> npt.NDArray[Any]:
    """Return the array of a file, in C's order and this machine's byte order."""
    kind, shape, by_column, at = read_header(data[:HEAD], len(data))
    items = np.frombuffer(data, kind, offset=at)
    array = items.reshape(shape, order="F" if by_column else "C")
    return np.ascontiguousarray(array, kind.newbyteorder("=")).reshape(shape)


def write_array(array: npt.NDArray[Any]) -> bytes:
    """Return the file of an array."""
    return head_of(array.dtype.str, array.shape) + array.tobytes()


@lru_cache(maxsize=256)
def head_of(kind: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of an array in C's order; ``kind`` is NumPy's, as ``|u1``."""
    header = io.BytesIO()
    fields = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()

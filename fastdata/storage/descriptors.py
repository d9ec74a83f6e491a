"""Whole reads and writes at places of open files."""

from __future__ import annotations

import os


def read_exactly(descriptor: int, offset: int, length: int) -> bytes:
    """Call ``pread`` until ``length`` bytes are there or the file ends."""
    data = os.pread(descriptor, length, offset)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def write_exactly(descriptor: int, data: bytes, offset: int) -> None:
    """Write all bytes by ``pwrite``."""
    rest = memoryview(data)
    while rest:
        count = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[count:], offset + count

"""CRC-32C (Castagnoli), the checksum of every blob and every file of a dataset.

CRC-32C is what SSE 4.2 and Armv8 compute in hardware and what iSCSI, ext4 and Google
Cloud Storage use: it finds accidental damage at memory speed. It is no defence against
somebody who changes a file on purpose.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from fastdata._native import crc32c, crc32c_combine
from fastdata.storage.files import open_file

__all__ = ["crc32c", "crc32c_combine", "crc32c_file", "crc32c_range"]

_BLOCK = 64 << 20  # bytes that one thread checksums at a time
_CHUNK = 1 << 20  # bytes read at a time: stays in the L2 cache between read and checksum


def crc32c_range(
    path: str | os.PathLike[str], offset: int, length: int, *, chunk: int = _CHUNK
) -> int:
    """Return the CRC-32C of ``length`` bytes of a file from ``offset``, fewer where it ends."""
    crc = 0
    buffer = memoryview(bytearray(min(length, chunk)))
    with open_file(path) as file:
        file.seek(offset)
        while length > 0 and (count := file.readinto(buffer[: min(length, chunk)])):
            crc = crc32c(buffer[:count], crc)
            length -= count
    return crc


def crc32c_file(path: str | os.PathLike[str], threads: int = 1, *, block: int = _BLOCK) -> int:
    """Return the CRC-32C of a whole file, of which ``threads`` blocks are read at once."""
    size = os.stat(path).st_size
    if threads <= 1 or size <= block:
        return crc32c_range(path, 0, size)
    blocks = [(start, min(block, size - start)) for start in range(0, size, block)]
    crc = 0
    with ThreadPoolExecutor(threads) as pool:
        pieces = pool.map(lambda block: crc32c_range(path, *block), blocks)
        for piece, (_, length) in zip(pieces, blocks, strict=True):
            crc = crc32c_combine(crc, piece, length)
    return crc

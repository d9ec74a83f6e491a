"""CRC-32C (Castagnoli), the checksum of every blob and every file of a dataset.

CRC-32C is what SSE 4.2 and Armv8 compute in hardware and what iSCSI, ext4 and Google
Cloud Storage use: it finds accidental damage at memory speed. It is no defence against
somebody who changes a file on purpose.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import google_crc32c

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
_BLOCK = 64 << 20  # bytes that one thread checksums at a time
_CHUNK = 1 << 20  # bytes read at a time: stays in the L2 cache between read and checksum


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """CRC-32C of ``data``, continuing from ``crc`` (0 to start); an unsigned 32-bit int."""
    return int(google_crc32c.extend(crc, data if isinstance(data, bytes) else bytes(data)))


def _times(matrix: tuple[int, ...], vector: int) -> int:
    """Product over GF(2) of a 32x32 matrix, given by its columns, and a vector."""
    product = 0
    for column in matrix:
        if vector & 1:
            product ^= column
        vector >>= 1
        if not vector:
            break
    return product


@lru_cache(maxsize=64)
def _zeros_operator(power: int) -> tuple[int, ...]:
    """The matrix that advances a CRC over ``2**power`` zero bits."""
    if power == 0:
        return (_POLYNOMIAL, *(1 << i for i in range(31)))
    half = _zeros_operator(power - 1)
    return tuple(_times(half, column) for column in half)


def crc32c_combine(first: int, second: int, second_length: int) -> int:
    """CRC-32C of two pieces joined, from the CRC of each.

    The arithmetic is that of zlib's ``crc32_combine``: the CRC of the first piece is
    carried over as many zero bits as the second has, by repeated squaring.

    Args:
        first: CRC-32C of the first piece.
        second: CRC-32C of the second piece.
        second_length: Length of the second piece in bytes.
    """
    power = 3  # the first bit of a length in bytes stands for 2**3 bits
    while second_length:
        if second_length & 1:
            first = _times(_zeros_operator(power), first)
        second_length >>= 1
        power += 1
    return first ^ second


def crc32c_range(path: str | os.PathLike[str], offset: int, length: int) -> int:
    """CRC-32C of ``length`` bytes of a file from ``offset``; fewer where the file ends."""
    crc = 0
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while length > 0 and (chunk := file.read(min(length, _CHUNK))):
            crc = crc32c(chunk, crc)
            length -= len(chunk)
    return crc


def crc32c_file(path: str | os.PathLike[str], threads: int = 1) -> int:
    """CRC-32C of a whole file.

    Args:
        path: The file.
        threads: How many blocks are read at once: what a fast disk needs to be busy.

    Raises:
        OSError: The file cannot be read.
    """
    size = Path(path).stat().st_size
    if threads <= 1 or size <= _BLOCK:
        return crc32c_range(path, 0, size)
    blocks = [(start, min(_BLOCK, size - start)) for start in range(0, size, _BLOCK)]
    crc = 0
    with ThreadPoolExecutor(threads) as pool:
        pieces = pool.map(lambda block: crc32c_range(path, *block), blocks)
        for piece, (_, length) in zip(pieces, blocks, strict=True):
            crc = crc32c_combine(crc, piece, length)
    return crc

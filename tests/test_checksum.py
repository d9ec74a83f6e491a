"""CRC-32C against a second implementation, and put together from pieces."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata import _native
from fastdata._native import crc32c, crc32c_combine
from fastdata.storage.files import crc32c_file, crc32c_range


def crc32c_bit_by_bit(data: bytes) -> int:
    """The definition: the remainder of a division by Castagnoli's polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# RFC 3720, appendix B.4, and the check value of the catalogue of CRC algorithms.
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_published_values(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc == crc32c_bit_by_bit(data)


@given(data=st.binary(max_size=2000), cut=st.integers(0, 2000))
def test_pieces_give_the_whole(data: bytes, cut: int) -> None:
    first, second = data[:cut], data[cut:]
    whole = crc32c_bit_by_bit(data)
    assert crc32c(data) == whole
    assert crc32c(second, crc32c(first)) == whole
    assert crc32c(bytearray(data)) == crc32c(memoryview(data)) == whole
    assert crc32c_combine(crc32c(first), crc32c(second), len(second)) == whole


@given(st.integers(0, 40000), st.integers(0, 40000))
def test_long_pieces_give_the_whole(a: int, b: int) -> None:
    data = bytes(i * i >> 3 & 255 for i in range(a + b))
    whole = crc32c(data)
    assert crc32c(data[a:], crc32c(data[:a])) == whole
    assert crc32c_combine(crc32c(data[:a]), crc32c(data[a:]), b) == whole


def test_the_processors_instruction_is_used_where_there_is_one() -> None:
    """However the core was compiled and linked: without it, checksums take as long as decoding."""
    lines = re.findall(r"(?m)^(?:flags|Features)\s*:(.*)", Path("/proc/cpuinfo").read_text())
    flags = {word for line in lines for word in line.split()}
    assert bool(flags & {"sse4_2", "crc32"}) == _native.CRC32C_BY_INSTRUCTION


def test_combining_lengths_beyond_32_bits() -> None:
    # Zeros after the data: five times 2**32 of them in one step, and in five.
    crc, zeros = crc32c(b"data"), crc32c(b"")
    length = 1 << 32
    crc_of_zeros = crc32c(bytes(1 << 20))
    for power in range(20, 32):
        crc_of_zeros = crc32c_combine(crc_of_zeros, crc_of_zeros, 1 << power)
    in_steps, all_zeros = crc, zeros
    for step in range(5):
        in_steps = crc32c_combine(in_steps, crc_of_zeros, length)
        all_zeros = crc32c_combine(all_zeros, crc_of_zeros, length) if step else crc_of_zeros
    assert crc32c_combine(crc, all_zeros, 5 * length) == in_steps


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 5_300])
def test_files(tmp_path: Path, size: int) -> None:
    data = bytes(i * i % 251 for i in range(size))
    path = tmp_path / "file"
    path.write_bytes(data)
    for threads in (1, 2, 5):
        assert crc32c_file(path, threads, block=1000) == crc32c(data)
    assert crc32c_range(path, 0, size, chunk=300) == crc32c(data)
    path.write_bytes(b"0123456789")
    assert crc32c_range(path, 2, 3) == crc32c(b"234")
    assert crc32c_range(path, 8, 100) == crc32c(b"89")
    assert crc32c_range(path, 10, 5) == crc32c(b"") == 0
    with pytest.raises(FileNotFoundError):
        crc32c_file(tmp_path / "missing")


@given(st.lists(st.binary(max_size=40), max_size=6), st.sets(st.integers(0, 5)))
def test_wrong_parts(parts: list[bytes], damaged: set[int]) -> None:
    data, ends = b"-" + b"".join(parts), np.cumsum([1, *map(len, parts)])
    expected = [at for at in sorted(damaged) if at < len(parts)]
    checks = [crc32c_bit_by_bit(part) for part in parts]
    for at in expected:
        checks[at] ^= 1
    columns = np.array([ends[:-1], ends[1:], checks], np.int64)
    assert _native.wrong_parts(memoryview(data), *columns) == expected
    columns[2] = -1
    assert _native.wrong_parts(data, *columns) == []


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 4)])
def test_parts_outside_of_the_data(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        _native.wrong_parts(b"123", np.array([start]), np.array([stop]), np.array([0]))

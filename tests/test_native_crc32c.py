"""CRC-32C: published values, and its laws."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fastdata import _native
from fastdata.storage.checksum import crc32c, crc32c_combine


def plain(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_published_values():
    # RFC 3720, B.4, and the check value of the CRC catalogue.
    assert crc32c(b"\0" * 32) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


@given(st.binary(max_size=2000), st.integers(0, 2**32 - 1))
def test_equals_the_definition(data, crc):
    assert crc32c(data, crc) == plain(data, crc)


@given(st.integers(0, 40000), st.integers(0, 40000))
def test_combine_and_continue(a, b):
    data = bytes(i * i >> 3 & 255 for i in range(a + b))
    whole = crc32c(data)
    assert crc32c(data[a:], crc32c(data[:a])) == whole
    assert crc32c_combine(crc32c(data[:a]), crc32c(data[a:]), b) == whole


def test_the_processors_instruction_is_used_where_there_is_one() -> None:
    """However the core was compiled and linked: without it, checksums take as long as decoding."""
    text = Path("/proc/cpuinfo").read_text()
    flags = set(
        re.findall(r"[\w]+", " ".join(re.findall(r"(?m)^(?:flags|Features)\s*:(.*)", text)))
    )
    assert bool(flags & {"sse4_2", "crc32"}) == _native.CRC32C_BY_INSTRUCTION

"""Seek tables as docs/formats/seek-points.md has them, read and written without the core."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fastdata._native import crc32c


def scan_offset(jpeg: bytes) -> int:
    at = jpeg.index(b"\xff\xda")
    return at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")


def parse(table: bytes, jpeg: bytes, mcus_per_row: int, mcu_rows: int, components: int):
    """The table as docs/formats/seek-points.md has it, read without the core; checks checksums."""
    partial = table[0] == 2
    assert table[0] in (1, 2)
    delta_bits, interval = table[1], int.from_bytes(table[2:4], "little")
    assert int.from_bytes(table[4:8], "little") == len(jpeg)
    minimum = int.from_bytes(table[12:16], "little")
    points = -(-mcus_per_row // interval) * mcu_rows
    at = 32 if partial else 16
    dc = []
    for _ in range(components):
        dc.append((int.from_bytes(table[at : at + 2], "little", signed=True), table[at + 2]))
        at += 3
    bits = int.from_bytes(table[at:], "little")
    scan = scan_offset(jpeg)
    assert int.from_bytes(table[8:12], "little") == crc32c(jpeg[:scan])
    positions, place = [scan * 8], 0
    for _ in range(points - 1):
        positions.append(positions[-1] + minimum + (bits >> place & ((1 << delta_bits) - 1)))
        place += delta_bits
    place = (place + 7) // 8 * 8
    predictors = []
    for _ in range(points):
        row = []
        for low, width in dc:
            row.append(low + (bits >> place & ((1 << width) - 1)))
            place += width
        predictors.append(row)
    end = at + (place + 7) // 8
    if partial:
        assert int.from_bytes(table[16:20], "little") == scan
        assert (table[30], table[31]) == (components, 0)
        for i, (first, last) in enumerate(segments(table, positions)):
            stored = int.from_bytes(table[end + 4 * i : end + 4 * i + 4], "little")
            assert stored == crc32c(jpeg[first:last])
        end += 4 * points
    assert len(table) == end
    return positions, predictors


def segments(table: bytes, positions: Sequence[int]) -> list[tuple[int, int]]:
    """The bytes of each point's segment, of a table of version 2."""
    ends = [(position + 7) // 8 for position in positions[1:]]
    ends.append(int.from_bytes(table[20:24], "little"))
    return [(position // 8, end) for position, end in zip(positions, ends, strict=True)]


def pack(
    jpeg: bytes, interval: int, positions: Sequence[int], predictors: Sequence[Sequence[int]]
) -> bytes:
    deltas = [after - before for before, after in pairwise(positions)]
    minimum = min(deltas)
    delta_bits = (max(deltas) - minimum).bit_length()
    low = [min(column) for column in zip(*predictors, strict=True)]
    widths = [
        (max(column) - least).bit_length()
        for column, least in zip(zip(*predictors, strict=True), low, strict=True)
    ]
    out = bytearray([1, delta_bits]) + interval.to_bytes(2, "little")
    out += len(jpeg).to_bytes(4, "little")
    out += crc32c(jpeg[: scan_offset(jpeg)]).to_bytes(4, "little") + minimum.to_bytes(4, "little")
    for least, width in zip(low, widths, strict=True):
        out += least.to_bytes(2, "little", signed=True) + bytes([width])
    bits = place = 0
    for delta in deltas:
        bits |= delta - minimum << place
        place += delta_bits
    out += bits.to_bytes((place + 7) // 8, "little")
    bits = place = 0
    for row in predictors:
        for value, least, width in zip(row, low, widths, strict=True):
            bits |= value - least << place
            place += width
    return bytes(out + bits.to_bytes((place + 7) // 8, "little"))

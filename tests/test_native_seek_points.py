"""Seek tables: their size and form, and what happens when they lie."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import encode, picture, pillow
from seek_tables import pack, parse, scan_offset
from simd_paths import assert_same

from fastdata import _native
from fastdata.decode import DecodeError, decode_jpeg, seek_points, seek_points_many

JPEG = encode(picture(260, 190, 3), "4:2:0", 88)
TABLE = seek_points(JPEG, 32)
REFERENCE = pillow(JPEG)


def test_layout():
    positions, predictors = parse(TABLE, JPEG, 17, 12, 3)
    assert len(positions) == 9 * 12
    assert positions == sorted(positions) and positions[-1] < len(JPEG) * 8
    assert predictors[0] == [0, 0, 0]
    scan = JPEG.index(b"\xff\xda")
    for byte in (position // 8 for position in positions):  # none is that of a stuffed zero
        assert not (JPEG[byte - 1 : byte + 1] == b"\xff\0" and byte - 1 > scan)


def test_table_of_another_image(simd):
    other = seek_points(encode(picture(260, 190, 4), "4:2:0", 88), 32)
    with pytest.raises(DecodeError) as caught:
        decode_jpeg(JPEG, seek_points=other)
    assert caught.value.code == "bad_seek_points"
    # With fallback="always" the image is decoded without the table.
    assert np.array_equal(decode_jpeg(JPEG, seek_points=other, fallback="always"), REFERENCE)


def test_short_table():
    for length in (0, 1, 10, 24, len(TABLE) - 1):
        with pytest.raises(DecodeError) as caught:
            decode_jpeg(JPEG, seek_points=TABLE[:length] or b"\x00")
        assert caught.value.code == "bad_seek_points"


def forged(table: bytes, changes) -> bytes:
    out = bytearray(table)
    for at, value in changes:
        out[at % len(out)] = value
    return bytes(out)


@settings(max_examples=150)
@given(
    in_table=st.lists(st.tuples(st.integers(12, 10**6), st.integers(0, 255)), max_size=3),
    in_scan=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=2),
    seed=st.integers(0, 10**6),
)
def test_lies_mean_the_same_on_every_path(in_table, in_scan, seed):
    """Streams and vectors begin at other points, and make the same of damage."""
    scan = scan_offset(JPEG)
    jpeg = JPEG[:scan] + forged(JPEG[scan:], in_scan)
    rng = random.Random(seed)
    x0, y0 = rng.randrange(130), rng.randrange(90)
    box = (x0, y0, rng.randint(x0 + 100, 260), rng.randint(y0 + 60, 190))
    assert_same(jpeg, box, forged(TABLE, in_table), "all paths")


@pytest.mark.parametrize("by", [1, -1, 8, -8])
def test_a_point_within_a_row_that_lies(simd, by):
    """A decoder that begins there must notice that the bits before it end elsewhere."""
    positions, predictors = parse(TABLE, JPEG, 17, 12, 3)
    for point in range(2, 9 * 12 - 1):
        if point % 9 == 0:
            continue  # a row's first, which everybody must believe
        lies = [*positions[:point], positions[point] + by, *positions[point + 1 :]]
        table = pack(JPEG, 2, lies, predictors)
        pixels = decode_jpeg(JPEG, seek_points=table, fallback="never")
        assert np.array_equal(pixels, REFERENCE), point


NEIGHBOURS = [
    JPEG,
    encode(picture(64, 64, 3), "4:4:4", 88, restart_marker_rows=1),
    encode(picture(33, 9, 1), "4:2:2", 60),
    encode(picture(1, 1, 2), "4:4:4", 90),
    encode(picture(300, 200, 5), "4:2:0", 95),
    JPEG[: len(JPEG) // 2],
    JPEG[:100],
    b"",
    b"not a JPEG",
]


@settings(max_examples=60)
@given(
    st.sampled_from(_native.simd_levels()),
    st.lists(st.integers(0, len(NEIGHBOURS) - 1), max_size=12),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    st.integers(1, 400),
)
def test_neighbours_in_a_batch_do_not_matter(level, chosen, damage, stride):
    batch = [NEIGHBOURS[i] for i in chosen]
    batch += [forged(JPEG, [change]) for change in damage]
    before = _native.simd()
    _native.set_simd(level)
    try:
        together = seek_points_many(batch, stride)
        alone = [seek_points_many([jpeg], stride)[0] for jpeg in batch]
    finally:
        _native.set_simd(before)
    assert len(together) == len(batch)
    for one, other in zip(together, alone, strict=True):
        assert isinstance(one, DecodeError) == isinstance(other, DecodeError)
        if not isinstance(one, DecodeError):
            assert one == other

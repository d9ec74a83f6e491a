"""Entropy decoding in the lanes of a vector: when it is used, and that it is one stream's."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from jpegs import encode, picture, pillow
from seek_tables import pack, parse
from simd_paths import assert_same, outcome

from fastdata import _native
from fastdata.decode import decode_jpeg, seek_points

pytestmark = pytest.mark.skipif(
    "avx512" not in _native.simd_levels(), reason="this processor lacks avx512"
)
MCU = {"grey": 8, "4:4:4": 8, "4:2:0": 16}


@pytest.fixture(autouse=True)
def avx512() -> Iterator[None]:
    before = _native.simd()
    _native.set_simd("avx512")
    yield
    _native.set_simd(before)
    _native.use_vector("always")


def regions(jpeg: bytes, stride: int, **options) -> int:
    before = _native.vector_regions()
    decode_jpeg(jpeg, seek_points=seek_points(jpeg, stride), fallback="never", **options)
    return _native.vector_regions() - before


@pytest.mark.parametrize("sampling", ["grey", "4:4:4", "4:2:2", "4:4:0", "4:2:0"])
def test_used_for_photographs(sampling):
    for stride in (64, 128, 256):
        assert regions(encode(picture(500, 375, 1), sampling, 90), stride) == 1


@pytest.mark.parametrize("quality", [75, 90, 98])
def test_blocks_whose_last_coefficient_is_not_zero(quality):
    # What follows is the next block's DC difference, and no second symbol of a look-up.
    noise = np.random.default_rng(quality).integers(0, 256, (128, 500, 3), np.uint8)
    jpeg = encode(noise, "4:4:4", quality)
    before = _native.vector_regions()
    got = decode_jpeg(jpeg, seek_points=seek_points(jpeg, 128), fallback="never")
    assert _native.vector_regions() == before + 1  # and was not given up half-way
    assert np.array_equal(got, pillow(jpeg))


def test_not_used():
    jpeg = encode(picture(500, 375, 1), "4:2:0", 90)
    assert regions(jpeg, 128, region=(0, 0, 100, 100)) == 0  # few segments
    assert regions(jpeg, 500) == 0  # long ones
    _native.use_vector("never")
    assert regions(jpeg, 128) == 0
    with pytest.raises(ValueError, match="measured, always or never"):
        _native.use_vector("sometimes")


@pytest.mark.parametrize("junk", [b"\xff\xd9", b"\xff\xd0", b"\xff\xd9any", b"\xff\xff\xff"])
def test_a_marker_between_segments(junk):
    """One stream ends there; a table whose points lie around it does not change that."""
    jpeg = encode(picture(260, 190, 3), "4:2:0", 88)
    positions, predictors = parse(seek_points(jpeg, 32), jpeg, 17, 12, 3)
    for point in range(108):
        byte, bit = divmod(positions[point], 8)
        if point % 9 == 0 or 0xFF in jpeg[byte - 1 : byte + 1]:
            continue
        shared = 1 if bit else 0  # a byte with bits of both
        forged = jpeg[: byte + shared] + junk + jpeg[byte:]
        shift = (len(junk) + shared) * 8
        moved = positions[:point] + [p + shift for p in positions[point:]]
        table = pack(forged, 2, moved, predictors)
        assert isinstance(outcome(forged, (0, 0, 260, 190), table, "scalar"), str)
        assert_same(forged, (0, 0, 260, 190), table, point)


@pytest.mark.parametrize("sampling", MCU)
def test_a_point_within_a_stuffed_zero(sampling):
    found = 0
    for seed in range(10):
        jpeg = encode(picture(400, 200, seed), sampling, 90)
        table = seek_points(jpeg, 64)
        per_row, rows = -(-400 // MCU[sampling]), -(-200 // MCU[sampling])
        interval = 64 // MCU[sampling]
        points = -(-per_row // interval)
        components = 1 if sampling == "grey" else 3
        positions, predictors = parse(table, jpeg, per_row, rows, components)
        assert pack(jpeg, interval, positions, predictors) == table
        for point in range(1, len(positions) - 1):
            byte, bit = divmod(positions[point], 8)
            if point % points == 0:
                continue
            if bit and jpeg[byte] == 0xFF:
                lie = positions[point] + 8
            elif not bit and jpeg[byte - 2 : byte] == b"\xff\x00":
                lie = positions[point] - 8
            else:
                continue
            if lie > positions[point + 1]:
                continue
            lies = [*positions[:point], lie, *positions[point + 1 :]]
            forged = pack(jpeg, interval, lies, predictors)
            middle = (point % points * interval + interval // 2) * MCU[sampling]
            for box in [(0, 0, min(400, middle), 200), (0, 0, 400, 200)]:
                assert_same(jpeg, box, forged, (seed, point))
            found += 1
    assert found


def test_a_scan_that_ends_early():
    """In the last segment, which no other follows."""
    jpeg = encode(picture(260, 190, 3), "4:4:4", 88)
    positions, predictors = parse(seek_points(jpeg, 32), jpeg, 33, 24, 3)
    for cut in range(positions[-1] // 8 + 2, len(jpeg), 7):
        short = jpeg[:cut]
        assert_same(short, (0, 0, 260, 190), pack(short, 4, positions, predictors), cut)
        assert_same(short, (0, 0, 255, 190), pack(short, 4, positions, predictors), cut)


@pytest.mark.slow
def test_a_fork_while_steps_are_measured():
    """The child's first region must not wait for a thread that it does not have."""
    jpeg = encode(picture(400, 300, 1), "4:4:4", 90)
    table, reference = seek_points(jpeg, 64), pillow(jpeg)

    def in_child(run) -> int:
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)
                os._exit(0 if run() else 1)
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def is_right() -> bool:
        return np.array_equal(decode_jpeg(jpeg, seek_points=table), reference)

    def forks_soon(turn: int) -> bool:  # nothing has been measured in this process
        _native.use_vector("measured")
        threading.Thread(target=is_right, daemon=True).start()
        time.sleep(turn * 2e-5)
        return in_child(is_right) == 0

    for turn in range(40):
        assert in_child(lambda turn=turn: forks_soon(turn)) == 0, turn

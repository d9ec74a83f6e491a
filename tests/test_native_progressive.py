"""JPEGs of several scans: Pillow's pixels, on every SIMD path; what is unusual is Pillow's."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import encode, picture, pillow, regions
from scans import SAMPLINGS, Scan, drawn, progression, sequential, write

from fastdata import _native
from fastdata.decode import DecodeError, decode_jpeg, jpeg_info


def assert_exact(data: bytes, rng: random.Random, count: int = 3) -> None:
    assert jpeg_info(data).native
    reference = pillow(data)
    height, width = reference.shape[:2]
    for x0, y0, x1, y1 in regions(width, height, rng, count):
        pixels = decode_jpeg(data, (x0, y0, x1, y1), fallback="never")
        assert np.array_equal(pixels, reference[y0:y1, x0:x1]), (x0, y0, x1, y1)


def code_of(data: bytes, **options) -> str:
    try:
        decode_jpeg(data, fallback="never", **options)
    except DecodeError as error:
        return error.code
    return "ok"


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_libjpegs_own_script(simd, sampling):
    rng = random.Random(sampling)
    for quality in (5, 60, 90, 100):
        size = rng.randint(1, 130), rng.randint(1, 130)
        data = encode(picture(*size, 3), sampling, quality, progressive=sampling != "4:4:0")
        if sampling != "4:4:0":  # which is made from a baseline frame
            assert jpeg_info(data).progressive
        assert_exact(data, rng)


@settings(max_examples=60)
@given(
    width=st.integers(1, 120),
    height=st.integers(1, 120),
    sampling=st.sampled_from(list(SAMPLINGS)),
    restart=st.sampled_from([0, 0, 1, 3, 50]),
    seed=st.integers(0, 10**6),
)
def test_any_script(width, height, sampling, restart, seed):
    rng = random.Random(seed)
    image = drawn(width, height, sampling, rng)
    comment = b"\xff\xfe\0\x06\xff\xda\xff\xd9"
    script = progression(len(image.blocks), rng)
    data = write(image, script, restart=restart, between=comment)
    before = _native.simd()
    try:
        for level in _native.simd_levels():
            _native.set_simd(level)
            assert_exact(data, rng, 1)
    finally:
        _native.set_simd(before)
    # Another image, or an error that says where.
    damaged = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    try:
        decode_jpeg(bytes(damaged), fallback="never")
    except DecodeError as error:
        assert error.detail


def test_many_blocks_end_at_once(simd):
    """A run of ends of blocks across rows, regions and more than its code's bits."""
    rng = random.Random(2)
    image = drawn(700, 640, "grey", rng)
    image.blocks[0][:, 1:, 1:] = 0
    image.blocks[0][1:, :, 1:] = 0
    script = [Scan((0,), 0, 0), Scan((0,), 1, 63, 0, 1), Scan((0,), 1, 63, 1, 0)]
    assert_exact(write(image, script), rng)


def test_all_coefficients_at_once(simd):
    """63 corrections and no zero in a block; new coefficients and none to correct."""
    rng = random.Random(3)
    image = drawn(40, 40, "grey", rng)
    blocks = image.blocks[0]
    blocks[..., 1:] = np.random.default_rng(0).integers(2, 9, blocks[..., 1:].shape)
    blocks[1] = 1
    blocks[2, :, 1::2] = 1
    script = [Scan((0,), 0, 0), Scan((0,), 1, 63, 0, 1), Scan((0,), 1, 63, 1, 0)]
    assert_exact(write(image, script), rng)


SCRIPT = [Scan((0, 1, 2), 0, 0), *(Scan((c,), 1, 63, 0, 1) for c in range(3))]
SCRIPT += [Scan((c,), 1, 63, 1, 0) for c in range(3)]


@pytest.mark.parametrize(
    "change",
    [
        lambda script: script[:-1],  # libjpeg estimates what is missing
        lambda script: script[:1],
        lambda script: script[:3] + script[4:6],  # a component without a scan
        lambda script: script + script[-1:],  # twice
        lambda script: script[1:2] + script[:1] + script[2:],  # before the DC coefficients
        lambda script: [script[0]._replace(low=1), *script[1:]],
    ],
)
def test_unusual_scripts_are_pillows(simd, change):
    image = drawn(60, 50, "4:2:0", random.Random(1))
    data = write(image, change(SCRIPT))
    assert code_of(data) == "unsupported"
    assert np.array_equal(decode_jpeg(data), pillow(data))
    # High frequencies may be missing; what failed leaves nothing behind.
    grey = drawn(60, 50, "grey", random.Random(1))
    assert_exact(write(grey, [Scan((0,), 0, 0), Scan((0,), 1, 9)]), random.Random(0))
    assert_exact(write(image, SCRIPT), random.Random(0))


def test_truncated_everywhere(simd):
    """An image without an end is refused; Pillow refuses it, too."""
    data = write(drawn(40, 30, "4:2:0", random.Random(1)), SCRIPT)
    first = data.index(b"\xff\xda")
    for length in range(first, len(data) - 1, 3):
        assert code_of(data[:length]) in ("truncated", "bad_scan_data"), length
    assert code_of(data) == "ok"


def test_baseline_jpegs_of_several_scans_are_pillows():
    rng = random.Random(4)
    data = write(drawn(40, 33, "4:2:0", rng), sequential(3, rng), progressive=False)
    assert code_of(data) == "unsupported"
    assert np.array_equal(decode_jpeg(data), pillow(data))


def test_what_lacks_before_a_restart_marker_is_noticed(simd):
    """A byte less, or a 0xFF before a stuffed one, which libjpeg takes for a fill byte."""
    rng = random.Random(5)
    image = drawn(40, 40, "4:4:4", rng)
    data = write(image, progression(len(image.blocks), rng), restart=3)
    markers = [m.start() for m in re.finditer(rb"\xff[\xd0-\xd7]", data)]
    assert len(markers) > 5 and code_of(data) == "ok"
    places = markers[:: max(1, len(markers) // 20)]
    damaged = [data[: at - 1] + data[at:] for at in places]
    damaged += [data[: at - 1] + b"\xff" + data[at - 1 :] for at in places]
    stuffed = data.index(b"\xff\x00")
    damaged.append(data[:stuffed] + b"\xff\xff" + data[stuffed:])
    noticed = 0
    for one in damaged:
        if code_of(one) == "ok":  # nothing but the ones that fill the last byte was lost
            assert np.array_equal(decode_jpeg(one, fallback="never"), pillow(one))
        else:
            noticed += 1
    assert noticed > len(damaged) / 4


def test_nothing_of_a_damaged_image_is_left_for_a_later_one(simd):
    """Not even in components that the image between them does not have."""
    colour = encode(picture(64, 48, 1), "4:4:4", progressive=True)
    grey = encode(picture(64, 48, 2), "grey", progressive=True)
    for length in range(len(colour) // 2, len(colour), 97):
        assert code_of(colour[:length]) != "ok"
        assert_exact(grey, random.Random(0), 1)
        assert_exact(colour, random.Random(0), 1)

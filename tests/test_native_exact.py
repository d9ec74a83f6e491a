"""Decoded pixels equal Pillow's full decode, cropped: ==, on every SIMD path."""

from __future__ import annotations

import itertools
import platform
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import SAMPLINGS, encode, picture, pillow, regions, requantised, sample_files
from tiers import first_of

from fastdata import _native
from fastdata.decode import decode_jpeg, jpeg_info, seek_points

STRIDES = (1, 16, 64, 128, 1000)


def assert_exact(data: bytes, boxes, tables, reference=None, what="") -> None:
    reference = pillow(data) if reference is None else reference
    for (x0, y0, x1, y1), table in itertools.product(boxes, tables):
        pixels = decode_jpeg(data, (x0, y0, x1, y1), seek_points=table, fallback="never")
        assert np.array_equal(pixels, reference[y0:y1, x0:x1]), (
            f"{what} region {(x0, y0, x1, y1)}, {'with' if table else 'without'} seek points"
        )


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_sizes(simd, sampling):
    """Sizes 1 to 70, each whole and in parts, of every quality."""
    rng = random.Random(sampling)
    for width in range(1, 71):
        quality = (1, 10, 50, 75, 90, 98, 100)[width % 7]
        data = encode(picture(width, rng.randint(1, 70), width), sampling, quality)
        reference = pillow(data)
        height, width = reference.shape[:2]
        tables = [None, seek_points(data, rng.choice(STRIDES))]
        assert_exact(data, regions(width, height, rng, 2), tables, reference)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_restart_intervals(simd, sampling):
    rng = random.Random(sampling)
    for restart in (
        {"restart_marker_blocks": 1},
        {"restart_marker_blocks": 7},
        {"restart_marker_rows": 1},
    ):
        for size in [(70, 50), (33, 65), (8, 8)]:
            data = encode(picture(*size, 3), sampling, 92, **restart)
            reference = pillow(data)
            height, width = reference.shape[:2]
            tables = [None] + [seek_points(data, stride) for stride in STRIDES]
            assert_exact(data, regions(width, height, rng, 2), tables, reference)


@settings(max_examples=60)
@given(
    width=st.integers(1, 200),
    height=st.integers(1, 200),
    sampling=st.sampled_from(list(SAMPLINGS)),
    quality=st.integers(1, 100),
    optimize=st.booleans(),
    restart=st.sampled_from([0, 0, 1, 4, 11]),
    noise=st.sampled_from([0, 5, 60, 255]),
    seed=st.integers(0, 10**6),
)
def test_any_jpeg(width, height, sampling, quality, optimize, restart, noise, seed):
    data = encode(
        picture(width, height, seed, noise),
        sampling,
        quality,
        optimize=optimize,
        **({"restart_marker_blocks": restart} if restart else {}),
    )
    rng = random.Random(seed)
    reference = pillow(data)
    height, width = reference.shape[:2]
    tables = [None, seek_points(data, rng.choice(STRIDES))]
    boxes = regions(width, height, rng, 2)
    before = _native.simd()
    try:
        for level in _native.simd_levels():
            _native.set_simd(level)
            assert_exact(data, boxes, tables, reference, level)
    finally:
        _native.set_simd(before)


@pytest.mark.parametrize("part", first_of(range(10)))
def test_real_images(part):
    """Baseline photographs of the sample, whole and in random regions; each on one level."""
    levels, rng = _native.simd_levels(), random.Random(part)
    before, count = _native.simd(), 0
    try:
        for number, file in enumerate(sample_files()[part::10]):
            _native.set_simd(levels[number % len(levels)])
            data = file.read_bytes()
            if not jpeg_info(data).native:
                continue
            reference = pillow(data)
            height, width = reference.shape[:2]
            table = seek_points(data, rng.choice((64, 128, 256)))
            boxes = regions(width, height, rng, 2)
            assert_exact(data, boxes[:1] + boxes[-2:], [None, table], reference, file.name)
            assert_exact(data, boxes[1:-2], [table], reference, file.name)
            count += 1
    finally:
        _native.set_simd(before)
    assert count >= 50


def test_large_image_crosses_chunks(simd):
    """A scan of many 8 KiB chunks, rows of more than one."""
    data = encode(picture(3000, 200, 1, 255), "4:4:4", 100)
    reference = pillow(data)
    tables = [None, seek_points(data, 128), seek_points(data, 4096)]
    assert_exact(data, regions(3000, 200, random.Random(5), 4), tables, reference)


#: Steps of quantisation tables, by how they make coefficients overflow.
OVERFLOWING = {
    "8 bits": lambda rng, k: 255,
    "8 bits, DC": lambda rng, k: 1 if k else 255,
    "16 bits": lambda rng, k: rng.randrange(65536),
    "16 bits, of any size": lambda rng, k: int(2 ** rng.uniform(0, 16)),
    "16 bits, even": lambda rng, k: 1 << rng.randrange(16),
    "16 bits, DC": lambda rng, k: 1 if k else rng.randrange(65536),
    "16 bits, row 0": lambda rng, k: rng.randrange(65536) if k in (0, 1, 5, 6, 14, 15) else 1,
}


# Where libjpeg-turbo has other vector code, it overflows otherwise; ours is the same everywhere.
@pytest.mark.skipif(platform.machine() != "x86_64", reason="Pillow's libjpeg-turbo is another")
@pytest.mark.parametrize("steps", OVERFLOWING)
def test_tables_that_make_coefficients_overflow(simd, steps):
    """Also where a block has nothing but its row 0, or its DC."""
    rng = random.Random(steps)
    differing = 0
    for sampling, plain in itertools.product(SAMPLINGS, ("", "rows", "pixels")):
        pixels = picture(64, 48, 1, rng.choice((0, 60, 255)))
        if plain == "rows":
            pixels[:] = pixels[:1]
        elif plain == "pixels":
            pixels[:] = pixels[0, 0]
        usual = encode(pixels, sampling, rng.choice((5, 60, 100)))
        data = requantised(usual, lambda k: OVERFLOWING[steps](rng, k))
        reference = pillow(data)
        height, width = reference.shape[:2]
        tables = [None, seek_points(data, 8)]
        assert_exact(data, [(0, 0, width, height)], tables, reference, f"{sampling} {plain}")
        differing += not np.array_equal(reference, pillow(usual))
    assert differing >= 10

"""Resampling is within 1 of Pillow's crop().resize(), and the same on every SIMD path."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import encode, picture, pillow
from PIL import Image

from fastdata import _native
from fastdata.decode import decode_jpeg

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

# Filters with weights below zero use Pillow's own weights; bilinear ones are rounded.
LIMITS = {"nearest": 0, "bilinear": 1, "bicubic": 0, "lanczos": 0}


def on_every_path(call):
    """The result, which must be the same on all SIMD paths."""
    before = _native.simd()
    results = []
    try:
        for level in _native.simd_levels():
            _native.set_simd(level)
            results.append(call())
    finally:
        _native.set_simd(before)
    for level, result in zip(_native.simd_levels(), results, strict=False):
        assert np.array_equal(result, results[0]), f"{level} differs from scalar"
    return results[0]


def difference(a, b) -> int:
    return int(np.abs(a.astype(int) - b.astype(int)).max())


def assert_pillows(pixels, box, size, name, flip=False):
    ours = on_every_path(lambda: decode_jpeg(pixels, box, size, filter=name, flip=flip))
    image = Image.fromarray(pixels).crop(box).resize(size, FILTERS[name]).convert("RGB")
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert difference(ours, np.asarray(image)) <= LIMITS[name]


@settings(max_examples=100)
@given(data=st.data())
def test_within_one_of_pillow(data):
    width, height = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 300))
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    box = (x0, y0, data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height)))
    size = (data.draw(st.integers(1, 300)), data.draw(st.integers(1, 300)))
    name = data.draw(st.sampled_from(list(FILTERS)))
    flip = data.draw(st.booleans())
    noise = data.draw(st.sampled_from([0, 60, 255]))
    pixels = picture(width, height, data.draw(st.integers(0, 99)), noise)
    if data.draw(st.booleans()):
        pixels = np.ascontiguousarray(pixels[:, :, 0])

    assert_pillows(pixels, box, size, name, flip)


@settings(max_examples=60)
@given(
    name=st.sampled_from(list(FILTERS)),
    lengths=st.tuples(st.integers(1, 4000), st.integers(1, 4000)),
    breadths=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    upright=st.booleans(),
    white=st.booleans(),
)
def test_strips(name, lengths, breadths, upright, white):
    """Of any length to any length: from less than one tap an output to thousands."""
    box, size = zip(lengths, breadths, strict=True)
    if upright:
        box, size = box[::-1], size[::-1]
    # White beside black makes sums as large as they get.
    pixels = picture(*box, 7, 255)
    assert_pillows((pixels > 127) * np.uint8(255) if white else pixels, (0, 0, *box), size, name)


@pytest.mark.parametrize("name", FILTERS)
def test_scales(name):
    """Just below, at and just above scales where the vector paths change their ways."""
    for scale in (1, 1.5, 2, 2.1, 2.5, 3, 3.4, 4, 5, 8, 15, 17):
        for width in (int(96 * scale) - 1, int(96 * scale), int(96 * scale) + 1):
            assert_pillows(picture(width, 9, width), (0, 0, width, 9), (96, 12), name)


@pytest.mark.parametrize("name", FILTERS)
def test_extreme_scales(name):
    """To one pixel, from one pixel, and by more taps than fixed-point weights allow."""
    pixels = picture(2000, 40, 1, 255)
    for size in [(1, 1), (16, 40), (2000, 1), (1999, 41), (4000, 3), (31, 2)]:
        assert_pillows(pixels, (0, 0, 2000, 40), size, name)
    dot = picture(1, 1, 3)
    assert (decode_jpeg(dot, size=(50, 60), filter=name) == dot[0, 0]).all()


def test_region_of_a_jpeg_is_resampled_alone(simd):
    """Crop first: pixels outside the region do not bleed in."""
    data = encode(picture(300, 200, 4), "4:2:0", 95)
    image = Image.fromarray(pillow(data))
    for box in [(17, 3, 240, 199), (0, 0, 300, 200), (100, 100, 109, 120)]:
        ours = decode_jpeg(data, box, (224, 224))
        theirs = np.asarray(image.crop(box).resize((224, 224), Image.Resampling.BILINEAR))
        assert difference(ours, theirs) <= 1


def test_raw_pixels_with_a_row_stride(simd):
    wide = picture(500, 100, 8)
    view = wide[:, :301]  # rows are not adjacent
    assert np.array_equal(
        decode_jpeg(view, size=(64, 64)), decode_jpeg(np.ascontiguousarray(view), size=(64, 64))
    )
    assert np.array_equal(decode_jpeg(view, (5, 6, 300, 99)), view[6:99, 5:300])
    assert np.array_equal(decode_jpeg(view, flip=True), view[:, ::-1])

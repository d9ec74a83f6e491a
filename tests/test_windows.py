"""A window of a resized region: Pillow's crop, resize, crop; only what it needs is decoded."""

from __future__ import annotations

import numpy as np
import pytest
from core_batches import decode_batch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jpegs import encode, picture, pillow
from PIL import Image

from fastdata.decode import DecodeError, seek_points

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
LIMITS = {"nearest": 0, "bilinear": 1, "bicubic": 0, "lanczos": 0}


def by_pillow(pixels, box, full, window, size, name, flip):
    image = Image.fromarray(pixels).crop(box).resize(full, FILTERS[name]).convert("RGB")
    x, y = window
    image = image.crop((x, y, x + size[0], y + size[1]))
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image).astype(int)


@st.composite
def requests(draw, most=200):
    width, height = draw(st.integers(1, most)), draw(st.integers(1, most))
    x0, y0 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    box = (x0, y0, draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height)))
    own = (box[2] - box[0], box[3] - box[1])
    full = draw(st.one_of(st.tuples(st.integers(1, most), st.integers(1, most)), st.just(own)))
    x, y = draw(st.integers(0, full[0] - 1)), draw(st.integers(0, full[1] - 1))
    size = (draw(st.integers(1, full[0] - x)), draw(st.integers(1, full[1] - y)))
    return (width, height), box, full, (x, y), size


# The fixture only chooses the instruction set, for all examples alike.
_SETTINGS = settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@_SETTINGS
@given(
    request_=requests(),
    name=st.sampled_from(list(FILTERS)),
    flip=st.booleans(),
    grey=st.booleans(),
    noise=st.sampled_from([0, 60, 255]),
)
def test_pixels_within_one_of_pillow(simd, request_, name, flip, grey, noise):
    (width, height), box, full, window, size = request_
    pixels = picture(width, height, width + height, noise)
    if grey:
        pixels = np.ascontiguousarray(pixels[:, :, 0])
    out = decode_batch(
        [pixels], size, regions=[box], sizes=[full], windows=[window], flips=[flip], filter=name
    )
    expected = by_pillow(pixels, box, full, window, size, name, flip)
    assert np.abs(out[0] - expected).max() <= LIMITS[name]


@settings(_SETTINGS, max_examples=60)
@given(
    request_=requests(most=150),
    sampling=st.sampled_from(["4:2:0", "4:4:4", "4:2:2", "grey"]),
    seeking=st.booleans(),
    flip=st.booleans(),
)
def test_jpegs_within_one_of_pillow(simd, request_, sampling, seeking, flip):
    (width, height), box, full, window, size = request_
    data = encode(picture(width, height, 3), sampling)
    out = decode_batch(
        [data],
        size,
        regions=[box],
        sizes=np.array([full]),
        windows=np.array([window]),
        flips=[flip],
        seek_points=[seek_points(data, 32)] if seeking else None,
    )
    expected = by_pillow(pillow(data), box, full, window, size, "bilinear", flip)
    assert np.abs(out[0] - expected).max() <= 1


def test_only_what_the_window_needs_is_decoded():
    """Damage far from the window does not show; the whole image has it."""
    data = bytearray(encode(picture(400, 400, 1), "4:4:4"))
    table = seek_points(bytes(data), 64)
    middle = len(data) * 9 // 10
    data[middle : middle + 200] = b"\xff\xd9" * 100
    damaged = bytes(data)
    whole = [(0, 0, 400, 400)]
    options = {"regions": whole, "seek_points": [table]}
    with pytest.raises(DecodeError):
        decode_batch([damaged], (200, 200), **options)
    decode_batch([damaged], (50, 50), sizes=[(200, 200)], windows=[(20, 10)], **options)


@pytest.mark.parametrize(
    ("full", "window"),
    [
        ((63, 64), (0, 0)),
        ((100, 100), (0, 37)),
        ((100, 100), (0, -(2**31))),
        ((100, 100), (2**31 - 1, 2**31 - 1)),
        ((0, 100), (0, 0)),
        ((-(2**31), -(2**31)), (0, 0)),
    ],
)
def test_a_window_outside_is_a_bad_region(full, window):
    data = encode(picture(90, 80, 2))
    with pytest.raises(DecodeError, match=r"bad_region") as info:
        decode_batch([data], (64, 64), sizes=[full], windows=[window])
    assert info.value.code == "bad_region"


def torchs_nearest(pixels, box, full, window, size, flip):
    torch = pytest.importorskip("torch")
    left, top, right, bottom = box
    image = torch.from_numpy(pixels[top:bottom, left:right]).permute(2, 0, 1)[None]
    image = torch.nn.functional.interpolate(image, size=full[::-1], mode="nearest")[0]
    (x, y), (width, height) = window, size
    image = image[:, y : y + height, x : x + width]
    return (image.flip(-1) if flip else image).permute(1, 2, 0).numpy()


@_SETTINGS
@given(request_=requests(most=400), flip=st.booleans())
def test_nearest_floor_takes_the_pixels_of_torch(simd, request_, flip):
    (width, height), box, full, window, size = request_
    pixels = picture(width, height, width, 255)
    expected = torchs_nearest(pixels, box, full, window, size, flip)
    options = {"regions": [box], "sizes": [full], "windows": [window], "flips": [flip]}
    out = decode_batch([pixels], size, filter="nearest_floor", **options)[0]
    assert np.array_equal(out, expected)

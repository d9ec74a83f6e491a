"""The core's augmentations: Pillow's pixels, whatever the image, on every instruction set."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pillow_operations
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fastdata import _native

Values = Sequence[float]
LEVELS = _native.simd_levels()


def on_level(
    level: str, pixels: np.ndarray, operation: str, values: Values, key: int
) -> np.ndarray:
    before = _native.simd()
    _native.set_simd(level)
    try:
        return _native.augment(pixels, operation, values, key)
    finally:
        _native.set_simd(before)


def augment(pixels: np.ndarray, operation: str, values: Values, key: int = 7) -> np.ndarray:
    """The pixels, which must not depend on the instruction set."""
    kept = pixels.copy()
    found = {level: on_level(level, pixels, operation, values, key) for level in LEVELS}
    for level, one in found.items():
        np.testing.assert_array_equal(one, found["scalar"], f"{level}, {operation} {values}")
    np.testing.assert_array_equal(pixels, kept, "the caller's image was changed")
    return found["scalar"]


def check(pixels: np.ndarray, operation: str, values: Values, within: int = 0) -> None:
    found = augment(pixels, operation, values)
    expected = pillow_operations.apply(pixels, operation, values)
    assert found.shape == expected.shape
    difference = np.abs(found.astype(int) - expected.astype(int)).max()
    assert difference <= within, (operation, values, pixels.shape, difference)


def picture(kind: str, width: int, height: int, channels: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = (height, width, channels)
    if kind == "noise":
        pixels = rng.integers(0, 256, shape)
    elif kind == "constant":
        pixels = np.broadcast_to(rng.integers(0, 256, channels), shape)
    elif kind == "two values":
        pixels = rng.choice(rng.integers(0, 256, 2), shape)
    elif kind == "dark":
        pixels = rng.integers(40, 60, shape)
    else:  # smooth
        y, x = np.mgrid[:height, :width]
        waves = [np.sin(x / a + y / b) for a, b in rng.uniform(2, 40, (channels, 2))]
        pixels = np.stack(waves, -1) * 120 + 128
    pixels = np.ascontiguousarray(pixels.astype(np.uint8))
    return pixels[..., 0].copy() if channels == 1 else pixels


KINDS = ["noise", "constant", "two values", "dark", "smooth"]
SIZES = st.one_of(st.integers(1, 5), st.integers(60, 70), st.integers(1, 200))
IMAGES = st.builds(
    picture, st.sampled_from(KINDS), SIZES, SIZES, st.sampled_from([1, 3]), st.integers(0, 1 << 16)
)
FACTORS = st.one_of(st.floats(0, 2), st.sampled_from([0.0, 1.0, 1e6]), st.floats(0, 30))
EXACT = {
    "brightness": st.tuples(FACTORS),
    "contrast": st.tuples(FACTORS),
    "saturation": st.tuples(FACTORS),
    "sharpness": st.tuples(FACTORS),
    "hue": st.tuples(st.floats(-0.5, 0.5)),
    "grayscale": st.tuples(st.sampled_from([1, 3])),
    "permute": st.tuples(*3 * [st.integers(0, 2)]),
    "posterize": st.tuples(st.integers(1, 8)),
    "solarize": st.tuples(st.one_of(st.floats(0, 256), st.integers(0, 256))),
    "solarize_add": st.tuples(st.integers(0, 255), st.integers(0, 256)),
    "box_blur": st.tuples(st.one_of(st.floats(0, 3), st.floats(0, 50))),
    "autocontrast": st.just(()),
    "equalize": st.just(()),
    "invert": st.just(()),
    "flip_horizontal": st.just(()),
    "flip_vertical": st.just(()),
}


@pytest.mark.parametrize("operation", sorted(EXACT))
@settings(max_examples=40)
@given(data=st.data(), pixels=IMAGES)
def test_pixels_are_pillows(operation: str, data: st.DataObject, pixels: np.ndarray) -> None:
    assume(operation != "permute" or pixels.ndim == 3)
    check(pixels, operation, data.draw(EXACT[operation]))


def rotation(
    degrees: float, scale: float, shear: float, centre: tuple[float, float]
) -> list[float]:
    """Coefficients of Image.transform: about a centre, as torchvision's affine has them."""
    angle, slant = math.radians(degrees), math.tan(math.radians(shear))
    a, b = math.cos(angle) / scale, math.sin(angle) / scale
    d, e = -b + slant * a, a + slant * b
    x, y = centre
    return [a, b, x - a * x - b * y, d, e, y - d * x - e * y]


FILLS = st.tuples(*3 * [st.integers(0, 255)])
SHIFTS = st.one_of(st.floats(-80, 80), st.integers(-80, 80).map(float))
ROTATIONS = st.builds(
    rotation,
    st.one_of(st.floats(-180, 180), st.sampled_from([0.0, 30.0, 45.0, 90.0, 180.0])),
    st.one_of(st.just(1.0), st.floats(0.3, 3)),
    st.one_of(st.just(0.0), st.floats(-40, 40)),
    st.tuples(SHIFTS, SHIFTS),
)
SCALES = st.builds(
    lambda a, c, e, f: [a, 0.0, c, 0.0, e, f],
    *2 * [st.one_of(st.just(1.0), st.just(-1.0), st.floats(-3, 3)), SHIFTS],
)
# Beyond what 16.16 bits hold, too.
ANY = st.lists(st.one_of(st.floats(-2, 2), st.floats(-1e5, 1e5)), min_size=6, max_size=6)


@settings(max_examples=100)
@given(
    IMAGES,
    st.one_of(ROTATIONS, SCALES, ANY),
    st.integers(0, 2),
    FILLS,
    st.tuples(st.integers(1, 150), st.integers(1, 150)),
)
def test_affine_transforms_are_pillows(
    pixels: np.ndarray,
    matrix: list[float],
    interpolation: int,
    fill: tuple[int, ...],
    size: tuple[int, int],
) -> None:
    values = [*matrix, interpolation, *fill, *size]
    check(pixels, "affine", values, within=0 if interpolation == 0 else 1)


@settings(max_examples=100)
@given(
    IMAGES,
    st.tuples(*6 * [st.floats(-2, 2)], *2 * [st.floats(-0.02, 0.02)]),
    st.integers(0, 2),
    FILLS,
)
def test_perspective_transforms_are_pillows(
    pixels: np.ndarray, matrix: tuple[float, ...], interpolation: int, fill: tuple[int, ...]
) -> None:
    height, width = pixels.shape[:2]
    shifted = [*matrix]
    shifted[2] *= width
    shifted[5] *= height
    check(pixels, "perspective", [*shifted, interpolation, *fill], within=interpolation and 1)


@settings(max_examples=100)
@given(
    IMAGES,
    st.tuples(*2 * [st.one_of(st.integers(0, 3), st.integers(0, 127))]),
    st.tuples(*2 * [st.one_of(st.floats(0.1, 5), st.floats(1e-9, 1e3))]),
)
def test_blurred_pixels_are_exact_but_for_one_rounding(
    pixels: np.ndarray, halves: tuple[int, int], sigmas: tuple[float, float]
) -> None:
    height, width = pixels.shape[:2]
    kernel = [
        2 * min(half, size - 1) + 1 for half, size in zip(halves, (width, height), strict=True)
    ]
    values = [*kernel, *sigmas]
    off = augment(pixels, "gaussian_blur", values) - pillow_operations.blurred(pixels, values)
    assert np.abs(off).max() <= 0.5 + 1e-3


@settings(max_examples=100)
@given(
    IMAGES,
    st.tuples(*4 * [st.one_of(st.just(0), st.integers(0, 70))]),
    st.integers(0, 3),
    FILLS,
)
def test_pads_are_pillows_and_numpys(
    pixels: np.ndarray, sides: tuple[int, ...], mode: int, fill: tuple[int, ...]
) -> None:
    check(pixels, "pad", [*sides, mode, *fill])


@settings(max_examples=50)
@given(IMAGES, st.data())
def test_crops_are_pillows(pixels: np.ndarray, data: st.DataObject) -> None:
    height, width = pixels.shape[:2]
    left = data.draw(st.integers(0, width - 1))
    top = data.draw(st.integers(0, height - 1))
    size = data.draw(st.tuples(st.integers(1, width - left), st.integers(1, height - top)))
    check(pixels, "crop", [left, top, *size])


@settings(max_examples=100)
@given(IMAGES, SIZES, SIZES, st.integers(0, 3))
def test_resized_pixels_are_pillows(pixels: np.ndarray, width: int, height: int, kind: int) -> None:
    # Bilinear weights have 13 bits (native/resample/resample.h).
    check(pixels, "resize", [width, height, kind], within=1 if kind == 1 else 0)


def noise_of(value: int, mean: float, sigma: float, clip: bool, key: int = 7) -> np.ndarray:
    pixels = np.full((512, 512, 3), value, np.uint8)
    return augment(pixels, "gaussian_noise", [mean, sigma, clip], key).astype(int)


@pytest.mark.parametrize("sigma", [0.02, 0.1])
def test_noise_is_normal_and_truncated(sigma: float) -> None:
    added = noise_of(128, 0, sigma, clip=True) - 128
    count, normal = added.size, statistics.NormalDist(0, sigma * 255)
    # torchvision truncates towards 0, so that k stands for k to k + 1, and 0 for -1 to 1.
    for edge in range(-60, 61, 5):
        expected = normal.cdf(edge + (edge >= 0))
        error = math.sqrt(max(expected * (1 - expected), 1e-6) / count)
        assert abs((added <= edge).mean() - expected) < 5 * error, edge


def test_noise_of_neighbours_channels_and_keys_is_independent() -> None:
    noise = [noise_of(128, 0, 0.1, True, key) - 128 for key in (7, 8, 7 + (1 << 32))]
    assert abs(noise[0].mean()) < 0.2
    pairs = [(noise[0], noise[1]), (noise[0], noise[2])]
    pairs += [(noise[0], np.roll(noise[0], shift, axis)) for axis in (0, 1) for shift in (1, 2, 32)]
    pairs += [(noise[0][..., 0], noise[0][..., 1]), (noise[0][..., 1], noise[0][..., 2])]
    for a, b in pairs:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / math.sqrt(a.size)
    np.testing.assert_array_equal(noise[0], noise_of(128, 0, 0.1, True, 7) - 128)


def test_noise_beyond_a_byte_is_clipped_or_wraps() -> None:
    clipped, wrapped = (noise_of(250, 0.05, 0.1, clip) for clip in (True, False))
    inside = clipped < 255
    assert 0.1 < inside.mean() < 0.9
    np.testing.assert_array_equal(clipped[inside], wrapped[inside])
    assert (wrapped[clipped == 255] <= 120).mean() > 0.95
    for mean, value in ((2, 255), (-2, 0), (0.1, 125)):
        assert (noise_of(100, mean, 0, True) == value).all()


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 1, 77, 127, -1, -127])
def test_all_colours_turn_as_pillows(shift: int) -> None:
    every = np.arange(1 << 24, dtype=np.uint32)
    colours = np.stack([every >> 16, every >> 8 & 255, every & 255], -1).astype(np.uint8)
    pixels = colours.reshape(4096, 4096, 3)
    expected = pillow_operations.apply(pixels, "hue", [shift / 255 * (1 + 1e-9)])
    found = _native.augment(pixels, "hue", [shift / 255 * (1 + 1e-9)])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("operation", "values", "message"),
    [
        ("brightness", [-0.1], "factor"),
        ("contrast", [math.nan], "not finite"),
        ("saturation", [math.inf], "not finite"),
        ("permute", [0, 1], "3 values, not 2"),
        ("gaussian_blur", [4, 3, 1, 1], "odd"),
        ("gaussian_blur", [257, 3, 1, 1], "1 to 255"),
        ("gaussian_blur", [3, 3, 0, 1], "above 0"),
        ("gaussian_blur", [11, 3, 1, 1], "as large as the image"),
        ("gaussian_noise", [0, -0.1, 1], "sigma"),
        ("affine", [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9], "without pixels"),
        ("affine", [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1 << 30, 1 << 30], "1 GiB"),
        ("crop", [0, 0, 6, 4], "outside the image"),
        ("crop", [-1, 0, 5, 4], "outside the image"),
        ("resize", [0, 4, 1], "1 to 2"),
        ("resize", [5, 4, 5], "no such filter"),
        ("pad", [-1, 0, 0, 0, 0, 0, 0, 0], "padding"),
        ("pad", [1, 0, 0, 0, 4, 0, 0, 0], "mode"),
        ("pad", [1 << 24, 1 << 24, 0, 0, 0, 0, 0, 0], "1 GiB"),
        ("tensor_affine", [1e10, 0, 0, 0, 1, 0, 1, 0, 0, 0], "coefficient"),
        ("mix_begin", [1.1], "weight"),
        ("mix_add", [0.5], "mixed"),
        ("mix_end", [1], "mixed"),
        ("dance", [], "not one of _native.OPERATIONS"),
    ],
)
def test_values_that_make_no_sense_are_refused(
    operation: str, values: Values, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _native.augment(np.zeros((4, 5, 3), np.uint8), operation, values)

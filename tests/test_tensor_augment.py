"""Operations on tensors of bytes: torchvision's pixels there, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import tensor_calls
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_native_augment import IMAGES, ROTATIONS, SHIFTS, augment, picture

from fastdata import _native

FACTORS = st.one_of(st.floats(0, 2), st.sampled_from([0.0, 1.0]), st.floats(0, 30))
VERSIONS = st.sampled_from([1, 2])
EXACT = {
    "tensor_contrast": st.tuples(FACTORS, VERSIONS),
    "tensor_saturation": st.tuples(FACTORS, VERSIONS),
    "tensor_sharpness": st.tuples(FACTORS, VERSIONS),
    "tensor_hue": st.tuples(st.floats(-0.5, 0.5), VERSIONS),
    "tensor_autocontrast": st.tuples(VERSIONS),
    "brightness": st.tuples(FACTORS),
    "equalize": st.just(()),
    "posterize": st.tuples(st.integers(0, 8)),
    "solarize": st.tuples(st.floats(0, 255, width=32)),
}


def torchvisions(pixels: np.ndarray, operation: str, values: tuple[float, ...]) -> np.ndarray:
    planes = torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1).contiguous()
    made = tensor_calls.apply(planes, (operation, tuple(values))).permute(1, 2, 0).numpy()
    return made[..., 0] if made.shape[2] == 1 else made


@pytest.mark.parametrize("operation", sorted(EXACT))
@settings(max_examples=40)
@given(data=st.data(), pixels=IMAGES)
def test_pixels_are_torchvisions(operation: str, data: st.DataObject, pixels: np.ndarray) -> None:
    values = data.draw(EXACT[operation])
    found = augment(pixels, operation, values)
    off = np.abs(found.astype(int) - torchvisions(pixels, operation, values))
    # torch adds v2's products fused, but not those of a tensor's last few values.
    second = operation.startswith("tensor_") and values[-1] == 2
    assert off.max() <= (1 if second else 0)


@pytest.mark.parametrize("factor", [0.1, 0.7, 1.9, 30.0])
def test_the_blends_of_a_photograph_are_torchvisions_to_the_bit(factor: float) -> None:
    pixels = picture("smooth", 128, 96, 3, 1)  # of whole vectors
    for operation in ("tensor_contrast", "tensor_saturation", "tensor_sharpness"):
        for version in (1, 2):
            found = augment(pixels, operation, (factor, version))
            off = found != torchvisions(pixels, operation, (factor, version))
            # torch's rows without their ends are not.
            assert off.mean() <= (0.01 if operation == "tensor_sharpness" else 0)


@pytest.mark.parametrize("version", [1, 2])
def test_colours_are_torchvisions(version: int) -> None:
    rng = np.random.default_rng(version)
    pixels = rng.integers(0, 256, (512, 512, 3), dtype=np.uint8)
    pixels[:256, 0] = np.arange(256)[:, None]
    pixels[0] //= 64  # few values: two of a colour's three channels are often the same
    for values in [(turn, version) for turn in (-0.5, -0.1, 0.0, 0.3, 0.5)]:
        found = _native.augment(pixels, "tensor_hue", values)
        np.testing.assert_array_equal(found, torchvisions(pixels, "tensor_hue", values))
    for channels in (1, 3):
        found = augment(pixels, "tensor_grayscale", (channels, version))
        want = torchvisions(pixels, "tensor_grayscale", (channels, version))
        np.testing.assert_array_equal(found, want)


FILLS = st.one_of(st.just((-1, -1, -1)), st.tuples(*3 * [st.integers(0, 255)]))
SCALES = st.builds(
    lambda a, c, e, f: [a, 0.0, c, 0.0, e, f],
    *2 * [st.one_of(st.sampled_from([1.0, -1.0, 0.5, 2.0]), st.floats(-3, 3)), SHIFTS],
)


@settings(max_examples=80)
@given(IMAGES, st.one_of(ROTATIONS, SCALES), st.integers(0, 1), FILLS)
def test_affine_transforms_are_torchvisions(
    pixels: np.ndarray, matrix: list[float], interpolation: int, fill: tuple[int, ...]
) -> None:
    fill = fill if pixels.ndim == 3 else fill[:1] * 3
    values = (*matrix, interpolation, *fill)
    found = augment(pixels, "tensor_affine", values)
    given_ = values if pixels.ndim == 3 else values[:8]
    off = np.abs(found.astype(int) - torchvisions(pixels, "tensor_affine", given_))
    # Nearest pixels are the same, but where two are as near: what is left to torch's order of
    # operations, of which there are several.
    assert (off.max() <= 1) if interpolation else (off > 0).mean() <= 0.02


@settings(max_examples=40)
@given(
    IMAGES,
    st.tuples(*6 * [st.floats(-2, 2)], *2 * [st.floats(-0.002, 0.002)]),
    FILLS,
)
def test_perspective_transforms_are_torchvisions(
    pixels: np.ndarray, matrix: tuple[float, ...], fill: tuple[int, ...]
) -> None:
    height, width = pixels.shape[:2]
    scaled = [*matrix]
    scaled[2] *= width
    scaled[5] *= height
    fill = fill if pixels.ndim == 3 else fill[:1] * 3
    values = (*scaled, 1, *fill)
    found = augment(pixels, "tensor_perspective", values)
    given_ = values if pixels.ndim == 3 else values[:10]
    off = np.abs(found.astype(int) - torchvisions(pixels, "tensor_perspective", given_))
    assert off.max() <= 1

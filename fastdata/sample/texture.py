"""Noise in octaves and stripes, for made photographs: whole-number arithmetic throughout."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.int16]

# Strength of the noise by octave, 0 the finest (one value a pixel), for usual detail, gain and
# contrast: 256 stands for +-128 grey levels. Octaves below the last are like it.
_STRENGTHS = (44, 58, 54, 48, 44)
_FINE_OCTAVES = 3
_COARSEST = 6  # values along the short side of the coarsest octave, at least


def noise(rng: np.random.Generator, width: int, height: int) -> Plane:
    """Return int16 of shape (height, width), each from -128 to 127 alike."""
    drawn = np.frombuffer(rng.bytes(width * height), dtype=np.int8)
    return drawn.astype(np.int16).reshape(height, width)


def enlarge(small: Plane, width: int, height: int) -> Plane:
    """Double a plane by linear interpolation, four times as fast as Pillow does.

    Args:
        small: int16 of shape ((height + 1) // 2, (width + 1) // 2), each side at least 2, values
            within +-2000 lest sixteen times them overflow.
        width: Columns wanted.
        height: Rows wanted.

    Returns:
        int16 of shape (height, width).
    """
    rows, columns = small.shape
    wide = np.empty((rows, 2 * columns), dtype=np.int16)
    wide[:, 0] = small[:, 0] * 4
    wide[:, -1] = small[:, -1] * 4
    triple = small * 3
    wide[:, 1:-1:2] = triple[:, :-1] + small[:, 1:]
    wide[:, 2::2] = triple[:, 1:] + small[:, :-1]
    large = np.empty((2 * rows, 2 * columns), dtype=np.int16)
    large[0] = wide[0] * 4
    large[-1] = wide[-1] * 4
    triple = wide * 3
    large[1:-1:2] = triple[:-1] + wide[1:]
    large[2::2] = triple[1:] + wide[:-1]
    large += 8
    large >>= 4
    return large[:height, :width]


def octaves(
    rng: np.random.Generator, gain: Plane, stripes: Plane, detail: int, contrast: int
) -> Plane:
    """Sum noise in octaves, each drawn small and enlarged with the sum so far.

    Args:
        rng: Where the noise is drawn from.
        gain: Strength of the three finest octaves at each pixel, 128 the usual, int16 of shape
            (height, width).
        stripes: Added at half size, int16 of shape ((height + 1) // 2, (width + 1) // 2).
        detail: Strength of the finer octaves, 0 to 1024; 256 is strong.
        contrast: Strength of the coarser octaves in per cent, up to 200.

    Returns:
        Grey levels about 0, int16 of shape (height, width).
    """
    height, width = gain.shape
    count = _FINE_OCTAVES
    while min(width, height) >> count >= _COARSEST:
        count += 1
    total: Plane | None = None
    for octave in reversed(range(count)):
        columns, rows = -(-width >> octave), -(-height >> octave)
        layer = noise(rng, columns, rows)
        strength = _STRENGTHS[min(octave, len(_STRENGTHS) - 1)]
        if octave < _FINE_OCTAVES:
            # Taking every 2**octave-th gain is enough: gain has little fine structure.
            strong = gain[:: 1 << octave, :: 1 << octave] * (strength * detail // 256)
            strong >>= 7
            np.minimum(strong, 255, out=strong)
            layer *= strong
        else:
            layer *= strength * contrast // 100
        layer >>= 8
        if total is not None:
            layer += enlarge(total, columns, rows)
        if octave == 1:
            layer += stripes
        total = layer
    assert total is not None
    return total


def wave(
    size: tuple[int, int], direction: tuple[int, int], period: int, phase: int, swing: int
) -> Plane:
    """Return straight stripes with a triangular profile.

    Args:
        size: Columns and rows.
        direction: Where the wave runs to, across and down; of length 64.
        period: Columns or rows from crest to crest along that direction.
        phase: Where the wave starts, 256 a whole period.
        swing: Grey levels from the middle to a crest, up to 127.

    Returns:
        int16 of shape (rows, columns), -swing to swing.
    """
    # A phase of 256 is one period and the direction is 64 long, hence the factor 4.
    x = np.arange(size[0], dtype=np.int32) * (4 * direction[0]) // period
    y = np.arange(size[1], dtype=np.int32) * (4 * direction[1]) // period + phase
    # Only the lowest eight bits count, so what astype cuts off does not matter.
    levels: Plane = (x.astype(np.int16) + y.astype(np.int16)[:, None]) & 255
    levels -= 128
    np.abs(levels, out=levels)
    levels -= 64
    levels *= swing
    levels >>= 6
    return levels

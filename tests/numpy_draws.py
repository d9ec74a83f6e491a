"""The numbers that the core draws from keys (``native/draws.h``), by numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastdata.plan.draws import GAMMA, mix

_LOW32, _32 = np.uint64(0xFFFF_FFFF), np.uint64(32)


def bits(keys: npt.NDArray[np.uint64], draw: int) -> npt.NDArray[np.uint64]:
    """Draw number ``draw`` of each key, as 64 random bits.

    Args:
        keys: uint64, any shape.
        draw: Which number of the keys' streams; 0 or more.

    Returns:
        uint64, as ``keys`` is shaped.
    """
    return mix(keys + np.uint64(((draw + 1) * GAMMA) & 0xFFFF_FFFF_FFFF_FFFF))


def uniforms(keys: npt.NDArray[np.uint64], draw: int) -> npt.NDArray[np.float64]:
    """Draw number ``draw`` of each key, uniform in [0, 1).

    Args:
        keys: uint64, any shape.
        draw: Which number of the keys' streams; 0 or more.

    Returns:
        float64, as ``keys`` is shaped: multiples of 2**-53.
    """
    z = bits(keys, draw)
    z >>= np.uint64(11)
    drawn: npt.NDArray[np.float64] = z * np.float64(2.0**-53)
    return drawn


def integers(
    keys: npt.NDArray[np.uint64], draw: int, bounds: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Draw number ``draw`` of each key, uniform over the integers in [0, bound).

    Args:
        keys: uint64, any shape.
        draw: Which number of the keys' streams; 0 or more.
        bounds: int64, 1 or more, of a shape that broadcasts with that of ``keys``.

    Returns:
        int64. No number is more probable than another by more than 2**-64.
    """
    high = np.asarray(bounds, dtype=np.int64)
    return _multiply_high(bits(keys, draw), high.astype(np.uint64)).astype(np.int64)


def _multiply_high(x: npt.NDArray[np.uint64], y: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The upper 64 of the 128 bits of ``x * y``, by 32-bit digits: no partial sum overflows."""
    x_low, x_high = x & _LOW32, x >> _32
    y_low, y_high = y & _LOW32, y >> _32
    middle = ((x_low * y_low) >> _32) + x_high * y_low
    carried = (middle & _LOW32) + x_low * y_high
    high: npt.NDArray[np.uint64] = x_high * y_high + (middle >> _32) + (carried >> _32)
    return high

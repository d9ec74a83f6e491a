"""The numbers that the core draws from keys (``native/draws.h``), by numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastdata.plan.draws import GAMMA, mix


def bits(keys: npt.NDArray[np.uint64], draw: int) -> npt.NDArray[np.uint64]:
    return mix(keys + np.uint64(((draw + 1) * int(GAMMA)) & 0xFFFF_FFFF_FFFF_FFFF))


def uniforms(keys: npt.NDArray[np.uint64], draw: int) -> npt.NDArray[np.float64]:
    """Draw number ``draw`` of each key, uniform in [0, 1): multiples of 2**-53."""
    drawn: npt.NDArray[np.float64] = (bits(keys, draw) >> np.uint64(11)) * np.float64(2.0**-53)
    return drawn


def integers(
    keys: npt.NDArray[np.uint64], draw: int, bounds: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Draw number ``draw`` of each key, uniform over the integers in [0, bound)."""
    drawn, bound = np.broadcast_arrays(bits(keys, draw), bounds)
    found = [(one * most) >> 64 for one, most in zip(drawn.tolist(), bound.tolist(), strict=True)]
    return np.array(found, np.int64)

"""Normalisation of uint8 images on their device: the GPU, or the CPU with the same arithmetic.

Bytes cross the bus in a quarter of the time of float32, so normalisation follows the copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastdata.errors import UsageError

#: Dtypes of images, by name.
DTYPES = {
    "uint8": torch.uint8,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def is_image(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a batch of images: N x 3 x H x W, uint8 or floats."""
    return (
        tensor.dim() == 4
        and tensor.size(1) == 3
        and (tensor.dtype == torch.uint8 or tensor.dtype.is_floating_point)
    )


def three(name: str, values: Sequence[float] | None) -> tuple[float, float, float] | None:
    """Return the three finite numbers of an argument, positive for "std"; None if it is None."""
    if values is None:
        return None
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
        hint = "Give three finite numbers in units of 0 to 1, for red, green and blue."
        raise UsageError(f"{name}={values!r}", hint)
    if name == "std" and not all(value > 1e-6 for value in numbers):
        raise UsageError(f"std={numbers} has values that are not above 0", "Give positive values.")
    return numbers[0], numbers[1], numbers[2]


@dataclass(frozen=True)
class Normalisation:
    """Normalisation of uint8 images to ``(value / 255 - mean) / std``.

    Attributes:
        dtype: Dtype of the result.
        scale: Factor of each channel's bytes.
        offset: Value added to each channel afterwards.
    """

    dtype: torch.dtype
    scale: tuple[float, ...]
    offset: tuple[float, ...]

    def constants(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and offset as float32 tensors, 1 x 3 x 1 x 1."""
        both = torch.empty((2, 1, 3, 1, 1), dtype=torch.float32, device=device)
        for which, values in enumerate((self.scale, self.offset)):
            for channel, value in enumerate(values):
                both[which, :, channel] = value  # unlike a copy, does not wait for the GPU
        return both[0], both[1]


def normalisation(
    dtype: str | torch.dtype | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> Normalisation | None:
    """Return the normalisation for a `DeviceLoader`'s arguments; None to leave images unchanged."""
    if dtype is None and mean is None and std is None:
        return None
    name = "float32" if dtype is None else dtype
    if isinstance(name, torch.dtype):
        name = str(name).removeprefix("torch.")
    if name not in DTYPES:
        raise UsageError(f"dtype={dtype!r}", f"Give one of {', '.join(DTYPES)}.")
    means = three("mean", mean) or (0.0, 0.0, 0.0)
    stds = three("std", std) or (1.0, 1.0, 1.0)
    if name == "uint8":
        if not (mean is std is None):
            raise UsageError("mean= and std= are for floats, but dtype is uint8", "Leave one out.")
        return None
    scale = tuple(1 / (255 * value) for value in stds)
    offset = tuple(-value / by for value, by in zip(means, stds, strict=True))
    return Normalisation(DTYPES[name], scale, offset)


def normalise(
    images: torch.Tensor, constants: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor
) -> None:
    """Normalise N x 3 x H x W, uint8, into ``out``, of any float dtype, on the same device."""
    scale, offset = constants
    # One kernel on a GPU: it converts as it loads, computes in float32, and rounds as it stores.
    # Other ways to write this make a float copy first.
    torch.addcmul(offset, images, scale, out=out)

"""Batches of images of different sizes, padded to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fastdata.errors import UsageError

__all__ = ["Padded", "collate_padded"]


class Padded(NamedTuple):
    """Images of a batch, padded on the right and below.

    Attributes:
        tensors: The images, shape (N, C, H, W).
        mask: bool, shape (N, H, W): whether a pixel is padding.
    """

    tensors: torch.Tensor
    mask: torch.Tensor


def collate_padded(
    multiple: int = 1, *, fill: float = 0, target_fill: float | None = None
) -> Callable[[Sequence[Any]], Any]:
    """Return a ``collate_fn`` that pads images to the batch's largest width and height.

    It takes samples (image, target), or images alone; images are tensors, shape (C, H, W). It
    returns (`Padded`, targets): a tuple with the target of each sample. Images alone make a
    `Padded`.

    Args:
        multiple: Widths and heights of batches are rounded up to multiples of it.
        fill: Value of padding in images.
        target_fill: If given, targets are tensors, shape (…, H, W), as large as their images. They
            are padded with this value, and returned as one tensor.

    Raises:
        UsageError: ``multiple`` is no whole number from 1; when called: images are no tensors.
    """
    if type(multiple) is not int or multiple < 1:
        raise UsageError(f"collate_padded: multiple={multiple!r}", "Give a whole number from 1.")
    return _Padding(multiple, fill, target_fill)


@dataclass(frozen=True)
class _Padding:
    multiple: int
    fill: float
    target_fill: float | None

    def __call__(self, samples: Sequence[Any]) -> Any:
        alone = not isinstance(samples[0], (tuple, list))
        images = list(samples) if alone else [sample[0] for sample in samples]
        self._check(images, "images")
        sizes = [tuple(image.shape[-2:]) for image in images]
        height, width = (
            -(-max(sides) // self.multiple) * self.multiple for sides in zip(*sizes, strict=True)
        )
        padded = Padded(
            _padded(images, height, width, self.fill),
            _padded([torch.zeros(size, dtype=torch.bool) for size in sizes], height, width, True),
        )
        if alone:
            return padded
        targets = [sample[1] for sample in samples]
        if self.target_fill is None:
            return padded, tuple(targets)
        self._check(targets, "targets")
        for target, size in zip(targets, sizes, strict=True):
            if tuple(target.shape[-2:]) != size:
                raise UsageError(
                    f"collate_padded: a target of shape {tuple(target.shape)} beside an image of "
                    f"{size[0]} x {size[1]} (height x width)",
                    "Give the joint transform masks as large as their images.",
                )
        return padded, _padded(targets, height, width, self.target_fill)

    def _check(self, several: Sequence[Any], words: str) -> None:
        other = next((one for one in several if not isinstance(one, torch.Tensor)), None)
        if other is not None:
            raise UsageError(
                f"collate_padded takes tensors, and got {words} of type {type(other).__name__}",
                "End the transform with torchvision's ToImage or ToTensor.",
            )


def _padded(several: Sequence[torch.Tensor], height: int, width: int, fill: float) -> torch.Tensor:
    """Return tensors, (…, H, W), as one that is as large as all of them; in their memory format."""
    first = several[0].as_subclass(torch.Tensor)
    shape = (len(several), *first.shape[:-2], height, width)
    rows = first.ndim == 3 and first.stride(0) == 1 and first.shape[0] > 1
    layout = torch.channels_last if rows else torch.contiguous_format
    found = torch.empty(shape, dtype=first.dtype, memory_format=layout)
    for place, one in zip(found, several, strict=True):
        high, wide = one.shape[-2:]
        place[..., :high, :wide] = one.as_subclass(torch.Tensor)
        place[..., high:, :] = fill
        place[..., :high, wide:] = fill
    return found

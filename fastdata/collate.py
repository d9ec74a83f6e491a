"""Batches of images of different sizes: padded to one, or cut into patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from fastdata.device.ragged import Ragged
from fastdata.errors import UsageError
from fastdata.text import human_size

__all__ = ["Padded", "collate_padded", "collate_patches"]


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
        shown = repr(multiple) if isinstance(multiple, int | float | str) else type(multiple)
        hint = "Give a whole number from 1, and the result as collate_fn=collate_padded(32)."
        raise UsageError(f"collate_padded: multiple={shown}", hint)
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
                    f"{human_size(size[1], size[0])}",
                    "Give the joint transform masks as large as their images.",
                )
        return padded, _padded(targets, height, width, self.target_fill)

    def _check(self, several: Sequence[Any], words: str) -> None:
        other = next((one for one in several if not isinstance(one, torch.Tensor)), None)
        if other is not None:
            raise UsageError(
                f"collate_padded takes tensors, and got {words} of type {type(other).__name__}",
                "End the transform with ToImage or ToTensor, and give the dataset transforms=, not "
                "transform=; target_fill= is for masks alone.",
            )


def _padded(several: Sequence[torch.Tensor], height: int, width: int, fill: float) -> torch.Tensor:
    """Return tensors, (…, H, W), as one that is as large as all of them; in their memory format."""
    first = several[0].as_subclass(torch.Tensor)
    shape = (len(several), *first.shape[:-2], height, width)
    rows = first.ndim == 3 and first.stride(0) == 1 and first.shape[0] > 1
    layout = torch.channels_last if rows else torch.contiguous_format
    padded = torch.empty(shape, dtype=first.dtype, memory_format=layout)
    for place, one in zip(padded, several, strict=True):
        high, wide = one.shape[-2:]
        place[..., :high, :wide] = one.as_subclass(torch.Tensor)
        place[..., high:, :] = fill
        place[..., :high, wide:] = fill
    return padded


def collate_patches(
    patch_size: int, length: int | None = None, *, packed: bool = False
) -> Callable[[Sequence[Any]], Any]:
    """Return a ``collate_fn`` that cuts images into patches, row by row.

    It takes samples (image, target, …), or images alone; images are tensors, shape (C, H, W), whose
    sides are multiples of ``patch_size``, as `fastdata.transforms.ResizeToSequence` leaves them. It
    returns (patches, target, …), or the patches alone. Dicts make a tuple; torch collates the rest.
    The patches are a dict, by the names that timm's NaFlex models take:

    - ``patches``: shape (N, L, P * P * C), of the images' dtype; the values of a pixel are
      neighbours. Zeros follow an image's patches.
    - ``patch_coord``: int64, shape (N, L, 2): y and x of each patch, in patches.
    - ``patch_valid``: bool, shape (N, L): False for the zeros.

    Args:
        patch_size: P, the side of a patch, in pixels.
        length: L; None: the length of the longest image in the batch.
        packed: Leave the padding out: ``patches`` and ``patch_coord`` are a `fastdata.Ragged`,
            whose ``offsets`` bound the images, and there is no ``patch_valid``.

    Raises:
        UsageError: Arguments make no sense; when called: images are no tensors of whole patches, or
            have more than ``length``.
    """
    for name, value in (("patch_size", patch_size), ("length", length)):
        if (name, value) != ("length", None) and (type(value) is not int or value < 1):
            raise UsageError(f"collate_patches: {name}={value!r}", "Give a whole number from 1.")
    if packed and length is not None:
        hint = "Leave length out: packed patches have no padding."
        raise UsageError("collate_patches: packed=True and length=", hint)
    return _Patching(patch_size, length, packed)


@dataclass(frozen=True)
class _Patching:
    patch_size: int
    length: int | None
    packed: bool

    def __call__(self, samples: Sequence[Any]) -> Any:
        alone = not isinstance(samples[0], (tuple, list))
        images = samples if alone else [sample[0] for sample in samples]
        make = self._pack if self.packed else self._pad
        patches = make(list(map(self._cut, images)), images[0].dtype)
        if alone:
            return patches
        columns = list(zip(*samples, strict=True))[1:]
        return patches, *(
            one if isinstance(one[0], dict) else default_collate([*one]) for one in columns
        )

    def _cut(self, image: Any) -> npt.NDArray[Any]:
        """Return an image as (rows, columns, P, P, C); a view, if its values are neighbours."""
        side = self.patch_size
        whole = isinstance(image, torch.Tensor) and image.ndim == 3
        if not whole or image.shape[1] % side or image.shape[2] % side:
            shown = tuple(image.shape) if isinstance(image, torch.Tensor) else type(image).__name__
            raise UsageError(
                f"collate_patches takes images of whole patches of {side} pixels, and got {shown}",
                f"End the transform with ResizeToSequence({side}), or that and Normalize.",
            )
        # The loader inspects each call of torch here, which takes longer than the copy. numpy has
        # no bfloat16.
        array = (image.view(torch.int16) if image.dtype == torch.bfloat16 else image).numpy()
        channels, height, width = array.shape
        shape = height // side, side, width // side, side, channels
        cut: npt.NDArray[Any] = array.transpose(1, 2, 0).reshape(shape).swapaxes(1, 2)
        return cut

    def _pad(self, images: Sequence[npt.NDArray[Any]], dtype: torch.dtype) -> dict[str, Any]:
        grids = np.array([image.shape[:2] for image in images])
        counts = grids.prod(1)
        length = self.length or int(counts.max())
        if counts.max() > length:
            raise UsageError(
                f"collate_patches: length={length}, and an image has {counts.max()} patches",
                f"Take ResizeToSequence({self.patch_size}, {length}).",
            )
        patches = np.empty((len(images), length, images[0][0, 0].size), images[0].dtype)
        for own, image, count in zip(patches, images, counts.tolist(), strict=True):
            np.copyto(own[:count].reshape(image.shape), image, "no")
            own[count:] = 0
        valid = np.arange(length) < counts[:, None]
        coord = _places(np.arange(length), grids[:, 1:]) * valid[..., None]
        return {
            "patches": torch.from_numpy(patches).view(dtype),
            "patch_coord": torch.from_numpy(coord),
            "patch_valid": torch.from_numpy(valid),
        }

    def _pack(self, images: Sequence[npt.NDArray[Any]], dtype: torch.dtype) -> dict[str, Any]:
        grids = np.array([image.shape[:2] for image in images])
        counts = grids.prod(1)
        ends = counts.cumsum()
        patches = np.empty((ends[-1], images[0][0, 0].size), images[0].dtype)
        for own, image in zip(np.split(patches, ends[:-1]), images, strict=True):
            np.copyto(own.reshape(image.shape), image, "no")
        numbers = np.arange(ends[-1]) - (ends - counts).repeat(counts)
        coord = torch.from_numpy(_places(numbers, grids[:, 1].repeat(counts)))
        offsets = torch.from_numpy(np.append(0, ends))
        values = torch.from_numpy(patches).view(dtype)
        return {"patches": Ragged(values, offsets), "patch_coord": Ragged(coord, offsets)}


def _places(numbers: npt.NDArray[np.int64], across: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return (y, x) of patches that are numbered row by row, with so many in a row."""
    return np.stack([numbers // across, numbers % across], -1)

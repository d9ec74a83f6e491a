"""Classes like those of segmentation scripts from before torchvision's v2."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torchvision_stub import import_torchvision

import_torchvision()

from torchvision import transforms as T  # noqa: E402, N812
from torchvision.transforms import functional as F  # noqa: E402, N812


def padded_to(picture: Any, least: int, fill: int = 0) -> Any:
    width, height = picture.size
    if min(picture.size) >= least:
        return picture
    right = least - width if width < least else 0
    below = least - height if height < least else 0
    return F.pad(picture, (0, 0, right, below), fill=fill)


class Chain:
    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def __call__(self, image: Any, mask: Any) -> Any:
        for step in self.steps:
            image, mask = step(image, mask)
        return image, mask


class Sized:
    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def __call__(self, image: Any, mask: Any) -> Any:
        side = random.randint(self.least, self.most)
        image = F.resize(image, side, antialias=True)
        return image, F.resize(mask, side, interpolation=T.InterpolationMode.NEAREST)


class Mirrored:
    def __init__(self, chance: float) -> None:
        self.chance = chance

    def __call__(self, image: Any, mask: Any) -> Any:
        if random.random() < self.chance:
            image, mask = F.hflip(image), F.hflip(mask)
        return image, mask


class Cropped:
    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, image: Any, mask: Any) -> Any:
        image, mask = padded_to(image, self.side), padded_to(mask, self.side, fill=255)
        box = T.RandomCrop.get_params(image, (self.side, self.side))
        return F.crop(image, *box), F.crop(mask, *box)


class Middle:
    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, image: Any, mask: Any) -> Any:
        return F.center_crop(image, self.side), F.center_crop(mask, self.side)


class Tensors:
    def __call__(self, image: Any, mask: Any) -> Any:
        return F.pil_to_tensor(image), torch.as_tensor(np.array(mask), dtype=torch.int64)


class Scaled:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, image: Any, mask: Any) -> Any:
        return F.convert_image_dtype(image, self.dtype), mask


class Normal:
    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = mean, std

    def __call__(self, image: Any, mask: Any) -> Any:
        return F.normalize(image, mean=self.mean, std=self.std), mask


def train(side: int, crop: int) -> Any:
    """Return a pipeline with the draws of segmentation scripts."""
    return Chain([Sized(side // 2, side * 2), Mirrored(0.5), Cropped(crop), *ending()])


def ending() -> list[Any]:
    return [Tensors(), Scaled(torch.float), Normal((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))]


def collate(samples: Any) -> Any:
    """Pad images with 0, and masks with 255, to the largest of each side."""

    def padded(several: Any, fill: int) -> torch.Tensor:
        largest = [max(sides) for sides in zip(*(one.shape for one in several), strict=True)]
        found = several[0].new_full((len(several), *largest), fill)
        for place, one in zip(found, several, strict=True):
            place[..., : one.shape[-2], : one.shape[-1]] = one
        return found

    images, masks = zip(*samples, strict=True)
    return padded(images, 0), padded(masks, 255)

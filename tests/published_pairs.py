"""Classes like those of segmentation scripts from before torchvision's v2."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import torch

try:
    from pycocotools import mask as coco_masks
except ImportError:  # tests that need it are skipped
    coco_masks = None
from torchvision_stub import import_torchvision

import_torchvision()

from PIL import Image  # noqa: E402
from torchvision import transforms as T  # noqa: E402, N812
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import functional as F  # noqa: E402, N812
from torchvision.transforms import v2  # noqa: E402


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


class Renamed:
    """Leave out objects of other categories, and number the others."""

    def __init__(self, categories: list[int]) -> None:
        self.categories = categories

    def __call__(self, image: Any, objects: Any) -> Any:
        kept = [one for one in objects if one["category_id"] in self.categories]
        kept = copy.deepcopy(kept)
        for one in kept:
            one["category_id"] = self.categories.index(one["category_id"])
        return image, kept


def painted(outlines: Any, height: int, width: int) -> Any:
    from_polygons = [coco_masks.frPyObjects(one, height, width) for one in outlines]
    masks = [coco_masks.decode(one).any(2) for one in from_polygons]
    return np.stack(masks) if masks else np.zeros((0, height, width), bool)


class Painted:
    """Make one picture of the categories; 255 where objects overlap."""

    def __call__(self, image: Any, objects: Any) -> Any:
        width, height = image.size
        masks = painted([one["segmentation"] for one in objects], height, width)
        found = np.zeros((height, width), np.uint8)
        for mask, one in zip(masks, objects, strict=True):
            found[mask] = one["category_id"]
        found[masks.sum(0) > 1] = 255
        return image, Image.fromarray(found)


class MergedMasks(v2.Transform):
    """Make one mask of those of the objects; 255 where they overlap."""

    NUMBERS = {1: 3, 2: 1, 4: 7}  # noqa: RUF012

    def _merged(self, target: Any) -> Any:
        if "masks" not in target:
            return None
        named = [(at, self.NUMBERS.get(one)) for at, one in enumerate(target["labels"].tolist())]
        known = [(at, number) for at, number in named if number is not None]
        if not known:
            return None
        places, numbers = zip(*known, strict=True)
        masks = target["masks"][list(places)].to(torch.uint8)
        found, _ = (masks * torch.tensor(numbers, dtype=torch.uint8)[:, None, None]).max(dim=0)
        found[masks.sum(dim=0) > 1] = 255
        return found

    def forward(self, image: Any, target: Any) -> Any:
        mask = self._merged(target)
        if mask is None:
            mask = torch.zeros(v2.functional.get_size(image), dtype=torch.uint8)
        return image, tv_tensors.Mask(mask)

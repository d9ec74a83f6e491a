"""Crops of ImageNet training with Pillow, by torchvision's documented arithmetic.

For peers whose documentation says `torchvision.transforms`: same boxes, same resampling, without
torchvision, which has no build for PyTorch without CUDA. Standard library, numpy and Pillow only.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable

import numpy as np
from PIL import Image

#: torchvision's ``IMG_EXTENSIONS``.
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
#: ImageNet's mean and standard deviation.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def random_resized_box(
    width: int, height: int, uniform: Callable[[float, float], float] = random.uniform
) -> tuple[int, int, int, int]:
    """Draw RandomResizedCrop(scale=(0.08, 1), ratio=(3/4, 4/3)): left, top, width, height."""
    area = width * height
    for _ in range(10):
        target = area * uniform(0.08, 1.0)
        ratio = math.exp(uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int(uniform(0, width - w + 1))
            top = int(uniform(0, height - h + 1))
            return min(left, width - w), min(top, height - h), w, h
    w, h = width, height
    if width / height < 3 / 4:
        h = round(width / (3 / 4))
    elif width / height > 4 / 3:
        w = round(height * (4 / 3))
    return (width - w) // 2, (height - h) // 2, w, h


def shorter_side(size: int) -> int:
    """Return the shorter side before CenterCrop(size): 256 for 224."""
    return round(size * 256 / 224)


def train_crop(image: Image.Image, size: int) -> Image.Image:
    """Apply RandomResizedCrop(size) and RandomHorizontalFlip, drawn from `random`."""
    left, top, w, h = random_resized_box(*image.size)
    image = image.crop((left, top, left + w, top + h))
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image


def resized(width: int, height: int, size: int) -> tuple[int, int]:
    """Return width and height after Resize(256) for CenterCrop(224), at any size in that ratio."""
    short = shorter_side(size)
    if width <= height:
        return short, int(short * height / width)
    return int(short * width / height), short


def val_crop(image: Image.Image, size: int) -> Image.Image:
    """Apply Resize(256) and CenterCrop(224), at any size in that ratio."""
    width, height = resized(*image.size, size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


class ToArray:
    """Pillow image -> cropped array, as torchvision's Compose would; pickles into workers.

    uint8 gives H,W,3, as PILToTensor before its transposition; float32 gives 3,H,W in 0..1, as
    ToTensor.
    """

    def __init__(self, crop: str, size: int, dtype: str) -> None:
        self._crop = train_crop if crop == "train" else val_crop
        self._size = size
        self._float = dtype == "float32"

    def __call__(self, image: Image.Image) -> np.ndarray:
        """Transform one image, of any mode."""
        pixels = np.asarray(self._crop(image.convert("RGB"), self._size))
        if not self._float:
            return pixels
        # ToTensor: transposed to a contiguous array first, then divided.
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype(np.float32) / np.float32(255)


def image_folder(tree: str) -> list[tuple[str, int]]:
    """Return (path, label) of every image of a tree of class folders, in torchvision's order."""
    folders = sorted(entry.name for entry in os.scandir(tree) if entry.is_dir())
    return [
        (os.path.join(folder, name), label)
        for label, top in enumerate(folders)
        for folder, _, names in sorted(os.walk(os.path.join(tree, top), followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(SUFFIXES)
    ]

"""torchvision's crops with Pillow alone, for adapters of peers that leave decoding to the user.

The same sizes, filters and distributions as RandomResizedCrop, RandomHorizontalFlip, Resize and
CenterCrop, without the tensors that torchvision draws its numbers with: so no slower.
"""

from __future__ import annotations

import io
import math
import random
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

_LOG_RATIO = (math.log(3 / 4), math.log(4 / 3))


def decode(jpeg: bytes | BinaryIO) -> Image.Image:
    """An encoded image, as ImageFolder's loader opens it."""
    file = io.BytesIO(jpeg) if isinstance(jpeg, (bytes, bytearray, memoryview)) else jpeg
    return Image.open(file).convert("RGB")


def train_crop(image: Image.Image, size: int) -> Image.Image:
    """RandomResizedCrop(size) and RandomHorizontalFlip(), drawn from `random`."""
    image = image.crop(_random_box(*image.size)).resize((size, size), Image.BILINEAR)
    return image.transpose(Image.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def val_crop(image: Image.Image, size: int) -> Image.Image:
    """Resize(size * 256 / 224) and CenterCrop(size)."""
    short = round(size * 256 / 224)
    width, height = image.size
    if width <= height:
        resized = (short, int(short * height / width))
    else:
        resized = (int(short * width / height), short)
    if resized != (width, height):
        image = image.resize(resized, Image.BILINEAR)
    left, top = round((resized[0] - size) / 2), round((resized[1] - size) / 2)
    return image.crop((left, top, left + size, top + size))


def crop(image: Image.Image, kind: str, size: int) -> Image.Image:
    """``train_crop`` or ``val_crop``, by a request's name of it."""
    return train_crop(image, size) if kind == "train" else val_crop(image, size)


def to_uint8(image: Image.Image) -> Any:
    """uint8, shape (3, H, W), contiguous."""
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def to_float32(image: Image.Image) -> Any:
    """float32 from 0 to 1, shape (3, H, W), contiguous: what ToTensor gives."""
    return to_uint8(image).astype(np.float32) / np.float32(255)


def _random_box(width: int, height: int) -> tuple[int, int, int, int]:
    area = width * height
    for _ in range(10):
        target = area * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(*_LOG_RATIO))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = random.randint(0, height - h), random.randint(0, width - w)
            return left, top, left + w, top + h
    if width / height < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif width / height > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h

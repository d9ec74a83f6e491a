"""Whether a contender gives the right pixels and labels: nothing wrong is timed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fastdata.benchmarks.adapters._transforms import val_crop
from fastdata.benchmarks.contender_process import ContenderError
from PIL import Image

Pixels = npt.NDArray[Any]


class Reference(NamedTuple):
    """What the first samples must be.

    Attributes:
        images: uint8, shape (N, size, size, 3): Pillow's Resize and CenterCrop.
        labels: int64, shape (N,).
    """

    images: Pixels
    labels: Pixels


def reference(samples: Iterable[tuple[Image.Image, int]], size: int) -> Reference:
    """Decoded and cropped by Pillow alone."""
    images, labels = [], []
    for image, label in samples:
        images.append(np.asarray(val_crop(image.convert("RGB"), size)))
        labels.append(label)
    return Reference(np.stack(images), np.array(labels, np.int64))


class Difference(NamedTuple):
    """How far images are from Pillow's: mean absolute differences, in levels of 255.

    Attributes:
        worst: Of the image that is furthest off.
        mean: Of all images.
    """

    worst: float
    mean: float


def check(
    given: Path, wanted: Reference, dtype: str, tolerance: float, mean_tolerance: float
) -> Difference:
    """Compares what a contender handed over.

    Args:
        given: The ``.npz`` that it wrote.
        wanted: What it must be.
        dtype: "uint8" or "float32".
        tolerance: Largest mean absolute difference of any image, in levels of 255.
        mean_tolerance: Largest mean absolute difference of all images, in levels.

    Returns:
        How far they are off.

    Raises:
        ContenderError: Shape, dtype, labels or values are wrong; says which.
    """
    with np.load(given) as file:
        images, labels = file["images"], file["labels"]
    if images.dtype != dtype:
        raise ContenderError(f"wrong dtype: {images.dtype}, not {dtype}")
    count, size = wanted.images.shape[:2]
    if images.shape == (count, 3, size, size):
        images = images.transpose(0, 2, 3, 1)
    if images.shape != wanted.images.shape:
        raise ContenderError(
            f"wrong shape: {images.shape}, neither {(count, 3, size, size)} nor "
            f"{wanted.images.shape}"
        )
    if labels.shape != (count,) or (labels != wanted.labels).any():
        bad = int(np.argmax(labels != wanted.labels)) if labels.shape == (count,) else 0
        raise ContenderError(
            f"wrong labels: sample {bad} has {labels.reshape(-1)[bad : bad + 1].tolist()}, "
            f"not {wanted.labels[bad]}"
        )
    levels = images.astype(np.float64) * (255 if dtype == "float32" else 1)
    differences = np.abs(levels - wanted.images).mean(axis=(1, 2, 3))
    worst = int(np.argmax(np.nan_to_num(differences, nan=np.inf)))
    if not differences[worst] <= tolerance:
        raise ContenderError(
            f"wrong pixels: image {worst} differs from Pillow's by {differences[worst]:.2f} levels "
            f"on average, more than {tolerance:g}"
        )
    mean = float(differences.mean())
    if not mean <= mean_tolerance:
        raise ContenderError(
            f"wrong pixels: images differ from Pillow's by {mean:.2f} levels on average, more "
            f"than {mean_tolerance:g}"
        )
    return Difference(float(differences[worst]), mean)

"""Checks of a contender's pixels and labels, before it is timed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fastdata.benchmarks.adapters._recipes import MEAN, STD, pipeline
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.adapters._transforms import val_crop
from fastdata.benchmarks.contender_process import ContenderError
from PIL import Image

Pixels = npt.NDArray[Any]

#: Largest factor between a recipe's mean change and torchvision's: libraries draw from other ranges
#: and fill in other ways, but a missing operation shows.
FACTOR = 1.5


class Reference(NamedTuple):
    """Expected first samples.

    Attributes:
        images: uint8, shape (N, size, size, 3): Pillow's Resize and CenterCrop.
        labels: int64, shape (N,).
    """

    images: Pixels
    labels: Pixels


def reference(
    samples: Iterable[tuple[Image.Image, int]], size: int, *, area: bool = False
) -> Reference:
    """Crop samples by Pillow alone: Resize(256 / 224 * size) and CenterCrop(size).

    With ``area``, cut the central square of 224 / 256 of the shorter side, in whole pixels, and
    average areas, as FFCV's ``CenterCropRGBImageDecoder`` does.
    """
    images, labels = [], []
    for image, label in samples:
        crop = _area_crop if area else val_crop
        images.append(np.asarray(crop(image.convert("RGB"), size)))
        labels.append(label)
    return Reference(np.stack(images), np.array(labels, np.int64))


def _area_crop(image: Image.Image, size: int) -> Image.Image:
    side = int(224 / 256 * min(image.size))
    left, top = ((whole - side) // 2 for whole in image.size)
    # OpenCV interpolates where it enlarges.
    averaging = Image.Resampling.BOX if side >= size else Image.Resampling.BILINEAR
    return image.resize((size, size), averaging, box=(left, top, left + side, top + side))


def reduced(image: Image.Image, max_side: int | None, *, area: bool = False) -> Image.Image:
    """Return ``image`` in RGB, its longer side at most ``max_side`` pixels.

    The shorter side is rounded down, as FFCV's ``max_resolution`` and ``convert --max-side`` do.
    With ``area``, average areas; else use Lanczos, as ``convert`` does.
    """
    image = image.convert("RGB")
    longer = max(image.size)
    if max_side is None or longer <= max_side:
        return image
    width, height = (max(1, side * max_side // longer) for side in image.size)
    averaging = Image.Resampling.BOX if area else Image.Resampling.LANCZOS
    return image.resize((width, height), averaging)


class Given(NamedTuple):
    """Samples that a contender handed over.

    Attributes:
        path: The ``.npz`` that it wrote.
        dtype: Expected dtype of its images: "uint8" or "float32".
        normalised: Whether they are normalised by ImageNet's mean and standard deviation.
    """

    path: Path
    dtype: str
    normalised: bool = False

    def levels(self, wanted: Reference) -> Pixels:
        """Return its images in the layout of ``wanted``, as floats.

        Raises:
            ContenderError: Shape, dtype or labels are wrong; says which.
        """
        with np.load(self.path) as file:
            images, labels = file["images"], file["labels"]
        if images.dtype != self.dtype:
            raise ContenderError(f"wrong dtype: {images.dtype}, not {self.dtype}")
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
        levels: Pixels = images.astype(np.float64)
        if self.normalised:
            levels = levels * STD + MEAN
        return levels * (255 if self.dtype == "float32" else 1)


class Difference(NamedTuple):
    """Mean absolute differences from Pillow's images, in levels of 255.

    Attributes:
        worst: The largest of any image.
        mean: The mean over all images.
    """

    worst: float
    mean: float


def check(
    given: Given, wanted: Reference, tolerance: float, mean_tolerance: float | None = None
) -> Difference:
    """Compare the samples that a contender handed over.

    Tolerances are the largest mean absolute difference, in levels of 255: of any image, and of all.

    Raises:
        ContenderError: Shape, dtype, labels or values are wrong; says which.
    """
    differences = np.abs(given.levels(wanted) - wanted.images).mean(axis=(1, 2, 3))
    worst = int(np.argmax(np.nan_to_num(differences, nan=np.inf)))
    if not differences[worst] <= tolerance:
        raise ContenderError(
            f"wrong pixels: image {worst} differs from Pillow's by {differences[worst]:.2f} levels "
            f"on average, more than {tolerance:g}"
        )
    mean = float(differences.mean())
    most = tolerance if mean_tolerance is None else mean_tolerance
    if not mean <= most:
        raise ContenderError(
            f"wrong pixels: images differ from Pillow's by {mean:.2f} levels on average, more "
            f"than {most:g}"
        )
    return Difference(float(differences[worst]), mean)


def torchvisions_change(wanted: Reference, recipe: str) -> float:
    """Return the mean change of images by torchvision's recipe, in levels of 255."""
    import torch

    augment = pipeline(import_torchvision().transforms, recipe)
    images = [Image.fromarray(image) for image in wanted.images]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other on small images
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            augmented = np.stack([augment(image).numpy() for image in images])
    finally:
        torch.set_num_threads(threads)
    levels = 255 * (augmented.transpose(0, 2, 3, 1) * STD + MEAN)
    return float(np.abs(levels - wanted.images).mean())


def check_change(given: Given, wanted: Reference, expected: float) -> float:
    """Check the mean change of randomly augmented images; return it, in levels of 255.

    ``expected`` is torchvision's change.

    Raises:
        ContenderError: Shape, dtype or labels are wrong, or it is not about as far.
    """
    found = float(np.abs(given.levels(wanted) - wanted.images).mean())
    if not expected / FACTOR <= found <= expected * FACTOR:
        raise ContenderError(
            f"wrong augmentation: it changes images by {found:.1f} levels on average, "
            f"torchvision's by {expected:.1f}"
        )
    return found

"""Checks of a contender's pixels and labels, before it is timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fastdata.benchmarks.adapters._transforms import image_folder, val_crop
from fastdata.benchmarks.contenders import Contender
from fastdata.benchmarks.processes import ContenderError
from PIL import Image

from fastdata.dataset import ImageDataset

Pixels = npt.NDArray[Any]
#: Returns the arrays of a contender's first batches, of at least so many samples.
HandOver = Callable[[int], list[Pixels]]
#: Returns figures for the results, or raises a ContenderError.
Check = Callable[["Contender", str, HandOver], dict[str, Any]]

#: Most standard errors between means or spreads of random images.
_ERRORS = 4.5
#: Most that values which are no images may be apart, such as boxes in pixels.
_CLOSE = 1e-3

#: Side of the crops; images to check contenders with, of several classes.
SIZE, CHECKED = 224, 48


class Reference(NamedTuple):
    """Expected first samples: uint8 images, (N, size, size, 3), and int64 labels, (N,)."""

    images: Pixels
    labels: Pixels


def reference(
    samples: Iterable[tuple[Image.Image, int]], size: int, *, area: bool = False
) -> Reference:
    """Crop samples by Pillow alone: Resize(256 / 224 * size) and CenterCrop(size).

    With ``area``, cut the central square of 224 / 256 of the shorter side, in whole pixels, and
    average areas, as FFCV's ``CenterCropRGBImageDecoder`` does.
    """
    crop = _area_crop if area else val_crop
    images, labels = zip(*samples, strict=True)
    cropped = [np.asarray(crop(image.convert("RGB"), size)) for image in images]
    return Reference(np.stack(cropped), np.array(labels, np.int64))


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


class PillowCheck:
    """Check of images and labels against Pillow's, of a small tree and of the user's dataset."""

    def __init__(self, tree: Path, dataset: Path | None = None) -> None:
        self._tree, self._dataset = tree, dataset
        self._wanted = cache(self._make)

    def __call__(self, contender: Contender, case: str, hand_over: HandOver) -> dict[str, Any]:
        """Return how far a contender's pixels are from the expected ones."""
        own = contender.folder == ""
        wanted = self._wanted(own, contender.max_side, contender.area)
        levels = _levels(*_joined(hand_over(len(wanted.labels))), wanted)
        each = np.abs(levels - wanted.images).mean(axis=(1, 2, 3))
        worst, mean = int(np.argmax(np.nan_to_num(each, nan=np.inf))), float(each.mean())
        limit = contender.tolerance or 0.0
        for found, most, named in (
            (float(each[worst]), limit, f"image {worst} differs"),
            (mean, contender.mean_tolerance or limit, "images differ"),
        ):
            if not found <= most:
                raise ContenderError(
                    f"wrong pixels: {named} from Pillow's by {found:.2f} levels on average, more "
                    f"than {most:g}"
                )
        return {"difference": float(each[worst]), "mean_difference": mean}

    def _make(self, own: bool, max_side: int | None, area: bool) -> Reference:
        samples = self._of_dataset() if own else self._of_tree(max_side, area)
        return reference(islice(samples, CHECKED), SIZE, area=area)

    def _of_tree(self, max_side: int | None, area: bool) -> Iterator[tuple[Image.Image, int]]:
        for path, label in image_folder(str(self._tree)):
            try:
                with Image.open(path) as image:
                    found = reduced(image, max_side, area=area)
            except OSError as error:
                where = os.path.realpath(path)  # not the link to it
                what = f"{where}: cannot be decoded: {error}; take it out of the folder"
                raise ContenderError(what) from error
            yield found, label

    def _of_dataset(self) -> Iterator[tuple[Image.Image, int]]:
        assert self._dataset is not None
        dataset = ImageDataset(self._dataset)
        for index in range(len(dataset)):  # without labels: numbers, as the adapter
            image, *label = dataset[index]
            yield image, *(label or (index,))


class PeerCheck:
    """Check of batches against the first contender's; of random ones, of means and spreads."""

    def __init__(self, count: int, *, random: bool = False) -> None:
        self._count, self._random = count, random
        self._first: dict[str, tuple[str, list[Pixels]]] = {}

    def __call__(self, contender: Contender, case: str, hand_over: HandOver) -> dict[str, Any]:
        """Raise a ContenderError if a contender's batches differ from the first one's."""
        arrays = hand_over(self._count)
        if contender.tolerance is None:
            return {}
        name, wanted = self._first.setdefault(case, (contender.name, arrays))
        if [one.shape for one in arrays] != [one.shape for one in wanted]:
            raise ContenderError(f"shapes differ from {name}'s")
        if not self._random:
            for number, (one, other) in enumerate(zip(arrays, wanted, strict=True)):
                _compare(one, other, contender.tolerance, f"array {number} is not {name}'s")
            return {}
        for shape in {one.shape[1:] for one in arrays if one.ndim > 2}:
            both = (
                np.concatenate([x for x in of if x.shape[1:] == shape]) for of in (arrays, wanted)
            )
            if (apart := _errors_apart(*both)) > _ERRORS:
                raise ContenderError(f"wrong images: {apart:.1f} standard errors from {name}'s")
        return {}


def _compare(one: Pixels, other: Pixels, tolerance: float, said: str) -> None:
    if one.dtype.kind in "USO":
        if not np.array_equal(one, other):
            raise ContenderError(f"wrong texts: {said}")
        return
    away = np.abs(one.astype(np.float64) - other)
    images = one.ndim > 2
    level = (1 / 255 if one.dtype.kind == "f" else 1.0) * tolerance
    if one.size and not (away.mean() <= level if images else away.max() <= _CLOSE):
        kind = "pixels" if images else "values"
        raise ContenderError(f"wrong {kind}: {said}: {away.mean():.4f} away on average")


def _errors_apart(one: Pixels, other: Pixels) -> float:
    """Return how many standard errors the means or spreads of images are apart, the larger."""
    apart = []
    for value in (np.mean, np.std):
        these, those = (value(images.reshape(len(images), -1), axis=1) for images in (one, other))
        error = np.sqrt(these.var() / len(these) + those.var() / len(those)) + 1e-9
        apart.append(abs(these.mean() - those.mean()) / error)
    return float(max(apart))


def _joined(arrays: list[Pixels]) -> tuple[Pixels, Pixels]:
    """Return all images, and all labels, of batches of (images, labels)."""
    if len(arrays) % 2:
        raise ContenderError("wrong batches: not (images, labels)")
    return np.concatenate(arrays[::2]), np.concatenate([one.reshape(-1) for one in arrays[1::2]])


def _levels(images: Pixels, labels: Pixels, wanted: Reference) -> Pixels:
    """Return images in the layout of ``wanted``, as floats in levels of 255."""
    count, size = wanted.images.shape[:2]
    images, labels = images[:count], labels[:count]
    if images.dtype not in (np.uint8, np.float32):
        raise ContenderError(f"wrong dtype: {images.dtype}")
    if images.shape == (count, 3, size, size):
        images = images.transpose(0, 2, 3, 1)
    if images.shape != wanted.images.shape:
        raise ContenderError(f"wrong shape: {images.shape}, not {wanted.images.shape}")
    if labels.shape != (count,):
        raise ContenderError(f"wrong labels: {len(labels)} of {count} samples have one")
    if (wrong := labels != wanted.labels).any():
        bad = int(np.argmax(wrong))
        raise ContenderError(
            f"wrong labels: sample {bad} has {labels[bad]}, not {wanted.labels[bad]}"
        )
    levels: Pixels = images.astype(np.float64) * (255 if images.dtype == np.float32 else 1)
    return levels

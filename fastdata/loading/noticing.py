"""Detection of images in torch's loaders, and advice on the faster code.

Inspects only a batch that is delivered anyway, so samples, workers and generators are unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import TensorDataset, default_collate, default_convert

from fastdata.loading.fields.readable import NUMBERED
from fastdata.loading.passes import WrappedPass
from fastdata.text import class_name

#: Most parts of a list to inspect.
_MOST_PARTS = 64
#: Smaller arrays may be poses, by frame and joint.
_LEAST_SIDE = 32
#: Dimensions of images: in a batch, in its parts, and in theirs at any depth. Arrays of others may
#: be point clouds, or the frames of a video.
_COLLATED: Sequence[Collection[int]] = ((4,),)
_SAMPLE = ((3, 4), (3, 4), (3,))
_LISTED = ((4,), (3, 4), (3,))

_FIELDS = (
    "Captions, boxes, masks and other values of a sample become fields. For samples without an "
    "image keep this loader."
)
_FOLDER = "fastdata.ImageDataset(torchvision.datasets.ImageFolder({root}), transform=...)"
_ANY = (
    f"If the images are in class folders, write {_FOLDER}, "
    "or pack them with fastdata convert imagefolder --root {root}. If they are in a list, a table "
    'or an array, write fastdata.ImageDataset.from_table({{"image": IMAGES, "label": LABELS}}, '
    "transform=...), where IMAGES are paths, files' bytes or one uint8 array, N x H x W x 3; it "
    'takes a DataFrame, too. For masks, write {{"image": IMAGES, "mask": MASKS}}, and transforms= '
    "of both."
)
_ARRAYS = (
    'Write fastdata.ImageDataset.from_table({{"image": dataset.data, "label": dataset.targets}}, '
    "transform=dataset.transform, classes=dataset.classes), which reads the same pixels. For one "
    "channel, the transform's first step has to be Grayscale()."
)
_INSIDE = (
    "Pass the wrapped fastdata.ImageDataset or torchvision folder itself, and move the code of "
    f"the class to transform= and target_transform=. {NUMBERED}"
)
#: Advice for a dataset of the library ``datasets``.
IN_PLACE = (
    'Write fastdata.ImageDataset(dataset.with_format(None), transform=..., fields=("image", '
    '"label")), where transform takes one image, and fields= names the columns of a batch.'
)
_TARS = (
    "Write fastdata.ImageDataset({root}, transform=..., fields=...), which indexes the tars where "
    "they are on first use; fastdata index {root} --out INDEX does it beforehand."
)
_SHARDS = (
    "Index the files where they are, fastdata index ROOT --out INDEX, and write "
    "fastdata.ImageDataset('INDEX', transform=...)."
)
#: Advice for other libraries' classes, by prefix of their names.
_REMEDIES = {
    "timm.data.readers.reader_wds.": _TARS,
    "timm.data.readers.reader_hfds.": IN_PLACE,
    "timm.data.": "Give train.py --dataset torch/image_folder, or write " + _FOLDER + ".",
    "datasets.arrow_dataset.": IN_PLACE,
    "datasets.iterable_dataset.": f"Load it without streaming=True. {IN_PLACE} Or: {_SHARDS}",
    "webdataset.": _TARS,
    "petastorm.": _SHARDS,
    "torchvision.datasets.coco.": "Pack it, fastdata convert coco --root {root} --annotations "
    "FILE, and write fastdata.ImageDataset(PACKED, transform=..., fields=...).",
    "torchvision.datasets.cifar.": _ARRAYS,
    "torchvision.datasets.mnist.": _ARRAYS,
}


def remedy(dataset: Any, wraps: bool = False) -> str:
    """Return the code that replaces an unknown dataset; ``wraps``: it holds a known one."""
    kinds = (*type(getattr(dataset, "reader", None)).__mro__, *type(dataset).__mro__)
    names = [f"{one.__module__}.{one.__qualname__}" for one in kinds]
    known = (
        words for name in names for start, words in _REMEDIES.items() if name.startswith(start)
    )
    return f"{next(known, _INSIDE if wraps else _ANY).format(root=_root(dataset))} {_FIELDS}"


def _root(dataset: Any) -> str:
    for holder in (dataset, getattr(dataset, "reader", None)):
        try:
            root = getattr(holder, "root", None)
        except Exception:  # a dataset's property may raise anything
            continue
        if isinstance(root, (str, os.PathLike)) and os.fspath(root):
            return repr(os.fspath(root))
    return "ROOT"


def unread(dataset: Any) -> str:
    """Return why fastdata does not read a dataset by itself."""
    return f"{class_name(dataset)} is not a dataset that fastdata knows how to read"


def in_memory(dataset: Any) -> bool:
    """Return whether samples are decoded in memory, so that a faster loader saves nothing."""
    return isinstance(dataset, (TensorDataset, list, tuple))


class NoticingPass(WrappedPass):
    """Pass of torch's loader that calls ``warn`` if its first batch has images.

    Batches are unchanged; ``collate_fn`` made them.
    """

    def __init__(
        self, batches: Iterator[Any], collate_fn: Callable[..., Any], warn: Callable[[], None]
    ) -> None:
        super().__init__(batches)
        own = _SAMPLE if collate_fn is default_convert else _LISTED
        self._dims = _COLLATED if collate_fn is default_collate else own
        self._warn: Callable[[], None] | None = warn

    def __next__(self) -> Any:
        batch = next(self._batches)
        if self._warn is not None:
            warn, self._warn = self._warn, None
            if _has_images(batch, self._dims):
                warn()
        return batch


def _has_images(batch: Any, dims: Sequence[Collection[int]]) -> bool:
    """Return whether a batch certainly has colour images: uint8, or floats of channels first."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):  # several fields or samples, so one image may be a part
        return any(_has_images(part, dims[1:] or dims) for part in batch[:_MOST_PARTS])
    if isinstance(batch, Image.Image):
        return batch.mode == "RGB"
    if not isinstance(batch, (torch.Tensor, np.ndarray)) or batch.ndim not in dims[0]:
        return False
    *_, first, second, last = batch.shape
    dtype = str(batch.dtype)
    if "uint8" in dtype and last in (3, 4):
        return min(first, second) >= _LEAST_SIDE
    channels = (3, 4) if "uint8" in dtype else (3,) if "float" in dtype else ()
    return first in channels and min(second, last) >= _LEAST_SIDE

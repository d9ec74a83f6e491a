"""Detection of images in torch's loaders, and advice on the faster code.

Inspects only a batch that is delivered anyway, so samples, workers and generators are unchanged.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from fastdata.loading.fields.readable import NUMBERED
from fastdata.loading.passes import WrappedPass
from fastdata.text import class_name

#: Most parts of a batch to inspect.
_MOST_PARTS = 64
#: Smaller arrays need not be images.
_LEAST_SIDE = 8

_FIELDS = (
    "Captions, boxes, masks and other values of a sample become fields. For samples without an "
    "image keep this loader."
)
_FOLDER = "fastdata.ImageDataset(torchvision.datasets.ImageFolder({root}), transform=...)"
_TABLE = (
    'fastdata.ImageDataset.from_table({{"image": IMAGES, "label": LABELS}}, transform=...), where '
    "IMAGES are paths, files' bytes or one uint8 array, N x H x W x 3; it takes a DataFrame, too. "
    'For masks, write {{"image": IMAGES, "mask": MASKS}}, and transforms= of both.'
)
_ANY = (
    f"If the images are in class folders, write {_FOLDER}, "
    "or pack them with fastdata convert imagefolder --root {root}. If they are in a list, a table "
    f"or an array, write {_TABLE}"
)
_ARRAYS = (
    'Write fastdata.ImageDataset.from_table({{"image": dataset.data, "label": dataset.targets}}, '
    "transform=dataset.transform, classes=dataset.classes), which reads the same pixels."
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
#: Advice for other libraries' classes, by prefix of their names.
_REMEDIES = {
    "timm.data.readers.reader_wds.": _TARS,
    "timm.data.readers.reader_hfds.": "Write fastdata.ImageDataset(datasets.load_dataset(...), "
    "transform=...).",
    "timm.data.": "Give train.py --dataset torch/image_folder, or write "
    'timm.data.create_dataset("torch/image_folder", root={root}, split=...), or ' + _FOLDER + ".",
    "datasets.arrow_dataset.": IN_PLACE,
    "datasets.iterable_dataset.": "Load it without streaming=True, and write "
    "fastdata.ImageDataset(datasets.load_dataset(...), transform=...); or index its files in place "
    "with fastdata index, which reads WebDataset's tars and Parquet, also by URL.",
    "lightly.data.": f"Write {_FOLDER}, and for the file names give the DataLoader "
    'fields=("image", "label", "key").',
    "webdataset.": _TARS,
    "petastorm.": "Index the Parquet files where they are, fastdata index {root} --out INDEX, and "
    "write fastdata.ImageDataset('INDEX', transform=...).",
    "streaming.": "Index the shards where they are, fastdata index {root} --out INDEX, and write "
    "fastdata.ImageDataset('INDEX', transform=...).",
    "ffcv.": f"Load the images of which the .beton file was made: {_FOLDER}.",
    "torchvision.datasets.coco.CocoCaptions": "Pack it, fastdata convert coco --root {root} "
    "--annotations FILE, and write fastdata.ImageDataset(PACKED, transform=..., fields=...).",
    "torchvision.datasets.cifar.": _ARRAYS,
    "torchvision.datasets.mnist.": f"{_ARRAYS} For one channel, the transform's first step has to "
    "be Grayscale().",
    "torch.utils.data.dataset.TensorDataset": f"Write {_TABLE}",
}
#: Where datasets keep the folder, or the files, of their images.
_ROOTS: tuple[Callable[[Any], Any], ...] = (
    *map(operator.attrgetter, ("root", "reader.root", "input_dir", "img_dir", "dataset.root")),
    lambda pipeline: "::".join(pipeline.pipeline[0].urls),
    lambda streaming: streaming.streams[0].local,
)
#: Most characters of them in a message: thousands of files would bury the advice.
_LONGEST = 400


def remedy(dataset: Any, wraps: bool = False) -> str:
    """Return the code that replaces an unknown dataset; ``wraps``: it holds a known one."""
    kinds = (*type(getattr(dataset, "reader", None)).__mro__, *type(dataset).__mro__)
    names = [f"{one.__module__}.{one.__qualname__}" for one in kinds]
    known = (
        words for name in names for start, words in _REMEDIES.items() if name.startswith(start)
    )
    return f"{next(known, _INSIDE if wraps else _ANY).format(root=_root(dataset))} {_FIELDS}"


def _root(dataset: Any) -> str:
    for get in _ROOTS:
        try:
            root = get(dataset)
        except Exception:  # a dataset's property may raise anything
            continue
        if isinstance(root, (str, os.PathLike)) and 0 < len(os.fspath(root)) <= _LONGEST:
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

    Batches are unchanged; ``batched``: samples are collated.
    """

    def __init__(self, batches: Iterator[Any], batched: bool, warn: Callable[[], None]) -> None:
        super().__init__(batches)
        self._batched = batched
        self._warn: Callable[[], None] | None = warn

    def __next__(self) -> Any:
        batch = next(self._batches)
        if self._warn is not None:
            warn, self._warn = self._warn, None
            if _has_images(batch, self._batched):
                warn()
        return batch


def _has_images(batch: Any, batched: bool) -> bool:
    """Return whether a batch has images, and no arrays but these and masks of their size."""
    has_pil, sizes, arrays = False, set(), []
    for part, depth in islice(_parts(batch), _MOST_PARTS):
        if isinstance(part, Image.Image):
            has_pil = has_pil or part.mode == "RGB"
        elif isinstance(part, (torch.Tensor, np.ndarray)) and part.ndim > 2:
            single = depth > 1 or not batched
            if part.ndim > 4:
                return False
            if (part.ndim == 4 or single) and _is_image(part):
                sides = part.shape[-3:]
                sizes |= {sides[1:], sides[:2]}
            else:
                arrays.append(part.shape[-2:])
    return (has_pil or bool(sizes)) and all(one in sizes for one in arrays)


def _is_image(part: Any) -> bool:
    """Return whether an array's last three dimensions can be a colour image."""
    kind = str(part.dtype).removeprefix("torch.")
    channels = {"uint8": (3, 4)}.get(kind, (3,) if "float" in kind else ())
    first, second, third = part.shape[-3:]
    sides = (second, third) if first in channels else (first, second)
    return (first in channels or third in channels) and min(sides) >= _LEAST_SIDE


def _parts(batch: Any, depth: int = 0) -> Iterator[tuple[Any, int]]:
    """Yield (part, depth) for the parts of a batch; depth counts the containers around it."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch[:_MOST_PARTS]:
            yield from _parts(part, depth + 1)
    else:
        yield batch, depth

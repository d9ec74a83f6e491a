"""Batches of aspect ratios, beside torch's loader and Pillow."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _workload import Workload, contenders, fastdata_loader, pack_tree, torch_loader, twice
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve
from fastdata.benchmarks.adapters._transforms import image_folder
from PIL import Image

WORKLOAD = Workload(
    "Batches of aspect ratios",
    contenders(__file__, {"torch": "", "fastdata": ""}, needs="torch"),
    against="torch",
    options={"batch_size": 16, "rounds": 5},
)


def _load(files: list[str], training: bool, row: int, size: tuple[int, int]) -> Any:
    """Load a file with Pillow at the size of its batch."""
    width, height = size
    image = Image.open(files[row]).convert("RGB")
    ratio = min(image.width / width, image.height / height)
    covering = round(image.width / ratio), round(image.height / ratio)
    image = image.resize(covering, Image.Resampling.BICUBIC)
    draw = (lambda most: random.randint(0, most)) if training else lambda n: round(n / 2)
    left, top = draw(image.width - width), draw(image.height - height)
    image = image.crop((left, top, left + width, top + height))
    if training and random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(image).transpose(2, 0, 1)


def open_loader(request: ContenderRequest) -> Any:
    """Open a loader of batches that one sampler makes."""
    import torch

    from fastdata import ImageDataset
    from fastdata import transforms as t
    from fastdata.samplers import AspectRatioBatches

    def steps(size: Any) -> Any:
        last = [t.RandomCrop(size), t.RandomHorizontalFlip()]
        last = [t.CenterCrop(size)] if request.check else last
        return t.Compose((t.ResizeKeepRatio(size, interpolation="bicubic"), *last))

    dataset = ImageDataset(Path(request.data, "packed"), t.BySize(steps), fields=("image",))
    batches: Any = AspectRatioBatches(dataset, request.batch_size, 512)
    about: Any = {"batch_size": 1, "shuffle": False, "drop_last": False}
    if request.variant == "fastdata":
        about |= {"batch_sampler": batches}
        return twice(fastdata_loader(dataset, request, **about))
    names = [path for path, _ in image_folder(str(Path(request.data, "tree")))]
    load = partial(_load, names, not request.check)
    sized = [[(row, batch.size) for row in batch] for batch in batches]
    collate = lambda batch: torch.from_numpy(np.stack([load(*at) for at in batch]))  # noqa: E731
    return twice(
        torch_loader(sized, request, **about | {"batch_size": None, "collate_fn": collate})
    )


if __name__ == "__main__":
    serve(open_loader, pack_tree, packages=["fastdata"])

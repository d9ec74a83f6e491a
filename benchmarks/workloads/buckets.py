"""Batches of aspect ratios, beside torch's loader and Pillow."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from _workload import Workload, contenders, fastdata_loader, torch_loader, twice
from fastdata.benchmarks.adapters._serve import Request, serve
from fastdata.benchmarks.adapters._transforms import image_folder
from PIL import Image

WORKLOAD = Workload(
    "Batches of aspect ratios",
    contenders(__file__, {"torch": "", "fastdata": ""}),
    against="torch",
    options={"batch_size": 16, "rounds": 5},
)


def prepare(tree: str, out: str, variant: str) -> None:
    """Pack a tree, and note its files."""
    from fastdata.converters import ImageFolder, pack

    pack(ImageFolder(tree), out, shuffle=False)
    (Path(out) / "files.txt").write_text("\n".join(path for path, _ in image_folder(tree)))


class _Files:
    """Files that Pillow opens; indices are rows with the size of their batch."""

    def __init__(self, files: list[str], training: bool) -> None:
        self._files, self._training = files, training

    def __getitem__(self, at: Any) -> Any:
        row, (width, height) = at
        image = Image.open(self._files[row]).convert("RGB")
        ratio = min(image.width / width, image.height / height)
        size = round(image.width / ratio), round(image.height / ratio)
        image = image.resize(size, Image.Resampling.BICUBIC)
        draw = (lambda most: random.randint(0, most)) if self._training else lambda n: round(n / 2)
        left, top = draw(image.width - width), draw(image.height - height)
        image = image.crop((left, top, left + width, top + height))
        if self._training and random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(image).transpose(2, 0, 1)


def open_loader(request: Request) -> Any:
    """Open a loader of batches that one sampler makes."""
    from fastdata import ImageDataset
    from fastdata import transforms as t
    from fastdata.samplers import AspectRatioBatches

    def steps(size: Any) -> Any:
        last = [t.RandomCrop(size), t.RandomHorizontalFlip()]
        last = [t.CenterCrop(size)] if request.check else last
        return t.Compose((t.ResizeKeepRatio(size, interpolation="bicubic"), *last))

    dataset = ImageDataset(request.data, t.BySize(steps), fields=("image",))
    batches: Any = AspectRatioBatches(dataset, request.batch_size, 512)
    about: Any = {"batch_size": 1, "shuffle": False, "drop_last": False}
    if request.variant == "fastdata":
        about |= {"batch_sampler": batches, "require_native": True}
        return twice(fastdata_loader(dataset, request, **about))
    files = _Files(Path(request.data, "files.txt").read_text().splitlines(), not request.check)
    sized = [[(row, batch.size) for row in batch] for batch in batches]
    return twice(torch_loader(files, request, **about, batch_sampler=sized))


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["fastdata"])

"""FFCV, by its ImageNet example: its own file, decoders and flip, compiled by numba.

Variants are how the writer stored the images: `q90` (JPEG at full size, quality 90), `500` (JPEG,
longer side at most 500 pixels), `half` (the same with half of the images as raw pixels, the
example's choice), `raw` and `raw256` (raw pixels, at most 500 or 256).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from _serve import ContenderRequest, serve
from _transforms import image_folder

_JPEG, _500 = {"write_mode": "jpg", "jpeg_quality": 90}, {"max_resolution": 500}
_WRITE: dict[str, dict[str, Any]] = {
    "q90": _JPEG,
    "500": {**_JPEG, **_500},
    "half": {**_JPEG, "write_mode": "proportion", "compress_probability": 0.5, **_500},
    "raw": {"write_mode": "raw", **_500},
    "raw256": {"write_mode": "raw", "max_resolution": 256},
}


class _Images:
    def __init__(self, tree: str) -> None:
        self._samples = image_folder(tree)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        path, label = self._samples[index]
        with Image.open(path) as image:
            return image.convert("RGB"), label


def prepare(tree: str, out: str, variant: str) -> None:
    """Write out/data.beton."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    Path(out).mkdir(parents=True, exist_ok=True)
    fields = {"image": RGBImageField(**_WRITE[variant]), "label": IntField()}
    DatasetWriter(f"{out}/data.beton", fields).from_indexed_dataset(_Images(tree))


def open_loader(request: ContenderRequest) -> Iterable[Any]:
    """FFCV's Loader; uint8 batches are channels-last memory.

    Numba would take TBB's threads where OpenCV brought TBB along; OpenMP's are a quarter faster.
    """
    os.environ.setdefault("NUMBA_THREADING_LAYER", "omp")
    from ffcv.fields.decoders import IntDecoder
    from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import (
        NormalizeImage,
        RandomHorizontalFlip,
        Squeeze,
        ToTensor,
        ToTorchImage,
    )

    size = (request.size, request.size)
    image: list[Any] = [CenterCropRGBImageDecoder(size, ratio=224 / 256)]
    if request.crop == "train":
        image = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()]
    if request.dtype == "float32":
        image.append(NormalizeImage(np.zeros(3), np.full(3, 255.0), np.float32))
    image += [ToTensor(), ToTorchImage()]
    return Loader(
        f"{request.data}/data.beton",
        batch_size=request.batch_size,
        num_workers=request.threads,
        order=OrderOption.RANDOM if request.order == "random" else OrderOption.SEQUENTIAL,
        os_cache=True,
        drop_last=not request.check,
        seed=request.seed,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )


if __name__ == "__main__":
    # FFCV's threads abort the process now and then when the interpreter takes them down.
    serve(open_loader, prepare, packages=["ffcv", "numba"], end_at_once=True)

"""Decoding of JPEGs in one thread, beside libjpeg-turbo and Pillow."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _workload import Workload, contenders
from fastdata.benchmarks.adapters._serve import Request, serve
from fastdata.benchmarks.adapters._transforms import image_folder, random_resized_box
from PIL import Image

from fastdata import _native

_SIZE = 224
_FASTDATA = [f"fastdata {level}" for level in _native.simd_levels()]

WORKLOAD = Workload(
    "Decoding alone",
    contenders(
        __file__,
        dict.fromkeys(
            ["Pillow", "libjpeg-turbo", *_FASTDATA, f"{_FASTDATA[-1]}, no seek points"], ""
        ),
        folder="tree",
    ),
    options={"rounds": 7, "threads": (1,)},
    transposed=True,
)


class _Decode:
    """Crops of all native JPEGs of a tree, by one contender."""

    def __init__(self, request: Request) -> None:
        from fastdata.decode import jpeg_info, seek_points

        files = [Path(path).read_bytes() for path, _ in image_folder(request.data)[:600]]
        self.files = [one for one in files if jpeg_info(one).native]
        self._variant, drawn = request.variant, random.Random(0)
        infos = [jpeg_info(one) for one in self.files]
        boxes = [random_resized_box(one.width, one.height, drawn.uniform) for one in infos]
        self._boxes = [(x, y, x + w, y + h) for x, y, w, h in boxes]
        self._flips = [drawn.random() < 0.5 for _ in infos]
        self._spaces = ["GRAY" if one.components == 1 else "RGB" for one in infos]
        plain = not request.variant.startswith("fastdata") or "no seek" in request.variant
        self._points = None if plain else [seek_points(one, 128) for one in self.files]
        if request.variant.startswith("fastdata"):
            _native.set_simd(request.variant.split()[1].rstrip(","))

    def _whole(self, at: int) -> Any:
        if self._variant != "libjpeg-turbo":
            return self.files[at]
        import simplejpeg

        return simplejpeg.decode_jpeg(self.files[at], self._spaces[at], False, False)

    def batch(self, rows: range) -> Any:
        """Return the crops of some images."""
        out = np.empty((len(rows), _SIZE, _SIZE, 3), np.uint8)
        if self._variant == "Pillow":
            for at, row in enumerate(rows):
                image = Image.open(io.BytesIO(self.files[row])).convert("RGB")
                crop = image.crop(self._boxes[row]).resize(
                    (_SIZE, _SIZE), Image.Resampling.BILINEAR
                )
                if self._flips[row]:
                    crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
                out[at] = np.asarray(crop)
            return out
        from fastdata.decode import PendingBatch

        part = slice(rows.start, rows.stop)
        pending = PendingBatch(
            [self._whole(row) for row in rows],
            out,
            regions=self._boxes[part],
            flips=self._flips[part],
            seek_points=None if self._points is None else self._points[part],
            fallback="never",
        )
        pending._job.run()
        pending.result()
        return out

    def __iter__(self) -> Iterator[Any]:
        for begin in range(0, len(self.files), 64):
            rows = range(begin, min(begin + 64, len(self.files)))
            yield self.batch(rows), rows


def figures(request: Request) -> dict[str, Any]:
    """Return the milliseconds of an image, and of fastdata's stages."""
    made = _Decode(request)
    list(made)
    begun = time.perf_counter()
    list(made)
    found = {"ms an image": (time.perf_counter() - begun) * 1e3 / len(made.files)}
    if request.variant.startswith("fastdata"):
        _native.profile_start()
        list(made)
        found |= {name: ms / len(made.files) for name, ms in _native.profile_stop().items()}
    return found


if __name__ == "__main__":
    serve(_Decode, figures=figures, packages=["fastdata", "simplejpeg"])

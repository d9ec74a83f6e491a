"""SPDL, by its ImageNet example: a thread pipeline that demuxes, decodes and filters by FFmpeg.

Crop, scale and flip are one FFmpeg filter graph an image, so no Python sees a whole image; a
thread makes a whole batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from _serve import Request, serve
from _transforms import image_folder, random_resized_box, shorter_side


class _Epochs:
    def __init__(self, request: Request) -> None:
        import spdl.io  # counted as import
        import spdl.pipeline  # noqa: F401

        self._request = request
        self._samples = image_folder(request.data)
        self._random = random.Random(request.seed)

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        request = self._request
        samples = list(self._samples)
        if request.order == "random":
            self._random.shuffle(samples)
        pipeline = (
            PipelineBuilder()
            .add_source(samples)
            .aggregate(request.batch_size, drop_last=not request.check)
            .pipe(
                self._load,
                concurrency=request.threads,
                output_order="completion" if request.order == "random" else "input",
            )
            .add_sink(3)
            .build(num_threads=request.threads)
        )
        with pipeline.auto_stop():
            yield from pipeline

    def _load(self, samples: Sequence[tuple[str, int]]) -> tuple[Any, Any]:
        import spdl.io

        frames = []
        for path, _ in samples:
            packets = spdl.io.demux_image(path)
            graph = self._filter(packets.width, packets.height)
            frames.append(spdl.io.decode_packets(packets, filter_desc=graph))
        images = spdl.io.to_numpy(spdl.io.convert_frames(frames))
        labels = np.fromiter((label for _, label in samples), dtype=np.int64, count=len(samples))
        if self._request.dtype == "float32":
            images = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(np.float32)
            images /= 255
        return images, labels

    def _filter(self, width: int, height: int) -> str:
        from spdl.io import get_video_filter_desc

        size = self._request.size
        if self._request.crop == "train":
            left, top, w, h = random_resized_box(width, height)
            steps = [f"crop={w}:{h}:{left}:{top}:exact=1", f"scale={size}:{size}:flags=bilinear"]
            if random.random() < 0.5:
                steps.append("hflip")
        else:
            short = shorter_side(size)
            if width <= height:
                width, height = short, int(short * height / width)
            else:
                width, height = int(short * width / height), short
            left, top = round((width - size) / 2), round((height - size) / 2)
            steps = [
                f"scale={width}:{height}:flags=bilinear",
                "format=rgb24",
                f"crop={size}:{size}:{left}:{top}:exact=1",
            ]
        return get_video_filter_desc(filter_desc=",".join(steps), pix_fmt="rgb24")


def open_loader(request: Request) -> Iterable[Any]:
    """Open a pipeline for each epoch, over the tree itself."""
    return _Epochs(request)


if __name__ == "__main__":
    serve(open_loader, packages=["spdl", "spdl-io"])

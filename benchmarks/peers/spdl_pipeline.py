"""SPDL, by its ImageNet example: a thread pipeline that demuxes, decodes and filters by FFmpeg.

Crop, scale and flip are one FFmpeg filter graph an image, so no Python sees a whole image; a
thread makes a whole batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from _serve import ContenderRequest, serve
from _transforms import image_folder, random_resized_box, resized


def open_loader(request: ContenderRequest) -> Any:
    """Return a function that opens a pipeline over the tree itself."""
    samples, drawn = image_folder(request.data), random.Random(request.seed)

    def epoch() -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        shuffled = request.order == "random"
        pipeline = (
            PipelineBuilder()
            .add_source(drawn.sample(samples, len(samples)) if shuffled else samples)
            .aggregate(request.batch_size, drop_last=not request.check)
            .pipe(
                partial(_load, request),
                concurrency=request.threads,
                output_order="completion" if shuffled else "input",
            )
            .add_sink(3)
            .build(num_threads=request.threads)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return epoch


def _load(request: ContenderRequest, samples: Sequence[tuple[str, int]]) -> tuple[Any, Any]:
    import spdl.io

    frames = []
    for path, _ in samples:
        packets = spdl.io.demux_image(path)
        graph = _filter(request, packets.width, packets.height)
        frames.append(spdl.io.decode_packets(packets, filter_desc=graph))
    images = spdl.io.to_numpy(spdl.io.convert_frames(frames))
    labels = np.fromiter((label for _, label in samples), dtype=np.int64, count=len(samples))
    if request.dtype == "float32":
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(np.float32) / 255
    return images, labels


def _filter(request: ContenderRequest, width: int, height: int) -> str:
    from spdl.io import get_video_filter_desc

    size = request.size
    if request.crop == "train":
        left, top, w, h = random_resized_box(width, height)
        steps = [f"crop={w}:{h}:{left}:{top}:exact=1", f"scale={size}:{size}:flags=bilinear"]
        steps += ["hflip"] if random.random() < 0.5 else []
    else:
        width, height = resized(width, height, size)
        left, top = round((width - size) / 2), round((height - size) / 2)
        steps = [f"scale={width}:{height}:flags=bilinear", "format=rgb24"]
        steps += [f"crop={size}:{size}:{left}:{top}:exact=1"]
    return get_video_filter_desc(filter_desc=",".join(steps), pix_fmt="rgb24")


if __name__ == "__main__":
    serve(open_loader, packages=["spdl", "spdl-io"])

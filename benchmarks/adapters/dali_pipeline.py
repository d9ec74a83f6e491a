"""NVIDIA DALI, by its ResNet-50 example: file reader, fused decode and random crop, resize, flip.

Variants: `cpu`, and `mixed`, which decodes, resizes and flips on the GPU, JPEGs through the
hardware decoder where there is one. Batches come from `Pipeline.run` as views of DALI's own
buffers; `mixed` leaves them on the GPU, as torch's tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from _serve import ContenderRequest, serve
from _transforms import image_folder, shorter_side


class _Epochs:
    """Pipeline that stops at each epoch's last full batch."""

    def __init__(self, request: ContenderRequest) -> None:
        from nvidia.dali import fn, pipeline_def, types

        gpu = self._gpu = request.variant == "mixed"
        files, labels = zip(*image_folder(request.data), strict=True)
        partial = request.batch_size - 1 if request.check else 0
        self._batches = (len(files) + partial) // request.batch_size
        device, size = "mixed" if gpu else "cpu", request.size

        @pipeline_def
        def pipeline() -> Any:
            jpegs, label = fn.readers.file(
                files=list(files),
                labels=list(labels),
                shuffle_after_epoch=request.order == "random",
                name="reader",
            )
            if request.crop == "train":
                images = fn.decoders.image_random_crop(
                    jpegs,
                    device=device,
                    output_type=types.RGB,
                    random_area=[0.08, 1.0],
                    random_aspect_ratio=[3 / 4, 4 / 3],
                    num_attempts=10,
                    adjust_orientation=False,  # as Pillow
                )
                images = fn.resize(images, size=(size, size), interp_type=types.INTERP_TRIANGULAR)
                mirror = fn.random.coin_flip(probability=0.5)
            else:
                images = fn.decoders.image(
                    jpegs, device=device, output_type=types.RGB, adjust_orientation=False
                )
                # DALI's own rounding of size and window would be a pixel off torchvision's.
                shape = fn.peek_image_shape(jpegs, adjust_orientation=False)
                shape = fn.slice(shape, 0, 2, axes=[0])
                shape = shape * shorter_side(size) // fn.reductions.min(shape)
                images = fn.resize(
                    images,
                    size=fn.cast(shape, dtype=types.FLOAT),
                    interp_type=types.INTERP_TRIANGULAR,
                )
                half = (shape - size) // 2
                corner = half + ((shape - size) & 1) * (half & 1)
                images = fn.slice(
                    images, fn.cast(corner, dtype=types.INT32), [size, size], axes=[0, 1]
                )
                mirror = 0
            if request.dtype == "float32":
                images = fn.crop_mirror_normalize(
                    images,
                    dtype=types.FLOAT,
                    output_layout="CHW",
                    crop=(size, size),
                    mean=[0.0] * 3,
                    std=[255.0] * 3,
                    mirror=mirror,
                )
            elif request.crop == "train":
                images = fn.flip(images, horizontal=mirror)
            return images, label

        self._pipeline = pipeline(
            batch_size=request.batch_size,
            num_threads=request.threads,
            device_id=0 if gpu else None,
            seed=request.seed,
        )
        self._pipeline.build()

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._batches):
            images, labels = self._pipeline.run()
            if self._gpu:
                import torch

                yield torch.from_dlpack(images.as_tensor()), labels.as_array()[:, 0]
            else:
                yield images.as_array(), labels.as_array()[:, 0]


def open_loader(request: ContenderRequest) -> Iterable[Any]:
    """Open a DALI pipeline over the tree itself."""
    return _Epochs(request)


if __name__ == "__main__":
    serve(open_loader, packages=["nvidia-dali-cuda120"])

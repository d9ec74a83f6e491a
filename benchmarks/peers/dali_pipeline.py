"""NVIDIA DALI, by its ResNet-50 example: file reader, fused decode and random crop, resize, flip.

Variants: `cpu`, and `mixed`, which decodes, resizes and flips on the GPU, JPEGs through the
hardware decoder where there is one. Recipes are those of `nvidia.dali.auto_aug`, with torchvision's
arguments, and DALI's own operators; mirroring is left to the normalisation, where it costs nothing.
Batches come from `Pipeline.run` as views of DALI's own
buffers; `mixed` leaves them on the GPU, as torch's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import log
from typing import Any

from _recipes import MEAN, STD
from _serve import Request, serve
from _transforms import image_folder, shorter_side


def _trivialaugment(images: Any, size: int) -> Any:
    from nvidia.dali import types
    from nvidia.dali.auto_aug.trivial_augment import trivial_augment_wide

    return trivial_augment_wide(
        images, fill_value=0, interp_type=types.INTERP_NN, max_translate_abs=32
    )


def _randaugment(images: Any, size: int) -> Any:
    from nvidia.dali import types
    from nvidia.dali.auto_aug.rand_augment import rand_augment

    return rand_augment(
        images,
        n=2,
        m=9,
        shape=(size, size),
        fill_value=0,
        interp_type=types.INTERP_NN,
        max_translate_rel=150 / 331,
    )


def _autoaugment(images: Any, size: int) -> Any:
    from nvidia.dali import types
    from nvidia.dali.auto_aug.auto_augment import auto_augment

    return auto_augment(
        images, "image_net", shape=(size, size), fill_value=0, interp_type=types.INTERP_NN
    )


def _jitter(images: Any, amount: float, hue: float) -> Any:
    """Brightness, contrast and saturation as one matrix, in DALI's order, not a drawn one."""
    from nvidia.dali import fn

    names = ("brightness", "contrast", "saturation")
    factors = {name: fn.random.uniform(range=[1 - amount, 1 + amount]) for name in names}
    if hue:
        factors["hue"] = fn.random.uniform(range=[-360 * hue, 360 * hue])
    return fn.color_twist(images, **factors)


def _simclr(images: Any, size: int) -> Any:
    from nvidia.dali import fn, types

    def coin(probability: float) -> Any:
        return fn.random.coin_flip(probability=probability, dtype=types.BOOL)

    if coin(0.8):
        images = _jitter(images, 0.8, 0.2)
    if coin(0.2):
        images = fn.saturation(images, saturation=0.0)
    if coin(0.5):
        images = fn.gaussian_blur(images, window_size=23, sigma=fn.random.uniform(range=[0.1, 2.0]))
    if coin(0.2):
        below = images < 128
        images = below * images + (below ^ True) * (types.Constant(255, types.UINT8) - images)
    return images


def _erased(images: Any, size: int) -> Any:
    """RandomErasing(0.1) of normalised images, but for the second draw of what does not fit."""
    from nvidia.dali import fn, math, types

    if fn.random.coin_flip(probability=0.1, dtype=types.BOOL):
        area = fn.random.uniform(range=[0.02, 0.33]) * (size * size)
        ratio = math.exp(fn.random.uniform(range=[log(0.3), log(3.3)]))
        height = math.min(math.sqrt(area * ratio), size - 1.0)
        width = math.min(math.sqrt(area / ratio), size - 1.0)
        top = fn.random.uniform(range=[0.0, 1.0]) * (size - height)
        left = fn.random.uniform(range=[0.0, 1.0]) * (size - width)
        images = fn.erase(
            images,
            anchor=fn.stack(top, left),
            shape=fn.stack(height, width),
            axis_names="HW",
            fill_value=0.0,
        )
    return images


_RECIPES: dict[str, Callable[[Any, int], Any]] = {
    "none": lambda images, size: images,
    "trivialaugment": _trivialaugment,
    "randaugment": _randaugment,
    "autoaugment": _autoaugment,
    "colorjitter": lambda images, size: _jitter(images, 0.4, 0.0),
    "colorjitter-hue": lambda images, size: _jitter(images, 0.4, 0.1),
    "simclr": _simclr,
}


class _Epochs:
    """Pipeline that stops at each epoch's last full batch."""

    def __init__(self, request: Request) -> None:
        from nvidia.dali import fn, pipeline_def, types

        augment = _RECIPES[request.recipe or "none"]
        mean, std = (MEAN, STD) if request.recipe else ((0.0,) * 3, (1.0,) * 3)
        gpu = request.variant == "mixed"
        files, labels = zip(*image_folder(request.data), strict=True)
        self._batches = len(files) // request.batch_size
        if request.check:
            self._batches = -(-len(files) // request.batch_size)
        self._gpu = gpu
        device = "mixed" if gpu else "cpu"
        size = request.size

        @pipeline_def(enable_conditionals=bool(request.recipe))
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
            images = augment(images, size)
            if request.dtype == "float32":
                images = fn.crop_mirror_normalize(
                    images,
                    dtype=types.FLOAT,
                    output_layout="CHW",
                    crop=(size, size),
                    mean=[255 * value for value in mean],
                    std=[255 * value for value in std],
                    mirror=mirror,
                )
                if request.recipe == "trivialaugment":
                    images = _erased(images, size)
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


def open_loader(request: Request) -> Iterable[Any]:
    """Open a DALI pipeline over the tree itself."""
    return _Epochs(request)


if __name__ == "__main__":
    serve(open_loader, packages=["nvidia-dali-cuda120"])

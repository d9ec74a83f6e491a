"""`fast_collate`: images to one uint8 batch, for torch's own ``DataLoader``.

Scaling and normalising pixels on the CPU makes a batch four times as large, and every copy of
it four times as slow. So batches stay bytes here, and the device scales them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate, get_worker_info

from fastdata.errors import SampleError, UsageError
from fastdata.text import human_size

__all__ = ["fast_collate"]

_TAKEN = (
    "Images may be PIL images, uint8 arrays of shape (H, W, 3) or (H, W), or uint8 tensors of "
    "shape (3, H, W) or (1, H, W)."
)
_NO_FLOATS = (
    "Remove the transform that converts it: ToTensor, ConvertImageDtype, v2.ToDtype or "
    "Normalize. PIL images and the tensors of PILToTensor need no conversion; scale and "
    "normalise the batch on the device."
)


def fast_collate(samples: Sequence[Any]) -> Any:
    """Collate images into one uint8 batch; for ``DataLoader(..., collate_fn=fast_collate)``.

    It has the name of the function in NVIDIA's apex and DALI examples, which introduced uint8
    batches. This one writes each image once, to its final place, without clearing the batch
    first. In a worker process that is shared memory, as with torch's own ``default_collate``, so
    the training process needs no further copy.

    Dataset transforms should end with PIL images (or with uint8 tensors): leave out ``ToTensor``
    and ``Normalize``, and normalise on the device::

        images = (images.to(device, non_blocking=True).float() - mean) / std

    where mean and std are for levels from 0 to 255.

    Args:
        samples: At least one tuple or list (image, label, ...), or named tuple. All images have
            the same size. An image is a PIL image of any mode, converted to RGB; a uint8 array of
            shape (H, W, 3), or (H, W) if grey; or a uint8 tensor of shape (3, H, W), or
            (1, H, W) if grey, of any strides. Several views of one image are a list or tuple of
            these, or a dict of lists.

    Returns:
        A list with as many elements as a sample, or a named tuple if samples are named tuples:

        - the images, uint8 from 0 to 255, shape (N, 3, H, W) in channels-last memory; for
          several views, a list with one such tensor per view, or a dict of lists;
        - the labels, int64, shape (N,), if they are whole numbers (Python's, NumPy's, or
          tensors without dimensions); else the result of ``default_collate``;
        - the result of ``default_collate`` for each further element.

    Raises:
        UsageError: There are no samples, or a sample is not as described above, or differs from
            the others; the message names the sample.
        SampleError: A PIL image that is not loaded yet cannot be decoded.
    """
    width = _check_samples(samples)
    columns: list[Any] = [
        _images([sample[0] for sample in samples], ""),
        _labels([sample[1] for sample in samples]),
    ]
    columns += [default_collate([sample[i] for sample in samples]) for i in range(2, width)]
    kind = type(samples[0])
    if hasattr(kind, "_make"):
        return kind._make(columns)
    return columns


def _check_samples(samples: Sequence[Any]) -> int:
    """Check the samples' types and lengths; return the number of elements of each."""
    if not isinstance(samples, Sequence) or isinstance(samples, str | bytes):
        raise UsageError(
            f"fast_collate takes a list of samples, not {_name(samples)}",
            "Pass it as collate_fn to a DataLoader with a batch_size.",
        )
    if not samples:
        raise UsageError(
            "fast_collate was given no samples",
            "A batch has at least one: check the sampler, and any filter of samples.",
        )
    for i, sample in enumerate(samples):
        if not isinstance(sample, tuple | list) or len(sample) < 2:
            shown = f"{_name(sample)} of {len(sample)}" if _sized(sample) else _name(sample)
            raise UsageError(
                f"sample {i} of the batch is {shown}, not (image, label)",
                "Let the dataset return tuples (image, label, ...); if there is no label, a 0.",
            )
        if len(sample) != len(samples[0]):
            raise UsageError(
                f"sample {i} of the batch has {len(sample)} elements, sample 0 has "
                f"{len(samples[0])}",
                "Let the dataset return as many elements for every sample.",
            )
    return len(samples[0])


def _sized(sample: Any) -> bool:
    return isinstance(sample, tuple | list)


def _name(thing: Any) -> str:
    return f"a {type(thing).__module__}.{type(thing).__qualname__}".replace("builtins.", "")


def _labels(labels: list[Any]) -> Any:
    if all(type(label) is int or _is_whole(label) for label in labels):
        return torch.tensor([int(label) for label in labels], dtype=torch.int64, device="cpu")
    return default_collate(labels)


def _is_whole(label: Any) -> bool:
    """Return whether a label is one whole number; booleans are not."""
    if isinstance(label, torch.Tensor):
        dtype = label.dtype
        number = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
        return label.ndim == 0 and number
    if isinstance(label, np.ndarray):
        return label.ndim == 0 and label.dtype.kind in "iu"
    return isinstance(label, int | np.integer) and not isinstance(label, bool)


def _images(images: list[Any], view: str) -> Any:
    """Return a batch of one image a sample; for several views, a list or dict of batches."""
    if isinstance(images[0], dict):
        for i, sample in enumerate(images):
            if not isinstance(sample, dict) or sample.keys() != images[0].keys():
                shown = ", ".join(sample) if isinstance(sample, dict) else _name(sample)
                raise UsageError(
                    f"sample {i} of the batch has {shown} for views of its image, sample 0 has "
                    f"{', '.join(images[0])}",
                    "Let the transform make the same views of every image.",
                )
        return {
            name: _images([sample[name] for sample in images], f"{view}{name}, ")
            for name in images[0]
        }
    if not isinstance(images[0], list | tuple):
        return _batch(images, view)
    views = len(images[0])
    if views == 0:
        raise UsageError("sample 0 of the batch has no views of its image", _TAKEN)
    for i, sample in enumerate(images):
        if not isinstance(sample, list | tuple) or len(sample) != views:
            shown = f"{len(sample)}" if isinstance(sample, list | tuple) else _name(sample)
            raise UsageError(
                f"sample {i} of the batch has {shown} for views of its image, sample 0 has {views}",
                "Let the transform make as many views of every image.",
            )
    return [_images([sample[k] for sample in images], f"{view}view {k} of ") for k in range(views)]


def _batch(images: list[Any], view: str) -> torch.Tensor:
    height, width = _size(images[0], f"{view}sample 0")
    batch = _empty(len(images), height, width)
    pixels = batch.permute(0, 2, 3, 1).numpy()
    memory = pixels.reshape(-1).data
    length = 3 * height * width
    for i, image in enumerate(images):
        where = f"{view}sample {i}"
        size = _size(image, where)
        if size != (height, width):
            side = min(224, *size, height, width)
            raise UsageError(
                f"{where} of the batch has the size {human_size(*size[::-1])}, sample 0 "
                f"{human_size(width, height)}",
                "Give the dataset a transform that makes all images one size, such as "
                f"RandomResizedCrop({side}), or Resize({side}) and CenterCrop({side}).",
            )
        if isinstance(image, Image.Image):
            # Pillow's fastest public access to pixels; np.asarray uses it, too, with overhead.
            memory[i * length : (i + 1) * length] = _rgb(image).tobytes()
        elif isinstance(image, np.ndarray):
            pixels[i] = image if image.ndim == 3 else image[:, :, np.newaxis]
        else:
            batch[i].copy_(image)
    return batch


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if isinstance(image.info.get("transparency"), bytes):
        # Drop a palette's alpha here: convert() would warn. A copy has its own info.
        image = image.copy()
        del image.info["transparency"]
    return image.convert("RGB")


def _size(image: Any, where: str) -> tuple[int, int]:
    """Return an image's height and width; raise if its type, shape, dtype or device is unusable."""
    if isinstance(image, Image.Image):
        try:
            image.load()
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise SampleError(
                f"{where} of the batch cannot be decoded: {error}",
                "Find all such images with fastdata verify; or load them in the dataset, which "
                "knows the file.",
            ) from error
        return image.height, image.width
    if isinstance(image, np.ndarray):
        _check_levels(image.dtype == np.uint8, f"{where} of the batch is an array", image.dtype)
        if image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3):
            return image.shape[0], image.shape[1]
        raise UsageError(f"{where} of the batch is an array of shape {image.shape}", _TAKEN)
    if isinstance(image, torch.Tensor):
        _check_levels(image.dtype == torch.uint8, f"{where} of the batch is a tensor", image.dtype)
        if image.device.type != "cpu":
            raise UsageError(
                f"{where} of the batch is a tensor on {image.device}",
                "fast_collate needs CPU tensors: remove the transform that moves it.",
            )
        if image.ndim == 3 and image.shape[0] in (1, 3):
            return image.shape[1], image.shape[2]
        raise UsageError(f"{where} of the batch is a tensor of shape {tuple(image.shape)}", _TAKEN)
    raise UsageError(f"{where} of the batch is {_name(image)}, not an image", _TAKEN)


def _check_levels(good: bool, what: str, dtype: Any) -> None:
    if not good:
        name = str(dtype).removeprefix("torch.")
        raise UsageError(f"{what} of {name}, not of uint8", _NO_FLOATS)


def _empty(count: int, height: int, width: int) -> torch.Tensor:
    """Return memory for a batch; shared memory in a worker process, which saves torch a copy."""
    if get_worker_info() is None:
        flat = torch.empty(count * height * width * 3, dtype=torch.uint8, device="cpu")
    else:
        new_shared: Any = torch.UntypedStorage._new_shared
        flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(
            new_shared(count * height * width * 3)
        )
    return flat.view(count, height, width, 3).permute(0, 3, 1, 2)

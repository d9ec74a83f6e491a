"""`fast_collate`: images to one uint8 batch, for torch's own ``DataLoader``.

Scaling and normalising pixels on the CPU makes a batch four times as large, and every copy of
it four times as slow. So batches stay bytes here, and the device scales them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        several = isinstance(sample, tuple | list)
        if not several or len(sample) < 2:
            shown = _name(sample) + (f" of {len(sample)}" if several else "")
            raise UsageError(
                f"sample {i} of the batch is {shown}, not (image, label)",
                "Let the dataset return tuples (image, label, ...); if there is no label, a 0.",
            )
    hint = "Let the dataset return as many elements for every sample."
    _require_alike(list(map(len, samples)), "{} elements".format, "", hint)
    return len(samples[0])


def _require_alike(forms: list[Any], words: Callable[[Any], str], view: str, hint: str) -> None:
    """Raise UsageError if a sample has another form than the first; ``words`` describe it."""
    for number, form in enumerate(forms):
        if form != forms[0]:
            has = f"sample {number} of the batch has {words(form)}, sample 0 {words(forms[0])}"
            raise UsageError(view + has, hint)


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
    if not isinstance(label, int | np.generic | np.ndarray):
        return False
    array = np.asarray(label)
    return array.ndim == 0 and array.dtype.kind in "iu"


def _images(images: list[Any], view: str) -> Any:
    """Return a batch of one image a sample; for several views, a list or dict of batches."""
    hint = "Let the transform make the same views of every image."
    _require_alike(list(map(_views, images)), str, view, hint)
    first = images[0]
    if isinstance(first, dict) and first:
        return {
            name: _images([sample[name] for sample in images], f"{view}{name}, ") for name in first
        }
    if isinstance(first, list | tuple) and first:
        several = enumerate(zip(*images, strict=True))
        return [_images(list(own), f"{view}view {at} of ") for at, own in several]
    return _batch(images, view)


def _views(image: Any) -> str:
    """Return the names or the number of an image's views, in words."""
    if isinstance(image, dict):
        return f"the views {', '.join(sorted(map(str, image)))}"
    if isinstance(image, list | tuple):
        return f"{len(image)} views"
    return "one image"


def _batch(images: list[Any], view: str) -> torch.Tensor:
    sizes = [_size(image, f"{view}sample {i} of the batch") for i, image in enumerate(images)]
    height, width = sizes[0]
    side = min(224, height, width)
    hint = (
        "Give the dataset a transform that makes all images one size, such as "
        f"RandomResizedCrop({side}), or Resize({side}) and CenterCrop({side})."
    )
    _require_alike(sizes, lambda size: f"the size {human_size(*size[::-1])}", view, hint)
    batch = _empty(len(images), height, width)
    pixels = batch.permute(0, 2, 3, 1).numpy()
    memory = pixels.reshape(-1).data
    length = 3 * height * width
    for i, image in enumerate(images):
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
                f"{where} cannot be decoded: {error}",
                "Find all such images with fastdata verify; or load them in the dataset, which "
                "knows the file.",
            ) from error
        return image.height, image.width
    where = f"{where} is {_name(image)}"
    if not isinstance(image, np.ndarray | torch.Tensor):
        raise UsageError(f"{where}, not an image", _TAKEN)
    dtype = str(image.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise UsageError(f"{where} of {dtype}, not of uint8", _NO_FLOATS)
    form = tuple(image.shape)
    if isinstance(image, torch.Tensor):
        if image.device.type != "cpu":
            hint = "fast_collate needs CPU tensors: remove the transform that moves it."
            raise UsageError(f"{where} on {image.device}", hint)
        good, size = len(form) == 3 and form[0] in (1, 3), form[1:]
    else:
        good, size = len(form) == 2 or (len(form) == 3 and form[2] == 3), form[:2]
    if not good:
        raise UsageError(f"{where} of shape {form}", _TAKEN)
    return size[0], size[1]


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

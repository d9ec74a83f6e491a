"""The reference: what a program of `fastdata.transforms.compile` does, by Pillow.

Tests compare the native core with it. It does single images on torch's own path, and samples that
need padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata.errors import UsageError
from fastdata.transforms import geometry
from fastdata.transforms.compile import Reading, misplaced, name_of, read
from fastdata.transforms.descriptions import Transform
from fastdata.transforms.geometry import Geometry

#: What to do about an image that is smaller than a random crop.
SMALL_HINT = "Resize before it, or give it pad_if_needed=True."


def render(
    image: Image.Image, cut: Geometry, row: int, size: tuple[int, int], resample: str
) -> npt.NDArray[np.uint8]:
    """Crop, resize, cut and flip one image, padding with zeros what is outside it.

    Args:
        image: The source image; modes other than RGB are converted to it.
        cut: What is cut out.
        row: The image's row there.
        size: (width, height) of the result.
        resample: ``bilinear``, ``nearest``, ``bicubic`` or ``lanczos``.

    Returns:
        uint8 (height, width, 3), RGB.
    """
    if image.mode != "RGB":
        image = image.convert("RGB")
    left, upper, right, lower = cut.boxes[row].tolist()
    if (left, upper, right, lower) != (0, 0, *image.size):
        image = image.crop((left, upper, right, lower))
    resized = size if cut.sizes is None else tuple(cut.sizes[row].tolist())
    if image.size != resized:
        image = image.resize(resized, Image.Resampling[resample.upper()])
    if resized != size or cut.windows is not None:
        x, y = (0, 0) if cut.windows is None else cut.windows[row].tolist()
        image = image.crop((x, y, x + size[0], y + size[1]))
    pixels: npt.NDArray[np.uint8] = np.array(image)
    return np.ascontiguousarray(pixels[:, ::-1]) if cut.flips[row] else pixels


def call(transform: Transform, image: Any) -> Any:
    """Do one of `fastdata.transforms` to one PIL image, on torch's own path.

    Args:
        transform: What to do; its images need not come to one size.
        image: A PIL image.

    Returns:
        A tensor (3, height, width), uint8 or float; a list of them if there are `Views`; or what
        the tail made of it.

    Raises:
        UsageError: not a PIL image, or transforms that cannot be composed.
    """
    if not isinstance(image, Image.Image):
        raise UsageError(
            f"{name_of(transform)} was given a {type(image).__name__}, not a PIL image.",
            "Put it before what makes tensors of images.",
        )
    views, tail = read(transform)
    if reason := misplaced(views, tail):
        raise UsageError(reason, "Change the order of the transforms.")
    results = [_view(view, image) for view in views]
    result = results if len(views) > 1 else results[0]
    for function in tail:
        result = function(result)
    return result


def _view(view: Reading, image: Image.Image) -> Any:
    import torch

    seed = 0
    if any(geometry.is_random(step) for step in view.steps):
        seed = int(torch.randint(-(2**63), 2**63 - 1, ()))
    keys = np.array([seed], np.int64).view(np.uint64)
    cut, width, height = geometry.compose(view.steps, [image.width], [image.height], keys)
    if cut.too_small:
        raise UsageError(f"The image has {cut.too_small[0]}.", SMALL_HINT)
    size = int(np.asarray(width).flat[0]), int(np.asarray(height).flat[0])
    pixels = render(image, cut, 0, size, view.filter or "bilinear")
    result: Any = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    output = view.output()
    if output.dtype != "uint8":
        result = result.to(torch.float32).div_(255)
        if output.mean is not None and output.std is not None:
            result = result.sub_(torch.tensor(output.mean).view(3, 1, 1))
            result = result.div_(torch.tensor(output.std).view(3, 1, 1))
        result = result.to(getattr(torch, output.dtype))
    for function in view.tail_calls():
        result = function(result)
    return result

"""The reference: what a program of `fastdata.transforms.compile` does, by Pillow.

Tests compare the native core with it. It does single images on torch's own path, and samples that
need padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native
from fastdata.errors import UsageError
from fastdata.transforms import geometry, pixels
from fastdata.transforms.compile import Output, Reading, misplaced, name_of, read
from fastdata.transforms.descriptions import Transform, in_form
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
        size: (width, height) of the result, where ``cut.canvases`` has no other.
        resample: ``bilinear``, ``nearest``, ``bicubic`` or ``lanczos``.

    Returns:
        uint8 (height, width, 3), RGB.
    """
    if image.mode != "RGB":
        image = image.convert("RGB")
    if cut.canvases is not None:
        size = tuple(cut.canvases[row].tolist())
    left, upper, right, lower = cut.boxes[row].tolist()
    if (left, upper, right, lower) != (0, 0, *image.size):
        image = _cut(image, left, upper, (right - left, lower - upper))
    if cut.filters is not None:
        resample = geometry.FILTERS[cut.filters[row]]
    resized = size if cut.sizes is None else tuple(cut.sizes[row].tolist())
    if image.size != resized:
        image = image.resize(resized, Image.Resampling[resample.upper()])
    if resized != size or cut.windows is not None:
        x, y = (0, 0) if cut.windows is None else cut.windows[row].tolist()
        image = _cut(image, x, y, size)
    found: npt.NDArray[np.uint8] = np.array(image)
    return np.ascontiguousarray(found[:, ::-1]) if cut.flips[row] else found


def _cut(image: Image.Image, left: int, upper: int, size: tuple[int, int]) -> Image.Image:
    """Crop an RGB image, with zeros outside it.

    Pillow's ``crop`` refuses large results as decompression bombs, which only inputs can be.
    """
    found = Image.new("RGB", size)
    found.paste(image, (-left, -upper))
    return found


def rendered(cut: Geometry, row: int, image: npt.NDArray[np.uint8]) -> Geometry:
    """The geometry of one image that is left after `render`: none of it, all of its pixels."""
    one, (height, width) = slice(row, row + 1), image.shape[:2]
    boxes = np.array([[0, 0, width, height]], np.int32)
    keys = None if cut.keys is None else cut.keys[one]
    canvases = None if cut.canvases is None else cut.canvases[one]
    return Geometry(boxes, None, None, np.zeros(1, np.uint8), None, canvases, keys)


def call(transform: Transform, image: Any) -> Any:
    """Do one of `fastdata.transforms` to one PIL image, on torch's own path.

    Args:
        transform: What to do; its images need not come to one size.
        image: A PIL image.

    Returns:
        A tensor (3, height, width), uint8 or float; what `Views` make of them; or what
        the tail made of it.

    Raises:
        UsageError: not a PIL image, or transforms that cannot be composed.
    """
    if not isinstance(image, Image.Image):
        raise UsageError(
            f"{name_of(transform)} was given a {type(image).__name__}, not a PIL image.",
            "Put it before what makes tensors of images.",
        )
    views, tail, form = read(transform)
    if reason := misplaced(views, tail):
        raise UsageError(reason, "Change the order of the transforms.")
    results = [_view(view, image) for view in views]
    result = results[0] if form is None else in_form(results, form)
    for function in tail:
        result = function(result)
    return result


def _view(view: Reading, image: Image.Image) -> Any:
    import torch

    program = (*view.pixels, *view.erasures)
    seed = 0
    if any(pixels.is_random(step) for step in (*view.steps, *program)):
        seed = int(torch.randint(-(2**63), 2**63 - 1, (), device="cpu"))
    keys = np.array([seed], np.int64).view(np.uint64)
    cut, width, height = geometry.compose(view.steps, [image.width], [image.height], keys)
    if cut.too_small:
        raise UsageError(f"The image has {cut.too_small[0]}.", SMALL_HINT)
    size = int(np.asarray(width).flat[0]), int(np.asarray(height).flat[0])
    found: npt.NDArray[Any] = render(image, cut, 0, size, view.filter or "bilinear")
    output = view.output()
    if program:
        found = _augment(found, pixels.native_program(program), keys, output)
    result: Any = torch.from_numpy(found).permute(2, 0, 1).contiguous()
    if output.dtype != "uint8":
        if not program:
            result = result.to(torch.float32).div_(255)
            if output.mean is not None and output.std is not None:
                result = result.sub_(torch.tensor(output.mean, device="cpu").view(3, 1, 1))
                result = result.div_(torch.tensor(output.std, device="cpu").view(3, 1, 1))
        result = result.to(getattr(torch, output.dtype))
    for function in view.tail_calls():
        result = function(result)
    return result


def _augment(
    image: npt.NDArray[np.uint8],
    program: _native.PixelProgram,
    keys: npt.NDArray[np.uint64],
    output: Output,
) -> npt.NDArray[Any]:
    """A pixel program, done by the core to one image (height, width, 3): uint8, or float32."""
    height, width = image.shape[:2]
    try:
        *_, new_width, new_height = program.draw(int(keys[0]), width, height)
    except ValueError as error:
        raise UsageError(f"The image has {width} x {height} pixels: {error}.", SMALL_HINT) from None
    dtype = "uint8" if output.dtype == "uint8" else "float32"
    out: npt.NDArray[Any] = np.empty((1, new_height, new_width, 3), dtype)
    job = _native.Job(
        [image],
        out=out,
        dtype=dtype,
        mean=output.mean,
        std=output.std,
        program=program,
        keys=keys,
        canvases=np.array([[width, height]], np.int32),
    )
    job.run()
    if failures := job.failures():
        _, code, detail, _ = failures[0]
        raise UsageError(f"The image cannot be augmented: {detail} ({code}).", "Resize it before.")
    result: npt.NDArray[Any] = out[0]
    return result

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
from fastdata.transforms.geometry import Cuts

#: What to do about an image that is smaller than a random crop.
SMALL_HINT = "Resize before it, or give it pad_if_needed=True."


def render(image: Image.Image, cut: np.void) -> npt.NDArray[np.uint8]:
    """Crop, resize, cut and flip one image, padding with zeros what is outside it.

    Args:
        image: The source image; modes other than RGB are converted to it.
        cut: Its geometry, a row of what `fastdata.transforms.geometry.draw` returns.

    Returns:
        uint8 (height, width, 3), RGB, of the size of the cut's canvas.
    """
    if image.mode != "RGB":
        image = image.convert("RGB")
    left, upper, right, lower = cut["box"].tolist()
    if (left, upper, right, lower) != (0, 0, *image.size):
        image = _cut(image, left, upper, (right - left, lower - upper))
    resized, canvas = tuple(cut["size"].tolist()), tuple(cut["canvas"].tolist())
    if image.size != resized:
        resample = geometry.FILTERS[cut["filter"]]
        image = image.resize(resized, Image.Resampling[resample.upper()])
    x, y = cut["window"].tolist()
    if (x, y, *resized) != (0, 0, *canvas):
        image = _cut(image, x, y, canvas)
    found: npt.NDArray[np.uint8] = np.array(image)
    return np.ascontiguousarray(found[:, ::-1]) if cut["flip"] else found


def _cut(image: Image.Image, left: int, upper: int, size: tuple[int, int]) -> Image.Image:
    """Crop an RGB image, with zeros outside it.

    Pillow's ``crop`` refuses large results as decompression bombs, which only inputs can be.
    """
    found = Image.new("RGB", size)
    found.paste(image, (-left, -upper))
    return found


def rendered(cuts: Cuts) -> Cuts:
    """Return the geometry that remains after `render`: all pixels, unchanged."""
    left: Cuts = cuts.copy()
    left["size"] = cuts["canvas"]
    left["whole"], left["window"], left["flip"], left["needs_padding"] = 1, 0, 0, False
    return left


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
    cuts = geometry.draw(tuple(view.steps), [image.width], [image.height], keys)
    if small := geometry.too_small(view.steps, cuts):
        raise UsageError(f"The image has {small[0]}.", SMALL_HINT)
    found: npt.NDArray[Any] = render(image, cuts[0])
    output = view.output()
    if program:
        found = _augment(found, pixels.native_program(program), rendered(cuts), output)
    result: Any = torch.from_numpy(found).permute(2, 0, 1).contiguous()
    if output.dtype != "uint8":
        if not program:
            result = result.to(torch.float32).div_(255)
            if output.mean is not None and output.std is not None:
                result = result.sub_(torch.tensor(output.mean, device="cpu").view(-1, 1, 1))
                result = result.div_(torch.tensor(output.std, device="cpu").view(-1, 1, 1))
        result = result.to(getattr(torch, output.dtype))
    for function in view.tail_calls():
        result = function(result)
    return result


def _augment(
    image: npt.NDArray[np.uint8],
    program: _native.PixelProgram,
    cuts: Cuts,
    output: Output,
) -> npt.NDArray[Any]:
    """A pixel program, done by the core to one image (height, width, 3): uint8, or float32."""
    height, width = image.shape[:2]
    try:
        *_, new_width, new_height = program.draw(int(cuts["key"][0]), width, height)
    except ValueError as error:
        raise UsageError(f"The image has {width} x {height} pixels: {error}.", SMALL_HINT) from None
    dtype = "uint8" if output.dtype == "uint8" else "float32"
    out: npt.NDArray[Any] = np.empty((1, new_height, new_width, output.channels), dtype)
    job = _native.Job(
        [image],
        out=out,
        dtype=dtype,
        mean=output.mean,
        std=output.std,
        program=program,
        cuts=cuts,
    )
    job.run()
    if failures := job.failures():
        _, code, detail, _ = failures[0]
        raise UsageError(f"The image cannot be augmented: {detail} ({code}).", "Resize it before.")
    result: npt.NDArray[Any] = out[0]
    return result

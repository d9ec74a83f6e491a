"""Recipes: what the native core does of a transform pipeline, and what is left to call.

``compile_recipe`` reads a pipeline (ours, torchvision's, or both) once and makes a `Recipe` of it:
geometry, an output format, and a tail of callables that the core cannot do. Where that is
impossible it returns a `Refusal`, whose reason is for the user.

    recipe = compile_recipe(transform)
    geometry = recipe.draw(widths, heights, keys)       # boxes, sizes, windows, flips of a batch
    # ... the core decodes to recipe.output; recipe.tail is called for each sample

`Recipe.pillow` is the same geometry by Pillow: the reference, and the way for samples that need
padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata.errors import UsageError
from fastdata.transforms import geometry
from fastdata.transforms.descriptions import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Transform,
)
from fastdata.transforms.geometry import Geometry
from fastdata.transforms.program import Program, dimensions, name_of, read, tensor_image

__all__ = ["Geometry", "Output", "Recipe", "Refusal", "compile_recipe"]

_Pair: TypeAlias = tuple[int, int]

_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "nearest": Image.Resampling.NEAREST,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


#: What to do about an image that is smaller than a random crop.
MEND_SMALL = "Resize before it, or give it pad_if_needed=True."


class Output(NamedTuple):
    """The format of what comes before the tail.

    Attributes:
        dtype: ``uint8``, 0 to 255; or ``float32``, ``float16``, ``bfloat16``: then
            ``(value / 255 - mean) / std``.
        mean: Three values in units of 0 to 1; None: 0.
        std: Three values in units of 0 to 1; None: 1.
        channels_last: Whether a batch's pixels, rather than its planes, are contiguous.
        as_pil: The pipeline has not made tensors: the tail wants PIL images, and without a tail
            they are the result.
    """

    dtype: str
    mean: tuple[float, float, float] | None
    std: tuple[float, float, float] | None
    channels_last: bool
    as_pil: bool


class Refusal(NamedTuple):
    """Why a pipeline cannot be done natively.

    Attributes:
        reason: In words for the user: which transform, and why.
    """

    reason: str


@dataclass(frozen=True)
class Recipe:
    """A compiled pipeline, made by :func:`compile_recipe`.

    Attributes:
        size: (width, height) of every output.
        filter: ``bilinear``, ``nearest``, ``bicubic`` or ``lanczos``.
        output: The format of the output.
        tail: What is to be called for each sample, in order, after that.
        steps: The geometry, in the pipeline's order.
    """

    size: _Pair
    filter: str
    output: Output
    tail: tuple[Callable[[Any], Any], ...]
    steps: tuple[Transform, ...] = field(repr=False)

    def draw(
        self, widths: Any, heights: Any, keys: npt.NDArray[np.uint64], *, on_small: str = "raise"
    ) -> Geometry:
        """Draw and compose the geometry of a batch.

        Args:
            widths: Of the source images in pixels, ints, (N,).
            heights: Of the source images in pixels, ints, (N,).
            keys: uint64 (N,), a sample each: from which `fastdata.plan.draws` makes its numbers.
            on_small: "raise" for images smaller than a random crop that may not pad, or "mark"
                them in ``Geometry.too_small``.

        Returns:
            The geometry; the same for a sample whatever else is in the batch.

        Raises:
            UsageError: an image is smaller than a random crop that may not pad.
        """
        found = geometry.compose(self.steps, widths, heights, keys)[0]
        if found.too_small and on_small == "raise":
            raise _too_small(found)
        return found

    def pillow(
        self, image: Image.Image, box: Any, size: Any = None, window: Any = None, flip: Any = False
    ) -> npt.NDArray[np.uint8]:
        """One sample by Pillow, padding with zeros what is outside the image.

        Args:
            image: The source image; modes other than RGB are converted to it.
            box: A row of ``Geometry.boxes``.
            size: A row of ``Geometry.sizes``, or None.
            window: A row of ``Geometry.windows``, or None.
            flip: An entry of ``Geometry.flips``.

        Returns:
            uint8 (height, width, 3), RGB.
        """
        return _pillow(image, self.filter, self.size, box, size, window, flip)

    def describe(self) -> str:
        """The pipeline in one line of words."""
        words = [_describe(step) for step in self.steps]
        kind = "PIL images" if self.output.as_pil else self.output.dtype
        words.append(kind + (" normalised" if self.output.mean is not None else ""))
        line = ", ".join(words)
        calls = [call for call in self.tail if call is not tensor_image()]
        if calls:
            line += "; then, one sample at a time, " + ", ".join(name_of(call) for call in calls)
        return line

    def __str__(self) -> str:
        return self.describe()


def compile_recipe(transform: Any) -> Recipe | Refusal:
    """Compile a pipeline.

    Args:
        transform: One of `fastdata.transforms`; a torchvision transform, v1 or v2; a Compose of
            either, a ``torch.nn.Sequential``, a list or a tuple of them and of any callables; or
            None.

    Returns:
        The recipe, or why there is none: the images do not come to one size, or a transform
        that the core does not know comes before they do.
    """
    if transform is None:
        return Refusal(
            "There is no transform, and images of different sizes cannot make a batch: give one "
            "that brings them to one size, such as fastdata.transforms.RandomResizedCrop(224)."
        )
    program = read(transform)
    if program.fixed is None or program.misplaced is not None:
        return Refusal(program.refusal())
    return Recipe(
        program.fixed,
        program.filter or "bilinear",
        _output(program),
        program.tail_calls(),
        tuple(program.steps),
    )


def call(transform: Transform, image: Any) -> Any:
    """Do one of `fastdata.transforms` to one PIL image, on torch's own path.

    Args:
        transform: What to do; its images need not come to one size.
        image: A PIL image.

    Returns:
        A tensor (3, height, width), uint8 or float; or what the tail made of it.

    Raises:
        UsageError: not a PIL image, or transforms that cannot be composed.
    """
    import torch

    if not isinstance(image, Image.Image):
        raise UsageError(
            f"{name_of(transform)} was given a {type(image).__name__}, not a PIL image.",
            "Put it before what makes tensors of images.",
        )
    program = read(transform)
    if program.misplaced is not None:
        raise UsageError(program.refusal(), "Change the order of the transforms.")
    seed = 0
    if any(geometry.is_random(step) for step in program.steps):
        seed = int(torch.randint(-(2**63), 2**63 - 1, ()))
    keys = np.array([seed], np.int64).view(np.uint64)
    cut, width, height = geometry.compose(program.steps, [image.width], [image.height], keys)
    if cut.too_small:
        raise _too_small(cut)
    pixels = _pillow(
        image,
        program.filter or "bilinear",
        (int(np.asarray(width).flat[0]), int(np.asarray(height).flat[0])),
        cut.boxes[0],
        None if cut.sizes is None else cut.sizes[0],
        None if cut.windows is None else cut.windows[0],
        cut.flips[0],
    )
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    output = _output(program)
    if output.dtype != "uint8":
        tensor = tensor.to(torch.float32).div_(255)
        if output.mean is not None and output.std is not None:
            tensor = tensor.sub_(torch.tensor(output.mean).view(3, 1, 1))
            tensor = tensor.div_(torch.tensor(output.std).view(3, 1, 1))
        tensor = tensor.to(getattr(torch, output.dtype))
    result: Any = tensor
    for function in program.tail_calls():
        result = function(result)
    return result


def _too_small(found: Geometry) -> UsageError:
    row, words = min(found.too_small.items())
    return UsageError(f"Sample {row} of the batch has {words}.", MEND_SMALL)


def _output(program: Program) -> Output:
    as_pil = program.kind == "pil"
    return Output(program.dtype, program.mean, program.std, program.channels_last, as_pil)


def _pillow(
    image: Image.Image, resample: str, output: _Pair, box: Any, size: Any, window: Any, flip: Any
) -> npt.NDArray[np.uint8]:
    if image.mode != "RGB":
        image = image.convert("RGB")
    left, upper, right, lower = (int(edge) for edge in box)
    if (left, upper, right, lower) != (0, 0, *image.size):
        image = image.crop((left, upper, right, lower))
    width, height = output if size is None else (int(side) for side in size)
    if image.size != (width, height):
        image = image.resize((width, height), _FILTERS[resample])
    if (width, height) != output or window is not None:
        x, y = (0, 0) if window is None else (int(side) for side in window)
        image = image.crop((x, y, x + output[0], y + output[1]))
    pixels: npt.NDArray[np.uint8] = np.array(image)
    return np.ascontiguousarray(pixels[:, ::-1]) if flip else pixels


def _describe(step: Transform) -> str:
    if isinstance(step, RandomResizedCrop):
        words = f"random resized crop to {dimensions(step)} ({step.interpolation})"
        if step.scale != (0.08, 1.0):
            words += f" of {step.scale[0]:g} to {step.scale[1]:g} of the area"
        return words
    if isinstance(step, Resize):
        side = "" if isinstance(step.size, tuple) else "shorter side "
        most = "" if step.max_size is None else f", longer side at most {step.max_size}"
        return f"resize to {side}{dimensions(step)} ({step.interpolation}){most}"
    if isinstance(step, CenterCrop):
        return f"centre crop of {dimensions(step)}"
    if isinstance(step, RandomCrop):
        padded = ", padded" if step.pad_if_needed or any(step.padding) else ""  # type: ignore[arg-type]
        return f"random crop of {dimensions(step)}{padded}"
    if isinstance(step, RandomHorizontalFlip):
        return f"flip with p {step.p:g}"
    raise TypeError(f"{step!r} is not geometry")

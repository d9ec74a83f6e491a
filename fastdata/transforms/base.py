"""Base of the public transforms: each may be called with one PIL image.

The core does that, too, so a call is no oracle for it: tests compare with the original libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native
from fastdata.errors import UsageError
from fastdata.text import human_size
from fastdata.transforms.checks import MaskFill
from fastdata.transforms.forms import Form, in_form
from fastdata.transforms.geometry import SMALL_HINT, too_small
from fastdata.transforms.identity import is_ours
from fastdata.transforms.joint import Joint
from fastdata.transforms.outcomes import Declined, Libraries
from fastdata.transforms.reading import (
    Fills,
    Fixed,
    Reading,
    Step,
    calls_of,
    flat,
    title_of,
    views_of,
)
from fastdata.transforms.tree import Builder, Values, native_program


class Transform(Step):
    """Base of all transforms here. The core does not know classes that scripts derive from them."""

    def __call__(self, image: Image.Image, *targets: Any) -> Any:
        """Transform one image.

        Args:
            image: A PIL image; modes other than RGB are converted to it.
            targets: None; a joint transform runs in a `fastdata.DataLoader` or
                `fastdata.ImageDataset` alone.

        Returns:
            A contiguous tensor, (3, height, width) or, if it is grey, (1, height, width): uint8
            from 0 to 255, or floats if normalised.

        Raises:
            UsageError: It is not a PIL image, or too small for a crop that may not pad; or the
                transforms cannot be composed; or there are targets.
        """
        if targets:
            raise UsageError(
                f"{self.title} was called with an image and its target, which only the core moves",
                "Load the samples with a fastdata.DataLoader or a fastdata.ImageDataset.",
            )
        return call(self, image, *read(self, None, Libraries()))


class ByChance(Transform):
    """Base of augmentations that are done with a probability."""

    #: The core's operation, if it is one without values.
    operation: ClassVar[str] = ""
    p: Any

    def emit(self, tree: Builder) -> None:
        with tree.maybe(self.p):
            self.emit_always(tree)

    def emit_always(self, tree: Builder) -> None:
        """Build the nodes for an image that is augmented."""
        tree.add(self.operation)


_MASK_FILL = 'give fill={torchvision.tv_tensors.Mask: 0, "others": …}, or mask_fill='


@dataclass(frozen=True)
class Filling(Transform):
    """Transforms that fill pixels outside the image.

    Attributes:
        mask_fill: Value of such pixels of masks; None: as ``fill``.
    """

    mask_fill: MaskFill = field(default=None, kw_only=True)

    @property
    def fills(self) -> Fills:
        """Values of such pixels: of images, R, G, B, and of masks."""
        fill = getattr(self, "fill", (0, 0, 0))
        return fill, fill[0] if self.mask_fill is None else self.mask_fill

    def declines(self, reading: Reading) -> Declined | None:
        if reading.masks and self.mask_fill is None and self.colours:
            return Declined("its fill is a colour, and masks are numbers", _MASK_FILL)
        if self.fills[1] > 255 and any(mask.dtype for mask in reading.masks):
            return Declined("its fill may fit into masks only once they are converted")
        return super().declines(reading)


class Sized(Transform):
    """Transforms that have a size: (height, width), or an int for the shorter side."""

    size: Any

    @property
    def title(self) -> str:
        return self.words

    @property
    def target(self) -> tuple[int, int]:
        """(width, height)."""
        return self.size[1], self.size[0]

    @property
    def sides(self) -> dict[str, Values]:
        """The size as parameters of a step."""
        width, height = self.target
        return {"width": width, "height": height}

    def size_after(self, size: Fixed) -> Fixed:
        return self.target


def read(
    transform: Any, size: Fixed, libraries: Libraries, joint: Joint | None = None
) -> tuple[list[Reading], list[Callable[[Any], Any]], Form | None]:
    """Read a pipeline as far as its steps can be composed.

    Args:
        transform: The pipeline.
        size: (width, height) of every image; None: they may differ.
        libraries: Transforms of other libraries.
        joint: As of `Reading`.

    Returns:
        A reading of each view; what comes after `Views` and is called with what they make; and
        their form, or None if the pipeline has no views.
    """
    items = list(flat(transform, True, libraries))
    own = isinstance(transform, Step)
    begun = Reading(libraries, joint, "own" if own else "pil", size)
    at = next((n for n, (one, _) in enumerate(items) if views_of(one, libraries) is not None), None)
    makes = None if at is None or joint is not None else views_of(items[at][0], libraries)
    if at is None or makes is None:
        return [begun.after(items)], [], None
    before = begun.after(items[:at])
    shared = (*before.steps, *before.pixels, *before.erasures)
    alone = makes is transform and is_ours(transform)
    views = []
    for view in makes.transforms:
        kind = "own" if (isinstance(view, Step) if alone else own) else "pil"
        items_of_view = [*items[:at], *flat(view, True, libraries)]
        views.append(replace(begun, kind=kind, shared=shared).after(items_of_view))
    return views, list(calls_of(items[at + 1 :])), makes.form


def misplaced(views: Sequence[Reading], tail: Sequence[Any]) -> str:
    """Say which step of fastdata is in a wrong place, and why; "" if none is."""
    for view in views:
        step = view.misplaced
        if step is not None and step is view.tail[0]:
            return f"{step.title} cannot be done here: {view.why}."
        if step is not None:
            unknown = f"{title_of(view.tail[0])}, which the core cannot do: {view.why}"
            return f"{step.title} comes after {unknown}. Put it before."
        if random := next((step for step in view.shared if step.is_random), None):
            return f"{random.title} comes before Views. Put it into each of them."
    late = next((call for call in tail if isinstance(call, Step)), None)
    return "" if late is None else f"{late.title} comes after Views. Put it into each of them."


def call(
    transform: Step,
    image: Any,
    views: Sequence[Reading],
    tail: Sequence[Callable[[Any], Any]],
    form: Form | None,
) -> Any:
    """Apply a pipeline to one PIL image, as `read` has read it.

    Raises:
        UsageError: It is not a PIL image, or the transforms cannot be composed.
    """
    if not is_ours(transform):
        raise UsageError(
            f"{transform.title} derives from a class of fastdata, and cannot call that class's "
            "__call__",
            "Make the transform that it derives from an attribute, and call that.",
        )
    if not isinstance(image, Image.Image):
        raise UsageError(
            f"{transform.title} was called with a {type(image).__name__}, not a PIL image.",
            "Put it before what makes tensors of images, such as another transform of fastdata: "
            "fastdata.transforms.Compose takes several, torchvision's does not.",
        )
    if reason := misplaced(views, tail):
        raise UsageError(reason, "Change the order of the transforms.")
    results = [_view(view, image) for view in views]
    result = results[0] if form is None else in_form(results, form)
    for function in tail:
        result = function(result)
    return result


def _view(view: Reading, image: Image.Image) -> Any:
    import torch

    steps, pixels = view.steps, (*view.pixels, *view.erasures)
    seed = 0
    if any(step.is_random for step in (*steps, *pixels)):
        seed = int(torch.randint(-(2**63), 2**63 - 1, (), device="cpu"))
    program, output = native_program(pixels, leading=steps), view.output()
    cuts = program.cuts([image.width], [image.height], np.array([seed]).view(np.uint64))
    if small := too_small(steps, cuts):
        raise UsageError(f"The image has {small[0]}.", SMALL_HINT)
    width, height = np.maximum(program.sizes(cuts), 1)[0].tolist()
    dtype = "uint8" if output.dtype == "uint8" else "float32"
    out: npt.NDArray[Any] = np.empty((1, height, width, output.channels), dtype)
    rendering = _native.Rendering(
        out,
        dtype=dtype,
        mean=output.mean,
        std=output.std,
        cuts=cuts,
        program=program,
        fill=view.fills[0] if view.fills else (0, 0, 0),
    )
    job = _native.DecodeJob([np.asarray(image.convert("RGB"))], [rendering])
    job.run()
    if failures := job.failures():
        _, code, detail, _ = failures[0]
        size = human_size(image.width, image.height)
        raise UsageError(f"The image is {size}: {detail} ({code}).", SMALL_HINT)
    result: Any = torch.from_numpy(out[0]).permute(2, 0, 1).contiguous()
    result = result.to(getattr(torch, output.dtype))
    for function in view.tail_calls():
        result = function(result)
    return result

"""Steps for transformers' image processors, for pictures of one size.

A processor returns a dict of batches; here it means the image in it, ``pixel_values[0]``; of a
processor of videos, for their frame, ``pixel_values[0, 0]``. Annotations are not taken.
transformers (version 5.23) is never imported here. Known are all processors without methods of
their own, whose attributes say everything, and by their exact type those of :data:`_MODELS`.

Processors of torchvision's backend resize tensors of bytes. Bilinear ones are within a level of
Pillow's; bicubic ones are too but where values leave 0 to 255 on the way, as at hard edges: there
the pixels here are Pillow's, which those of the ``pil`` backend and the models' authors have.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any

from fastdata.transforms.checks import PILLOW_FILTERS
from fastdata.transforms.crops import FlooredCenterCrop
from fastdata.transforms.identity import is_code, name_in, overridden
from fastdata.transforms.nodes import operation
from fastdata.transforms.outcomes import Conversion, Declined, Translation
from fastdata.transforms.output import Normalize
from fastdata.transforms.reading import Step
from fastdata.transforms.resizes import Resize

_BACKENDS = "transformers.image_processing_backends"
# Methods that a processor may have of its own: their arguments become attributes.
_FREE = frozenset({"__init__", "valid_kwargs"})


def translate(transform: Any, kind: str, dtype: str) -> Translation | None:
    """Translate one of its image processors, as `Libraries.translate`; None for anything else."""
    own = _own_methods(transform)
    if own is None:
        return None
    known = next((one for one in type(transform).__mro__ if is_code(one.__module__)), None)
    if known is not None and (reason := overridden(transform, known)):
        return Declined(reason)
    model = next((name for name in _MODELS if name_in(transform, *_modules(name))), "")
    if name_in(transform, *_modules("siglip2")):
        return Declined(
            "it makes sequences of patches, of another grid for each image",
            "for pictures of one size, use SiglipImageProcessor with its numbers",
        )
    if own and not model:
        return Declined(f"its {', '.join(sorted(own))} is its own", _WRITE)
    if dtype != "uint8" or kind == "array":
        return Declined("it has floats or arrays here")
    return _steps(transform, model)


_WRITE = "use Resize, CenterCrop and Normalize with its numbers"


def _own_methods(transform: Any) -> set[str] | None:
    """Return the methods that a processor overrides; None for anything else."""
    module = sys.modules.get(_BACKENDS)
    for name in ("TorchvisionBackend", "PilBackend"):
        backend = getattr(module, name, None)
        if isinstance(backend, type) and isinstance(transform, backend):
            kinds = type(transform).__mro__
            having = (*map(vars, kinds[: kinds.index(backend)]), vars(transform))
            named = {key for each in having for key in each} - _FREE
            return {key for key in named if callable(getattr(backend, key, None))}
    return None


def _modules(model: str) -> tuple[str, str]:
    module = f"transformers.models.{model}.image_processing_"
    return f"{module}{model}", f"{module}pil_{model}"


def _steps(processor: Any, model: str) -> Translation:
    # One image is as large as the largest.
    if processor.do_pad and (model not in _OF_OBJECTS or processor.pad_size is not None):
        return Declined("it pads images")
    steps: list[Step | Conversion] = []
    if processor.do_resize:
        size = processor.size
        if any((size.longest_edge, size.max_height, size.max_width)):
            return Declined("it bounds the longer side")
        filtered = PILLOW_FILTERS.get(int(processor.resample), "")
        if not filtered:
            return Declined(f"its filter, resample={processor.resample!r}, is not known")
        if filtered == "nearest" and processor.backend == "torchvision":
            return Declined(
                "'nearest' takes other pixels of tensors than Pillow", "make it with backend='pil'"
            )
        if model == "dinov3_vit" and filtered in ("bicubic", "lanczos"):
            return Declined(f"it resizes floats, by {filtered!r} beyond 0 and 1", _WRITE)
        resized = _MODELS.get(model) or _plain
        target, cropped = resized(processor, size.shortest_edge or (size.height, size.width))
        steps.append(Resize(target, filtered))
        steps += [FlooredCenterCrop(cropped)] if cropped else []
    if processor.do_center_crop and model != "segformer":
        crop = processor.crop_size
        steps.append(FlooredCenterCrop((crop.height, crop.width)))
    if getattr(processor, "do_flip_channel_order", False):
        steps.append(operation("permute", red=2, green=1, blue=0))
    return (*steps, *_floats(processor, model))


def _floats(processor: Any, model: str) -> tuple[Step | Conversion, ...]:
    """``(value * factor - offset - mean) / std`` of bytes, in units of 0 to 1."""
    normalises = processor.do_normalize and model != "mobilevit"
    again = getattr(processor, "include_top", False)
    if not (processor.do_rescale or normalises or again):
        return (Conversion("tensor"),)
    whole = 255 * processor.rescale_factor if processor.do_rescale else 255.0
    whole = 1.0 if math.isclose(whole, 1.0) else whole
    mean = tuple(processor.image_mean) if normalises else (0.0,) * 3
    std = tuple(processor.image_std) if normalises else (1.0,) * 3
    if processor.do_rescale and getattr(processor, "rescale_offset", False):
        mean = tuple(value + 1 for value in mean)
    if again:
        std = tuple(map(operator.mul, std, processor.image_std))
    floats = Conversion("tensor", "float32")
    if (mean, std, whole) == ((0.0,) * 3, (1.0,) * 3, 1.0):
        return (floats,)
    of = (tuple(value / whole for value in values) for values in (mean, std))
    return floats, Normalize(*of)  # type: ignore[arg-type]


_Size = Any  # of the shorter side, or (height, width)


def _plain(processor: Any, size: _Size) -> tuple[_Size, int]:
    return size, 0


def _convnext(processor: Any, size: _Size) -> tuple[_Size, int]:
    """Resize to cover a crop; from 384 pixels on, squash all of the image instead."""
    if isinstance(size, tuple):
        raise ValueError("its size has no shortest_edge")
    return ((size, size), 0) if size >= 384 else (int(size / processor.crop_pct), size)


def _exact(processor: Any, size: _Size) -> tuple[_Size, int]:
    if not isinstance(size, tuple):
        raise ValueError("its size has no height and width")
    return size, 0


#: Models whose processors pad images of a batch to the largest, and take annotations.
_OF_OBJECTS = ("detr", "rt_detr")

#: Processors that have methods of their own, by model: the size that they resize to, and the size
#: of a crop after it, or 0. Other methods work on maps of segments, or are in `_steps`.
_MODELS: dict[str, Callable[[Any, _Size], tuple[_Size, int]]] = {
    "beit": _plain,
    "convnext": _convnext,
    "detr": _exact,
    "dinov3_vit": _plain,
    "efficientnet": _plain,
    "mobilenet_v2": _plain,
    "mobilevit": _plain,
    "rt_detr": _exact,
    "segformer": _plain,
    "videomae": _plain,
}

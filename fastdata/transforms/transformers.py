"""transformers' image processors of ViT, CLIP, SigLIP and BiT (DINOv2's), in our terms.

They are known by their exact type (version 5.23), and transformers is never imported here. A
processor returns a dict of batches; here it stands for the image in it, ``pixel_values[0]``.

Processors of torchvision's backend resize tensors of bytes. Bilinear ones are within a level of
Pillow's; bicubic ones are too but where values leave 0 to 255 on the way, as at hard edges: there
the pixels here are Pillow's, which those of the ``pil`` backend and the models' authors have.
"""

from __future__ import annotations

import math
from typing import Any

from fastdata.errors import UsageError
from fastdata.transforms.conversion import Conversion, Found, name_in
from fastdata.transforms.descriptions import FlooredCenterCrop, Normalize, Resize, Transform

_MODELS = ("bit", "clip", "siglip", "vit")
_MODULES = tuple(
    f"transformers.models.{model}.image_processing_{backend}{model}"
    for model in _MODELS
    for backend in ("", "pil_")
)
_DINOV3 = "transformers.models.dinov3_vit.image_processing_dinov3_vit"
_FILTERS = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def translate(transform: Any, kind: str, dtype: str) -> Found | None:
    """One of transformers' image processors; None for anything else.

    As `fastdata.transforms.libraries.translate`.
    """
    if name_in(transform, _DINOV3):
        return "it resizes floats; use Resize, CenterCrop and Normalize with its numbers"
    if not name_in(transform, *_MODULES):
        return None
    if dtype != "uint8" or kind == "array":
        return "it has floats or arrays here"
    try:
        return _steps(transform)
    except (AttributeError, KeyError, TypeError, UsageError, ValueError) as error:
        return f"its arguments are not known: {getattr(error, 'what', error)}"


def _steps(processor: Any) -> Found:
    if processor.do_pad:
        return "it pads images"
    steps: list[Transform | Conversion] = []
    if processor.do_resize:
        size = processor.size
        if any((size.longest_edge, size.max_height, size.max_width)):
            return "it bounds the longer side"
        target = size.shortest_edge or (size.height, size.width)
        steps.append(Resize(target, _FILTERS[int(processor.resample)]))
    if processor.do_center_crop:
        crop = processor.crop_size
        steps.append(FlooredCenterCrop((crop.height, crop.width)))
    if not processor.do_rescale:
        return "it normalises bytes" if processor.do_normalize else (*steps, Conversion("tensor"))
    if not math.isclose(processor.rescale_factor, 1 / 255):
        return f"it multiplies bytes by {processor.rescale_factor}, which is not 1 / 255"
    steps.append(Conversion("tensor", "float32"))
    if processor.do_normalize:
        steps.append(Normalize(tuple(processor.image_mean), tuple(processor.image_std)))
    return tuple(steps)

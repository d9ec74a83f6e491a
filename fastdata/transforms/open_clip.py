"""open_clip's transforms (version 3), as its ``image_transform`` makes them, in our terms.

They are known by their exact type, functions by what they are; open_clip is never imported here.
With ``use_timm`` they are timm's.
"""

from __future__ import annotations

import sys
from typing import Any

from fastdata.errors import UsageError
from fastdata.transforms.colours import ColorJitter, Grayscale
from fastdata.transforms.crops import CenterCrop
from fastdata.transforms.nodes import Apply
from fastdata.transforms.originals import changed, name_in
from fastdata.transforms.outcomes import (
    ON_PIL_ONLY,
    Conversion,
    Declined,
    Found,
    to_tensor,
)
from fastdata.transforms.resizes import ResizeKeepRatio

_MODULE = "open_clip.transform"


def translate(transform: Any, kind: str, dtype: str) -> Found | None:
    """One of open_clip's transforms; None for anything else.

    As `Libraries.translate` of `fastdata.transforms.reading`.
    """
    module = sys.modules.get(_MODULE)
    if module is not None and transform is module._convert_to_rgb:
        reason = changed(module, "_convert_to_rgb")
        return Declined(reason) if reason else Conversion()
    name = name_in(transform, _MODULE)
    try:
        return _translate(transform, name, kind, dtype)
    except (AttributeError, TypeError, UsageError, ValueError) as error:
        return Declined(f"its arguments are not known: {getattr(error, 'what', error)}")


def _translate(transform: Any, name: str, kind: str, dtype: str) -> Found | None:
    if name == "MaybeConvertMode":
        rgb = transform.mode == "RGB"
        return Conversion() if rgb else Declined("it makes other modes than RGB")
    if name == "MaybeToTensor":
        return to_tensor(kind)
    if name not in ("CenterCropOrPad", "ResizeKeepRatio", "color_jitter", "gray_scale"):
        return None
    if kind not in ("pil", "own"):
        return ON_PIL_ONLY
    if name == "CenterCropOrPad":
        return CenterCrop(transform.size, fill=transform.fill)
    if name == "color_jitter":
        held = transform.transf
        jitter = ColorJitter(held.brightness, held.contrast, held.saturation, held.hue)
        return Apply((jitter,), transform.p)
    if name == "gray_scale":
        return Apply((Grayscale(3),), transform.p)
    if transform.random_scale_prob or transform.random_aspect_prob:
        return Declined("its random ratios are not timm's")
    return ResizeKeepRatio(transform.size, transform.longest, transform.interpolation)

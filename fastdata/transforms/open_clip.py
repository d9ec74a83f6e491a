"""Steps for open_clip's transforms (version 3), by their exact type; functions by identity.

open_clip is never imported here. With ``use_timm``, its transforms are timm's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fastdata.transforms.colours import ColorJitter, Grayscale
from fastdata.transforms.crops import CenterCrop
from fastdata.transforms.identity import changed, name_in
from fastdata.transforms.nodes import Apply
from fastdata.transforms.outcomes import Conversion, Declined, Translation, on_pil, to_tensor
from fastdata.transforms.resizes import ResizeKeepRatio

_MODULE = "open_clip.transform"


def translate(transform: Any, kind: str, dtype: str) -> Translation | None:
    """Translate one of open_clip's, as `Libraries.translate`; None for anything else."""
    module = sys.modules.get(_MODULE)
    if transform is not None and transform is getattr(module, "_convert_to_rgb", None):
        reason = changed(sys.modules[_MODULE])
        return Declined(reason) if reason else Conversion()
    translator = _TRANSLATORS.get(name_in(transform, _MODULE))
    return translator(transform, kind, dtype) if translator else None


def _mode(transform: Any, kind: str, dtype: str) -> Translation:
    rgb = transform.mode == "RGB"
    return Conversion() if rgb else Declined("it makes other modes than RGB")


def _keep_ratio(transform: Any) -> Translation:
    if transform.random_scale_prob or transform.random_aspect_prob:
        return Declined("its random ratios are not timm's")
    return ResizeKeepRatio(transform.size, transform.longest, transform.interpolation)


def _jitter(transform: Any) -> Translation:
    held = transform.transf
    jitter = ColorJitter(held.brightness, held.contrast, held.saturation, held.hue)
    return Apply((jitter,), transform.p)


_TRANSLATORS: dict[str, Callable[[Any, str, str], Translation]] = {
    "CenterCropOrPad": on_pil(lambda one: CenterCrop(one.size, fill=one.fill)),
    "MaybeConvertMode": _mode,
    "MaybeToTensor": to_tensor,
    "ResizeKeepRatio": on_pil(_keep_ratio),
    "color_jitter": on_pil(_jitter),
    "gray_scale": on_pil(lambda one: Apply((Grayscale(3),), one.p)),
}

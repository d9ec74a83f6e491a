"""Steps for transforms of open_clip (version 3), lightly (1.6), dinov2 and albumentations.

They are known by their exact type, functions by identity. None of these libraries is imported here.
With ``use_timm``, open_clip's transforms are timm's. dinov2's ``GaussianBlur`` is torchvision's
RandomApply with another constructor, and lightly's classes of several views are traced as users'.
lightly's blur and solarisation call Pillow, and pixels are Pillow's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fastdata.transforms.colours import ColorJitter, Grayscale, RandomSolarize
from fastdata.transforms.crops import CenterCrop
from fastdata.transforms.nodes import Apply, Operation, Random
from fastdata.transforms.originals import changed, name_in
from fastdata.transforms.outcomes import Conversion, Declined, Found, on_pil, to_tensor
from fastdata.transforms.resizes import ResizeKeepRatio
from fastdata.transforms.symbols import package

_OPEN_CLIP = "open_clip.transform"


def translate(transform: Any, kind: str, dtype: str) -> Found | None:
    """Translate one of their transforms, as `Libraries.translate`; None for anything else."""
    module = sys.modules.get(_OPEN_CLIP)
    if module is not None and transform is module._convert_to_rgb:
        reason = changed(module, "_convert_to_rgb")
        return Declined(reason) if reason else Conversion()
    if package(type(transform)) == "albumentations":
        return Declined(
            "it takes arrays by name, and a dataset hands over an image",
            "call it in a function, as lambda image: transform(image=numpy.array(image))['image']",
        )
    for name_of_module, translators in _TRANSLATORS.items():
        if translator := translators.get(name_in(transform, name_of_module)):
            return translator(transform, kind, dtype)
    return None


def _mode(transform: Any, kind: str, dtype: str) -> Found:
    rgb = transform.mode == "RGB"
    return Conversion() if rgb else Declined("it makes other modes than RGB")


def _keep_ratio(transform: Any) -> Found:
    if transform.random_scale_prob or transform.random_aspect_prob:
        return Declined("its random ratios are not timm's")
    return ResizeKeepRatio(transform.size, transform.longest, transform.interpolation)


def _jitter(transform: Any) -> Found:
    held = transform.transf
    jitter = ColorJitter(held.brightness, held.contrast, held.saturation, held.hue)
    return Apply((jitter,), transform.p)


def _blur(transform: Any) -> Found:
    least, greatest = transform.sigmas
    radius = Random("uniform_double", float(least), float(greatest))
    return Apply((Operation("box_blur", (radius,)),), transform.prob)


def _rotation(transform: Any) -> Found:
    # Nearest, of the same size, about the centre, black around it.
    rotation = Operation("rotate", (float(transform.angle), *(0,) * 9))
    return Apply((rotation,), transform.prob)


def _by_chance(make: Callable[[Any], Found]) -> Callable[[Any, str, str], Found]:
    """Return a translator of lightly's transforms; with probability 0, they do nothing."""
    on_images = on_pil(make)

    def translator(transform: Any, kind: str, dtype: str) -> Found:
        return Conversion() if transform.prob <= 0 else on_images(transform, kind, dtype)

    return translator


_TRANSLATORS: dict[str, dict[str, Callable[[Any, str, str], Found]]] = {
    _OPEN_CLIP: {
        "CenterCropOrPad": on_pil(lambda one: CenterCrop(one.size, fill=one.fill)),
        "MaybeConvertMode": _mode,
        "MaybeToTensor": to_tensor,
        "ResizeKeepRatio": on_pil(_keep_ratio),
        "color_jitter": on_pil(_jitter),
        "gray_scale": on_pil(lambda one: Apply((Grayscale(3),), one.p)),
    },
    "dinov2.data.transforms": {"MaybeToTensor": to_tensor},
    "lightly.transforms": {
        "GaussianBlur": _by_chance(_blur),
        "RandomRotate": _by_chance(_rotation),
        "RandomSolarization": _by_chance(lambda one: RandomSolarize(one.threshold, one.prob)),
    },
}

"""torchvision's augmentations, v1 and v2, in the terms of `fastdata.transforms`.

The second half of `fastdata.transforms.torchvision`, by the same rules. Pixels are torchvision's on
PIL images; or, where it is given tensors of bytes, those of its other arithmetic there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastdata.transforms.augmentations import (
    WARPS,
    AugMix,
    AutoAugment,
    ColorJitter,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    Pad,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomPerspective,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomResize,
    RandomRotation,
    RandomShortestSize,
    RandomSolarize,
    ScaleJitter,
    TrivialAugmentWide,
)
from fastdata.transforms.conversion import kind_of
from fastdata.transforms.descriptions import RandomVerticalFlip, Transform
from fastdata.transforms.pixels import OnTensors

#: Those that torchvision does otherwise to tensors of bytes than to PIL images. On tensors it
#: blurs, inverts, equalises, posterises and pads to the same values.
_OTHERWISE_ON_TENSORS = frozenset(
    {
        "AutoAugment",
        "ColorJitter",
        "Grayscale",
        "RandAugment",
        "RandomAdjustSharpness",
        "RandomAffine",
        "RandomAutocontrast",
        "RandomGrayscale",
        "RandomPerspective",
        "RandomPhotometricDistort",
        "RandomRotation",
        "RandomSolarize",
        "TrivialAugmentWide",
    }
)

#: Those that may stand behind a conversion to floats, and are then done to bytes before it.
_ON_FLOATS = frozenset(
    {
        "ColorJitter",
        "GaussianBlur",
        "Grayscale",
        "RandomAffine",
        "RandomGrayscale",
        "RandomInvert",
        "RandomPerspective",
        "RandomRotation",
    }
)

#: Resizes: those of tensors are Pillow's within a level if they are bilinear and antialias.
_RESIZES = frozenset({"RandomResize", "RandomShortestSize", "ScaleJitter"})

_BOXES = "it is for boxes and key points, which images of a class do not have"
_BATCHES = "it mixes the images of a batch: give it to the loader as batch_transform"

#: Why the core leaves others to torchvision.
DECLINED = {
    "ClampBoundingBoxes": _BOXES,
    "ClampKeyPoints": _BOXES,
    "ConvertBoundingBoxFormat": _BOXES,
    "CutMix": _BATCHES,
    "MixUp": _BATCHES,
    "RandomIoUCrop": _BOXES,
    "SanitizeBoundingBoxes": _BOXES,
    "SanitizeKeyPoints": _BOXES,
    "SetClampingMode": _BOXES,
    "Lambda": "it calls a function of the user's",
    "UniformTemporalSubsample": "it is for videos",
    "ElasticTransform": "its displacements are torch's own draws, blurred by torch",
    "JPEG": "the core decodes JPEGs and does not encode them",
    "RandomZoomOut": "it makes images of different sizes",
    "LinearTransformation": "it multiplies floats by a matrix",
}


def interpolation_name(transform: Any) -> Any:
    """The name of an interpolation: torchvision's own, or that of Pillow's number for it."""
    mode: Any = transform.interpolation
    if isinstance(mode, int):
        return {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}.get(mode, str(mode))
    return getattr(mode, "value", mode)


def warp(transform: Any) -> str:
    """The name of an interpolation of a warp, or "" if the core does not have it."""
    mode = resize_filter(transform)
    return mode if mode in WARPS else ""


def resize_filter(transform: Any) -> Any:
    """The name of an interpolation, where both of torchvision's nearest ones are Pillow's."""
    mode = interpolation_name(transform)
    return "nearest" if mode == "nearest-exact" else mode


def _by_p(make: Callable[..., Transform], *names: str) -> Callable[[Any, int], Transform | str]:
    """A transform that takes p and attributes of the same names."""

    def translate(transform: Any, version: int) -> Transform:
        return make(*(getattr(transform, name) for name in names), p=transform.p)

    return translate


def _filled(
    make: Callable[..., Transform], *names: str, versioned: bool = False
) -> Callable[[Any, int], Transform | str]:
    """A transform that warps: with a fill, an interpolation, and attributes of the same names."""

    def translate(transform: Any, version: int) -> Transform | str:
        interpolation = warp(transform)
        if not interpolation:
            return f"the interpolation {transform.interpolation!r} is not known"
        if isinstance(transform.fill, dict):
            return "a dict of fills is not known"
        more: dict[str, Any] = {name: getattr(transform, name) for name in names}
        if versioned:
            more["version"] = version
        return make(interpolation=interpolation, fill=transform.fill, **more)

    return translate


def _jitter(transform: Any, version: int) -> Transform | str:
    values = (transform.brightness, transform.contrast, transform.saturation, transform.hue)
    return ColorJitter(*(None if value is None else tuple(value) for value in values))


def _distort(transform: Any, version: int) -> Transform | str:
    names = ("brightness", "contrast", "saturation", "hue", "p")
    return RandomPhotometricDistort(**{name: getattr(transform, name) for name in names})


def _grayscale(transform: Any, version: int) -> Transform | str:
    return Grayscale(transform.num_output_channels)


def _permutation(transform: Any, version: int) -> Transform | str:
    return RandomChannelPermutation()


def _blur(transform: Any, version: int) -> Transform | str:
    return GaussianBlur(tuple(transform.kernel_size), tuple(transform.sigma))


def _noise(transform: Any, version: int) -> Transform | str:
    return GaussianNoise(transform.mean, transform.sigma, bool(transform.clip))


def _pad(transform: Any, version: int) -> Transform | str:
    if isinstance(transform.fill, dict):
        return "a dict of fills is not known"
    return Pad(transform.padding, transform.fill, transform.padding_mode)


def _erasing(transform: Any, version: int) -> Transform | str:
    value = "random" if transform.value is None else transform.value
    return RandomErasing(transform.p, tuple(transform.scale), tuple(transform.ratio), value)


def _sized(make: Callable[..., Transform], *names: str) -> Callable[[Any, int], Transform | str]:
    """A resize to a random size: with an interpolation, and attributes of the same names."""

    def translate(transform: Any, version: int) -> Transform | str:
        values = (getattr(transform, name) for name in names)
        mode = resize_filter(transform)
        return make(*(tuple(v) if isinstance(v, Sequence) else v for v in values), mode)

    return translate


#: By name: ours for a transform of torchvision's and its version (1 or 2), or why there is none.
TRANSLATORS: dict[str, Callable[[Any, int], Transform | str]] = {
    "AugMix": _filled(
        AugMix,
        "severity",
        "mixture_width",
        "chain_depth",
        "alpha",
        "all_ops",
        versioned=True,
    ),
    "AutoAugment": _filled(AutoAugment, "policy", versioned=True),
    "ColorJitter": _jitter,
    "GaussianBlur": _blur,
    "GaussianNoise": _noise,
    "Grayscale": _grayscale,
    "Pad": _pad,
    "RandAugment": _filled(
        RandAugment, "num_ops", "magnitude", "num_magnitude_bins", versioned=True
    ),
    "RandomAdjustSharpness": _by_p(RandomAdjustSharpness, "sharpness_factor"),
    "RandomAffine": _filled(RandomAffine, "degrees", "translate", "scale", "shear", "center"),
    "RandomAutocontrast": _by_p(RandomAutocontrast),
    "RandomChannelPermutation": _permutation,
    "RandomEqualize": _by_p(RandomEqualize),
    "RandomErasing": _erasing,
    "RandomGrayscale": _by_p(RandomGrayscale),
    "RandomInvert": _by_p(RandomInvert),
    "RandomPerspective": _filled(RandomPerspective, "distortion_scale", "p"),
    "RandomPhotometricDistort": _distort,
    "RandomPosterize": _by_p(RandomPosterize, "bits"),
    "RandomResize": _sized(RandomResize, "min_size", "max_size"),
    "RandomRotation": _filled(RandomRotation, "degrees", "expand", "center"),
    "RandomShortestSize": _sized(RandomShortestSize, "min_size", "max_size"),
    "RandomSolarize": _by_p(RandomSolarize, "threshold"),
    "RandomVerticalFlip": _by_p(RandomVerticalFlip),
    "ScaleJitter": _sized(ScaleJitter, "target_size", "scale_range"),
    "TrivialAugmentWide": _filled(TrivialAugmentWide, "num_magnitude_bins", versioned=True),
}


def _has_fill(transform: Any) -> bool:
    fill = getattr(transform, "fill", None)
    return any(fill) if isinstance(fill, Sequence) else bool(fill)


def translate(transform: Any, version: int, kind: str, dtype: str) -> Transform | str:
    """One of torchvision's augmentations, by the rules of `fastdata.transforms.torchvision`."""
    name = kind_of(transform).__name__
    on_tensors = kind in ("tensor", "image")
    if on_tensors and name != "RandomErasing":
        on_floats = dtype != "uint8" and name != "RandomVerticalFlip"
        if on_floats and (dtype != "float32" or name not in _ON_FLOATS):
            return "it works on floats here; put it before the conversion"
        if on_floats and _has_fill(transform):
            return "it fills with floats here; put it before the conversion"
        if name in _RESIZES and not (
            transform.antialias and resize_filter(transform) == "bilinear"
        ):
            return "on tensors, only bilinear with antialias=True has Pillow's values"
    elif (name == "RandomErasing" and kind == "pil" and version == 1) or name == "GaussianNoise":
        return "it works on tensors, and has a PIL image here"
    found = TRANSLATORS[name](transform, version)
    apart = name in _OTHERWISE_ON_TENSORS or (dtype == "float32" and name in _ON_FLOATS)
    if not on_tensors or isinstance(found, str) or not apart:
        return found
    if getattr(found, "interpolation", "") == "bicubic":
        return "torchvision does not do it to tensors by 'bicubic'"
    if getattr(found, "expand", False):
        return "on tensors it expands to other sizes than PIL images"
    fill = getattr(transform, "fill", None)
    if any(value != int(value) for value in (fill if isinstance(fill, Sequence) else [fill or 0])):
        return "its fill is not of whole numbers"
    return OnTensors(found, version, fill is not None)

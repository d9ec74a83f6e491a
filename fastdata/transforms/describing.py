"""Augmentations in words, for ``explain()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastdata.transforms.augmentations import (
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
    RandomApply,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomChoice,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomOrder,
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
from fastdata.transforms.descriptions import (
    CenterCrop,
    Compose,
    CornerCrop,
    FlooredCenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ResizeKeepRatio,
    Transform,
)
from fastdata.transforms.pixels import Erase, Nothing, OnTensors, Operation, Policy, Sample


def dimensions(step: Any) -> str:
    """A step's size: width x height, or one number."""
    return f"{step.size[1]} x {step.size[0]}" if isinstance(step.size, tuple) else str(step.size)


def describe(step: Transform) -> str:
    """What a transform does, in a few words."""
    return _WORDS[type(step)](step)


def _range(values: Any) -> str:
    return f"{values[0]:g}" if values[0] == values[1] else f"{values[0]:g} to {values[1]:g}"


def _all(steps: Any, between: str) -> str:
    return between.join(map(describe, steps))


def _resized_crop(step: RandomResizedCrop) -> str:
    words = f"random resized crop to {dimensions(step)} ({_filters(step)})"
    if step.scale != (0.08, 1.0):
        words += f" of {_range(step.scale)} of the area"
    return words


def _filters(step: Any) -> str:
    several = step.interpolation
    return several if isinstance(several, str) else " or ".join(several)


def _keep_ratio(step: ResizeKeepRatio) -> str:
    where = {0.0: "around", 1.0: "within"}.get(step.longest, "about")
    changed = [("scale", step.random_scale_prob), ("ratio", step.random_aspect_prob)]
    words = "".join(f", {name} changed with p {p:g}" for name, p in changed if p)
    return f"resize to {where} {dimensions(step)} ({_filters(step)}){words}"


def _resize(step: Resize) -> str:
    side = "" if isinstance(step.size, tuple) else "shorter side "
    most = "" if step.max_size is None else f", longer side at most {step.max_size}"
    return f"resize to {side}{dimensions(step)} ({step.interpolation}){most}"


def _random_crop(step: RandomCrop) -> str:
    padded = ", padded" if step.pad_if_needed or any(step.padding) else ""  # type: ignore[arg-type]
    return f"random crop of {dimensions(step)}{padded}"


def _jitter(step: ColorJitter) -> str:
    names = ("brightness", "contrast", "saturation", "hue")
    changed = [(name, getattr(step, name)) for name in names]
    nothing = ((1.0, 1.0), (0.0, 0.0))
    words = [f"{name} {_range(values)}" for name, values in changed if values not in nothing]
    return f"colour jitter ({', '.join(words)})"


def _affine(step: RandomAffine) -> str:
    words = [f"by {_range(step.degrees)} degrees"]
    words += [] if step.translate is None else ["moved"]
    words += [] if step.scale is None else [f"scaled by {_range(step.scale)}"]
    words += [] if step.shear is None else ["sheared"]
    return f"random affine {', '.join(words)} ({step.interpolation})"


def _erase(step: Erase | RandomErasing) -> str:
    least, most = step.counts if isinstance(step, Erase) else step.count  # type: ignore[misc]
    several = "" if most == 1 else f", in {least} to {most} parts"
    return f"erase {_range(step.scale)} of the area with p {step.p:g}{several}"


_WORDS: dict[type, Callable[[Any], str]] = {
    AugMix: lambda step: f"AugMix ({step.mixture_width} chains of severity {step.severity})",
    AutoAugment: lambda step: f"AutoAugment ({step.policy})",
    CenterCrop: lambda step: f"centre crop of {dimensions(step)}",
    ColorJitter: _jitter,
    FlooredCenterCrop: lambda step: f"centre crop of {dimensions(step)}",
    Compose: lambda step: f"({_all(step.transforms, ', ')})",
    CornerCrop: lambda step: (
        f"{'lower' if step.bottom else 'upper'} {'right' if step.right else 'left'} "
        f"{dimensions(step)}"
    ),
    Erase: _erase,
    GaussianBlur: lambda step: (
        f"blur by {step.kernel_size[0]} x {step.kernel_size[1]}, sigma {_range(step.sigma)}"
    ),
    GaussianNoise: lambda step: f"noise of {step.sigma:g}",
    Grayscale: lambda step: "grey",
    Nothing: lambda step: "nothing",
    OnTensors: lambda step: describe(step.transform),
    Operation: lambda step: step.name.replace("_", " "),
    Pad: lambda step: f"pad by {', '.join(map(str, step.padding))} ({step.padding_mode})",
    Policy: lambda step: step.words,
    RandAugment: lambda step: f"RandAugment ({step.num_ops} of strength {step.magnitude})",
    RandomAdjustSharpness: lambda step: f"sharpness {step.sharpness_factor:g} with p {step.p:g}",
    RandomAffine: _affine,
    RandomApply: lambda step: f"with p {step.p:g} ({_all(step.transforms, ', ')})",
    RandomAutocontrast: lambda step: f"autocontrast with p {step.p:g}",
    RandomChannelPermutation: lambda step: "channels in random order",
    RandomChoice: lambda step: f"one of ({_all(step.transforms, ' | ')})",
    RandomCrop: _random_crop,
    RandomEqualize: lambda step: f"equalise with p {step.p:g}",
    RandomErasing: _erase,
    RandomGrayscale: lambda step: f"grey with p {step.p:g}",
    RandomHorizontalFlip: lambda step: f"flip with p {step.p:g}",
    RandomInvert: lambda step: f"invert with p {step.p:g}",
    RandomOrder: lambda step: f"in random order ({_all(step.transforms, ', ')})",
    RandomPerspective: lambda step: (
        f"perspective by {step.distortion_scale:g} with p {step.p:g} ({step.interpolation})"
    ),
    RandomPhotometricDistort: lambda step: f"photometric distortion with p {step.p:g}",
    RandomPosterize: lambda step: f"posterise to {step.bits} bits with p {step.p:g}",
    RandomResize: lambda step: (
        f"resize to shorter side {step.min_size} to {step.max_size - 1} ({step.interpolation})"
    ),
    RandomResizedCrop: _resized_crop,
    RandomRotation: lambda step: f"rotate by {_range(step.degrees)} degrees ({step.interpolation})",
    RandomShortestSize: lambda step: (
        f"resize to shorter side {' or '.join(map(str, step.min_size))} ({step.interpolation})"
    ),
    RandomSolarize: lambda step: f"solarise from {step.threshold:g} with p {step.p:g}",
    RandomVerticalFlip: lambda step: f"flip vertically with p {step.p:g}",
    Resize: _resize,
    ResizeKeepRatio: _keep_ratio,
    Sample: lambda step: f"{step.count} of ({_all(step.transforms, ' | ')})",
    ScaleJitter: lambda step: (
        f"resize within {step.target_size[1]:g} x {step.target_size[0]:g} "
        f"by {_range(step.scale_range)} ({step.interpolation})"
    ),
    TrivialAugmentWide: lambda step: "TrivialAugmentWide",
}
